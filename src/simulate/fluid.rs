//! Flows that share resources max-min fairly.

use crate::simulate::program::Program;

/// A flow's place in [`Fluid`], and which of those that had it.
pub(super) type Due = (f64, u32, u32);

/// All flows under way.
pub(super) struct Fluid {
    capacity: Vec<f64>,
    /// By shape: its work, and which of `uses` are its.
    shapes: Vec<(f64, u32, u32)>,
    /// Resources, and how much of them a unit of work takes.
    uses: Vec<(u32, f64)>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    /// By resource, the flows on it.
    on: Vec<Vec<u32>>,
    dirty: Vec<u32>,
    /// Which resources and flows the present turn has seen.
    turn: u32,
    seen: Vec<u32>,
    /// What is left of a resource, what its flows without a rate take of it, and how many these are.
    room: Vec<Room>,
    reached: Vec<u32>,
    found: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Room {
    left: f64,
    weight: f64,
    flows: u32,
}

#[derive(Clone, Copy)]
struct Flow {
    shape: u32,
    owner: u32,
    spec: u32,
    generation: u32,
    seen: u32,
    fixed: bool,
    left: f64,
    rate: f64,
    next: f64,
    since: f64,
}

impl Fluid {
    /// No flows, of a program whose parts have `part` bytes.
    pub fn new(program: &Program, part: f64) -> Self {
        let n = program.resources.len();
        let mut uses = Vec::with_capacity(program.uses.len());
        let mut shapes = Vec::with_capacity(program.shapes.len());
        for s in &program.shapes {
            let work = s.work.at(part);
            let first = uses.len() as u32;
            for (r, amount) in &program.uses[s.uses.start as usize..s.uses.end as usize] {
                uses.push((*r, amount.at(part) / work.max(f64::MIN_POSITIVE)));
            }
            shapes.push((work, first, uses.len() as u32));
        }
        Self {
            capacity: program.resources.iter().map(|r| r.capacity).collect(),
            shapes,
            uses,
            flows: Vec::new(),
            free: Vec::new(),
            on: vec![Vec::new(); n],
            dirty: Vec::new(),
            turn: 0,
            seen: vec![0; n],
            room: vec![Room::default(); n],
            reached: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Begins a flow; false where there is nothing to move.
    pub fn start(&mut self, shape: u32, owner: u32, spec: u32, now: f64) -> bool {
        let (work, first, last) = self.shapes[shape as usize];
        if work <= 0.0 {
            return false;
        }
        let id = self.free.pop().unwrap_or(self.flows.len() as u32);
        let generation = self.flows.get(id as usize).map_or(0, |f| f.generation);
        let fresh = Flow {
            shape,
            owner,
            spec,
            generation,
            seen: 0,
            fixed: false,
            left: work,
            rate: 0.0,
            next: 0.0,
            since: now,
        };
        match self.flows.get_mut(id as usize) {
            Some(slot) => *slot = fresh,
            None => self.flows.push(fresh),
        }
        for (r, _) in &self.uses[first as usize..last as usize] {
            self.on[*r as usize].push(id);
            self.dirty.push(*r);
        }
        true
    }

    /// Ends the flow that was due, if it still is: its owner and spec.
    pub fn finish(&mut self, id: u32, generation: u32) -> Option<(u32, u32)> {
        let flow = self.flows.get_mut(id as usize).filter(|f| f.generation == generation)?;
        flow.generation += 1;
        let (owner, spec) = (flow.owner, flow.spec);
        let (_, first, last) = self.shapes[flow.shape as usize];
        for (r, _) in &self.uses[first as usize..last as usize] {
            let on = &mut self.on[*r as usize];
            if let Some(at) = on.iter().position(|f| *f == id) {
                on.swap_remove(at);
            }
            self.dirty.push(*r);
        }
        self.free.push(id);
        Some((owner, spec))
    }

    /// Whether flows began or ended since rates were made.
    pub fn stale(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Gives every flow its rate after some began or ended, and says when those whose rate is another now are due.
    /// `used` is told the share in use of each resource looked at.
    pub fn settle(&mut self, now: f64, mut due: impl FnMut(Due), used: Option<&mut dyn FnMut(u32, f64)>) {
        if !self.stale() {
            return;
        }
        self.gather();
        self.fill();
        for id in &self.found {
            let flow = &mut self.flows[*id as usize];
            if (flow.next - flow.rate).abs() <= flow.rate * 1e-12 {
                continue;
            }
            flow.left = (flow.left - flow.rate * (now - flow.since)).max(0.0);
            (flow.rate, flow.since) = (flow.next, now);
            flow.generation += 1;
            due((now + flow.left / flow.rate, *id, flow.generation));
        }
        if let Some(used) = used {
            for r in &self.reached {
                let rate = |f: &u32| {
                    let flow = &self.flows[*f as usize];
                    let (_, first, last) = self.shapes[flow.shape as usize];
                    let uses = &self.uses[first as usize..last as usize];
                    uses.iter().filter(|(u, _)| u == r).map(|(_, w)| w * flow.rate).sum::<f64>()
                };
                let total: f64 = self.on[*r as usize].iter().map(rate).sum();
                used(*r, total / self.capacity[*r as usize]);
            }
        }
    }

    /// All flows and resources that the dirty ones have anything to do with.
    fn gather(&mut self) {
        self.turn += 1;
        self.reached.clear();
        self.found.clear();
        for r in self.dirty.drain(..) {
            if std::mem::replace(&mut self.seen[r as usize], self.turn) != self.turn {
                self.reached.push(r);
            }
        }
        let mut at = 0;
        while let Some(&r) = self.reached.get(at) {
            at += 1;
            let mut room = Room { left: self.capacity[r as usize], weight: 0.0, flows: 0 };
            for id in &self.on[r as usize] {
                let flow = &mut self.flows[*id as usize];
                let (_, first, last) = self.shapes[flow.shape as usize];
                let uses = &self.uses[first as usize..last as usize];
                if flow.seen != self.turn {
                    (flow.seen, flow.fixed) = (self.turn, false);
                    self.found.push(*id);
                    for (u, _) in uses {
                        if std::mem::replace(&mut self.seen[*u as usize], self.turn) != self.turn {
                            self.reached.push(*u);
                        }
                    }
                }
                room.weight += uses.iter().filter(|(u, _)| *u == r).map(|(_, w)| w).sum::<f64>();
                room.flows += 1;
            }
            self.room[r as usize] = room;
        }
    }

    /// Progressive filling: all rates rise together, and those on a resource that is full stay as they are.
    fn fill(&mut self) {
        let mut open: Vec<u32> = self.reached.clone();
        loop {
            open.retain(|r| self.room[*r as usize].flows > 0);
            let level = |room: &Room| room.left.max(0.0) / room.weight.max(f64::MIN_POSITIVE);
            let Some(least) = open.iter().map(|r| level(&self.room[*r as usize])).min_by(f64::total_cmp) else {
                return;
            };
            for &r in &open {
                if self.room[r as usize].flows == 0 || level(&self.room[r as usize]) > least * (1.0 + 1e-9) {
                    continue;
                }
                for id in &self.on[r as usize] {
                    let flow = &mut self.flows[*id as usize];
                    if std::mem::replace(&mut flow.fixed, true) {
                        continue;
                    }
                    flow.next = least;
                    let (_, first, last) = self.shapes[flow.shape as usize];
                    for (u, w) in &self.uses[first as usize..last as usize] {
                        let room = &mut self.room[*u as usize];
                        room.left -= w * least;
                        room.weight -= w;
                        room.flows -= 1;
                    }
                }
            }
        }
    }
}
