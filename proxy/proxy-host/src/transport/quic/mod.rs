//! QUIC (RFC 9000): one stream of one connection per link, over UDP. Addresses are `address:port`.
//!
//! The state machine is quinn-proto's, which does no I/O; here are its socket and its clock. All connections of the
//! node share one socket, so streams have no descriptor of their own.
//!
//! **Always encrypted.** QUIC has no plain form: TLS 1.3 with the cluster's certificates at both ends is part of it,
//! whatever a link's settings say, and no second TLS is laid over it ([`Transport::encryption`]).
//!
//! **States** of a connection: `Beginning` (handshake; on the accepting side also until the stream's first byte) →
//! `Open` → `Ended`. Who holds it is another matter ([`connection::Holder`]): a stream, the backlog, or nobody any
//! more; then what was written is delivered for a while, and the connection closed. It is forgotten when the protocol
//! is done with it and nobody holds it.
//!
//! **A successor** of a proxy that was killed answers packets for its predecessor's connections with a stateless reset,
//! made with a key that comes from the node's own; so links are made anew at once.

mod config;
mod connection;
mod core;
pub mod limits;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;

use self::connection::Number;
use self::core::Core;
use super::{Encryption, Stream, Target, Transport};
use crate::ProxyError;
use crate::secure::Credentials;

pub struct Quic {
    shared: Arc<Mutex<Core>>,
    /// The core's socket, to be watched.
    socket: OwnedFd,
    local: SocketAddr,
    credentials: Credentials,
}

impl Quic {
    /// `socket` comes from [`sys::udp::open`].
    pub fn new(socket: OwnedFd, credentials: Credentials) -> Result<Quic, ProxyError> {
        let address = rustix::net::getsockname(&socket).and_then(SocketAddr::try_from);
        let local = address.map_err(|error| ProxyError::Poll(error.into()))?;
        let configs = config::configs(&credentials, local.port())?;
        let core = Core::new(socket.try_clone().map_err(ProxyError::Poll)?, configs);
        Ok(Quic { shared: Arc::new(Mutex::new(core)), socket, local, credentials })
    }

    fn stream(&self, number: Number) -> Box<dyn Stream> {
        Box::new(QuicStream { shared: Arc::clone(&self.shared), number })
    }

    /// As this socket takes it: one of IPv6 writes addresses of IPv4 its own way.
    fn parse(&self, address: &str) -> io::Result<SocketAddr> {
        let address: SocketAddr = address.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
        match (self.local, address) {
            (SocketAddr::V6(_), SocketAddr::V4(v4)) => Ok((v4.ip().to_ipv6_mapped(), v4.port()).into()),
            (SocketAddr::V4(_), SocketAddr::V6(_)) => Err(io::ErrorKind::InvalidInput.into()),
            _ => Ok(address),
        }
    }
}

/// One thread uses it, so nobody ever waits here.
impl Transport for Quic {
    fn name(&self) -> &'static str {
        "quic"
    }

    fn check(&self, address: &str) -> Result<(), String> {
        match self.parse(address) {
            Ok(address) if address.port() != 0 => Ok(()),
            _ => Err(format!("'{address}' is no numeric address with a port that this node's socket can reach")),
        }
    }

    fn local_address(&self) -> String {
        self.local.to_string()
    }

    fn encryption(&self) -> Encryption {
        Encryption::Tls
    }

    fn dial(&mut self, target: Target<'_>) -> io::Result<Box<dyn Stream>> {
        let address = self.parse(target.address)?;
        let name = self.credentials.dns_name_of(target.node);
        let number = self.shared.lock().dial(address, &name)?;
        Ok(self.stream(number))
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let number = self.shared.lock().accept().ok_or(io::ErrorKind::WouldBlock)?;
        Ok(self.stream(number))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn turn(&mut self) -> io::Result<()> {
        self.shared.lock().turn(Instant::now())
    }

    fn due(&self) -> Option<Instant> {
        self.shared.lock().due()
    }

    fn set_credentials(&mut self, credentials: &Credentials) -> Result<(), ProxyError> {
        let configs = config::configs(credentials, self.local.port())?;
        self.shared.lock().set_configs(configs);
        self.credentials = credentials.clone();
        Ok(())
    }

    /// Datagrams are sent and received by calls that every process may make.
    fn system_calls(&self) -> &'static [i64] {
        &[]
    }
}

struct QuicStream {
    shared: Arc<Mutex<Core>>,
    number: Number,
}

impl Read for QuicStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.shared.lock().with(self.number, |connection| connection.read(buffer))?
    }
}

impl Write for QuicStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.shared.lock().with(self.number, |connection| connection.write(bytes))?
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for QuicStream {
    fn established(&mut self) -> Option<io::Result<()>> {
        self.shared.lock().look(self.number, |connection| connection.established()).unwrap_or_else(|e| Some(Err(e)))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn round_trip(&self) -> Option<Duration> {
        self.shared.lock().look(self.number, |connection| connection.round_trip()).ok().flatten()
    }

    fn peer_certificate(&self) -> Option<CertificateDer<'static>> {
        self.shared.lock().look(self.number, |connection| connection.peer_certificate()).ok().flatten()
    }
}

impl Drop for QuicStream {
    fn drop(&mut self) {
        self.shared.lock().let_go(self.number);
    }
}

#[cfg(test)]
mod tests;
