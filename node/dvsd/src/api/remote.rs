//! Requests to the daemons of other nodes: one TLS connection each, answers passed on as they come.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use mgmt_api::{ErrorBody, ErrorKind};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::FORWARDED;
use super::failure::Failure;
use crate::records::NodeRecord;

/// Nodes are near each other; one that does not answer is down.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// What a node is asked may take long; meanwhile its daemon is asked so often whether it lives.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// One that does not say so within this hangs. Together less than what clients wait for short answers, so that they
/// hear who it is; more than a handshake takes where many wait for a CPU.
const LIVES_WITHIN: Duration = Duration::from_secs(15);

pub struct Remote {
    pub connector: TlsConnector,
    pub node: String,
    pub cluster: String,
}

/// What to ask, apart from where.
#[derive(Clone)]
pub struct Question {
    pub method: Method,
    /// With its query.
    pub path: String,
    pub body: Bytes,
    pub is_stream: bool,
}

impl Remote {
    /// Asks another node. The answer is whatever it says, errors included. It may take as long as the other daemon
    /// lives and works on it; of one that hangs (stopped, or no CPU for it) the answer is given up.
    pub async fn ask(&self, node: &NodeRecord, question: &Question) -> Result<Response<Incoming>, Failure> {
        match tokio::time::timeout(CONNECT_LIMIT, self.connect(node)).await {
            Ok(Ok(mut sender)) => {
                let answer = sender.send_request(self.request(question));
                tokio::select! {
                    answer = answer => answer.map_err(|error| unreachable(node, error)),
                    () = silence(LOOK_EVERY, LIVES_WITHIN, || self.ask_for_life(node)) => Err(hangs(node)),
                }
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(unreachable(node, format!("no connection within {} s", CONNECT_LIMIT.as_secs()))),
        }
    }

    /// Like [`Remote::ask`], made ready to be answered to a client of ours.
    pub async fn forward(&self, node: &NodeRecord, question: &Question) -> Result<Response<Body>, Failure> {
        Ok(self.ask(node, question).await?.map(Body::new))
    }

    async fn ask_for_life(&self, node: &NodeRecord) {
        let path = mgmt_api::path::LIVEZ.to_owned();
        let question = Question { method: Method::GET, path, body: Bytes::new(), is_stream: false };
        if let Ok(mut sender) = self.connect(node).await {
            // Whatever it says.
            let _ = sender.send_request(self.request(&question)).await;
        }
    }

    async fn connect(&self, node: &NodeRecord) -> Result<http1::SendRequest<http_body_util::Full<Bytes>>, Failure> {
        let address = format!("{}:{}", bracketed(&node.address), node.api_port);
        let stream =
            TcpStream::connect(&address).await.map_err(|error| unreachable(node, format!("{address}: {error}")))?;
        super::serve::tune(&stream);
        let name = pki::server_name(&node.name, &self.cluster).map_err(|error| unreachable(node, error))?;
        let stream = self.connector.connect(name, stream).await.map_err(|error| not_believed(node, &error))?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(node, error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to another node ended");
            }
        });
        Ok(sender)
    }

    fn request(&self, question: &Question) -> Request<http_body_util::Full<Bytes>> {
        let mut request = Request::new(http_body_util::Full::new(question.body.clone()));
        *request.method_mut() = question.method.clone();
        // It came from a request line, so it is one.
        *request.uri_mut() = question.path.parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("dvs"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // A node's name is a valid header.
        headers
            .insert(FORWARDED, HeaderValue::from_str(&self.node).unwrap_or_else(|_| HeaderValue::from_static("node")));
        if question.is_stream {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static(mgmt_api::stream::PROTOCOL));
        }
        request
    }
}

/// Ends when somebody who is asked every so often does not answer within the limit. An answer that he is not there is
/// one: the connection on which more is awaited says so itself.
async fn silence<A: Future<Output = ()>>(every: Duration, within: Duration, ask: impl Fn() -> A) {
    loop {
        tokio::time::sleep(every).await;
        if tokio::time::timeout(within, ask()).await.is_err() {
            return;
        }
    }
}

fn hangs(node: &NodeRecord) -> Failure {
    let body = ErrorBody::new(ErrorKind::TimedOut, format!("node {} does not answer", node.name));
    let body = body.because("its daemon hangs: it does not even say that it lives; what was asked may still happen");
    body.hint(format!("there: systemctl restart dvsd; dvs node inspect {}", node.name)).into()
}

/// For a local connector with the node's certificate.
pub fn connector(config: Arc<rustls::ClientConfig>) -> TlsConnector {
    TlsConnector::from(config)
}

pub fn is_switching(response: &Response<Incoming>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

fn bracketed(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

fn unreachable(node: &NodeRecord, cause: impl std::fmt::Display) -> Failure {
    let body = ErrorBody::new(ErrorKind::Unavailable, format!("node {} cannot be reached", node.name));
    body.because(cause).hint(format!("dvs node inspect {}", node.name)).into()
}

/// Mostly one of the two has another time than its certificate.
fn not_believed(node: &NodeRecord, cause: &std::io::Error) -> Failure {
    let body = ErrorBody::new(ErrorKind::Unavailable, format!("node {} cannot be reached", node.name));
    let body = body.because("it and this node do not believe each other's certificates").because(cause);
    body.hint("dvs doctor tells of the certificates and clocks of all nodes").into()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn silence_is_of_whoever_does_not_answer_once() {
        let (every, within) = (Duration::from_millis(1), Duration::from_millis(20));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let asked = Cell::new(0_u32);
        runtime.block_on(silence(every, within, || async {
            asked.set(asked.get() + 1);
            if asked.get() == 4 {
                std::future::pending().await
            }
        }));
        assert_eq!(asked.get(), 4);
    }
}
