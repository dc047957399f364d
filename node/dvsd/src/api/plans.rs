//! What would become other if containers were as they are described (`mgmt_api::ApplyPlan`). The comparison is pure;
//! whether what it finds is admitted is asked of those who decide when it is done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use cluster::Engine;
use mgmt_api::{
    ApplyPlan, ApplyRequest, Bytes, DcChange, DcPlan, DcSpec, DiskSpec, ErrorBody, ErrorKind, HostVolume, Limits,
    Placement, PlanRequest, PlanStep, ServerKind, ServiceSpec,
};
use serde_json::Value;
use service_core::order;

use super::failure::{Failure, failure};
use super::{Api, blocking, changes, dcs, parse, read_body, spans};
use crate::placer;
use crate::records::{self, DcView, Desired};
use crate::services;

/// Of one description.
const DCS_MAX: usize = 64;

pub async fn plan(State(api): State<Arc<Api>>, body: Body) -> Result<Json<ApplyPlan>, Failure> {
    let ApplyRequest { dcs, running } = parse(&read_body(body).await?)?;
    demand_sense(&dcs)?;
    let mut plan = ApplyPlan::default();
    for wanted in dcs {
        let (also, name) = (Arc::clone(&api), wanted.name.clone());
        let found = blocking(move || found(&*also.context.engine, &name)).await?;
        plan.dcs.push(match found {
            Some((view, services)) => other(&api, &view, &services, &wanted, running).await?,
            None => new(&api, wanted, running).await?,
        });
    }
    Ok(Json(plan))
}

fn demand_sense(dcs: &[DcSpec]) -> Result<(), Failure> {
    let bad = |what: String| failure(ErrorKind::BadRequest, what, "dvs apply --help");
    if dcs.is_empty() || dcs.len() > DCS_MAX {
        return Err(bad(format!("a description has 1 to {DCS_MAX} containers, not {}", dcs.len())));
    }
    let mut names = BTreeSet::new();
    match dcs.iter().find(|spec| !names.insert(&spec.name)) {
        Some(twice) => Err(bad(format!("container '{}' is described twice", twice.name))),
        None => Ok(()),
    }
}

/// A container that there is, and its services.
fn found(engine: &dyn Engine, dc: &str) -> Result<Option<(DcView, Vec<ServiceSpec>)>, Failure> {
    let Some(view) = records::dc_view(engine, dc)? else { return Ok(None) };
    let services = services::record::views(engine, view.record.id)?;
    Ok(Some((view, services.into_values().map(|service| service.record.spec).collect())))
}

async fn new(api: &Arc<Api>, spec: DcSpec, running: bool) -> Result<DcPlan, Failure> {
    let desired = if running { Desired::Running } else { Desired::Stopped { grace_ms: 0 } };
    let (also, wanted) = (Arc::clone(api), spec.clone());
    let admitted = blocking(move || dcs::admit(&*also.context.engine, &wanted, desired)).await;
    let admitted = match admitted {
        Ok((kept, placement)) => {
            let room = dcs::demand_space(api, &spec.name, &placement).await;
            let full = |Failure(full)| Failure::from(dcs::blame_usual_copies(&spec, &kept, full));
            room.map(|()| placement).map_err(full)
        }
        Err(refused) => Err(refused),
    };
    let mut what = vec![format!("new, on {}", spec.nodes.join(", "))];
    what.extend(admitted.iter().flat_map(copies));
    what.extend(spec.services.iter().map(|service| format!("service {}: new", service.name)));
    what.extend(spec.ports.iter().map(|port| format!("port {port}: published")));
    what.extend(spec.volumes.iter().map(|volume| format!("volume {volume}: seen")));
    let dc = spec.name.clone();
    let request = PlanRequest::DcCreate { spec: Box::new(spec), start: running };
    let refused = admitted.err().map(|Failure(body)| body);
    Ok(DcPlan { dc, generation: None, steps: vec![PlanStep { what, request }], refused })
}

/// What disks with copies cost, a line each.
fn copies(placement: &Placement) -> Vec<String> {
    let instances = &placement.instances;
    let disks = instances.iter().filter(|one| one.kind == ServerKind::DISK && !placer::is_store(one));
    let said = disks.filter_map(|disk| {
        let nodes: Vec<&str> = placer::copies_of(instances, disk).map(|copy| copy.node.as_str()).collect();
        let name = &disk.volume.as_ref()?.name;
        (nodes.len() > 1).then(|| {
            let (many, nodes) = (nodes.len(), nodes.join(", "));
            format!("disk {name}: {many} copies, on {nodes}: {many} times its size, and a write waits for the slowest")
        })
    });
    said.collect()
}

