//! Listening: HTTP/1.1 on the Unix socket and over mutual TLS. Every connection is a task; their number is bounded.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// Connections at a time, of each kind; streams that were handed over do not count.
const CONNECTIONS_MAX: usize = 1024;
/// A peer that says nothing occupies a connection for so long.
const HEADER_LIMIT: Duration = Duration::from_secs(15);
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
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
                tokio::spawn(async move {
                    serve_one(stream, router).await;
                    drop(permit);
                });
            }
            Err(error) => pause(error).await,
        }
    }
}

/// For the daemons of other nodes: whoever has no certificate of the cluster is refused in the handshake.
pub async fn serve_tls(listener: TcpListener, acceptor: TlsAcceptor, cluster: Arc<str>, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, address)) => {
                let (router, acceptor, cluster) = (router.clone(), acceptor.clone(), Arc::clone(&cluster));
                tokio::spawn(async move {
                    // Only latency is at stake.
                    let _ = stream.set_nodelay(true);
                    match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) if is_node(&stream, &cluster) => serve_one(stream, router).await,
                        Ok(Ok(_)) => {
                            tracing::warn!(%address, "a certificate of the authority that names no node of this cluster")
                        }
                        Ok(Err(error)) => tracing::warn!(%address, %error, "a connection was refused"),
                        Err(_) => tracing::debug!(%address, "a handshake took too long"),
                    }
                    drop(permit);
                });
            }
            Err(error) => pause(error).await,
        }
    }
}

fn is_node(stream: &tokio_rustls::server::TlsStream<tokio::net::TcpStream>, cluster: &str) -> bool {
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    certificate.is_some_and(|certificate| pki::peer_node_name(certificate, cluster).is_ok())
}

async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn pause(error: std::io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}
