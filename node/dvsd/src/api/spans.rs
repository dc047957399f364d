//! Nodes that come to a container, or are taken out of it, while it runs.
//!
//! A node has a *seat* in the container: address, PIDs and endpoints follow from it, and no other node ever has it. One
//! that comes gets the servers that stand on each node, and nothing of the others moves. One that goes ends what it has
//! of the container once the record does not name it any more (`Reconciler::ours`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use abi::limits::NODES_PER_DC;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use cluster::{Compare, Engine, Op, Outcome};
use mgmt_api::{Dc, DcNodeRequest, DcSpec, ErrorBody, ErrorKind, Promise, Why};
use serde::Deserialize;

use super::dcs::{Progress, START_LIMIT, STOP_LIMIT, demand_alive, progress_of_start, wait_until};
use super::failure::{Failure, failure, no_such_dc};
use super::{Api, blocking, nodes, parse, processes, read_body};
use crate::kinds::KINDS;
use crate::ledger::{self, Change};
use crate::placer;
use crate::records::{self, DcRecord, DcView, Desired, NodeRecord};
use crate::spec;
use crate::volumes;

/// Others may be faster this often; each time one of them has got on.
const ATTEMPTS: usize = 100;
/// For a node to say which programs run there.
const PROGRAMS_LIMIT: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
pub struct RemoveQuery {
    /// Ends programs there; and takes out a node that does not answer.
    #[serde(default)]
    force: bool,
}

pub async fn add(State(api): State<Arc<Api>>, Path(dc): Path<String>, body: Body) -> Result<Json<Dc>, Failure> {
    let DcNodeRequest { node } = parse(&read_body(body).await?)?;
    let before = api.dc(&dc).await?;
    demand_alive(&api, &dc, std::slice::from_ref(&node), &format!("does not come to node {node}")).await?;
    let was_there = before.record.spec.nodes.contains(&node);
    let (also, name, to) = (Arc::clone(&api), dc.clone(), node.clone());
    let view = blocking(move || seat(&*also.context.engine, &name, &to)).await?;
    if view.record.desired != Desired::Running {
        return Ok(Json(api.describe(&view)));
    }
    let generation = view.record.generation;
    let runs = wait_until(&api, &view, START_LIMIT, |view, alive| progress_of_start(view, alive, generation)).await;
    match runs {
        Ok(Some(view)) => Ok(Json(api.describe(&view))),
        Ok(None) => Err(no_such_dc(&dc)),
        Err(failed) => {
            // It never held anything there, and the others go on as before.
            if !was_there && let Err(left) = unseat_and_wait(&api, &dc, &node, generation).await {
                tracing::warn!(dc, node, why = %left.0, "a node that did not come to its container is still in it");
            }
            Err(failed)
        }
    }
}

pub async fn remove(
    State(api): State<Arc<Api>>,
    Path((dc, node)): Path<(String, String)>,
    Query(query): Query<RemoveQuery>,
) -> Result<Json<Dc>, Failure> {
    let view = api.dc(&dc).await?;
    check_removal(&view.record, &node)?;
    if !query.force {
        demand_alive(&api, &dc, std::slice::from_ref(&node), &format!("does not leave node {node}")).await.map_err(
            |mut down| {
                down.0.hint = Some(format!("again once it is back; or dvs dc remove-node --force {dc} {node}"));
                down
            },
        )?;
        demand_no_programs(&api, &view, &node).await?;
    }
    let left = unseat_and_wait(&api, &dc, &node, view.record.generation).await?;
    left.map(|view| Json(api.describe(&view))).ok_or_else(|| no_such_dc(&dc))
}

async fn demand_no_programs(api: &Arc<Api>, view: &DcView, node: &str) -> Result<(), Failure> {
    if view.record.desired != Desired::Running {
        return Ok(());
    }
    let asked = tokio::time::timeout(PROGRAMS_LIMIT, processes::running_on(api, view, node)).await;
    let silent =
        || failure(ErrorKind::TimedOut, format!("node {node} does not say what runs there"), "again, or --force");
    let count = asked.map_err(|_| silent())??;
    if count == 0 {
        return Ok(());
    }
    let dc = &view.record.spec.name;
    Err(ErrorBody::new(ErrorKind::Conflict, format!("container '{dc}' does not leave node {node}"))
        .because(format!("{count} of its processes run there"))
        .hint(format!("dvs ps {dc}; --force ends them"))
        .into())
}

