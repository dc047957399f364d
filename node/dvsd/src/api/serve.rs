//! Listening: HTTP/1.1 on the Unix socket and over TLS. Every connection is a task; their number is bounded.
//!
//! Over TLS come nodes, by their certificate, and others. Of those nobody knows who they are until a request says it
//! (`gate.rs`): until then they are strangers, who have few places and little time; then they have a place among
//! people, as long as their access is good. Nodes have places of their own, which neither can take.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use pki::NodeCredentials;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt;

use super::gate::{Origin, Visit};

/// Connections at a time, of each kind; streams that were handed over do not count.
const CONNECTIONS_MAX: usize = 1024;
/// A peer that says nothing occupies a connection for so long.
const HEADER_LIMIT: Duration = Duration::from_secs(15);
/// All headers of a request together, as they lie in the connection's buffer.
const HEADER_BYTES_MAX: usize = 64 << 10;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How often it is looked whether the certificate of a connection that stands is still good.
const STILL_GOOD_EVERY: Duration = Duration::from_secs(30);
/// For a peer to say who it is, or to become a node, from its handshake on.
const STRANGER_LIMIT: Duration = Duration::from_secs(10);
/// Peers of which it is not known who they are. They have places of their own: a flood of them takes none from nodes
/// and people.
const STRANGERS_MAX: usize = 256;
/// When these are taken, the oldest makes room once it has had so long: far more than a handshake takes between nodes.
const STRANGER_GIVES_WAY: Duration = Duration::from_millis(500);
/// A node that vanished without a word (no power, a cut cable) is taken for lost when it has not answered for so long:
/// streams to it end then. Longer than a link takes to heal, and than a lease of a daemon.
const LOST_AFTER: Duration = Duration::from_secs(9);
const PROBE_AFTER: Duration = Duration::from_secs(3);
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBES: u32 = 3;
const _: () = assert!(
    LOST_AFTER.as_secs() == PROBE_AFTER.as_secs() + PROBE_EVERY.as_secs() * PROBES as u64,
    "both measures of silence end at the same time"
);
/// After a failure to accept (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("another daemon serves {}", .0.display())]
    InUse(PathBuf),
    #[error("cannot listen at {}", .path.display())]
    Failed {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
}

/// The API's socket, for root only. What a daemon that was killed left behind is replaced; a living daemon's is not.
pub fn bind_unix(path: &Path) -> Result<std::os::unix::net::UnixListener, ListenError> {
    use std::os::unix::net::{UnixListener, UnixStream};
    let failed = |cause| ListenError::Failed { path: path.to_owned(), cause };
    if UnixStream::connect(path).is_ok() {
        return Err(ListenError::InUse(path.to_owned()));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => (),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

pub async fn serve_unix(listener: UnixListener, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                let peer = stream.peer_cred().ok();
                let origin = Origin::Local { uid: peer.map(|peer| peer.uid()), pid: peer.and_then(|peer| peer.pid()) };
                tokio::spawn(async move {
                    serve_one(stream, router, origin).await;
                    drop(permit);
                });
            }
            Err(error) => pause(error).await,
        }
    }
}

/// By what a peer is known.
#[derive(Clone)]
pub struct Knowledge {
    pub credentials: Arc<NodeCredentials>,
    pub cluster: Arc<str>,
}

pub async fn serve_tls(listener: TcpListener, acceptor: TlsAcceptor, knowledge: Knowledge, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut strangers = Strangers::default();
    loop {
        strangers.make_room().await;
        match listener.accept().await {
            Ok((stream, address)) => {
                let (router, acceptor) = (router.clone(), acceptor.clone());
                let (room, knowledge) = (Arc::clone(&room), knowledge.clone());
                strangers.add(tokio::spawn(async move {
                    match greet(stream, address, acceptor, &knowledge).await {
                        None => (),
                        Some((stream, Peer::Other(visit))) => be_stranger(stream, router, visit).await,
                        Some((stream, Peer::Node { name, certificate })) => {
                            let origin = Origin::Node { name, address };
                            tokio::spawn(async move {
                                match tokio::time::timeout(HANDSHAKE_LIMIT, room.acquire_owned()).await {
                                    Ok(Ok(_permit)) => {
                                        let served = serve_one(stream, router, origin);
                                        as_node(served, &certificate, &knowledge.credentials).await;
                                    }
                                    _ => tracing::warn!(%address, "too many connections of other nodes"),
                                }
                            });
                        }
                    }
                }));
            }
            Err(error) => pause(error).await,
        }
    }
}

/// As long as its certificate is good.
async fn as_node(served: impl Future<Output = ()>, certificate: &CertificateDer<'_>, credentials: &NodeCredentials) {
    let is_over = async {
        while credentials.admits(certificate) {
            tokio::time::sleep(STILL_GOOD_EVERY).await;
        }
        tracing::warn!("a connection of a node ends, whose certificate is good no more");
    };
    tokio::select! {
        () = served => (),
        () = is_over => (),
    }
}

/// Returns, and with that frees the stranger's place, when the connection ends or has a place among people. Ended from
/// outside, or too late, the stranger's connection ends.
async fn be_stranger(stream: TlsStream<TcpStream>, router: Router, visit: Arc<Visit>) {
    let mut guest = visit.guest.subscribe();
    let address = visit.address;
    let mut connection = Ending(Some(tokio::spawn(serve_visit(stream, router, visit))));
    let Some(task) = connection.0.as_mut() else { return };
    tokio::select! {
        _ = task => (),
        known = tokio::time::timeout(STRANGER_LIMIT, guest.wait_for(Option::is_some)) => match known {
            Ok(_) => drop(connection.0.take()),
            Err(_) => tracing::debug!(%address, "a peer that did not say who it is took too long"),
        },
    }
}

