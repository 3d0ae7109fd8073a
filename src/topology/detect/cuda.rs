//! The CUDA driver, where NVML is missing: which GPUs there are, but nothing of their links.

// The FFI room: cudarc's queries are unsafe for the handles they take.
#![allow(unsafe_code)]

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{result, sys};

use crate::topology::detect::gpu::{Found, Gpu};

/// The GPUs that CUDA gives to this process, `CUDA_VISIBLE_DEVICES` having been applied, or why it does not answer.
pub(super) fn gpus() -> Result<Found, String> {
    // SAFETY: looks for the library and loads it, which runs no code of ours.
    if !unsafe { sys::is_culib_present() } {
        return Err("libcuda is not there".into());
    }
    let fail = |e: result::DriverError| format!("CUDA: {e:?}");
    result::init().map_err(fail)?;
    let count = result::device::get_count().map_err(fail)?;
    let mut found = Found { by: "the CUDA driver".into(), complete: true, ..Found::default() };
    for i in 0..count {
        let Ok(device) = result::device::get(i) else { continue };
        // SAFETY: `device` is what `cuDeviceGet` gave.
        let get = |what: Attribute| unsafe { result::device::get_attribute(device, what) }.ok();
        let number = |what: Attribute| get(what).and_then(|n| u32::try_from(n).ok());
        let (Some(domain), Some(bus), Some(slot)) = (
            number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
            number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
            number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
        ) else {
            found.notices.push(format!("CUDA device {i} has no PCI address and is left out"));
            continue;
        };
        let major = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        let minor = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        found.gpus.push(Gpu {
            bus: format!("{domain:04x}:{bus:02x}:{slot:02x}.0"),
            name: result::device::get_name(device).ok(),
            sm: major.zip(minor).map(|(major, minor)| major * 10 + minor),
            // SAFETY: as above.
            memory: unsafe { result::device::total_mem(device) }.ok().map(|m| m as u64),
            ..Gpu::default()
        });
    }
    found.notices.push("NVML does not answer; CUDA names the GPUs, but NVLinks cannot be seen".into());
    Ok(found)
}
