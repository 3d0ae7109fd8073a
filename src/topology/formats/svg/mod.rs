//! A picture for people: hosts, sockets and switches as boxes in boxes, links as wide as they are fast, coloured by kind.
//! Pointing at something tells what is known of it and by whom.

mod layout;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::topology::device::NO_RAIL;
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use layout::{COLUMN, Layout, PAD, Place};

impl Topology {
    /// The topology as a self-contained SVG. Of more than four hosts, the first three and the last are drawn.
    pub fn to_svg(&self) -> String {
        let layout = Layout::of(self);
        let mut out = Svg(String::new());
        let legend = self.legend(&layout);
        let height = layout.height + 40.0 + 20.0 * (legend.len() + layout.omitted.len()) as f64;
        out.line(&format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {height:.0}\" width=\"{:.0}\" \
             font-family=\"Helvetica, Arial, sans-serif\" text-anchor=\"middle\">",
            layout.width, layout.width
        ));
        out.line(&format!(
            "<title>{}</title><rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>",
            escape(&self.name)
        ));
        out.line(
            "<defs><marker id=\"arrow\" markerWidth=\"6\" markerHeight=\"6\" refX=\"5\" refY=\"3\" orient=\"auto\" \
             markerUnits=\"userSpaceOnUse\"><path d=\"M0,0 L6,3 L0,6 z\"/></marker></defs>",
        );
        for frame in &layout.frames {
            let (fill, stroke) = if frame.host { ("#fafafa", "#9a9a9a") } else { ("#f1f5fc", "#c5d2ea") };
            out.rect(&frame.place, fill, &format!("stroke=\"{stroke}\" rx=\"8\""));
            let p = &frame.place;
            let y = if p.flipped { p.bottom() - 5.0 } else { p.top() + 14.0 };
            out.text(p.x, y, 12.0, "font-weight=\"bold\" fill=\"#444444\"", &frame.title);
        }
        // Wide lines first, so that narrow ones stay to be seen; what passes over a switch without stopping comes last.
        let mut links = self.drawn(&layout);
        links.sort_by(|a, b| b.link.bandwidth().total_cmp(&a.link.bandwidth()));
        let (network, inside): (Vec<_>, Vec<_>) = links.into_iter().partition(|l| l.link.kind.is_network());
        inside.iter().for_each(|l| out.link(self, l, false));
        let boxes = |out: &mut Svg, switches: bool| {
            for (id, d) in self.devices() {
                if let Some(place) = layout.places.get(&id).filter(|_| (d.kind == DeviceKind::NvSwitch) == switches) {
                    self.device_box(out, id, place);
                }
            }
        };
        boxes(&mut out, true);
        network.iter().for_each(|l| out.link(self, l, true));
        boxes(&mut out, false);
        for (id, d) in self.devices().filter(|(_, d)| d.kind == DeviceKind::NvSwitch) {
            if let Some(p) = layout.places.get(&id) {
                // Over the lines that pass, with an edge of the box's colour.
                let words = [short(d), &d.name].into_iter().filter(|w| !w.is_empty()).collect::<Vec<_>>().join(": ");
                let edge = "fill=\"#222222\" stroke=\"#b5dcb5\" stroke-width=\"5\" paint-order=\"stroke\"";
                out.text(p.x, p.y + 4.0, 11.0, edge, &cut(&words, (p.width / 6.2) as usize));
            }
        }
        let mut y = layout.height + 18.0;
        for (kind, words) in &legend {
            let colour = colour(*kind);
            out.line(&format!(
                "<line x1=\"{PAD}\" y1=\"{:.0}\" x2=\"{:.0}\" y2=\"{:.0}\" stroke=\"{colour}\" stroke-width=\"5\"/>",
                y - 4.0,
                PAD + 34.0,
                y - 4.0
            ));
            out.text(PAD + 44.0, y, 12.0, "text-anchor=\"start\" fill=\"#333333\"", words);
            y += 20.0;
        }
        let mut x = PAD;
        for rate in [10e9, 50e9, 200e9, 450e9] {
            let w = stroke(rate);
            out.line(&format!(
                "<line x1=\"{x:.0}\" y1=\"{:.0}\" x2=\"{:.0}\" y2=\"{:.0}\" stroke=\"#777777\" stroke-width=\"{w:.1}\"/>",
                y - 4.0,
                x + 34.0,
                y - 4.0
            ));
            let words = format!("{:.0} GB/s", rate / 1e9);
            out.text(x + 42.0, y, 12.0, "text-anchor=\"start\" fill=\"#333333\"", &words);
            x += 122.0;
        }
        for words in &layout.omitted {
            y += 20.0;
            out.text(PAD, y, 12.0, "text-anchor=\"start\" font-style=\"italic\" fill=\"#a03030\"", words);
        }
        out.line("</svg>");
        out.0
    }

    /// A line for each kind of link that is drawn, with its figures.
    fn legend(&self, layout: &Layout) -> Vec<(LinkKind, String)> {
        let mut rates: BTreeMap<LinkKind, BTreeSet<String>> = BTreeMap::new();
        for drawn in self.drawn(layout) {
            let link = drawn.link;
            let lanes = match (link.lanes, link.kind) {
                (1, _) => String::new(),
                (n, LinkKind::Pcie) => format!("x{n} "),
                (n, _) => format!("{n} lanes "),
            };
            let words = format!("{lanes}{} GB/s {}", figure(link.bandwidth()), link.origin().name());
            rates.entry(link.kind).or_default().insert(words);
        }
        let words = |kind: LinkKind, rates: BTreeSet<String>| {
            let more = if rates.len() > 5 { format!(", and {} more", rates.len() - 5) } else { String::new() };
            let rates: Vec<String> = rates.into_iter().take(5).collect();
            (kind, format!("{kind}: {}{more}", rates.join(", ")))
        };
        rates.into_iter().map(|(kind, r)| words(kind, r)).collect()
    }

    /// The links between devices that are drawn; two directions that are alike are one.
    fn drawn<'t>(&'t self, layout: &Layout) -> Vec<Drawn<'t>> {
        let mut out: Vec<Drawn<'t>> = Vec::new();
        let mut seen = BTreeSet::new();
        let two_way = self.two_way();
        for (id, a, b, link) in self.links().filter(|(_, a, b, _)| a != b) {
            let (Some(from), Some(to)) = (layout.places.get(&a), layout.places.get(&b)) else { continue };
            let both = two_way[id.0.index()];
            if both && !seen.insert((a.min(b), a.max(b), link.kind)) {
                continue;
            }
            out.push(Drawn { a, b, from: *from, to: *to, link, both });
        }
        out
    }

    fn device_box(&self, out: &mut Svg, id: DeviceId, p: &Place) {
        let d = self.device(id);
        let (fill, border) = match d.kind {
            DeviceKind::Gpu => ("#cfe8cf", "#2e7d32"),
            DeviceKind::Cpu => ("#d5dff5", "#3b5fb0"),
            DeviceKind::Nic => ("#fbe3bd", "#c07a1a"),
            DeviceKind::PciSwitch => ("#e4e4e4", "#777777"),
            DeviceKind::NvSwitch => ("#b5dcb5", "#2e7d32"),
            DeviceKind::NetSwitch => ("#f7d9b0", "#a8650f"),
        };
        let idle = d.extra.contains_key(NO_RAIL);
        let style = if idle { " stroke-dasharray=\"3 2\" opacity=\"0.6\"" } else { "" };
        out.line(&format!("<g><title>{}</title>", escape(&about(d))));
        out.rect(p, fill, &format!("stroke=\"{border}\" rx=\"4\"{style}"));
        let room = |size: f64| (p.width / (size * 0.62)) as usize;
        let under = match (&d.cpu, d.name.as_str()) {
            (Some(c), name) if c.cores > 0 && !name.is_empty() => format!("{name}, {} cores", c.cores),
            (_, name) => name.trim_start_matches("NVIDIA ").into(),
        };
        let small = if p.width <= COLUMN { 8.0 } else { 10.0 };
        match (d.kind, under.as_str()) {
            (DeviceKind::NvSwitch, _) => {}
            (DeviceKind::PciSwitch, _) | (_, "") => {
                out.text(p.x, p.y + 4.0, 10.0, "fill=\"#222222\"", &cut(short(d), room(10.0)));
            }
            (_, under) => {
                out.text(p.x, p.y - 2.0, 11.0, "fill=\"#222222\"", &cut(short(d), room(11.0)));
                out.text(p.x, p.y + 11.0, small, "fill=\"#555555\"", &cut(under, room(small)));
            }
        }
        out.line("</g>");
    }
}

