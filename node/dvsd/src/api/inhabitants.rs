//! What becomes of a request that came by a hatch: of a program of a container, for what is that container's.
//!
//! Which routes it may ask for says the table ([`mgmt_api::routes::Inhabitants`]). Here it is made sure that it is its
//! own container that is asked for: another one does not exist for it, whether there is one or not. Of the node it
//! hears nothing but its name.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Query, RawPathParams, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::Limited;
use mgmt_api::routes::{Inhabitant, Operation, Route};
use mgmt_api::{Dc, ErrorBody, ErrorKind, NbdSpec, PortInfo, ServiceInfo};
use serde::Deserialize;
use serde_json::Value;

use super::failure::{Failure, failure, no_such_dc};
use super::gate::{Caller, Holder};
use super::patience::Portions;
use super::relay::Words;
use super::{Api, parse};
use crate::hatches::{BODY_BYTES_MAX, Place};

/// Of a container and its services: far more than they may be described with.
const DESCRIPTION_BYTES_MAX: usize = 16 << 20;
/// Of an error that is made anew.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// What asks other nodes, or starts something.
const DEAR: u32 = 5;
/// Instead of why something is as it is: there are paths and addresses of nodes in it.
const NODE_KNOWS: &str = "its node says why";
/// Instead of a directory of a node.
const SOMEWHERE: &str = "…";

/// The request, if it is for the caller's own container; and no larger than it may be.
pub async fn narrow(api: &Arc<Api>, place: &Place, route: &Route, request: Request) -> Result<Request, Failure> {
    let (mut parts, body) = request.into_parts();
    let names = RawPathParams::from_request_parts(&mut parts, &()).await;
    let names = names.map_err(|_| no_such_dc(""))?;
    let named = names.iter().find(|(name, _)| *name == "dc").map(|(_, value)| value.to_owned());
    if let Some(dc) = named.filter(|dc| **dc != *place.name) {
        return Err(no_such_dc(&dc));
    }
    if route.admits(mgmt_api::routes::Who::Inside(place.who)) {
        // By the name alone it could be a later one.
        own(api, place).await?;
        place.keep_pace(cost_beyond_one(route.operation)).await;
    }
    Ok(Request::from_parts(parts, Body::new(Limited::new(body, BODY_BYTES_MAX))))
}

/// The container whose program asks.
pub async fn own(api: &Arc<Api>, place: &Place) -> Result<crate::records::DcView, Failure> {
    let view = api.dc(&place.name).await?;
    if view.record.id == place.dc { Ok(view) } else { Err(no_such_dc(&place.name)) }
}

fn cost_beyond_one(operation: Operation) -> u32 {
    match operation {
        Operation::Version | Operation::Dcs | Operation::Dc | Operation::Services | Operation::Service => 0,
        _ => DEAR - 1,
    }
}

/// The name that the caller's container has, where the caller is a program of one.
pub fn container_of(caller: &Caller) -> Option<&str> {
    caller.inhabitant.as_ref().map(|place| &*place.name)
}

/// What is a container's own: not by which numbers its nodes know the servers, nor their paths and addresses.
pub fn without_the_node(mut dc: Dc) -> Dc {
    for share in &mut dc.shares {
        share.servers.iter_mut().for_each(|server| server.pid = None);
        share.problems.iter_mut().for_each(|problem| NODE_KNOWS.clone_into(problem));
        share.ports.iter_mut().for_each(|port| hide(&mut port.problem));
    }
    dc.spec.volumes.iter_mut().for_each(|volume| SOMEWHERE.clone_into(&mut volume.host));
    if let Some(nbd) = &mut dc.spec.nbd {
        nbd.listen = NbdSpec::default().listen;
    }
    dc
}

/// Services likewise.
pub fn without_reasons(mut services: Vec<ServiceInfo>) -> Vec<ServiceInfo> {
    for instance in services.iter_mut().flat_map(|service| &mut service.instances) {
        if !instance.why.is_empty() {
            NODE_KNOWS.clone_into(&mut instance.why);
        }
        hide(&mut instance.problem);
    }
    services
}

/// Published ports likewise.
pub fn ports_without_reasons(mut ports: Vec<PortInfo>) -> Vec<PortInfo> {
    ports.iter_mut().flat_map(|port| &mut port.nodes).for_each(|at| hide(&mut at.problem));
    ports
}

