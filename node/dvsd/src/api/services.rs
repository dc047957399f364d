//! Services of a container: what people ask for. What comes of it, `crate::services` brings about.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use cluster::{Compare, Op, Outcome};
use mgmt_api::{ErrorBody, ErrorKind, MoveRequest, ServiceInfo, ServiceInstance, ServiceSpec, ServiceState};
use serde::Deserialize;
use service_core::choose::NodeStanding;
use service_core::{record, wish};

use super::changes::demand_goes_on;
use super::failure::{Failure, failure};
use super::gate::Caller;
use super::inhabitants::without_reasons;
use super::{Api, blocking, parse, read_body};
use crate::context::Context;
use crate::records::{DcView, Desired, encode};
use crate::services::placing::{Seen, Sight};
use crate::services::record::{
    Asked, Moved, ServiceRecord, ServiceView, StoredInstance, StoredPlacement, fresh, numbers_key, service_key, views,
};

/// Beyond the grace of its program: nodes that take a while, and reports on their way.
const STOP_LIMIT: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Others may be faster this often.
const ATTEMPTS: usize = 100;

pub async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(dc): Path<String>,
) -> Result<Json<Vec<ServiceInfo>>, Failure> {
    let found = of(&api, api.dc(&dc).await?).await?;
    Ok(Json(if caller.inhabitant.is_some() { without_reasons(found) } else { found }))
}

/// All of this container.
pub async fn of(api: &Arc<Api>, dc: DcView) -> Result<Vec<ServiceInfo>, Failure> {
    let api = Arc::clone(api);
    blocking(move || all(&api.context, &dc)).await
}

pub async fn show(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path((dc, service)): Path<(String, String)>,
) -> Result<Json<ServiceInfo>, Failure> {
    let dc = api.dc(&dc).await?;
    let found = one(&api, &dc, &service).await?;
    let hidden = caller.inhabitant.is_some().then(|| without_reasons(vec![found.clone()]).pop());
    Ok(Json(hidden.flatten().unwrap_or(found)))
}

pub async fn add(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    body: Body,
) -> Result<(StatusCode, Json<ServiceInfo>), Failure> {
    let spec: ServiceSpec = parse(&read_body(body).await?)?;
    let dc = api.dc(&dc).await?;
    let (also, of, name) = (Arc::clone(&api), dc.clone(), spec.name.clone());
    blocking(move || write_new(&also.context, &of, spec)).await?;
    Ok((StatusCode::CREATED, Json(one(&api, &dc, &name).await?)))
}

pub async fn start(
    State(api): State<Arc<Api>>,
    Path((dc, service)): Path<(String, String)>,
) -> Result<Json<ServiceInfo>, Failure> {
    let dc = api.dc(&dc).await?;
    // Whoever starts what runs asks for nothing, and starts what ended for good.
    change(&api, &dc, &service, |view| {
        let rests = (0..view.record.instances.len()).any(|index| {
            let state = view.told(index).map(|told| told.state);
            matches!(state, Some(ServiceState::Stopped | ServiceState::Failed))
        });
        let asked = view.record.asked;
        if matches!(asked, Asked::Stopped { .. }) || rests {
            view.record.asked = Asked::Runs { times: asked.times() + 1 };
        }
        Ok(())
    })
    .await?;
    Ok(Json(one(&api, &dc, &service).await?))
}

pub async fn stop(
    State(api): State<Arc<Api>>,
    Path((dc, service)): Path<(String, String)>,
) -> Result<Json<ServiceInfo>, Failure> {
    let dc = api.dc(&dc).await?;
    change(&api, &dc, &service, |view| {
        view.record.asked = Asked::Stopped { times: view.record.asked.times() };
        Ok(())
    })
    .await?;
    await_end(&api, &dc, &service).await?;
    Ok(Json(one(&api, &dc, &service).await?))
}

pub async fn restart(
    State(api): State<Arc<Api>>,
    Path((dc, service)): Path<(String, String)>,
) -> Result<Json<ServiceInfo>, Failure> {
    let dc = api.dc(&dc).await?;
    change(&api, &dc, &service, |view| {
        view.record.asked = Asked::Runs { times: view.record.asked.times() + 1 };
        Ok(())
    })
    .await?;
    Ok(Json(one(&api, &dc, &service).await?))
}

