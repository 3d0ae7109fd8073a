//! Where everything stands. A host is rows: CPUs, PCIe switches by depth, GPUs and NICs, NVSwitches. The network lies
//! between two rows of hosts, of which the lower is upside down, so that every host has its NICs towards it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use petgraph::visit::EdgeRef;

use crate::topology::{DeviceId, DeviceKind, LinkKind, Topology};

/// The width of a GPU or NIC with the space beside it, and the height of a row.
pub(super) const COLUMN: f64 = 62.0;
pub(super) const ROW: f64 = 84.0;
/// Space around what stands in a box.
pub(super) const PAD: f64 = 14.0;
/// The height of a box.
const BOX: f64 = 36.0;
/// Hosts that are drawn; of more, the first and the last.
const MOST_HOSTS: usize = 4;
/// Devices of a host that are drawn.
const MOST_DEVICES: usize = 400;
/// Switches of the network that are drawn in one row.
const MOST_SWITCHES: usize = 24;

/// A rectangle, by its middle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
    /// Upside down: towards the network is up.
    pub flipped: bool,
    /// Where the host ends towards the network; its own middle for what is in no host.
    pub edge: f64,
}

impl Place {
    pub fn top(&self) -> f64 {
        self.y - self.height / 2.0
    }

    pub fn bottom(&self) -> f64 {
        self.y + self.height / 2.0
    }
}

/// A frame around a host or a socket, with what it is called.
pub(super) struct Frame {
    pub place: Place,
    pub title: String,
    pub host: bool,
}

/// The whole picture.
pub(super) struct Layout {
    pub places: HashMap<DeviceId, Place>,
    pub frames: Vec<Frame>,
    pub width: f64,
    pub height: f64,
    /// What is left out, in words.
    pub omitted: Vec<String>,
}

impl Layout {
    pub fn of(t: &Topology) -> Self {
        let mut out = Self { places: HashMap::new(), frames: Vec::new(), width: 0.0, height: 0.0, omitted: Vec::new() };
        let hosts = t.hosts();
        let mut shown: Vec<usize> = (0..hosts.min(MOST_HOSTS)).collect();
        if let (true, Some(last)) = (hosts > MOST_HOSTS, shown.last_mut()) {
            *last = hosts - 1;
            out.omitted.push(format!("{} hosts more are not drawn", hosts - MOST_HOSTS));
        }
        let drawn: Vec<Host> = shown.iter().map(|h| Host::of(t, *h)).collect();
        let (upper, lower) = drawn.split_at(drawn.len().div_ceil(2));
        let width = |row: &[Host]| row.iter().map(|h| h.width + PAD).sum::<f64>() + PAD;
        let height = |row: &[Host]| row.iter().map(|h| h.height).fold(0.0, f64::max);
        out.width = width(upper).max(width(lower)).max(720.0);
        let mut y = PAD + height(upper);
        let (full, start) = (out.width, out.width);
        let at = |row: &[Host]| (start - width(row)) / 2.0 + PAD;
        let mut x = at(upper);
        for host in upper {
            out.put(host, x, y - host.height, false);
            x += host.width + PAD;
        }
        y = out.network(t, &shown, upper.len(), y, full);
        let mut x = at(lower);
        for host in lower {
            out.put(host, x, y, true);
            x += host.width + PAD;
        }
        out.height = y + height(lower) + PAD;
        out
    }

    fn put(&mut self, host: &Host, x: f64, y: f64, flipped: bool) {
        let edge = y + if flipped { 0.0 } else { host.height };
        let moved = |p: &Place| {
            let y = y + if flipped { host.height - p.y } else { p.y };
            Place { x: p.x + x, y, flipped, edge, ..*p }
        };
        self.places.extend(host.places.iter().map(|(id, p)| (*id, moved(p))));
        for frame in &host.frames {
            self.frames.push(Frame { place: moved(&frame.place), title: frame.title.clone(), host: frame.host });
        }
    }

