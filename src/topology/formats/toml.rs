//! topocoll's own format: what a person writes by hand, and an exact copy of any topology.
//!
//! ```toml
//! name = "two GPUs"
//!
//! [[device]]
//! kind = "gpu"
//! id = "gpu[0-1]"
//!
//! [[link]]                    # both directions, unless `one-way = true`
//! kind = "nvlink"
//! from = "gpu0"
//! to = "gpu1"
//! nominal = "25 GB/s"
//! ```
//!
//! `from` and `to` may stand for several devices: equal numbers are joined one to one, one with all, `n` with `m` in
//! runs (`gpu[0-7]` to `plx[0-3]`: two to a switch), `each = "all"` joins all with all (the same devices on both
//! sides: each with each other), and `pairs` lists them.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use toml::{Spanned, Value};

use crate::topology::formats::{range, units};
use crate::topology::{CpuInfo, Device, DeviceId, DeviceKind, Link, LinkKind, Origin, Topology};
use crate::{Error, Result};

/// Links that a file may stand for.
const MAX_LINKS: usize = 2_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    source: String,
    hosts: Option<Spanned<usize>>,
    fabric: Option<Spanned<String>>,
    #[serde(default)]
    device: Vec<RawDevice>,
    #[serde(default)]
    link: Vec<RawLink>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RawDevice {
    kind: DeviceKind,
    id: Spanned<String>,
    #[serde(default)]
    name: String,
    host: Option<usize>,
    shared: Option<Spanned<bool>>,
    index: Option<usize>,
    bus: Option<Spanned<Value>>,
    numa: Option<Spanned<Value>>,
    package: Option<Spanned<Value>>,
    cores: Option<usize>,
    pus: Option<Vec<usize>>,
    l1d: Option<Spanned<Value>>,
    l2: Option<Spanned<Value>>,
    l3: Option<Spanned<Value>>,
    memory: Option<Spanned<Value>>,
    copy_rate: Option<Spanned<Value>>,
    exchange_rate: Option<Spanned<Value>>,
    #[serde(default)]
    extra: BTreeMap<String, String>,
    source: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RawLink {
    kind: Spanned<LinkKind>,
    from: Option<Spanned<String>>,
    to: Option<Spanned<String>>,
    each: Option<Spanned<String>>,
    pairs: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    one_way: bool,
    lanes: Option<Spanned<u32>>,
    nominal: Option<Spanned<Value>>,
    usable: Option<Spanned<Value>>,
    measured: Option<Spanned<Value>>,
    latency: Option<Spanned<Value>>,
    latency_origin: Option<Origin>,
    source: Option<String>,
}

/// Where in which file: makes errors.
struct Place<'a> {
    file: &'a str,
    text: &'a str,
}

