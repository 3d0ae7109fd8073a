//! A plan from outside: refused or proved, never a panic and never out of bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use topocoll::plan::{Plan, verify};

fuzz_target!(|bytes: &[u8]| {
    let Ok(plan) = serde_json::from_slice::<Plan>(bytes) else { return };
    let _ = verify(&plan, &vec![0; plan.ranks()]);
});
