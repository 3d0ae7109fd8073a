use super::*;

#[test]
fn this_machine_is_seen() {
    let t = detect().unwrap();
    let cpus = t.of_kind(DeviceKind::Cpu);
    assert!(!cpus.is_empty());
    let pus: usize = cpus.iter().filter_map(|c| t.device(*c).cpu.as_ref()).map(|c| c.pus.len()).sum();
    assert!(pus >= 1);
    let route = t.route(cpus[0], cpus[0]).unwrap();
    assert_eq!(route.links.len(), 1);
    for (id, d) in t.devices().filter(|(_, d)| !d.extra.contains_key(crate::topology::device::NO_RAIL)) {
        assert!(t.route(cpus[0], id).is_some(), "{} is cut off", d.id);
    }
}