/// `None`: the container is gone meanwhile.
async fn unseat_and_wait(api: &Arc<Api>, dc: &str, node: &str, generation: u64) -> Result<Option<DcView>, Failure> {
    let (also, name, from) = (Arc::clone(api), dc.to_owned(), node.to_owned());
    let view = blocking(move || unseat(&*also.context.engine, &name, &from, generation)).await?;
    let gone = wait_until(api, &view, STOP_LIMIT, |view, alive: &BTreeSet<String>| match view.shares.get(node) {
        Some(share) if !share.gone && alive.contains(node) => {
            Progress::Waiting(format!("node {node} still has a part of it"))
        }
        _ => Progress::Done,
    })
    .await?;
    let Some(mut view) = gone else { return Ok(None) };
    view.shares.remove(node);
    let (also, key) = (Arc::clone(api), records::share_key(dc, node));
    // Its last word; without this it would go with the node's lease.
    blocking(move || Ok(also.context.engine.transact(&[], &[Op::delete(key)])?)).await?;
    Ok(Some(view))
}

/// Gives the node a seat, its servers and what it is promised, in one transaction. A node that is there already stays.
fn seat(engine: &dyn Engine, dc: &str, node: &str) -> Result<DcView, Failure> {
    for _ in 0..ATTEMPTS {
        let mut view = records::dc_view(engine, dc)?.ok_or_else(|| no_such_dc(dc))?;
        demand_lasting(&view.record)?;
        if view.record.spec.nodes.iter().any(|one| one == node) {
            return Ok(view);
        }
        let record = with_node(&view.record, node)?;
        spec::check(&record.spec, &known_nodes(engine)?)?;
        demand_volumes(engine, &record.spec, &[node.to_owned()])?;
        demand_open(engine, dc, node)?;
        let accounts = ledger::accounts(engine)?;
        demand_promise(&accounts, &record, node)?;
        let promise = record.placement.promised.get(node).copied().unwrap_or_default();
        let promised = BTreeMap::from([(node.to_owned(), promise)]);
        let mut booking = ledger::book(&accounts, &promised, Change::Promise);
        let key = records::dc_key(dc);
        // A node that is taken out of the cluster at this moment compares the ledger, too.
        let still_a_node = Compare::Present { key: records::member_key(node) };
        booking.compares.extend([Compare::Modified { key: key.clone(), at: view.modified }, still_a_node]);
        booking.ops.push(Op::put(key, records::encode(&record)));
        if let Outcome::Done(modified) = engine.transact(&booking.compares, &booking.ops)? {
            (view.record, view.modified) = (record, modified);
            return Ok(view);
        }
    }
    Err(contended())
}

/// Whether a node would be given a seat.
pub fn admit(engine: &dyn Engine, record: &DcRecord, node: &str) -> Result<(), Failure> {
    let with = with_node(record, node)?;
    spec::check(&with.spec, &known_nodes(engine)?)?;
    demand_volumes(engine, &with.spec, &[node.to_owned()])?;
    demand_open(engine, &record.spec.name, node)?;
    demand_promise(&ledger::accounts(engine)?, &with, node)
}

fn demand_open(engine: &dyn Engine, dc: &str, node: &str) -> Result<(), Failure> {
    if !nodes::wishes(engine)?.get(node).is_some_and(|wish| wish.cordoned) {
        return Ok(());
    }
    Err(ErrorBody::new(ErrorKind::Conflict, format!("container '{dc}' does not come to node {node}"))
        .because("it is cordoned: it takes nothing new")
        .hint(format!("another node, or dvs node uncordon {node}"))
        .into())
}

