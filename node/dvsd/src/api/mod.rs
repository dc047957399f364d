//! The REST API: one file per resource. One router, made of the table in `mgmt_api::routes` ([`dispatch`]), serves the
//! Unix socket and, over TLS, other nodes, people elsewhere and whoever wants to become a node. Who asks, and whether
//! they may, is decided before any handler ([`gate`]).
//!
//! Whoever receives a request for a process of another node forwards it there ([`remote`]) and copies streams both
//! ways; the node where the process is hands streams of local clients to the keeper as they are ([`stream`]).

mod access;
mod backup;
mod changes;
mod contents;
mod dcs;
mod disks;
mod dispatch;
pub use dispatch::router;
mod events;
mod examination;
pub mod failure;
mod following;
pub mod gate;
mod gather;
mod health;
mod inhabitants;
mod joining;
pub use health::checks;
pub use mgmt_api::HealthCheck;
mod nodes;
pub mod patience;
mod plans;
mod ports;
pub use nodes::unreachable_since;
mod processes;
mod relay;
pub mod remote;
mod renaming;
mod replicas;
mod requests;
pub use requests::Requests;
#[cfg(test)]
mod scale;
pub mod serve;
mod servers;
mod services;
mod settings;
mod spans;
mod stream;
mod tree;
mod upgrade;
mod usage;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::HeaderMap;
use mgmt_api::{DcPhase, ErrorKind};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use crate::context::Context;
use crate::records::{self, DcView, Desired};
use failure::{Failure, failure};
use remote::Remote;

/// Arguments and environment of a program may have 2 MiB; JSON escapes may double them.
const BODY_BYTES_MAX: usize = 8 << 20;
/// A body that takes longer is no body.
const BODY_LIMIT: Duration = Duration::from_secs(60);
const JOINS_AT_A_TIME: usize = 4;
/// Marks a request that another node forwarded: it is answered here or not at all.
pub const FORWARDED: &str = "x-dvs-forwarded-by";

/// What handlers work with.
pub struct Api {
    pub context: Arc<Context>,
    pub remote: Remote,
    pub failures: gate::Failures,
    /// Each signs a certificate.
    pub joins: Arc<Semaphore>,
}

impl Api {
    pub fn new(context: Arc<Context>, remote: Remote) -> Api {
        let joins = Arc::new(Semaphore::new(JOINS_AT_A_TIME));
        Api { context, remote, failures: Default::default(), joins }
    }
}

/// Runs what waits for the kernel, the engine or a keeper off the runtime's threads.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(failure(ErrorKind::Internal, format!("the request was not finished: {error}"), "again")),
    }
}

impl Api {
    pub async fn dc(self: &Arc<Self>, name: &str) -> Result<DcView, Failure> {
        let (api, name) = (Arc::clone(self), name.to_owned());
        blocking(move || {
            if !mgmt_api::valid_name(&name) {
                return Err(failure::no_such_dc(&name));
            }
            records::dc_view(&api.context.answers, &name)?.ok_or_else(|| failure::no_such_dc(&name))
        })
        .await
    }

    pub async fn dcs(self: &Arc<Self>) -> Result<BTreeMap<String, DcView>, Failure> {
        let api = Arc::clone(self);
        blocking(move || Ok(records::dc_views(&api.context.answers)?)).await
    }
}

/// The whole body, bounded.
pub async fn read_body(body: Body) -> Result<Bytes, Failure> {
    let unreadable = |cause: String| failure(ErrorKind::BadRequest, cause, "a smaller request");
    match tokio::time::timeout(BODY_LIMIT, axum::body::to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(read) => read.map_err(|error| unreadable(format!("the request cannot be read: {error}"))),
        Err(_) => Err(unreadable(format!("the request took longer than {} s", BODY_LIMIT.as_secs()))),
    }
}

pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| {
        failure(
            ErrorKind::BadRequest,
            format!("the request makes no sense: {error}"),
            "dvs help, or the description of dc.toml",
        )
    })
}

pub fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED)
}

pub fn wants_stream(request: &Request) -> bool {
    let upgrade = request.headers().get(axum::http::header::UPGRADE);
    upgrade.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(mgmt_api::stream::PROTOCOL.as_bytes()))
}

/// What the shares together mean for people.
pub fn phase(view: &DcView) -> DcPhase {
    let current = |node: &String| view.shares.get(node).filter(|share| share.generation == view.record.generation);
    let mut phases = view.record.spec.nodes.iter().map(|node| current(node).map(|share| share.share.phase));
    match view.record.desired {
        Desired::Running => running_phase(&phases.collect::<Vec<_>>()),
        Desired::Stopped { .. } if phases.all(|phase| matches!(phase, None | Some(DcPhase::Stopped))) => {
            DcPhase::Stopped
        }
        Desired::Stopped { .. } | Desired::Deleted { .. } => DcPhase::Stopping,
    }
}

fn running_phase(phases: &[Option<DcPhase>]) -> DcPhase {
    let any = |phase: DcPhase| phases.contains(&Some(phase));
    if phases.iter().all(|phase| *phase == Some(DcPhase::Running)) {
        DcPhase::Running
    } else if any(DcPhase::Failed) {
        DcPhase::Failed
    } else if any(DcPhase::Starting) {
        DcPhase::Starting
    } else if any(DcPhase::Running) || any(DcPhase::Degraded) {
        DcPhase::Degraded
    } else {
        DcPhase::Starting
    }
}
