//! Disks of a container that there is already: one more, a larger one, one less. The record is changed first, then its
//! nodes follow; what one of them cannot do is taken back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use mgmt_api::{Dc, DiskChange, DiskSpec, ErrorBody, ErrorKind, Instance, ServerKind, ServerState};
use service_core::choose::NodeStanding;

use super::dcs::{Progress, blame_copies, draw_set, wait_until};
use super::failure::{Failure, conflict, no_such_dc, no_such_disk};
use super::replicas::ForceQuery;
use super::servers::follows;
use super::spans::{contended, demand_lasting, known_nodes};
use super::{Api, blocking, changes, nodes, parse, read_body, servers};
use crate::context::Context;
use crate::level;
use crate::placer;
use crate::records::{self, DcRecord, DcView, Desired};
use crate::services::placing::{Seen, Sight};
use crate::spec;
use crate::succession::copies;
use crate::succession::disks::{self, DiskAsked, DiskRefusal, Drawn, Step};

/// For servers to begin, or to end.
const LIMIT: Duration = Duration::from_secs(40);
/// Others may be faster this often; each time one of them has got on.
const ATTEMPTS: usize = 100;

pub async fn create(State(api): State<Arc<Api>>, Path(dc): Path<String>, body: Body) -> Result<Json<Dc>, Failure> {
    let asked_for: DiskSpec = parse(&read_body(body).await?)?;
    let drawn = Drawn { serial: draw_set()?, set: draw_set()? };
    let name = asked_for.name.clone();
    let asked = asked(&api, &dc, &name, move |context, view| {
        let engine = &*context.engine;
        demand_level(context)?;
        let mut wanted = asked_for.clone();
        if disks::is_new(&view.record, &wanted.name) {
            wanted = placer::with_usual_copies_of(&wanted, view.record.spec.nodes.len());
            let described = disks::described(&view.record.spec, &wanted);
            changes::demand_release(&described, level::of(engine)?)?;
            spec::check(&described, &known_nodes(engine)?)?;
        }
        let usable = usable(context, view, wanted.node.as_ref())?;
        match disks::create(engine, (&view.record, view.modified), &wanted, &usable, drawn)? {
            DiskAsked::Refused(DiskRefusal::NoRoom(shortage)) if wanted.replicas != asked_for.replicas => {
                Err(blame_copies(shortage.refusal(&view.record.spec.name)).into())
            }
            asked => Ok(asked),
        }
    })
    .await?;
    match follow(&api, &asked, &name).await {
        Ok(view) => Ok(Json(api.describe(&view))),
        Err(failed) => {
            if asked.is_changed {
                // Nobody has used it yet.
                let taken_back = self::asked(&api, &dc, &name, {
                    let name = name.clone();
                    move |context, view| Ok(disks::delete(&*context.engine, (&view.record, view.modified), &name)?)
                });
                warn(taken_back.await.err(), &dc, &name);
            }
            Err(failed)
        }
    }
}

pub async fn change(
    State(api): State<Arc<Api>>,
    Path((dc, disk)): Path<(String, String)>,
    body: Body,
) -> Result<Json<Dc>, Failure> {
    let DiskChange { bytes } = parse(&read_body(body).await?)?;
    let step = |step: Step| {
        let disk = disk.clone();
        move |context: &Context, view: &DcView| {
            demand_level(context)?;
            // By whichever of its names it was meant.
            let meant = copies::disk_named(&view.record, &disk).ok().and_then(|disk| disk.volume.as_ref());
            if let Some(volume) = meant.filter(|_| step == Step::Copies) {
                let described = disks::resized(&view.record.spec, &volume.name, bytes);
                spec::check(&described, &known_nodes(&*context.engine)?)?;
            }
            Ok(disks::grow(&*context.engine, (&view.record, view.modified), &disk, bytes, step)?)
        }
    };
    let first = asked(&api, &dc, &disk, step(Step::Copies)).await?;
    if let Err(failed) = follow(&api, &first, &disk).await {
        let earlier = copies::disk_named(&first.before, &disk).ok().and_then(|disk| disk.volume.as_ref());
        if let Some(earlier) = earlier.filter(|_| first.is_changed) {
            warn(asked(&api, &dc, &disk, step(Step::BackTo(earlier.bytes))).await.err(), &dc, &disk);
        }
        return Err(failed);
    }
    let second = asked(&api, &dc, &disk, step(Step::Disk)).await?;
    let followed = follow(&api, &second, &disk).await?;
    // Who died before this is made up for by asking again.
    let third = asked(&api, &dc, &disk, step(Step::Tree)).await?;
    let server = third.view.record.placement.first(&ServerKind::FS).filter(|_| third.is_changed);
    match server.map(|server| (server.name.clone(), server.node.clone())) {
        Some((server, node)) if third.view.record.desired == Desired::Running => {
            servers::await_there(&api, &third.view, &server, &node).await
        }
        _ => Ok(Json(api.describe(&followed))),
    }
}

