//! Plans by collective, element width and size class, made once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Result;
use crate::plan::choose::{Choice, Wish, choose};
use crate::plan::{Collective, Placement, verify};
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
}

pub(super) struct Plans {
    placement: Placement,
    rank: usize,
    ready: HashMap<Key, Arc<Ready>>,
}

/// A plan that was chosen, proved and made ready for this rank.
pub(super) struct Ready {
    pub code: Code,
    /// Names the plan among ranks.
    pub id: u64,
}

impl Plans {
    pub fn new(placement: Placement, rank: usize) -> Self {
        Self { placement, rank, ready: HashMap::new() }
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
        let key = Key { collective, width: dtype.width(), class, single_step };
        if let Some(ready) = self.ready.get(&key) {
            return Ok(ready.clone());
        }
        let choice = self.choose(topology, &key)?;
        verify(&choice.plan, self.placement.hosts())?;
        let id =
            crate::fnv(format!("{} {}", choice.plan.algorithm, choice.plan.chunk_bytes).as_bytes());
        let ready = Arc::new(Ready { code: Code::new(choice.plan, self.rank)?, id });
        self.ready.insert(key, ready.clone());
        Ok(ready)
    }

    fn choose(&self, topology: &Topology, key: &Key) -> Result<Choice> {
        let wish = Wish { single_step: key.single_step, ..Wish::from_env()? };
        choose(topology, &self.placement, key.collective, key.class, &wish)
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
        let wish = Wish { single_step, ..Wish::from_env()? };
        choose(topology, &self.placement, collective, bytes, &wish)
    }
}