fn hide(problem: &mut Option<String>) {
    if let Some(problem) = problem {
        NODE_KNOWS.clone_into(problem);
    }
}

/// An error that is told in a stream, as its holder may have it: a program of a container as in an answer.
pub fn for_holder(holder: &Holder, body: ErrorBody) -> ErrorBody {
    match words_for(holder) {
        Some(words) => words(body),
        None => body,
    }
}

/// Likewise of an error that another node tells.
pub fn words_for(holder: &Holder) -> Option<Words> {
    match holder {
        Holder::Inside(_) => Some(as_inside),
        Holder::Nobody | Holder::Person(_) => None,
    }
}

/// Causes of other errors are of the container: a program that is not there, a user that it does not know.
fn as_inside(body: ErrorBody) -> ErrorBody {
    if body.kind.http_status() >= 500 { uncaused(body) } else { body }
}

/// Why an inhabitant may not.
pub fn refusal(place: &Place, route: &Route) -> ErrorBody {
    let for_root = route.admits(mgmt_api::routes::Who::Inside(Inhabitant::Root));
    if for_root {
        ErrorBody::new(ErrorKind::Forbidden, "only root of the container may do this")
            .because(format!("user {} of it asks", place.uid_inside()))
            .hint("what every user may, on all nodes: kill PID, on NODE -- PROGRAM, the files in /dc, dvs ds, dvs fs")
    } else {
        ErrorBody::new(ErrorKind::Forbidden, "from inside a container this cannot be asked for")
            .because("its programs look at their container, and start and end programs; the rest is for people")
            .hint("on a node, or by an access to the cluster: dvs access token")
    }
}

/// What the route answers, when there is room for it.
pub async fn answer(place: &Place, route: &Route, request: Request, next: Next) -> Response {
    let goes_on = goes_on(route.operation, &request);
    let is_large = match route.operation {
        Operation::Processes | Operation::DcChannels | Operation::DcUsage => true,
        Operation::Logs => !goes_on,
        _ => false,
    };
    let room = if is_large { place.large_answer().await } else { None };
    let answer = next.run(request).await;
    // One connection answers one request after the other.
    place.goes_on.store(goes_on && answer.status().is_success(), Ordering::Relaxed);
    match room {
        Some(room) => answer.map(|body| Body::new(Portions::new(body, room))),
        None => answer,
    }
}

fn goes_on(operation: Operation, request: &Request) -> bool {
    #[derive(Deserialize)]
    struct Follows {
        #[serde(default)]
        follow: bool,
    }
    match operation {
        Operation::Events => true,
        Operation::Logs => Query::<Follows>::try_from_uri(request.uri()).is_ok_and(|query| query.0.follow),
        _ => false,
    }
}

/// The answer as its caller may have it.
pub async fn fit(place: &Place, route: &Route, answer: Response) -> Response {
    let tells_environments =
        matches!(route.operation, Operation::Dcs | Operation::Dc | Operation::Services | Operation::Service);
    if answer.status().is_server_error() {
        without_causes(answer).await
    } else if answer.status().is_success() && tells_environments && place.who == Inhabitant::User {
        without_environments(answer).await
    } else {
        answer
    }
}

/// Variables of programs are told in their own /proc to their user alone: passwords are among them.
async fn without_environments(answer: Response) -> Response {
    let body = axum::body::to_bytes(answer.into_body(), DESCRIPTION_BYTES_MAX).await.unwrap_or_default();
    match serde_json::from_slice::<Value>(&body) {
        Ok(mut described) => {
            take_environments(&mut described);
            Json(described).into_response()
        }
        Err(_) => failure(ErrorKind::Internal, "the answer is too long", "as root of the container").into_response(),
    }
}

fn take_environments(described: &mut Value) {
    match described {
        Value::Object(fields) => {
            fields.remove("env");
            fields.values_mut().for_each(take_environments);
        }
        Value::Array(items) => items.iter_mut().for_each(take_environments),
        _ => (),
    }
}