async fn other(
    api: &Arc<Api>,
    view: &DcView,
    services: &[ServiceSpec],
    wanted: &DcSpec,
    running: bool,
) -> Result<DcPlan, Failure> {
    let (dc, generation) = (wanted.name.clone(), view.record.generation);
    let mut steps = steps(&view.record.spec, services, wanted, generation);
    if running && view.record.desired != Desired::Running {
        steps.push(PlanStep { what: vec!["is started".to_owned()], request: PlanRequest::DcStart });
    }
    let (also, record, all, spec) = (Arc::clone(api), view.record.clone(), steps.clone(), wanted.clone());
    let admitted = blocking(move || {
        demand_same(&record.spec, &spec)?;
        spans::demand_lasting(&record)?;
        service_core::wish::check(&spec.services, nodes(&record.spec, &spec))?;
        let engine = &*also.context.engine;
        let (mut record, first) = (record, all.iter().position(|step| is_node_add(&step.request)));
        for (at, step) in all.iter().enumerate() {
            match &step.request {
                PlanRequest::DcChange { change } if first.is_some_and(|first| at < first) => {
                    changes::admit(engine, &record, change, &record.spec.nodes)?;
                    record.spec.volumes = change.volumes.clone().unwrap_or(record.spec.volumes);
                }
                PlanRequest::DcNodeAdd { node } => spans::admit(engine, &record, node)?,
                PlanRequest::DcNodeRemove { node } => spans::check_removal(&record, node)?,
                PlanRequest::DcChange { change } => {
                    changes::admit(engine, &record, change, nodes(&record.spec, &spec))?;
                }
                _ => (),
            }
        }
        Ok(())
    });
    let refused = admitted.await.err().map(|Failure(body)| body);
    Ok(DcPlan { dc, generation: Some(generation), steps, refused })
}

fn is_node_add(request: &PlanRequest) -> bool {
    matches!(request, PlanRequest::DcNodeAdd { .. })
}

/// A description without nodes leaves them as they are.
fn nodes<'a>(is: &'a DcSpec, wanted: &'a DcSpec) -> &'a [String] {
    if wanted.nodes.is_empty() { &is.nodes } else { &wanted.nodes }
}

/// What was decided when the container was made.
fn demand_same(is: &DcSpec, wanted: &DcSpec) -> Result<(), ErrorBody> {
    let differs = [
        ("subnet", is.subnet != wanted.subnet),
        ("with_opt", is.with_opt != wanted.with_opt),
        ("proc", is.proc != wanted.proc),
        ("wait", is.wait != wanted.wait),
        ("servers", !wanted.servers.is_empty() && is.servers != wanted.servers),
        ("disks", !wanted.disks.is_empty() && !are_same(&placer::disks(is), &wanted.disks)),
    ];
    let differs: Vec<&str> = differs.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect();
    if differs.is_empty() {
        return Ok(());
    }
    let what = format!("container '{}' cannot become what is described", is.name);
    Err(ErrorBody::new(ErrorKind::Conflict, what)
        .because(format!("decided when it was made: {}", differs.join(", ")))
        .hint(format!("as it is: dvs dc export {}; or another name", is.name)))
}

/// How many copies a disk has stays as it is when nothing is said of it.
fn are_same(are: &[DiskSpec], wanted: &[DiskSpec]) -> bool {
    let with_copies = |one: &DiskSpec, replicas: Option<u8>| DiskSpec { replicas, ..one.clone() };
    let is_same = |(is, wanted): (&DiskSpec, &DiskSpec)| {
        with_copies(is, None) == with_copies(wanted, None)
            && wanted.replicas.is_none_or(|wanted| wanted == is.replicas.unwrap_or(1))
    };
    are.len() == wanted.len() && are.iter().zip(wanted).all(is_same)
}

