//! The shelf of the node (`broker::shelf`): the process that holds what the broker needs after a daemon was killed.
//!
//! Both halves: the process itself ([`serve_from_spawn`]), and the daemon's care for it. A daemon finds the shelf of
//! its predecessor by its record, takes everything from it, and starts a new one when it dies; the broker then puts
//! everything there again. Only when daemon and shelf die at the same time nothing is taken over: then servers are
//! replaced.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use broker::{Broker, Shelf};
use serde_json::{Map, json};
use sys::harden::{Identity, give_up_privileges, restrict_system_calls};
use sys::launch::PidNamespace;
use sys::spawn::Spawn;

use crate::config::Config;
use crate::context::Context;
use crate::descriptors;
use crate::reconcile::plan::Standing;
use crate::spawn::Role;
use crate::state::StateError;
use crate::supervise::{OnAdoption, Problem, Supervised, Watching};
use crate::waiting;

const NAME: &str = "shelf";
/// A program that does nothing first.
const START_LIMIT: Duration = Duration::from_secs(10);
/// It has nothing to finish.
const GRACE: Duration = Duration::ZERO;
/// Logs are looked after so often.
const IDLE: Duration = Duration::from_secs(30);
/// A daemon at a time, and one that waits for it to end.
const BACKLOG: i32 = 8;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the shelf of an earlier daemon cannot be looked for")]
    Earlier(#[from] StateError),
    #[error("the shelf did not start: {0}")]
    NotReady(String),
    #[error("the shelf does not answer")]
    Silent(#[from] broker::ShelfError),
}

/// The process, in the daemon's care.
pub struct Shelving {
    process: Supervised,
    socket: PathBuf,
    cluster: String,
    node: String,
}

impl Shelving {
    /// The shelf with all that an earlier daemon left there, or a new one.
    pub fn open(config: &Config) -> Result<(Shelving, Shelf), StartError> {
        let log_dir = config.state_dir.join("log");
        let process = Supervised::adopt(NAME, &config.run_dir, &log_dir, OnAdoption::GoesOn)?;
        let socket = config.run_dir.join("shelf.sock");
        let (cluster, node) = (config.cluster.clone(), config.node.clone());
        let mut shelving = Shelving { process, socket, cluster, node };
        if shelving.process.standing() == Standing::Ready {
            match Shelf::connect(&shelving.socket) {
                Ok(shelf) => return Ok((shelving, shelf)),
                Err(error) => tracing::error!(%error, "nothing can be taken from the shelf; servers are replaced"),
            }
        }
        shelving.process.end(GRACE)?;
        let shelf = shelving.start()?;
        Ok((shelving, shelf))
    }

    /// Looks after the process from now on.
    pub fn watch(self, context: &Arc<Context>) -> std::io::Result<Watching> {
        let context = Arc::clone(context);
        Watching::start(NAME, move |stop, bell| self.run(stop, bell, &context.broker))
    }

    fn run(mut self, stop: &AtomicBool, bell: &OwnedFd, broker: &Broker) {
        while !stop.load(Ordering::SeqCst) {
            self.process.look(Instant::now());
            if self.process.standing() == Standing::Absent {
                let changed = self.start().map_err(Problem::from).and_then(|shelf| Ok(broker.change_shelf(shelf)?));
                if let Err(error) = changed {
                    tracing::error!(error = crate::supervise::causes(&*error), "there is no shelf");
                    let _ = self.process.end(GRACE);
                }
            }
            let due = self.process.due().unwrap_or_else(|| Instant::now() + IDLE);
            waiting::until_readable(self.process.descriptors().chain([bell.as_fd()]), due);
            crate::spawn::bound_log(&self.process.log_path());
        }
    }

    /// Starts it and waits until it serves.
    fn start(&mut self) -> Result<Shelf, StartError> {
        let (socket, cluster, node) = (&self.socket, &self.cluster, &self.node);
        self.process.start(|restarts| role(socket, cluster, node, restarts));
        let until = Instant::now() + START_LIMIT;
        while self.process.standing() == Standing::Coming && Instant::now() < until {
            waiting::until_readable(self.process.descriptors(), until);
            self.process.look(Instant::now());
        }
        if self.process.standing() != Standing::Ready {
            let problem = self.process.problem().unwrap_or("it takes too long").to_owned();
            return Err(StartError::NotReady(problem));
        }
        Ok(Shelf::connect(&self.socket)?)
    }
}

fn role(socket: &Path, cluster: &str, node: &str, restarts: u64) -> Result<Role, Problem> {
    let listener = sys::seqpacket::listen(socket, BACKLOG)?;
    // What lies there is as good as root.
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(Role {
        name: NAME.to_owned(),
        program: None,
        arguments: vec!["shelf"],
        fields: Map::from_iter([("cluster".to_owned(), json!(cluster)), ("node".to_owned(), json!(node))]),
        options: json!({}),
        broker: None,
        fds: BTreeMap::from([("listen".to_owned(), listener)]),
        uid: Some(crate::uids::SHELF),
        environment: Vec::new(),
        cpus: None,
        pid_namespace: PidNamespace::Own,
        group: None,
        epoch: restarts + 1,
        restarts,
        serving: None,
    })
}

/// The process itself, as started by the daemon.
pub fn serve_from_spawn() -> Result<(), Problem> {
    let mut spawn = Spawn::from_env()?;
    let listener = spawn.take_fd("listen").ok_or("the spawn record lacks the listening socket")?;
    descriptors::allow_most()?;
    give_up_privileges(Identity { uid: spawn.uid, gid: spawn.gid })?;
    restrict_system_calls(&[libc::SYS_accept4])?;
    spawn.ready();
    Ok(broker::shelf::serve(listener)?)
}
