//! Which transport carries the link with another node.
//!
//! A node says in its record where it can be dialled, by transport. Of two nodes the one with the smaller number dials, and takes the
//! first of **its** transports that the other one offers; the other one accepts whatever comes, if it is encrypted as its own
//! settings ask. QUIC always is. A Unix socket counts as offered on the same machine only, told by the boot id; raw Ethernet is offered to everybody,
//! and reaches those on the same segment.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use proxy_host::control::PeerAddress;
use proxy_host::transport::HAS_TIPC;
use proxy_host::transport::eth::{ETHER_TYPE, show_mac};
use serde::{Deserialize, Serialize};
use sys::packet::Mac;
use sys::tipc::Service;

use crate::config::Config;
use crate::records::NodeRecord;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Tcp,
    Unix,
    Eth,
    Quic,
    Tipc,
}

impl Transport {
    const ALL: [Transport; 5] = [Transport::Tcp, Transport::Unix, Transport::Eth, Transport::Quic, Transport::Tipc];

    /// As the proxy and people call it.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
            Transport::Eth => "eth",
            Transport::Quic => "quic",
            Transport::Tipc => "tipc",
        }
    }
}

impl std::str::FromStr for Transport {
    type Err = ();

    fn from_str(text: &str) -> Result<Transport, ()> {
        Transport::ALL.into_iter().find(|transport| transport.name() == text).ok_or(())
    }
}

