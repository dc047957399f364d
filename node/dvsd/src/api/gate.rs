//! Who asks, whether they may, and what is written down of it.
//!
//! A connection has an [`Origin`], which the listener knows (`serve.rs`). [`admit`] makes a [`Caller`] of it for each
//! request: of a person by the token of the request or the certificate of the connection. [`gate`] stands before each
//! route of the table, with that route: it asks the table whether the caller may, and puts an entry into the audit log.
//! A handler cannot be reached but through its route's gate, and a path that is no route is answered by [`no_route`],
//! which strangers do not get past either.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mgmt_api::routes::{Impact, Inhabitant, Least, Route, Who};
use mgmt_api::{AccessRole, AccessToken, AuditEntry, AuditWho, ErrorBody, ErrorKind, Means, utc};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;

use super::failure::{Failure, failure};
use super::{Api, FORWARDED, inhabitants};
use crate::hatches::Place;
use crate::people::known::{Guest, Identity};
use crate::people::limits::{Rate, Rates, network_of};
use crate::people::records::Refusal;
use crate::records;
use crate::records::now_s;

/// Failures to say who one is, from one address, before they are no more looked at and written down one by one.
const FAILURES: u32 = 20;
const FAILURE_EVERY: Duration = Duration::from_secs(6);
/// Refusals of one person that are written down one by one.
const REFUSALS: u32 = 60;
const REFUSAL_EVERY: Duration = Duration::from_secs(1);
/// Of a path, in the audit log.
const PATH_BYTES_MAX: usize = 256;
const METHOD_BYTES_MAX: usize = 16;

/// Where a connection comes from.
#[derive(Clone)]
pub enum Origin {
    /// The node's own Unix socket.
    Local {
        uid: Option<u32>,
        pid: Option<i32>,
    },
    Node {
        name: Arc<str>,
        address: SocketAddr,
    },
    Outside(Arc<Visit>),
    /// The hatch of a container.
    Inside(Arc<Place>),
    /// Likewise, where there is no place.
    TurnedAway,
}

/// A connection whose peer is no node.
pub struct Visit {
    pub address: SocketAddr,
    /// Which it showed; that it has the key is known, and nothing else.
    pub certificate: Option<CertificateDer<'static>>,
    /// Once it said who it is. A connection is one person's.
    pub guest: watch::Sender<Option<Arc<Guest>>>,
}

/// Who asks.
#[derive(Clone)]
pub struct Caller {
    pub standing: Who,
    who: AuditWho,
    /// Why it is a stranger.
    why: Option<Arc<Failure>>,
    pub guest: Option<Arc<Guest>>,
    /// The place of a program of a container.
    pub inhabitant: Option<Arc<Place>>,
    /// From where a stranger comes.
    network: Option<IpAddr>,
    /// Another node passes on what somebody asked it, and has written it down.
    is_forwarded: bool,
}

impl Caller {
    /// As `made_by` of what it makes.
    pub fn name(&self) -> &str {
        &self.who.name
    }

    /// Nothing of a node that passes on what somebody else asked.
    pub fn own_name(&self) -> Option<&str> {
        (!self.is_forwarded).then_some(self.name()).filter(|name| !name.is_empty())
    }

    pub fn means(&self) -> Means {
        self.who.by
    }

    /// What somebody may who is at the socket is what an administrator may.
    pub fn role(&self) -> Option<AccessRole> {
        match self.standing {
            Who::Person(role) => Some(role),
            Who::Local => Some(AccessRole::Administrator),
            Who::Stranger | Who::Node | Who::Inside(_) => None,
        }
    }

    /// What a stream of it holds, and by what it ends.
    pub fn holder(&self) -> Holder {
        match (&self.guest, &self.inhabitant) {
            (Some(guest), _) => Holder::Person(Arc::clone(guest)),
            (None, Some(place)) => Holder::Inside(Arc::clone(place)),
            (None, None) => Holder::Nobody,
        }
    }
}

/// Who has a stream, where it may have to end before its program does.
#[derive(Clone)]
pub enum Holder {
    Nobody,
    Person(Arc<Guest>),
    Inside(Arc<Place>),
}

impl Holder {
    /// Waits until it may not go on.
    pub async fn over(&self) {
        match self {
            Holder::Nobody => std::future::pending().await,
            Holder::Person(guest) => {
                guest.over().await;
                tracing::info!(name = guest.identity.name, "a stream ends, whose person has no access any more");
            }
            Holder::Inside(place) => place.over().await,
        }
    }
}

