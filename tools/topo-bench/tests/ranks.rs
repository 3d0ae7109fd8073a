//! Ranks as processes: results, deaths, and what is left behind.

mod common;

use std::time::{Duration, Instant};

use common::{Started, children, json, run, run_with};
use rustix::process::Signal;

/// Every type and operator that processes can be asked for, on all the numbers of ranks a small machine may see.
#[test]
fn every_type_and_operator_is_right() {
    for ranks in ["2", "3", "5"] {
        let args = ["all-reduce", "-b", "8", "-e", "64K", "-f", "128", "-d", "all", "-o", "all", "-n", "2", "-w", "0"];
        let out = run(&[&args[..], &["--ranks", ranks, "--json"]].concat());
        assert!(out.ok, "{}", out.err);
        let rows = json(&out.out);
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 10 * 5 * 2);
        assert!(rows.iter().all(|r| r["wrong"] == 0 && r["in_place"]["wrong"] == 0));
    }
}

#[test]
fn every_collective_is_right() {
    for command in ["all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "all-to-all"] {
        for algorithm in ["", "ring", "two-shot"] {
            if ["broadcast", "all-to-all"].contains(&command) && !algorithm.is_empty() {
                continue;
            }
            let mut args =
                vec![command, "-b", "4", "-e", "3M", "-f", "97", "-d", "i32", "-n", "3", "--ranks", "4", "--json"];
            if !algorithm.is_empty() {
                args.extend(["--algorithm", algorithm]);
            }
            let out = run(&args);
            assert!(out.ok, "{command} {algorithm}: {}", out.err);
            for row in json(&out.out).as_array().unwrap() {
                assert_eq!(row["wrong"], 0, "{row}");
                match command {
                    "all-to-all" => assert!(row["in_place"].is_null(), "{row}"),
                    _ => assert_eq!(row["in_place"]["wrong"], 0, "{row}"),
                }
                assert!(row["time_us"]["min"].as_f64().unwrap() <= row["time_us"]["max"].as_f64().unwrap());
            }
        }
    }
}

#[test]
fn any_rank_can_be_the_root() {
    for root in ["0", "1", "2"] {
        for command in ["broadcast", "reduce"] {
            let args = [command, "-r", root, "-b", "4", "-e", "1M", "-f", "512", "-d", "bf16", "-o", "max", "-n", "2"];
            let out = run(&[&args[..], &["--ranks", "3"]].concat());
            assert!(out.ok && out.out.contains("0 OK"), "{command} {root}: {} {}", out.out, out.err);
            assert!(out.out.lines().any(|l| l.split_whitespace().nth(4) == Some(root)), "{}", out.out);
        }
    }
    let table = run(&["all-to-all", "-b", "4K", "-e", "4K", "--ranks", "3"]).out;
    assert!(table.contains("N/A") && table.contains("0 OK"), "{table}");
}

#[test]
fn a_killed_rank_is_named_by_all_others_in_time() {
    for threads_busy in [false, true] {
        // Large messages are cut off in the middle, small ones between.
        let size = if threads_busy { "16M" } else { "1K" };
        let started = Started::new(&["all-reduce", "-b", size, "-e", size, "-n", "1000000", "--ranks", "4"]);
        let ranks = started.ranks(4);
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        common::signal(ranks[2], Signal::KILL);
        let out = started.wait();
        assert!(!out.ok);
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        assert!(out.err.contains("rank 2: killed by signal 9"), "{}", out.err);
        assert!(out.err.contains("ranks 0-1, 3: rank 2 on this host is lost"), "{}", out.err);
        assert!(ranks.iter().all(|r| common::is_gone(*r)), "a rank is left behind");
    }
}