/// What is special about the link with one node; what it does not say is as for all links.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    pub transports: Option<Vec<Transport>>,
    pub tls: Option<bool>,
}

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("the proxy cannot listen at {address}")]
    Tcp {
        address: SocketAddr,
        #[source]
        cause: std::io::Error,
    },
    #[error("the proxy cannot listen at {address} (UDP)")]
    Quic {
        address: SocketAddr,
        #[source]
        cause: std::io::Error,
    },
    #[error(
        "this dvs was built without TIPC: build it with the cargo feature 'tipc', or take 'tipc' out of 'transports'"
    )]
    TipcNotBuilt,
    #[error(
        "the kernel has no TIPC: load the module 'tipc' and enable a bearer (tipc bearer enable), or take 'tipc' out of 'transports'"
    )]
    TipcNotInKernel(#[source] std::io::Error),
    #[error("the proxy cannot offer a TIPC service")]
    Tipc(#[source] std::io::Error),
    #[error("raw Ethernet needs the setting 'ethernet', the network interface that leads to the other nodes")]
    NoInterface,
    #[error("the proxy cannot send and receive frames on interface {interface}")]
    Eth {
        interface: String,
        #[source]
        cause: std::io::Error,
    },
    #[error("the proxy cannot listen at {}", .path.display())]
    Unix {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
}

/// The sockets at which the node's proxies accept links. They are the daemon's, so that addresses stay the same over
/// restarts of the proxy.
pub struct Sockets {
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
    eth: Option<Interface>,
    quic: Option<UdpSocket>,
    tipc: Option<Offer>,
}

/// A service that only this daemon's proxies offer.
struct Offer {
    socket: OwnedFd,
    service: Service,
}

/// Type of the services by which proxies of DVS are reached over TIPC: "DVS" and a version.
const TIPC_KIND: u32 = 0x4456_5301;

struct Interface {
    socket: OwnedFd,
    mac: Mac,
    mtu: usize,
}

impl Sockets {
    /// `proxy_uid`: whose processes may dial the Unix socket.
    pub fn open(config: &Config, proxy_uid: u32) -> Result<Sockets, ListenError> {
        let wants = |transport| config.transports.contains(&transport);
        let tcp = wants(Transport::Tcp).then(|| {
            let address = SocketAddr::new(config.listen, config.proxy_port);
            TcpListener::bind(address).map_err(|cause| ListenError::Tcp { address, cause })
        });
        let unix = wants(Transport::Unix).then(|| {
            let path = config.proxy_socket.clone();
            bind_unix(&path, proxy_uid).map_err(|cause| ListenError::Unix { path, cause })
        });
        let eth = wants(Transport::Eth).then(|| {
            let interface = config.ethernet.as_deref().ok_or(ListenError::NoInterface)?;
            open_interface(interface).map_err(|cause| ListenError::Eth { interface: interface.to_owned(), cause })
        });
        let quic = wants(Transport::Quic).then(|| {
            let address = SocketAddr::new(config.listen, config.proxy_port);
            sys::udp::open(address).map(UdpSocket::from).map_err(|cause| ListenError::Quic { address, cause })
        });
        let tipc = wants(Transport::Tipc).then(offer_tipc);
        Ok(Sockets {
            tcp: tcp.transpose()?,
            unix: unix.transpose()?,
            eth: eth.transpose()?,
            quic: quic.transpose()?,
            tipc: tipc.transpose()?,
        })
    }

    /// 0: it does not listen there.
    pub fn tcp_port(&self) -> u16 {
        let address = self.tcp.as_ref().and_then(|listener| listener.local_addr().ok());
        address.map_or(0, |address| address.port())
    }

    /// Of UDP; 0: it does not listen there.
    pub fn quic_port(&self) -> u16 {
        let address = self.quic.as_ref().and_then(|socket| socket.local_addr().ok());
        address.map_or(0, |address| address.port())
    }

    /// For the spawn record of a proxy.
    pub fn handed_over(&self) -> std::io::Result<BTreeMap<String, OwnedFd>> {
        let mut fds = BTreeMap::new();
        if let Some(listener) = &self.tcp {
            fds.insert("listen".to_owned(), OwnedFd::from(listener.try_clone()?));
        }
        if let Some(listener) = &self.unix {
            fds.insert("listen_unix".to_owned(), OwnedFd::from(listener.try_clone()?));
        }
        if let Some(interface) = &self.eth {
            fds.insert("eth".to_owned(), interface.socket.try_clone()?);
        }
        if let Some(socket) = &self.quic {
            fds.insert("quic".to_owned(), OwnedFd::from(socket.try_clone()?));
        }
        if let Some(offer) = &self.tipc {
            fds.insert("tipc".to_owned(), offer.socket.try_clone()?);
        }
        Ok(fds)
    }

    /// What belongs to the descriptors, for the same record.
    pub fn options(&self) -> serde_json::Map<String, serde_json::Value> {
        let options = self.eth.iter().flat_map(|interface| {
            [("eth_mac".to_owned(), show_mac(interface.mac).into()), ("eth_mtu".to_owned(), interface.mtu.into())]
        });
        options.chain(self.tipc().map(|service| ("tipc_service".to_owned(), service.into()))).collect()
    }

    /// Where nodes of the same TIPC network reach it, `TYPE:INSTANCE`.
    pub fn tipc(&self) -> Option<String> {
        self.tipc.as_ref().map(|Offer { service, .. }| format!("{}:{}", service.kind, service.instance))
    }

    /// Where nodes on the same segment reach it.
    pub fn mac(&self) -> Option<String> {
        self.eth.as_ref().map(|interface| show_mac(interface.mac))
    }
}

fn open_interface(name: &str) -> std::io::Result<Interface> {
    let (mac, mtu) = sys::packet::interface(name)?;
    Ok(Interface { socket: sys::packet::open(name, ETHER_TYPE)?, mac, mtu })
}

/// The instance is drawn at random: several clusters may share a network.
fn offer_tipc() -> Result<Offer, ListenError> {
    if !HAS_TIPC {
        return Err(ListenError::TipcNotBuilt);
    }
    sys::tipc::probe().map_err(ListenError::TipcNotInKernel)?;
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| ListenError::Tipc(error.into()))?;
    let service = Service { kind: TIPC_KIND, instance: u32::from_ne_bytes(bytes) };
    let socket = sys::tipc::listen(service).map_err(ListenError::Tipc)?;
    Ok(Offer { socket, service })
}

/// The socket of an earlier daemon is replaced: its proxy has been ended, and this daemon is the node's only one.
fn bind_unix(path: &Path, uid: u32) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path, Some(uid), Some(uid))?;
    }
    Ok(listener)
}

/// What two daemons of one machine have in common; empty when the kernel does not say.
pub fn boot_id() -> &'static str {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    BOOT_ID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        text.trim().to_owned()
    })
}

