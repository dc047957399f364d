//! What becomes of a request that came by a hatch: of a program of a container, for what is that container's.
//!
//! Which routes it may ask for says the table ([`mgmt_api::routes::Inhabitants`]). Here it is made sure that it is its
//! own container that is asked for: another one does not exist for it, whether there is one or not. Of the node it
//! hears nothing but its name.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use http_body_util::Limited;
use mgmt_api::routes::{Inhabitant, Operation, Route};
use mgmt_api::{Dc, ErrorBody, ErrorKind};
use serde_json::Value;

use super::failure::{Failure, failure, no_such_dc};
use super::gate::Caller;
use super::{Api, parse};
use crate::hatches::{BODY_BYTES_MAX, Place};

/// Of a container and its services: far more than they may be described with.
const DESCRIPTION_BYTES_MAX: usize = 16 << 20;
/// Of an error that is made anew.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// What asks other nodes, or starts something.
const DEAR: u32 = 5;

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

/// What is a container's own: not by which numbers its node knows the servers.
pub fn without_the_node(mut dc: Dc) -> Dc {
    for server in dc.shares.iter_mut().flat_map(|share| &mut share.servers) {
        server.pid = None;
    }
    dc
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
    let what = said.as_ref().map_or("the node's daemon did not do it", |said| said.what.as_str());
    let body = ErrorBody::new(kind, what).because("whoever asks the same on the node hears why");
    let hint = said.and_then(|said| said.hint).unwrap_or_else(|| "again in a moment".to_owned());
    Failure(body.hint(hint)).into_response()
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
}
