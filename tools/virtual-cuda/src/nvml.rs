//! The calls of `libnvidia-ml` that detection makes.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings as sys;

use crate::machine::{End, Gpu, machine};

type Code = sys::nvmlReturn_t;
type Handle = sys::nvmlDevice_t;

const OK: Code = sys::nvmlReturn_enum_NVML_SUCCESS;
const BAD: Code = sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
const UNSUPPORTED: Code = sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;

/// A handle is the GPU's number plus one.
fn gpu(handle: Handle) -> Option<&'static Gpu> {
    machine()?.gpus.get((handle as usize).checked_sub(1)?)
}

/// Answers a question about a GPU.
fn answer<T>(handle: Handle, out: *mut T, ask: impl FnOnce(&Gpu) -> Option<T>) -> Code {
    let Some(gpu) = gpu(handle) else { return BAD };
    match ask(gpu) {
        // SAFETY: by NVML's interface `out` is the caller's, valid for a `T`.
        Some(value) => unsafe { out.write(value) },
        None => return UNSUPPORTED,
    }
    OK
}

/// Writes a text as C has it.
pub(crate) fn text(to: *mut c_char, length: c_uint, value: &str) -> Code {
    let bytes = value.as_bytes();
    if bytes.len() + 1 > length as usize {
        return sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
    }
    // SAFETY: by NVML's interface `to` is the caller's, valid for `length` bytes, which `value` and its end fit.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len());
        to.add(bytes.len()).write(0);
    }
    OK
}

fn pci((domain, bus, device): (u32, u32, u32)) -> sys::nvmlPciInfo_t {
    let mut info = sys::nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain,
        bus,
        device,
        pciDeviceId: 0x2330_10de,
        pciSubSystemId: 0,
        busId: [0; 32],
    };
    for (to, from) in info.busId.iter_mut().zip(format!("{domain:08X}:{bus:02X}:{device:02X}.0").bytes()) {
        *to = from as c_char;
    }
    info
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Code {
    if machine().is_some() { OK } else { sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Code {
    OK
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, length: c_uint) -> Code {
    text(to, length, "580.00.virtual")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> Code {
    let Some(machine) = machine() else { return BAD };
    // SAFETY: by NVML's interface `out` is valid for a number.
    unsafe { out.write(machine.gpus.len() as c_uint) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut Handle) -> Code {
    match machine() {
        Some(m) if (index as usize) < m.gpus.len() => {
            // SAFETY: by NVML's interface `out` is valid for a handle.
            unsafe { out.write(std::ptr::without_provenance_mut(index as usize + 1)) };
            OK
        }
        _ => BAD,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(handle: Handle, out: *mut sys::nvmlPciInfo_t) -> Code {
    answer(handle, out, |g| Some(pci(g.bus)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(handle: Handle, to: *mut c_char, length: c_uint) -> Code {
    let uuid = gpu(handle).and_then(|g| g.device.extra.get("uuid"));
    uuid.map_or(UNSUPPORTED, |u| text(to, length, u))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(handle: Handle, to: *mut c_char, length: c_uint) -> Code {
    gpu(handle).map_or(BAD, |g| text(to, length, &g.device.name))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(handle: Handle, major: *mut i32, minor: *mut i32) -> Code {
    let sm = |g: &Gpu| g.extra::<i32>("gpu.sm");
    match answer(handle, major, |g| Some(sm(g)? / 10)) {
        OK => answer(handle, minor, |g| Some(sm(g)? % 10)),
        other => other,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: Handle, out: *mut sys::nvmlMemory_v2_t) -> Code {
    answer(handle, out, |g| {
        let total = g.extra("memory")?;
        Some(sys::nvmlMemory_v2_t { version: 0, total, reserved: 0, free: total, used: 0 })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(handle: Handle, current: *mut c_uint, pending: *mut c_uint) -> Code {
    match answer(handle, current, |g| g.extra("mig")) {
        OK => answer(handle, pending, |g| g.extra("mig")),
        other => other,
    }
}

/// GPUs at rest: the slowest speed now, the fastest at most.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrPcieLinkGeneration(handle: Handle, out: *mut c_uint) -> Code {
    answer(handle, out, |_| Some(1))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxPcieLinkGeneration(handle: Handle, out: *mut c_uint) -> Code {
    answer(handle, out, |_| Some(5))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrPcieLinkWidth(handle: Handle, out: *mut c_uint) -> Code {
    answer(handle, out, |g| Some(g.width))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxPcieLinkWidth(handle: Handle, out: *mut c_uint) -> Code {
    answer(handle, out, |_| Some(16))
}

/// How many NVLinks a GPU has; beyond the last the real library refuses too.
fn count(g: &Gpu) -> u32 {
    g.extra("nvlinks").unwrap_or(g.nvlinks.len() as u32)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkState(handle: Handle, link: c_uint, out: *mut sys::nvmlEnableState_t) -> Code {
    match gpu(handle) {
        Some(g) if link < count(g) => answer(handle, out, |g| {
            let up = (link as usize) < g.nvlinks.len();
            Some(if up {
                sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED
            } else {
                sys::nvmlEnableState_enum_NVML_FEATURE_DISABLED
            })
        }),
        _ => BAD,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(handle: Handle, link: c_uint, out: *mut sys::nvmlPciInfo_t) -> Code {
    answer(handle, out, |g| Some(pci(g.nvlinks.get(link as usize)?.1)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    handle: Handle,
    link: c_uint,
    out: *mut sys::nvmlIntNvLinkDeviceType_t,
) -> Code {
    answer(handle, out, |g| {
        Some(match g.nvlinks.get(link as usize)?.0 {
            End::Gpu => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            End::Switch => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
            End::Cpu => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetC2cModeInfoV(handle: Handle, out: *mut sys::nvmlC2cModeInfo_v1_t) -> Code {
    answer(handle, out, |g| Some(sys::nvmlC2cModeInfo_v1_t { isC2cEnabled: g.extra("c2c")? }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuFabricInfo(handle: Handle, out: *mut sys::nvmlGpuFabricInfo_t) -> Code {
    answer(handle, out, |g| {
        let clique = g.extra("clique")?;
        Some(sys::nvmlGpuFabricInfo_t { clusterUuid: [0xc1; 16], status: 0, cliqueId: clique, state: 3 })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetP2PStatus(
    a: Handle,
    b: Handle,
    _what: sys::nvmlGpuP2PCapsIndex_t,
    out: *mut sys::nvmlGpuP2PStatus_t,
) -> Code {
    let Some(peer) = gpu(b).and_then(|g| g.device.bus.clone()) else { return BAD };
    answer(a, out, |g| {
        let denied = g.device.extra.get("p2p.denied").is_some_and(|d| d.split(' ').any(|bus| bus == peer));
        Some(match denied {
            true => sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED,
            false => sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK,
        })
    })
}
