//! NVIDIA's management library, loaded at run time.

// The FFI room for what nvml-wrapper does not offer, or not rightly.
#![allow(unsafe_code)]

use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as sys;

use crate::topology::detect::gpu::{Found, Gpu, NvLink, Remote};
use crate::topology::detect::pci::Trained;
use crate::topology::detect::sysfs::bus;
use crate::topology::figures;

/// The most NVLinks a GPU may have in NVML's interface, with room for what comes.
const MAX_LINKS: u32 = 64;

/// The GPUs that NVML gives to this process, or why it does not answer.
pub(super) fn gpus() -> Result<Found, String> {
    // Systems without development packages have the versioned name only.
    let named = |name: &str| Nvml::builder().lib_path(name.as_ref()).init();
    let nvml = named("libnvidia-ml.so.1").or_else(|first| match first {
        NvmlError::LibloadingError(_) => named("libnvidia-ml.so"),
        other => Err(other),
    });
    let nvml = nvml.map_err(|e| e.to_string())?;
    let count = nvml.device_count().map_err(|e| e.to_string())?;
    let driver = nvml.sys_driver_version().map(|v| format!(" of driver {v}")).unwrap_or_default();
    let mut found = Found { by: format!("NVML{driver}"), complete: true, ..Found::default() };
    let mut devices = Vec::new();
    for i in 0..count {
        // One GPU that fell off the bus must not hide the others.
        let device = nvml.device_by_index(i).and_then(|d| Ok((d.pci_info()?.bus_id, d)));
        match device.map(|(id, d)| (bus(&id), id, d)) {
            Ok((Some(bus), _, device)) => devices.push((bus, device)),
            Ok((None, id, _)) => found.notices.push(format!("GPU {i}: NVML's bus id `{id}` is none")),
            Err(e) => found.notices.push(format!("GPU {i} cannot be asked: {e}")),
        }
    }
    found.gpus = devices.iter().map(|(bus, device)| gpu(&nvml, bus, device)).collect();
    for (i, (_, a)) in devices.iter().enumerate() {
        for (other, b) in devices.iter().filter(|(other, _)| *other != devices[i].0) {
            if let Ok(status) = a.p2p_status(b, P2pCapabilitiesIndex::Read)
                && !matches!(status, P2pStatus::Ok | P2pStatus::Unknown)
            {
                found.gpus[i].denied.push((other.clone(), reason(&status)));
            }
        }
    }
    Ok(found)
}

fn reason(status: &P2pStatus) -> String {
    match status {
        P2pStatus::ChipsetNotSupported => "the chipset does not support it".into(),
        P2pStatus::GpuNotSupported => "these GPUs do not support it".into(),
        P2pStatus::IohTopologyNotSupported => "the way between them does not support it".into(),
        P2pStatus::DisabledByRegkey => "a registry key of the driver disables it".into(),
        P2pStatus::NotSupported => "it is not supported".into(),
        other => format!("{other:?}"),
    }
}

fn gpu(nvml: &Nvml, bus: &str, device: &Device<'_>) -> Gpu {
    let trained = |generation: Result<u32, NvmlError>, width: Result<u32, NvmlError>| {
        let speed = figures::pcie_generation(generation.ok()?)?;
        Some(Trained { speed, width: width.ok().filter(|w| (1..=64).contains(w))? })
    };
    let now = trained(device.current_pcie_link_gen(), device.current_pcie_link_width());
    let most = trained(device.max_pcie_link_gen(), device.max_pcie_link_width());
    let capability = device.cuda_compute_capability().ok();
    let sm = capability.and_then(|c| Some(u32::try_from(c.major).ok()? * 10 + u32::try_from(c.minor).ok()?));
    Gpu {
        bus: bus.into(),
        uuid: device.uuid().ok(),
        name: device.name().ok(),
        sm,
        memory: device.memory_info().ok().map(|m| m.total),
        pcie: now.zip(most),
        nvlinks: (0..MAX_LINKS).map_while(|link| nvlink(nvml, device, link)).collect(),
        c2c: c2c(nvml, device),
        mig: device.mig_mode().is_ok_and(|m| m.current == 1),
        fabric: fabric(nvml, device),
        denied: Vec::new(),
    }
}

/// A link, or `None` where the GPU has no such one.
fn nvlink(nvml: &Nvml, device: &Device<'_>, link: u32) -> Option<NvLink> {
    let wrapper = device.link_wrapper_for(link);
    let active = wrapper.is_active().ok()?;
    let remote_bus = wrapper.remote_pci_info().ok().and_then(|p| bus(&p.bus_id));
    let remote = if active { remote(nvml, device, link) } else { Remote::Unknown };
    Some(NvLink { active, remote, bus: remote_bus })
}

/// What is at the end of a link. nvml-wrapper 0.13's own call drops the answer.
fn remote(nvml: &Nvml, device: &Device<'_>, link: u32) -> Remote {
    let Ok(call) = &nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType else { return Remote::Unknown };
    let mut kind: sys::nvmlIntNvLinkDeviceType_t = sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    // SAFETY: the handle is of a device of this library, which outlives the call, and `kind` is written before it returns.
    let code = unsafe { call(device.handle(), link, &mut kind) };
    match kind {
        _ if code != sys::nvmlReturn_enum_NVML_SUCCESS => Remote::Unknown,
        sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU => Remote::Gpu,
        sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH => Remote::Switch,
        sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU => Remote::Cpu,
        _ => Remote::Unknown,
    }
}

/// Whether NVLink-C2C joins the GPU with its CPU.
fn c2c(nvml: &Nvml, device: &Device<'_>) -> bool {
    let Ok(call) = &nvml.lib().nvmlDeviceGetC2cModeInfoV else { return false };
    let mut info = sys::nvmlC2cModeInfo_v1_t { isC2cEnabled: 0 };
    // SAFETY: as above; the structure is of the version that the call of this name takes.
    let code = unsafe { call(device.handle(), &mut info) };
    code == sys::nvmlReturn_enum_NVML_SUCCESS && info.isC2cEnabled == 1
}

/// Cluster and clique of an NVLink fabric that spans hosts, once the GPU is registered with it.
fn fabric(nvml: &Nvml, device: &Device<'_>) -> Option<(String, u32)> {
    const COMPLETED: u8 = 3;
    let call = nvml.lib().nvmlDeviceGetGpuFabricInfo.as_ref().ok()?;
    let mut info = sys::nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
    // SAFETY: as above.
    let code = unsafe { call(device.handle(), &mut info) };
    let joined = code == sys::nvmlReturn_enum_NVML_SUCCESS && info.state == COMPLETED && info.status == 0;
    // Hosts whose NVSwitches join no others report zeros.
    let spans = info.clusterUuid.iter().any(|b| *b != 0);
    (joined && spans).then(|| (info.clusterUuid.iter().map(|b| format!("{b:02x}")).collect(), info.cliqueId))
}
