//! Version and health of this daemon.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use mgmt_api::{Health, Version};

use super::failure::Failure;
use super::{Api, blocking};
use crate::context::Context;

pub async fn version(State(api): State<Arc<Api>>) -> Json<Version> {
    let config = &api.context.config;
    Json(Version {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: config.node.clone(),
        cluster: config.cluster.clone(),
    })
}

pub async fn live() -> Json<Health> {
    Json(Health { ok: true, problems: Vec::new() })
}

pub async fn ready(State(api): State<Arc<Api>>) -> Result<(StatusCode, Json<Health>), Failure> {
    let problems = blocking(move || Ok(problems(&api.context))).await?;
    let status = if problems.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Json(Health { ok: problems.is_empty(), problems })))
}

/// What is known of the cluster is as old as that.
pub fn engine_away(context: &Context) -> Option<String> {
    let away = context.answers.away_for()?;
    Some(format!(
        "the cluster engine does not answer; what is shown is {} s old, and nothing can be changed",
        away.as_secs()
    ))
}

/// One line for each part of the daemon that is not well. Asks the parts, so it may wait.
pub fn problems(context: &Context) -> Vec<String> {
    let mut problems = Vec::new();
    if let Err(error) = context.answers.probe(&crate::records::member_key(&context.config.node)) {
        problems.push(format!("engine: {error}"));
    }
    if context.lease().is_none() {
        problems.push("engine: this node has no lease at the moment".to_owned());
    }
    if let Err(error) = context.broker.snapshot() {
        problems.push(format!("broker: {error}"));
    }
    problems.extend(crate::space::problems(&context.config));
    problems.extend(context.proxy.problem().map(|problem| format!("proxy: {problem}")));
    problems
}