#[test]
fn ranks_do_not_outlive_the_command() {
    let started = Started::new(&["all-reduce", "-b", "1M", "-e", "1M", "-n", "1000000", "--ranks", "3"]);
    let ranks = started.ranks(3);
    common::signal(started.pid(), Signal::KILL);
    started.wait();
    let deadline = Instant::now() + Duration::from_secs(3);
    while ranks.iter().any(|r| !common::is_gone(*r)) {
        assert!(Instant::now() < deadline, "a rank is left behind");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_stopped_rank_is_waited_for_as_long_as_said() {
    let args = ["all-reduce", "-b", "4K", "-e", "4K", "-n", "1000000", "--ranks", "3"];
    let started = Started::with(&args, &[("TOPOCOLL_TIMEOUT", "0.7")]);
    let ranks = started.ranks(3);
    std::thread::sleep(Duration::from_millis(300));
    common::signal(ranks[1], Signal::STOP);
    let begun = Instant::now();
    let out = started.wait();
    assert!(!out.ok && begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // The stopped one is named, and not those that only wait for it too.
    assert!(out.err.contains("for rank 1 in") && out.err.contains("TOPOCOLL_TIMEOUT"), "{}", out.err);
    assert!(!out.err.contains("for rank 0") && !out.err.contains("for ranks"), "{}", out.err);
    assert!(ranks.iter().all(|r| common::is_gone(*r)), "a rank is left behind");
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let env = [("TOPOCOLL_RANK", "0"), ("TOPOCOLL_SIZE", "3"), ("TOPOCOLL_JOB", "absent"), ("TOPOCOLL_TIMEOUT", "0.3")];
    let begun = Instant::now();
    let out = run_with(&["all-reduce", "-e", "8"], &env);
    assert!(!out.ok && begun.elapsed() < Duration::from_secs(5));
    assert!(out.err.contains("for ranks 1-2 in joining"), "{}", out.err);
}

#[test]
fn a_launcher_that_is_not_ours_is_joined() {
    // As torchrun, Open MPI, MPICH and Slurm start their ranks.
    let launchers: [&[(&str, &str)]; 4] = [
        &[
            ("RANK", "#"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", "@"),
        ],
        &[("OMPI_COMM_WORLD_RANK", "#"), ("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_NAMESPACE", "prterun-@")],
        &[("PMI_RANK", "#"), ("PMI_SIZE", "2")],
        &[("SLURM_PROCID", "#"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "@"), ("SLURM_STEP_ID", "0")],
    ];
    for variables in launchers {
        let job = std::process::id().to_string();
        let start = |rank: &str| {
            let env: Vec<_> = variables.iter().map(|(k, v)| (*k, v.replace('#', rank).replace('@', &job))).collect();
            let env: Vec<_> = env.iter().map(|(k, v)| (*k, v.as_str())).collect();
            Started::with(&["all-reduce", "-b", "8", "-e", "1M", "-f", "512", "-n", "2"], &env)
        };
        let (one, zero) = (start("1"), start("0"));
        let (one, zero) = (one.wait(), zero.wait());
        assert!(zero.ok && one.ok, "{variables:?} {} {}", zero.err, one.err);
        assert!(zero.out.contains("0 OK") && one.out.is_empty(), "only rank 0 reports");
    }
}

#[test]
fn nothing_is_left_in_shared_memory() {
    let list = || {
        let entries = std::fs::read_dir("/dev/shm").map(|d| d.filter_map(Result::ok).map(|e| e.file_name()).collect());
        entries.unwrap_or_else(|_| Vec::new())
    };
    let before = list();
    let started = Started::new(&["all-reduce", "-b", "1M", "-e", "1M", "-n", "1000000", "--ranks", "2"]);
    started.ranks(2);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(list(), before);
    common::signal(started.pid(), Signal::KILL);
    started.wait();
    assert_eq!(list(), before);
}

#[test]
fn memory_that_cannot_be_had_is_an_error() {
    // The file size limit stands in for a memory limit: what it forbids is forbidden before anything is mapped.
    let script = format!("ulimit -f 100; exec {} all-reduce -e 8 --ranks 2", env!("CARGO_BIN_EXE_topo-bench"));
    let out = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    assert!(err.contains("shared memory") || err.contains("signal 25"), "{err}");
}

#[test]
fn threads_are_ranks_too() {
    let out = run(&["all-reduce", "-b", "4", "-e", "1M", "-f", "16", "--ranks", "3", "--threads"]);
    assert!(out.ok && out.out.contains("0 OK") && out.out.contains("3 threads"), "{} {}", out.out, out.err);
    assert!(children(std::process::id()).len() < 1000);
}