impl Place<'_> {
    fn error(&self, span: Option<Range<usize>>, field: &str, message: impl Into<String>) -> Error {
        let line = span.and_then(|s| self.text.get(..s.start)).map(|t| t.matches('\n').count() + 1);
        Error::in_file(self.file, line, field, message)
    }

    /// A figure above zero, with a unit or without.
    fn figure(
        &self,
        value: &Option<Spanned<Value>>,
        field: &str,
        unit: fn(&str) -> Result<f64, String>,
    ) -> Result<Option<f64>> {
        let Some(value) = value else { return Ok(None) };
        let number = match value.get_ref() {
            Value::Integer(i) => Ok(*i as f64),
            Value::Float(f) => Ok(*f),
            Value::String(s) => unit(s),
            other => Err(format!("found a {}, expected a number or a text with a unit", other.type_str())),
        };
        let number = number.and_then(|n| match n.is_finite() && n > 0.0 {
            true => Ok(n),
            false => Err(format!("found {n}, expected a finite number above 0; leave it out if it is not known")),
        });
        number.map(Some).map_err(|e| self.error(Some(value.span()), field, e))
    }

    fn bytes(&self, value: &Option<Spanned<Value>>, field: &str) -> Result<Option<u64>> {
        Ok(self.figure(value, field, units::size)?.map(|n| n as u64))
    }

    /// The value for the `i`th of `n` devices: one for all, or a list.
    fn one_of<'v>(
        &self,
        value: &'v Option<Spanned<Value>>,
        field: &str,
        i: usize,
        n: usize,
    ) -> Result<Option<&'v Value>> {
        let Some(value) = value else { return Ok(None) };
        match value.get_ref() {
            Value::Array(list) if list.len() == n => Ok(list.get(i)),
            Value::Array(list) => {
                let why = format!("a list of {} for {n} device(s); give one value or one for each", list.len());
                Err(self.error(Some(value.span()), field, why))
            }
            one => Ok(Some(one)),
        }
    }

    fn index(&self, value: &Option<Spanned<Value>>, field: &str, i: usize, n: usize) -> Result<Option<usize>> {
        let found = self.one_of(value, field, i, n)?;
        let number = found.map(|v| v.as_integer().and_then(|i| usize::try_from(i).ok()).ok_or(v));
        number.transpose().map_err(|v| {
            let span = value.as_ref().map(Spanned::span);
            self.error(span, field, format!("found {v}, expected a number from 0"))
        })
    }
}

impl Topology {
    /// Reads topocoll's own format. `file` is what errors call it.
    ///
    /// # Errors
    /// [`Error::TopologyFile`] with line and field, what was found and what was expected.
    pub fn from_toml(text: &str, file: &str) -> Result<Self> {
        let place = Place { file, text };
        let raw: File = toml::from_str(text).map_err(|e| {
            let message = e.message().lines().collect::<Vec<_>>().join("; ");
            place.error(e.span(), "", message)
        })?;
        let mut t = Self::new(&raw.name);
        t.source = raw.source;
        for (i, device) in raw.device.iter().enumerate() {
            devices(&mut t, &place, device, &format!("device[{i}]"))?;
        }
        if t.graph.node_count() == 0 {
            return Err(place.error(None, "device", "no [[device]] is there; a topology has at least one"));
        }
        for (i, link) in raw.link.iter().enumerate() {
            links(&mut t, &place, link, &format!("link[{i}]"))?;
        }
        let hosts = raw.hosts.as_ref().map(|h| *h.get_ref());
        if let Some(fabric) = &raw.fabric {
            let fail = |e: Error| place.error(Some(fabric.span()), "fabric", e.to_string());
            return t.cluster_over(hosts.unwrap_or(1), fabric.get_ref().parse().map_err(fail)?).map_err(fail);
        }
        match (hosts, &raw.hosts) {
            (Some(n), Some(at)) if n != t.hosts() => {
                t.cluster(n).map_err(|e| place.error(Some(at.span()), "hosts", e.to_string()))
            }
            _ => Ok(t),
        }
    }

    /// Writes topocoll's own format, such that reading it gives an equal topology.
    pub fn to_toml(&self) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        // Hosts that are alike are written once.
        let one = self.distinct();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "name = {}", quoted(&one.name));
        if !one.source.is_empty() {
            let _ = writeln!(out, "source = {}", quoted(&one.source));
        }
        if let Some(recipe) = &self.recipe {
            let _ = writeln!(out, "hosts = {}", recipe.hosts);
            if let Some(fabric) = recipe.fabric {
                let _ = writeln!(out, "fabric = {}", quoted(&fabric.to_string()));
            }
        }
        for (_, d) in one.devices() {
            out.push_str(&device_text(d));
        }
        let all: Vec<_> = one.links().collect();
        let mut i = 0;
        while let Some((_, a, b, link)) = all.get(i) {
            // The other direction, if it is the next and the same, goes without saying.
            let both = all.get(i + 1).is_some_and(|(_, c, d, other)| (c, d) == (b, a) && other == link && a != b);
            out.push_str(&link_text(&one.device(*a).id, &one.device(*b).id, !both && a != b, link));
            i += 1 + usize::from(both);
        }
        out
    }
}

