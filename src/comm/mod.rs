//! What a user holds: a [`Communicator`] and its collectives.

mod collectives;
mod plans;
mod request;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bootstrap::{World, join, timeout};
use crate::plan::Placement;
use crate::plan::choose::Wish;
use crate::runtime::engine::Patience;
use crate::runtime::wire::shm::{MAX_RANKS, Segment};
use crate::topology::Topology;
use crate::{Error, Result};
use plans::Plans;
use request::Progress;

pub use request::Request;

/// Staging of all ranks together at most, and of one rank at most and at least, in bytes.
const STAGING_ALL: usize = 256 << 20;
const STAGING_MOST: usize = 8 << 20;
const STAGING_LEAST: usize = 256 << 10;

/// Looks this often again before it sleeps, where every rank has a core: some tens of microseconds.
const SPINS: u32 = 2000;

/// One rank's end of a group of ranks that do collectives together.
///
/// Every rank calls the same collectives in the same order. Calls on one communicator are done one after the other;
/// what [`all_reduce_async`](Self::all_reduce_async) and its like start is done in the order of the calls.
///
/// Every call checks that all ranks asked for the same. Where they did not, all of them get
/// [`Error::Disagreement`], nothing is written, and the communicator can go on. After [`Error::PeerLost`] or
/// [`Error::Timeout`] every call returns [`Error::Broken`].
pub struct Communicator {
    core: Arc<Core>,
    progress: Mutex<Option<Progress>>,
}

/// What the caller's thread and the progress thread share.
pub(crate) struct Core {
    segment: Arc<Segment>,
    rank: usize,
    topology: Arc<Topology>,
    patience: Patience,
    state: Mutex<State>,
}

struct State {
    sequence: u64,
    broken: Option<Error>,
    plans: Plans,
}

impl Communicator {
    /// `ranks` ranks in this process, for a thread each. The topology is this machine's.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 or too many ranks; whatever detection and shared memory may fail with.
    pub fn local(ranks: usize) -> Result<Vec<Self>> {
        check_ranks(ranks)?;
        Self::local_on(ranks, Topology::detect()?)
    }

    /// As [`Communicator::local`], on a topology given.
    ///
    /// # Errors
    /// As [`Communicator::local`].
    pub fn local_on(ranks: usize, topology: Topology) -> Result<Vec<Self>> {
        check_ranks(ranks)?;
        let topology = Arc::new(topology);
        let placement = Placement::on_host(&topology, ranks)?;
        let all: Vec<usize> = (0..ranks).collect();
        let segment = Arc::new(Segment::create(ranks, staging(ranks), &all)?);
        let (patience, wish) = (patience(ranks)?, Wish::from_env()?);
        let make = |rank| {
            let plans = Plans::new(placement.clone(), rank, wish.clone());
            Self::new(segment.clone(), rank, topology.clone(), plans, patience)
        };
        Ok(all.into_iter().map(make).collect())
    }

    /// This process as one rank of those that a launcher started: torchrun, Open MPI, MPICH, Slurm, or
    /// `TOPOCOLL_RANK`, `TOPOCOLL_SIZE` and `TOPOCOLL_JOB`. All ranks must be on one host. Rank 0's topology is used
    /// by all.
    ///
    /// # Errors
    /// [`Error::Environment`] where no launcher is found, [`Error::Bootstrap`], [`Error::Timeout`] or
    /// [`Error::PeerLost`] where the ranks do not come together within `TOPOCOLL_TIMEOUT` seconds (30).
    pub fn from_env() -> Result<Self> {
        let world = World::from_env()?;
        check_ranks(world.size)?;
        if let Some(local) = world.local_size.filter(|l| *l != world.size) {
            return Err(Error::Environment(format!(
                "{} started {} ranks and {local} of them on this host; ranks of one host can join so far",
                world.launcher, world.size
            )));
        }
        let note = || Ok(Topology::detect()?.to_toml().into_bytes());
        let joined = join(&world, staging(world.size), timeout()?, note)?;
        let text = String::from_utf8(joined.note)
            .map_err(|_| Error::Bootstrap("rank 0 sent a topology that is no text".into()))?;
        let topology = Arc::new(Topology::from_toml(&text, "rank 0's topology")?);
        let plans = Plans::new(Placement::on_host(&topology, world.size)?, world.rank, Wish::from_env()?);
        Ok(Self::new(Arc::new(joined.segment), world.rank, topology, plans, patience(world.size)?))
    }

    fn new(segment: Arc<Segment>, rank: usize, topology: Arc<Topology>, plans: Plans, patience: Patience) -> Self {
        let state = Mutex::new(State { sequence: 0, broken: None, plans });
        Self { core: Arc::new(Core { segment, rank, topology, patience, state }), progress: Mutex::new(None) }
    }

    /// From the next call on, plans are made with `wish` instead of what `TOPOCOLL_ALGO`, `TOPOCOLL_CHUNKS` and
    /// `TOPOCOLL_LANES` said.
    /// All ranks must do the same: where plans differ, calls fail with [`Error::Disagreement`].
    pub fn prefer(&self, wish: Wish) {
        self.core.state().plans.prefer(wish);
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.core.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.core.segment.ranks()
    }

    /// The machine that plans are made for.
    pub fn topology(&self) -> &Topology {
        &self.core.topology
    }
}

impl Core {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in a test's thread must not hide the first error behind another.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // What was started is finished first: the other ranks wait for it.
        drop(self.progress.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.core.segment.leave(self.core.rank);
    }
}

fn check_ranks(ranks: usize) -> Result<()> {
    if ranks == 0 || ranks > MAX_RANKS {
        return Err(Error::Argument(format!(
            "{ranks} ranks on one host: 1 to {MAX_RANKS} can share its memory; start one for each core or GPU"
        )));
    }
    Ok(())
}

fn staging(ranks: usize) -> usize {
    (STAGING_ALL / ranks).clamp(STAGING_LEAST, STAGING_MOST) & !4095
}

/// Where ranks outnumber cores, one that spins keeps its peer from the core.
fn patience(ranks: usize) -> Result<Patience> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let timeout: Duration = timeout()?;
    Ok(Patience { timeout, spins: if ranks <= cores { SPINS } else { 0 } })
}
