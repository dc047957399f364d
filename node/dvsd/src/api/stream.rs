//! Connections that became streams (`Upgrade: dvs-stream`).
//!
//! A client of our Unix socket is handed over: its descriptor, with what was read from it already, goes to the keeper,
//! and the terminal no longer needs this daemon. A client of another node, or a person's, speaks TLS with us; its bytes
//! are copied ([`relay`]).

use std::os::fd::{AsFd, OwnedFd};

use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use mgmt_api::ErrorBody;
use mgmt_api::ErrorKind;
use mgmt_api::stream::{Kind, PROTOCOL};
use tokio::net::UnixStream;

use super::failure::Failure;
use super::gate::Holder;
use super::inhabitants::{for_holder, words_for};
use super::patience::Patient;
use super::relay::{Client, Far, last_word, relay};

/// 101, after which the connection is the stream's.
pub fn switching() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    response
}

/// How a client's bytes reach the keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By a socket of its own.
    Direct,
    /// Copied by daemons, of which each may end before the client does.
    Relayed,
}

/// The connection of a client, as the keeper gets it.
pub struct HandedOver {
    pub socket: OwnedFd,
    /// What was read from it already.
    pub pending: Vec<u8>,
    pub way: Way,
}

/// Gives the client's stream to `take` (on a thread that may block).
/// What `take` answers instead of success is told to the client in the stream.
///
/// A copied stream ends with what lets its holder in.
pub fn hand_over(
    client: OnUpgrade,
    holder: Holder,
    take: impl FnOnce(HandedOver) -> Result<(), (OwnedFd, Failure)> + Send + 'static,
) {
    tokio::spawn(async move {
        let upgraded = match client.await {
            Ok(upgraded) => upgraded,
            Err(error) => return tracing::debug!(%error, "a client went away before its stream began"),
        };
        let (client, copy) = match descriptor_of(upgraded) {
            Ok(parts) => parts,
            Err(error) => return tracing::warn!(%error, "a stream could not be handed over"),
        };
        let whose = holder.clone();
        let taking = tokio::task::spawn_blocking(move || {
            if let Err((descriptor, failure)) = take(client) {
                tell_error(&descriptor, &for_holder(&whose, failure.0));
            }
        });
        if let Some((upgraded, ours)) = copy {
            let explain = |pid: Option<u32>, cause: &str| for_holder(&holder, keeper_gone(pid, cause));
            let relayed = relay(Client::of_another_node(upgraded), ours, Far::Keeper, explain);
            while_good(&holder, relayed).await;
        }
        let _ = taking.await;
    });
}

/// Copies between a client of ours and the stream another node opened for it.
pub fn join(client: OnUpgrade, holder: Holder, remote: Response<Incoming>, dc: String, node: String) {
    tokio::spawn(async move {
        let (client, remote) = match tokio::try_join!(client, hyper::upgrade::on(remote)) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "a stream to another node did not begin"),
        };
        let remote = TokioIo::new(remote);
        let explain = |pid: Option<u32>, cause: &str| for_holder(&holder, node_lost(&dc, &node, pid, cause));
        match socket_of(client) {
            Ok((socket, early)) => {
                let client = Client::of_this_node(socket, &early).hearing(words_for(&holder));
                while_good(&holder, relay(client, remote, Far::Daemon, explain)).await;
            }
            // Requests are forwarded once: it is a person's.
            Err(client) => {
                let relayed = relay(Client::of_another_node(TokioIo::new(client)), remote, Far::Daemon, explain);
                while_good(&holder, relayed).await;
            }
        }
    });
}

/// A person's stream is dropped when the access is good no more, a container's with its hatch; whoever comes back is
/// refused with the reason.
async fn while_good(holder: &Holder, relayed: impl Future<Output = ()>) {
    tokio::select! {
        () = relayed => (),
        () = holder.over() => (),
    }
}

/// The last word of a stream whose node ended it without one.
fn node_lost(dc: &str, node: &str, pid: Option<u32>, cause: &str) -> ErrorBody {
    let pid = pid.map(|pid| pid.to_string());
    let program = pid.as_ref().map_or("the program".to_owned(), |pid| format!("program {pid}"));
    ErrorBody::new(ErrorKind::Unavailable, format!("the connection to {program} on node {node} was lost"))
        .because(cause)
        .hint(format!("if it goes on: dvs attach {dc} {}", pid.unwrap_or("PID".to_owned())))
}

fn keeper_gone(pid: Option<u32>, cause: &str) -> ErrorBody {
    let program = pid.map_or("the program".to_owned(), |pid| format!("program {pid}"));
    ErrorBody::new(ErrorKind::Unavailable, format!("the keeper of {program} ended before it told how the program did"))
        .because(cause)
        .hint("dvs dc inspect shows the container's parts")
}

type Copy = Option<(TokioIo<Upgraded>, UnixStream)>;

/// The Unix socket of a client of this node, and what was read from it already. One of a hatch has no limit for its
/// writes any more: a program's terminal may stand still.
fn socket_of(upgraded: Upgraded) -> Result<(UnixStream, Bytes), Upgraded> {
    let upgraded = match upgraded.downcast::<TokioIo<UnixStream>>() {
        Ok(parts) => return Ok((parts.io.into_inner(), parts.read_buf)),
        Err(upgraded) => upgraded,
    };
    let parts = upgraded.downcast::<TokioIo<Patient<UnixStream>>>()?;
    Ok((parts.io.into_inner().into_inner(), parts.read_buf))
}

fn descriptor_of(upgraded: Upgraded) -> std::io::Result<(HandedOver, Copy)> {
    match socket_of(upgraded) {
        Ok((socket, early)) => {
            let socket = socket.into_std()?.into();
            Ok((HandedOver { socket, pending: early.to_vec(), way: Way::Direct }, None))
        }
        Err(upgraded) => {
            let (ours, theirs) = UnixStream::pair()?;
            let socket = theirs.into_std()?.into();
            let client = HandedOver { socket, pending: Vec::new(), way: Way::Relayed };
            Ok((client, Some((TokioIo::new(upgraded), ours))))
        }
    }
}

/// An empty socket buffer takes one frame whole; a client that is gone needs no answer.
fn tell_error(stream: &OwnedFd, body: &ErrorBody) {
    let _ = rustix::net::send(stream.as_fd(), &last_word(Kind::Error, body), rustix::net::SendFlags::NOSIGNAL);
}
