//! The command as a user runs it.
#![allow(dead_code)]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub struct Outcome {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

fn command(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_topo-bench"));
    // What the tests themselves were started with is not the command's.
    for name in [
        "RANK",
        "WORLD_SIZE",
        "TOPOCOLL_TOPOLOGY",
        "TOPOCOLL_ALGO",
        "TOPOCOLL_CHUNKS",
        "TOPOCOLL_LANES",
        "TOPOCOLL_TIMEOUT",
    ] {
        command.env_remove(name);
    }
    command.args(args).envs(env.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn run(args: &[&str]) -> Outcome {
    run_with(args, &[])
}

pub fn run_with(args: &[&str], env: &[(&str, &str)]) -> Outcome {
    Started::with(args, env).wait()
}

pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e} in {text}"))
}

/// A command under way.
pub struct Started(Child);

impl Started {
    pub fn new(args: &[&str]) -> Self {
        Self::with(args, &[])
    }

    pub fn with(args: &[&str], env: &[(&str, &str)]) -> Self {
        Self(command(args, env).spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its ranks, in order, once all are there.
    pub fn ranks(&self, count: usize) -> Vec<u32> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let mut found = children(self.pid());
            if found.len() == count {
                found.sort_unstable();
                return found;
            }
            assert!(Instant::now() < deadline, "{} of {count} ranks", found.len());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn wait(self) -> Outcome {
        let out = self.0.wait_with_output().unwrap();
        let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
        Outcome { ok: out.status.success(), out: text(out.stdout), err: text(out.stderr) }
    }
}

pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// The processes that `pid` started and that live.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map(|d| d.filter_map(Result::ok).collect::<Vec<_>>());
    let lists =
        tasks.unwrap_or_default().into_iter().filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    lists.flat_map(|l| l.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// Whether a process has ended (it may still wait to be collected).
pub fn is_gone(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}
