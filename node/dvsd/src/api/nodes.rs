//! Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode};
use cluster::{Compare, EngineError, Lookup, Op, Outcome, listed};
use mgmt_api::{ErrorBody, ErrorKind, LinkState, Node, NodeChange, NodeState, path};
use serde::Deserialize;

use super::failure::{Failure, failure};
use super::remote::Question;
use super::{Api, blocking, health, is_forwarded, parse, read_body};
use crate::context::Context;
use crate::joining::leaving::{self, Duties, Gone};
use crate::ledger;
use crate::quorum;
use crate::records::{self, MEMBERS, NODE_WISHES, NODES, NodeHealth, NodeRecord, NodeWish};
use crate::space;

/// A member of the engine that goes elsewhere needs some seconds: etcd wants five between two changes.
const HANDING_LIMIT: Duration = Duration::from_secs(60);
const HANDING_LOOK: Duration = Duration::from_millis(200);
/// Labels of a node.
const LABELS_MAX: usize = 64;
/// Of a label's name, or its value.
const LABEL_BYTES_MAX: usize = 63;
/// A node that does not say within this how it sees its links is shown without.
const LINKS_LIMIT: Duration = Duration::from_secs(2);

pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Vec<Node>>, Failure> {
    Ok(Json(blocking(move || Ok(nodes(&api.context)?)).await?))
}