/// What the gate remembers of failures.
pub struct Failures {
    /// Of strangers: by their network, those that are answered, and those that are written down.
    failed: Mutex<Rates<IpAddr>>,
    noted: Mutex<Rates<IpAddr>>,
    /// Of people, by their name.
    refused: Mutex<Rates<String>>,
}

impl Default for Failures {
    fn default() -> Failures {
        Failures {
            failed: Mutex::new(Rates::new(FAILURES, FAILURE_EVERY)),
            noted: Mutex::new(Rates::new(FAILURES, FAILURE_EVERY)),
            refused: Mutex::new(Rates::new(REFUSALS, REFUSAL_EVERY)),
        }
    }
}

/// Makes the caller of a request known to all that come after.
pub async fn admit(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let Some(origin) = request.extensions_mut().remove::<Origin>() else {
        return failure(ErrorKind::Internal, "nobody knows where the request comes from", "the daemon's log")
            .into_response();
    };
    if let Origin::Inside(place) = &origin {
        place.keep_pace(1).await;
    }
    let caller = match caller(&api, &origin, request.headers()) {
        Ok(caller) => caller,
        // It is known, and has too much.
        Err(refused) => return closing(refused.into_response()),
    };
    // Nobody but a node says this of a request; and nobody behind here needs the secret.
    if caller.standing != Who::Node {
        request.headers_mut().remove(FORWARDED);
    }
    request.headers_mut().remove(AUTHORIZATION);
    request.extensions_mut().insert(caller);
    next.run(request).await
}

fn caller(api: &Api, origin: &Origin, headers: &HeaderMap) -> Result<Caller, Failure> {
    let nobody = AuditWho { name: String::new(), role: None, by: Means::Nothing, address: None, uid: None, pid: None };
    let known = |standing, who| Caller {
        standing,
        who,
        why: None,
        guest: None,
        inhabitant: None,
        network: None,
        is_forwarded: false,
    };
    match origin {
        Origin::TurnedAway => Err(failure(
            ErrorKind::TooMany,
            "programs of the container have too many connections with the node's daemon",
            "again, when some of them have ended",
        )),
        Origin::Inside(place) => {
            let name = match place.who {
                Inhabitant::Root => container_name(place),
                Inhabitant::User => format!("{}, user {}", container_name(place), place.uid_inside()),
            };
            let who = AuditWho { name, by: Means::Socket, uid: Some(place.uid), pid: place.pid, ..nobody };
            Ok(Caller { inhabitant: Some(Arc::clone(place)), ..known(Who::Inside(place.who), who) })
        }
        Origin::Local { uid, pid } => {
            let name = match uid {
                Some(0) => "root".to_owned(),
                Some(uid) => format!("uid {uid}"),
                None => String::new(),
            };
            Ok(known(Who::Local, AuditWho { name, by: Means::Socket, uid: *uid, pid: *pid, ..nobody }))
        }
        Origin::Node { name, address } => {
            let who =
                AuditWho { name: (**name).to_owned(), by: Means::Node, address: Some(address.to_string()), ..nobody };
            let is_forwarded = headers.contains_key(FORWARDED);
            Ok(Caller { is_forwarded, ..known(Who::Node, who) })
        }
        Origin::Outside(visit) => {
            let address = Some(visit.address.to_string());
            let network = network_of(visit.address.ip());
            let who = AuditWho { address: address.clone(), ..nobody.clone() };
            let stranger =
                |why| Caller { why: Some(Arc::new(why)), network: Some(network), ..known(Who::Stranger, who) };
            let identified = identify(api, visit, headers).and_then(|identity| receive(api, visit, identity));
            let guest = match identified {
                Ok(guest) => guest,
                Err(why) if why.0.kind == ErrorKind::TooMany => return Err(why),
                // Whoever shows nothing may want to become a node.
                Err(why) if visit.certificate.is_none() && !headers.contains_key(AUTHORIZATION) => {
                    return Ok(stranger(why));
                }
                // Whoever guesses is told nothing any more after a while.
                Err(why) => match api.failures.failed.lock().spend(&network, Instant::now()) {
                    Rate::Within { .. } => return Ok(stranger(why)),
                    Rate::Exceeded => {
                        // It counts among what is not written.
                        api.failures.noted.lock().spend(&network, Instant::now());
                        return Err(too_often());
                    }
                },
            };
            let identity = &guest.identity;
            let who = AuditWho {
                name: identity.name.clone(),
                role: Some(identity.role()),
                by: identity.means(),
                address,
                ..nobody.clone()
            };
            let standing = Who::Person(identity.role());
            Ok(Caller { guest: Some(guest), ..known(standing, who) })
        }
    }
}

