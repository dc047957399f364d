//! Who may ask from elsewhere, and what was written down of what they asked.

use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use mgmt_api::{ACCESS_SECONDS, AccessFile, AccessInfo, AccessRequest, ErrorBody, ErrorKind, Myself, path, utc};
use pki::PersonCertificate;
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::failure::{Failure, failure};
use super::following::Following;
use super::gate::Caller;
use super::remote::Question;
use super::{Api, blocking, is_forwarded, parse, read_body};
use crate::context::Context;
use crate::people::audit::{Look, TAIL};
use crate::people::records::{self, AccessError, AccessRecord, Proof};
use crate::records::now_s;

/// The node that made an access knows of it by then; if not, it will a little later.
const HEAR_LIMIT: Duration = Duration::from_secs(2);
/// Lines of the audit log on their way to one who follows it.
const FOLLOWED_MAX: usize = 16;

pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Vec<AccessInfo>>, Failure> {
    Ok(Json(blocking(move || Ok(records::list(&api.context.answers)?)).await?))
}

pub async fn create(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<(StatusCode, Json<AccessFile>), Failure> {
    let asked: AccessRequest = parse(&read_body(body).await?)?;
    if !mgmt_api::valid_name(&asked.name) || asked.name.ends_with('-') {
        let what = format!("{:?} cannot be a name", asked.name);
        return Err(failure(ErrorKind::BadRequest, what, "1 to 32 of a-z, 0-9 and -, beginning with a letter"));
    }
    if !ACCESS_SECONDS.contains(&asked.ttl_s) {
        let (least, most) = (ACCESS_SECONDS.start(), ACCESS_SECONDS.end() / (365 * 86_400));
        let what = format!("an access is good for {least} seconds to {most} years");
        return Err(failure(ErrorKind::BadRequest, what, "--ttl 30d"));
    }
    let now = now_s();
    let mut ends_s = now + asked.ttl_s;
    let (token, proof) = match &asked.certificate_pem {
        None => {
            let (token, proof) = records::new_token(&asked.name).map_err(|error| not_made(&asked.name, error))?;
            (Some(token.to_string()), proof)
        }
        Some(pem) => {
            let (fingerprint, until) = certificate(pem)?;
            ends_s = ends_s.min(until);
            (None, Proof::Certificate { fingerprint })
        }
    };
    let made_by = caller.name().to_owned();
    let record = AccessRecord { role: asked.role, ends_s, made_s: now, made_by, proof };
    let (also, name, made) = (Arc::clone(&api), asked.name.clone(), record.clone());
    let reached = blocking(move || {
        // Whether anybody can come with it at all is known before it is made.
        let reached = Reached::now(&also.context)?;
        records::create(&*also.context.engine, &name, &made).map_err(|error| not_made(&name, error))?;
        Ok(reached)
    })
    .await?;
    let _ = tokio::time::timeout(HEAR_LIMIT, api.context.people.heard_of(&asked.name, &record)).await;
    let file = AccessFile {
        cluster: api.context.config.cluster.clone(),
        name: asked.name,
        role: asked.role,
        ends_s,
        addresses: reached.addresses,
        roots_pem: reached.roots_pem,
        revocations_pem: reached.revocations_pem,
        token,
        certificate_pem: asked.certificate_pem,
        key_pem: None,
    };
    Ok((StatusCode::CREATED, Json(file)))
}

/// Fingerprint, and the second since 1970 at which it ends.
fn certificate(pem: &str) -> Result<(String, u64), Failure> {
    let refused = |cause: String, hint: &str| {
        Failure(ErrorBody::new(ErrorKind::BadRequest, "the certificate cannot be a person's").because(cause).hint(hint))
    };
    let certificate = PersonCertificate::of_pem(pem)
        .map_err(|error| refused(crate::supervise::causes(&error), "dvs access key NAME makes one"))?;
    let (from, until) = (pki::second(certificate.facts.from), pki::second(certificate.facts.until));
    let now = SystemTime::now();
    let clock = || format!("it is good from {} until {}, and here it is {}", utc(from), utc(until), utc(now_s()));
    if certificate.facts.from > now || certificate.facts.until <= now {
        return Err(refused(clock(), "a new certificate; the clocks of both machines"));
    }
    Ok((certificate.fingerprint.to_string(), until))
}

fn not_made(name: &str, error: AccessError) -> Failure {
    let words = crate::supervise::causes(&error);
    let (kind, hint) = match error {
        AccessError::Engine(error) => return error.into(),
        AccessError::Taken(_) => (ErrorKind::Conflict, format!("another name, or dvs access rm {name}")),
        AccessError::SameCertificate(other) => {
            (ErrorKind::Conflict, format!("dvs access rm {other}, if it is the same person"))
        }
        AccessError::TooMany => (ErrorKind::NoSpace, "dvs access ls, and dvs access rm".to_owned()),
        AccessError::NoRandom | AccessError::Contended => (ErrorKind::Unavailable, "again".to_owned()),
    };
    Failure(ErrorBody::new(kind, format!("'{name}' was given no access")).because(words).hint(hint))
}

pub async fn remove(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Result<StatusCode, Failure> {
    let unknown = || failure(ErrorKind::NotFound, format!("there is no access {name:?}"), "dvs access ls");
    if !mgmt_api::valid_name(&name) {
        return Err(unknown());
    }
    let wanted = name.clone();
    let was_there = blocking(move || Ok(records::remove(&*api.context.engine, &wanted)?)).await?;
    if was_there { Ok(StatusCode::NO_CONTENT) } else { Err(unknown()) }
}

pub async fn myself(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Myself>, Failure> {
    let also = Arc::clone(&api);
    let reached = blocking(move || Reached::now(&also.context)).await?;
    let identity = caller.guest.as_ref().map(|guest| &guest.identity);
    Ok(Json(Myself {
        name: caller.name().to_owned(),
        role: caller.role(),
        by: caller.means(),
        ends_s: identity.map(|identity| identity.ends_s()),
        cluster: api.context.config.cluster.clone(),
        node: api.context.config.node.clone(),
        addresses: reached.addresses,
        roots_pem: reached.roots_pem,
        revocations_pem: reached.revocations_pem,
    }))
}

/// How the cluster is reached.
struct Reached {
    addresses: Vec<String>,
    roots_pem: String,
    revocations_pem: String,
}

impl Reached {
    fn now(context: &Context) -> Result<Reached, Failure> {
        let unreadable = |error: std::io::Error| {
            failure(
                ErrorKind::Internal,
                format!("the node's roots cannot be read: {error}"),
                "the files in its tls_dir",
            )
        };
        let dir = &context.config.tls_dir;
        let revocations = match fs::read_to_string(dir.join(pki::CA_CRL)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            text => text,
        };
        let mut addresses: Vec<String> = context
            .members
            .read()
            .values()
            .map(|member| match member.address.parse::<IpAddr>() {
                Ok(IpAddr::V6(address)) => format!("[{address}]:{}", member.api_port),
                _ => format!("{}:{}", member.address, member.api_port),
            })
            .collect();
        // Whoever answers comes first: it was reached.
        let own = &context.node;
        addresses.sort_by_key(|address| !address.contains(&own.address));
        Ok(Reached {
            addresses,
            roots_pem: fs::read_to_string(dir.join(pki::CA_CERT)).map_err(unreadable)?,
            revocations_pem: revocations.map_err(unreadable)?,
        })
    }
}

#[derive(Deserialize)]
pub struct AuditQuery {
    tail: Option<usize>,
    #[serde(default)]
    follow: bool,
    node: Option<String>,
}

/// Of this node, or of another one, which this one asks.
pub async fn audit(
    State(api): State<Arc<Api>>,
    Query(query): Query<AuditQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    if let Some(node) = query.node.filter(|node| *node != api.context.config.node && !is_forwarded(&headers)) {
        let unknown = || failure(ErrorKind::NotFound, format!("there is no node '{node}'"), "dvs node ls");
        let member = api.context.member(&node).ok_or_else(unknown)?;
        let tail = query.tail.map(|tail| format!("&tail={tail}")).unwrap_or_default();
        let path = format!("{}?follow={}{tail}", path::AUDIT, query.follow);
        let question = Question { method: Method::GET, path, body: Bytes::new(), is_stream: false };
        return api.remote.forward(&member, &question).await;
    }
    let unreadable = |error: std::io::Error| {
        failure(ErrorKind::Unavailable, format!("the audit log cannot be read: {error}"), "again; the disk of the node")
    };
    let Look { lines, mut following } = api.context.audit.look(query.tail.unwrap_or(TAIL)).await.map_err(unreadable)?;
    let media = [(CONTENT_TYPE, "application/x-ndjson")];
    if !query.follow {
        return Ok((media, lines).into_response());
    }
    let (sender, receiver) = mpsc::channel(FOLLOWED_MAX);
    tokio::spawn(async move {
        let mut next = Bytes::from(lines);
        loop {
            if sender.send(next).await.is_err() {
                return;
            }
            next = tokio::select! {
                () = sender.closed() => return,
                heard = following.recv() => match heard {
                    Ok(line) => Bytes::copy_from_slice(&line),
                    // Whoever does not keep up begins anew, rather than miss some.
                    Err(RecvError::Lagged(_) | RecvError::Closed) => return,
                },
            };
        }
    });
    Ok((media, Body::new(Following(receiver))).into_response())
}
