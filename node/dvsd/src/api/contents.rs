//! What is on a disk that holds no file tree, read for a backup or filled from one. A process of ours on the disk's
//! node does it, `dvs gate disk`, which gets the client's connection; the daemon starts it and buries it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::{DcId, Endpoint, Epoch};
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Response;
use broker::ServerIdentity;
use cluster::Engine;
use cluster::lease::KeptLease;
use cluster::lock::{Guard, LockError, lock};
use mgmt_api::{DcPhase, ErrorKind, Instance, ServerKind};
use rustix::fs::MemfdFlags;
use sandbox::cgroup::Cgroup;
use serde_json::{Map, json};
use sys::launch::PidNamespace;

use super::failure::{Failure, conflict, failure, no_such_disk};
use super::processes::Incoming;
use super::{Api, blocking, stream};
use crate::context::Context;
use crate::reconcile::parts::cgroup_name;
use crate::records::{self, DcRecord, DcView, Desired};
use crate::spawn::{self, Role};
use crate::state;
use crate::succession::copies;
use crate::supervise::Problem;

/// Its place among the container's uids.
const UID_SLOT: u32 = 57;
/// Of its process here; one of a container at a time.
const ROLE: &str = "copier";
/// How often it is looked whether one has ended, where the kernel does not say it.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long the one before may take to end: a backup asks for the next disk as soon as it has all of one.
const PATIENCE: Duration = Duration::from_secs(10);
/// After it somebody else has the turn of a daemon that is gone.
const TURN_LEASE: Duration = Duration::from_secs(15);

/// What the client gets, or gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Read,
    Fill,
}

/// That of a container's disks one at a time is read or filled, on whichever node: each process has an endpoint, and
/// the container has that one once. Until it is dropped.
struct Turn {
    context: Arc<Context>,
    held: Option<Held>,
}

/// The lock goes before its lease does.
type Held = (Guard, Arc<KeptLease>);

