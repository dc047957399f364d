//! Copies of disks: one more, one less, one that is made primary by force.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use mgmt_api::{Dc, DcNodeRequest, ErrorBody, ErrorKind, Instance, ServerState};
use serde::Deserialize;

use super::dcs::{Progress, draw_set, wait_until};
use super::failure::{Failure, conflict, failure, no_such_dc, no_such_disk};
use super::servers::follows;
use super::services::demand_ready;
use super::spans::{contended, demand_lasting};
use super::{Api, blocking, changes, parse, read_body, servers};
use crate::context::Context;
use crate::kinds::COPY;
use crate::level;
use crate::records::{self, DcView, Desired};
use crate::services::placing::{Seen, Sight};
use crate::succession;
use crate::succession::copies::{self, CopyAsked, CopyRefusal};

/// For a server to begin, or to end.
const LIMIT: Duration = Duration::from_secs(40);
/// For the primary to say that it needs nothing of a copy.
const DISMISSAL_LIMIT: Duration = Duration::from_secs(15);
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Others may be faster this often; each time one of them has got on.
const ATTEMPTS: usize = 100;

#[derive(Deserialize)]
pub struct ForceQuery {
    #[serde(default)]
    pub force: bool,
}

#[derive(Deserialize)]
pub struct RepairQuery {
    #[serde(default)]
    pub repair: bool,
}

/// The disk, and the node that is meant.
struct Meant {
    dc: String,
    disk: String,
    node: String,
}

pub async fn add(
    State(api): State<Arc<Api>>,
    Path((dc, disk)): Path<(String, String)>,
    body: Body,
) -> Result<Json<Dc>, Failure> {
    let DcNodeRequest { node } = parse(&read_body(body).await?)?;
    let meant = Meant { dc, disk, node };
    let set = draw_set()?;
    let (meant, view) = asked(&api, meant, move |context, view, meant| {
        demand_ready(context, view, &meant.node)?;
        let engine = &*context.engine;
        changes::demand_copies(level::of(engine).map_err(|error| Failure::from(error).0)?)?;
        Ok(copies::add(engine, (&view.record, view.modified), &meant.disk, &meant.node, set)?)
    })
    .await?;
    // A disk without copies is where it is.
    let is_copy = |one: &Instance| one.kind.name() == COPY && one.node == meant.node;
    let is_placed = view.record.placement.instances.iter().any(is_copy);
    if view.record.desired != Desired::Running || !is_placed {
        return Ok(Json(api.describe(&view)));
    }
    let mirror = &api.context.answers.mirror;
    let is_there = |view: &DcView, alive: &BTreeSet<String>| {
        let is_member = || {
            let known = succession::copies(&**mirror, &view.record).unwrap_or_default();
            let of_disk = known.iter().filter(|disk| disk.disk == meant.name());
            of_disk.flat_map(|disk| &disk.copies).any(|copy| copy.node == meant.node)
        };
        match follows(view, alive, view.record.generation, &view.record.spec.nodes) {
            None if state(view, &meant) != Some(ServerState::Running) => {
                Progress::Waiting(format!("it does not run on {} yet", meant.node))
            }
            None if !is_member() => Progress::Waiting("the disk has not heard of it".to_owned()),
            None => Progress::Done,
            Some(node) => Progress::Waiting(format!("node {node} follows")),
        }
    };
    let view = wait_until(&api, &view, LIMIT, is_there).await?.ok_or_else(|| no_such_dc(&meant.dc))?;
    described(&api, &view).await
}

pub async fn verify(
    State(api): State<Arc<Api>>,
    Path((dc, disk)): Path<(String, String)>,
    Query(RepairQuery { repair }): Query<RepairQuery>,
) -> Result<Json<Dc>, Failure> {
    let (_, view) = asked(&api, Meant { dc, disk, node: String::new() }, move |context, view, meant| {
        let engine = &*context.engine;
        changes::demand_copies(level::of(engine).map_err(|error| Failure::from(error).0)?)?;
        Ok(copies::verify(engine, (&view.record, view.modified), &meant.disk, repair, records::now_s())?)
    })
    .await?;
    described(&api, &view).await
}

