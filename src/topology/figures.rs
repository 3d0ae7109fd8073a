//! What vendors say of links, and what is reached of it.

/// Nominal and usable bytes per second of one NVLink in one direction, by compute capability (90 for 9.0). Nominal:
/// NVIDIA's white paper of the architecture. Usable: NCCL's `src/graph/topo.h`.
pub(super) fn nvlink(sm: u32) -> Option<(f64, f64)> {
    Some(match sm {
        60..=69 => (20e9, 18e9),
        70..=79 => (25e9, 20e9),
        80..=85 => (25e9, 20e9),
        86..=89 => (14.0625e9, 12e9),
        90..=99 => (25e9, 20.6e9),
        100.. => (50e9, 40.1e9),
        _ => return None,
    })
}

/// The source of [`nvlink`]'s figures.
pub(super) const NVLINK_SOURCE: &str =
    "nominal: NVIDIA's white paper of the architecture; usable: NCCL src/graph/topo.h";

/// Nominal bytes per second of one xGMI link in one direction, by LLVM's name of the accelerator: AMD's data sheets.
pub(super) fn xgmi(gcn: &str) -> Option<f64> {
    match gcn.trim_start_matches("gfx") {
        "906" | "908" => Some(46e9),
        "910" | "90a" => Some(50e9),
        "940" | "941" | "942" | "950" => Some(64e9),
        _ => None,
    }
}

/// Nominal bytes per second of a CPU's NVLink-C2C in one direction: Grace Hopper's 900 GB/s count both (white paper).
pub(super) fn nvlink_c2c(sm: u32) -> Option<f64> {
    (90..100).contains(&sm).then_some(450e9)
}

/// Bytes per second of one direction: 8b/10b below 8 GT/s, 128b/130b from there on (PCI Express base specification).
pub(crate) fn pcie(transfers: f64, width: u32) -> f64 {
    let coding = if transfers < 8.0 { 0.8 } else { 128.0 / 130.0 };
    (transfers * 1e9 * f64::from(width) * coding / 8.0).round()
}

/// GT/s of a PCIe generation.
pub(super) fn pcie_generation(number: u32) -> Option<f64> {
    [2.5, 5.0, 8.0, 16.0, 32.0, 64.0].get(usize::try_from(number.checked_sub(1)?).ok()?).copied()
}

/// Compute capability by a model's name, 0 where it is none that is known.
pub(super) fn sm_of(model: &str) -> u32 {
    let known = [
        ("P100", 60),
        ("V100", 70),
        ("T4", 75),
        ("A100", 80),
        ("A800", 80),
        ("A10", 86),
        ("A40", 86),
        ("A6000", 86),
        ("3090", 86),
        ("L40", 89),
        ("L4", 89),
        ("4090", 89),
        ("H100", 90),
        ("H200", 90),
        ("H20", 90),
        ("B100", 100),
        ("B200", 100),
        ("B300", 103),
    ];
    known.iter().find(|(name, _)| model.contains(name)).map_or(0, |(_, sm)| *sm)
}
