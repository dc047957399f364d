//! Containers that become other while they run: limits, environment, way out, ports. The record is changed in one
//! transaction with what its nodes promised; then the nodes follow, and what one of them cannot do is taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use cluster::{Compare, Engine, Op, Outcome};
use mgmt_api::{Bytes, Dc, DcChange, DcPhase, DcSpec, DiskSpec, ErrorBody, ErrorKind, Limits, PortSpec, Promise};
use serde_json::Value;

use super::dcs::{Progress, wait_until};
use super::failure::{Failure, no_such_dc};
use super::spans::{contended, demand_lasting, demand_volumes, known_nodes};
use super::{Api, blocking, parse, read_body};
use crate::kinds::KINDS;
use crate::ledger::{self, Accounts, Booking, Change};
use crate::level;
use crate::placer;
use crate::records::{self, DcRecord, DcView, Desired};
use crate::spec;

/// For nodes to follow.
const LIMIT: Duration = Duration::from_secs(30);
/// Others may be faster this often; each time one of them has got on.
const ATTEMPTS: usize = 100;

pub async fn change(State(api): State<Arc<Api>>, Path(dc): Path<String>, body: Body) -> Result<Json<Dc>, Failure> {
    let change: DcChange = parse(&read_body(body).await?)?;
    let edited = edit(&api, &dc, move |engine, record| {
        demand_generation(record, change.generation)?;
        apply(engine, record, &change)
    })
    .await?;
    Ok(Json(api.describe(&follow(&api, edited).await?)))
}

fn apply(engine: &dyn Engine, record: &mut DcRecord, change: &DcChange) -> Result<(), ErrorBody> {
    let volumes = record.spec.volumes.clone();
    record.spec = changed(&record.spec, change)?;
    // What it had before is not of this change, whatever its nodes allow by now.
    if record.spec.volumes != volumes {
        demand_volumes(engine, &record.spec, &record.spec.nodes).map_err(|failed| failed.0)?;
    }
    demand_release(&record.spec, level::of(engine).map_err(|error| Failure::from(error).0)?)?;
    spec::check(&record.spec, &known_nodes(engine).map_err(|failed| failed.0)?)
}

/// Whether it would be changed so, when it spans these nodes.
pub fn admit(engine: &dyn Engine, record: &DcRecord, change: &DcChange, nodes: &[String]) -> Result<(), Failure> {
    let earlier = &record.spec;
    let mut record = DcRecord { spec: DcSpec { nodes: nodes.to_vec(), ..earlier.clone() }, ..record.clone() };
    apply(engine, &mut record, change)?;
    rebook(&ledger::accounts(engine)?, &mut record)?;
    Ok(())
}

/// The description as it is to be.
fn changed(spec: &DcSpec, change: &DcChange) -> Result<DcSpec, ErrorBody> {
    let DcChange { generation: _, limits, env, egress, nbd, ports, volumes } = change;
    let mut spec = spec.clone();
    spec.limits = changed_limits(&spec.limits, limits)?;
    for (name, value) in env {
        set_variable(&mut spec.env, name, value.as_ref())?;
    }
    spec.egress = egress.clone().unwrap_or(spec.egress);
    spec.nbd = nbd.clone().unwrap_or(spec.nbd);
    spec.ports = ports.clone().unwrap_or(spec.ports);
    spec.volumes = volumes.clone().unwrap_or(spec.volumes);
    Ok(spec)
}

fn changed_limits(limits: &Limits, change: &BTreeMap<String, Value>) -> Result<Limits, ErrorBody> {
    let bad = |why: serde_json::Error| {
        ErrorBody::new(ErrorKind::BadRequest, "limits cannot be understood")
            .because(why.to_string())
            .hint("names and values of [limits] in dc.toml; null for what is to be as usual")
    };
    let mut all = serde_json::to_value(limits).map_err(bad)?;
    if let Value::Object(all) = &mut all {
        all.extend(change.clone());
    }
    serde_json::from_value(all).map_err(bad)
}

