//! A cut as people would name it.

use std::collections::BTreeSet;

use super::cut::Cut;
use super::graph::Graph;
use crate::plan::Placement;
use crate::text;
use crate::topology::{DeviceId, DeviceKind, LinkKind, Topology};

/// Links, devices or pairs named one by one, at most.
const NAMED: usize = 4;

/// The links that cross `cut`, and their rate; of the graph with its links the other way round if `mirrored`.
pub(super) fn cut(topology: &Topology, graph: &Graph, cut: &Cut, mirrored: bool) -> String {
    let outside: Vec<bool> = cut.inside.iter().map(|i| !i).collect();
    let (forth, back) = match mirrored {
        false => (&cut.inside, &outside),
        true => (&outside, &cut.inside),
    };
    let places = graph.places();
    let count = |side: &[bool]| places.iter().filter(|p| side[**p]).count();
    // The side with fewer places is what people would say is cut off.
    let mut sides = [Side::new(graph, forth, "out"), Side::new(graph, back, "in")];
    let even = count(forth) == count(back);
    if count(forth) > count(back) || even && places.first().is_some_and(|p| back[*p]) {
        sides.reverse();
    }
    let device = |s: &Side| device(topology, graph, s).map(|what| (what, s.way));
    let (what, way) = device(&sides[0]).or_else(|| if even { device(&sides[1]) } else { None }).unwrap_or_else(|| {
        let side = &sides[0];
        let what = network(topology, graph, side)
            .or_else(|| together(topology, graph, side))
            .or_else(|| between(topology, graph, side))
            .or_else(|| around(topology, graph, side))
            .unwrap_or_else(|| listed(topology, graph, side));
        (what, side.way)
    });
    let way = if graph.leaving(forth) == graph.leaving(back) { "each way" } else { way };
    format!("{what}, {:.1} GB/s {way}", cut.leaves as f64 / 1e9)
}

/// One side of a cut.
struct Side<'a> {
    within: &'a [bool],
    /// Places of ranks.
    places: Vec<usize>,
    /// Neighbours here and beyond.
    crossing: Vec<(usize, usize)>,
    /// Which way the bytes go.
    way: &'static str,
}

impl<'a> Side<'a> {
    fn new(graph: &Graph, within: &'a [bool], way: &'static str) -> Self {
        let links = |v: usize| graph.out[v].iter().chain(&graph.into[v]).map(move |(w, _)| (v, *w));
        let here = (0..graph.len()).filter(|v| within[*v]);
        let crossing: BTreeSet<(usize, usize)> = here.flat_map(links).filter(|(_, w)| !within[*w]).collect();
        let places = graph.places().into_iter().filter(|p| within[*p]).collect();
        Self { within, places, crossing: crossing.into_iter().collect(), way }
    }

    /// Whether all that crosses does so at ranks' own links.
    fn at_places(&self, graph: &Graph) -> bool {
        self.crossing.iter().all(|(v, _)| graph.ranks[*v] > 0)
    }
}

fn device(t: &Topology, graph: &Graph, side: &Side<'_>) -> Option<String> {
    let alone = side.places.len() == 1 && side.at_places(graph);
    alone.then(|| format!("the links of {}", t.device(graph.devices[side.places[0]]).id))
}

/// What leads from whole hosts to the network.
fn network(t: &Topology, graph: &Graph, side: &Side<'_>) -> Option<String> {
    let hosts: BTreeSet<usize> = side.places.iter().filter_map(|p| graph.hosts[*p]).collect();
    let whole = |p: usize| side.within[p] == graph.hosts[p].is_some_and(|h| hosts.contains(&h));
    let nic = |v: usize| t.device(graph.devices[v]).kind == DeviceKind::Nic;
    let outward =
        |(v, w): &(usize, usize)| nic(*v) || nic(*w) || kind(t, graph, *v, *w).is_some_and(LinkKind::is_network);
    if hosts.is_empty() || !graph.places().into_iter().all(whole) || !side.crossing.iter().all(outward) {
        return None;
    }
    let list: Vec<usize> = hosts.iter().copied().collect();
    let at = format!("host{} {}", if list.len() == 1 { "" } else { "s" }, brief(&list));
    let ends = |(v, w): &(usize, usize)| if nic(*v) { Some(*v) } else { Some(*w).filter(|w| nic(*w)) };
    let nics: Option<BTreeSet<usize>> = side.crossing.iter().map(ends).collect();
    Some(match nics.map(|n| n.len()) {
        Some(1) => format!("the NIC of {at}"),
        Some(n) => format!("the {n} NICs of {at}"),
        None => format!("the network links of {at}"),
    })
}

/// A few ranks from all others.
fn together(t: &Topology, graph: &Graph, side: &Side<'_>) -> Option<String> {
    if side.crossing.len() <= NAMED || !side.at_places(graph) {
        return None;
    }
    let here = named(t, graph, side.places.iter().copied())?;
    let there = named(t, graph, side.crossing.iter().map(|(_, w)| *w)).unwrap_or_else(|| "the others".into());
    Some(format!("the {} between {here} and {there}", links(t, graph, side).unwrap_or("links")))
}

