//! For machines to read. The keys are a promise.

use serde_json::{Value, json};

use crate::topology::Topology;

impl Topology {
    /// `{name, source, hosts, devices[] {id, kind, name, host, index, numa, bus, cpu, extra, source}, links[] {from, to, kind,
    /// lanes, bandwidth, latency, origin, nominal, usable, measured, latency_origin, source}, notices[]}`; bandwidths
    /// in bytes per second, one direction; latencies in seconds; what is not known is null.
    pub fn to_json(&self) -> Value {
        let devices: Vec<Value> = self
            .devices()
            .map(|(_, d)| {
                json!({
                    "id": d.id, "kind": d.kind, "name": d.name, "host": d.host, "index": d.index, "numa": d.numa,
                    "bus": d.bus, "cpu": d.cpu, "extra": d.extra, "source": d.source,
                })
            })
            .collect();
        let links: Vec<Value> = self
            .links()
            .map(|(_, a, b, l)| {
                json!({
                    "from": self.device(a).id, "to": self.device(b).id, "kind": l.kind, "lanes": l.lanes,
                    "bandwidth": l.bandwidth(), "latency": l.latency, "origin": l.origin(), "nominal": l.nominal,
                    "usable": l.usable, "measured": l.measured, "latency_origin": l.latency_origin, "source": l.source,
                })
            })
            .collect();
        json!({
            "name": self.name, "source": self.source, "hosts": self.hosts(), "devices": devices, "links": links,
            "notices": self.notices,
        })
    }
}