fn devices(t: &mut Topology, place: &Place<'_>, raw: &RawDevice, at: &str) -> Result<()> {
    let field = |name: &str| format!("{at}.{name}");
    let ids = range::expand(raw.id.get_ref()).map_err(|e| place.error(Some(raw.id.span()), &field("id"), e))?;
    if t.graph.node_count() + ids.len() > range::MAX {
        let why = format!("more than {} devices; give one host and `hosts`", range::MAX);
        return Err(place.error(Some(raw.id.span()), &field("id"), why));
    }
    let n = ids.len();
    let shared = raw.shared.as_ref().filter(|s| *s.get_ref());
    let host = match (raw.kind, shared) {
        (DeviceKind::NetSwitch, _) => raw.host,
        (DeviceKind::NvSwitch, Some(_)) if raw.host.is_none() => None,
        (_, Some(at)) => {
            let why = "only an nv-switch without a host can be shared by hosts; a net-switch always is";
            return Err(place.error(Some(at.span()), &field("shared"), why));
        }
        _ => Some(raw.host.unwrap_or(0)),
    };
    if host.is_some_and(|h| h > range::MAX) {
        return Err(place.error(Some(raw.id.span()), &field("host"), format!("hosts are 0 to {}", range::MAX)));
    }
    let before = t.count(raw.kind, host);
    for (i, id) in ids.into_iter().enumerate() {
        let bus = place.one_of(&raw.bus, &field("bus"), i, n)?;
        let bus = bus.map(|b| b.as_str().map(String::from).ok_or(b)).transpose().map_err(|b| {
            let span = raw.bus.as_ref().map(Spanned::span);
            place.error(span, &field("bus"), format!("found {b}, expected a text such as \"0000:3b:00.0\""))
        })?;
        let cpu = match raw.kind {
            DeviceKind::Cpu => Some(CpuInfo {
                package: place.index(&raw.package, &field("package"), i, n)?.unwrap_or(0),
                cores: raw.cores.unwrap_or(0),
                pus: raw.pus.clone().unwrap_or_default(),
                l1d: place.bytes(&raw.l1d, &field("l1d"))?,
                l2: place.bytes(&raw.l2, &field("l2"))?,
                l3: place.bytes(&raw.l3, &field("l3"))?,
                memory: place.bytes(&raw.memory, &field("memory"))?,
                copy_rate: place.figure(&raw.copy_rate, &field("copy-rate"), units::rate)?,
                exchange_rate: place.figure(&raw.exchange_rate, &field("exchange-rate"), units::rate)?,
            }),
            _ => None,
        };
        t.add_device(Device {
            id,
            kind: raw.kind,
            name: raw.name.clone(),
            host,
            index: raw.index.unwrap_or(before + i),
            bus,
            numa: place.index(&raw.numa, &field("numa"), i, n)?,
            cpu,
            extra: raw.extra.clone(),
            source: raw.source.clone().unwrap_or_else(|| place.file.into()),
        })
        .map_err(|e| place.error(Some(raw.id.span()), &field("id"), e.to_string()))?;
    }
    Ok(())
}

