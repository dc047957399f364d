//! One node of a cluster: pull its plug, pull its wire, start it again.

use std::time::{Duration, Instant};

use client::{DevCluster, Places};
use rustix::process::Signal;

use super::down::{self, DownError};
use super::network::{self, Wire, WireError};
use super::processes;
use super::up::{self, UpError};

/// A daemon that is told to end only closes its sockets.
const TERM_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("node {name} was not switched off")]
    Off {
        name: String,
        #[source]
        source: DownError,
    },
    #[error("the wire of node {name} was not changed")]
    Wire {
        name: String,
        #[source]
        source: WireError,
    },
    #[error("the daemon of {name} does not end")]
    Daemon { name: String },
    #[error("node {name} did not start again")]
    Start {
        name: String,
        #[source]
        source: Box<UpError>,
    },
}

/// As a machine dies: first nobody hears of it any more, then it is gone.
pub fn kill(places: &Places, cluster: &DevCluster, index: usize) -> Result<(), NodeError> {
    set_wire(cluster, index, Wire::Pulled)?;
    let Some(node) = cluster.nodes.get(index) else { return Ok(()) };
    down::power_off(places, cluster, node).map_err(|source| NodeError::Off { name: node.name.clone(), source })
}

pub fn set_wire(cluster: &DevCluster, index: usize, wire: Wire) -> Result<(), NodeError> {
    let (Some(hub), Some(node)) = (cluster.hub, cluster.nodes.get(index)) else { return Ok(()) };
    network::set_wire(hub, index, wire).map_err(|source| NodeError::Wire { name: node.name.clone(), source })
}

/// Starts what does not run: the daemon, or the whole machine when it was killed. A daemon that runs is ended first.
pub fn restart(places: &Places, cluster: &mut DevCluster, index: usize, patience: Duration) -> Result<(), NodeError> {
    let Some(node) = cluster.nodes.get(index).cloned() else { return Ok(()) };
    let failed = |source| NodeError::Start { name: node.name.clone(), source: Box::new(source) };
    if let Some(daemon) = node.daemon {
        let ended = processes::end(daemon, Signal::TERM, TERM_LIMIT).unwrap_or(false)
            || processes::end(daemon, Signal::KILL, TERM_LIMIT).unwrap_or(false);
        if !ended {
            return Err(NodeError::Daemon { name: node.name.clone() });
        }
    }
    if !node.machine.is_some_and(processes::is_alive) {
        down::power_off(places, cluster, &node).map_err(|source| NodeError::Off { name: node.name.clone(), source })?;
        up::start_machine(places, cluster, index).map_err(failed)?;
    }
    if cluster.is_bare {
        return Ok(());
    }
    up::start_daemon(places, cluster, index).map_err(failed)?;
    let alone = DevCluster { nodes: cluster.nodes.iter().skip(index).take(1).cloned().collect(), ..cluster.clone() };
    up::await_ready(&alone, Instant::now() + patience, patience).map_err(failed)
}