fn demand_promise(accounts: &ledger::Accounts, record: &DcRecord, node: &str) -> Result<(), Failure> {
    let promise = record.placement.promised.get(node).copied().unwrap_or_default();
    let Some(account) = accounts.get(node) else { return Ok(()) };
    Ok(account.admits(node, &promise).map_err(|shortage| shortage.refusal(&record.spec.name))?)
}

/// Takes the node's name out of the record; it ends what it has by itself. Repeatable.
fn unseat(engine: &dyn Engine, dc: &str, node: &str, seen: u64) -> Result<DcView, Failure> {
    for _ in 0..ATTEMPTS {
        let mut view = records::dc_view(engine, dc)?.ok_or_else(|| no_such_dc(dc))?;
        demand_lasting(&view.record)?;
        if !view.record.spec.nodes.iter().any(|one| one == node) {
            // Somebody else does the same, unless there never was such a node.
            return if view.record.generation > seen { Ok(view) } else { Err(spans_not(&view.record, node)) };
        }
        check_removal(&view.record, node)?;
        let (record, promised) = without_node(&view.record, node);
        let accounts = ledger::accounts(engine)?;
        let mut booking = ledger::book(&accounts, &promised, Change::GiveBack);
        let key = records::dc_key(dc);
        booking.compares.push(Compare::Modified { key: key.clone(), at: view.modified });
        booking.ops.push(Op::put(key, records::encode(&record)));
        if let Outcome::Done(modified) = engine.transact(&booking.compares, &booking.ops)? {
            (view.record, view.modified) = (record, modified);
            return Ok(view);
        }
    }
    Err(contended())
}

pub fn known_nodes(engine: &dyn Engine) -> Result<spec::KnownNodes, Failure> {
    let mut known = spec::KnownNodes::new();
    for entry in engine.list(records::MEMBERS)?.entries {
        let node: NodeRecord = records::decode(&entry)?;
        known.insert(node.name, node.cpu_list);
    }
    Ok(known)
}

/// Whether these nodes allow the directories that a container wants of them, by what they say of themselves.
pub fn demand_volumes(engine: &dyn Engine, spec: &DcSpec, nodes: &[String]) -> Result<(), Failure> {
    if spec.volumes.is_empty() {
        return Ok(());
    }
    let known = records::members(engine)?.into_values().map(|node| (node.name, node.volumes)).collect();
    Ok(volumes::admit(spec, nodes, &known)?)
}

/// The container with one more node.
fn with_node(record: &DcRecord, node: &str) -> Result<DcRecord, ErrorBody> {
    let mut record = record.clone();
    let full = |why: String| {
        ErrorBody::new(ErrorKind::NoSpace, format!("container '{}' has no seat for node {node}", record.spec.name))
            .because(why)
            .hint("a node that it had before; or a new container")
    };
    if record.seats.is_empty() {
        record.seats = record.spec.nodes.iter().cloned().zip(0..).collect();
    }
    if !record.seats.contains_key(node) {
        let seat = record.endpoints.len();
        if seat >= NODES_PER_DC {
            return Err(full(format!("it has had {NODES_PER_DC} nodes")));
        }
        let Some(endpoints) = spec::further_endpoints(&record.endpoints) else {
            return Err(full("too few of its endpoints are left".to_owned()));
        };
        let address = spec::subnet(&record.spec.subnet)?.address(u8::try_from(seat).unwrap_or(u8::MAX));
        if let Err(error) = address {
            return Err(full(error.to_string()));
        }
        record.seats.insert(node.to_owned(), seat);
        record.endpoints.push(endpoints);
    }
    record.spec.nodes.push(node.to_owned());
    let Some(seat) = record.seat_of(node) else { return Err(full("its record makes no sense".to_owned())) };
    let further = placer::instances_of_another(&record.spec, KINDS, node, seat, &record.placement.instances);
    record.placement.instances.extend(further);
    let promise = Promise { containers: 1, memory_bytes: record.spec.limits.memory_bytes.unwrap_or(0), disk_bytes: 0 };
    record.placement.promised.insert(node.to_owned(), promise);
    record.generation += 1;
    Ok(record)
}

