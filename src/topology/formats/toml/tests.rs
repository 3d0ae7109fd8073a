use super::*;
use proptest::prelude::*;

const SMALL: &str = r#"
name = "small"

[[device]]
kind = "cpu"
id = "cpu[0-1]"
package = [0, 1]
cores = 4
l2 = "2 MiB"

[[device]]
kind = "gpu"
id = "gpu[0-3]"
numa = [0, 0, 1, 1]

[[link]]
kind = "pcie"
from = "gpu[0-3]"
to = "cpu[0-1]"
lanes = 16
nominal = "31.5 GB/s"

[[link]]
kind = "nvlink"
pairs = ["gpu0 gpu1", "gpu2 gpu3"]
nominal = "25 GB/s"
latency = "0.7 us"

[[link]]
kind = "memory"
from = "cpu[0-1]"
to = "cpu[0-1]"
measured = 12.5e9
"#;

fn error(text: &str) -> String {
    Topology::from_toml(text, "f.toml").unwrap_err().to_string()
}

#[test]
fn notation_is_expanded() {
    let t = Topology::from_toml(SMALL, "f.toml").unwrap();
    assert_eq!(t.devices().count(), 6);
    assert_eq!(t.links().count(), 8 + 4 + 2);
    let ends = |l: usize| {
        let (_, a, b, _) = t.links().nth(l).unwrap();
        (t.device(a).id.clone(), t.device(b).id.clone())
    };
    assert_eq!(ends(2), ("gpu1".into(), "cpu0".into()));
    assert_eq!(ends(4), ("gpu2".into(), "cpu1".into()));
    assert_eq!(t.device(t.find("gpu2").unwrap()).numa, Some(1));
    assert_eq!(t.device(t.find("cpu1").unwrap()).cpu.as_ref().unwrap().l2, Some(2 << 20));
}

#[test]
fn what_is_written_reads_equal() {
    let t = Topology::from_toml(SMALL, "f.toml").unwrap();
    assert_eq!(Topology::from_toml(&t.to_toml(), "g.toml").unwrap(), t);
    let here = Topology::detect().unwrap();
    assert_eq!(Topology::from_toml(&here.to_toml(), "g.toml").unwrap(), here);
}

#[test]
fn errors_name_line_and_field() {
    let change = |from: &str, to: &str| {
        assert!(SMALL.contains(from), "{from}");
        error(&SMALL.replacen(from, to, 1))
    };
    for (from, to, words) in [
        ("gpu0 gpu1", "gpu0 gpu9", &["f.toml:25", "link[1].pairs", "no device `gpu9`", "meant"][..]),
        ("gpu0 gpu1", "gpu0", &["f.toml:25", "two ids"]),
        ("gpu0 gpu1", "gpu0 gpu0", &["linked with itself", "memory"]),
        ("31.5 GB/s", "-1", &["f.toml:21", "link[0].nominal", "above 0"]),
        ("31.5 GB/s", "nan GB/s", &["link[0].nominal", "finite"]),
        ("\"31.5 GB/s\"", "0", &["link[0].nominal", "above 0"]),
        ("\"31.5 GB/s\"", "true", &["link[0].nominal", "boolean"]),
        ("31.5 GB/s", "31.5 GiB/s", &["link[0].nominal", "GB/s"]),
        ("nominal = \"25", "nominall = \"25", &["f.toml:26", "nominall", "nominal"]),
        ("gpu[0-3]\"\nnuma", "gpu[3-0]\"\nnuma", &["f.toml:13", "device[1].id", "backwards"]),
        ("gpu[0-3]\"\nnuma", "gpu[0-999999999]\"\nnuma", &["device[1].id", "more than"]),
        ("[0, 0, 1, 1]", "[0, 1]", &["f.toml:14", "device[1].numa", "list of 2"]),
        ("id = \"gpu[0-3]\"", "id = \"cpu[0-3]\"", &["two devices `cpu0`"]),
        ("kind = \"gpu\"", "kind = \"tpu\"", &["f.toml:12", "tpu", "gpu"]),
        ("from = \"gpu[0-3]\"", "from = \"gpu[0-2]\"", &["equal runs"]),
        ("lanes = 16", "lanes = 0", &["lanes", "at least 1"]),
    ] {
        let text = change(from, to);
        for word in words {
            assert!(text.contains(word), "`{word}` is not in: {text}");
        }
    }
    assert!(error("").contains("name"));
    assert!(error("name = \"x\"").contains("[[device]]"));
    assert!(error(&SMALL[..SMALL.len() - 10]).contains("f.toml:"));
    assert!(error(&format!("x = {}", "[".repeat(100_000))).contains("f.toml"));
    assert!(error("hosts = 3\nname = \"x\"\n[[device]]\nkind = \"gpu\"\nid = \"g\"").contains("no NIC"));
}

#[test]
fn windows_line_ends_are_fine() {
    let t = Topology::from_toml(SMALL, "f.toml").unwrap();
    assert_eq!(Topology::from_toml(&SMALL.replace('\n', "\r\n"), "f.toml").unwrap(), t);
}

#[test]
fn files_that_are_none_are_refused() {
    let dir = std::env::temp_dir().join(format!("topocoll-read-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let refuse = |path: &std::path::Path, word: &str| {
        let text = Topology::read(path).unwrap_err().to_string();
        assert!(text.contains(word), "`{word}` is not in: {text}");
    };
    refuse(&dir, "no regular file");
    refuse(&dir.join("absent"), "No such file");
    refuse(std::path::Path::new("/dev/zero"), "no regular file");
    let large = dir.join("large.toml");
    std::fs::File::create(&large).unwrap().set_len(100 << 20).unwrap();
    refuse(&large, "larger than 16 MiB");
    let binary = dir.join("binary.toml");
    std::fs::write(&binary, b"name = \"x\"\n\xff\xfe").unwrap();
    refuse(&binary, "binary.toml:2: this is no UTF-8");
    std::fs::remove_dir_all(&dir).unwrap();
}

proptest! {
    #[test]
    fn noise_never_panics(text in "\\PC{0,200}") {
        let _ = Topology::from_toml(&text, "f");
    }

    #[test]
    fn damage_never_panics(at in 0..SMALL.len(), cut in 0usize..40, put in "\\PC{0,12}") {
        let end = (at + cut).min(SMALL.len());
        let text = format!("{}{put}{}", &SMALL[..at], &SMALL[end..]);
        if let Ok(t) = Topology::from_toml(&text, "f") {
            prop_assert_eq!(Topology::from_toml(&t.to_toml(), "g").unwrap(), t);
        }
    }
}
