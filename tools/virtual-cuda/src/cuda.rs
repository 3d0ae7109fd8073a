//! The calls of `libcuda` that detection makes where there is no NVML.

use std::ffi::{c_char, c_int};

use crate::machine::{Gpu, machine};

const OK: c_int = 0;
const INVALID_VALUE: c_int = 1;
const NOT_INITIALIZED: c_int = 3;
const INVALID_DEVICE: c_int = 101;

fn gpu(device: c_int) -> Option<&'static Gpu> {
    machine()?.gpus.get(usize::try_from(device).ok()?)
}

/// Writes an answer where there is one.
fn answer<T>(out: *mut T, value: Option<T>) -> c_int {
    let Some(value) = value else { return INVALID_DEVICE };
    // SAFETY: by CUDA's interface `out` is the caller's, valid for a `T`.
    unsafe { out.write(value) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: u32) -> c_int {
    if machine().is_some() { OK } else { NOT_INITIALIZED }
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(out: *mut c_int) -> c_int {
    answer(out, machine().and_then(|m| c_int::try_from(m.gpus.len()).ok()))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(out: *mut c_int, ordinal: c_int) -> c_int {
    answer(out, gpu(ordinal).map(|_| ordinal))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(out: *mut usize, device: c_int) -> c_int {
    answer(out, gpu(device).and_then(|g| g.extra("memory")))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(to: *mut c_char, length: c_int, device: c_int) -> c_int {
    let (Some(gpu), Ok(length)) = (gpu(device), u32::try_from(length)) else { return INVALID_VALUE };
    if crate::nvml::text(to, length, &gpu.device.name) == 0 { OK } else { INVALID_VALUE }
}

/// PCI address and compute capability, by CUDA's numbers for them.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(out: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    let value = gpu(device).and_then(|g| {
        let sm = g.extra::<c_int>("gpu.sm");
        match attribute {
            33 => c_int::try_from(g.bus.1).ok(),
            34 => c_int::try_from(g.bus.2).ok(),
            50 => c_int::try_from(g.bus.0).ok(),
            75 => Some(sm? / 10),
            76 => Some(sm? % 10),
            _ => None,
        }
    });
    answer(out, value)
}