fn set_variable(env: &mut Vec<Bytes>, name: &str, value: Option<&Bytes>) -> Result<(), ErrorBody> {
    let bad = |why: String| {
        ErrorBody::new(ErrorKind::BadRequest, format!("{name:?} is no variable of the environment"))
            .because(why)
            .hint("a name without '=' and zero bytes, and a value")
    };
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(bad("such a name cannot be".to_owned()));
    }
    let is_meant = |pair: &Bytes| {
        let pair = pair.bytes().unwrap_or_default();
        pair.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
    };
    let place = env.iter().position(is_meant);
    let Some(value) = value else {
        env.retain(|pair| !is_meant(pair));
        return Ok(());
    };
    let value = value.bytes().map_err(|error| bad(error.to_string()))?;
    let pair = Bytes::from([name.as_bytes(), b"=", &*value].concat());
    match place.and_then(|place| env.get_mut(place)) {
        Some(there) => *there = pair,
        None => env.push(pair),
    }
    Ok(())
}

fn demand_generation(record: &DcRecord, wanted: Option<u64>) -> Result<(), ErrorBody> {
    let dc = &record.spec.name;
    match wanted {
        Some(wanted) if wanted != record.generation => {
            Err(ErrorBody::new(ErrorKind::Conflict, format!("container '{dc}' is another one by now"))
                .because(format!("its generation is {}, not {wanted}", record.generation))
                .hint(format!("look again: dvs dc inspect {dc}")))
        }
        _ => Ok(()),
    }
}

/// Daemons of the release before cannot read such a container any more.
pub fn demand_release(spec: &DcSpec, level: u64) -> Result<(), ErrorBody> {
    let is_known = spec.ports.is_empty() && spec.egress.is_none() && spec.env.is_empty();
    let is_known =
        is_known && spec.volumes.is_empty() && spec.nbd.is_none() && !spec.disks.iter().any(DiskSpec::is_replicated);
    if is_known || level >= records::FORMAT {
        return Ok(());
    }
    Err(unknown_to_some(
        "published ports, no way out, no environment of containers, no host volumes, no disks over NBD and no copies of disks",
    ))
}

/// Likewise, whatever its description says.
pub fn demand_copies(level: u64) -> Result<(), ErrorBody> {
    demand_known(level, "copies of disks")
}

/// Of something that daemons of an earlier release do not know.
pub fn demand_known(level: u64, what: &str) -> Result<(), ErrorBody> {
    if level >= records::FORMAT { Ok(()) } else { Err(unknown_to_some(what)) }
}

fn unknown_to_some(what: &str) -> ErrorBody {
    ErrorBody::new(ErrorKind::Conflict, format!("the cluster knows no {what}"))
        .because("daemons of an earlier release are in it")
        .hint("dvs node upgrade")
}

/// Its programs stand still, or go on where they stood. Nothing is changed when one of its nodes cannot do so.
pub async fn pause(api: &Arc<Api>, dc: &str, paused: bool) -> Result<Dc, Failure> {
    let edited = edit(api, dc, move |engine, record| {
        demand_known(level::of(engine).map_err(|error| Failure::from(error).0)?, "containers that stand still")?;
        if record.desired != Desired::Running {
            let dc = &record.spec.name;
            let stopped = ErrorBody::new(ErrorKind::Conflict, format!("container '{dc}' is stopped"));
            return Err(stopped.hint(format!("dvs start {dc}")));
        }
        record.paused = paused;
        Ok(())
    })
    .await?;
    Ok(api.describe(&follow(api, edited).await?))
}

/// What would begin in it stands still with the others.
pub fn demand_goes_on(record: &DcRecord) -> Result<(), ErrorBody> {
    let dc = &record.spec.name;
    if !record.paused {
        return Ok(());
    }
    Err(ErrorBody::new(ErrorKind::Conflict, format!("container '{dc}' is paused")).hint(format!("dvs unpause {dc}")))
}

/// A container that was changed, and what it was before.
pub struct Edited {
    view: DcView,
    earlier: DcRecord,
}

/// Changes the record, whoever else does meanwhile. What makes no difference is not written.
pub async fn edit(
    api: &Arc<Api>,
    dc: &str,
    edit: impl Fn(&dyn Engine, &mut DcRecord) -> Result<(), ErrorBody> + Send + 'static,
) -> Result<Edited, Failure> {
    let (api, dc) = (Arc::clone(api), dc.to_owned());
    blocking(move || {
        let engine = &*api.context.engine;
        for _ in 0..ATTEMPTS {
            let mut view = records::dc_view(engine, &dc)?.ok_or_else(|| no_such_dc(&dc))?;
            demand_lasting(&view.record)?;
            let earlier = view.record.clone();
            edit(engine, &mut view.record)?;
            if view.record.spec.nbd != earlier.spec.nbd {
                let DcRecord { spec, placement, generation, .. } = &mut view.record;
                placer::renew_exporting(spec, &mut placement.instances, KINDS, *generation + 1);
            }
            if view.record == earlier || write(engine, &mut view, &earlier.spec)? {
                return Ok(Edited { view, earlier });
            }
        }
        Err(contended())
    })
    .await
}

