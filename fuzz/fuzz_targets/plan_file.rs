//! A plan file in any format: read, proved or refused, written in both formats and proved again. Never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use topocoll::plan::{Plan, verify};

fuzz_target!(|text: &str| {
    let Ok(plan) = Plan::parse(text, "fuzz") else { return };
    // What is proved may be large, and then takes its time.
    if plan.parts > 1 << 10 || plan.programs.iter().any(|p| p.scratch > 1 << 10) {
        return;
    }
    let json = plan.to_json().expect("what is read can be written");
    assert_eq!(Plan::parse(&json, "again").expect("what is written can be read"), plan);
    let hosts = vec![0; plan.ranks()];
    if verify(&plan, &hosts).is_err() {
        return;
    }
    let xml = plan.to_msccl_xml().expect("a proved plan can be written");
    let again = Plan::parse(&xml, "again.xml").expect("what is written can be read");
    verify(&again, &hosts).expect("what is written is right");
});
