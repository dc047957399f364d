//! A node that gets another release: the daemon begins anew from its file, and what it started follows.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use mgmt_api::{ClusterLevel, UpgradeState};

use super::failure::Failure;
use super::{Api, blocking};
use crate::context::Ending;
use crate::{level, renewal};

pub async fn level(State(api): State<Arc<Api>>) -> Result<Json<ClusterLevel>, Failure> {
    Ok(Json(blocking(move || Ok(level::describe(&api.context.answers)?)).await?))
}

pub async fn show(State(api): State<Arc<Api>>) -> Result<Json<UpgradeState>, Failure> {
    Ok(Json(blocking(move || Ok(renewal::state(&api.context)?)).await?))
}

/// The answer comes before the end.
pub async fn begin_anew(State(api): State<Arc<Api>>) -> StatusCode {
    tracing::info!("asked to begin anew from the binary that is there now");
    api.context.end(Ending::Upgraded);
    StatusCode::NO_CONTENT
}

pub async fn renew_servers(State(api): State<Arc<Api>>) -> StatusCode {
    tracing::info!("asked to have servers and gates of other binaries give way");
    api.context.renewal.ask();
    StatusCode::NO_CONTENT
}
