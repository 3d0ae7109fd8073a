//! Writes the topology that detection finds, for the tests here.

use std::process::ExitCode;

fn main() -> ExitCode {
    match topocoll::topology::Topology::detect() {
        Ok(t) => {
            print!("{}", t.to_toml());
            t.notices().iter().for_each(|n| println!("# {n}"));
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
