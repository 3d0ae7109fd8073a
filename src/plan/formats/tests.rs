use crate::plan::builders::{self, Lanes, Request, Shape};
use crate::plan::{Collective, Instruction, Plan, verify};
use crate::{Error, Result};
use proptest::prelude::*;

/// Every builder with every collective that it makes, on one host and on two.
fn every_plan(mut each: impl FnMut(&Plan, &[usize])) {
    for hosts in [vec![0; 1], vec![0; 2], vec![0; 3], vec![0; 4], vec![0, 0, 1, 1], vec![0, 0, 0, 1, 1, 1]] {
        let n = hosts.len();
        let mut made = [0; 6];
        for lanes in [Lanes::Coarse, Lanes::Fine] {
            for (c, collective) in Collective::every(n - 1).into_iter().enumerate() {
                let request = Request { collective, hosts: &hosts, chunk_bytes: 1 << 20, lanes };
                let cycles = vec![(0..n).collect(), (0..n).rev().collect()];
                let levels = [(n.div_ceil(2).max(1), Shape::Direct.into()), (n / n.div_ceil(2), Shape::Direct.into())];
                let plans: [Result<Plan>; 8] = [
                    builders::one_shot(request, &[vec![(0..n).collect()]]),
                    builders::two_shot(request),
                    builders::flat(request, Shape::Direct),
                    builders::flat(request, Shape::Ring(vec![])),
                    builders::flat(request, Shape::Ring(cycles)),
                    builders::flat(request, Shape::Tree),
                    builders::flat(request, Shape::HalvingDoubling),
                    if n.is_multiple_of(2) {
                        builders::hierarchical(request, &builders::Nest::even(&levels), true)
                    } else {
                        Err(Error::Plan("odd".into()))
                    },
                ];
                for plan in plans.into_iter().flatten() {
                    verify(&plan, &hosts).unwrap();
                    made[c] += 1;
                    each(&plan, &hosts);
                }
            }
        }
        assert!(made.iter().all(|m| *m >= 2), "{made:?}");
    }
}

#[test]
fn json_gives_back_the_same_plan() {
    every_plan(|plan, _| assert_eq!(&Plan::parse(&plan.to_json().unwrap(), "plan").unwrap(), plan));
}

#[test]
fn what_is_written_for_msccl_is_proved_when_read() {
    every_plan(|plan, hosts| {
        let xml = plan.to_msccl_xml().unwrap();
        let again = Plan::parse(&xml, "algo.xml").unwrap();
        let name = format!("{} of {} among {}", plan.algorithm, plan.collective, plan.ranks());
        // Its ranks share nothing, so on hosts of their own too.
        let alone: Vec<usize> = (0..hosts.len()).collect();
        for hosts in [hosts, &vec![0; hosts.len()], &alone] {
            verify(&again, hosts).unwrap_or_else(|e| panic!("{name}: {e}\n{xml}"));
        }
        assert_eq!((again.collective, again.parts, &again.algorithm), (plan.collective, plan.parts, &plan.algorithm));
        let second = again.to_msccl_xml().unwrap();
        verify(&Plan::parse(&second, "again.xml").unwrap(), &alone).unwrap_or_else(|e| panic!("{name} again: {e}"));
    });
}

#[test]
fn a_threadblock_keeps_to_msccls_rules() {
    every_plan(|plan, _| {
        let xml = plan.to_msccl_xml().unwrap();
        let doc = roxmltree::Document::parse(&xml).unwrap();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for gpu in doc.root_element().children().filter(|n| n.is_element()) {
            let rank = gpu.attribute("id").unwrap();
            let tbs: Vec<_> = gpu.children().filter(|n| n.is_element()).collect();
            for (i, tb) in tbs.iter().enumerate() {
                assert_eq!(tb.attribute("id").unwrap(), i.to_string());
                let peer = |name| tb.attribute(name).filter(|p| *p != "-1").map(String::from);
                let chan = tb.attribute("chan").unwrap().to_string();
                senders.extend(peer("send").map(|to| (rank.to_string(), to, chan.clone())));
                receivers.extend(peer("recv").map(|from| (from, rank.to_string(), chan.clone())));
                for step in tb.children().filter(|n| n.is_element() && n.attribute("depid") != Some("-1")) {
                    let other: usize = step.attribute("depid").unwrap().parse().unwrap();
                    let at: usize = step.attribute("deps").unwrap().parse().unwrap();
                    let awaited = tbs[other].children().filter(|n| n.is_element()).nth(at).unwrap();
                    assert_eq!(awaited.attribute("hasdep"), Some("1"));
                    assert_ne!(awaited.attribute("type"), Some("nop"));
                    assert_ne!(other, i);
                }
            }
        }
        senders.sort();
        receivers.sort();
        assert_eq!(senders, receivers);
        senders.dedup();
        assert_eq!(senders.len(), receivers.len(), "two threadblocks on one connection");
    });
}

