//! Published ports of a container. What nodes do about them is in `crate::reconcile::published`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use cluster::Engine;
use mgmt_api::{ErrorBody, ErrorKind, PortAtNode, PortInfo, PortSpec, PortState};

use super::dcs::{Progress, wait_until};
use super::failure::{Failure, failure, no_such_dc};
use super::spans::{contended, demand_lasting};
use super::{Api, blocking, parse, read_body};
use crate::level;
use crate::records::{self, DcRecord, DcView, Desired};
use crate::spec;

/// For nodes to listen, or to listen no more.
const LIMIT: Duration = Duration::from_secs(30);
/// Others may be faster this often; each time one of them has got on.
const ATTEMPTS: usize = 100;

pub async fn list(State(api): State<Arc<Api>>, Path(dc): Path<String>) -> Result<Json<Vec<PortInfo>>, Failure> {
    let view = api.dc(&dc).await?;
    Ok(Json(view.record.spec.ports.iter().map(|port| describe(&view, port)).collect()))
}

pub async fn add(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    body: Body,
) -> Result<(StatusCode, Json<PortInfo>), Failure> {
    let port: PortSpec = parse(&read_body(body).await?)?;
    let added = {
        let port = port.clone();
        change(&api, &dc, move |engine, record| {
            demand_release(level::of(engine).map_err(|error| Failure::from(error).0)?)?;
            record.spec.ports.push(port.clone());
            spec::check_ports(&record.spec)?;
            Ok(())
        })
        .await?
    };
    match everywhere(&api, &added, &port).await {
        Ok(view) => Ok((StatusCode::CREATED, Json(describe(&view, &port)))),
        Err(failed) => {
            let taken_back = change(&api, &dc, move |_, record| {
                record.spec.ports.retain(|one| *one != port);
                Ok(())
            });
            if let Err(left) = taken_back.await {
                tracing::warn!(dc, why = %left.0, "a port that nobody listens at is still published");
            }
            Err(failed)
        }
    }
}

pub async fn remove(
    State(api): State<Arc<Api>>,
    Path((dc, port)): Path<(String, String)>,
) -> Result<StatusCode, Failure> {
    let named: PortSpec =
        port.parse().map_err(|error| failure(ErrorKind::BadRequest, format!("{error}"), "8080, or 5353/udp"))?;
    let is_meant = move |one: &PortSpec| {
        let of_number = (one.published, one.protocol) == (named.published, named.protocol);
        of_number && (named.address.is_none() || named.address == one.address)
    };
    let (name, of) = (port.clone(), dc.clone());
    let changed = change(&api, &dc, move |_, record| {
        let before = record.spec.ports.len();
        record.spec.ports.retain(|one| !is_meant(one));
        if record.spec.ports.len() < before {
            return Ok(());
        }
        let what = format!("container '{of}' publishes no port '{name}'");
        Err(ErrorBody::new(ErrorKind::NotFound, what).hint(format!("dvs port ls {of}")))
    })
    .await?;
    await_nodes(&api, &changed, |_, _| Ok(())).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Daemons of the release before cannot read such a container any more.
pub fn demand_release(level: u64) -> Result<(), ErrorBody> {
    if level >= records::FORMAT {
        return Ok(());
    }
    Err(ErrorBody::new(ErrorKind::Conflict, "the cluster knows no published ports and no way out")
        .because("daemons of an earlier release are in it")
        .hint("dvs node upgrade"))
}

/// Changes the record, whoever else does meanwhile.
async fn change(
    api: &Arc<Api>,
    dc: &str,
    edit: impl Fn(&dyn Engine, &mut DcRecord) -> Result<(), ErrorBody> + Send + 'static,
) -> Result<DcView, Failure> {
    let (api, dc) = (Arc::clone(api), dc.to_owned());
    blocking(move || {
        let engine = &*api.context.engine;
        for _ in 0..ATTEMPTS {
            let mut view = records::dc_view(engine, &dc)?.ok_or_else(|| no_such_dc(&dc))?;
            demand_lasting(&view.record)?;
            edit(engine, &mut view.record)?;
            if records::renew_dc(engine, &mut view)? {
                return Ok(view);
            }
        }
        Err(contended())
    })
    .await
}

/// Until the nodes that publish it listen.
async fn everywhere(api: &Arc<Api>, added: &DcView, port: &PortSpec) -> Result<DcView, Failure> {
    let written = port.to_string();
    await_nodes(api, added, |view, node| {
        let share = view.shares.get(node).map(|share| &share.share);
        let said = share.and_then(|share| share.ports.iter().find(|one| one.port == written));
        match said {
            _ if !port.is_at(node) => Ok(()),
            Some(said) => said.problem.clone().map_or(Ok(()), |problem| Err(Some(problem))),
            None => Err(None),
        }
    })
    .await
}

/// Until all nodes that are there work on the record as it is now, and `is_well` of each. Its error is what is wrong
/// with a node, or nothing of one that is not so far.
async fn await_nodes(
    api: &Arc<Api>,
    changed: &DcView,
    is_well: impl Fn(&DcView, &String) -> Result<(), Option<String>>,
) -> Result<DcView, Failure> {
    if changed.record.desired != Desired::Running {
        return Ok(changed.clone());
    }
    let (name, generation) = (changed.record.spec.name.clone(), changed.record.generation);
    let progress = |view: &DcView, alive: &BTreeSet<String>| {
        for node in view.record.spec.nodes.iter().filter(|node| alive.contains(*node)) {
            if view.shares.get(node).is_none_or(|share| share.generation < generation) {
                return Progress::Waiting(format!("node {node} has not heard of it"));
            }
            match is_well(view, node) {
                Ok(()) => (),
                Err(None) => return Progress::Waiting(format!("node {node} does not listen yet")),
                Err(Some(problem)) => {
                    let body = ErrorBody::new(ErrorKind::Conflict, format!("container '{name}' does not get the port"));
                    return Progress::Failed(
                        body.because(problem).hint("another port, or other nodes: dvs port add --help"),
                    );
                }
            }
        }
        Progress::Done
    };
    wait_until(api, changed, LIMIT, progress).await?.ok_or_else(|| no_such_dc(&name))
}

fn describe(view: &DcView, port: &PortSpec) -> PortInfo {
    let nodes = view.record.spec.nodes.iter().filter(|node| port.is_at(node));
    PortInfo { spec: port.clone(), nodes: nodes.map(|node| at_node(view, port, node)).collect() }
}

fn at_node(view: &DcView, port: &PortSpec, node: &str) -> PortAtNode {
    let written = port.to_string();
    let share = view.shares.get(node);
    let said = share.and_then(|share| share.share.ports.iter().find(|one| one.port == written));
    let problem = said.and_then(|said| said.problem.clone());
    let state = match (share, said) {
        _ if problem.is_some() => PortState::Failed,
        (_, Some(_)) => PortState::Open,
        (Some(_), None) => PortState::Closed,
        (None, _) if view.record.desired == Desired::Running => PortState::Unknown,
        (None, _) => PortState::Closed,
    };
    PortAtNode { node: node.to_owned(), state, problem }
}
