//! Version, health and metrics of this daemon.
//!
//! Whether it lives and whether it is ready are two questions. One that does not live should be replaced; one that is
//! not ready serves what it can, and replacing it mends nothing: its engine is away, or a disk is full.

use std::fmt::Write;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use mgmt_api::{ErrorKind, Health, HealthCheck, Version, path};
use serde::Deserialize;

use super::failure::{Failure, failure};
use super::gate::Caller;
use super::remote::Question;
use super::{Api, blocking, is_forwarded};
use crate::anew;
use crate::context::Context;
use crate::judging::Court;
use crate::level;
use crate::metrics;
use crate::quorum::Members;
use crate::records;

#[derive(Deserialize)]
pub struct HealthQuery {
    /// Present, with any value: each check by its name.
    verbose: Option<String>,
}

#[derive(Deserialize)]
pub struct MetricsQuery {
    /// Which; the one that is asked when absent.
    node: Option<String>,
}

pub async fn version(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>) -> Json<Version> {
    let config = &api.context.config;
    // A program of a container hears with whom it talks, and nothing of the node.
    let of_node = |text: String| if caller.inhabitant.is_some() { String::new() } else { text };
    Json(Version {
        version: versions::Release::NAME.to_owned(),
        node: config.node.clone(),
        cluster: of_node(config.cluster.clone()),
        follows: versions::Release::own().follows,
        speaks: versions::PROTOCOLS.iter().map(|protocol| (protocol.name.to_owned(), protocol.speaks)).collect(),
        binary: of_node(anew::binary().display().to_string()),
        pid: caller.inhabitant.is_none().then(std::process::id),
    })
}

pub async fn live(State(api): State<Arc<Api>>, Query(query): Query<HealthQuery>) -> (StatusCode, Json<Health>) {
    as_json(&[progress(&api.context)], &query)
}

pub async fn ready(
    State(api): State<Arc<Api>>,
    Query(query): Query<HealthQuery>,
) -> Result<(StatusCode, Json<Health>), Failure> {
    let checks = blocking(move || Ok(checks(&api.context))).await?;
    Ok(as_json(&checks, &query))
}

pub async fn livez(State(api): State<Arc<Api>>, Query(query): Query<HealthQuery>) -> (StatusCode, String) {
    as_text("livez", &[progress(&api.context)], &query)
}

pub async fn readyz(
    State(api): State<Arc<Api>>,
    Query(query): Query<HealthQuery>,
) -> Result<(StatusCode, String), Failure> {
    let checks = blocking(move || Ok(checks(&api.context))).await?;
    Ok(as_text("readyz", &checks, &query))
}

/// Of this node, or of another one, which this one asks.
pub async fn metrics(
    State(api): State<Arc<Api>>,
    Query(query): Query<MetricsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let other = query.node.filter(|node| *node != api.context.config.node && !is_forwarded(&headers));
    let Some(node) = other else {
        let text = blocking(move || Ok(metrics::exposition(&api.context))).await?;
        return Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response());
    };
    let unknown = || failure(ErrorKind::NotFound, format!("there is no node '{node}'"), "dvs node ls");
    let member = api.context.member(&node).ok_or_else(unknown)?;
    let path = path::METRICS.to_owned();
    api.remote.forward(&member, &Question { method: Method::GET, path, body: Bytes::new(), is_stream: false }).await
}

