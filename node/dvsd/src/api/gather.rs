//! What each node of a container says of its part, in one answer. A node that does not say it is named in a header.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use mgmt_api::{ErrorKind, path};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::failure::{Failure, failure};
use super::remote::Question;
use super::{Api, blocking, is_forwarded, nodes, parse, read_body};
use crate::records::{DcView, Desired};

/// A node that does not answer within this is left out.
const LIMIT: Duration = Duration::from_secs(5);
/// The same for one to which there is no link: its daemon may still be reached, but hardly is.
const UNREACHABLE_LIMIT: Duration = Duration::from_millis(500);

/// Items of all nodes, and of which nodes they are missing.
pub struct Gathered<T> {
    pub items: Vec<T>,
    missing: Vec<String>,
}

impl<T: Serialize> Gathered<T> {
    pub fn answer(&self) -> Response<Body> {
        let mut response = Json(&self.items).into_response();
        // A text that is no header would be one that a node made up.
        for value in self.missing.iter().filter_map(|text| HeaderValue::from_str(text).ok()) {
            response.headers_mut().append(path::MISSING, value);
        }
        response
    }
}

/// Asks all nodes at once, so that one that does not answer holds up nobody else's answer. `resource`: where another
/// daemon has them, with the container's name in it. Who is asked by another daemon answers for its own node alone.
pub async fn gather<T, F>(
    api: &Arc<Api>,
    view: &DcView,
    headers: &HeaderMap,
    resource: &'static str,
    own: impl Fn(Arc<Api>, DcView) -> F,
) -> Result<Gathered<T>, Failure>
where
    T: DeserializeOwned + Send + 'static,
    F: Future<Output = Result<Vec<T>, Failure>> + Send + 'static,
{
    if is_forwarded(headers) {
        return Ok(Gathered { items: own(Arc::clone(api), view.clone()).await?, missing: Vec::new() });
    }
    let also = Arc::clone(api);
    let alive = blocking(move || Ok(nodes::alive(&also.context)?)).await?;
    let unreachable = nodes::unreachable(&api.context);
    let mut asked = JoinSet::new();
    for node in view.record.spec.nodes.clone() {
        let (api, view, is_alive) = (Arc::clone(api), view.clone(), alive.contains_key(&node));
        let limit = if unreachable.contains(&node) { UNREACHABLE_LIMIT } else { LIMIT };
        let own = (node == api.context.config.node).then(|| own(Arc::clone(&api), view.clone()));
        asked.spawn(async move {
            let found = if let Some(own) = own {
                own.await
            } else if is_alive {
                let asked = tokio::time::timeout(limit, ask(&api, &view, &node, resource)).await;
                asked.unwrap_or_else(|_| Err(failure(ErrorKind::TimedOut, "it does not answer", "again")))
            } else if view.record.desired == Desired::Running {
                Err(failure(ErrorKind::Unavailable, "it is down", "dvs node ls"))
            } else {
                Ok(Vec::new())
            };
            (node, found)
        });
    }
    let mut gathered = Gathered { items: Vec::new(), missing: Vec::new() };
    while let Some(answer) = asked.join_next().await {
        let Ok((node, found)) = answer else {
            tracing::error!(dc = view.record.spec.name, "a task that asked a node of a container had panicked");
            continue;
        };
        match found {
            Ok(found) => gathered.items.extend(found),
            Err(Failure(body)) => gathered.missing.push(format!("{node}: {}", body.what)),
        }
    }
    gathered.missing.sort();
    Ok(gathered)
}

/// What one other node says.
pub async fn ask<T: DeserializeOwned>(
    api: &Arc<Api>,
    view: &DcView,
    node: &str,
    resource: &str,
) -> Result<Vec<T>, Failure> {
    let Some(record) = api.context.member(node) else { return Ok(Vec::new()) };
    let path = path::fill(resource, &[("dc", &view.record.spec.name)]);
    let question = Question { method: Method::GET, path, body: Bytes::new(), is_stream: false };
    let answer = api.remote.forward(&record, &question).await?;
    let status = answer.status();
    let bytes = read_body(answer.into_body()).await?;
    if status.is_success() { parse(&bytes) } else { Err(Failure(parse(&bytes)?)) }
}
