//! What the spawn record of a proxy holds beyond the common fields.
//!
//! | where | name | meaning |
//! |---|---|---|
//! | field | `node`, `node_id`, `cluster` | who this node is |
//! | field | `pair` | which of the node's proxies: it speaks with those of the same number; 0 when it is not there |
//! | field | `broker_fd` | the broker's proxy socket |
//! | `fds` | `control` | SEQPACKET socket to the daemon, see [`crate::control`] |
//! | `fds` | `presence` | where it says that the node is heard (`sys::presence`) |
//! | `fds` | `listen` | a listening TCP socket; else option `listen`; with neither there is no TCP |
//! | `fds` | `listen_unix` | a listening Unix stream socket, if there is one |
//! | `fds` | `eth` | a packet socket (`sys::packet::open`), with options `eth_mac` and `eth_mtu` of its interface |
//! | `fds` | `quic` | a UDP socket (`sys::udp::open`); needs option `tls_dir` |
//! | `fds` | `tipc` | a listening TIPC socket (`sys::tipc::listen`), with option `tipc_service`, `TYPE:INSTANCE`; needs feature `tipc` |
//! | option | `listen` | `address:port`, port 0 allowed |
//! | option | `tls` | `"on"` (default) or `"off"`, for links whose entry says nothing |
//! | option | `tls_dir` | directory with `ca.crt`, `node.crt`, `node.key`, read before privileges are dropped |
//! | option | `compression` | `"lz4"` (default): long data may be packed where that pays; or `"off"` |
//! | option | `suspect_ms`, `down_ms` | when a silent peer is suspected, and when it is given up |

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use abi::{Epoch, NodeId, PairId};
use proxy_link::LinkTimes;
use serde_json::Value;
use sys::spawn::{Spawn, SpawnError};

use crate::ProxyError;
use crate::inspect::Inspector;
use crate::secure::Credentials;
use crate::transport::eth::parse_mac;
use crate::transport::{Compression, Encryption, Eth, Quic, Tcp, Transport, Unix};

/// Everything a proxy needs, checked.
pub struct ProxyConfig {
    pub node: String,
    pub node_id: NodeId,
    pub cluster: String,
    /// It speaks with the proxies of the same pair.
    pub pair: PairId,
    pub incarnation: Epoch,
    pub times: LinkTimes,
    /// The first is dialled where a peer's address names none.
    pub transports: Vec<Box<dyn Transport>>,
    pub inspector: Option<Arc<dyn Inspector>>,
    pub encryption: Encryption,
    pub compression: Compression,
    /// Needed when any link is encrypted.
    pub tls_dir: Option<PathBuf>,
    pub broker: OwnedFd,
    pub control: Option<OwnedFd>,
    pub presence: Option<OwnedFd>,
}

impl ProxyConfig {
    pub(crate) fn from_spawn(spawn: &mut Spawn, parts: Parts) -> Result<ProxyConfig, ProxyError> {
        let tls_dir = spawn.option_str("tls_dir")?.map(PathBuf::from);
        let encryption = match spawn.option_str("tls")? {
            None | Some("on") => Encryption::Tls,
            Some("off") => Encryption::Plain,
            Some(_) => return Err(SpawnError::BadOption("tls".to_owned()).into()),
        };
        let compression = match spawn.option_str("compression")? {
            None | Some("lz4") => Compression::Lz4,
            Some("off") => Compression::Off,
            Some(_) => return Err(SpawnError::BadOption("compression".to_owned()).into()),
        };
        let defaults = LinkTimes::default();
        let millis = |value: Option<u64>, default: Duration| value.map_or(default, Duration::from_millis);
        let times = LinkTimes {
            suspect: millis(spawn.option_u64("suspect_ms")?, defaults.suspect),
            down: millis(spawn.option_u64("down_ms")?, defaults.down),
            ..defaults
        };
        Ok(ProxyConfig {
            node: field_str(spawn, "node")?,
            node_id: node_id(spawn)?,
            cluster: field_str(spawn, "cluster")?,
            pair: pair(spawn)?,
            incarnation: Epoch(spawn.epoch),
            times,
            transports: parts.transports,
            inspector: parts.inspector,
            encryption,
            compression,
            tls_dir,
            control: spawn.take_fd("control"),
            presence: spawn.take_fd("presence"),
            broker: spawn.take_broker()?,
        })
    }
}

