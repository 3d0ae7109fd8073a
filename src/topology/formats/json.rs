//! For machines to read. The keys are a promise.

use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::topology::{CpuInfo, Device, DeviceKind, LinkKind, Origin, Topology};

/// `{name, source, hosts, devices[] {id, kind, name, host, index, numa, bus, cpu, extra, source}, links[] {from, to, kind,
/// lanes, bandwidth, latency, origin, nominal, usable, measured, latency_origin, source}, notices[]}`; bandwidths
/// in bytes per second, one direction; latencies in seconds; what is not known is null. Every host is written out.
impl Serialize for Topology {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Topology", 6)?;
        out.serialize_field("name", &self.name)?;
        out.serialize_field("source", &self.source)?;
        out.serialize_field("hosts", &self.hosts())?;
        out.serialize_field("devices", &Devices(self))?;
        out.serialize_field("links", &Links(self))?;
        out.serialize_field("notices", &self.notices)?;
        out.end()
    }
}

struct Devices<'a>(&'a Topology);

impl Serialize for Devices<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.devices().map(|(_, d)| JsonDevice::from(d)))
    }
}

struct Links<'a>(&'a Topology);

impl Serialize for Links<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.links().map(|(_, a, b, l)| JsonLink {
            from: &self.0.device(a).id,
            to: &self.0.device(b).id,
            kind: l.kind,
            lanes: l.lanes,
            bandwidth: l.bandwidth(),
            latency: l.latency,
            origin: l.origin(),
            nominal: l.nominal,
            usable: l.usable,
            measured: l.measured,
            latency_origin: l.latency_origin,
            source: &l.source,
        }))
    }
}

#[derive(serde::Serialize)]
struct JsonDevice<'a> {
    id: &'a str,
    kind: DeviceKind,
    name: &'a str,
    host: Option<usize>,
    index: usize,
    numa: Option<usize>,
    bus: Option<&'a str>,
    cpu: Option<&'a CpuInfo>,
    extra: &'a std::collections::BTreeMap<String, String>,
    source: &'a str,
}

impl<'a> From<&'a Device> for JsonDevice<'a> {
    fn from(d: &'a Device) -> Self {
        Self {
            id: &d.id,
            kind: d.kind,
            name: &d.name,
            host: d.host,
            index: d.index,
            numa: d.numa,
            bus: d.bus.as_deref(),
            cpu: d.cpu.as_ref(),
            extra: &d.extra,
            source: &d.source,
        }
    }
}

#[derive(serde::Serialize)]
struct JsonLink<'a> {
    from: &'a str,
    to: &'a str,
    kind: LinkKind,
    lanes: u32,
    bandwidth: f64,
    latency: f64,
    origin: Origin,
    nominal: Option<f64>,
    usable: Option<f64>,
    measured: Option<f64>,
    latency_origin: Origin,
    source: &'a str,
}