/// With what its nodes promise. False: somebody else changed something of it first.
fn write(engine: &dyn Engine, view: &mut DcView, earlier: &DcSpec) -> Result<bool, Failure> {
    if view.record.spec.limits.memory_bytes == earlier.limits.memory_bytes {
        return Ok(records::renew_dc(engine, view)?);
    }
    let mut booking = rebook(&ledger::accounts(engine)?, &mut view.record)?;
    view.record.generation += 1;
    let key = records::dc_key(&view.record.spec.name);
    booking.compares.push(Compare::Modified { key: key.clone(), at: view.modified });
    booking.ops.push(Op::put(key, records::encode(&view.record)));
    match engine.transact(&booking.compares, &booking.ops)? {
        Outcome::Done(modified) => {
            view.modified = modified;
            Ok(true)
        }
        Outcome::Conflict(_) => Ok(false),
    }
}

/// Its nodes promise the memory of its description, if they can.
fn rebook(accounts: &Accounts, record: &mut DcRecord) -> Result<Booking, ErrorBody> {
    let wanted = record.spec.limits.memory_bytes.unwrap_or(0);
    let of = |memory_bytes| Promise { containers: 0, memory_bytes, disk_bytes: 0 };
    let (mut more, mut less) = (BTreeMap::new(), BTreeMap::new());
    for (node, promise) in &mut record.placement.promised {
        if wanted > promise.memory_bytes {
            let further = of(wanted - promise.memory_bytes);
            if let Some(account) = accounts.get(node) {
                account.admits(node, &further).map_err(|shortage| shortage.refusal(&record.spec.name))?;
            }
            more.insert(node.clone(), further);
        } else {
            less.insert(node.clone(), of(promise.memory_bytes - wanted));
        }
        promise.memory_bytes = wanted;
    }
    let mut booking = ledger::book(accounts, &more, Change::Promise);
    let given_back = ledger::book(accounts, &less, Change::GiveBack);
    booking.compares.extend(given_back.compares);
    booking.ops.extend(given_back.ops);
    Ok(booking)
}

/// Until its nodes are as it is described now. What one of them cannot be is as before again, everywhere.
pub async fn follow(api: &Arc<Api>, edited: Edited) -> Result<DcView, Failure> {
    let Edited { view: changed, earlier } = edited;
    if changed.record == earlier || changed.record.desired != Desired::Running {
        return Ok(changed);
    }
    let failed = match await_nodes(api, &changed, &earlier.spec).await {
        Ok(view) => return Ok(view),
        Err(failed) => failed,
    };
    let (dc, generation) = (changed.record.spec.name, changed.record.generation);
    let taken_back = edit(api, &dc, move |_, record| {
        // Who changed it after us has seen what it was.
        demand_generation(record, Some(generation))?;
        (record.spec, record.paused) = (earlier.spec.clone(), earlier.paused);
        Ok(())
    });
    match taken_back.await {
        Ok(Edited { view, .. }) => {
            // Its nodes are on their way back; who asks next meets no half of both.
            let _ = wait_until(api, &view, LIMIT, |now, alive| heard(now, alive, view.record.generation)).await;
        }
        Err(left) => tracing::warn!(dc, why = %left.0, "a change that a node could not follow is not taken back"),
    }
    Err(failed)
}

async fn await_nodes(api: &Arc<Api>, changed: &DcView, earlier: &DcSpec) -> Result<DcView, Failure> {
    let (name, generation) = (changed.record.spec.name.clone(), changed.record.generation);
    let ports: Vec<&PortSpec> = changed.record.spec.ports.iter().filter(|port| !earlier.ports.contains(port)).collect();
    let progress = |view: &DcView, alive: &BTreeSet<String>| {
        match heard(view, alive, generation) {
            Progress::Done => (),
            other => return other,
        }
        for node in view.record.spec.nodes.iter().filter(|node| alive.contains(*node)) {
            match stands(changed, view, node, &ports) {
                Progress::Done => (),
                other => return other,
            }
        }
        Progress::Done
    };
    wait_until(api, changed, LIMIT, progress).await?.ok_or_else(|| no_such_dc(&name))
}

