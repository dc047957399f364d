//! Nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use cluster::EngineError;
use mgmt_api::{ErrorKind, Node, NodeState};

use super::failure::{Failure, failure};
use super::{Api, blocking};
use crate::context::Context;
use crate::records::{self, MEMBERS, NODES, NodeHealth, NodeRecord};

pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Vec<Node>>, Failure> {
    Ok(Json(blocking(move || Ok(nodes(&api.context)?)).await?))
}

pub async fn show(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Result<Json<Node>, Failure> {
    let found = blocking(move || Ok((nodes(&api.context)?.into_iter().find(|node| node.name == name), name))).await?;
    match found {
        (Some(node), _) => Ok(Json(node)),
        (None, name) => Err(failure(ErrorKind::NotFound, format!("there is no node '{name}'"), "dvs node ls")),
    }
}

/// Whether a node's daemon lives, and what it says of itself.
pub fn alive(context: &Context) -> Result<BTreeMap<String, NodeHealth>, EngineError> {
    let entries = context.engine.list(NODES)?.entries;
    entries.iter().map(|entry| Ok((entry.key.trim_start_matches(NODES).to_owned(), records::decode(entry)?))).collect()
}

fn nodes(context: &Context) -> Result<Vec<Node>, EngineError> {
    let alive = alive(context)?;
    let dcs = records::dc_views(&*context.engine)?;
    let members = context.engine.list(MEMBERS)?.entries;
    members
        .iter()
        .map(|entry| {
            let record: NodeRecord = records::decode(entry)?;
            let state = match alive.get(&record.name) {
                Some(health) if health.problems.is_empty() => NodeState::Ready,
                Some(_) => NodeState::Degraded,
                None => NodeState::Down,
            };
            let here = dcs.iter().filter(|(_, view)| view.record.spec.nodes.contains(&record.name));
            let dcs = here.map(|(name, _)| name.clone()).collect();
            let links = if record.name == context.config.node { context.proxy.links() } else { Vec::new() };
            Ok(Node {
                name: record.name,
                id: record.id,
                state,
                address: record.address,
                proxy_port: record.proxy_port,
                api_port: record.api_port,
                epoch: record.epoch,
                cpus: record.cpus,
                memory_bytes: record.memory_bytes,
                dcs,
                links,
            })
        })
        .collect()
}