/// Two ranks swap halves, add, and give back: in the fused words, with an input that is written to.
const IN_PLACE: &str = r#"<?xml version="1.0"?>
<algo name="swap" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1" outofplace="0" minBytes="0" maxBytes="0">
  <gpu id="0" i_chunks="2" o_chunks="0" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rrcs" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="2" o_chunks="0" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rrcs" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"#;

/// A ring of three that gathers in place: the own block is where it belongs.
fn gather() -> String {
    let mut text = String::from("<algo name='g' nchunksperloop='3' ngpus='3' coll='allgather' inplace='1'>");
    for r in 0..3 {
        let (next, prev, far) = ((r + 1) % 3, (r + 2) % 3, (r + 1) % 3);
        text += &format!(
            "<gpu id='{r}' i_chunks='1' o_chunks='3' s_chunks='0'><tb id='0' send='{next}' recv='{prev}' chan='0'>\
             <step s='0' type='s' srcbuf='i' srcoff='0' dstbuf='o' dstoff='{r}' cnt='1' depid='-1' deps='-1' hasdep='0'/>\
             <step s='1' type='rcs' srcbuf='o' srcoff='{prev}' dstbuf='o' dstoff='{prev}' cnt='1' depid='-1' deps='-1' hasdep='0'/>\
             <step s='2' type='r' srcbuf='o' srcoff='{far}' dstbuf='o' dstoff='{far}' cnt='1' depid='-1' deps='-1' hasdep='0'/>\
             </tb></gpu>"
        );
    }
    text + "</algo>"
}

