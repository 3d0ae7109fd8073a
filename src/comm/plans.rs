//! Plans by collective, element width and size class, made once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Result;
use crate::plan::choose::{Choice, Wish, choose};
use crate::plan::{Collective, Placement, verify, verify_shape};
use crate::runtime::code::Code;
use crate::runtime::{DType, ReduceOp};
use crate::topology::Topology;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    collective: Collective,
    width: usize,
    /// The power of two at or above the message's bytes.
    class: u64,
    /// Integers averaged: only plans that combine in one step are exact.
    single_step: bool,
    /// Index of what was wished for.
    wish: usize,
}

pub(super) struct Plans {
    placement: Placement,
    rank: usize,
    /// All that were wished for so far, and which is now.
    wishes: Vec<Wish>,
    wish: usize,
    ready: HashMap<Key, Arc<Ready>>,
}

/// A plan that was chosen, proved and made ready for this rank.
pub(super) struct Ready {
    pub code: Code,
    /// Names the plan among ranks.
    pub id: u64,
}

impl Plans {
    pub fn new(placement: Placement, rank: usize, wish: Wish) -> Self {
        Self { placement, rank, wishes: vec![wish], wish: 0, ready: HashMap::new() }
    }

    pub fn prefer(&mut self, wish: Wish) {
        self.wish = self.wishes.iter().position(|w| *w == wish).unwrap_or(self.wishes.len());
        if self.wish == self.wishes.len() {
            self.wishes.push(wish);
        }
    }

    pub fn get(
        &mut self,
        topology: &Topology,
        collective: Collective,
        bytes: u64,
        dtype: DType,
        op: Option<ReduceOp>,
    ) -> Result<Arc<Ready>> {
        let class = bytes.max(1).checked_next_power_of_two().unwrap_or(1 << 63);
        let single_step = op == Some(ReduceOp::Avg) && dtype.is_integer();
        let key = Key { collective, width: dtype.width(), class, single_step, wish: self.wish };
        if let Some(ready) = self.ready.get(&key) {
            return Ok(ready.clone());
        }
        let choice = self.explain(topology, collective, class, dtype, op)?;
        // One proof is enough: nobody passes the gate before rank 0, and rank 0 comes there with a proved plan only.
        // The others make the same plan by the same code, and the gate compares its name.
        if self.rank == 0 {
            verify(&choice.plan, self.placement.hosts())?;
        } else {
            verify_shape(&choice.plan, self.placement.hosts())?;
        }
        let (name, lanes, chunk) = (&choice.plan.algorithm, choice.plan.lanes(), choice.plan.chunk_bytes);
        let id = crate::fnv(format!("{name} {lanes} {chunk}").as_bytes());
        let ready = Arc::new(Ready { code: Code::new(choice.plan, self.rank)?, id });
        self.ready.insert(key, ready.clone());
        Ok(ready)
    }

    /// What would be chosen for a message of `bytes`, with its reasons.
    pub fn explain(
        &self,
        topology: &Topology,
        collective: Collective,
        bytes: u64,
        dtype: DType,
        op: Option<ReduceOp>,
    ) -> Result<Choice> {
        let single_step = op == Some(ReduceOp::Avg) && dtype.is_integer();
        let wish = Wish { single_step, ..self.wishes[self.wish].clone() };
        choose(topology, &self.placement, collective, bytes, &wish)
    }
}