/// With the node's links as it sees them, when it answers.
pub async fn show(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Node>, Failure> {
    let (also, wanted) = (Arc::clone(&api), name.clone());
    let found = blocking(move || Ok(nodes(&also.context)?.into_iter().find(|node| node.name == wanted))).await?;
    let mut node =
        found.ok_or_else(|| failure(ErrorKind::NotFound, format!("there is no node '{name}'"), "dvs node ls"))?;
    let answers = !matches!(node.state, NodeState::Down | NodeState::Unreachable | NodeState::Fenced);
    if node.links.is_none()
        && answers
        && !is_forwarded(&headers)
        && let Some(itself) = as_itself(&api, &name).await
    {
        (node.links, node.disk_free_bytes) = (itself.links, itself.disk_free_bytes);
    }
    Ok(Json(node))
}

#[derive(Debug, Deserialize)]
pub struct RemoveQuery {
    #[serde(default)]
    lost: bool,
}

/// Takes the node out of the cluster.
pub async fn remove(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Failure> {
    demand_name(&name)?;
    let gone = if query.lost { Gone::ForGood } else { Gone::No };
    let (also, of) = (Arc::clone(&api), name.clone());
    let duties = blocking(move || Ok(leaving::prepare(&*also.context.engine, &of, gone)?)).await?;
    if duties == Duties::Handing {
        hand_over(&api, &name).await?;
    }
    blocking(move || Ok(leaving::take_out(&*api.context.engine, &name, gone)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Waits until the node has nothing more for the cluster.
async fn hand_over(api: &Arc<Api>, name: &str) -> Result<(), Failure> {
    let until = tokio::time::Instant::now() + HANDING_LIMIT;
    loop {
        let (also, of) = (Arc::clone(api), quorum::member_key(name));
        if blocking(move || Ok(also.context.engine.read(&of)?.is_none())).await? {
            return Ok(());
        }
        if tokio::time::Instant::now() >= until {
            let (also, of) = (Arc::clone(api), name.to_owned());
            blocking(move || Ok(leaving::stays(&*also.context.engine, &of)?)).await?;
            return Err(Failure(
                ErrorBody::new(
                    ErrorKind::Conflict,
                    format!("node '{name}' cannot be removed: the cluster's engine needs it"),
                )
                .because(format!("its member of etcd did not go to another node within {} s", HANDING_LIMIT.as_secs()))
                .hint("another node that lives and has etcd (apt-get install etcd-server, then restart its daemon)"),
            ));
        }
        tokio::time::sleep(HANDING_LOOK).await;
    }
}

/// What people want of the node.
pub async fn change(State(api): State<Arc<Api>>, Path(name): Path<String>, body: Body) -> Result<Json<Node>, Failure> {
    demand_name(&name)?;
    let change: NodeChange = parse(&read_body(body).await?)?;
    check_labels(&change.labels)?;
    blocking(move || {
        let engine = &*api.context.engine;
        loop {
            let member = engine.read(&records::member_key(&name))?.ok_or_else(|| no_such_node(&name))?;
            let key = records::node_wish_key(&name);
            let (mut wish, compare) = match records::read::<NodeWish>(engine, &key)? {
                Some((wish, at)) => (wish, Compare::Modified { key: key.clone(), at }),
                None => (NodeWish::default(), Compare::Absent { key: key.clone() }),
            };
            wish.cordoned = change.cordoned.unwrap_or(wish.cordoned);
            for (label, value) in &change.labels {
                match value {
                    Some(value) => drop(wish.labels.insert(label.clone(), value.clone())),
                    None => drop(wish.labels.remove(label)),
                }
            }
            if wish.labels.len() > LABELS_MAX {
                let what = format!("a node has at most {LABELS_MAX} labels");
                return Err(failure(ErrorKind::BadRequest, what, "dvs node label NODE NAME- takes one away"));
            }
            // Whoever was taken out meanwhile has no wishes.
            let same = Compare::Modified { key: records::member_key(&name), at: member.modified };
            if let Outcome::Done(_) = engine.transact(&[same, compare], &[Op::put(key, records::encode(&wish))])? {
                break;
            }
        }
        let all = nodes(&api.context)?;
        all.into_iter().find(|node| node.name == name).map(Json).ok_or_else(|| no_such_node(&name))
    })
    .await
}

fn demand_name(name: &str) -> Result<(), Failure> {
    if mgmt_api::valid_name(name) { Ok(()) } else { Err(no_such_node(name)) }
}

fn no_such_node(name: &str) -> Failure {
    failure(ErrorKind::NotFound, format!("there is no node '{name}'"), "dvs node ls")
}

/// As names of labels are elsewhere: letters, digits, and some signs within.
fn check_labels(labels: &BTreeMap<String, Option<String>>) -> Result<(), Failure> {
    let is_good = |text: &str| {
        text.len() <= LABEL_BYTES_MAX
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/'))
    };
    let bad = labels.iter().find(|(label, value)| {
        label.is_empty() || !is_good(label) || value.as_ref().is_some_and(|value| !is_good(value))
    });
    match bad {
        None => Ok(()),
        Some((label, _)) => Err(failure(
            ErrorKind::BadRequest,
            format!("{label:?} is no label, or its value is none"),
            format!("dvs node label n1 rack=a3: up to {LABEL_BYTES_MAX} letters, digits and - _ . /"),
        )),
    }
}

/// What another node says of itself, if it does within the limit.
async fn as_itself(api: &Api, name: &str) -> Option<Node> {
    let record = api.context.member(name)?;
    let path = path::fill(path::NODE, &[("node", name)]);
    let question = Question { method: Method::GET, path, body: Bytes::new(), is_stream: false };
    let asked = async {
        let answer = api.remote.forward(&record, &question).await.ok().filter(|answer| answer.status().is_success())?;
        parse(&read_body(answer.into_body()).await.ok()?).ok()
    };
    tokio::time::timeout(LINKS_LIMIT, asked).await.unwrap_or_default()
}

/// What images may still take on a node; `None` when it does not say.
pub async fn free_bytes(api: &Api, name: &str) -> Option<u64> {
    if name == api.context.config.node {
        return free_for_images(&api.context);
    }
    as_itself(api, name).await?.disk_free_bytes
}

fn free_for_images(context: &Context) -> Option<u64> {
    space::Space::at(&context.config.state_dir).ok().map(space::Space::for_images)
}

/// Whether a node's daemon lives, and what it says of itself.
pub fn alive(context: &Context) -> Result<BTreeMap<String, NodeHealth>, EngineError> {
    records::by_name(NODES, &context.answers.list(NODES)?)
}

/// Nodes to which this one has no link (any more).
pub fn unreachable(context: &Context) -> BTreeSet<String> {
    let links = context.proxy.link_states().into_iter();
    links.filter(|(_, state)| *state == LinkState::Down).map(|(node, _)| node).collect()
}

/// The same for a report, with the second since 1970 at which the link went: known of those that were there at the
/// report before.
pub fn unreachable_since(context: &Context, before: Option<NodeHealth>) -> BTreeMap<String, Option<u64>> {
    since(unreachable(context), before.map(|health| health.unreachable), records::now_s())
}

fn since(
    unreachable: BTreeSet<String>,
    before: Option<BTreeMap<String, Option<u64>>>,
    now_s: u64,
) -> BTreeMap<String, Option<u64>> {
    let seen = |node: &String| match &before {
        Some(before) => before.get(node).copied().unwrap_or(Some(now_s)),
        None => None,
    };
    unreachable.into_iter().map(|node| (node.clone(), seen(&node))).collect()
}

/// What is known of a node: what it says of itself as long as its lease runs, what was decided, and what its link says.
fn state_of(health: Option<&NodeHealth>, is_fenced: bool, link: Option<LinkState>) -> NodeState {
    match (health, link) {
        (None, _) => NodeState::Down,
        _ if is_fenced => NodeState::Fenced,
        (_, Some(LinkState::Down)) => NodeState::Unreachable,
        (_, Some(LinkState::Suspect | LinkState::Broken)) => NodeState::Suspect,
        (Some(health), Some(LinkState::Up | LinkState::Unknown) | None) if health.problems.is_empty() => {
            NodeState::Ready
        }
        (Some(_), Some(LinkState::Up | LinkState::Unknown) | None) => NodeState::Degraded,
    }
}

/// What people want of the nodes, by name.
pub fn wishes(lookup: &dyn Lookup) -> Result<BTreeMap<String, NodeWish>, EngineError> {
    records::by_name(NODE_WISHES, &lookup.list(NODE_WISHES)?)
}

/// All of them, as this one sees them.
pub fn nodes(context: &Context) -> Result<Vec<Node>, EngineError> {
    let [capacity, promised] = ledger::ACCOUNTS;
    let all = [NODES, records::DCS, NODE_WISHES, MEMBERS, capacity, promised];
    let [living, dcs, wishes, members, accounts @ ..] = listed(&context.answers, all)?;
    let mut alive: BTreeMap<String, NodeHealth> = records::by_name(NODES, &living)?;
    if let Some(own) = alive.get_mut(&context.config.node) {
        own.problems.extend(health::engine_away(context));
        own.problems.extend(health::cut_off(context));
    }
    let reached = context.proxy.link_states();
    let dcs = records::dc_views_in(&dcs)?;
    let accounts = ledger::accounts_in(&accounts)?;
    let mut wishes: BTreeMap<String, NodeWish> = records::by_name(NODE_WISHES, &wishes)?;
    let members = members.entries.iter();
    members
        .map(|entry| {
            let record: NodeRecord = records::decode(entry)?;
            let state =
                state_of(alive.get(&record.name), context.is_fenced(&record), reached.get(&record.name).copied());
            let here = dcs.iter().filter(|(_, view)| view.record.spec.nodes.contains(&record.name));
            let dcs = here.map(|(name, _)| name.clone()).collect();
            let is_own = record.name == context.config.node;
            let links = is_own.then(|| context.proxy.links());
            let disk_free_bytes = if is_own { free_for_images(context) } else { None };
            let account = accounts.get(&record.name).cloned().unwrap_or_default();
            let problems = alive.get(&record.name).map(|health| health.problems.clone()).unwrap_or_default();
            let wish = wishes.remove(&record.name).unwrap_or_default();
            Ok(Node {
                cordoned: wish.cordoned,
                labels: wish.labels,
                name: record.name,
                id: record.id,
                state,
                release: record.release.release,
                address: record.address,
                proxy_port: record.proxy_port,
                proxy_quic_port: record.proxy_quic_port,
                pairs: record.pairs,
                api_port: record.api_port,
                epoch: record.epoch,
                cpus: record.cpus,
                memory_bytes: record.memory_bytes,
                capacity: account.capacity,
                promised: account.promised,
                volumes: record.volumes,
                dcs,
                problems,
                disk_free_bytes,
                links,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_cut_is_known_of_links_that_were_seen_before_and_stays_as_it_was() {
        let set = |nodes: &[&str]| nodes.iter().map(|node| (*node).to_owned()).collect();
        let first = since(set(&["n2"]), None, 10);
        assert_eq!(first, BTreeMap::from([("n2".to_owned(), None)]), "perhaps it was never there");
        let second = since(set(&["n2", "n3"]), Some(first), 12);
        assert_eq!(second, BTreeMap::from([("n2".to_owned(), None), ("n3".to_owned(), Some(12))]));
        let third = since(set(&["n2", "n3"]), Some(second), 14);
        assert_eq!(third["n3"], Some(12));
        let again = since(set(&["n3"]), Some(since(set(&[]), Some(third), 16)), 18);
        assert_eq!(again, BTreeMap::from([("n3".to_owned(), Some(18))]));
    }

    #[test]
    fn node_is_what_it_says_of_itself_unless_its_lease_or_its_link_says_otherwise() {
        let well = NodeHealth::default();
        let unwell = NodeHealth { problems: vec!["no proxy".to_owned()], ..NodeHealth::default() };
        assert_eq!(state_of(Some(&well), false, None), NodeState::Ready);
        assert_eq!(state_of(Some(&well), false, Some(LinkState::Up)), NodeState::Ready);
        assert_eq!(state_of(Some(&unwell), false, Some(LinkState::Up)), NodeState::Degraded);
        assert_eq!(state_of(Some(&well), false, Some(LinkState::Unknown)), NodeState::Ready);
        assert_eq!(state_of(Some(&well), false, Some(LinkState::Suspect)), NodeState::Suspect);
        assert_eq!(state_of(Some(&well), false, Some(LinkState::Broken)), NodeState::Suspect);
        assert_eq!(state_of(Some(&unwell), false, Some(LinkState::Down)), NodeState::Unreachable);
        assert_eq!(state_of(None, false, Some(LinkState::Up)), NodeState::Down);
        assert_eq!(state_of(Some(&well), true, Some(LinkState::Up)), NodeState::Fenced);
        assert_eq!(state_of(None, true, None), NodeState::Down);
    }
}