/// By the token of the request, else by the certificate of the connection.
fn identify(api: &Api, visit: &Visit, headers: &HeaderMap) -> Result<Identity, Failure> {
    let (people, now) = (&api.context.people, now_s());
    let said = headers.get_all(AUTHORIZATION).iter().collect::<Vec<_>>();
    match (said.as_slice(), &visit.certificate) {
        ([], None) => {
            Err(unauthenticated("it is not known who asks", "there is no token, and no certificate was shown"))
        }
        ([], Some(certificate)) => people.by_certificate(certificate, now).map_err(|why| match why {
            Refusal::Unknown => unauthenticated(
                "it is not known who asks",
                "the cluster does not know the certificate: it was taken back, or never let in",
            ),
            Refusal::Ended { ends_s } => ended(api, "certificate", ends_s, now),
        }),
        ([one], _) => {
            let token = bearer(one).ok_or_else(|| {
                unauthenticated("it is not known who asks", "the header Authorization is not 'Bearer dvs_NAME_SECRET'")
            })?;
            people.by_token(&token, now).map_err(|why| match why {
                Refusal::Unknown => unauthenticated(
                    "it is not known who asks",
                    "the cluster does not know the token: it was taken back, or is another cluster's",
                ),
                Refusal::Ended { ends_s } => ended(api, "token", ends_s, now),
            })
        }
        _ => Err(unauthenticated("it is not known who asks", "the header Authorization is there more than once")),
    }
}

fn bearer(value: &HeaderValue) -> Option<AccessToken> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") { token.trim().parse().ok() } else { None }
}

/// With both times: one of the clocks may be wrong.
fn ended(api: &Api, what: &str, ends_s: u64, now: u64) -> Failure {
    let node = &api.context.config.node;
    unauthenticated(
        format!("the {what} has ended"),
        format!("it was good until {}, and node {node} has {}", utc(ends_s), utc(now)),
    )
}

fn unauthenticated(what: impl Into<String>, cause: impl Into<String>) -> Failure {
    Failure(
        ErrorBody::new(ErrorKind::Unauthenticated, what)
            .because(cause.into())
            .hint("dvs access token, or dvs access certificate, on a node of the cluster gives access"),
    )
}

fn too_often() -> Failure {
    failure(ErrorKind::TooMany, "too many requests from this address did not say who asks", "again in a minute")
}

/// The place of the connection, taken at its first request.
fn receive(api: &Api, visit: &Visit, identity: Identity) -> Result<Arc<Guest>, Failure> {
    if let Some(guest) = &*visit.guest.borrow() {
        if guest.identity == identity {
            return Ok(Arc::clone(guest));
        }
        return Err(unauthenticated(
            "it is not known who asks",
            "the connection was another one's before: each needs its own",
        ));
    }
    let guest = api.context.people.receive(identity, visit.address.ip());
    let guest = guest.map_err(|why| {
        Failure(
            ErrorBody::new(ErrorKind::TooMany, "there is no place for another connection")
                .because(why)
                .hint("again, when some of them have ended; another node"),
        )
    })?;
    visit.guest.send_replace(Some(Arc::clone(&guest)));
    Ok(guest)
}