/// What a program may bring of its own ([`crate::main_with`]).
#[derive(Default)]
pub struct Parts {
    pub transports: Vec<Box<dyn Transport>>,
    pub inspector: Option<Arc<dyn Inspector>>,
}

impl Parts {
    /// The transports of this crate for which the record brings a socket.
    pub fn from_spawn(spawn: &mut Spawn) -> Result<Parts, ProxyError> {
        let mut transports: Vec<Box<dyn Transport>> = Vec::new();
        if let Some(listener) = tcp_listener(spawn)? {
            transports.push(Box::new(Tcp::new(listener).map_err(ProxyError::Poll)?));
        }
        if let Some(fd) = spawn.take_fd("listen_unix") {
            transports.push(Box::new(Unix::new(UnixListener::from(fd)).map_err(ProxyError::Poll)?));
        }
        if let Some(socket) = spawn.take_fd("eth") {
            let mac = spawn.option_str("eth_mac")?.and_then(parse_mac).ok_or(SpawnError::Missing("eth_mac"))?;
            let mtu = spawn.option_u64("eth_mtu")?.ok_or(SpawnError::Missing("eth_mtu"))?;
            let mtu = usize::try_from(mtu).unwrap_or(usize::MAX);
            transports.push(Box::new(Eth::new(socket, mac, mtu).map_err(ProxyError::Poll)?));
        }
        if let Some(socket) = spawn.take_fd("quic") {
            let dir = spawn.option_str("tls_dir")?.map(PathBuf::from).ok_or(ProxyError::NoTlsDirForQuic)?;
            let credentials = Credentials::load(&dir, &field_str(spawn, "cluster")?)?;
            transports.push(Box::new(Quic::new(socket, credentials)?));
        }
        if let Some(socket) = spawn.take_fd("tipc") {
            transports.push(tipc(spawn, socket)?);
        }
        Ok(Parts { transports, inspector: None })
    }
}

#[cfg(feature = "tipc")]
fn tipc(spawn: &Spawn, listener: OwnedFd) -> Result<Box<dyn Transport>, ProxyError> {
    use crate::transport::tipc::{Tipc, parse_service};
    let service = spawn.option_str("tipc_service")?.and_then(parse_service);
    Ok(Box::new(Tipc::new(listener, service.ok_or(SpawnError::Missing("tipc_service"))?)))
}

#[cfg(not(feature = "tipc"))]
fn tipc(_: &Spawn, _: OwnedFd) -> Result<Box<dyn Transport>, ProxyError> {
    Err(ProxyError::NoTipc)
}

/// The TCP socket that the record hands over or describes.
pub fn tcp_listener(spawn: &mut Spawn) -> Result<Option<TcpListener>, ProxyError> {
    if let Some(fd) = spawn.take_fd("listen") {
        return Ok(Some(TcpListener::from(fd)));
    }
    let Some(text) = spawn.option_str("listen")? else { return Ok(None) };
    let address: SocketAddr = text.parse().map_err(|_| SpawnError::BadOption("listen".to_owned()))?;
    TcpListener::bind(address).map(Some).map_err(|source| ProxyError::Listen { address, source })
}

fn field_str(spawn: &Spawn, name: &'static str) -> Result<String, SpawnError> {
    spawn.fields.get(name).and_then(Value::as_str).map(str::to_owned).ok_or(SpawnError::Missing(name))
}

fn node_id(spawn: &Spawn) -> Result<NodeId, SpawnError> {
    let number = spawn.fields.get("node_id").and_then(Value::as_u64);
    let number = number.and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0);
    number.map(NodeId).ok_or(SpawnError::Missing("node_id"))
}

fn pair(spawn: &Spawn) -> Result<PairId, SpawnError> {
    let Some(value) = spawn.fields.get("pair") else { return Ok(PairId::FIRST) };
    let number = value.as_u64().and_then(|number| u8::try_from(number).ok());
    number.and_then(PairId::new).ok_or(SpawnError::Missing("pair"))
}