/// A few ranks with what is between them and the cut, where the links are too many to list.
fn around(t: &Topology, graph: &Graph, side: &Side<'_>) -> Option<String> {
    let here = named(t, graph, side.places.iter().copied()).filter(|_| side.crossing.len() > NAMED)?;
    Some(format!("the links around {here}"))
}

/// Links of one kind between two sets of devices that can be named.
fn between(t: &Topology, graph: &Graph, side: &Side<'_>) -> Option<String> {
    let links = links(t, graph, side)?;
    let here = named(t, graph, side.crossing.iter().map(|(v, _)| *v))?;
    let there = named(t, graph, side.crossing.iter().map(|(_, w)| *w))?;
    Some(format!("the {links} between {here} and {there}"))
}

/// The word for links that are of one kind.
fn links(t: &Topology, graph: &Graph, side: &Side<'_>) -> Option<&'static str> {
    let kinds: BTreeSet<Option<LinkKind>> = side.crossing.iter().map(|(v, w)| kind(t, graph, *v, *w)).collect();
    Some(match kinds.into_iter().collect::<Vec<_>>()[..] {
        [Some(LinkKind::NvLink)] => "NVLinks",
        [Some(LinkKind::Xgmi)] => "xGMI links",
        [Some(LinkKind::Pcie)] => "PCIe links",
        [Some(LinkKind::CpuInterconnect)] => "links",
        [Some(kind)] if kind.is_network() => "network links",
        _ => return None,
    })
}

fn listed(t: &Topology, graph: &Graph, side: &Side<'_>) -> String {
    let id = |v: usize| t.device(graph.devices[v]).id.as_str();
    let some: Vec<String> = side.crossing.iter().take(NAMED).map(|(v, w)| format!("{} - {}", id(*v), id(*w))).collect();
    let more = side.crossing.len() - some.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("the links {}{more}", some.join(", "))
}

/// The kind of the links between two neighbours, if they are of one.
fn kind(t: &Topology, graph: &Graph, v: usize, w: usize) -> Option<LinkKind> {
    let (v, w) = (graph.devices[v], graph.devices[w]);
    // The links of a switch may be many; those of the end with fewer are looked at.
    let (v, w) = if t.device(v).host.is_some() { (v, w) } else { (w, v) };
    let of = |a: DeviceId, b: DeviceId| t.links_from(a).filter(move |(_, to, _)| *to == b).map(|(.., l)| l.kind);
    let mut kinds = of(v, w).collect::<Vec<_>>();
    if kinds.is_empty() {
        kinds = of(w, v).collect();
    }
    kinds.dedup();
    if kinds.len() == 1 { kinds.pop() } else { None }
}

/// `gpu0-gpu3, gpu6`; none where that would be long.
fn named(t: &Topology, graph: &Graph, devices: impl Iterator<Item = usize>) -> Option<String> {
    let mut ids: Vec<(String, u64)> = devices.map(|v| text::natural(&t.device(graph.devices[v]).id)).collect();
    ids.sort();
    ids.dedup();
    let mut runs: Vec<(String, u64, u64)> = Vec::new();
    for (word, number) in ids {
        match runs.last_mut() {
            Some((w, _, last)) if *w == word && number == *last + 1 => *last = number,
            _ => runs.push((word, number, number)),
        }
    }
    let said = |(w, a, b): &(String, u64, u64)| match b - a {
        // An id that ends in no figure reads as 0.
        0 if t.find(w).is_some() => w.clone(),
        0 => format!("{w}{a}"),
        1 => format!("{w}{a}, {w}{b}"),
        _ => format!("{w}{a}-{w}{b}"),
    };
    (runs.len() <= NAMED).then(|| runs.iter().map(said).collect::<Vec<_>>().join(", "))
}

fn brief(list: &[usize]) -> String {
    let all = text::list(list);
    let parts: Vec<&str> = all.split(", ").collect();
    match parts.len() <= NAMED {
        true => all.clone(),
        false => format!("{}, ...", parts[..NAMED].join(", ")),
    }
}

/// Which ranks cannot reach which.
pub(super) fn severed(t: &Topology, placement: &Placement, graph: &Graph, pairs: &[(usize, usize)]) -> Vec<String> {
    let rank = |v: usize| {
        let device = graph.devices[v];
        let rank = placement.devices().iter().position(|d| *d == device).unwrap_or(0);
        format!("rank {rank} ({})", t.device(device).id)
    };
    let shown = |(a, b): &(usize, usize)| format!("no route leads from {} to {}", rank(*a), rank(*b));
    let mut said: Vec<String> = pairs.iter().take(NAMED).map(shown).collect();
    if pairs.len() > NAMED {
        said.push(format!("and {} more routes are lacking", pairs.len() - NAMED));
    }
    said
}
