//! What plans run on: where ranks are, and the ways between them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap as HashMap;

use crate::plan::cost::{self, CACHE, COPY_RATE};
use crate::plan::{Buffer, Instruction, Placement, Plan, Span};
use crate::simulate::program::Program;
use crate::simulate::run::{self, Run};
use crate::simulate::trace::{self, Trace};
use crate::topology::{DeviceId, LinkId, Topology};
use crate::{Error, Result};

/// Ranks on the devices of a topology. Routes are looked up once and kept.
#[derive(Debug)]
pub struct Machine<'a> {
    pub(super) topology: &'a Topology,
    pub(super) placement: &'a Placement,
    /// Ranks on each CPU, and the cores there.
    pub(super) cores: HashMap<DeviceId, (usize, usize)>,
    pub(super) memory: HashMap<DeviceId, LinkId>,
    routes: Mutex<HashMap<(DeviceId, DeviceId), Arc<Path>>>,
}

/// A way between two devices.
#[derive(Debug)]
pub(super) struct Path {
    pub links: Vec<LinkId>,
    pub latency: f64,
}

/// What a byte costs the core that moves it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Work {
    /// Seconds of the core.
    pub seconds: f64,
    /// Bytes that are copied in memory (half of one for each byte read or written).
    pub memory: f64,
}

impl<'a> Machine<'a> {
    /// Rank `r` on the device that `placement` has for it.
    pub fn new(topology: &'a Topology, placement: &'a Placement) -> Self {
        let (cores, memory) = (cost::cores(topology, placement), cost::memory(topology));
        Self { topology, placement, cores, memory, routes: Mutex::default() }
    }

    /// Compiles a plan, so that it can be run with several sizes.
    ///
    /// # Errors
    /// [`Error::Plan`] where the plan is not of this machine's ranks, or two that must exchange data have no route.
    pub fn prepare(&self, plan: &Plan) -> Result<Program> {
        Program::new(self, plan)
    }

    /// Runs a message of `bytes` (of its larger buffer), cut as the plan says.
    ///
    /// # Errors
    /// As [`Machine::prepare`], and [`Error::Plan`] where lanes wait for each other.
    pub fn run(&self, plan: &Plan, bytes: u64) -> Result<Run> {
        let program = self.prepare(plan)?;
        let mut steps = Vec::new();
        let run = run::run(self, &program, bytes, plan.chunks(bytes), None, Some(&mut steps), None)?;
        Ok(Run { critical: run::critical(plan, &program, &steps), ..run })
    }

    /// Runs a message of `bytes` in `chunks` chunks. [`Run::critical`] is left empty.
    ///
    /// # Errors
    /// [`Error::Plan`] where lanes wait for each other.
    pub fn run_prepared(&self, program: &Program, bytes: u64, chunks: u64) -> Result<Run> {
        run::run(self, program, bytes, chunks, None, None, None)
    }

    /// Runs a message of `bytes` and keeps what happened; of long messages the first chunks only.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn trace(&self, plan: &Plan, bytes: u64) -> Result<Trace> {
        trace::trace(self, plan, bytes)
    }

    /// The ways between the ranks of `pairs` (from, to), one search for each device that data comes from.
    pub(super) fn paths(&self, pairs: &[(u32, u32)]) -> Result<HashMap<(u32, u32), Arc<Path>>> {
        let devices = self.placement.devices();
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asked: BTreeMap<DeviceId, Vec<DeviceId>> = BTreeMap::new();
        for &(a, b) in pairs {
            let (from, to) = (devices[a as usize], devices[b as usize]);
            if !routes.contains_key(&(from, to)) {
                asked.entry(from).or_default().push(to);
            }
        }
        for (from, mut to) in asked {
            to.sort_unstable();
            to.dedup();
            for (route, to) in self.topology.routes_to(from, &to).into_iter().zip(to) {
                if let Some(route) = route {
                    // What stays on a device is charged as the work of its cores.
                    let links = if from == to { vec![] } else { route.links };
                    routes.insert((from, to), Arc::new(Path { links, latency: route.latency }));
                }
            }
        }
        let found = pairs.iter().map(|&(a, b)| {
            let (from, to) = (devices[a as usize], devices[b as usize]);
            let path = routes.get(&(from, to)).cloned().ok_or_else(|| {
                let id = |d| &self.topology.device(d).id;
                Error::Plan(format!("no route leads from rank {a} ({}) to rank {b} ({})", id(from), id(to)))
            })?;
            Ok(((a, b), path))
        });
        found.collect()
    }

    pub(super) fn device(&self, rank: u32) -> DeviceId {
        self.placement.devices()[rank as usize]
    }

    /// Whether a rank is run by cores, which do its copying.
    pub(super) fn on_cpu(&self, rank: u32) -> bool {
        self.cores.contains_key(&self.device(rank))
    }

    /// Whether ranks outnumber cores where this one is.
    pub(super) fn crowded(&self, rank: u32) -> bool {
        self.cores.get(&self.device(rank)).is_some_and(|(ranks, cores)| ranks > cores)
    }

    /// What an instruction costs a rank's own core, a byte; nothing on GPUs. A rank's own scratch stays in its cache; a
    /// peer's comes from the peer's.
    pub(super) fn work(&self, rank: u32, instruction: &Instruction) -> Work {
        /// What a message goes through on its way: scratch of the sender's.
        const SLOT: Span = Span { buffer: Buffer::Scratch, owner: None, at: 0 };
        let mut work = Work { seconds: 0.0, memory: 0.0 };
        let Some(cpu) = &self.topology.device(self.device(rank)).cpu else { return work };
        let copy = cpu.copy_rate.unwrap_or(COPY_RATE);
        let exchange = cpu.exchange_rate.unwrap_or(copy);
        let mut touch = |spans: &[Span]| {
            for span in spans {
                match (span.buffer, span.owner.filter(|o| *o != rank)) {
                    (Buffer::Scratch, Some(_)) => work.seconds += 1.0 / exchange,
                    (Buffer::Scratch, None) => work.seconds += 0.5 / copy / CACHE,
                    _ => work.memory += 0.5,
                }
            }
        };
        let mut received = 0.0;
        match instruction {
            Instruction::Copy { src, dst, .. } => touch(&[*src, *dst]),
            Instruction::Reduce { srcs, dst, .. } => {
                touch(srcs);
                touch(&[*dst]);
            }
            Instruction::Send { src, .. } => touch(&[*src, SLOT]),
            Instruction::Recv { dst, .. } => {
                touch(&[*dst]);
                received = 1.0 / exchange;
            }
            Instruction::RecvReduce { src, dst, .. } => {
                touch(&[*src, *dst]);
                received = 1.0 / exchange;
            }
            Instruction::Notify { .. } | Instruction::Await { .. } => {}
        }
        work.seconds += received + work.memory / copy;
        work
    }
}