/// Stands before a route.
pub async fn gate(State((api, route)): State<(Arc<Api>, &'static Route)>, request: Request, next: Next) -> Response {
    let Some(caller) = request.extensions().get::<Caller>().cloned() else { return nobody_knows() };
    let mut noted = Noted::begin(&api, caller, Some(route), &request);
    let inhabitant = noted.caller.inhabitant.clone();
    let narrowed = match &inhabitant {
        Some(place) => inhabitants::narrow(&api, place, route, request).await,
        None => Ok(request),
    };
    let answer = match narrowed {
        Err(failure) => failure.into_response(),
        Ok(request) if route.admits(noted.caller.standing) => match &inhabitant {
            Some(place) => inhabitants::answer(place, route, request, next).await,
            None => next.run(request).await,
        },
        Ok(_) => noted.refuse(Some(route), route.least),
    };
    let answer = match &inhabitant {
        Some(place) => inhabitants::fit(place, route, answer).await,
        None => answer,
    };
    noted.answered(&answer);
    answer
}

/// Who of it asked is told besides, and does not matter for how often it is written down.
fn container_name(place: &Place) -> String {
    format!("container {}", place.name)
}

/// Instead of `answer`, where that is for those alone who may know what there is.
pub fn no_route(api: &Arc<Api>, request: &Request, answer: Failure) -> Response {
    let Some(caller) = request.extensions().get::<Caller>().cloned() else { return nobody_knows() };
    let least = Least::Person(AccessRole::Viewer);
    let mut noted = Noted::begin(api, caller, None, request);
    // A program of a container may know what no resource is.
    let answer = match noted.caller.inhabitant.is_some() || least.admits(noted.caller.standing) {
        true => answer.into_response(),
        false => noted.refuse(None, least),
    };
    noted.answered(&answer);
    answer
}

fn nobody_knows() -> Response {
    failure(ErrorKind::Internal, "nobody knows who asks", "the daemon's log").into_response()
}

/// The connection ends with this answer.
fn closing(mut answer: Response) -> Response {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// What is to be written down of a request. Its caller may go away before it is answered, and what was asked happens
/// all the same; so that is written down too.
struct Noted {
    api: Arc<Api>,
    caller: Caller,
    operation: &'static str,
    method: String,
    path: String,
    since: Instant,
    /// Nothing more is to be written.
    is_over: bool,
}

impl Noted {
    fn begin(api: &Arc<Api>, caller: Caller, route: Option<&Route>, request: &Request) -> Noted {
        let changes = route.is_some_and(|route| route.effect == Impact::Changes);
        Noted {
            api: Arc::clone(api),
            operation: route.map_or("", |route| route.operation.name()),
            method: request.method().as_str().chars().take(METHOD_BYTES_MAX).collect(),
            path: request.uri().path().chars().take(PATH_BYTES_MAX).collect(),
            since: Instant::now(),
            // Whoever passed it on wrote it down. Of what changes nothing only refusals are written.
            is_over: caller.is_forwarded || !changes,
            caller,
        }
    }

    /// The answer to a caller who may not.
    fn refuse(&mut self, route: Option<&Route>, least: Least) -> Response {
        self.is_over = self.caller.is_forwarded;
        if let (Some(place), Some(route)) = (&self.caller.inhabitant, route) {
            return Failure(inhabitants::refusal(place, route)).into_response();
        }
        if let Some(why) = &self.caller.why {
            let mut answer = Failure(why.0.clone()).into_response();
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"dvs\""));
            return closing(answer);
        }
        let needed = match least {
            Least::Person(least) => format!("it needs the role {least}"),
            Least::Node => "it is for nodes, and for root on a node".to_owned(),
            Least::Anyone => "it is for nobody".to_owned(),
        };
        let role = self.caller.who.role.map_or_else(|| "no role".to_owned(), |role| format!("the role {role}"));
        let name = &self.caller.who.name;
        let what = format!("'{name}' may not do this");
        let hint = "an access of another role: dvs access token NAME --role ROLE, by an administrator";
        Failure(ErrorBody::new(ErrorKind::Forbidden, what).because(format!("{needed}; '{name}' has {role}")).hint(hint))
            .into_response()
    }

    fn answered(&mut self, answer: &Response) {
        self.write(Some(answer.status()), answer.extensions().get::<ErrorKind>().copied());
    }

    fn write(&mut self, status: Option<StatusCode>, error: Option<ErrorKind>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let Some(omitted) = self.spend(status) else { return };
        let name = |kind: ErrorKind| serde_json::to_value(kind).ok()?.as_str().map(str::to_owned);
        let took = self.since.elapsed();
        self.api.context.audit.write(AuditEntry {
            at_ms: records::now_ms(),
            node: self.api.context.config.node.clone(),
            who: self.caller.who.clone(),
            operation: self.operation.to_owned(),
            method: std::mem::take(&mut self.method),
            path: std::mem::take(&mut self.path),
            status: status.map(|status| status.as_u16()),
            error: error.and_then(name),
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            omitted,
            lost: 0,
        });
    }

    /// Whoever is refused again and again does not push out of the log what others did. `None`: it is not written.
    fn spend(&self, status: Option<StatusCode>) -> Option<u64> {
        let (failures, now) = (&self.api.failures, Instant::now());
        let rate = match (self.caller.standing, status) {
            (Who::Stranger, _) => failures.noted.lock().spend(&self.caller.network?, now),
            // A container's changes as well: its programs are nobody whom people let in.
            (Who::Inside(_), _) => {
                let container = self.caller.inhabitant.as_ref().map(|place| container_name(place))?;
                failures.refused.lock().spend(&container, now)
            }
            (_, Some(StatusCode::FORBIDDEN)) => failures.refused.lock().spend(&self.caller.who.name, now),
            _ => Rate::Within { omitted: 0 },
        };
        match rate {
            Rate::Within { omitted } => Some(omitted),
            Rate::Exceeded => None,
        }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.write(None, None);
    }
}