/// A connection that ends with whoever holds this.
struct Ending(Option<JoinHandle<()>>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Until it ends, or the access of the person behind it.
async fn serve_visit(stream: TlsStream<TcpStream>, router: Router, visit: Arc<Visit>) {
    let mut known = visit.guest.subscribe();
    let is_over = async {
        let guest = known.wait_for(Option::is_some).await.ok().and_then(|guest| guest.clone());
        match guest {
            Some(guest) => guest.over().await,
            None => std::future::pending().await,
        }
    };
    let (address, origin) = (visit.address, Origin::Outside(Arc::clone(&visit)));
    tokio::select! {
        () = serve_one(stream, router, origin) => (),
        () = is_over => tracing::info!(%address, "a connection of a person ends, whose access is good no more"),
    }
}

/// Who is at the other end.
enum Peer {
    Node {
        name: Arc<str>,
        certificate: CertificateDer<'static>,
    },
    /// It showed no certificate, or one that is no node's.
    Other(Arc<Visit>),
}

/// Lets a node in, and who may turn out to be a person: nobody else.
async fn greet(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    knowledge: &Knowledge,
) -> Option<(TlsStream<TcpStream>, Peer)> {
    tune(&stream);
    let stream = match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::warn!(%address, %error, "a connection was refused");
            return None;
        }
        Err(_) => {
            tracing::debug!(%address, "a handshake took too long");
            return None;
        }
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(|certificate| certificate.clone().into_owned());
    let peer = match certificate {
        Some(certificate) if pki::names_a_node(&certificate) => {
            let name = pki::peer_node_name(&certificate, &knowledge.cluster).ok();
            let Some(name) = name.filter(|_| knowledge.credentials.admits(&certificate)) else {
                tracing::warn!(%address, "a certificate of the authority that names no node of this cluster");
                return None;
            };
            Peer::Node { name: name.into(), certificate }
        }
        certificate => Peer::Other(Arc::new(Visit { address, certificate, guest: watch::Sender::new(None) })),
    };
    Some((stream, peer))
}

/// Handshakes under way, the oldest first.
#[derive(Default)]
struct Strangers(VecDeque<(Instant, JoinHandle<()>)>);

impl Strangers {
    /// Waits until another one may come; a client that comes meanwhile waits in the kernel.
    async fn make_room(&mut self) {
        self.0.retain(|(_, handshake)| !handshake.is_finished());
        if self.0.len() < STRANGERS_MAX {
            return;
        }
        let Some((since, mut handshake)) = self.0.pop_front() else { return };
        let left = STRANGER_GIVES_WAY.saturating_sub(since.elapsed());
        if tokio::time::timeout(left, &mut handshake).await.is_err() {
            handshake.abort();
        }
    }

    fn add(&mut self, handshake: JoinHandle<()>) {
        self.0.push_back((Instant::now(), handshake));
    }
}

/// How a connection between two daemons behaves. A socket that takes none of it works all the same.
pub fn tune(stream: &TcpStream) {
    use rustix::net::sockopt;
    let socket = stream.as_fd();
    // Small frames of a terminal must not wait for each other.
    let _ = stream.set_nodelay(true);
    // A connection on which nothing is said must end too when the other node is gone.
    let _ = sockopt::set_tcp_keepidle(socket, PROBE_AFTER);
    let _ = sockopt::set_tcp_keepintvl(socket, PROBE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(socket, PROBES);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_user_timeout(socket, LOST_AFTER.as_millis() as u32);
}

/// Every request carries where its connection comes from.
pub async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router, origin: Origin) {
    let router = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(origin.clone());
        request
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn pause(error: std::io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit, setrlimit};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;

    use super::*;

    /// More than there are places for nodes.
    const IDLE: usize = CONNECTIONS_MAX + 100;

    fn credentials() -> (TlsAcceptor, TlsConnector, Arc<NodeCredentials>) {
        let dir = tempfile::tempdir().unwrap();
        let authority = pki::Authority::create(&dir.path().join("ca"), "test").unwrap();
        let request = pki::NodeRequest { node: "n1", addresses: &[], valid: pki::Validity::of_a_node() };
        let node = dir.path().join("node");
        authority.issue_node(&request, &node).unwrap();
        let credentials = pki::NodeCredentials::load(&node).unwrap();
        (
            credentials.server_config(pki::Door::Nodes).unwrap().into(),
            credentials.client_config().unwrap().into(),
            credentials,
        )
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn node_is_answered_while_strangers_hold_more_connections_than_there_are() {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
        let (acceptor, connector, credentials) = credentials();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", axum::routing::get(|| async { "here" }));
        let knowledge = Knowledge { credentials, cluster: "test".into() };
        tokio::spawn(serve_tls(listener, acceptor, knowledge, router));
        let mut idle = Vec::new();
        for _ in 0..IDLE {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let asked = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let mut stream = connector.connect(pki::server_name("n1", "test").unwrap(), stream).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: dvs\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        // Idle connections keep their places for longer than that.
        let answer = tokio::time::timeout(HANDSHAKE_LIMIT - Duration::from_secs(2), asked).await.unwrap();
        assert!(answer.ends_with("here"), "{answer}");
        drop(idle);
    }
}
