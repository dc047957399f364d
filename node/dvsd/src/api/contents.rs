//! What is on a disk that holds no file tree, read for a backup or filled from one. A process of ours on the disk's
//! node does it, `dvs gate disk`, which gets the client's connection; the daemon starts it and buries it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use abi::{DcId, Endpoint, Epoch};
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Response;
use broker::ServerIdentity;
use mgmt_api::{DcPhase, ErrorKind, Instance, ServerKind};
use parking_lot::Mutex;
use rustix::fs::MemfdFlags;
use sandbox::cgroup::Cgroup;
use serde_json::{Map, json};
use sys::launch::PidNamespace;

use super::failure::{Failure, conflict, failure, no_such_disk};
use super::processes::Incoming;
use super::{Api, stream};
use crate::reconcile::parts::cgroup_name;
use crate::records::{self, DcRecord, DcView, Desired};
use crate::spawn::{self, Role};
use crate::succession::copies;
use crate::supervise::Problem;

/// Its place among the container's uids.
const UID_SLOT: u32 = 57;
/// How often it is looked whether one has ended, where the kernel does not say it.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// What the client gets, or gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Read,
    Fill,
}

/// Containers of which a disk is being read or filled here: each process has an endpoint that is there once.
#[derive(Default)]
pub struct Copying(Mutex<BTreeSet<u32>>);

/// One of them, until it is dropped.
struct Turn {
    api: Arc<Api>,
    dc: u32,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.api.copying.0.lock().remove(&self.dc);
    }
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
    if !api.copying.0.lock().insert(view.record.id) {
        return Err(conflict(
            format!("disk '{disk}' of container '{dc}' cannot be copied now"),
            "a disk of the container is being read or filled for another backup",
            "again, when that is done",
        ));
    }
    let turn = Turn { api: Arc::clone(api), dc: view.record.id };
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
    let dc = &turn.dc;
    let context = Arc::clone(&turn.api.context);
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
        name: "copier".to_owned(),
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
