//! Containers: what should be, and waiting until it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use abi::limits::DCS_PER_CLUSTER;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use broker::BrokerError;
use cluster::allocate::{self, AllocateError, Choice};
use cluster::{Compare, Engine, EngineError, Listing, Op, Outcome, listed};
use ipc::info;
use mgmt_api::{
    ChannelCounts, ChannelInfo, ChannelKind, Dc, DcPhase, DcSpec, EndCounts, ErrorBody, ErrorKind, NodeShare, Placement,
};
use serde::Deserialize;

use super::failure::{Failure, failure, no_such_dc};
use super::gate::Caller;
use super::inhabitants::{container_of, without_the_node};
use super::tree::Sight;
use super::{Api, blocking, changes, nodes, parse, phase, read_body, spans};
use crate::farewell::{self, Ending};
use crate::kinds;
use crate::ledger::{self, Booking, Change, Resource, Shortage};
use crate::level;
use crate::placer;
use crate::reconcile::share::Share;
use crate::records::{self, DcRecord, DcView, Desired, GoBack, Images, NodeHealth, NodeRecord, NodeWish, ShareRecord};
use crate::services;
use crate::space;
use crate::spec;
use crate::succession;
use crate::uids::DC_ID_MAX;
use crate::volumes;

/// Making namespaces, network and servers on all nodes takes a second; a large volume after a crash some more.
pub const START_LIMIT: Duration = Duration::from_secs(60);
/// Beyond the grace of programs: three stages, each of which may wait for a silent node.
pub const STOP_LIMIT: Duration = Duration::from_secs(90);
/// Numbers of containers.
const IDS: &str = "dc";
const GRACE_DEFAULT_MS: u64 = 10_000;
const GRACE_MAX_MS: u64 = 3_600_000;
/// Of somebody who makes a container while many others do; each time one of them has made progress.
const ATTEMPTS: usize = 1000;
/// Between looks when no change is announced: a node may have gone silent.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
pub struct CreateQuery {
    #[serde(default)]
    start: bool,
}

#[derive(Deserialize)]
pub struct StartQuery {
    /// As its tree was for it.
    snapshot: Option<String>,
}

#[derive(Deserialize)]
pub struct StopQuery {
    grace_ms: Option<u64>,
}

#[derive(Deserialize)]
pub struct DeleteQuery {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    keep_data: bool,
}

pub async fn list(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>) -> Result<Json<Vec<Dc>>, Failure> {
    match container_of(&caller) {
        Some(own) => Ok(Json(vec![without_the_node(one(&api, own).await?)])),
        None => Ok(Json(all(&api).await?)),
    }
}

pub async fn all(api: &Arc<Api>) -> Result<Vec<Dc>, Failure> {
    let unreachable = nodes::unreachable(&api.context);
    let full = api.full_nodes().await;
    Ok(api.dcs().await?.values().map(|view| describe(view, &unreachable, &full)).collect())
}

/// One alone, without what its nodes say of their space.
pub async fn one(api: &Arc<Api>, dc: &str) -> Result<Dc, Failure> {
    Ok(api.describe(&api.dc(dc).await?))
}

pub async fn show(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(dc): Path<String>,
) -> Result<Json<Dc>, Failure> {
    let is_inside = caller.inhabitant.is_some();
    let full = if is_inside { BTreeMap::new() } else { api.full_nodes().await };
    let view = api.dc(&dc).await?;
    let mut found = describe(&view, &nodes::unreachable(&api.context), &full);
    let (also, record) = (Arc::clone(&api), view.record.clone());
    let look = move || {
        let answers = &also.context.answers;
        Ok((services::record::views(answers, record.id)?, succession::copies(answers, &record)?))
    };
    let (described, copies) = blocking(look).await?;
    found.spec.services = described.into_values().map(|service| service.record.spec).collect();
    found.copies = copies;
    let sight = blocking(move || Ok((Sight::of(&api.context)?, view))).await;
    if let Ok((sight, view)) = sight {
        for share in &mut found.shares {
            share.problems.extend(sight.tree_waits(&view, &share.node));
        }
    }
    Ok(Json(if is_inside { without_the_node(found) } else { found }))
}

pub async fn create(
    State(api): State<Arc<Api>>,
    Query(query): Query<CreateQuery>,
    body: Body,
) -> Result<(StatusCode, Json<Dc>), Failure> {
    let spec: DcSpec = parse(&read_body(body).await?)?;
    let name = spec.name.clone();
    let desired = if query.start { Desired::Running } else { Desired::Stopped { grace_ms: 0 } };
    let also = Arc::clone(&api);
    let (spec, decision) = blocking(move || Ok((spec.clone(), decide(&*also.context.engine, &spec, desired)?))).await?;
    let blame = |Failure(full)| blame_usual_copies(&spec, &decision.spec, full);
    demand_space(&api, &name, &decision.placement).await.map_err(blame)?;
    let also = Arc::clone(&api);
    let view = blocking(move || write_record(&*also.context.engine, &spec, desired, decision)).await?;
    if !query.start {
        return Ok((StatusCode::CREATED, Json(api.describe(&view))));
    }
    match await_start(&api, &view).await {
        Ok(dc) => Ok((StatusCode::CREATED, Json(dc))),
        Err(failed) => {
            take_back(&api, &view).await;
            Err(failed)
        }
    }
}

/// What was made a moment ago and did not start is not left behind: it never held anything, and its name is wanted for
/// the next try.
async fn take_back(api: &Arc<Api>, made: &DcView) {
    let name = &made.record.spec.name;
    let is_ours = api.dc(name).await.is_ok_and(|view| view.record.id == made.record.id);
    if is_ours && let Err(left) = delete_and_wait(api, name, Images::Remove).await {
        tracing::warn!(dc = %name, why = %left.0, "a container that did not start is not yet deleted");
    }
}

pub async fn start(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    Query(query): Query<StartQuery>,
) -> Result<Json<Dc>, Failure> {
    Ok(Json(start_and_wait(&api, &dc, query.snapshot).await?))
}

