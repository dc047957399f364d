//! The table of `mgmt_api::routes` as a router: each route with its handler, behind its gate.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::routing::{MethodRouter, delete, get, patch, post};
use axum::{Router, middleware};
use mgmt_api::ErrorKind;
use mgmt_api::routes::{Operation, ROUTES};

use super::failure::{Failure, failure};
use super::{
    Api, BODY_BYTES_MAX, access, backup, changes, contents, dcs, disks, events, examination, gate, health, joining,
    nodes, plans, ports, processes, renaming, replicas, requests, servers, services, settings, spans, upgrade, usage,
};

fn handler(operation: Operation) -> MethodRouter<Arc<Api>> {
    match operation {
        Operation::Version => get(health::version),
        Operation::Live => get(health::live),
        Operation::Ready => get(health::ready),
        Operation::Livez => get(health::livez),
        Operation::Readyz => get(health::readyz),
        Operation::Facts => get(examination::facts),
        Operation::Examination => get(examination::examine),
        Operation::Settings => get(settings::show),
        Operation::Metrics => get(health::metrics),
        Operation::Nodes => get(nodes::list),
        Operation::Node => get(nodes::show),
        Operation::NodeChange => patch(nodes::change),
        Operation::Plan => post(plans::plan),
        Operation::DcChange => patch(changes::change),
        Operation::NodeRemove => delete(nodes::remove),
        Operation::Level => get(upgrade::level),
        Operation::Upgrade => get(upgrade::show),
        Operation::UpgradeDaemon => post(upgrade::begin_anew),
        Operation::UpgradeServers => post(upgrade::renew_servers),
        Operation::Authority => get(joining::authority),
        Operation::AuthorityRotate => post(joining::rotate),
        Operation::Backup => get(backup::take),
        Operation::Tokens => get(joining::list_tokens),
        Operation::TokenCreate => post(joining::create_token),
        Operation::TokenRemove => delete(joining::remove_token),
        Operation::Join => post(joining::join),
        Operation::Accesses => get(access::list),
        Operation::AccessCreate => post(access::create),
        Operation::AccessRemove => delete(access::remove),
        Operation::Myself => get(access::myself),
        Operation::Audit => get(access::audit),
        Operation::Events => get(events::follow),
        Operation::Dcs => get(dcs::list),
        Operation::DcCreate => post(dcs::create),
        Operation::Dc => get(dcs::show),
        Operation::DcDelete => delete(dcs::delete),
        Operation::DcStart => post(dcs::start),
        Operation::DcStop => post(dcs::stop),
        Operation::DcPause => post(dcs::pause),
        Operation::DcUnpause => post(dcs::unpause),
        Operation::DcRename => post(renaming::rename),
        Operation::DcNodeAdd => post(spans::add),
        Operation::DcNodeRemove => delete(spans::remove),
        Operation::DcChannels => get(dcs::channels),
        Operation::DcUsage => get(usage::list),
        Operation::Services => get(services::list),
        Operation::ServiceAdd => post(services::add),
        Operation::Service => get(services::show),
        Operation::ServiceRemove => delete(services::remove),
        Operation::ServiceStart => post(services::start),
        Operation::ServiceStop => post(services::stop),
        Operation::ServiceRestart => post(services::restart),
        Operation::ServerMove => post(servers::move_to),
        Operation::DiskCreate => post(disks::create),
        Operation::DiskChange => patch(disks::change),
        Operation::DiskDelete => delete(disks::delete),
        Operation::DiskVerify => post(replicas::verify),
        Operation::DiskRead => get(contents::read),
        Operation::DiskFill => post(contents::fill),
        Operation::ReplicaAdd => post(replicas::add),
        Operation::ReplicaRemove => delete(replicas::remove),
        Operation::ReplicaPromote => post(replicas::promote),
        Operation::ServiceMove => post(services::move_away),
        Operation::Ports => get(ports::list),
        Operation::PortAdd => post(ports::add),
        Operation::PortRemove => delete(ports::remove),
        Operation::Processes => get(processes::list),
        Operation::Run => post(processes::run),
        Operation::Process => get(processes::show),
        Operation::Signal => post(processes::signal),
        Operation::Attach => get(processes::attach),
        Operation::Logs => get(processes::logs),
        Operation::Exec => post(processes::exec),
        Operation::Export => get(processes::export),
        Operation::Import => post(processes::import),
    }
}

/// For every listener: who asks says the connection's `gate::Origin`.
pub fn router(api: &Arc<Api>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let gate = middleware::from_fn_with_state((Arc::clone(api), route), gate::gate);
        router = router.route(route.path, handler(route.operation).route_layer(gate));
    }
    router
        .fallback(async |State(api): State<Arc<Api>>, request: Request| {
            let answer = unknown(ErrorKind::NotFound, "there is no such resource");
            gate::no_route(&api, &request, answer)
        })
        .method_not_allowed_fallback(async |State(api): State<Arc<Api>>, request: Request| {
            let answer = unknown(ErrorKind::BadRequest, "the resource does not take this method");
            gate::no_route(&api, &request, answer)
        })
        .layer(middleware::from_fn_with_state(Arc::clone(api), gate::admit))
        .layer(middleware::from_fn_with_state(Arc::clone(api), requests::count))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Arc::clone(api))
}

fn unknown(kind: ErrorKind, what: &str) -> Failure {
    failure(kind, what, "a dvs of the same version as the daemon: dvs version")
}