fn links(t: &mut Topology, place: &Place<'_>, raw: &RawLink, at: &str) -> Result<()> {
    let field = |name: &str| format!("{at}.{name}");
    let kind = *raw.kind.get_ref();
    let mut link = Link::new(kind, raw.source.as_deref().unwrap_or(place.file));
    link.nominal = place.figure(&raw.nominal, &field("nominal"), units::rate)?;
    link.usable = place.figure(&raw.usable, &field("usable"), units::rate)?;
    link.measured = place.figure(&raw.measured, &field("measured"), units::rate)?;
    if let Some(latency) = place.figure(&raw.latency, &field("latency"), units::time)? {
        link.latency = latency;
        link.latency_origin = raw.latency_origin.unwrap_or(Origin::Declared);
    }
    if let Some(lanes) = &raw.lanes {
        link.lanes = *lanes.get_ref();
        if link.lanes == 0 {
            return Err(place.error(Some(lanes.span()), &field("lanes"), "found 0, expected at least 1"));
        }
    }
    for (a, b, span) in pairs(t, place, raw, &field)? {
        if a == b && kind != LinkKind::Memory {
            let id = &t.device(a).id;
            let why = format!("`{id}` is linked with itself; only a link of kind memory may be");
            return Err(place.error(Some(span), &field("from"), why));
        }
        if t.graph.edge_count() + 2 > MAX_LINKS {
            return Err(place.error(Some(span), at, format!("more than {MAX_LINKS} links")));
        }
        if raw.one_way || a == b {
            t.add_link(a, b, link.clone());
        } else {
            t.connect(a, b, link.clone());
        }
    }
    Ok(())
}

type Pair = (DeviceId, DeviceId, Range<usize>);

fn pairs(t: &Topology, place: &Place<'_>, raw: &RawLink, field: &impl Fn(&str) -> String) -> Result<Vec<Pair>> {
    let find = |id: &str, span: Range<usize>, name: &str| {
        t.find(id).ok_or_else(|| {
            let near = nearest(t, id).map(|n| format!("; is `{n}` meant?")).unwrap_or_default();
            place.error(Some(span), &field(name), format!("there is no device `{id}`{near}"))
        })
    };
    if let Some(list) = &raw.pairs {
        let span = list.span();
        if raw.from.is_some() || raw.to.is_some() {
            return Err(place.error(Some(span), &field("pairs"), "give `pairs` or `from` and `to`, not both"));
        }
        let pair = |text: &String| {
            let Some((a, b)) = text.split_once(char::is_whitespace) else {
                let why = format!("found {text:?}, expected two ids such as \"gpu0 gpu1\"");
                return Err(place.error(Some(span.clone()), &field("pairs"), why));
            };
            Ok((find(a.trim(), span.clone(), "pairs")?, find(b.trim(), span.clone(), "pairs")?, span.clone()))
        };
        return list.get_ref().iter().map(pair).collect();
    }
    let (Some(from), Some(to)) = (&raw.from, &raw.to) else {
        return Err(place.error(Some(raw.kind.span()), &field("from"), "`from` and `to`, or `pairs`, are missing"));
    };
    let many = |s: &Spanned<String>, name: &str| -> Result<Vec<DeviceId>> {
        let ids = range::expand(s.get_ref()).map_err(|e| place.error(Some(s.span()), &field(name), e))?;
        ids.iter().map(|id| find(id, s.span(), name)).collect()
    };
    let (a, b) = (many(from, "from")?, many(to, "to")?);
    let span = from.span();
    let (n, m) = (a.len(), b.len());
    let all = match raw.each.as_ref().map(|e| (e.get_ref().as_str(), e.span())) {
        None => n == 1 || m == 1,
        Some(("all", _)) => true,
        Some(("one", _)) => false,
        Some((other, span)) => {
            let why = format!("found {other:?}, expected \"all\" (with all) or \"one\" (with one)");
            return Err(place.error(Some(span), &field("each"), why));
        }
    };
    if all && a == b && n > 1 {
        if n.saturating_mul(n) > MAX_LINKS {
            return Err(place.error(
                Some(span),
                &field("from"),
                format!("{n} times {n} are more than {MAX_LINKS} links"),
            ));
        }
        let each = |i: usize| b[i + 1..].iter().map(move |y| (i, *y));
        return Ok((0..n).flat_map(each).map(|(i, y)| (a[i], y, span.clone())).collect());
    }
    if all {
        if n.saturating_mul(m) > MAX_LINKS {
            return Err(place.error(
                Some(span),
                &field("from"),
                format!("{n} times {m} are more than {MAX_LINKS} links"),
            ));
        }
        return Ok(a.iter().flat_map(|x| b.iter().map(|y| (*x, *y, span.clone()))).collect());
    }
    let (long, short) = (n.max(m), n.min(m));
    if long % short != 0 {
        let why = format!("{n} devices cannot be joined with {m} in equal runs; use `each = \"all\"` or `pairs`");
        return Err(place.error(Some(span), &field("from"), why));
    }
    let run = long / short;
    Ok((0..long)
        .map(|i| (a[if n == long { i } else { i / run }], b[if m == long { i } else { i / run }], span.clone()))
        .collect())
}