/// From what is to what is wanted. Nodes come first and go last: what else changes may name them. Volumes that a node
/// which comes need not allow are taken back to the others before.
fn steps(is: &DcSpec, services: &[ServiceSpec], wanted: &DcSpec, generation: u64) -> Vec<PlanStep> {
    let mut steps = Vec::new();
    let mut step = |what: Vec<String>, request| steps.push(PlanStep { what, request });
    let to = nodes(is, wanted);
    let coming: Vec<&String> = to.iter().filter(|node| !is.nodes.contains(node)).collect();
    let narrowed = narrowed(is, wanted);
    let narrows = !coming.is_empty() && differ(&is.volumes, &narrowed);
    if narrows {
        let gone = is.volumes.iter().filter(|volume| !narrowed.contains(volume));
        let what = gone.map(|volume| format!("volume {volume}: not of nodes that come")).collect();
        let change = DcChange { generation: Some(generation), volumes: Some(narrowed.clone()), ..DcChange::default() };
        step(what, PlanRequest::DcChange { change: Box::new(change) });
    }
    for node in &coming {
        step(vec![format!("node {node}: comes")], PlanRequest::DcNodeAdd { node: (*node).clone() });
    }
    let is = &DcSpec { volumes: if narrows { narrowed } else { is.volumes.clone() }, ..is.clone() };
    let (mut change, what) = change(is, wanted);
    if change != DcChange::default() {
        // Each node that came is a change by itself.
        change.generation = Some(generation + u64::from(narrows) + coming.len() as u64);
        step(what, PlanRequest::DcChange { change: Box::new(change) });
    }
    let becomes = |one: &ServiceSpec| wanted.services.iter().find(|other| other.name == one.name);
    for service in in_order(services).into_iter().rev().filter(|service| becomes(service) != Some(service)) {
        let (service, replaced) = (service.name.clone(), becomes(service).is_some());
        let how = if replaced { "ends, and begins as described" } else { "ends" };
        step(vec![format!("service {service}: {how}")], PlanRequest::ServiceRemove { service, replaced });
    }
    for service in in_order(&wanted.services).into_iter().filter(|service| !services.contains(service)) {
        let is_new = !services.iter().any(|other| other.name == service.name);
        let what = is_new.then(|| format!("service {}: new", service.name));
        step(what.into_iter().collect(), PlanRequest::ServiceAdd { service: Box::new(service.clone()) });
    }
    for node in is.nodes.iter().filter(|node| !to.contains(node)) {
        step(vec![format!("node {node}: goes")], PlanRequest::DcNodeRemove { node: node.clone() });
    }
    steps
}

/// Each after what it comes after.
fn in_order(services: &[ServiceSpec]) -> Vec<&ServiceSpec> {
    match order::order(services) {
        Ok(names) => names.iter().filter_map(|name| services.iter().find(|it| it.name == *name)).collect(),
        // Refused elsewhere.
        Err(_) => services.iter().collect(),
    }
}

/// The volumes that there are, at most where they are to be, on nodes that are there already.
fn narrowed(is: &DcSpec, wanted: &DcSpec) -> Vec<HostVolume> {
    let narrowed = is.volumes.iter().filter_map(|volume| {
        let becomes = wanted.volumes.iter().find(|other| (&other.host, &other.path) == (&volume.host, &volume.path))?;
        if becomes.nodes.is_empty() {
            return Some(volume.clone());
        }
        let nodes: Vec<String> =
            is.nodes.iter().filter(|node| volume.is_at(node) && becomes.is_at(node)).cloned().collect();
        // Of no node would be of all.
        (!nodes.is_empty()).then(|| HostVolume { nodes, ..volume.clone() })
    });
    narrowed.collect()
}

/// What one request can change, and in words.
fn change(is: &DcSpec, wanted: &DcSpec) -> (DcChange, Vec<String>) {
    let mut change = DcChange::default();
    let mut what = Vec::new();
    let [before, after] = [&is.limits, &wanted.limits].map(limits);
    for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let (old, new) = (before.get(name), after.get(name));
        if old != new {
            let shown = |value: Option<&Value>| value.map_or("default".to_owned(), ToString::to_string);
            what.push(format!("{name}: {} -> {}", shown(old), shown(new)));
            change.limits.insert(name.clone(), new.cloned().unwrap_or(Value::Null));
        }
    }
    let [before, after] = [&is.env, &wanted.env].map(|env| variables(env));
    for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let new = after.get(name);
        if before.get(name) != new {
            // Values may be secrets.
            what.push(format!("variable {name}: {}", if new.is_some() { "set" } else { "goes" }));
            change.env.insert(name.clone(), new.cloned());
        }
    }
    if is.egress != wanted.egress {
        let to = wanted.egress.as_ref().map_or("none".to_owned(), |egress| match egress.allow.as_slice() {
            [] => "everything but the cluster's nodes".to_owned(),
            rules => rules.join(", "),
        });
        what.push(format!("way out: {to}"));
        change.egress = Some(wanted.egress.clone());
    }
    if is.nbd != wanted.nbd {
        let to = wanted.nbd.as_ref().map_or("none".to_owned(), |nbd| format!("at {}", nbd.listen));
        what.push(format!("disks over NBD: {to}"));
        change.nbd = Some(wanted.nbd.clone());
    }
    if differ(&is.volumes, &wanted.volumes) {
        let gone = is.volumes.iter().filter(|volume| !wanted.volumes.contains(volume));
        what.extend(gone.map(|volume| format!("volume {volume}: from the next start on not seen as it was")));
        let new = wanted.volumes.iter().filter(|volume| !is.volumes.contains(volume));
        what.extend(new.map(|volume| format!("volume {volume}: seen from the next start on")));
        change.volumes = Some(wanted.volumes.clone());
    }
    if differ(&is.ports, &wanted.ports) {
        let gone = is.ports.iter().filter(|port| !wanted.ports.contains(port));
        what.extend(gone.map(|port| format!("port {port}: published no more as it was")));
        let new = wanted.ports.iter().filter(|port| !is.ports.contains(port));
        what.extend(new.map(|port| format!("port {port}: published")));
        change.ports = Some(wanted.ports.clone());
    }
    (change, what)
}

