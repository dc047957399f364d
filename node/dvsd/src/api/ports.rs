//! Published ports of a container. What nodes do about them is in `crate::reconcile::published`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use mgmt_api::{ErrorBody, ErrorKind, PortAtNode, PortInfo, PortSpec, PortState};

use super::changes::{self, demand_release};
use super::failure::{Failure, failure};
use super::gate::Caller;
use super::inhabitants::ports_without_reasons;
use super::{Api, parse, read_body};
use crate::level;
use crate::records::{DcView, Desired};
use crate::spec;

pub async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(dc): Path<String>,
) -> Result<Json<Vec<PortInfo>>, Failure> {
    let view = api.dc(&dc).await?;
    let found = view.record.spec.ports.iter().map(|port| describe(&view, port)).collect();
    Ok(Json(if caller.inhabitant.is_some() { ports_without_reasons(found) } else { found }))
}

pub async fn add(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    body: Body,
) -> Result<(StatusCode, Json<PortInfo>), Failure> {
    let port: PortSpec = parse(&read_body(body).await?)?;
    let added = port.clone();
    let edited = changes::edit(&api, &dc, move |engine, record| {
        record.spec.ports.push(added.clone());
        demand_release(&record.spec, level::of(engine).map_err(|error| Failure::from(error).0)?)?;
        spec::check_ports(&record.spec)
    });
    let view = changes::follow(&api, edited.await?).await?;
    Ok((StatusCode::CREATED, Json(describe(&view, &port))))
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
    let edited = changes::edit(&api, &dc, move |_, record| {
        let before = record.spec.ports.len();
        record.spec.ports.retain(|one| !is_meant(one));
        if record.spec.ports.len() < before {
            return Ok(());
        }
        let what = format!("container '{of}' publishes no port '{name}'");
        Err(ErrorBody::new(ErrorKind::NotFound, what).hint(format!("dvs port ls {of}")))
    })
    .await?;
    changes::follow(&api, edited).await?;
    Ok(StatusCode::NO_CONTENT)
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