pub async fn move_away(
    State(api): State<Arc<Api>>,
    Path((dc, service)): Path<(String, String)>,
    body: Body,
) -> Result<Json<ServiceInfo>, Failure> {
    let request: MoveRequest = parse(&read_body(body).await?)?;
    let dc = api.dc(&dc).await?;
    if let Some(node) = request.node.clone() {
        let (also, of) = (Arc::clone(&api), dc.clone());
        blocking(move || demand_ready(&also.context, &of, &node)).await?;
    }
    let of = (dc.record.spec.name.clone(), service.clone());
    change(&api, &dc, &service, move |view| begin_move(&of, &request, &mut view.record)).await?;
    Ok(Json(one(&api, &dc, &service).await?))
}

#[derive(Deserialize)]
pub struct RemoveQuery {
    #[serde(default)]
    replaced: bool,
}

pub async fn remove(
    State(api): State<Arc<Api>>,
    Path((dc, service)): Path<(String, String)>,
    Query(RemoveQuery { replaced }): Query<RemoveQuery>,
) -> Result<StatusCode, Failure> {
    let dc = api.dc(&dc).await?;
    let (also, id, name, of) = (Arc::clone(&api), dc.record.id, service.clone(), dc.record.spec.name.clone());
    // Others must not be left waiting for it for ever.
    blocking(move || {
        let all = views(&*also.context.engine, id)?;
        let waits = |view: &&ServiceView| {
            view.record.spec.after.contains(&name) || view.record.spec.near.as_ref() == Some(&name)
        };
        match all.values().filter(|_| !replaced).find(waits) {
            None => Ok(()),
            Some(other) => {
                let other = &other.record.spec.name;
                Err(failure(
                    ErrorKind::Conflict,
                    format!("service '{other}' comes after '{name}', or stands near it"),
                    format!("dvs service rm {of} {other} first"),
                ))
            }
        }
    })
    .await?;
    change(&api, &dc, &service, |view| {
        view.record.is_removed = true;
        Ok(())
    })
    .await?;
    await_end(&api, &dc, &service).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What would not begin there stays where it is, and is not ended first.
pub fn demand_ready(context: &Context, dc: &DcView, node: &String) -> Result<(), Failure> {
    let (name, nodes) = (&dc.record.spec.name, &dc.record.spec.nodes);
    if !nodes.contains(node) {
        let what = format!("container '{name}' does not span node '{node}'");
        return Err(failure(ErrorKind::BadRequest, what, format!("its nodes are {}", nodes.join(", "))));
    }
    if dc.record.desired != Desired::Running {
        return Ok(());
    }
    let sight = Sight::of(context, &mut Seen::default(), &[], Instant::now())?;
    match sight.standing(dc, node) {
        NodeStanding::Ready => Ok(()),
        NodeStanding::Cordoned => {
            let what = format!("node '{node}' is to get nothing new");
            Err(failure(ErrorKind::Conflict, what, format!("dvs node uncordon {node}")))
        }
        NodeStanding::Away => {
            let what = format!("container '{name}' does not run on node '{node}' now");
            Err(ErrorBody::new(ErrorKind::Unavailable, what)
                .because("the node is away, or comes just now")
                .hint(format!("again in a moment; dvs node ls, dvs dc inspect {name}"))
                .into())
        }
    }
}

fn begin_move(
    (dc, service): &(String, String),
    request: &MoveRequest,
    record: &mut ServiceRecord,
) -> Result<(), ErrorBody> {
    if let Some(pinned) = record.spec.node.as_ref().filter(|pinned| request.node.as_ref() != Some(*pinned)) {
        return Err(ErrorBody::new(ErrorKind::Conflict, format!("service '{service}' does not move"))
            .because(format!("its description says that it stands on {pinned}"))
            .hint("without 'node' in its description: dvs service rm and add"));
    }
    let count = record.instances.len();
    if let Some(index) = request.instance.filter(|index| *index as usize >= count) {
        return Err(ErrorBody::new(ErrorKind::NotFound, format!("service '{service}' has no instance {index}"))
            .hint(format!("0 to {}: dvs service ls {dc}", count.saturating_sub(1))));
    }
    for (index, instance) in record.instances.iter_mut().enumerate() {
        if request.instance.is_some_and(|wanted| wanted as usize != index) {
            continue;
        }
        let Some(placement) = instance.placement.clone() else { continue };
        if request.node.as_ref() == Some(&placement.node) {
            continue;
        }
        if let Some(next) = record::move_away(&instance.decided()) {
            instance.follow(next, "");
        }
        instance.moved = Some(match &request.node {
            Some(node) => Moved::To(node.clone()),
            None => Moved::AwayFrom(placement.node),
        });
    }
    Ok(())
}

fn no_such_service(dc: &str, service: &str) -> Failure {
    failure(ErrorKind::NotFound, format!("container '{dc}' has no service '{service}'"), format!("dvs service ls {dc}"))
}

fn write_new(context: &Context, dc: &DcView, spec: ServiceSpec) -> Result<(), Failure> {
    let engine = &*context.engine;
    let name = &dc.record.spec.name;
    if matches!(dc.record.desired, Desired::Deleted { .. }) {
        return Err(failure(ErrorKind::Conflict, format!("container '{name}' is being deleted"), "another container"));
    }
    let mut all: Vec<ServiceSpec> = views(engine, dc.record.id)?.into_values().map(|view| view.record.spec).collect();
    if all.iter().any(|other| other.name == spec.name) {
        let hint = format!("another name, or dvs service rm {name} {}", spec.name);
        return Err(failure(ErrorKind::Conflict, format!("there is a service '{}' already", spec.name), hint));
    }
    all.push(spec.clone());
    wish::check(&all, &dc.record.spec.nodes)?;
    let members = context.members.read();
    let knows = |node: &String| members.get(node).is_some_and(|member| member.services);
    if !dc.record.spec.nodes.iter().any(knows) {
        let what = format!("no node of container '{name}' knows services");
        return Err(ErrorBody::new(ErrorKind::Conflict, what)
            .because("their daemons are of an earlier release")
            .hint("dvs node upgrade there")
            .into());
    }
    drop(members);
    let number = crate::records::raise(engine, &numbers_key(dc.record.id))?;
    let key = service_key(dc.record.id, &spec.name);
    let compares = [Compare::Absent { key: key.clone() }, Compare::Present { key: crate::records::dc_key(name) }];
    match engine.transact(&compares, &[Op::put(key, encode(&fresh(spec, number)))])? {
        Outcome::Done(_) => Ok(()),
        Outcome::Conflict(_) => Err(failure(ErrorKind::Conflict, "somebody else was faster", "again")),
    }
}

/// Changes the record, whoever else does meanwhile.
async fn change(
    api: &Arc<Api>,
    dc: &DcView,
    service: &str,
    edit: impl Fn(&mut ServiceView) -> Result<(), ErrorBody> + Send + 'static,
) -> Result<(), Failure> {
    demand_goes_on(&dc.record)?;
    let (api, dc, service) = (Arc::clone(api), dc.clone(), service.to_owned());
    blocking(move || {
        let (engine, name) = (&*api.context.engine, &dc.record.spec.name);
        for _ in 0..ATTEMPTS {
            let found = views(engine, dc.record.id)?.remove(&service);
            let mut view =
                found.filter(|view| !view.record.is_removed).ok_or_else(|| no_such_service(name, &service))?;
            edit(&mut view)?;
            if view.record == view.written {
                return Ok(());
            }
            let key = service_key(dc.record.id, &service);
            let unchanged = Compare::Modified { key: key.clone(), at: view.modified };
            if let Outcome::Done(_) = engine.transact(&[unchanged], &[Op::put(key, encode(&view.record))])? {
                return Ok(());
            }
        }
        Err(failure(ErrorKind::Unavailable, format!("others were faster {ATTEMPTS} times"), "again"))
    })
    .await
}

/// Until nothing of it runs any more.
async fn await_end(api: &Arc<Api>, dc: &DcView, service: &str) -> Result<(), Failure> {
    let mut changes = api.context.changes.subscribe();
    let begun = Instant::now();
    loop {
        let (also, id, name) = (Arc::clone(api), dc.record.id, service.to_owned());
        let view = blocking(move || Ok(views(&*also.context.engine, id)?.remove(&name))).await?;
        let Some(view) = view else { return Ok(()) };
        let left = view.record.instances.iter().find_map(|it| it.placement.as_ref()).map(|it| &it.node);
        if left.is_none() && !view.record.is_removed {
            return Ok(());
        }
        let limit = STOP_LIMIT + Duration::from_millis(view.record.spec.stop.grace_ms);
        if begun.elapsed() >= limit {
            let what = format!("service '{service}' has not ended after {} s", limit.as_secs());
            return Err(ErrorBody::new(ErrorKind::TimedOut, what)
                .because(match left {
                    Some(node) => format!("node {node} does not say that nothing of it runs there"),
                    None => "nothing of it runs, and nobody has removed its record yet".to_owned(),
                })
                .hint(format!("it goes on; dvs service ls {}, dvs node ls", dc.record.spec.name))
                .into());
        }
        let _ = tokio::time::timeout(LOOK_AGAIN, changes.changed()).await;
    }
}

async fn one(api: &Arc<Api>, dc: &DcView, service: &str) -> Result<ServiceInfo, Failure> {
    let (api, dc, service) = (Arc::clone(api), dc.clone(), service.to_owned());
    blocking(move || {
        let found = all(&api.context, &dc)?.into_iter().find(|one| one.spec.name == service);
        found.ok_or_else(|| no_such_service(&dc.record.spec.name, &service))
    })
    .await
}

fn all(context: &Context, dc: &DcView) -> Result<Vec<ServiceInfo>, Failure> {
    let services = views(&context.answers, dc.record.id)?;
    let sight = Sight::of(context, &mut Seen::default(), &[], Instant::now())?;
    Ok(services.values().map(|view| describe(dc, &sight, &services, view)).collect())
}

fn describe(dc: &DcView, sight: &Sight, services: &BTreeMap<String, ServiceView>, view: &ServiceView) -> ServiceInfo {
    let is_wanted = matches!(view.record.asked, Asked::Runs { .. }) && !view.record.is_removed;
    let instances = view.record.instances.iter().enumerate();
    let instances = instances.map(|(index, stored)| instance(dc, sight, services, view, (index, stored))).collect();
    ServiceInfo { spec: view.record.spec.clone(), is_wanted, instances }
}

fn instance(
    dc: &DcView,
    sight: &Sight,
    services: &BTreeMap<String, ServiceView>,
    view: &ServiceView,
    (index, stored): (usize, &StoredInstance),
) -> ServiceInstance {
    let told = view.told(index);
    let runs = dc.record.desired == Desired::Running;
    let rests = |state| matches!(state, ServiceState::Stopped | ServiceState::Failed);
    let ended = told.map(|told| told.state).filter(|state| rests(*state));
    let (state, why, problem) = match &stored.placement {
        None if matches!(view.record.asked, Asked::Stopped { .. }) => (ServiceState::Stopped, String::new(), None),
        None if ended.is_some_and(|_| told.is_some_and(|told| told.times == view.record.asked.times())) => {
            (ended.unwrap_or(ServiceState::Stopped), String::new(), None)
        }
        None => {
            let nowhere = sight.choose(dc, services, &view.record.spec, stored.moved.as_ref()).err();
            let why = if runs { nowhere.map(|why| why.to_string()) } else { None };
            (ServiceState::Waiting, why.unwrap_or_else(|| not_running(dc)), None)
        }
        Some(_) if !runs && !ended.is_some_and(rests) => (ServiceState::Stopped, not_running(dc), None),
        Some(StoredPlacement { node, leaves, why, .. }) => {
            let state = told.map_or(ServiceState::Placed, |told| told.state);
            let state = if *leaves && !rests(state) { ServiceState::Stopping } else { state };
            let silent = (!sight.is_there(node)).then(|| format!("node {node} is away; this is what it said last"));
            (state, why.clone(), silent)
        }
    };
    ServiceInstance {
        name: format!("{}/{index}", view.record.spec.name),
        state,
        node: stored.placement.as_ref().map(|placement| placement.node.clone()),
        pid: told.map(|told| told.pid).filter(|pid| *pid != 0),
        exit: told.and_then(|told| told.exit),
        restarts: told.map_or(0, |told| told.number.saturating_sub(1)),
        epoch: stored.epoch,
        since_s: told.map(|told| told.since_s),
        why,
        problem: problem.or_else(|| told.and_then(|told| told.problem.clone())),
    }
}

fn not_running(dc: &DcView) -> String {
    match dc.record.desired {
        Desired::Running => String::new(),
        Desired::Stopped { .. } | Desired::Deleted { .. } => "the container is not running".to_owned(),
    }
}
