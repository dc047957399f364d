//! The REST API: one file per resource. The same router serves the Unix socket and, over mutual TLS, other nodes.
//!
//! Whoever receives a request for a process of another node forwards it there ([`remote`]) and copies streams both
//! ways; the node where the process is hands streams of local clients to the keeper as they are ([`stream`]).

mod backup;
mod dcs;
mod examination;
pub mod failure;
mod health;
mod joining;
pub use health::checks;
pub use joining::strangers_router;
pub use mgmt_api::HealthCheck;
mod nodes;
pub use nodes::unreachable_since;
mod processes;
mod relay;
pub mod remote;
mod requests;
pub use requests::Requests;
pub mod serve;
mod settings;
mod stream;
mod tree;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::HeaderMap;
use axum::routing::{delete, get, post};
use mgmt_api::{DcPhase, ErrorKind, path};
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::records::{self, DcView, Desired};
use failure::{Failure, failure};
use remote::Remote;

/// Arguments and environment of a program may have 2 MiB; JSON escapes may double them.
const BODY_BYTES_MAX: usize = 8 << 20;
/// Marks a request that another node forwarded: it is answered here or not at all.
pub const FORWARDED: &str = "x-dvs-forwarded-by";

/// What handlers work with.
pub struct Api {
    pub context: Arc<Context>,
    pub remote: Remote,
}

pub fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route(path::VERSION, get(health::version))
        .route(path::LIVE, get(health::live))
        .route(path::READY, get(health::ready))
        .route(path::LIVEZ, get(health::livez))
        .route(path::READYZ, get(health::readyz))
        .route(path::METRICS, get(health::metrics))
        .route(path::FACTS, get(examination::facts))
        .route(path::EXAMINATION, get(examination::examine))
        .route(path::SETTINGS, get(settings::show))
        .route(path::NODES, get(nodes::list))
        .route(path::NODE, get(nodes::show).patch(nodes::change).delete(nodes::remove))
        .route(path::AUTHORITY, get(joining::authority).post(joining::rotate))
        .route(path::BACKUP, get(backup::take))
        .route(path::TOKENS, get(joining::list_tokens).post(joining::create_token))
        .route(path::TOKEN, delete(joining::remove_token))
        .route(path::DCS, get(dcs::list).post(dcs::create))
        .route(path::DC, get(dcs::show).delete(dcs::delete))
        .route(path::DC_START, post(dcs::start))
        .route(path::DC_STOP, post(dcs::stop))
        .route(path::DC_CHANNELS, get(dcs::channels))
        .route(path::DC_EXEC, post(processes::exec))
        .route(path::DC_IMPORT, post(processes::import))
        .route(path::PROCESSES, get(processes::list).post(processes::run))
        .route(path::PROCESS, get(processes::show))
        .route(path::PROCESS_SIGNAL, post(processes::signal))
        .route(path::PROCESS_ATTACH, get(processes::attach))
        .route(path::PROCESS_LOGS, get(processes::logs))
        .fallback(async || {
            failure(
                ErrorKind::NotFound,
                "there is no such resource",
                "a dvs of the same version as the daemon: dvs version",
            )
        })
        .method_not_allowed_fallback(async || {
            failure(
                ErrorKind::BadRequest,
                "the resource does not take this method",
                "a dvs of the same version as the daemon: dvs version",
            )
        })
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&api), requests::count))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(api)
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
    axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(|error| {
        failure(ErrorKind::BadRequest, format!("the request cannot be read: {error}"), "a smaller request")
    })
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