/// The container with one node less, and what that node had promised.
fn without_node(record: &DcRecord, node: &str) -> (DcRecord, BTreeMap<String, Promise>) {
    let mut record = record.clone();
    if record.seats.is_empty() {
        record.seats = record.spec.nodes.iter().cloned().zip(0..).collect();
    }
    record.spec.nodes.retain(|one| one != node);
    // A volume of that node alone goes with it: of no node would be of all.
    record.spec.volumes.retain(|volume| !(volume.nodes.len() == 1 && volume.nodes.iter().any(|one| one == node)));
    record.spec.volumes.iter_mut().for_each(|volume| volume.nodes.retain(|one| one != node));
    record.placement.instances.retain(|instance| instance.node != node);
    let promised = record.placement.promised.remove_entry(node).into_iter().collect();
    record.generation += 1;
    (record, promised)
}

pub fn demand_lasting(record: &DcRecord) -> Result<(), Failure> {
    match record.desired {
        Desired::Deleted { .. } => {
            let what = format!("container '{}' is being deleted", record.spec.name);
            Err(failure(ErrorKind::Conflict, what, "another container, or wait"))
        }
        Desired::Running | Desired::Stopped { .. } => Ok(()),
    }
}

pub fn check_removal(record: &DcRecord, node: &str) -> Result<(), Failure> {
    let dc = &record.spec.name;
    if !record.spec.nodes.iter().any(|one| one == node) {
        return Err(spans_not(record, node));
    }
    let refused = |why: String, hint: String| {
        let body = ErrorBody::new(ErrorKind::Conflict, format!("container '{dc}' does not leave node {node}"));
        Err(body.because(why).hint(hint).into())
    };
    if record.spec.nodes.len() == 1 {
        return refused("it is its last node".to_owned(), format!("dvs dc delete {dc}"));
    }
    let lasting = record.placement.instances.iter().filter(|one| one.node == node && one.why != Why::EachNode);
    let lasting: Vec<&str> = lasting.map(|one| one.name.as_str()).collect();
    if lasting.is_empty() {
        return Ok(());
    }
    refused(
        format!("its servers stand there: {}", lasting.join(", ")),
        format!(
            "dvs server move {dc} SERVER NODE, dvs disk replica remove {dc} DISK {node}; what lies there alone does not move"
        ),
    )
}

fn spans_not(record: &DcRecord, node: &str) -> Failure {
    let what = format!("container '{}' does not span node '{node}'", record.spec.name);
    failure(ErrorKind::NotFound, what, format!("its nodes are {}", record.spec.nodes.join(", ")))
}

pub fn contended() -> Failure {
    failure(ErrorKind::Unavailable, format!("others were faster {ATTEMPTS} times"), "again")
}

#[cfg(test)]
mod tests {
    use cluster::local::{LocalConfig, LocalEngine};
    use mgmt_api::Capacity;
    use serde_json::json;

    use super::*;
    use crate::ledger::Accounts;
    use crate::reconcile::share::Share;

    fn record(nodes: &[&str]) -> DcRecord {
        let wish = serde_json::from_value(json!({ "name": "shop", "nodes": nodes })).unwrap();
        DcRecord {
            id: 7,
            placement: placer::place(&wish, KINDS, &Accounts::new()).unwrap(),
            spec: wish,
            desired: Desired::Running,
            generation: 1,
            created_s: 0,
            endpoints: spec::share_endpoints(nodes.len()),
            paused: false,
            seats: BTreeMap::new(),
            go_back: None,
            tree_bytes: None,
        }
    }