#[test]
fn algorithms_in_place_are_right_out_of_place_too() {
    for text in [IN_PLACE, &gather()] {
        let plan = Plan::parse(text, "a").unwrap();
        verify(&plan, &vec![0; plan.ranks()]).unwrap_or_else(|e| panic!("{e}"));
    }
    let swap = Plan::parse(IN_PLACE, "a").unwrap();
    let all: Vec<_> = swap.programs[0].lanes[0].0.iter().collect();
    assert!(matches!(all[1], Instruction::RecvReduce { finish: true, .. }), "{all:?}");
    // A reduce-scatter in place that adds up in blocks that are not its own.
    let text = IN_PLACE.replace("allreduce", "reduce_scatter").replace("type=\"rrcs\"", "type=\"rrc\"");
    let text: String = text.lines().filter(|l| !l.contains("type=\"r\"")).collect::<Vec<_>>().join("\n");
    verify(&Plan::parse(&text, "a").unwrap(), &[0, 1]).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_wrong_algorithm_is_refused_by_the_proof() {
    let cases = [
        (IN_PLACE.replacen("type=\"r\"", "type=\"rrc\"", 1), "finished already"),
        (
            IN_PLACE.replacen("type=\"rrcs\" srcbuf=\"i\" srcoff=\"0\"", "type=\"rrcs\" srcbuf=\"i\" srcoff=\"1\"", 1),
            "should be",
        ),
        (IN_PLACE.replacen("type=\"s\"", "type=\"nop\"", 1), "nobody gives"),
    ];
    for (text, word) in cases {
        let plan = Plan::parse(&text, "a").unwrap();
        let refusal = verify(&plan, &[0, 0]).unwrap_err().to_string();
        assert!(refusal.contains(word), "{word}: {refusal}");
    }
    // Two threadblocks of a rank that wait for each other.
    let step = |other: u32| {
        format!(
            "<tb id='{}' send='-1' recv='-1' chan='0'><step s='0' type='cpy' srcbuf='i' srcoff='0' dstbuf='o' dstoff='0' cnt='1' depid='{other}' deps='0' hasdep='1'/></tb>",
            1 - other
        )
    };
    let text = format!(
        "<algo nchunksperloop='1' ngpus='1' coll='allreduce'><gpu id='0' s_chunks='0'>{}{}</gpu></algo>",
        step(1),
        step(0)
    );
    let refusal = verify(&Plan::parse(&text, "a").unwrap(), &[0]).unwrap_err().to_string();
    assert!(refusal.contains("waits for itself"), "{refusal}");
}

/// A threadblock that waits for a step of another.
fn waits(step: usize, tells: u8) -> String {
    let tb = |id: u32, depid: i32, deps: usize, hasdep: u8| {
        format!(
            "<tb id='{id}' send='-1' recv='-1' chan='0'><step s='0' type='nop' depid='{depid}' deps='{deps}' hasdep='{hasdep}'/></tb>"
        )
    };
    let (one, two) = (tb(0, 1, step, 0), tb(1, -1, 0, tells));
    format!("<algo nchunksperloop='1' ngpus='1' coll='allreduce'><gpu id='0' s_chunks='0'>{one}{two}</gpu></algo>")
}

#[test]
fn malformed_files_are_refused_in_words() {
    let two_shot = {
        let request =
            Request { collective: Collective::AllReduce, hosts: &[0, 0], chunk_bytes: 9, lanes: Lanes::Coarse };
        builders::two_shot(request).unwrap()
    };
    let json = two_shot.to_json().unwrap();
    let cases = [
        (String::new(), "f:1: EOF while parsing"),
        ("{}".into(), "`format` is none, expected \"topocoll-plan\""),
        ("[1, 2]".into(), "expected"),
        (json.replacen("\"version\":1", "\"version\":2", 1), "`version` is 2, expected 1"),
        (json.replacen("\"depth\"", "\"width\"", 1), "unknown field `width`"),
        (json.replacen("all-reduce", "all-redice", 1), "unknown variant `all-redice`"),
        (json[..json.len() / 2].into(), "f:1: EOF"),
        ("[".repeat(100_000), "recursion limit"),
        ("<algo".into(), "no well-formed XML"),
        ("\n\n<graph/>".into(), "f:3: found <graph>, expected MSCCL's <algo>"),
        (IN_PLACE.replacen("coll=\"allreduce\"", "coll=\"custom\"", 1), "`coll` is \"custom\""),
        (IN_PLACE.replacen("ngpus=\"2\"", "ngpus=\"3\"", 1), "no <gpu> of id 2"),
        (IN_PLACE.replacen("ngpus=\"2\"", "ngpus=\"99999999999\"", 1), "from 1 to 16384"),
        (IN_PLACE.replacen("nchunksperloop=\"2\"", "nchunksperloop=\"4000000000\"", 1), "nchunksperloop"),
        (IN_PLACE.replacen("s_chunks=\"0\"", "s_chunks=\"-1\"", 1), "f:3: `s_chunks` is \"-1\""),
        (
            IN_PLACE.replacen("send=\"1\"", "send=\"2\"", 1),
            "f:4: `send` is \"2\", expected a whole number from -1 to 1",
        ),
        (IN_PLACE.replacen("send=\"1\"", "send=\"-1\"", 1), "f:5: `s` needs a peer"),
        (IN_PLACE.replacen("type=\"s\"", "type=\"x\"", 1), "expected one of s, r, rcs"),
        (IN_PLACE.replacen(" s=\"1\"", " s=\"7\"", 1), "`s` is"),
        (IN_PLACE.replacen("srcoff=\"1\"", "srcoff=\"2\"", 1), "f:5: chunk 2 of buffer i is past its end"),
        (IN_PLACE.replacen("srcbuf=\"i\"", "srcbuf=\"q\"", 1), "expected i, o or s"),
        (IN_PLACE.replacen("cnt=\"1\"", "cnt=\"0\"", 1), "`cnt` is \"0\""),
        (IN_PLACE.replacen("depid=\"-1\"", "depid=\"1\"", 1), "`depid` is \"1\""),
        (waits(0, 0), "f:1: it would wait forever: no step of threadblock 1 from 0 on has `hasdep` 1"),
        (waits(2, 1), "`deps` is \"2\""),
        (IN_PLACE.replacen(" hasdep=\"0\"/>", ">", 1), "no well-formed XML"),
        (IN_PLACE.replacen("type=\"s\"", "", 1), "<step> has no `type`"),
        (IN_PLACE.replacen("<gpu id=\"1\"", "<gpu id=\"0\"", 1), "before"),
    ];
    for (text, word) in cases {
        let error = Plan::parse(&text, "f").unwrap_err();
        assert!(matches!(error, Error::PlanFile { .. }), "{error}");
        assert!(error.to_string().contains(word), "`{word}` is not in: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Digits and words in files that were right: refused in words, proved or disproved, and soon.
    #[test]
    fn spoiled_files_do_no_harm(
        which in any::<prop::sample::Index>(), edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12), 1..5),
    ) {
        let dir = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/plan_file")).unwrap();
        let mut all: Vec<String> = dir.map(|e| std::fs::read_to_string(e.unwrap().path()).unwrap()).collect();
        all.sort();
        all.push(gather());
        let mut text = all[which.index(all.len())].clone();
        for (at, how) in edits {
            let digits: Vec<usize> = text.char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(i, _)| i).collect();
            let at = digits[at.index(digits.len())];
            let with = ["0", "1", "2", "3", "-1", "9", "", "1000000", "rrcs\"", "<", "4294967295", "18446744073709551616"][how];
            text.replace_range(at..at + 1, with);
        }
        let begun = std::time::Instant::now();
        if let Ok(plan) = Plan::parse(&text, "spoiled") {
            let hosts = vec![0; plan.ranks()];
            if verify(&plan, &hosts).is_ok() {
                let again = Plan::parse(&plan.to_msccl_xml().unwrap(), "again").unwrap();
                verify(&again, &hosts).unwrap_or_else(|e| panic!("{e}\n{text}"));
            }
        }
        prop_assert!(begun.elapsed().as_secs() < 10, "{:?}\n{text}", begun.elapsed());
    }
}