/// A link with the places of its ends.
struct Drawn<'t> {
    a: DeviceId,
    b: DeviceId,
    from: Place,
    to: Place,
    link: &'t Link,
    both: bool,
}

struct Svg(String);

impl Svg {
    fn line(&mut self, text: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{text}");
    }

    fn rect(&mut self, p: &Place, fill: &str, style: &str) {
        let (x, y) = (p.x - p.width / 2.0, p.top());
        self.line(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\" {style}/>",
            p.width, p.height
        ));
    }

    fn text(&mut self, x: f64, y: f64, size: f64, style: &str, words: &str) {
        if !words.is_empty() {
            self.line(&format!(
                "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" {style}>{}</text>",
                escape(words)
            ));
        }
    }

    /// `over`: with a white edge, as a bridge over what it crosses.
    fn link(&mut self, t: &Topology, l: &Drawn<'_>, over: bool) {
        let path = path(t, l);
        let (width, colour) = (stroke(l.link.bandwidth()), colour(l.link.kind));
        if over {
            let edge = width + 3.0;
            self.line(&format!("<path d=\"{path}\" fill=\"none\" stroke=\"#ffffff\" stroke-width=\"{edge:.1}\"/>"));
        }
        let arrow = if l.both { "" } else { " marker-end=\"url(#arrow)\"" };
        let words = format!(
            "{} {} {}: {} x{}, {} GB/s {} [{}]",
            t.device(l.a).id,
            if l.both { "-" } else { "->" },
            t.device(l.b).id,
            l.link.kind,
            l.link.lanes,
            figure(l.link.bandwidth()),
            l.link.origin().name(),
            l.link.source
        );
        self.line(&format!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width:.1}\" opacity=\"0.85\"{arrow}><title>{}</title></path>",
            escape(&words)
        ));
    }
}