/// With the state of its copies.
async fn described(api: &Arc<Api>, view: &DcView) -> Result<Json<Dc>, Failure> {
    let (also, record) = (Arc::clone(api), view.record.clone());
    let mut described = api.describe(view);
    described.copies = blocking(move || Ok(succession::copies(&*also.context.engine, &record)?)).await?;
    Ok(Json(described))
}

pub async fn remove(
    State(api): State<Arc<Api>>,
    Path((dc, disk, node)): Path<(String, String, String)>,
    Query(ForceQuery { force }): Query<ForceQuery>,
) -> Result<Json<Dc>, Failure> {
    let meant = Meant { dc, disk, node };
    let (meant, view) = asked(&api, meant, move |context, view, meant| {
        Ok(copies::remove(&*context.engine, (&view.record, view.modified), &meant.disk, &meant.node, force)?)
    })
    .await?;
    let is_gone = |view: &DcView, alive: &BTreeSet<String>| {
        let is_there = || state(view, &meant).is_some_and(|state| state != ServerState::Stopped);
        match follows(view, alive, view.record.generation, [&meant.node]) {
            None if alive.contains(&meant.node) && is_there() => {
                Progress::Waiting(format!("it is still on {}", meant.node))
            }
            None => Progress::Done,
            Some(node) => Progress::Waiting(format!("node {node} follows")),
        }
    };
    if view.record.desired != Desired::Running {
        return Ok(Json(api.describe(&view)));
    }
    let view = wait_until(&api, &view, LIMIT, is_gone).await?.ok_or_else(|| no_such_dc(&meant.dc))?;
    Ok(Json(api.describe(&view)))
}

pub async fn promote(
    State(api): State<Arc<Api>>,
    Path((dc, disk, node)): Path<(String, String, String)>,
    Query(ForceQuery { force }): Query<ForceQuery>,
) -> Result<Json<Dc>, Failure> {
    let meant = Meant { dc, disk, node };
    let server = meant.server();
    if !force {
        return servers::stand(&api, &meant.dc, &server, &meant.node).await;
    }
    let (meant, view) = asked(&api, meant, move |context, view, meant| {
        let sight = Sight::of(context, &mut Seen::default(), &[], Instant::now())?;
        let at = (&view.record, view.modified);
        Ok(copies::force(&*context.engine, at, &meant.disk, &meant.node, |node| sight.is_there(node))?)
    })
    .await?;
    servers::await_there(&api, &view, &server, &meant.node).await
}