/// The id that is closest in spelling, if any is close.
fn nearest<'t>(t: &'t Topology, id: &str) -> Option<&'t str> {
    let ids = t.graph.node_weights().take(2000).map(|d| d.id.as_str());
    let close = ids.map(|other| (distance(id, other), other)).filter(|(d, _)| *d <= 2);
    close.min().map(|(_, other)| other)
}

/// Edits between two short words (Wagner and Fischer, 1974).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = row[j + 1];
            row[j + 1] = next;
        }
    }
    row[b.len()]
}

fn quoted(text: &str) -> String {
    Value::String(text.into()).to_string()
}

fn device_text(d: &Device) -> String {
    use std::fmt::Write;
    let mut out = format!("\n[[device]]\nkind = {}\nid = {}\n", quoted(d.kind.name()), quoted(&d.id));
    let mut line = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(out, "{key} = {value}");
        }
    };
    line("name", (!d.name.is_empty()).then(|| quoted(&d.name)));
    line("host", d.host.map(|h| h.to_string()));
    line("shared", (d.host.is_none() && d.kind != DeviceKind::NetSwitch).then(|| "true".into()));
    line("index", Some(d.index.to_string()));
    line("bus", d.bus.as_deref().map(quoted));
    line("numa", d.numa.map(|n| n.to_string()));
    if let Some(c) = &d.cpu {
        line("package", Some(c.package.to_string()));
        line("cores", Some(c.cores.to_string()));
        line("pus", (!c.pus.is_empty()).then(|| format!("{:?}", c.pus)));
        for (key, bytes) in [("l1d", c.l1d), ("l2", c.l2), ("l3", c.l3), ("memory", c.memory)] {
            line(key, bytes.map(|b| b.to_string()));
        }
        line("copy-rate", c.copy_rate.map(|r| format!("{r:?}")));
        line("exchange-rate", c.exchange_rate.map(|r| format!("{r:?}")));
    }
    line("source", Some(quoted(&d.source)));
    if !d.extra.is_empty() {
        let pairs: Vec<String> = d.extra.iter().map(|(k, v)| format!("{} = {}", quoted(k), quoted(v))).collect();
        line("extra", Some(format!("{{ {} }}", pairs.join(", "))));
    }
    out
}

fn link_text(from: &str, to: &str, one_way: bool, l: &Link) -> String {
    use std::fmt::Write;
    let mut out =
        format!("\n[[link]]\nkind = {}\nfrom = {}\nto = {}\n", quoted(l.kind.name()), quoted(from), quoted(to));
    let mut line = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(out, "{key} = {value}");
        }
    };
    line("one-way", one_way.then(|| "true".into()));
    line("lanes", (l.lanes != 1).then(|| l.lanes.to_string()));
    line("nominal", l.nominal.map(|r| format!("{r:?}")));
    line("usable", l.usable.map(|r| format!("{r:?}")));
    line("measured", l.measured.map(|r| format!("{r:?}")));
    let standard = l.latency_origin == Origin::Assumed && l.latency == l.kind.assumed_latency();
    line("latency", (!standard).then(|| format!("{:?}", l.latency)));
    line("latency-origin", (!standard).then(|| quoted(l.latency_origin.name())));
    line("source", Some(quoted(&l.source)));
    out
}

#[cfg(test)]
mod tests;