/// Whether all nodes that are there work on the record as it is.
fn heard(view: &DcView, alive: &BTreeSet<String>, generation: u64) -> Progress {
    let is_behind = |node: &&String| view.shares.get(*node).is_none_or(|share| share.generation < generation);
    match view.record.spec.nodes.iter().filter(|node| alive.contains(*node)).find(is_behind) {
        Some(node) => Progress::Waiting(format!("node {node} has not heard of it")),
        None => Progress::Done,
    }
}

/// Whether a node has followed, with these ports among others. What was wrong with it before is not of this change.
fn stands(before: &DcView, view: &DcView, node: &str, ports: &[&PortSpec]) -> Progress {
    let (Some(share), name) = (view.shares.get(node).map(|record| &record.share), &view.record.spec.name) else {
        return Progress::Waiting(format!("node {node} says nothing"));
    };
    for port in ports.iter().filter(|port| port.is_at(node)) {
        let written = port.to_string();
        let problem = match share.ports.iter().find(|one| one.port == written) {
            None => return Progress::Waiting(format!("node {node} does not listen yet")),
            Some(said) => said.problem.clone(),
        };
        if let Some(problem) = problem {
            let body = ErrorBody::new(ErrorKind::Conflict, format!("container '{name}' does not get the port"));
            return Progress::Failed(body.because(problem).hint("another port, or other nodes: dvs port add --help"));
        }
    }
    let earlier = before.shares.get(node).map(|record| &record.share);
    let was_known = |problem: &&String| earlier.is_some_and(|earlier| earlier.problems.contains(problem));
    if let Some(problem) = share.problems.iter().find(|problem| !was_known(problem)) {
        let body = ErrorBody::new(ErrorKind::Conflict, format!("node {node} cannot follow container '{name}'"));
        return Progress::Failed(body.because(problem.clone()).hint("other values; nothing is changed"));
    }
    match share.phase {
        DcPhase::Starting if earlier.is_some_and(|earlier| earlier.phase == DcPhase::Running) => {
            Progress::Waiting(format!("node {node} follows"))
        }
        _ => Progress::Done,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> DcSpec {
        serde_json::from_value(json!({
            "name": "shop", "nodes": ["n1"], "env": ["A=1", "AB=2"], "limits": { "pids": 100, "cpu_max": 0.5 },
            "egress": { "allow": ["192.0.2.0/24"] },
        }))
        .unwrap()
    }

    fn with(change: Value) -> Result<DcSpec, String> {
        let change: DcChange = serde_json::from_value(change).map_err(|error| error.to_string())?;
        changed(&spec(), &change).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_absent_stays_and_what_is_null_goes() {
        assert_eq!(with(json!({})).unwrap(), spec());
        let now = with(json!({ "limits": { "pids": null, "memory_bytes": 1 << 30 }, "egress": null })).unwrap();
        assert_eq!(now.limits, Limits { cpu_max: Some(0.5), memory_bytes: Some(1 << 30), ..Limits::default() });
        assert_eq!((now.egress, now.env), (None, spec().env));
        let now = with(json!({ "egress": {}, "ports": [{ "published": 80, "port": 8080 }] })).unwrap();
        assert_eq!((now.egress, now.ports.len()), (Some(Default::default()), 1));
    }

    #[test]
    fn variables_are_told_apart_by_their_whole_name() {
        let pairs = |spec: DcSpec| spec.env.iter().map(|pair| pair.lossy()).collect::<Vec<_>>();
        assert_eq!(pairs(with(json!({ "env": { "A": "x=y", "C": "" } })).unwrap()), ["A=x=y", "AB=2", "C="]);
        assert_eq!(pairs(with(json!({ "env": { "AB": null, "Z": null } })).unwrap()), ["A=1"]);
        for bad in [json!({ "": "1" }), json!({ "A=B": "1" }), json!({ "A": { "hex": "0" } })] {
            assert!(with(json!({ "env": bad })).is_err());
        }
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for bad in [json!({ "pds": 3 }), json!({ "pids": "many" }), json!({ "pids": -1 })] {
            assert!(with(json!({ "limits": bad.clone() })).is_err(), "{bad}");
        }
        assert!(with(json!({ "limit": {} })).is_err());
    }
}