impl Drop for Turn {
    fn drop(&mut self) {
        // The engine is asked, for which nobody here can wait.
        let held = self.held.take();
        if let Err(error) = std::thread::Builder::new().name("copied".to_owned()).spawn(move || drop(held)) {
            tracing::warn!(%error, "the turn of a copier was given back in place");
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum NoTurn {
    #[error("a disk of the container is being read or filled for another backup")]
    Taken,
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Left(#[from] state::StateError),
}

/// Waits so long for the one before, and for a process that an earlier daemon here left.
fn take_turn(engine: &Arc<dyn Engine>, dc: u32, run_dir: &std::path::Path, limit: Duration) -> Result<Held, NoTurn> {
    let until = Instant::now() + limit;
    let lease = KeptLease::hold(engine, TURN_LEASE).map_err(LockError::from)?;
    let guard = lock(&lease, &format!("{ROLE}-{dc}"), limit).map_err(|refused| match refused {
        LockError::TimedOut { .. } => NoTurn::Taken,
        other => NoTurn::Lock(other),
    })?;
    if let Some(left) = state::adopt(&run_dir.join(format!("{ROLE}.json")))? {
        if !left.wait(until.saturating_duration_since(Instant::now())) {
            return Err(NoTurn::Taken);
        }
        left.bury()?;
    }
    Ok((guard, lease))
}

async fn turn(api: &Arc<Api>, view: &DcView, disk: &str) -> Result<Turn, Failure> {
    let context = Arc::clone(&api.context);
    let (id, dc, disk) = (view.record.id, view.record.spec.name.clone(), disk.to_owned());
    blocking(move || {
        let held = take_turn(&context.engine, id, &context.config.dc_run_dir(id), PATIENCE);
        let held = held.map_err(|refused| {
            let what = format!("disk '{disk}' of container '{dc}' cannot be copied now");
            match refused {
                NoTurn::Taken => conflict(what, refused.to_string(), "again, when that is done"),
                other => failure(ErrorKind::Unavailable, format!("{what}: {other}"), "dvs doctor; again"),
            }
        })?;
        Ok(Turn { context, held: Some(held) })
    })
    .await
}

pub async fn read(
    State(api): State<Arc<Api>>,
    Path((dc, disk)): Path<(String, String)>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    answer(&api, &dc, &disk, request, Way::Read).await
}

pub async fn fill(
    State(api): State<Arc<Api>>,
    Path((dc, disk)): Path<(String, String)>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    answer(&api, &dc, &disk, request, Way::Fill).await
}

async fn answer(api: &Arc<Api>, dc: &str, disk: &str, request: Request, way: Way) -> Result<Response<Body>, Failure> {
    let view = api.dc(dc).await?;
    let incoming = Incoming::take(request).await?;
    let meant = demand_possible(&view, disk, way)?.clone();
    if incoming.client.is_none() {
        let what = "what is on a disk is a stream";
        return Err(failure(ErrorKind::BadRequest, what, "the header 'Upgrade: dvs-stream'"));
    }
    if meant.node != api.context.config.node {
        return incoming.forward(api, &view, &meant.node).await;
    }
    demand_runs_here(api, &view)?;
    let turn = turn(api, &view, disk).await?;
    let Incoming { client: Some(client), holder, .. } = incoming else { return Ok(stream::switching()) };
    stream::hand_over(client, holder, move |client| {
        let stream::HandedOver { socket, pending, way: _ } = client;
        let failed = |problem: Problem| {
            let what = "the process that copies the disk does not start";
            failure(ErrorKind::Internal, format!("{what}: {problem}"), "the daemon's log; again")
        };
        // A second one, to tell the client what went wrong.
        let again = match socket.try_clone() {
            Ok(again) => again,
            Err(error) => return Err((socket, failed(error.into()))),
        };
        begin(turn, &view.record, &meant, way, (socket, pending)).map_err(|problem| (again, failed(problem)))?;
        Ok(())
    });
    Ok(stream::switching())
}

/// The tree's disk is read by who knows what is on it; one that is served is filled by its clients.
fn demand_possible<'a>(view: &'a DcView, disk: &str, way: Way) -> Result<&'a Instance, Failure> {
    let DcRecord { spec, placement, desired, .. } = &view.record;
    let dc = &spec.name;
    let found = copies::disk_named(&view.record, disk).map_err(|refused| match refused {
        copies::CopyRefusal::NoDisk { known } => no_such_disk(dc, disk, &known),
        _ => no_such_disk(dc, disk, &[]),
    })?;
    let refused = |why: &str, hint: String| {
        Err(conflict(format!("disk '{disk}' of container '{dc}' cannot be copied"), why, hint))
    };
    if found.index == 0 {
        return refused("the file tree is on it", format!("dvs dc backup {dc} FILE has all files"));
    }
    if *desired != Desired::Running {
        return refused("the container does not run", format!("dvs start {dc}"));
    }
    if way == Way::Fill && placement.first(&ServerKind::NBD).is_some() {
        return refused("clients of NBD may write to it", format!("dvs disk unexport {dc}"));
    }
    Ok(found)
}

fn demand_runs_here(api: &Api, view: &DcView) -> Result<(), Failure> {
    let share = view.shares.get(&api.context.config.node);
    match share.is_some_and(|share| share.share.phase == DcPhase::Running) {
        true => Ok(()),
        false => {
            let (dc, node) = (&view.record.spec.name, &api.context.config.node);
            let what = format!("container '{dc}' does not run on {node} yet");
            Err(failure(ErrorKind::Unavailable, what, format!("dvs dc inspect {dc}; again")))
        }
    }
}

/// Starts the process, and a thread that waits for its end.
fn begin(
    turn: Turn,
    record: &DcRecord,
    disk: &Instance,
    way: Way,
    (client, early): (OwnedFd, Vec<u8>),
) -> Result<(), Problem> {
    let dc = &record.id;
    let context = Arc::clone(&turn.context);
    // Only its owner changes a disk; who owns those without a tree stands nowhere now.
    let endpoint = if way == Way::Fill { Endpoint::NBD } else { Endpoint::COPIER };
    let key = format!("/epochs/{dc}/{endpoint}");
    let engine = &*context.engine;
    let known = records::read::<u64>(engine, &key)?;
    let is_there = |now: &DcRecord| {
        let is_it = |one: &Instance| (&one.kind, one.index, &one.node) == (&disk.kind, disk.index, &disk.node);
        let is_free = way == Way::Read || now.placement.first(&ServerKind::NBD).is_none();
        now.id == *dc && is_free && now.placement.instances.iter().any(is_it)
    };
    let epoch = records::raise_where_placed(engine, &key, known, &record.spec.name, is_there)?;
    let epoch = epoch.ok_or("the container is not as it was a moment ago")?;
    let broker = context.broker.server_socket(DcId(*dc), ServerIdentity::new(endpoint, Epoch(epoch)))?;
    let mut kept = File::from(rustix::fs::memfd_create("early", MemfdFlags::CLOEXEC)?);
    kept.write_all(&early)?;
    kept.rewind()?;
    let fields = Map::from_iter([
        ("dc".to_owned(), json!(dc)),
        ("dc_name".to_owned(), json!(record.spec.name)),
        ("node".to_owned(), json!(context.config.node)),
        ("endpoint".to_owned(), json!(endpoint.number())),
        // The next gate has a later one.
        ("placement_epoch".to_owned(), json!(record.generation)),
    ]);
    let mut fds = BTreeMap::from([("client".to_owned(), client), ("early".to_owned(), kept.into())]);
    if way == Way::Read {
        // Its name goes at once, it goes with the process.
        let path = context.config.dc_state_dir(*dc).join("images").join("copier.spill");
        let mut how = File::options();
        let spill = how.read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        fds.insert("spill".to_owned(), spill.into());
    }
    let role = Role {
        name: ROLE.to_owned(),
        program: None,
        arguments: vec!["gate", "disk"],
        fields,
        options: json!({ "disk": disk.endpoint, "fill": u64::from(way == Way::Fill) }),
        broker: Some(broker),
        fds,
        uid: Some(crate::uids::server(*dc, UID_SLOT)),
        environment: Vec::new(),
        cpus: record.spec.limits.cpus.as_deref().and_then(crate::spec::cpu_set),
        pid_namespace: PidNamespace::Own,
        group: Some(Cgroup::ensure(&cgroup_name(&context.config, *dc), &record.spec.limits)?),
        epoch,
        restarts: 0,
        serving: None,
    };
    let logs = context.config.dc_state_dir(*dc).join("log");
    let started = spawn::start(role, &context.config.dc_run_dir(*dc), &logs)?;
    std::thread::Builder::new().name("copier".to_owned()).spawn(move || {
        while !started.child.wait(LOOK_EVERY) {}
        if let Err(error) = started.child.bury() {
            tracing::warn!(%error, "cannot put the record of a copier away");
        }
        drop(turn);
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use cluster::local::{LocalConfig, LocalEngine};

    use super::*;

    #[test]
    fn who_comes_while_a_disk_is_copied_waits_a_while_and_then_is_refused() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine: Arc<dyn Engine> = Arc::new(LocalEngine::open(config).expect("the engine opens"));
        let take = |dc, ms| take_turn(&engine, dc, dir.path(), Duration::from_millis(ms));
        let first = take(7, 0).expect("it is free");
        assert!(matches!(take(7, 20), Err(NoTurn::Taken)));
        take(8, 0).expect("another container");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| take(7, 30_000).map(drop));
            drop(first);
            next.join().expect("joined").expect("the first one has ended");
        });
        take(7, 0).expect("nobody has it");
    }

    #[test]
    fn what_an_earlier_daemon_left_is_waited_for() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine: Arc<dyn Engine> = Arc::new(LocalEngine::open(config).expect("the engine opens"));
        let mut left = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        let pid = i32::try_from(left.id()).expect("a pid");
        let record = state::ChildRecord {
            role: ROLE.to_owned(),
            pid,
            start_ticks: sys::pidfd::start_ticks(pid).expect("it runs"),
            boot: state::boot_id(),
            epoch: 1,
            ready: true,
            restarts: 0,
            serving: None,
        };
        state::write(&dir.path().join("copier.json"), &record).expect("written");
        assert!(matches!(take_turn(&engine, 7, dir.path(), Duration::from_millis(20)), Err(NoTurn::Taken)));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| take_turn(&engine, 7, dir.path(), Duration::from_secs(30)).map(drop));
            left.kill().expect("killed");
            next.join().expect("joined").expect("it has ended");
        });
        let _ = left.wait();
        assert!(!dir.path().join("copier.json").exists());
    }
}