pub async fn delete(
    State(api): State<Arc<Api>>,
    Path((dc, disk)): Path<(String, String)>,
    Query(ForceQuery { force }): Query<ForceQuery>,
) -> Result<Json<Dc>, Failure> {
    let name = disk.clone();
    let asked = asked(&api, &dc, &disk, move |context, view| {
        if !force && let Ok(disk) = copies::disk_named(&view.record, &name) {
            demand_there(context, &view.record, disk)?;
        }
        Ok(disks::delete(&*context.engine, (&view.record, view.modified), &name)?)
    })
    .await?;
    Ok(Json(api.describe(&follow(&api, &asked, &disk).await?)))
}

/// Daemons of the release before do not know such disks.
fn demand_level(context: &Context) -> Result<(), Failure> {
    let level = level::of(&*context.engine)?;
    Ok(changes::demand_known(level, "disks that are made, or made larger, later")?)
}

/// Nodes of the container that can get something new; `wanted`: this one has to be one of them.
fn usable(context: &Context, view: &DcView, wanted: Option<&String>) -> Result<Vec<String>, Failure> {
    if let Some(wanted) = wanted {
        super::services::demand_ready(context, view, wanted)?;
    }
    let nodes = view.record.spec.nodes.iter();
    if view.record.desired != Desired::Running {
        return Ok(nodes.cloned().collect());
    }
    let sight = Sight::of(context, &mut Seen::default(), &[], Instant::now())?;
    Ok(nodes.filter(|node| sight.standing(view, node) == NodeStanding::Ready).cloned().collect())
}

/// Who is away removes nothing.
fn demand_there(context: &Context, record: &DcRecord, disk: &Instance) -> Result<(), Failure> {
    let alive = nodes::alive(context)?;
    let Some(away) = disks::nodes_with_images(record, disk).into_iter().find(|node| !alive.contains_key(node)) else {
        return Ok(());
    };
    let (dc, name) = (&record.spec.name, disk.volume.as_ref().map_or("", |volume| volume.name.as_str()));
    Err(ErrorBody::new(ErrorKind::Unavailable, format!("disk '{name}' of container '{dc}' is not removed"))
        .because(format!("node {away}, which has an image of it, does not answer"))
        .hint("when it is back; or --force, which leaves that image there until the container is deleted")
        .into())
}

/// What was asked for, as it is to be.
struct Asked {
    before: DcRecord,
    view: DcView,
    is_changed: bool,
}

async fn asked(
    api: &Arc<Api>,
    dc: &str,
    disk: &str,
    ask: impl Fn(&Context, &DcView) -> Result<DiskAsked, Failure> + Send + 'static,
) -> Result<Asked, Failure> {
    let (api, dc, disk) = (Arc::clone(api), dc.to_owned(), disk.to_owned());
    blocking(move || {
        for _ in 0..ATTEMPTS {
            let mut view = records::dc_view(&*api.context.engine, &dc)?.ok_or_else(|| no_such_dc(&dc))?;
            demand_lasting(&view.record)?;
            let before = view.record.clone();
            match ask(&api.context, &view)? {
                DiskAsked::Placed(record) => {
                    view.record = *record;
                    return Ok(Asked { before, view, is_changed: true });
                }
                DiskAsked::IsSo => return Ok(Asked { before, view, is_changed: false }),
                DiskAsked::Refused(why) => return Err(refusal(&dc, &disk, why)),
                DiskAsked::Changed => (),
            }
        }
        Err(contended())
    })
    .await
}

