//! Rank, size and job from the environment that a launcher sets.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::{Error, Result};

/// A process's place among the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// This process, from 0.
    pub rank: usize,
    /// How many processes.
    pub size: usize,
    /// How many of them are on this host, where the launcher says.
    pub local_size: Option<usize>,
    /// Which launcher's variables were found.
    pub launcher: &'static str,
    /// Names the job on this host: the same for all its ranks, different from every other job's.
    pub job: String,
}

struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    local_size: &'static str,
    /// The first that is set names the job; all of a group must be.
    job: &'static [&'static str],
}

/// In order: what was started last, and so is closest to this process, comes first. Slurm's variables are inherited
/// by everything inside a job, so it comes last.
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: "topocoll",
        rank: "TOPOCOLL_RANK",
        size: "TOPOCOLL_SIZE",
        local_size: "TOPOCOLL_LOCAL_SIZE",
        job: &["TOPOCOLL_JOB"],
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        local_size: "LOCAL_WORLD_SIZE",
        job: &["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Launcher { name: "MPICH", rank: "PMI_RANK", size: "PMI_SIZE", local_size: "MPI_LOCALNRANKS", job: &[] },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_size: "",
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

impl World {
    /// From this process's environment.
    ///
    /// # Errors
    /// [`Error::Environment`] where no launcher's variables are set, or they make no sense.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let found = LAUNCHERS.iter().find(|l| get(l.rank).is_some() && get(l.size).is_some());
        let Some(l) = found else {
            if let Some(half) = LAUNCHERS.iter().find(|l| get(l.rank).is_some() != get(l.size).is_some()) {
                let (set, unset) =
                    if get(half.rank).is_some() { (half.rank, half.size) } else { (half.size, half.rank) };
                return Err(Error::Environment(format!("{set} is set and {unset} is not; {} sets both", half.name)));
            }
            return Err(Error::Environment(
                "no launcher's variables found; start the ranks with torchrun, mpirun, mpiexec or srun, or set \
                 TOPOCOLL_RANK, TOPOCOLL_SIZE and TOPOCOLL_JOB (one word, the same for all ranks) in each"
                    .into(),
            ));
        };
        let number = |name: &str| number(name, get(name));
        let (rank, size) = (number(l.rank)?.unwrap_or(0), number(l.size)?.unwrap_or(0));
        if size == 0 {
            return Err(Error::Environment(format!("{}=0: at least one rank is needed", l.size)));
        }
        if rank >= size {
            return Err(Error::Environment(format!(
                "{}={rank}, and {}={size}: ranks are 0 to {}",
                l.rank,
                l.size,
                size - 1
            )));
        }
        let local_size = if l.local_size.is_empty() { None } else { number(l.local_size)? };
        let mut words: Vec<String> = Vec::new();
        if let Some(job) = get("TOPOCOLL_JOB") {
            words.push(job);
        } else {
            words.extend(l.job.iter().filter_map(|name| get(name)));
        }
        if words.is_empty() {
            words.push(launcher_process());
        }
        Ok(Self { rank, size, local_size, launcher: l.name, job: format!("{} {}", l.name, words.join(" ")) })
    }
}

fn number(name: &str, value: Option<String>) -> Result<Option<usize>> {
    let Some(value) = value else { return Ok(None) };
    let parsed = usize::from_str(value.trim());
    parsed.map(Some).map_err(|_| Error::Environment(format!("{name}={value:?}: a whole number is expected")))
}

/// Names the process that started the ranks of this host: the nearest ancestor that looks like a launcher's proxy
/// (hydra_pmi_proxy and its like may have started a shell in between), else the parent.
fn launcher_process() -> String {
    let mut pid = rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get());
    let parent = pid;
    for _ in 0..16 {
        let Some((name, above)) = stat(pid) else { break };
        if name.contains("proxy") || name.contains("mpiexec") || name.contains("mpirun") {
            return format!("pid {pid}");
        }
        pid = above;
    }
    format!("pid {parent}")
}

/// Command name and parent of a process.
fn stat(pid: i32) -> Option<(String, i32)> {
    let text = std::fs::read_to_string(PathBuf::from(format!("/proc/{pid}/stat"))).ok()?;
    let (head, tail) = text.rsplit_once(')')?;
    let parent = tail.split_whitespace().nth(1)?.parse().ok()?;
    Some((head.split_once('(')?.1.to_string(), parent))
}

/// A duration in seconds from `TOPOCOLL_TIMEOUT`; 30 s where it is not set.
///
/// # Errors
/// [`Error::Environment`] where it is no positive number.
pub(crate) fn timeout() -> Result<Duration> {
    let Ok(text) = std::env::var("TOPOCOLL_TIMEOUT") else { return Ok(Duration::from_secs(30)) };
    let seconds = text.trim().parse::<f64>().ok().filter(|s| *s > 0.0);
    let duration = seconds.and_then(|s| Duration::try_from_secs_f64(s.min(1e9)).ok());
    duration.ok_or_else(|| {
        Error::Environment(format!("TOPOCOLL_TIMEOUT={text:?}: a number of seconds above 0 is expected"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(vars: &[(&str, &str)]) -> Result<World> {
        World::from_lookup(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn each_launcher_is_understood() {
        let cases: [(&str, &[(&str, &str)]); 5] = [
            ("topocoll", &[("TOPOCOLL_RANK", "1"), ("TOPOCOLL_SIZE", "4"), ("TOPOCOLL_JOB", "x")]),
            ("torchrun", &[("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4"), ("MASTER_PORT", "29500")]),
            ("Open MPI", &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_NAMESPACE", "9")]),
            ("MPICH", &[("PMI_RANK", "1"), ("PMI_SIZE", "4")]),
            ("Slurm", &[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7")]),
        ];
        for (launcher, vars) in cases {
            let w = world(vars).unwrap();
            assert_eq!((w.rank, w.size, w.launcher), (1, 4, launcher));
        }
    }

    #[test]
    fn torchrun_inside_slurm_is_torchrun() {
        let w = world(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("RANK", "3"), ("WORLD_SIZE", "8")]).unwrap();
        assert_eq!((w.rank, w.size, w.launcher), (3, 8, "torchrun"));
    }

    #[test]
    fn nonsense_is_named() {
        for (vars, word) in [
            (&[("RANK", "x"), ("WORLD_SIZE", "2")][..], "RANK=\"x\""),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")][..], "ranks are 0 to 1"),
            (&[("RANK", "0"), ("WORLD_SIZE", "0")][..], "WORLD_SIZE=0"),
            (&[("RANK", "0")][..], "WORLD_SIZE is not"),
            (&[][..], "torchrun"),
        ] {
            let text = world(vars).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }
}