/// The line of a link: straight up and down where one end stands over the other, an arc between equals.
fn path(t: &Topology, l: &Drawn<'_>) -> String {
    let kind = |d| t.device(d).kind;
    let (a, b) = (&l.from, &l.to);
    if (a.y - b.y).abs() < 1.0 {
        let cpus = kind(l.a) == DeviceKind::Cpu;
        let gap = (a.x - b.x).abs() - (a.width + b.width) / 2.0;
        if gap < COLUMN / 2.0 && cpus {
            let (left, right) = if a.x < b.x { (a, b) } else { (b, a) };
            let (x1, x2) = (left.x + left.width / 2.0, right.x - right.width / 2.0);
            return format!("M{x1:.1},{:.1} L{x2:.1},{:.1}", a.y, b.y);
        }
        // Away from the tree: CPUs above, GPUs below; the other way round in a host that is upside down.
        let up = cpus != a.flipped;
        let reach = ((a.x - b.x).abs() * 0.22).clamp(24.0, if cpus { 62.0 } else { 125.0 });
        let (y, sign) = if up { (a.top(), -1.0) } else { (a.bottom(), 1.0) };
        let y2 = y + sign * reach;
        return format!("M{:.1},{y:.1} C{:.1},{y2:.1} {:.1},{y2:.1} {:.1},{y:.1}", a.x, a.x, b.x, b.x);
    }
    let (upper, lower) = if a.y < b.y { (a, b) } else { (b, a) };
    let (mut y1, mut y2) = (upper.bottom(), lower.top());
    // A wide box is met where the narrow one stands, or on that one's side.
    let meet = |wide: &Place, x: f64| {
        let reach = wide.width / 2.0 - 6.0;
        let off = x - wide.x;
        wide.x + if off.abs() <= reach { off } else { off.signum() * reach * (0.25 + off.abs() / 2500.0).min(1.0) }
    };
    let (mut x1, mut x2) = (upper.x, lower.x);
    if upper.width >= lower.width {
        x1 = meet(upper, x2)
    } else {
        x2 = meet(lower, x1)
    }
    // Beside the PCIe line that may run between the same two.
    let cpu = kind(l.a) == DeviceKind::Cpu || kind(l.b) == DeviceKind::Cpu;
    if l.link.kind == LinkKind::NvLinkC2c || l.link.kind == LinkKind::NvLink && cpu {
        (x1, x2) = (x1 + 9.0, x2 + 9.0);
    }
    if (x1 - x2).abs() < 2.0 {
        return format!("M{x1:.1},{y1:.1} L{x2:.1},{y2:.1}");
    }
    let (mut start, mut end) = (String::new(), String::new());
    if l.link.kind.is_network() {
        // Straight out of the host, and only then to where it goes.
        if upper.edge > y1 && upper.edge < y2 {
            start = format!("M{x1:.1},{y1:.1} L{x1:.1},{:.1} ", upper.edge);
            y1 = upper.edge;
        }
        if lower.edge < y2 && lower.edge > y1 {
            end = format!(" L{x2:.1},{y2:.1}");
            y2 = lower.edge;
        }
    }
    let half = (y1 + y2) / 2.0;
    let start = if start.is_empty() { format!("M{x1:.1},{y1:.1} ") } else { start };
    format!("{start}C{x1:.1},{half:.1} {x2:.1},{half:.1} {x2:.1},{y2:.1}{end}")
}

