//! Servers that people have stand elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use mgmt_api::{Dc, DcPhase, ErrorBody, ErrorKind, ServerMoveRequest, ServerState};

use super::dcs::{Progress, wait_until};
use super::failure::{Failure, failure, no_such_dc};
use super::services::demand_ready;
use super::spans::{contended, demand_lasting};
use super::{Api, blocking, parse, read_body};
use crate::records::{self, DcView, Desired};
use crate::succession::{self, Asked, Immovable};

/// Opening a large volume takes its time.
const LIMIT: Duration = Duration::from_secs(40);
/// Others may be faster this often; each time one of them has got on.
const ATTEMPTS: usize = 100;

pub async fn move_to(
    State(api): State<Arc<Api>>,
    Path((dc, server)): Path<(String, String)>,
    body: Body,
) -> Result<Json<Dc>, Failure> {
    let ServerMoveRequest { node } = parse(&read_body(body).await?)?;
    stand(&api, &dc, &server, &node).await
}

/// Has a server stand there; answered when it serves.
pub async fn stand(api: &Arc<Api>, dc: &str, server: &str, node: &str) -> Result<Json<Dc>, Failure> {
    let (also, name, of, to) = (Arc::clone(api), dc.to_owned(), server.to_owned(), node.to_owned());
    let wished = blocking(move || ask(&also, &name, &of, &to)).await?;
    await_there(api, &wished, server, node).await
}

/// Until a server of a container that is to run serves where it stands.
pub async fn await_there(api: &Arc<Api>, wished: &DcView, server: &str, node: &str) -> Result<Json<Dc>, Failure> {
    if wished.record.desired != Desired::Running {
        return Ok(Json(api.describe(wished)));
    }
    let generation = wished.record.generation;
    let serves = |view: &DcView, alive: &BTreeSet<String>| serves(view, alive, generation, server, node);
    let view = wait_until(api, wished, LIMIT, serves).await?;
    view.map(|view| Json(api.describe(&view))).ok_or_else(|| no_such_dc(&wished.record.spec.name))
}

/// The container as it is to be.
fn ask(api: &Api, dc: &str, server: &str, node: &String) -> Result<DcView, Failure> {
    let engine = &*api.context.engine;
    for _ in 0..ATTEMPTS {
        let mut view = records::dc_view(engine, dc)?.ok_or_else(|| no_such_dc(dc))?;
        demand_lasting(&view.record)?;
        demand_ready(&api.context, &view, node)?;
        match succession::ask(engine, (&view.record, view.modified), server, node)? {
            Asked::Moves(record) => {
                view.record = *record;
                return Ok(view);
            }
            Asked::StandsThere => return Ok(view),
            Asked::Refused(why) => return Err(refusal(dc, server, node, why)),
            Asked::Changed => (),
        }
    }
    Err(contended())
}

fn refusal(dc: &str, server: &str, node: &str, why: Immovable) -> Failure {
    let what = format!("server '{server}' of container '{dc}' does not move");
    let (because, hint) = match why {
        Immovable::Unknown { known } => {
            let what = format!("container '{dc}' has no server '{server}'");
            return failure(ErrorKind::NotFound, what, format!("one of {}", known.join(", ")));
        }
        Immovable::EachNode => ("one stands on each node".to_owned(), "dvs dc remove-node".to_owned()),
        Immovable::DataThere { node } => (
            format!("what it keeps lies on {node} alone"),
            format!("dvs dc backup {dc}, and dvs dc restore where it is to be"),
        ),
        Immovable::NoCopy { nodes } => (format!("no copy of it is on {node}"), format!("one of {}", nodes.join(", "))),
        Immovable::Behind => {
            ("its copy there does not have everything".to_owned(), format!("wait: dvs dc inspect {dc}"))
        }
    };
    ErrorBody::new(ErrorKind::Conflict, what).because(because).hint(hint).into()
}

/// Whether all nodes that are there have followed, and it serves there.
fn serves(view: &DcView, alive: &BTreeSet<String>, generation: u64, server: &str, node: &str) -> Progress {
    if let Some(other) = follows(view, alive, generation, &view.record.spec.nodes) {
        return Progress::Waiting(format!("node {other} follows"));
    }
    let servers = view.shares.get(node).into_iter().flat_map(|share| &share.share.servers);
    match servers.into_iter().find(|one| one.name == server) {
        Some(one) if one.state == ServerState::Running => Progress::Done,
        _ => Progress::Waiting(format!("it does not serve on {node} yet")),
    }
}

/// The first of these nodes that is there, and is not yet as the record of this generation says.
pub fn follows<'a>(
    view: &DcView,
    alive: &BTreeSet<String>,
    generation: u64,
    nodes: impl IntoIterator<Item = &'a String>,
) -> Option<&'a String> {
    let is_behind = |node: &&String| {
        let share = view.shares.get(*node).filter(|share| share.generation >= generation);
        share.is_none_or(|share| share.share.phase == DcPhase::Starting)
    };
    nodes.into_iter().filter(|node| alive.contains(*node)).find(is_behind)
}