/// Where the proxy of this node dials `member`; `None` when they have no transport in common.
pub fn address(config: &Config, member: &NodeRecord) -> Option<PeerAddress> {
    let link = config.links.get(&member.name);
    let preferred = link.and_then(|link| link.transports.as_ref()).unwrap_or(&config.transports);
    let usable = preferred.iter().filter(|transport| config.transports.contains(transport));
    let (transport, addr) = usable.filter_map(|transport| Some((transport, offered(*transport, member)?))).next()?;
    Some(PeerAddress {
        name: member.name.clone(),
        id: member.id,
        transport: Some(transport.name().to_owned()),
        addr,
        tls: link.and_then(|link| link.tls),
    })
}

fn offered(transport: Transport, member: &NodeRecord) -> Option<String> {
    let at_port = |port| {
        let address: std::net::IpAddr = member.address.parse().ok()?;
        (port != 0).then(|| SocketAddr::new(address, port).to_string())
    };
    match transport {
        Transport::Tcp => at_port(member.proxy_port),
        Transport::Quic => at_port(member.proxy_quic_port),
        Transport::Eth => member.proxy_mac.clone(),
        Transport::Tipc => member.proxy_tipc.clone(),
        Transport::Unix => {
            let is_here = !member.boot_id.is_empty() && member.boot_id == boot_id();
            member.proxy_socket.clone().filter(|_| is_here)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn member(boot_id: &str) -> NodeRecord {
        let text = format!(
            r#"{{"name":"n2","id":2,"epoch":1,"address":"10.0.0.2","proxy_port":7421,"proxy_quic_port":7422,"api_port":1,"cpus":1,
                "memory_bytes":1,"proxy_socket":"/run/n2/proxy.sock","proxy_mac":"02:00:00:00:00:02","boot_id":"{boot_id}"}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn dialled(settings: &str, member: &NodeRecord) -> Option<(String, Option<bool>)> {
        let settings: Settings =
            toml::from_str(&format!("node = \"n1\"\nadvertise = \"10.0.0.1\"\n{settings}")).unwrap();
        let address = address(&settings.settle().unwrap(), member)?;
        let transport = match address.addr.as_str() {
            "02:00:00:00:00:02" => "eth",
            "10.0.0.2:7422" => "quic",
            path if path.starts_with('/') => "unix",
            _ => "tcp",
        };
        assert_eq!(address.transport.as_deref(), Some(transport));
        Some((address.addr, address.tls))
    }

    #[test]
    fn first_transport_that_the_other_node_offers_is_dialled() {
        let (near, far) = (member(boot_id()), member("another machine"));
        let tcp = Some(("10.0.0.2:7421".to_owned(), None));
        let unix = Some(("/run/n2/proxy.sock".to_owned(), None));
        assert_eq!(dialled("", &near), tcp);
        assert_eq!(dialled("transports = [\"unix\", \"tcp\"]", &near), unix);
        assert_eq!(dialled("transports = [\"unix\", \"tcp\"]", &far), tcp);
        assert_eq!(dialled("transports = [\"unix\"]", &far), None);
        let eth = Some(("02:00:00:00:00:02".to_owned(), None));
        let quic = Some(("10.0.0.2:7422".to_owned(), None));
        assert_eq!(dialled("transports = [\"quic\", \"tcp\"]", &far), quic);
        assert_eq!(dialled("transports = [\"unix\", \"eth\"]\nethernet = \"eth0\"", &far), eth);
    }

    #[test]
    fn daemon_that_cannot_have_tipc_says_what_is_missing() {
        match (HAS_TIPC, sys::tipc::probe().is_ok(), offer_tipc()) {
            (true, true, offered) => assert!(offered.is_ok()),
            (true, false, Err(error @ ListenError::TipcNotInKernel(_))) => {
                assert!(error.to_string().contains("load the module 'tipc'"));
            }
            (false, _, Err(error @ ListenError::TipcNotBuilt)) => {
                assert!(error.to_string().contains("cargo feature 'tipc'"));
            }
            (_, _, other) => panic!("{:?}", other.map(|offer| offer.service)),
        }
    }

    #[test]
    fn link_with_one_node_may_differ_from_all_others() {
        let near = member(boot_id());
        let settings = "transports = [\"unix\", \"tcp\"]\n[links.n2]\ntransports = [\"tcp\"]\ntls = false";
        assert_eq!(dialled(settings, &near), Some(("10.0.0.2:7421".to_owned(), Some(false))));
    }
}