/// In whatever order they are.
fn differ<T: PartialEq>(one: &[T], other: &[T]) -> bool {
    let lacks = |those: &[T], these: &[T]| these.iter().any(|it| !those.contains(it));
    lacks(one, other) || lacks(other, one)
}

fn limits(limits: &Limits) -> BTreeMap<String, Value> {
    match serde_json::to_value(limits) {
        Ok(Value::Object(all)) => all.into_iter().collect(),
        _ => BTreeMap::new(),
    }
}

fn variables(env: &[Bytes]) -> BTreeMap<String, Bytes> {
    let pairs = env.iter().filter_map(|pair| {
        let pair = pair.bytes().ok()?;
        let split = pair.iter().position(|byte| *byte == b'=')?;
        let name = String::from_utf8(pair.get(..split)?.to_vec()).ok()?;
        Some((name, Bytes::from(pair.get(split + 1..)?.to_vec())))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(more: Value) -> DcSpec {
        let mut all = json!({ "name": "shop", "nodes": ["n1", "n2"], "limits": { "pids": 100 }, "env": ["A=1"],
            "ports": [{ "published": 80, "port": 8080 }] });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    fn service(name: &str, command: &str) -> ServiceSpec {
        serde_json::from_value(json!({ "name": name, "command": [command] })).unwrap()
    }

    fn requests(services: &[ServiceSpec], wanted: &DcSpec) -> Value {
        let steps = steps(&spec(json!({})), services, wanted, 7);
        serde_json::to_value(steps.into_iter().map(|step| step.request).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn services_begin_after_what_they_come_after_and_end_before_it() {
        let after = |name: &str, others: &[&str]| {
            let mut one = service(name, "/bin/it");
            one.after = others.iter().map(|other| (*other).to_owned()).collect();
            one
        };
        // As records are found: by name.
        let all =
            [after("app", &["db"]), service("cache", "/bin/it"), service("db", "/bin/it"), after("web", &["app"])];
        let named = |asked: Value| -> Vec<String> {
            let one = |step: &Value| match &step["service"] {
                Value::String(name) => format!("-{name}"),
                service => format!("+{}", service["name"].as_str().unwrap()),
            };
            asked.as_array().unwrap().iter().map(one).collect()
        };
        let mut wanted = spec(json!({}));
        wanted.services = all.to_vec();
        assert_eq!(named(requests(&[], &wanted)), ["+cache", "+db", "+app", "+web"]);
        wanted.services[2] = service("db", "/bin/other");
        assert_eq!(named(requests(&all, &wanted)), ["-db", "+db"]);
        wanted.services[0] = after("app", &["cache"]);
        assert_eq!(named(requests(&all, &wanted)), ["-app", "-db", "+db", "+app"]);
        wanted.services.clear();
        assert_eq!(named(requests(&all, &wanted)), ["-web", "-app", "-db", "-cache"]);
    }

    #[test]
    fn what_is_as_described_needs_nothing() {
        let services = [service("web", "/bin/web")];
        let mut wanted = spec(json!({ "nodes": ["n2", "n1"] }));
        wanted.services = services.to_vec();
        assert_eq!(requests(&services, &wanted), json!([]));
        wanted.nodes.clear();
        assert_eq!(requests(&services, &wanted), json!([]), "without nodes they stay");
    }

    #[test]
    fn each_difference_is_one_request_in_an_order_that_can_be_done() {
        let mut wanted = spec(json!({
            "nodes": ["n2", "n3"], "limits": { "cpu_max": 1.5 }, "env": ["B=2"], "egress": {}, "ports": [],
        }));
        wanted.services = vec![service("web", "/bin/other"), service("db", "/bin/db")];
        let services = [service("web", "/bin/web"), service("old", "/bin/old")];
        let asked = requests(&services, &wanted);
        let names: Vec<&str> = asked.as_array().unwrap().iter().map(|one| one["request"].as_str().unwrap()).collect();
        let expected = [
            "dc-node-add",
            "dc-change",
            "service-remove",
            "service-remove",
            "service-add",
            "service-add",
            "dc-node-remove",
        ];
        assert_eq!(names, expected);
        let change = json!({
            "generation": 8, "limits": { "pids": null, "cpu_max": 1.5 }, "env": { "A": null, "B": "2" }, "egress": {},
            "ports": [],
        });
        assert_eq!(asked[1]["change"], change);
    }

    #[test]
    fn volumes_are_one_change_of_all_of_them_and_their_order_is_none() {
        let (data, docs) = (json!({ "host": "/a", "path": "/data" }), json!({ "host": "/b", "path": "/docs" }));
        let of = |volumes: &[&Value]| spec(json!({ "volumes": volumes }));
        let (change, said) = change(&of(&[&data]), &of(&[&docs]));
        assert_eq!(change.volumes, Some(of(&[&docs]).volumes));
        assert!(said.len() == 2 && said[0].contains("/a:/data") && said[1].contains("/b:/docs"), "{said:?}");
        let (same, said) = super::change(&of(&[&data, &docs]), &of(&[&docs, &data]));
        assert_eq!((same, said.len()), (DcChange::default(), 0));
    }

    #[test]
    fn volume_is_kept_from_a_node_before_that_node_comes() {
        let (data, docs) = (json!({ "host": "/a", "path": "/data" }), json!({ "host": "/b", "path": "/docs" }));
        let on = |volume: &Value, nodes: &[&str]| {
            let mut volume = volume.clone();
            volume["nodes"] = json!(nodes);
            volume
        };
        let of = |nodes: &[&str], volumes: &[Value]| spec(json!({ "nodes": nodes, "volumes": volumes }));
        let planned = |is: &DcSpec, wanted: &DcSpec| -> Vec<Value> {
            steps(is, &[], wanted, 7).into_iter().map(|step| serde_json::to_value(step.request).unwrap()).collect()
        };
        let is = of(&["n1", "n2"], &[data.clone(), docs.clone()]);
        // One is kept from the node, the other one goes to it alone.
        let wanted = of(&["n1", "n2", "n3"], &[on(&data, &["n1", "n2"]), on(&docs, &["n3"])]);
        let asked = planned(&is, &wanted);
        let first = json!({ "generation": 7, "volumes": [on(&data, &["n1", "n2"])] });
        assert_eq!((asked[0]["change"].clone(), asked[1]["node"].clone()), (first, json!("n3")));
        assert_eq!(asked[2]["change"]["generation"], 9);
        assert_eq!((asked[2]["change"]["volumes"].as_array().unwrap().len(), asked.len()), (2, 3));
        // One that was of all and is gone, and one that stays: nothing is left for later.
        let asked = planned(&is, &of(&["n1", "n2", "n3"], std::slice::from_ref(&docs)));
        assert_eq!((asked[0]["change"]["volumes"].clone(), asked.len()), (json!([docs]), 2));
        // Without a node that comes it is one change.
        assert_eq!(planned(&is, &of(&["n1", "n2"], &[on(&data, &["n1"]), docs])).len(), 1);
    }

    #[test]
    fn what_was_decided_for_good_is_not_planned_away() {
        let is = spec(json!({}));
        assert!(demand_same(&is, &spec(json!({}))).is_ok());
        // How many copies a disk has is decided once; a description that says nothing of it is of either.
        let disks = |replicas: Option<u8>, bytes: u64| {
            spec(json!({ "disks": [{ "name": "root", "bytes": bytes, "replicas": replicas }] }))
        };
        let (one, two) = (disks(None, 1 << 30), disks(Some(2), 1 << 30));
        for same in [&spec(json!({})), &two, &disks(None, 1 << 30)] {
            assert!(demand_same(&two, same).is_ok());
        }
        assert!(demand_same(&one, &disks(Some(1), 1 << 30)).is_ok() && demand_same(&is, &one).is_ok());
        for other in [&disks(Some(1), 1 << 30), &disks(None, 1 << 31)] {
            assert!(demand_same(&two, other).unwrap_err().to_string().contains("disks"));
        }
        assert!(demand_same(&one, &two).is_err());
        let refused = demand_same(&is, &spec(json!({ "subnet": "10.9.0.0/24", "wait": "spin" }))).unwrap_err();
        assert!(refused.to_string().contains("subnet, wait"), "{refused}");
    }
}