#[test]
fn hostile_files_are_refused_soon() {
    let begun = std::time::Instant::now();
    let head = "<algo ngpus='1' coll='allreduce' nchunksperloop='1048576'><gpu id='0' s_chunks='1048576'>";
    let lane = |id: usize| {
        let step =
            "<step s='0' type='cpy' srcbuf='i' srcoff='0' dstbuf='s' dstoff='0' cnt='1000' depid='-1' deps='-1'/>";
        format!("<tb id='{id}' send='-1' recv='-1' chan='0'>{step}</tb>")
    };
    let many: String = (0..512).map(lane).collect();
    let plan = Plan::parse(&format!("{head}{many}</gpu></algo>"), "f").unwrap();
    assert!(verify(&plan, &[0]).is_err());
    let more: String = (0..513).map(lane).collect();
    for text in [
        format!("{head}{more}</gpu></algo>"),
        "<algo>".repeat(1 << 17),
        format!("<!DOCTYPE a [<!ENTITY a \"{}\">]><algo>&a;</algo>", "x".repeat(1 << 10)),
        format!("{head}{}", lane(0).replace("1000", "1048577")),
    ] {
        assert!(Plan::parse(&text, "f").is_err());
    }
    let text = format!("{head}{}</gpu></algo>", lane(0).replace("1000", "1048576"));
    assert!(Plan::parse(&text, "f").is_err());
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
}

#[test]
fn corpora_are_read() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/plan_file")).unwrap() {
        let path = entry.unwrap().path();
        let plan = Plan::read(&path).unwrap_or_else(|e| panic!("{e}"));
        verify(&plan, &vec![0; plan.ranks()]).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}
