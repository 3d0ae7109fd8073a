//! A topology file in any format: read, written back, read again and equal; routed, drawn, repeated. Never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use topocoll::topology::Topology;

fuzz_target!(|text: &str| {
    let Ok(t) = Topology::parse(text, "fuzz", None) else { return };
    if t.devices().count() > 200 {
        return;
    }
    assert_eq!(Topology::from_toml(&t.to_toml(), "again").expect("what is written can be read"), t);
    for (id, _) in t.devices() {
        t.routes_from(id);
    }
    (serde_json::to_string(&t).expect("JSON"), t.to_dot(), t.to_svg(), t.to_tree(true), t.fingerprint());
    if let Ok(xml) = t.to_nccl_xml() {
        Topology::parse(&xml, "again.xml", None).expect("what is written can be read");
    }
    let _ = t.cluster(2);
});
