//! Where the two processes of a pair run.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::Outcome;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Both on one CPU.
    Same,
    /// Each on a CPU of its own.
    Two,
    /// Where the scheduler puts them.
    Free,
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Placement::Same => "same",
            Placement::Two => "two",
            Placement::Free => "free",
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Side {
    Client,
    Server,
}

/// CPUs this process may use.
pub fn cpus() -> Outcome<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// Which CPU a side keeps to; `None` for any.
pub fn cpu_of(placement: Placement, side: Side, cpus: &[usize]) -> Outcome<Option<usize>> {
    let index = match (placement, side) {
        (Placement::Free, _) => return Ok(None),
        (Placement::Two, Side::Server) => 1,
        (Placement::Same | Placement::Two, _) => 0,
    };
    let cpu = cpus.get(index).ok_or("two CPUs are needed for the placement 'two'")?;
    Ok(Some(*cpu))
}

pub fn keep_to(cpu: usize) -> Outcome<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| format!("cannot keep to CPU {cpu}: {error}").into())
}