    #[test]
    fn what_the_others_have_stays_whoever_comes_and_goes() {
        let mut now = record(&["n1", "n2", "n3"]);
        let mut seen: BTreeMap<String, (u32, std::ops::Range<u32>, String)> = BTreeMap::new();
        let steps: [(&str, bool); 8] = [
            ("n4", true),
            ("n3", false),
            ("n5", true),
            ("n3", true),
            ("n4", false),
            ("n6", true),
            ("n5", false),
            ("n4", true),
        ];
        for (node, comes) in steps {
            let before = now.generation;
            now = if comes { with_node(&now, node).unwrap() } else { without_node(&now, node).0 };
            assert_eq!(now.generation, before + 1);
            let (mut taken, mut addresses) = (Vec::new(), BTreeSet::new());
            for node in &now.spec.nodes {
                let share = Share::of(&now, node).expect("each node has a share");
                let what = (share.pid_base, share.endpoints.clone(), share.address.to_string());
                // For ever, also when it comes back.
                assert_eq!(seen.entry(node.clone()).or_insert_with(|| what.clone()), &what, "{node}");
                assert!(addresses.insert(what.2));
                taken.push(what.1);
                let gate = now.placement.instances.iter().find(|one| one.node == *node && one.kind.name() == "gate");
                assert_eq!(gate.expect("each node has a gate").index, share.index);
            }
            taken.sort_by_key(|range| range.start);
            assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start), "{taken:?}");
            let endpoints: BTreeSet<u32> = now.placement.instances.iter().map(|one| one.endpoint).collect();
            assert_eq!(endpoints.len(), now.placement.instances.len(), "no two servers have one endpoint");
            let promised: BTreeSet<&String> = now.placement.promised.keys().collect();
            assert_eq!(promised, now.spec.nodes.iter().collect());
        }
    }

    #[test]
    fn seats_are_bounded_and_a_server_that_stands_alone_keeps_its_node() {
        let mut now = record(&["n1"]);
        let mut count = 1;
        let refused = loop {
            match with_node(&now, &format!("m{count}")) {
                Ok(next) => now = without_node(&next, &format!("m{count}")).0,
                Err(refused) => break refused,
            }
            count += 1;
        };
        assert!((10..=NODES_PER_DC).contains(&count) && refused.kind == ErrorKind::NoSpace, "{count}: {refused}");
        with_node(&now, "m1").expect("one that was there has its seat still");
        let two = record(&["n1", "n2"]);
        assert!(check_removal(&two, "n1").is_err(), "fs stands there");
        assert!(check_removal(&two, "n9").is_err() && check_removal(&record(&["n1"]), "n1").is_err());
        let three = with_node(&two, "n3").unwrap();
        check_removal(&three, "n3").unwrap();
    }

    #[test]
    fn promises_come_and_go_with_the_node_and_what_is_too_much_is_refused() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).unwrap();
        let mut shop = record(&["n1", "n2"]);
        shop.spec.limits.memory_bytes = Some(64 << 20);
        let node = |name: &str| {
            let record = json!({ "name": name, "id": 1, "epoch": 1, "address": "10.0.0.1", "proxy_port": 1, "api_port": 1,
                "cpus": 1, "memory_bytes": 1 });
            Op::put(records::member_key(name), records::encode(&record))
        };
        let small = Capacity { containers: 1, memory_bytes: 100 << 20, disk_bytes: None, cpus: 1 };
        let ops = [
            node("n1"),
            node("n2"),
            node("n3"),
            Op::put(records::dc_key("shop"), records::encode(&shop)),
            Op::put("/capacity/n3", records::encode(&small)),
        ];
        engine.transact(&[], &ops).unwrap();
        let promised = || ledger::accounts(&engine).unwrap().get("n3").map(|account| account.promised.memory_bytes);
        let there = seat(&engine, "shop", "n3").unwrap();
        assert_eq!((there.record.spec.nodes.len(), promised()), (3, Some(64 << 20)));
        seat(&engine, "shop", "n3").expect("again is no error");
        assert_eq!(promised(), Some(64 << 20));
        assert_eq!(seat(&engine, "shop", "n9").unwrap_err().0.kind, ErrorKind::BadRequest);
        unseat(&engine, "shop", "n3", there.record.generation).unwrap();
        assert_eq!(promised(), Some(0));
        unseat(&engine, "shop", "n3", there.record.generation).expect("again is no error");
        shop.spec.name = "other".to_owned();
        shop.spec.limits.memory_bytes = Some(101 << 20);
        engine.transact(&[], &[Op::put(records::dc_key("other"), records::encode(&shop))]).unwrap();
        assert_eq!(seat(&engine, "other", "n3").unwrap_err().0.kind, ErrorKind::NoSpace);
    }
}