/// The container as it is to be, once all that has to say so has.
async fn asked(
    api: &Arc<Api>,
    meant: Meant,
    ask: impl Fn(&Context, &DcView, &Meant) -> Result<CopyAsked, Failure> + Send + Sync + 'static,
) -> Result<(Arc<Meant>, DcView), Failure> {
    let (meant, ask) = (Arc::new(meant), Arc::new(ask));
    let until = Instant::now() + DISMISSAL_LIMIT;
    loop {
        let (also, of, attempt) = (Arc::clone(api), Arc::clone(&meant), Arc::clone(&ask));
        let done = blocking(move || attempts(&also.context, &of, &*attempt)).await?;
        if let Some(view) = done {
            return Ok((meant, view));
        }
        if Instant::now() >= until {
            let Meant { dc, disk, node } = &*meant;
            let what = format!("the copy of disk '{disk}' of container '{dc}' on {node} is still needed");
            return Err(ErrorBody::new(ErrorKind::TimedOut, what)
                .because("its primary does not say that it can be spared: it waits for other copies, or for the cluster's engine")
                .hint(format!("dvs disk inspect {dc} {disk}; again; --force where the others never come back"))
                .into());
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// `None`: the primary has to say so first.
fn attempts(
    context: &Context,
    meant: &Meant,
    ask: &dyn Fn(&Context, &DcView, &Meant) -> Result<CopyAsked, Failure>,
) -> Result<Option<DcView>, Failure> {
    for _ in 0..ATTEMPTS {
        let mut view = records::dc_view(&*context.engine, &meant.dc)?.ok_or_else(|| no_such_dc(&meant.dc))?;
        demand_lasting(&view.record)?;
        match ask(context, &view, meant)? {
            CopyAsked::Placed(record) => {
                view.record = *record;
                return Ok(Some(view));
            }
            CopyAsked::IsSo => return Ok(Some(view)),
            CopyAsked::AwaitsPrimary => return Ok(None),
            CopyAsked::Refused(why) => return Err(refusal(meant, why)),
            CopyAsked::Changed => (),
        }
    }
    Err(contended())
}

impl Meant {
    /// Of the disk.
    fn name(&self) -> &str {
        self.disk.strip_prefix("disk-").unwrap_or(&self.disk)
    }

    fn server(&self) -> String {
        format!("disk-{}", self.name())
    }
}

/// Of the copy that is meant, as its node says.
fn state(view: &DcView, meant: &Meant) -> Option<ServerState> {
    let name = format!("{COPY}-{}", meant.name());
    let share = &view.shares.get(&meant.node)?.share;
    share.servers.iter().find(|one| one.name == name).map(|one| one.state)
}

fn refusal(Meant { dc, disk, node }: &Meant, why: CopyRefusal) -> Failure {
    let copy = format!("the copy of disk '{disk}' of container '{dc}' on {node}");
    match why {
        CopyRefusal::NoDisk { known } => no_such_disk(dc, disk, &known),
        CopyRefusal::NoCopy { nodes } if nodes.is_empty() => {
            let what = format!("disk '{disk}' of container '{dc}' has no copies");
            failure(ErrorKind::NotFound, what, format!("dvs disk replica add {dc} {disk} NODE"))
        }
        CopyRefusal::NoCopy { nodes } => {
            let what = format!("no copy of disk '{disk}' of container '{dc}' is on {node}");
            failure(ErrorKind::NotFound, what, format!("they are on {}", nodes.join(", ")))
        }
        CopyRefusal::TooMany => conflict(
            format!("container '{dc}' has no place for another copy"),
            "all its disks together have as many as can be",
            format!("dvs disk ls {dc}; dvs disk replica remove"),
        ),
        CopyRefusal::NoRoom(shortage) => shortage.refusal(dc).into(),
        CopyRefusal::Leaves => conflict(
            format!("{copy} is being removed"),
            "somebody did not want it any more",
            format!("dvs disk replica remove {dc} {disk} {node}, then add it anew"),
        ),
        CopyRefusal::IsPrimary => conflict(
            format!("{copy} stays"),
            "the disk stands beside it",
            format!("dvs server move {dc} disk-{disk} NODE"),
        ),
        CopyRefusal::Stopped => conflict(
            format!("{copy} stays"),
            "while the container is stopped nobody can say whether the others have everything",
            format!("dvs start {dc}; or --force, if they have"),
        ),
        CopyRefusal::NotServed => conflict(
            format!("the copies of disk '{disk}' of container '{dc}' are not compared"),
            "the disk itself does that, while the container runs",
            format!("dvs start {dc}; then again"),
        ),
        CopyRefusal::IsCurrent => conflict(
            format!("{copy} has everything"),
            "nothing has to be given up for it",
            format!("dvs disk replica promote {dc} {disk} {node}, without --force"),
        ),
        CopyRefusal::NeverCurrent => conflict(
            format!("{copy} cannot be made primary"),
            "it never had everything",
            format!("another one: dvs disk inspect {dc} {disk}; or dvs dc restore"),
        ),
        CopyRefusal::PrimaryThere { node: other } => conflict(
            format!("{copy} is not made primary"),
            format!("the copy on {other} has everything, and that node is there"),
            format!("wait until this one has caught up: dvs disk inspect {dc} {disk}"),
        ),
    }
}