/// What went wrong on the node, without the node's paths and addresses; people who ask the same hear why.
async fn without_causes(answer: Response) -> Response {
    let kind = answer.extensions().get::<ErrorKind>().copied();
    let body = axum::body::to_bytes(answer.into_body(), ERROR_BYTES_MAX).await.unwrap_or_default();
    let said: Option<ErrorBody> = parse(&body).ok();
    let kind = kind.or(said.as_ref().map(|said| said.kind)).unwrap_or(ErrorKind::Internal);
    let said = said.unwrap_or_else(|| ErrorBody::new(kind, "the node's daemon did not do it"));
    Failure(uncaused(ErrorBody { kind, ..said })).into_response()
}

fn uncaused(said: ErrorBody) -> ErrorBody {
    let hint = said.hint.unwrap_or_else(|| "again in a moment".to_owned());
    ErrorBody::new(said.kind, said.what).because("whoever asks the same on the node hears why").hint(hint)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_are_nowhere_in_what_users_inside_hear() {
        let mut described = json!([{
            "spec": { "name": "shop", "env": ["A=1"], "services": [{ "name": "web", "env": ["PASSWORD=x"] }] },
            "shares": [{ "node": "n1" }],
        }]);
        take_environments(&mut described);
        let left = json!([{
            "spec": { "name": "shop", "services": [{ "name": "web" }] }, "shares": [{ "node": "n1" }],
        }]);
        assert_eq!(described, left);
    }

    #[test]
    fn paths_and_addresses_of_nodes_are_nowhere_in_what_is_told_inside() {
        let dc = serde_json::from_value(json!({
            "id": 1, "phase": "failed", "generation": 1, "created_s": 0,
            "spec": {
                "name": "shop", "nodes": ["n1"], "nbd": { "listen": "192.0.2.7:10809" },
                "volumes": [{ "host": "/srv/secret", "path": "/data" }],
            },
            "shares": [{
                "node": "n1", "phase": "failed", "address": "10.1.0.1", "pid_base": 1,
                "endpoints": { "start": 1, "end": 2 }, "problems": ["cannot open /srv/secret", "192.0.2.7 is taken"],
                "ports": [{ "port": "80", "problem": "192.0.2.7 is taken" }],
                "servers": [],
            }],
        }));
        let told = without_the_node(dc.unwrap());
        assert_eq!(told.shares[0].problems, [NODE_KNOWS, NODE_KNOWS]);
        let services = serde_json::from_value(json!([{
            "spec": { "name": "web", "command": ["true"] }, "is_wanted": true, "instances": [
                { "name": "web/0", "state": "failed", "restarts": 0, "epoch": 1, "problem": "/srv/secret", "why": "" },
            ],
        }]));
        let services = without_reasons(services.unwrap());
        assert_eq!(
            (&*services[0].instances[0].why, services[0].instances[0].problem.as_deref()),
            ("", Some(NODE_KNOWS))
        );
        let all = format!("{}{}", serde_json::to_string(&told).unwrap(), serde_json::to_string(&services).unwrap());
        assert!(!all.contains("/srv") && !all.contains("192.0.2"), "{all}");
        // Clients read it as they read any description.
        assert!(serde_json::from_str::<Dc>(&serde_json::to_string(&told).unwrap()).is_ok());
    }

    #[test]
    fn causes_in_a_stream_are_told_where_they_are_the_containers() {
        let node =
            as_inside(ErrorBody::new(ErrorKind::Internal, "could not start").because("/srv/secret").hint("again"));
        assert!(!node.to_string().contains("/srv") && node.hint.as_deref() == Some("again"), "{node}");
        let own = ErrorBody::new(ErrorKind::NoSuchProgram, "there is no program 'x'").because("ENOENT");
        assert_eq!(as_inside(own.clone()), own);
    }

    #[test]
    fn follower_is_one_whose_answer_goes_on() {
        let asked =
            |operation, uri: &str| goes_on(operation, &Request::builder().uri(uri).body(Body::empty()).unwrap());
        assert!(asked(Operation::Events, "/v1/events"));
        assert!(asked(Operation::Logs, "/v1/dcs/shop/processes/7/logs?follow=true&tail=3"));
        assert!(!asked(Operation::Logs, "/v1/dcs/shop/processes/7/logs?tail=3"));
        assert!(!asked(Operation::Processes, "/v1/dcs/shop/processes?follow=true"));
    }
}