    /// Rows of switches: those of the upper hosts, those of both and what joins them, those of the lower hosts.
    fn network(&mut self, t: &Topology, shown: &[usize], upper: usize, top: f64, width: f64) -> f64 {
        let outside = |d: DeviceId| t.device(d).host.is_none();
        let mut sides: BTreeMap<DeviceId, (bool, bool)> = BTreeMap::new();
        for (_, a, b, _) in t.links().filter(|(_, a, b, _)| !outside(*a) && outside(*b)) {
            let at = t.device(a).host.and_then(|h| shown.iter().position(|s| *s == h));
            if let Some(at) = at {
                let side = sides.entry(b).or_default();
                side.0 |= at < upper;
                side.1 |= at >= upper;
            }
        }
        // What is no host's switch, by its distance from one.
        let mut rows: Vec<Vec<DeviceId>> = vec![Vec::new(); 3];
        for (id, side) in &sides {
            rows[match side {
                (true, false) => 0,
                (true, true) => 1,
                _ => 2,
            }]
            .push(*id);
        }
        let mut seen: BTreeSet<DeviceId> = sides.keys().copied().collect();
        let mut edge: Vec<DeviceId> = seen.iter().copied().collect();
        let mut middle = 1;
        while !edge.is_empty() {
            let near = edge.iter().flat_map(|id| t.graph.edges(id.0)).map(|e| DeviceId(e.target()));
            let next: BTreeSet<DeviceId> = near.filter(|d| outside(*d) && !seen.contains(d)).collect();
            seen.extend(&next);
            edge = next.into_iter().collect();
            if !edge.is_empty() {
                middle += usize::from(!rows[middle].is_empty());
                rows.insert(middle, edge.clone());
            }
        }
        let all = t.devices().filter(|(id, _)| outside(*id)).count();
        let mut drawn = 0;
        // Lines from many hosts need room to turn.
        let space = if shown.len() > 1 { ROW + 50.0 } else { ROW };
        let mut y = top;
        for row in rows.iter_mut().filter(|r| !r.is_empty()) {
            row.truncate(MOST_SWITCHES);
            row.sort_by_key(|id| crate::text::natural(&t.device(*id).id));
            drawn += row.len();
            y += space;
            let step = (width - 2.0 * PAD) / row.len() as f64;
            for (i, id) in row.iter().enumerate() {
                let place = Place {
                    x: PAD + step * (i as f64 + 0.5),
                    y,
                    width: (step - 8.0).clamp(20.0, 150.0),
                    height: BOX,
                    flipped: false,
                    edge: y,
                };
                self.places.insert(*id, place);
            }
        }
        if all > drawn {
            self.omitted.push(format!("{} of {all} switches of the network are not drawn", all - drawn));
        }
        y + match (y > top, shown.len() > upper) {
            (true, true) => space,
            (true, false) => BOX / 2.0,
            (false, _) => PAD,
        }
    }
}

/// One host by itself, its upper left corner at the origin.
struct Host {
    places: Vec<(DeviceId, Place)>,
    frames: Vec<Frame>,
    width: f64,
    height: f64,
}

impl Host {
    fn of(t: &Topology, host: usize) -> Self {
        let mut devices: Vec<DeviceId> = t.by_host().swap_remove(host);
        let more = devices.len().saturating_sub(MOST_DEVICES);
        devices.truncate(MOST_DEVICES);
        let cpus: Vec<DeviceId> = t.of_kind(DeviceKind::Cpu).into_iter().filter(|c| devices.contains(c)).collect();
        let nv: Vec<DeviceId> = devices.iter().copied().filter(|d| t.device(*d).kind == DeviceKind::NvSwitch).collect();
        let depths = t.pcie_depths();
        let switch = |d: &DeviceId| t.device(*d).kind == DeviceKind::PciSwitch;
        let depth = |d: DeviceId| depths[d.0.index()].unwrap_or(0);
        let deepest = devices.iter().filter(|d| switch(d)).map(|d| depth(*d)).max().unwrap_or(0);
        // Arcs between many CPUs need room above them.
        let above = if cpus.len() > 2 { 54.0 } else { 0.0 };
        let first = 40.0 + above;
        let leaf_row = first + ROW * f64::from(deepest + u32::from(!cpus.is_empty()));
        let mut tree = Tree {
            t,
            wanted: devices.iter().copied().collect(),
            depths: &depths,
            first,
            leaf_row,
            next: 2.0 * PAD,
            places: Vec::new(),
            frames: Vec::new(),
        };
        for cpu in &cpus {
            tree.socket(*cpu);
        }
        let placed: BTreeSet<DeviceId> = tree.places.iter().map(|(id, _)| *id).collect();
        devices.retain(|d| !placed.contains(d) && !nv.contains(d));
        for rest in devices {
            let x = tree.column();
            tree.places.push((rest, leaf(x, leaf_row)));
        }
        let (mut places, mut frames, width) = (tree.places, tree.frames, tree.next + PAD);
        let gpus: Vec<Place> =
            places.iter().filter(|(id, _)| t.device(*id).kind == DeviceKind::Gpu).map(|(_, p)| *p).collect();
        let mesh = t.links().any(|(_, a, b, l)| {
            let gpu = |d: DeviceId| t.device(d).kind == DeviceKind::Gpu && t.device(d).host == Some(host);
            l.kind != LinkKind::Pcie && gpu(a) && gpu(b)
        });
        let mut bottom = leaf_row + BOX / 2.0 + if mesh { 96.0 } else { 0.0 };
        for switch in nv {
            bottom += ROW - BOX / 2.0;
            let (from, to) = gpus.iter().fold((width, 0.0f64), |(a, b), p| (a.min(p.x), b.max(p.x)));
            let (from, to) = if gpus.is_empty() { (3.0 * PAD, width - 3.0 * PAD) } else { (from, to) };
            let place = Place {
                x: (from + to) / 2.0,
                y: bottom,
                width: to - from + 50.0,
                height: 26.0,
                flipped: false,
                edge: 0.0,
            };
            places.push((switch, place));
            bottom += 13.0;
        }
        let height = bottom + 1.6 * PAD;
        let name = t.devices().find(|(_, d)| d.host == Some(host)).and_then(|(_, d)| d.extra.get("host").cloned());
        let cut = if more > 0 { format!(" ({more} devices more are not drawn)") } else { String::new() };
        let title = match (t.hosts(), name) {
            (1, _) => t.name.clone(),
            (_, Some(name)) => format!("host {host}: {name}"),
            (_, None) => format!("host {host}"),
        } + &cut;
        let place = Place { x: width / 2.0, y: height / 2.0, width, height, flipped: false, edge: 0.0 };
        frames.insert(0, Frame { place, title, host: true });
        Self { places, frames, width, height }
    }
}