/// Pixels: logarithmic, since rates differ by a thousand.
fn stroke(rate: f64) -> f64 {
    (0.6 + 1.15 * (1.0 + rate / 5e9).log2()).clamp(0.8, 12.0)
}

fn colour(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::NvLink => "#3f9f46",
        LinkKind::NvLinkC2c => "#12807a",
        LinkKind::Xgmi => "#c0392b",
        LinkKind::Pcie => "#8f8f8f",
        LinkKind::CpuInterconnect => "#3b5fb0",
        LinkKind::Memory => "#7f9bd6",
        LinkKind::InfiniBand => "#e08a1e",
        LinkKind::RoCe => "#c9a400",
        LinkKind::Ethernet => "#8a5a2b",
        LinkKind::Efa => "#8e44ad",
    }
}

fn figure(rate: f64) -> String {
    if rate >= 99.95e9 { format!("{:.0}", rate / 1e9) } else { format!("{:.1}", rate / 1e9) }
}

/// The id without its host.
fn short(d: &Device) -> &str {
    d.id.rsplit_once('/').filter(|_| d.host.is_some()).map_or(d.id.as_str(), |(_, short)| short)
}

/// What pointing at a device shows.
fn about(d: &Device) -> String {
    let mut words = vec![format!("{} ({})", d.id, d.kind)];
    words.extend((!d.name.is_empty()).then(|| d.name.clone()));
    words.extend(d.bus.clone());
    words.extend(d.extra.iter().map(|(k, v)| format!("{k}={v}")));
    words.push(format!("[{}]", d.source));
    words.join("\n")
}

/// As many characters as there is room for.
fn cut(words: &str, room: usize) -> String {
    if words.chars().count() <= room {
        return words.into();
    }
    let mut short: String = words.chars().take(room.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Text for XML; characters that XML cannot hold become spaces.
fn escape(text: &str) -> String {
    let safe = text.chars().map(|c| if c < ' ' && c != '\n' { ' ' } else { c }).collect::<String>();
    safe.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_xml_and_shows_every_device_and_kind() {
        let text = "name = 'a <b> & \\u0001'\n[[device]]\nkind = 'cpu'\nid = 'cpu[0-1]'\n[[device]]\nkind = 'gpu'\nid = 'gpu[0-3]'\n\
                    [[device]]\nkind = 'nic'\nid = 'nic0'\n[[link]]\nkind = 'pcie'\nfrom = 'gpu[0-3]'\nto = 'cpu[0-1]'\n\
                    [[link]]\nkind = 'pcie'\nfrom = 'nic0'\nto = 'cpu0'\n[[link]]\nkind = 'xgmi'\nfrom = 'gpu0'\nto = 'gpu3'\none-way = true\n";
        let t = Topology::from_toml(text, "f").unwrap();
        for t in [t.clone(), t.cluster(4).unwrap(), t.cluster(40).unwrap()] {
            let svg = t.to_svg();
            let doc = roxmltree::Document::parse(&svg).unwrap();
            let words: Vec<&str> =
                doc.descendants().filter(|n| n.has_tag_name("text")).filter_map(|n| n.text()).collect();
            let drawn = t.hosts().min(4);
            assert_eq!(words.iter().filter(|w| w.starts_with("gpu")).count(), 4 * drawn);
            assert!(words.iter().any(|w| w.starts_with("xgmi: ")), "{words:?}");
            assert_eq!(svg.matches("marker-end").count(), drawn);
            assert_eq!(words.iter().any(|w| w.contains("36 hosts more")), t.hosts() == 40);
        }
    }
}
