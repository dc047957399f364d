//! The seam between a link and what carries its bytes.
//!
//! A link needs one thing of the world: a **reliable, ordered stream of bytes** between two nodes that can be polled.
//! TCP and Unix sockets are such streams; a transport over packets makes them so. Everything else, the loop, local
//! channels, encryption, greeting, reconnection, silence, pace, is the same for all and lives beside this folder. A
//! transport is what implements these two traits; `tests/` runs the conformance suite over each.
//!
//! **Rules.** Nothing here blocks. Bytes that were taken arrive once and in order, or the stream ends with an error;
//! whoever cannot promise that any more must fail. What a transport says of who dialled is not believed: TLS and HELLO
//! decide. A dropped [`Stream`] is closed.
//!
//! **Readiness.** A stream with a descriptor of its own is watched by the proxy. Streams that share one socket have
//! none: the transport's descriptor tells of all of them, and [`Transport::turn`] does what is due.
//!
//! A program that brings a transport of its own calls [`crate::main_with`]; `examples/shaped_proxy.rs` is one.

pub mod eth;
pub mod quic;
mod tcp;
#[cfg(feature = "tipc")]
pub mod tipc;
mod unix;

use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustls_pki_types::CertificateDer;

use crate::ProxyError;
use crate::secure::Credentials;

pub use eth::Eth;
pub use quic::Quic;
pub use tcp::Tcp;
#[cfg(feature = "tipc")]
pub use tipc::Tipc;
pub use unix::Unix;

/// Whether this build has TIPC: the cargo feature `tipc`.
pub const HAS_TIPC: bool = cfg!(feature = "tipc");

/// Whether the bytes of a link are encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encryption {
    Tls,
    Plain,
}

/// Whether long data may be packed, where the peer can unpack it and where it pays (`proxy-link` decides).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    #[default]
    Lz4,
    Off,
}

/// Whom a stream is to reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target<'a> {
    /// Name of the node, for a transport that checks certificates itself.
    pub node: &'a str,
    pub address: &'a str,
}

/// A reliable, ordered, non-blocking stream of bytes with one other proxy. `read` and `write` answer `WouldBlock`
/// instead of waiting, and `read` answers 0 when the peer has closed.
pub trait Stream: Read + Write + Send {
    /// For a stream that was dialled: `None` while it is being made, then whether it stands.
    fn established(&mut self) -> Option<io::Result<()>>;

    /// Readable when bytes came or the peer closed, writable when bytes are taken again. `None`: the descriptor of the
    /// transport tells of this stream too.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// The stream socket whose bytes are the stream's, if there is one: then long data goes between it and the memory
    /// of channels without a copy here, where nothing is laid over the stream.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Round trip as the transport measures it, when it does.
    fn round_trip(&self) -> Option<std::time::Duration> {
        None
    }

    /// Of a stream that somebody dialled, where the transport encrypts ([`Transport::encryption`]): the certificate
    /// that the peer has proved to be his.
    fn peer_certificate(&self) -> Option<CertificateDer<'static>> {
        None
    }
}

/// Makes streams.
pub trait Transport: Send {
    /// What the daemon and people call it: `tcp`, `unix`.
    fn name(&self) -> &'static str;

    /// Whether this could be the address of a peer; the error is for people.
    fn check(&self, address: &str) -> Result<(), String>;

    /// Where this side can be dialled.
    fn local_address(&self) -> String;

    /// `Tls`: its streams are encrypted by themselves, with the cluster's certificates at both ends and the node's name
    /// checked where this side dials. Nothing is laid over them then, and they are encrypted also where a link's
    /// settings do not ask for it.
    fn encryption(&self) -> Encryption {
        Encryption::Plain
    }

    /// Begins to dial.
    fn dial(&mut self, target: Target<'_>) -> io::Result<Box<dyn Stream>>;

    /// The next stream that somebody dialled; `WouldBlock` when there is none.
    fn accept(&mut self) -> io::Result<Box<dyn Stream>>;

    /// Readable when somebody dials, or when something came for a stream without a descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Called when the descriptor is readable or [`Transport::due`] has passed, before streams are asked: takes what
    /// came, sends what is due.
    fn turn(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// When `turn` has something to do even if nothing comes.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// The node shows and believes others from now on: for transports that encrypt by themselves.
    fn set_credentials(&mut self, _credentials: &Credentials) -> Result<(), ProxyError> {
        Ok(())
    }

    /// Numbers of the system calls it makes once it runs, beyond those every process of ours may make
    /// (`sys::harden::BASE_CALLS`).
    fn system_calls(&self) -> &'static [i64];
}

/// Receives until nothing is there, at most so many times.
fn receive_some(most: usize, mut receive: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for _ in 0..most {
        match receive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
