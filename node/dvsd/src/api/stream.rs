//! Connections that became streams (`Upgrade: dvs-stream`).
//!
//! A client of our Unix socket is handed over: its descriptor, with what was read from it already, goes to the keeper, and the
//! terminal no longer needs this daemon. A client of another node speaks TLS with us; its bytes are copied.

use std::os::fd::{AsFd, OwnedFd};

use axum::body::Body;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use mgmt_api::ErrorBody;
use mgmt_api::stream::{Kind, PAYLOAD_BYTES_MAX, PROTOCOL, header};
use tokio::net::UnixStream;

use super::failure::Failure;

/// 101, after which the connection is the stream's.
pub fn switching() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    response
}

/// Gives the client's stream to `take` (on a thread that may block): a descriptor and the bytes already read from it.
/// What `take` answers instead of success is told to the client in the stream.
pub fn hand_over(
    client: OnUpgrade,
    take: impl FnOnce(OwnedFd, Vec<u8>) -> Result<(), (OwnedFd, Failure)> + Send + 'static,
) {
    tokio::spawn(async move {
        let upgraded = match client.await {
            Ok(upgraded) => upgraded,
            Err(error) => return tracing::debug!(%error, "a client went away before its stream began"),
        };
        let (descriptor, pending, copy) = match descriptor_of(upgraded) {
            Ok(parts) => parts,
            Err(error) => return tracing::warn!(%error, "a stream could not be handed over"),
        };
        let taking = tokio::task::spawn_blocking(move || {
            if let Err((descriptor, failure)) = take(descriptor, pending) {
                tell_error(&descriptor, &failure.0);
            }
        });
        if let Some((mut upgraded, mut ours)) = copy {
            // Ends when both sides have; an error is a side that went away.
            let _ = tokio::io::copy_bidirectional(&mut upgraded, &mut ours).await;
        }
        let _ = taking.await;
    });
}

/// Copies between a client of ours and the stream another node opened for it.
pub fn join(client: OnUpgrade, remote: Response<Incoming>) {
    tokio::spawn(async move {
        let (client, remote) = match tokio::try_join!(client, hyper::upgrade::on(remote)) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "a stream to another node did not begin"),
        };
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(remote)).await;
    });
}

type Copy = Option<(TokioIo<Upgraded>, UnixStream)>;

fn descriptor_of(upgraded: Upgraded) -> std::io::Result<(OwnedFd, Vec<u8>, Copy)> {
    match upgraded.downcast::<TokioIo<UnixStream>>() {
        Ok(parts) => Ok((parts.io.into_inner().into_std()?.into(), parts.read_buf.to_vec(), None)),
        Err(upgraded) => {
            let (ours, theirs) = UnixStream::pair()?;
            Ok((theirs.into_std()?.into(), Vec::new(), Some((TokioIo::new(upgraded), ours))))
        }
    }
}

/// The last frame of a stream that nobody else serves.
fn tell_error(stream: &OwnedFd, body: &ErrorBody) {
    let mut text = serde_json::to_vec(body).unwrap_or_default();
    text.truncate(PAYLOAD_BYTES_MAX);
    let mut frame = header(Kind::Error, text.len()).to_vec();
    frame.extend(text);
    // An empty socket buffer takes one frame whole; a client that is gone needs no answer.
    let _ = rustix::net::send(stream.as_fd(), &frame, rustix::net::SendFlags::NOSIGNAL);
}
