//! What the spawn record of a proxy holds beyond the common fields.
//!
//! | where | name | meaning |
//! |---|---|---|
//! | field | `node`, `node_id`, `cluster` | who this node is |
//! | field | `broker_fd` | the broker's proxy socket |
//! | `fds` | `control` | SEQPACKET socket to the daemon, see [`crate::control`] |
//! | `fds` | `listen` | a listening TCP socket; else option `listen` |
//! | option | `listen` | `address:port`, port 0 allowed |
//! | option | `tls` | `"on"` (default) or `"off"`, for links whose entry says nothing |
//! | option | `tls_dir` | directory with `ca.crt`, `node.crt`, `node.key`, read before privileges are dropped |
//! | option | `suspect_ms`, `down_ms` | when a silent peer is suspected, and when it is given up |

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use abi::{Epoch, NodeId};
use proxy_link::LinkTimes;
use serde_json::Value;
use sys::spawn::{Spawn, SpawnError};

use crate::ProxyError;
use crate::transport::Encryption;

/// Everything a proxy needs, checked.
pub struct ProxyConfig {
    pub node: String,
    pub node_id: NodeId,
    pub cluster: String,
    pub incarnation: Epoch,
    pub times: LinkTimes,
    pub listener: TcpListener,
    pub encryption: Encryption,
    /// Needed when any link is encrypted.
    pub tls_dir: Option<PathBuf>,
    pub broker: OwnedFd,
    pub control: Option<OwnedFd>,
}

impl ProxyConfig {
    pub(crate) fn from_spawn(spawn: &mut Spawn) -> Result<ProxyConfig, ProxyError> {
        let tls_dir = spawn.option_str("tls_dir")?.map(PathBuf::from);
        let encryption = match spawn.option_str("tls")? {
            None | Some("on") => Encryption::Tls,
            Some("off") => Encryption::Plain,
            Some(_) => return Err(SpawnError::BadOption("tls".to_owned()).into()),
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
            incarnation: Epoch(spawn.epoch),
            times,
            listener: listener(spawn)?,
            encryption,
            tls_dir,
            control: spawn.take_fd("control"),
            broker: spawn.take_broker()?,
        })
    }
}

fn listener(spawn: &mut Spawn) -> Result<TcpListener, ProxyError> {
    if let Some(fd) = spawn.take_fd("listen") {
        return Ok(TcpListener::from(fd));
    }
    let text = spawn.option_str("listen")?.ok_or(SpawnError::Missing("listen"))?;
    let address: SocketAddr = text.parse().map_err(|_| SpawnError::BadOption("listen".to_owned()))?;
    TcpListener::bind(address).map_err(|source| ProxyError::Listen { address, source })
}

fn field_str(spawn: &Spawn, name: &'static str) -> Result<String, SpawnError> {
    spawn.fields.get(name).and_then(Value::as_str).map(str::to_owned).ok_or(SpawnError::Missing(name))
}

fn node_id(spawn: &Spawn) -> Result<NodeId, SpawnError> {
    let number = spawn.fields.get("node_id").and_then(Value::as_u64);
    let number = number.and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0);
    number.map(NodeId).ok_or(SpawnError::Missing("node_id"))
}