fn status(checks: &[HealthCheck]) -> StatusCode {
    if checks.iter().all(HealthCheck::is_passed) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn as_json(checks: &[HealthCheck], query: &HealthQuery) -> (StatusCode, Json<Health>) {
    let problems: Vec<String> = checks.iter().flat_map(|check| check.problems.iter().cloned()).collect();
    let shown = if query.verbose.is_some() { checks.to_vec() } else { Vec::new() };
    (status(checks), Json(Health { ok: problems.is_empty(), problems, checks: shown }))
}

/// A line for each check that was not passed, or for each; the last line is the answer.
fn as_text(name: &str, checks: &[HealthCheck], query: &HealthQuery) -> (StatusCode, String) {
    let (status, mut text) = (status(checks), String::new());
    for check in checks.iter().filter(|check| query.verbose.is_some() || !check.is_passed()) {
        let _ = match check.problems.join("; ").replace('\n', " ") {
            problems if problems.is_empty() => writeln!(text, "[+] {}", check.name),
            problems => writeln!(text, "[-] {}: {problems}", check.name),
        };
    }
    text.push_str(match (status, text.is_empty()) {
        (StatusCode::OK, true) => "ok\n",
        (StatusCode::OK, false) => "passed\n",
        _ => "failed\n",
    });
    tracing::debug!(name, %status, "asked for the daemon's health");
    (status, text)
}

/// What is known of the cluster is as old as that.
pub fn engine_away(context: &Context) -> Option<String> {
    let away = context.answers.away_for()?;
    Some(format!(
        "the cluster engine does not answer; what is shown is {} s old, and nothing can be changed",
        away.as_secs()
    ))
}

/// All parts of the daemon, by name. Asks them, so it may wait.
pub fn checks(context: &Context) -> Vec<HealthCheck> {
    let engine = context.answers.probe(&records::member_key(&context.config.node)).err();
    let lease = context.lease().is_none().then(|| "engine: this node has no lease at the moment".to_owned());
    let broker = context.broker.snapshot().err();
    vec![
        HealthCheck::new("engine", engine.map(|error| format!("engine: {error}"))),
        HealthCheck::new("lease", lease),
        HealthCheck::new("broker", broker.map(|error| format!("broker: {error}"))),
        HealthCheck::new("disk-space", crate::space::problems(&context.config)),
        HealthCheck::new("certificates", context.certificates.lock().as_ref().and_then(|kept| kept.problem())),
        HealthCheck::new("engine-members", engine_members(context)),
        HealthCheck::new("proxy", context.proxy.problem().map(|problem| format!("proxy: {problem}"))),
        HealthCheck::new("cut-off", cut_off(context)),
        HealthCheck::new("audit", context.audit.problem()),
        HealthCheck::new("names", context.names_problem.lock().clone()),
        HealthCheck::new("releases", level::problems(&context.config.node, context.members.read().values())),
        progress(context),
    ]
}

/// Of this node's member of etcd, and of how many there are.
fn engine_members(context: &Context) -> Option<String> {
    let complaint = context.complaint.lock().clone();
    complaint.or_else(|| context.quorum.lock().as_ref().and_then(Members::problem))
}

/// Known by this node's own clock.
pub fn cut_off(context: &Context) -> Option<String> {
    let is_cut_off = context.court.lock().as_ref().is_some_and(Court::is_cut_off);
    is_cut_off.then(|| "this node is cut off from the others and from the engine; they may go on without it".to_owned())
}

/// The one of which being alive depends.
fn progress(context: &Context) -> HealthCheck {
    HealthCheck::new("progress", context.duties.problems())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(checks: &[HealthCheck], verbose: bool) -> (u16, String) {
        let (status, text) = as_text("readyz", checks, &HealthQuery { verbose: verbose.then(String::new) });
        (status.as_u16(), text)
    }

    #[test]
    fn well_is_one_word_and_each_check_has_its_line_on_request() {
        let checks = [HealthCheck::new("engine", None), HealthCheck::new("proxy", None)];
        assert_eq!(said(&checks, false), (200, "ok\n".to_owned()));
        assert_eq!(said(&checks, true), (200, "[+] engine\n[+] proxy\npassed\n".to_owned()));
    }

    #[test]
    fn what_is_not_well_is_named_without_a_request() {
        let checks = [HealthCheck::new("engine", None), HealthCheck::new("proxy", ["a".to_owned(), "b\nc".to_owned()])];
        assert_eq!(said(&checks, false), (503, "[-] proxy: a; b c\nfailed\n".to_owned()));
        assert_eq!(said(&checks, true), (503, "[+] engine\n[-] proxy: a; b c\nfailed\n".to_owned()));
        let (status, Json(health)) = as_json(&checks, &HealthQuery { verbose: None });
        assert_eq!((status.as_u16(), health.problems.len(), health.checks.len()), (503, 2, 0));
    }
}