fn leaf(x: f64, y: f64) -> Place {
    Place { x, y, width: COLUMN - 10.0, height: BOX, flipped: false, edge: 0.0 }
}

/// Gives every GPU and NIC a column, and what is above them the middle of theirs.
struct Tree<'a> {
    t: &'a Topology,
    wanted: BTreeSet<DeviceId>,
    depths: &'a [Option<u32>],
    first: f64,
    leaf_row: f64,
    next: f64,
    places: Vec<(DeviceId, Place)>,
    frames: Vec<Frame>,
}

impl Tree<'_> {
    fn column(&mut self) -> f64 {
        self.next += COLUMN;
        self.next - COLUMN / 2.0
    }

    fn socket(&mut self, cpu: DeviceId) {
        let start = self.next;
        let inside = self.below(cpu);
        // A CPU with nothing below is as wide as two devices, for its words.
        while self.next - start < 2.0 * COLUMN {
            self.next += COLUMN / 2.0;
        }
        let (x, width) = ((start + self.next) / 2.0, self.next - start);
        let place = Place { x, y: self.first, width: width - 8.0, height: BOX, flipped: false, edge: 0.0 };
        self.places.push((cpu, place));
        if inside {
            let (top, bottom) = (self.first - BOX / 2.0 - 6.0, self.leaf_row + BOX / 2.0 + 6.0);
            let (y, height) = ((top + bottom) / 2.0, bottom - top);
            self.frames.push(Frame {
                place: Place { x, y, width, height, flipped: false, edge: 0.0 },
                title: String::new(),
                host: false,
            });
        }
        self.next += PAD;
    }

    /// Places what hangs on a device by PCIe; false where nothing does.
    fn below(&mut self, id: DeviceId) -> bool {
        let depth = |d: DeviceId| self.depths[d.0.index()];
        let kind = |d: DeviceId| self.t.device(d).kind;
        let edges = self.t.graph.edges(id.0).map(|e| (DeviceId(e.target()), e.weight().kind));
        // By PCIe, or, at a CPU, by a chip-to-chip link alone.
        let c2c = |b: DeviceId| kind(id) == DeviceKind::Cpu && depth(b).is_none();
        let below = edges.filter(|(b, k)| match k {
            LinkKind::Pcie => depth(*b) > depth(id),
            LinkKind::NvLinkC2c => c2c(*b),
            _ => false,
        });
        let mut children: Vec<DeviceId> = below.map(|(b, _)| b).filter(|b| self.wanted.contains(b)).collect();
        // GPUs, then what is behind switches, then NICs, each as they are numbered.
        let rank = |d: DeviceId| match kind(d) {
            DeviceKind::Gpu => 0,
            DeviceKind::Nic => 2,
            _ => 1,
        };
        children.sort_by_key(|c| (rank(*c), self.t.device(*c).index, *c));
        children.dedup();
        let before = self.places.len();
        for child in children {
            if self.places.iter().any(|(placed, _)| *placed == child) {
                continue;
            }
            if kind(child) != DeviceKind::PciSwitch {
                let x = self.column();
                self.places.push((child, leaf(x, self.leaf_row)));
                continue;
            }
            let start = self.next;
            if !self.below(child) {
                self.column();
            }
            let y = self.first + ROW * f64::from(self.depths[child.0.index()].unwrap_or(1));
            let width = self.next - start - 8.0;
            let place = Place { x: (start + self.next) / 2.0, y, width, height: 24.0, flipped: false, edge: 0.0 };
            self.places.push((child, place));
        }
        self.places.len() > before
    }
}
