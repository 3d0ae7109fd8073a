//! Ranks as processes of this program: started, watched, and never left behind.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::Result;

/// Tells a process that it is a rank, and of whom.
const PARENT: &str = "TOPO_BENCH_PARENT";

/// How long the others have to find out for themselves that one has failed.
const GRACE: Duration = Duration::from_secs(5);

/// Whether this process is a rank that [`ranks`] started. From then on it ends with its parent.
pub fn is_rank() -> Result<bool> {
    let Ok(parent) = std::env::var(PARENT) else { return Ok(false) };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the line above.
    if getppid().map(Pid::as_raw_pid).map(|p| p.to_string()).as_deref() != Some(&parent) {
        return Err("the process that started this rank is gone".into());
    }
    Ok(true)
}

/// Runs this program again with `args` as each of `ranks` ranks, which write to the standard output as they please.
/// True if all ended well; what they said on the standard error is shown once for all that said the same.
pub fn ranks(ranks: usize, args: &[String], env: &[(&str, String)]) -> Result<bool> {
    let program = std::env::current_exe().map_err(|e| format!("finding this program: {e}"))?;
    let job: u128 = rand::random();
    let mut children = Vec::with_capacity(ranks);
    for rank in 0..ranks {
        let child = Command::new(&program)
            .args(args)
            .env("TOPOCOLL_RANK", rank.to_string())
            .env("TOPOCOLL_SIZE", ranks.to_string())
            .env("TOPOCOLL_LOCAL_SIZE", ranks.to_string())
            .env("TOPOCOLL_JOB", format!("{job:032x}"))
            .env(PARENT, std::process::id().to_string())
            .envs(env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        match child {
            Ok(child) => children.push(child),
            Err(e) => {
                end(&mut children);
                return Err(format!("starting rank {rank} of {ranks}: {e}").into());
            }
        }
    }
    let voices: Vec<_> = children.iter_mut().map(|c| c.stderr.take()).collect();
    let voices: Vec<_> = voices
        .into_iter()
        .map(|v| std::thread::spawn(move || v.map(|v| BufReader::new(v).lines().map_while(|l| l.ok()).collect())))
        .collect();
    let statuses = wait(&mut children);
    let mut said: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (rank, voice) in voices.into_iter().enumerate() {
        let lines: Vec<String> = voice.join().ok().flatten().unwrap_or_default();
        for line in lines {
            said.entry(line.strip_prefix("topo-bench: ").unwrap_or(&line).into()).or_default().push(rank);
        }
    }
    for (rank, status) in statuses.iter().enumerate() {
        if let Some(signal) = status.signal() {
            said.entry(format!("killed by signal {signal}")).or_default().push(rank);
        }
    }
    for (line, mut who) in said {
        who.dedup();
        let plural = if who.len() == 1 { "" } else { "s" };
        eprintln!("topo-bench: rank{plural} {}: {line}", topocoll::text::list(&who));
    }
    Ok(statuses.iter().all(ExitStatus::success))
}

/// Waits for all. Once one has failed the others get some time to say so, then they are killed.
fn wait(children: &mut [Child]) -> Vec<ExitStatus> {
    let mut statuses: Vec<Option<ExitStatus>> = vec![None; children.len()];
    let mut deadline: Option<Instant> = None;
    loop {
        for (child, status) in children.iter_mut().zip(&mut statuses) {
            if status.is_none() {
                *status = child.try_wait().ok().flatten();
                if status.is_some_and(|s| !s.success()) {
                    deadline.get_or_insert(Instant::now() + GRACE);
                }
            }
        }
        if let Some(all) = statuses.iter().copied().collect::<Option<Vec<_>>>() {
            return all;
        }
        if deadline.is_some_and(|d| Instant::now() > d) {
            end(children);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn end(children: &mut [Child]) {
    for child in children {
        // One that has ended already is no longer there to kill.
        let _ = child.kill();
    }
}