pub async fn stop(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    Query(query): Query<StopQuery>,
) -> Result<Json<Dc>, Failure> {
    let grace_ms = query.grace_ms.unwrap_or(GRACE_DEFAULT_MS).min(GRACE_MAX_MS);
    let limit = STOP_LIMIT + Duration::from_millis(grace_ms);
    Ok(Json(stop_and_wait(&api, &dc, grace_ms, limit).await?))
}

pub async fn pause(State(api): State<Arc<Api>>, Path(dc): Path<String>) -> Result<Json<Dc>, Failure> {
    Ok(Json(changes::pause(&api, &dc, true).await?))
}

pub async fn unpause(State(api): State<Arc<Api>>, Path(dc): Path<String>) -> Result<Json<Dc>, Failure> {
    Ok(Json(changes::pause(&api, &dc, false).await?))
}

pub async fn delete(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode, Failure> {
    let view = api.dc(&dc).await?;
    if phase(&view) != DcPhase::Stopped && !query.force && !matches!(view.record.desired, Desired::Deleted { .. }) {
        let hint = format!("dvs dc stop {dc}, or dvs dc delete --force {dc}");
        return Err(ErrorBody::new(ErrorKind::Conflict, format!("container '{dc}' is not stopped")).hint(hint).into());
    }
    let images = if query.keep_data { Images::Keep } else { Images::Remove };
    if images == Images::Keep {
        // A node that returns to find a container deleted removes what it has of it.
        demand_all_alive(&api, &view, "cannot be deleted with its data kept").await?;
    }
    delete_and_wait(&api, &dc, images).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn delete_and_wait(api: &Arc<Api>, dc: &str, images: Images) -> Result<(), Failure> {
    let view = wish(api, dc, Desired::Deleted { images }).await?;
    let everywhere_gone =
        wait_until(api, &view, STOP_LIMIT, |view, alive| match farewell::first_with_remains(view, alive) {
            None => Progress::Done,
            Some(node) => Progress::Waiting(format!("node {node} still has a part of it")),
        })
        .await?;
    if let Some(view) = everywhere_gone {
        let api = Arc::clone(api);
        blocking(move || forget(&*api.context.engine, view)).await?;
    }
    Ok(())
}

/// Whoever is told that a container is deleted may make another one of that name at once.
fn forget(engine: &dyn Engine, mut view: DcView) -> Result<(), Failure> {
    for _ in 0..ATTEMPTS {
        match farewell::forget(engine, &view)? {
            Ending::Gone => return Ok(()),
            Ending::Contended(now) => view = *now,
        }
    }
    Err(failure(ErrorKind::Unavailable, format!("others were faster {ATTEMPTS} times"), "again"))
}

pub async fn channels(State(api): State<Arc<Api>>, Path(dc): Path<String>) -> Result<Json<Vec<ChannelInfo>>, Failure> {
    let id = api.dc(&dc).await?.record.id;
    let channels = blocking(move || {
        let nodes = api.context.members.read().clone();
        match api.context.broker.channels(abi::DcId(id)) {
            Ok(channels) => Ok((channels, nodes)),
            // It has no part here.
            Err(BrokerError::NoSuchDc(_)) => Ok((Vec::new(), nodes)),
            Err(error) => Err(failure(ErrorKind::Unavailable, error.to_string(), "again")),
        }
    });
    let (channels, nodes) = channels.await?;
    let name = |id: abi::NodeId| {
        nodes.values().find(|node| node.id == id.0).map_or_else(|| format!("node {id}"), |node| node.name.clone())
    };
    Ok(Json(channels.iter().map(|channel| describe_channel(channel, name)).collect()))
}

fn describe_channel(channel: &info::ChannelInfo, name: impl Fn(abi::NodeId) -> String) -> ChannelInfo {
    let kind = match channel.kind() {
        info::ChannelKind::Messages => ChannelKind::Messages,
        info::ChannelKind::Ring => ChannelKind::Ring,
        info::ChannelKind::Delegation => ChannelKind::Delegation,
        info::ChannelKind::Copies => ChannelKind::Copies,
    };
    let end = |counts: info::EndCounts| EndCounts {
        messages: counts.messages,
        notifications: counts.notifications,
        entries: counts.entries,
        awaits_answer: counts.awaits_answer,
    };
    ChannelInfo {
        left: channel.left.number(),
        right: channel.right.number(),
        lane: channel.lane.0,
        kind,
        via: channel.via.map_or_else(|| "local".to_owned(), |(node, _)| name(node)),
        counts: channel.counts.map(|[left, right]| ChannelCounts { left: end(left), right: end(right) }),
    }
}

impl Api {
    pub fn describe(&self, view: &DcView) -> Dc {
        describe(view, &nodes::unreachable(&self.context), &BTreeMap::new())
    }

    /// Nodes without space, and what they say of it.
    async fn full_nodes(self: &Arc<Api>) -> BTreeMap<String, String> {
        let api = Arc::clone(self);
        let alive = blocking(move || Ok(nodes::alive(&api.context)?)).await.unwrap_or_default();
        let full = alive.into_iter().filter_map(|(node, health)| {
            let problem = health.problems.into_iter().find(|problem| problem.starts_with(space::FULL))?;
            Some((node, problem))
        });
        full.collect()
    }
}

/// What the nodes report, and what this node sees: a share that runs where nobody gets to is of little use.
fn describe(view: &DcView, unreachable: &BTreeSet<String>, full: &BTreeMap<String, String>) -> Dc {
    // A node that was taken out ends what it has, and is none of the container's any more.
    let of_its_nodes = view.shares.iter().filter(|(node, _)| view.record.spec.nodes.contains(*node));
    let mut shares: Vec<NodeShare> = of_its_nodes.map(|(_, share)| share.share.clone()).collect();
    let mut phase = phase(view);
    if view.record.desired == Desired::Running {
        shares.extend(silent_shares(view));
        shares.sort_by_key(|share| view.record.spec.nodes.iter().position(|node| *node == share.node));
    }
    for share in &mut shares {
        let is_cut_off = unreachable.contains(&share.node);
        let silence = is_cut_off.then_some("the node that was asked has no link to it; this is what it reported last");
        let seen: Vec<String> = full.get(&share.node).cloned().into_iter().chain(silence.map(str::to_owned)).collect();
        if seen.is_empty() {
            continue;
        }
        share.problems.extend(seen);
        for phase in [&mut share.phase, &mut phase] {
            if *phase == DcPhase::Running {
                *phase = DcPhase::Degraded;
            }
        }
    }
    let DcRecord { id, spec, placement, paused, generation, created_s, .. } = view.record.clone();
    Dc { id, spec, placement, phase, paused, shares, generation, created_s, copies: Vec::new() }
}

/// What there should be on nodes whose daemons report nothing: they are down, or were just asked to.
fn silent_shares(view: &DcView) -> impl Iterator<Item = NodeShare> {
    let silent = view.record.spec.nodes.iter().filter(|node| !view.shares.contains_key(*node));
    silent.filter_map(|node| {
        let share = Share::of(&view.record, node)?;
        Some(NodeShare {
            node: node.clone(),
            phase: DcPhase::Degraded,
            address: share.address.to_string(),
            address_ipv6: None,
            pid_base: share.pid_base,
            endpoints: share.endpoints.clone(),
            servers: share.parts.iter().filter_map(|part| share.status(part)).collect(),
            ports: Vec::new(),
            problems: vec![
                "its daemon reports nothing: it is down, and with it perhaps the node; see dvs node ls".to_owned(),
            ],
        })
    })
}

// ---- records

/// What was decided from a description, and what must not have changed when it is written.
struct Decision {
    /// The description with what was decided for good.
    spec: DcSpec,
    placement: Placement,
    booking: Booking,
    number: Choice,
}

/// Who asked for no copies is told that they are why there is too little space, and how to go without.
pub fn blame_usual_copies(asked: &DcSpec, spec: &DcSpec, full: ErrorBody) -> ErrorBody {
    let asked = placer::disks(asked);
    let are_usual = asked.iter().zip(&spec.disks).any(|(asked, is)| asked.replicas.is_none() && is.is_replicated());
    if are_usual { blame_copies(full) } else { full }
}

/// Likewise, where they are known to be why.
pub fn blame_copies(full: ErrorBody) -> ErrorBody {
    let hint = format!("--replicas 1 (one copy, lost with its node), {}", full.hint.clone().unwrap_or_default());
    full.because("each disk has copies on two nodes, as nobody says otherwise").hint(hint)
}

/// All that is needed is one question to the engine.
fn decide(engine: &dyn Engine, spec: &DcSpec, desired: Desired) -> Result<Decision, Failure> {
    let [capacity, promised] = ledger::ACCOUNTS;
    let ids = allocate::prefixes(IDS, &spec.name);
    let [of, last, used] = ids.each_ref().map(String::as_str);
    let format = records::FORMAT_KEY;
    let all = [records::NODES, records::MEMBERS, records::NODE_WISHES, format, capacity, promised, of, last, used];
    let [living, members, wishes, format, capacity, promised, ids @ ..] = listed(engine, all)?;
    if desired == Desired::Running {
        demand_listed_alive(&spec.name, &spec.nodes, "cannot start", [&living, &members])?;
    }
    let mut known = spec::KnownNodes::new();
    let mut allowed = BTreeMap::new();
    for entry in &members.entries {
        let node: NodeRecord = records::decode(entry)?;
        allowed.insert(node.name.clone(), node.volumes);
        known.insert(node.name, node.cpu_list);
    }
    let level = level::listed(&format)?;
    let asked = spec;
    // Daemons of the release before know no copies.
    let spec = &if level >= records::FORMAT { placer::with_usual_copies(asked) } else { asked.clone() };
    spec::check(spec, &known)?;
    spec::check_with_store(spec)?;
    volumes::admit(spec, &spec.nodes, &allowed)?;
    let wishes: BTreeMap<String, NodeWish> = records::by_name(records::NODE_WISHES, &wishes)?;
    if let Some(node) = spec.nodes.iter().find(|node| wishes.get(*node).is_some_and(|wish| wish.cordoned)) {
        return Err(ErrorBody::new(
            ErrorKind::Conflict,
            format!("container '{}' does not come to node {node}", spec.name),
        )
        .because("it is cordoned: it takes nothing new")
        .hint(format!("other --nodes, or dvs node uncordon {node}"))
        .into());
    }
    let number = allocate::choose_of(IDS, &spec.name, 1..=DC_ID_MAX, DCS_PER_CLUSTER as usize, &ids);
    // Whoever has a number has a record, unless its maker, of an earlier release, died between the two.
    let has_number = number.as_ref().is_ok_and(|number| number.ops.is_empty());
    if has_number && engine.read(&records::dc_key(&spec.name))?.is_some() {
        return Err(name_taken(&spec.name));
    }
    let accounts = ledger::accounts_in(&[capacity, promised])?;
    changes::demand_release(spec, level)?;
    let kinds = kinds::known_at(level);
    let lacking = |shortage: Shortage| {
        let is_space = shortage.of == Resource::Disk;
        let refusal = shortage.refusal(&spec.name);
        if is_space { blame_usual_copies(asked, spec, refusal) } else { refusal }
    };
    let mut placement = placer::place(spec, &kinds, &accounts).map_err(lacking)?;
    placer::number_sets(&mut placement.instances, draw_set)?;
    let booking = ledger::book(&accounts, &placement.promised, Change::Promise);
    Ok(Decision { spec: spec.clone(), placement, booking, number: number.map_err(no_number)? })
}

/// Of a new set of copies: one that every reader of JSON can hold.
pub fn draw_set() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    drawn.map_err(|error| failure(ErrorKind::Unavailable, "there are no random numbers", "again").0.because(error))?;
    Ok((u64::from_ne_bytes(bytes) >> 11).max(1))
}

/// Its description as it would be kept, and where it would stand, if it were made now.
pub fn admit(engine: &dyn Engine, spec: &DcSpec, desired: Desired) -> Result<(DcSpec, Placement), Failure> {
    let Decision { spec, placement, .. } = decide(engine, spec, desired)?;
    Ok((spec, placement))
}

/// Disks whose space is set aside must fit in what is free now where they are placed, whoever took the rest. A node
/// that does not say what it has decides when they are made.
pub async fn demand_space(api: &Arc<Api>, name: &str, placement: &Placement) -> Result<(), Failure> {
    let wanted = placement.promised.iter().map(|(node, promise)| (node, promise.disk_bytes));
    for (node, bytes) in wanted.filter(|(_, bytes)| *bytes > 0) {
        let Some(free) = nodes::free_bytes(api, node).await.filter(|free| *free < bytes) else { continue };
        let (bytes, free) = (bytes >> 20, free >> 20);
        let what = format!("the disks of container '{name}' do not fit on node {node}");
        return Err(ErrorBody::new(ErrorKind::NoSpace, what)
            .because(format!("they have {bytes} MiB, and {free} MiB are free there for disks"))
            .hint(ledger::NO_DISK)
            .into());
    }
    Ok(())
}

#[cfg(test)]
pub fn make_record(engine: &dyn Engine, spec: &DcSpec) -> Result<DcView, Failure> {
    let desired = Desired::Stopped { grace_ms: 0 };
    write_record(engine, spec, desired, decide(engine, spec, desired)?)
}

/// Wish, placement, number and promises in one transaction: all or nothing.
fn write_record(
    engine: &dyn Engine,
    spec: &DcSpec,
    desired: Desired,
    mut decision: Decision,
) -> Result<DcView, Failure> {
    let (key, asked) = (records::dc_key(&spec.name), spec);
    for _ in 0..ATTEMPTS {
        let Decision { spec, placement, mut booking, number: id } = decision;
        let record = DcRecord {
            id: id.number,
            // From here on they have records of their own.
            spec: DcSpec { services: Vec::new(), ..spec.clone() },
            placement,
            desired,
            generation: 1,
            created_s: records::now_s(),
            endpoints: spec::share_endpoints(spec.nodes.len()),
            paused: false,
            seats: BTreeMap::new(),
            go_back: None,
            tree_bytes: None,
        };
        booking.compares.extend(id.compares.into_iter().chain([Compare::Absent { key: key.clone() }]));
        booking.ops.extend(id.ops.into_iter().chain([Op::put(&*key, records::encode(&record))]));
        booking.ops.extend(spec.services.iter().map(|service| {
            let key = services::record::service_key(record.id, &service.name);
            Op::put(key, records::encode(&services::record::fresh(service.clone(), services::record::FIRST_NUMBER)))
        }));
        if !spec.services.is_empty() {
            let key = services::record::numbers_key(record.id);
            booking.ops.push(Op::put(key, records::encode(&services::record::FIRST_NUMBER)));
        }
        // A conflict is somebody else's progress: perhaps the name is taken now, or there is less left.
        if let Outcome::Done(modified) = engine.transact(&booking.compares, &booking.ops)? {
            return Ok(DcView { record, modified, shares: Default::default() });
        }
        decision = decide(engine, asked, desired)?;
    }
    Err(failure(ErrorKind::Unavailable, format!("others were faster {ATTEMPTS} times"), "again"))
}

fn no_number(error: AllocateError) -> Failure {
    match error {
        AllocateError::Exhausted { used, .. } => {
            let what = format!("the cluster has {used} containers, which is the limit");
            failure(ErrorKind::NoSpace, what, "dvs dc delete one of them")
        }
        AllocateError::Engine(error) => error.into(),
        error => failure(ErrorKind::Unavailable, "no number for the container", "again").0.because(error).into(),
    }
}

pub fn name_taken(dc: &str) -> Failure {
    failure(
        ErrorKind::Conflict,
        format!("there is a container '{dc}' already"),
        format!("another name, or dvs dc delete {dc}"),
    )
}

/// Writes what should be. The same wish again changes nothing, unless it was answered by a failure: then it is a new
/// one, because the old answer says nothing about what is tried from now on.
async fn wish(api: &Arc<Api>, dc: &str, desired: Desired) -> Result<DcView, Failure> {
    wish_of(api, dc, None, desired, None).await
}

/// The same for who has just read it. `snapshot`: its tree is to be as it was for it.
async fn wish_of(
    api: &Arc<Api>,
    dc: &str,
    mut known: Option<DcView>,
    desired: Desired,
    snapshot: Option<String>,
) -> Result<DcView, Failure> {
    let (api, dc) = (Arc::clone(api), dc.to_owned());
    blocking(move || {
        let engine = &*api.context.engine;
        loop {
            let read = || records::dc_view(engine, &dc)?.ok_or_else(|| no_such_dc(&dc));
            let mut view = known.take().map_or_else(read, Ok)?;
            if snapshot.is_some() {
                if !matches!(view.record.desired, Desired::Stopped { .. }) {
                    return Err(failure(
                        ErrorKind::Conflict,
                        format!("container '{dc}' was started meanwhile"),
                        format!("dvs dc inspect {dc}"),
                    ));
                }
                changes::demand_known(level::of(engine)?, "trees that go back to a snapshot")?;
            }
            if view.record.desired == desired && !has_failed(&view) {
                return Ok(view);
            }
            if matches!(view.record.desired, Desired::Deleted { .. }) {
                return Err(failure(
                    ErrorKind::Conflict,
                    format!("container '{dc}' is being deleted"),
                    "another name, or wait",
                ));
            }
            view.record.desired = desired;
            view.record.go_back = snapshot.clone().map(|snapshot| GoBack { number: records::now_ms(), snapshot });
            // What stands still does not end.
            view.record.paused &= desired == Desired::Running;
            if records::renew_dc(engine, &mut view)? {
                return Ok(view);
            }
        }
    })
    .await
}

/// A container that is to be stopped, once no living node has anything of it running. `hint`: for one that is to run.
pub async fn stopped_everywhere(api: &Arc<Api>, view: DcView, hint: &str) -> Result<DcView, Failure> {
    let dc = &view.record.spec.name;
    if !matches!(view.record.desired, Desired::Stopped { .. }) {
        return Err(failure(ErrorKind::Conflict, format!("container '{dc}' is not stopped"), hint));
    }
    await_stop(api, &view, STOP_LIMIT).await?.ok_or_else(|| no_such_dc(dc))
}

/// Whether some node has said that the newest wish cannot be.
fn has_failed(view: &DcView) -> bool {
    let mut answers = view.shares.values().filter(|share| share.generation == view.record.generation);
    answers.any(|share| share.share.phase == DcPhase::Failed)
}

// ---- waiting

/// A start that fails leaves the container stopped, as it was: whoever was refused is not surprised by a container that
/// starts later, when the reason is gone. One that was to run before goes on trying.
async fn start_and_wait(api: &Arc<Api>, dc: &str, snapshot: Option<String>) -> Result<Dc, Failure> {
    let mut before = api.dc(dc).await?;
    demand_all_alive(api, &before, "cannot start").await?;
    let (also, spec) = (Arc::clone(api), before.record.spec.clone());
    blocking(move || spans::demand_volumes(&*also.context.engine, &spec, &spec.nodes)).await?;
    if let Some(snapshot) = &snapshot {
        // Programs do not have another tree from one moment to the next.
        let hint = format!("dvs fs snapshot restore {dc} {snapshot}, which stops it");
        before = stopped_everywhere(api, before, &hint).await?;
    }
    let wished = wish_of(api, dc, Some(before.clone()), Desired::Running, snapshot).await?;
    match await_start(api, &wished).await {
        Err(failed) if before.record.desired != Desired::Running => {
            Err(withdraw(api, &wished, before.record.desired, failed).await)
        }
        answered => answered,
    }
}

async fn await_start(api: &Arc<Api>, wished: &DcView) -> Result<Dc, Failure> {
    let generation = wished.record.generation;
    let progress = |view: &DcView, alive: &BTreeSet<String>| progress_of_start(view, alive, generation);
    let started = wait_until(api, wished, START_LIMIT, progress).await?;
    started.map(|view| api.describe(&view)).ok_or_else(|| no_such_dc(&wished.record.spec.name))
}

/// Takes back the wish that could not be carried out, waits until what there was of it is gone, and says what failed.
/// The wish of somebody who came later stays.
async fn withdraw(api: &Arc<Api>, wished: &DcView, desired: Desired, failed: Failure) -> Failure {
    let dc = wished.record.spec.name.clone();
    let (also, generation) = (Arc::clone(api), wished.record.generation);
    let withdrawn = blocking(move || Ok(replace_wish(&*also.context.engine, &dc, generation, desired)?)).await;
    let dc = &wished.record.spec.name;
    let view = match withdrawn {
        Ok(Some(view)) => view,
        Ok(None) => return failed,
        Err(Failure(why)) => {
            tracing::warn!(dc, %why, "the wish to start a container that did not start cannot be taken back");
            let stays = format!("dvs dc stop {dc}: it could not be taken back, so it starts when the reason is gone");
            return failed.0.hint(stays).into();
        }
    };
    if let Err(Failure(why)) = await_stop(api, &view, STOP_LIMIT).await {
        tracing::warn!(dc, %why, "a container that did not start still ends");
    }
    let is_back = wished.record.go_back.as_ref().map(|wish| &wish.snapshot);
    let tree =
        is_back.map(|snapshot| format!(", its tree as it was, or as it was for '{snapshot}'")).unwrap_or_default();
    failed.0.hint(format!("dvs dc start {dc} again, once the reason is gone; it is stopped, as it was{tree}")).into()
}

/// Nothing where the wish is another one by now.
fn replace_wish(
    engine: &dyn Engine,
    dc: &str,
    generation: u64,
    desired: Desired,
) -> Result<Option<DcView>, EngineError> {
    loop {
        let there = records::dc_view(engine, dc)?.filter(|view| view.record.generation == generation);
        let Some(mut view) = there else { return Ok(None) };
        view.record.desired = desired;
        view.record.go_back = None;
        if records::renew_dc(engine, &mut view)? {
            return Ok(Some(view));
        }
    }
}

async fn demand_all_alive(api: &Arc<Api>, view: &DcView, what: &str) -> Result<(), Failure> {
    demand_alive(api, &view.record.spec.name, &view.record.spec.nodes, what).await
}

/// A node that nobody knows is for the check of the description to refuse.
pub async fn demand_alive(api: &Arc<Api>, dc: &str, nodes: &[String], what: &str) -> Result<(), Failure> {
    let also = Arc::clone(api);
    let [living, known] =
        blocking(move || Ok(listed(&*also.context.engine, [records::NODES, records::MEMBERS])?)).await?;
    demand_listed_alive(dc, nodes, what, [&living, &known])
}

fn demand_listed_alive(dc: &str, nodes: &[String], what: &str, [living, known]: [&Listing; 2]) -> Result<(), Failure> {
    let alive: BTreeMap<String, NodeHealth> = records::by_name(records::NODES, living)?;
    let is_known =
        |node: &str| known.entries.iter().any(|entry| entry.key.trim_start_matches(records::MEMBERS) == node);
    match nodes.iter().find(|node| !alive.contains_key(*node) && is_known(node)) {
        None => Ok(()),
        Some(down) => Err(ErrorBody::new(ErrorKind::Unavailable, format!("container '{dc}' {what}"))
            .because(format!("node {down} is down"))
            .hint(format!("dvs node inspect {down}"))
            .into()),
    }
}

pub fn progress_of_start(view: &DcView, alive: &BTreeSet<String>, generation: u64) -> Progress {
    if view.record.generation != generation {
        let name = &view.record.spec.name;
        let body = ErrorBody::new(ErrorKind::Conflict, format!("container '{name}' was changed meanwhile"));
        return Progress::Failed(body.hint(format!("dvs dc inspect {name}")));
    }
    let share = |node: &String| view.shares.get(node).filter(|share| share.generation == generation);
    for node in &view.record.spec.nodes {
        let is_closed = |share: &&ShareRecord| share.share.ports.iter().any(|port| port.problem.is_some());
        let has_failed = |share: &&ShareRecord| share.share.phase == DcPhase::Failed || is_closed(share);
        if let Some(share) = share(node).filter(has_failed) {
            let body = ErrorBody::new(
                ErrorKind::Unavailable,
                format!("container '{}' did not start on {node}", view.record.spec.name),
            );
            let body = share.share.problems.iter().fold(body, |body, problem| body.because(problem));
            return Progress::Failed(body.hint(format!("dvs dc inspect {}", view.record.spec.name)));
        }
    }
    let waiting =
        view.record.spec.nodes.iter().find(|node| share(node).map(|share| share.share.phase) != Some(DcPhase::Running));
    match waiting {
        None => Progress::Done,
        Some(node) if !alive.contains(node) => {
            let what = format!("container '{}' did not start on {node}", view.record.spec.name);
            let body = ErrorBody::new(ErrorKind::Unavailable, what).because(format!("node {node} went down meanwhile"));
            Progress::Failed(body.hint(format!("dvs node inspect {node}")))
        }
        Some(node) => {
            let problem = share(node).and_then(|share| share.share.problems.first().cloned());
            Progress::Waiting(format!(
                "node {node} does not report it running{}",
                problem.map(|said| format!(": {said}")).unwrap_or_default()
            ))
        }
    }
}

async fn stop_and_wait(api: &Arc<Api>, dc: &str, grace_ms: u64, limit: Duration) -> Result<Dc, Failure> {
    let view = api.dc(dc).await?;
    let view = match view.record.desired {
        // Perhaps it is on its way.
        Desired::Stopped { .. } => view,
        _ => wish(api, dc, Desired::Stopped { grace_ms }).await?,
    };
    await_stop(api, &view, limit).await?.map(|view| api.describe(&view)).ok_or_else(|| no_such_dc(dc))
}

/// Until no living node has anything of it running. `None`: the container is gone.
async fn await_stop(api: &Arc<Api>, wished: &DcView, limit: Duration) -> Result<Option<DcView>, Failure> {
    wait_until(api, wished, limit, |view, alive| progress_of_stop(view, alive, &wished.record)).await
}

/// `wished`: the record as it was when somebody asked for the stop.
fn progress_of_stop(view: &DcView, alive: &BTreeSet<String>, wished: &DcRecord) -> Progress {
    // Stopped once more, or given another node meanwhile, it is on its way all the same.
    if view.record.generation != wished.generation && view.record.desired == Desired::Running {
        let dc = &wished.spec.name;
        let other = ErrorBody::new(ErrorKind::Conflict, format!("container '{dc}' was started again meanwhile"));
        return Progress::Failed(other.hint(format!("dvs dc inspect {dc}")));
    }
    let down = |node: &String| {
        let share = view.shares.get(node);
        share.is_some_and(|share| share.generation == view.record.generation && share.share.phase == DcPhase::Stopped)
    };
    match view.record.spec.nodes.iter().find(|node| alive.contains(*node) && !down(node)) {
        None => Progress::Done,
        Some(node) => Progress::Waiting(format!("node {node} still has a part of it running")),
    }
}

pub enum Progress {
    Done,
    /// For what it waits.
    Waiting(String),
    Failed(ErrorBody),
}

/// The container as it was at `wished` or later, and who is alive, from one moment: what the follower saw, or what the
/// engine says while the follower is behind.
async fn observed_since(api: &Arc<Api>, wished: &DcView) -> Result<(Option<DcView>, BTreeSet<String>), Failure> {
    let name = wished.record.spec.name.clone();
    {
        let observed = api.context.observed.lock();
        let seen = observed.view(&name).filter(|seen| seen.modified >= wished.modified);
        if seen.is_some() {
            return Ok((seen, observed.alive.clone()));
        }
    }
    let api = Arc::clone(api);
    blocking(move || {
        let alive = nodes::alive(&api.context)?.into_keys().collect();
        Ok((records::dc_view(&*api.context.engine, &name)?, alive))
    })
    .await
}

/// Looks at each change after `wished` until `judge` is content. `None`: the container is gone.
pub async fn wait_until(
    api: &Arc<Api>,
    wished: &DcView,
    limit: Duration,
    judge: impl Fn(&DcView, &BTreeSet<String>) -> Progress,
) -> Result<Option<DcView>, Failure> {
    let dc = &wished.record.spec.name;
    let mut changes = api.context.changes.subscribe();
    let until = tokio::time::Instant::now() + limit;
    loop {
        // Marked as seen before the look: a change during the look ends the wait at once.
        changes.borrow_and_update();
        let (view, alive) = observed_since(api, wished).await?;
        // Another one of the same name is not the one that was meant.
        let Some(view) = view.filter(|view| view.record.id == wished.record.id) else { return Ok(None) };
        let waiting_for = match judge(&view, &alive) {
            Progress::Done => return Ok(Some(view)),
            Progress::Failed(body) => return Err(body.into()),
            Progress::Waiting(what) => what,
        };
        if tokio::time::Instant::now() >= until {
            let what = format!("container '{dc}' did not get there within {} s", limit.as_secs());
            return Err(ErrorBody::new(ErrorKind::TimedOut, what)
                .because(waiting_for)
                .hint(format!("dvs dc inspect {dc}"))
                .into());
        }
        // Either is a reason to look; the sender lives as long as the daemon.
        let _ = tokio::time::timeout_at(until.min(tokio::time::Instant::now() + LOOK_AGAIN), changes.changed()).await;
    }
}

#[cfg(test)]
mod tests {
    use cluster::Lookup;
    use cluster::local::{LocalConfig, LocalEngine};
    use mgmt_api::{NodeShare, ServerState};
    use serde_json::json;

    use super::*;
    use crate::reconcile::plan::Stage;

    fn engine_with_a_node() -> (tempfile::TempDir, LocalEngine) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).unwrap();
        let node = json!({
            "name": "n1", "id": 1, "epoch": 1, "address": "127.0.0.1", "proxy_port": 0, "api_port": 0, "cpus": 1,
            "memory_bytes": 0,
        });
        engine.transact(&[], &[Op::put(records::member_key("n1"), node.to_string())]).unwrap();
        (dir, engine)
    }

    fn make(engine: &dyn Engine, name: &str) -> Result<DcRecord, ErrorBody> {
        let spec = serde_json::from_value(json!({ "name": name, "nodes": ["n1"] })).unwrap();
        make_record(engine, &spec).map(|view| view.record).map_err(|failed| failed.0)
    }

    #[test]
    fn node_whose_daemon_reports_nothing_is_shown_with_its_servers_and_a_reason() {
        let (_dir, engine) = engine_with_a_node();
        let mut record = make(&engine, "shop").unwrap();
        let shown = |record: &DcRecord| {
            let view =
                DcView { record: record.clone(), modified: cluster::Revision::default(), shares: Default::default() };
            describe(&view, &BTreeSet::new(), &BTreeMap::new()).shares
        };
        record.desired = Desired::Running;
        let shares = shown(&record);
        assert_eq!((shares.len(), shares[0].node.as_str(), shares[0].phase), (1, "n1", DcPhase::Degraded));
        assert!(shares[0].servers.iter().any(|server| server.name == "fs" && server.state == ServerState::Unknown));
        assert_eq!(shares[0].problems.len(), 1);
        record.desired = Desired::Stopped { grace_ms: 0 };
        assert!(shown(&record).is_empty());
    }

    #[test]
    fn cluster_has_a_thousand_and_some_containers_and_refuses_the_next_until_one_is_gone() {
        let (_dir, engine) = engine_with_a_node();
        let first = make(&engine, "first").unwrap();
        let others = 2..DCS_PER_CLUSTER;
        for id in others {
            let mut record = DcRecord { id, ..first.clone() };
            record.spec.name = format!("dc-{id}");
            let ops = [
                Op::put(records::dc_key(&record.spec.name), records::encode(&record)),
                Op::put(format!("/ids/dc/of/{}", record.spec.name), id.to_string()),
                Op::put(format!("/ids/dc/used/{id}"), &*record.spec.name),
            ];
            engine.transact(&[], &ops).unwrap();
        }
        let last = make(&engine, "last").unwrap();
        assert_eq!((last.id, records::dc_views(&engine).unwrap().len()), (DCS_PER_CLUSTER, DCS_PER_CLUSTER as usize));
        let refused = make(&engine, "one-more").unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoSpace);
        assert!(refused.what.contains("1024 containers"), "{refused}");
        let view = records::dc_view(&engine, "dc-7").unwrap().unwrap();
        farewell::forget(&engine, &view).unwrap();
        assert_eq!(make(&engine, "one-more").unwrap().id, DCS_PER_CLUSTER + 1, "numbers are not given again soon");
    }

    #[test]
    fn wish_that_is_taken_back_is_the_own_one_whatever_else_changed_of_the_record() {
        let (_dir, engine) = engine_with_a_node();
        let mut record = make(&engine, "shop").unwrap();
        let stopped = record.desired;
        (record.desired, record.generation) = (Desired::Running, 2);
        engine.transact(&[], &[Op::put("/dcs/shop", records::encode(&record))]).unwrap();
        assert!(replace_wish(&engine, "shop", 1, stopped).unwrap().is_none(), "somebody wished since");
        assert!(replace_wish(&engine, "gone", 2, stopped).unwrap().is_none());
        let view = replace_wish(&engine, "shop", 2, stopped).unwrap().unwrap();
        assert_eq!((view.record.generation, &view.record.desired), (3, &stopped));
        let there = records::dc_view(&engine, "shop").unwrap().unwrap();
        assert_eq!((there.record, there.modified), (view.record, view.modified));
    }

    #[test]
    fn who_stops_what_somebody_starts_meanwhile_hears_it_at_once() {
        let (_dir, engine) = engine_with_a_node();
        let wished = DcRecord { desired: Desired::Stopped { grace_ms: 0 }, ..make(&engine, "shop").unwrap() };
        let alive = BTreeSet::from(["n1".to_owned()]);
        let progress = |generation, desired, reported, phase| {
            let (address, pid_base, endpoints) = (String::new(), 0, 0..0);
            let (node, servers, ports, problems) = ("n1".to_owned(), Vec::new(), Vec::new(), Vec::new());
            let share =
                NodeShare { node, phase, address, address_ipv6: None, pid_base, endpoints, servers, ports, problems };
            let said = ShareRecord { id: 1, generation: reported, stage: Stage::Down, gone: false, share };
            let record = DcRecord { generation, desired, ..wished.clone() };
            let view = DcView { record, modified: cluster::Revision(1), shares: [("n1".to_owned(), said)].into() };
            progress_of_stop(&view, &alive, &wished)
        };
        let (running, down) = (DcPhase::Running, DcPhase::Stopped);
        let stopped = wished.desired;
        let (own, later) = (wished.generation, wished.generation + 1);
        assert!(matches!(progress(own, stopped, own, running), Progress::Waiting(_)));
        assert!(matches!(progress(own, stopped, own, down), Progress::Done));
        assert!(matches!(progress(later, stopped, own, down), Progress::Waiting(_)), "of before");
        assert!(matches!(progress(later, stopped, later, down), Progress::Done));
        let Progress::Failed(body) = progress(later, Desired::Running, own, down) else { panic!("it is started") };
        assert!(body.kind == ErrorKind::Conflict && body.what.contains("started again meanwhile"), "{body}");
    }

    fn has(engine: &dyn Engine, memory_bytes: u64, disk_bytes: u64) {
        let capacity = json!({ "containers": 9, "memory_bytes": memory_bytes, "disk_bytes": disk_bytes, "cpus": 1 });
        engine.transact(&[], &[Op::put("/capacity/n1", capacity.to_string())]).unwrap();
    }

    fn promised(engine: &dyn Engine) -> mgmt_api::Promise {
        ledger::accounts(engine).unwrap().remove("n1").unwrap_or_default().promised
    }

    fn with_memory(name: &str, memory_bytes: u64) -> DcSpec {
        let spec = json!({ "name": name, "nodes": ["n1"], "limits": { "memory_bytes": memory_bytes } });
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn of_many_who_want_what_is_left_at_the_same_time_as_many_get_it_as_it_is_enough_for() {
        let (dir, engine) = engine_with_a_node();
        has(&engine, 1 << 30, 100 << 30);
        let start = std::sync::Barrier::new(8);
        let made = |index: usize| {
            let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
            let engine = LocalEngine::open(config).unwrap();
            start.wait();
            make_record(&engine, &with_memory(&format!("dc-{index}"), 400 << 20)).map(|_| ()).map_err(|failed| failed.0)
        };
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|index| scope.spawn(move || made(index))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let refused: Vec<&ErrorBody> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        assert_eq!(refused.len(), 6);
        for body in refused {
            assert_eq!(body.kind, ErrorKind::NoSpace);
            assert!(body.because[0].contains("400 MiB") && body.because[0].contains("224 MiB"), "{body}");
        }
        let account = promised(&engine);
        assert_eq!((account.containers, account.memory_bytes, account.disk_bytes), (2, 800 << 20, 2 << 30));
        let ids = engine.list("/ids/dc/used/").unwrap().entries.len();
        assert_eq!((records::dc_views(&engine).unwrap().len(), ids), (2, 2), "who was refused left nothing");
    }

    #[test]
    fn promise_is_given_back_with_the_container_and_disks_of_containers_that_never_started_count() {
        let (_dir, engine) = engine_with_a_node();
        has(&engine, 1 << 30, 3 << 29);
        make(&engine, "one").unwrap();
        let refused = make(&engine, "two").unwrap_err();
        assert!(refused.what.contains("do not fit on node n1"), "{refused}");
        assert!(refused.because[0].contains("1024 MiB") && refused.because[0].contains("512 MiB"), "{refused}");
        let view = records::dc_view(&engine, "one").unwrap().unwrap();
        farewell::forget(&engine, &view).unwrap();
        farewell::forget(&engine, &view).unwrap();
        assert_eq!(promised(&engine), mgmt_api::Promise::default());
        make(&engine, "two").unwrap();
    }

    #[test]
    fn containers_of_an_earlier_daemon_are_taken_into_the_ledger_once_and_keep_what_they_have() {
        let (_dir, engine) = engine_with_a_node();
        has(&engine, 1 << 30, 1 << 29);
        let spec = json!({
            "name": "old", "nodes": ["n1"], "limits": { "memory_bytes": 2_u64 << 30 },
            "servers": [{ "kind": "fs", "node": "n1" }], "disks": [{ "name": "root", "node": "n1", "bytes": 1 << 30 }],
        });
        let record =
            json!({ "id": 5, "spec": spec, "desired": { "kind": "running" }, "generation": 4, "created_s": 0 });
        engine.transact(&[], &[Op::put("/dcs/old", record.to_string())]).unwrap();
        for _ in 0..2 {
            ledger::adopt(&engine).unwrap();
            assert_eq!(
                promised(&engine),
                mgmt_api::Promise { containers: 1, memory_bytes: 2 << 30, disk_bytes: 1 << 30 }
            );
        }
        let record = records::dc_view(&engine, "old").unwrap().unwrap().record;
        assert_eq!((record.generation, record.desired, record.id), (4, Desired::Running, 5));
        let refused = make(&engine, "new").unwrap_err();
        assert!(refused.because[0].ends_with("0 MiB there are not promised yet"), "{refused}");
    }

    #[test]
    fn disks_have_copies_on_two_nodes_unless_somebody_says_otherwise_or_some_node_knows_none() {
        let (_dir, engine) = engine_with_a_node();
        let node = json!({
            "name": "n2", "id": 2, "epoch": 1, "address": "127.0.0.1", "proxy_port": 0, "api_port": 0, "cpus": 1,
            "memory_bytes": 0,
        });
        engine.transact(&[], &[Op::put(records::member_key("n2"), node.to_string())]).unwrap();
        let kept = |name: &str, nodes: &[&str], disks: serde_json::Value| {
            let spec = serde_json::from_value(json!({ "name": name, "nodes": nodes, "disks": disks })).unwrap();
            let record = make_record(&engine, &spec).map_err(|failed| failed.0)?.record;
            let copies = placer::images(&record.placement.instances).count();
            Ok::<_, ErrorBody>((record.spec.disks.iter().map(|disk| disk.replicas).collect::<Vec<_>>(), copies))
        };
        let both = ["n1", "n2"];
        assert_eq!(
            kept("early", &both, json!([])),
            Ok((vec![], 1)),
            "a daemon of the release before is in the cluster"
        );
        engine.transact(&[], &[Op::put(records::FORMAT_KEY, records::FORMAT.to_string())]).unwrap();
        assert_eq!(kept("usual", &both, json!([])), Ok((vec![Some(2)], 4)), "of the tree, and of the store");
        assert_eq!(kept("alone", &["n1"], json!([])), Ok((vec![], 1)));
        let disk = |name: &str, replicas: Option<u8>| json!({ "name": name, "bytes": 1 << 30, "replicas": replicas });
        let disks = json!([disk("root", Some(1)), disk("data", None)]);
        assert_eq!(kept("said", &both, disks), Ok((vec![Some(1), Some(2)], 3)));
        let many: Vec<_> = (0..9).map(|index| disk(&format!("d{index}"), None)).collect();
        let refused = kept("many", &both, json!(many)).unwrap_err();
        assert!(refused.hint.as_ref().is_some_and(|hint| hint.contains("replicas = 1")), "{refused}");

        // One with room is not enough: a copy that is missing would be missed when it is needed.
        let capacity = json!({ "containers": 9, "memory_bytes": 1 << 30, "disk_bytes": 9_u64 << 30, "cpus": 1 });
        let full = json!({ "containers": 9, "memory_bytes": 1 << 30, "disk_bytes": 2_u64 << 30, "cpus": 1 });
        let ops = [Op::put("/capacity/n1", capacity.to_string()), Op::put("/capacity/n2", full.to_string())];
        engine.transact(&[], &ops).unwrap();
        let refused = kept("lacks", &both, json!([disk("root", None)])).unwrap_err();
        assert!(refused.to_string().contains("do not fit on node n2"), "{refused}");
        assert!(refused.because.last().is_some_and(|why| why.contains("two nodes")), "{refused}");
        assert!(refused.hint.as_ref().is_some_and(|hint| hint.starts_with("--replicas 1")), "{refused}");
        let refused = kept("lacks", &both, json!([disk("root", Some(2))])).unwrap_err();
        assert!(refused.hint.as_ref().is_some_and(|hint| !hint.contains("--replicas")), "{refused}");
        kept("fits", &both, json!([disk("root", Some(1))])).unwrap();
    }

    #[test]
    fn container_is_kept_with_the_endpoints_of_its_nodes() {
        let (_dir, engine) = engine_with_a_node();
        make(&engine, "shop").unwrap();
        let kept = records::dc_view(&engine, "shop").unwrap().unwrap().record;
        assert_eq!(kept.endpoints, spec::share_endpoints(1));
        assert_eq!(kept.endpoints_of(0), Some(256..256 + abi::limits::ENDPOINTS_PROMISED));
    }
}
