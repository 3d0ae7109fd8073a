//! What a user types, right and wrong.

mod common;

use common::{json, run, run_with};

fn topologies(name: &str) -> String {
    format!("{}/../../topologies/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn detect_keeps_its_promise() {
    let out = run(&["detect", "--format", "json"]);
    assert!(out.ok, "{}", out.err);
    let t = json(&out.out);
    for d in t["devices"].as_array().unwrap() {
        for key in ["id", "kind", "name"] {
            assert!(!d[key].is_null(), "{key} of {d}");
        }
        // A switch of the network is on no host.
        assert_eq!(d["host"].is_null(), d["kind"] == "net-switch", "{d}");
    }
    let file = topologies("dgx-h100.toml");
    let t = json(&run(&["detect", "--topology", &file, "--json"]).out);
    assert_eq!(t["devices"].as_array().unwrap().iter().filter(|d| d["kind"] == "gpu").count(), 8);
    for l in t["links"].as_array().unwrap() {
        assert!(l["from"].is_string() && l["to"].is_string() && l["kind"].is_string() && l["origin"].is_string());
        assert!(l["bandwidth"].as_f64().unwrap() > 1e9 && l["latency"].as_f64().unwrap() > 0.0);
    }
    for (format, word) in [("tree", "nvswitch0"), ("dot", "graph topology"), ("toml", "[[device]]"), ("svg", "<svg ")] {
        let out = run(&["detect", "--topology", &file, "--format", format, "--explain"]);
        assert!(out.ok && out.out.contains(word), "{format}");
    }
    let tree = run(&["detect", "--topology", &file]).out;
    assert!(tree.lines().count() < 50, "a DGX does not fit on a screen:\n{tree}");
}

#[test]
fn what_is_piped_in_is_read() {
    use std::io::Write;
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_topo-bench"))
        .args(["detect", "-", "--format", "toml"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success() && String::from_utf8(out.stdout).unwrap().contains("lanes = 4"));
}

#[test]
fn what_changed_and_what_hurts_is_shown() {
    let (good, dir) = (topologies("dgx-h100.toml"), std::env::temp_dir());
    let text = run(&["detect", &good, "--format", "toml"]).out;
    let from = "from = \"gpu3\"\nto = \"nvswitch0\"\nlanes = 18\nnominal = 450000000000.0";
    assert!(text.contains(from));
    let bad = dir.join(format!("topo-bench-bad-{}.toml", std::process::id()));
    let one_down = from.replace("18", "17").replace("450", "425");
    std::fs::write(&bad, text.replacen(from, &one_down, 1)).unwrap();
    let bad = bad.to_str().unwrap();
    let same = run(&["diff", &good, &good]);
    assert!(same.ok && same.out == "no difference\n", "{}", same.out);
    let changed = run(&["diff", &good, bad]);
    assert!(!changed.ok && changed.out.contains("~ nvlink gpu3 - nvswitch0  lanes: 18 -> 17"), "{}", changed.out);
    let changes = json(&run(&["diff", &good, bad, "--json"]).out);
    assert_eq!(changes["changes"][1]["aspect"], "nominal");
    let healthy = run(&["check", &good]);
    assert!(healthy.ok && healthy.out.contains("nothing found"), "{}", healthy.out);
    let sick = run(&["check", bad]);
    assert!(!sick.ok && sick.out.contains("gpu3 has 17 of 18 NVLinks up"), "{}", sick.out);
    let finding = &json(&run(&["check", bad, "--json"]).out)["findings"][0];
    assert!(finding["now"].as_f64().unwrap() < finding["could"].as_f64().unwrap());
    assert_eq!(finding["devices"][0], "gpu3");
    std::fs::remove_file(bad).unwrap();
}

#[test]
fn plan_keeps_its_promise() {
    let file = topologies("dgx-a100.toml");
    let args =
        ["plan", "--topology", &file, "--hosts", "2", "--collective", "all-reduce", "--size", "256M", "--dtype", "f32"];
    let p = json(&run(&[&args[..], &["--json"]].concat()).out);
    for key in
        ["algorithm", "chunks", "lanes", "predicted_s", "bound_s", "bound_any_s", "bound_in_switch_s", "ratio", "algbw"]
    {
        assert!(!p[key].is_null(), "{key} of {p}");
    }
    assert!(p["bottleneck"].is_array() && p["candidates"].as_array().unwrap().len() > 2);
    let (predicted, bound) = (p["predicted_s"].as_f64().unwrap(), p["bound_s"].as_f64().unwrap());
    assert!(predicted >= bound && (p["ratio"].as_f64().unwrap() - bound / predicted).abs() < 1e-9);
    assert!(p["algorithm"].as_str().unwrap().starts_with("hierarchical"));
    for name in ["reduce-scatter", "all-gather", "broadcast", "reduce", "all-to-all"] {
        let out = run(&["plan", "--topology", &file, "--hosts", "2", "--collective", name]);
        assert!(out.ok && out.out.contains("proved"), "{name}: {}", out.err);
        assert!(run(&["plan", "--help"]).out.contains(name));
    }
    let text = run(&[&args[..], &["--explain", "--algorithm", "ring"]].concat()).out;
    for word in ["ring", "predicted", "bound", "bottleneck", "candidates", "GB/s"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let lanes = |which: &str| {
        let out = run(&[&args[..], &["--algorithm", "two-shot", "--lanes", which, "--json"]].concat()).out;
        json(&out)["lanes"].as_u64().unwrap()
    };
    assert!(lanes("coarse") < lanes("fine"));
    let bad = run_with(&args, &[("TOPOCOLL_LANES", "wide")]);
    assert!(!bad.ok && bad.err.contains("TOPOCOLL_LANES") && bad.err.contains("coarse or fine"), "{}", bad.err);
}

#[test]
fn plans_are_written_and_proved() {
    let dir = std::env::temp_dir().join(format!("topo-bench-plans-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (file, path) = (topologies("dgx-a100.toml"), dir.join("plan"));
    let path = path.to_str().unwrap();
    for collective in ["all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "all-to-all"] {
        let args = ["plan", "--topology", &file, "--hosts", "2", "--collective", collective];
        let json = run(&[&args[..], &["--format", "json"]].concat());
        assert!(json.ok && json.out.starts_with("{\"format\":\"topocoll-plan\""), "{}", json.err);
        for format in ["json", "msccl-xml"] {
            let out = run(&[&args[..], &["--format", format, "-o", path]].concat());
            assert!(out.ok && out.out.is_empty(), "{}", out.err);
            let out = run(&["verify", path, "--hosts", "2"]);
            assert!(out.ok && out.out.starts_with("proved: "), "{}", out.err);
            let root = if ["broadcast", "reduce"].contains(&collective) { " with root 0" } else { "" };
            assert!(out.out.contains(&format!(", {collective}{root} among 16 ranks on 2 hosts")), "{}", out.out);
        }
    }
    // Shared memory that is another host's.
    let out = run(&["plan", "--ranks", "4", "--algorithm", "two-shot", "--format", "json", "-o", path]);
    assert!(out.ok, "{}", out.err);
    assert!(run(&["verify", path]).ok);
    let out = run(&["verify", path, "--hosts", "2"]);
    assert!(
        !out.ok && out.err.contains("rank 0, lane 0, instruction") && out.err.contains("another host"),
        "{}",
        out.err
    );
    assert!(run(&["verify", path, "--hosts", "3"]).err.contains("4 ranks cannot be shared out"));
    std::fs::write(path, std::fs::read_to_string(path).unwrap().replacen("\"finish\":true", "\"finish\":false", 1))
        .unwrap();
    let out = run(&["verify", path]);
    assert!(!out.ok && out.err.contains("not finished"), "{}", out.err);
    std::fs::write(path, "<algo ngpus='2' coll='allreduce' nchunksperloop='x'/>").unwrap();
    let out = run(&["verify", path]);
    assert!(!out.ok && out.err.contains("plan:1: `nchunksperloop` is \"x\""), "{}", out.err);
    assert!(run(&["verify", "/dev/zero"]).err.contains("no regular file"));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn links_are_measured_saved_and_used() {
    let file = std::env::temp_dir().join(format!("topo-bench-links-{}.toml", std::process::id()));
    let path = file.to_str().unwrap();
    let out = run(&["links", "-n", "2", "--save", path, "--json"]);
    assert!(out.ok, "{}", out.err);
    let links = json(&out.out);
    assert!(links["copy"][0]["one"]["median"].as_f64().unwrap() > 1e8);
    for pair in links["pairs"].as_array().unwrap() {
        assert!(
            pair["latency_s"]["median"].as_f64().unwrap() > 1e-9 && pair["bandwidth"]["median"].as_f64().unwrap() > 1e6
        );
    }
    let saved = json(&run_with(&["detect", "--json"], &[("TOPOCOLL_TOPOLOGY", path)]).out);
    let memory = saved["links"].as_array().unwrap().iter().find(|l| l["kind"] == "memory").unwrap();
    assert_eq!(memory["origin"], "measured");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn the_main_job_tells_all() {
    let out = run(&[]);
    assert!(out.ok, "{}", out.err);
    for word in
        ["cpu0", "latency between cores", "predicted", "proved", "out-of-place", "0 OK", "In short", "all right"]
    {
        assert!(out.out.contains(word), "{word} is not in {}", out.out);
    }
    let all = json(&run(&["--json"]).out);
    assert_eq!(all["ok"], true);
    assert!(all["all_reduce"].as_array().unwrap().iter().all(|r| r["wrong"] == 0));
}

/// Each ends soon, with an error that says what to do, and without a panic.
#[test]
fn nonsense_is_refused_in_words() {
    let dir = std::env::temp_dir().join(format!("topo-bench-bad-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_string()
    };
    let good = std::fs::read(topologies("dgx-1.toml")).unwrap();
    let half = write("half.toml", &good[..good.len() / 2 + 7]);
    let binary = write("binary.toml", &[0xff; 300]);
    let large = write("large.toml", b"");
    std::fs::OpenOptions::new().write(true).open(&large).unwrap().set_len(100 << 20).unwrap();
    let bomb = write("bomb.toml", b"name = \"x\"\n[[device]]\nkind = \"gpu\"\nid = \"g[0-99999][0-99999]\"\n");
    let own = write("own.toml", b"name = \"x\"\n[[device]]\nkind = \"gpu\"\nid = \"g0\"\n[[link]]\nkind = \"nvlink\"\nfrom = \"g0\"\nto = \"g0\"\n");
    let lone = write("lone.toml", b"name = \"x\"\n[[device]]\nkind = \"gpu\"\nid = \"g[0-1]\"\n");
    let cases: [(&[&str], &str); 30] = [
        (&["detect", "--topology", "/nonexistent"], "No such file"),
        (&["detect", "--topology", "/dev/zero"], "no regular file"),
        (&["detect", "--topology", &half], "half.toml"),
        (&["detect", "--topology", &binary], "UTF-8"),
        (&["detect", "--topology", &large], "larger than 16 MiB"),
        (&["detect", "--topology", &bomb], "bomb.toml:4"),
        (&["plan", "--topology", &own], "linked with itself"),
        (&["plan", "--topology", &lone], "no route leads from rank"),
        (&["detect", "--hosts", "0"], "cannot be 0 hosts"),
        (&["detect", "--hosts", "99999999"], "devices"),
        (&["plan", "--ranks", "0"], "0 ranks"),
        (&["plan", "--size", "0"], "at least one f32"),
        (&["plan", "--size", "1"], "at least one f32"),
        (&["plan", "--size", "9223372036854775808"], "more than 2^62"),
        (&["plan", "--size", "x"], "no size"),
        (&["plan", "--dtype", "f33"], "no element type"),
        (&["plan", "--algorithm", "magic"], "no algorithm `magic`"),
        (&["plan", "--lanes", "many"], "coarse or fine"),
        (&["plan", "--ranks", "4", "--algorithm", "ring", "--dtype", "i8", "--op", "avg"], "integer average"),
        (&["all-reduce", "--ranks", "0"], "--ranks 0"),
        (&["all-reduce", "--ranks", "10000"], "1 to 1024"),
        (&["all-reduce", "-b", "0"], "-b 0"),
        (&["all-reduce", "-b", "1", "-e", "1", "-d", "f32"], "an element has 4 bytes"),
        (&["all-reduce", "-e", "9223372036854775808"], "GiB are available"),
        (&["all-reduce", "-e", "4"], "less than"),
        (&["all-reduce", "-o", "xor"], "no reduction"),
        (&["broadcast", "--root", "9", "--ranks", "2"], "ranks are 0 to 1"),
        (&["reduce", "--root", "2", "--ranks", "2"], "ranks are 0 to 1"),
        (&["all-to-all", "--algorithm", "ring", "--ranks", "2", "-e", "8"], "all-to-all"),
        (&["plan", "--collective", "scan"], "reduce or all-to-all"),
    ];
    for (args, word) in cases {
        let begun = std::time::Instant::now();
        let out = run(args);
        assert!(!out.ok, "{args:?} passed");
        assert!(out.err.contains(word), "{args:?}: `{word}` is not in {}", out.err);
        assert!(!out.err.contains("panicked"), "{args:?}: {}", out.err);
        assert!(begun.elapsed().as_secs() < 10, "{args:?} took {:?}", begun.elapsed());
    }
    let out = run_with(&["all-reduce", "-e", "8", "--ranks", "2"], &[("TOPOCOLL_TOPOLOGY", &half)]);
    assert!(!out.ok && out.err.contains("half.toml"), "{}", out.err);
    std::fs::remove_dir_all(dir).unwrap();
}