/// Until its nodes are as the record says, as far as they are there.
async fn follow(api: &Arc<Api>, asked: &Asked, disk: &str) -> Result<DcView, Failure> {
    let Asked { before: _, view: wished, is_changed } = asked;
    let record = &wished.record;
    if record.desired != Desired::Running {
        return Ok(wished.clone());
    }
    let name = disk.strip_prefix("disk-").unwrap_or(disk);
    let is_of_it = |one: &&Instance| one.volume.as_ref().is_some_and(|volume| volume.name == name);
    let servers: Vec<&Instance> = record.placement.instances.iter().filter(is_of_it).collect();
    let known =
        |view: &DcView, problem: &String| view.shares.values().any(|share| share.share.problems.contains(problem));
    let judge = |view: &DcView, alive: &BTreeSet<String>| {
        let problems = view.shares.values().flat_map(|share| &share.share.problems);
        if let Some(problem) = problems.into_iter().find(|problem| *is_changed && !known(wished, problem)) {
            let body = ErrorBody::new(ErrorKind::Conflict, format!("disk '{name}' cannot be so"));
            return Progress::Failed(body.because(problem.clone()).hint("another size or node; nothing is changed"));
        }
        if let Some(node) = follows(view, alive, record.generation, &record.spec.nodes) {
            return Progress::Waiting(format!("node {node} follows"));
        }
        let runs = |one: &Instance| {
            let share = view.shares.get(&one.node)?;
            let server = share.share.servers.iter().find(|server| server.name == one.name)?;
            (server.state == ServerState::Running).then_some(())
        };
        match servers.iter().find(|one| alive.contains(&one.node) && runs(one).is_none()) {
            Some(one) => Progress::Waiting(format!("{} does not run on {} yet", one.name, one.node)),
            None => Progress::Done,
        }
    };
    wait_until(api, wished, LIMIT, judge).await?.ok_or_else(|| no_such_dc(&record.spec.name))
}

fn warn(left: Option<Failure>, dc: &str, disk: &str) {
    if let Some(left) = left {
        tracing::warn!(dc, disk, why = %left.0, "a change of a disk that a node could not follow is not taken back");
    }
}

fn refusal(dc: &str, disk: &str, why: DiskRefusal) -> Failure {
    let its = format!("disk '{disk}' of container '{dc}'");
    match why {
        DiskRefusal::NoDisk { known } => no_such_disk(dc, disk, &known),
        DiskRefusal::Exists => conflict(
            format!("container '{dc}' has a disk '{disk}' already"),
            "its size, copies or node are not those that are asked for",
            format!("another name; or dvs disk resize, replica, dvs server move: dvs disk inspect {dc} {disk}"),
        ),
        DiskRefusal::TooMany => conflict(
            format!("container '{dc}' has no place for another disk"),
            "it has as many disks, or copies of all of them together, as can be",
            format!("--replicas 1; dvs disk ls {dc}; dvs disk delete"),
        ),
        DiskRefusal::NoRoom(shortage) => shortage.refusal(dc).into(),
        DiskRefusal::FewNodes { usable } => conflict(
            format!("{its} cannot have so many copies"),
            format!("nodes of the container that are there and take something new: {}", usable.join(", ")),
            "fewer copies: --replicas 1 (one, lost with its node); dvs node ls",
        ),
        DiskRefusal::IsTree => conflict(
            format!("{its} stays as it is"),
            "its file tree is on it",
            format!("a larger one in another container: dvs dc backup {dc}, dvs dc restore --name OTHER --disk SIZE"),
        ),
        DiskRefusal::IsStore => conflict(
            format!("{its} stays as it is"),
            "the key-value server has its file there",
            format!("its copies come and go: dvs disk replica --help; what is in it: dvs ds ls {dc}"),
        ),
        DiskRefusal::IsExported => conflict(
            format!("{its} stays"),
            "it is served over NBD",
            format!("dvs disk unexport {dc}, or export others"),
        ),
        DiskRefusal::Stopped => conflict(
            format!("{its} stays"),
            "its nodes do not look while the container is stopped",
            format!("dvs start {dc}"),
        ),
        DiskRefusal::WouldShrink { bytes } => conflict(
            format!("{its} is not made smaller"),
            format!("it has {} MiB, and what is behind the new end would be lost", bytes >> 20),
            format!("a new one: dvs disk create {dc} NAME --size"),
        ),
    }
}
