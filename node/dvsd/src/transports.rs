//! Which transport carries the link with another node.
//!
//! A node says in its record where it can be dialled, by transport. Of two nodes the one with the smaller number dials,
//! and takes the first of **its** transports that the other one offers; the other one accepts whatever comes, if it is
//! encrypted as its own settings ask. QUIC always is. A Unix socket counts as offered on the same machine only, told by
//! the boot id; raw Ethernet is offered to everybody, and reaches those on the same segment.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use abi::PairId;
use abi::limits::PAIRS_MAX;
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

/// The sockets of all the node's proxies, by pair.
pub struct AllSockets {
    first: Sockets,
    others: Vec<Sockets>,
}

impl AllSockets {
    /// `proxy_uid`: whose processes may dial the Unix sockets.
    pub fn open(config: &Config, proxy_uid: u32) -> Result<AllSockets, ListenError> {
        let mut tries = 1;
        loop {
            let first = Sockets::open(config, proxy_uid)?;
            let others = PairId::all(config.pairs).skip(1).map(|pair| first.open_beside(config, proxy_uid, pair));
            match others.collect() {
                Ok(others) => return Ok(AllSockets { first, others }),
                // Behind a port that was drawn another one may be taken.
                Err(_) if config.proxy_port == 0 && tries < DRAWS_MAX => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    pub fn first(&self) -> &Sockets {
        &self.first
    }

    pub fn into_pairs(self) -> impl Iterator<Item = (PairId, Sockets)> {
        PairId::all(PAIRS_MAX).zip([self.first].into_iter().chain(self.others))
    }
}

/// Draws of ports, until those behind are free too.
const DRAWS_MAX: u32 = 64;

/// The sockets at which one of the node's proxies accepts links. They are the daemon's, so that addresses stay the same
/// over restarts of the proxy.
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
    fn open(config: &Config, proxy_uid: u32) -> Result<Sockets, ListenError> {
        let wants = |transport| config.transports.contains(&transport);
        let eth = wants(Transport::Eth).then(|| {
            let interface = config.ethernet.as_deref().ok_or(ListenError::NoInterface)?;
            open_interface(interface).map_err(|cause| ListenError::Eth { interface: interface.to_owned(), cause })
        });
        Ok(Sockets {
            tcp: wants(Transport::Tcp).then(|| listen_tcp(config, config.proxy_port)).transpose()?,
            unix: wants(Transport::Unix).then(|| listen_unix(config, proxy_uid, PairId::FIRST)).transpose()?,
            eth: eth.transpose()?,
            quic: wants(Transport::Quic).then(|| listen_quic(config, config.proxy_port)).transpose()?,
            tipc: wants(Transport::Tipc).then(|| draw_service().and_then(offer_tipc)).transpose()?,
        })
    }

    /// Those of another pair: where other nodes look for them, knowing these.
    fn open_beside(&self, config: &Config, proxy_uid: u32, pair: PairId) -> Result<Sockets, ListenError> {
        let port = |first: u16| port_of(first, pair).unwrap_or(u16::MAX);
        let beside = |offer: &Offer| service_of(offer.service, pair);
        Ok(Sockets {
            tcp: self.tcp.as_ref().map(|_| listen_tcp(config, port(self.tcp_port()))).transpose()?,
            unix: self.unix.as_ref().map(|_| listen_unix(config, proxy_uid, pair)).transpose()?,
            eth: None,
            quic: self.quic.as_ref().map(|_| listen_quic(config, port(self.quic_port()))).transpose()?,
            tipc: self.tipc.as_ref().map(|offer| offer_tipc(beside(offer))).transpose()?,
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
        self.tipc.as_ref().map(|offer| show_service(offer.service))
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
fn draw_service() -> Result<Service, ListenError> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| ListenError::Tipc(error.into()))?;
    Ok(Service { kind: TIPC_KIND, instance: u32::from_ne_bytes(bytes) })
}

fn offer_tipc(service: Service) -> Result<Offer, ListenError> {
    if !HAS_TIPC {
        return Err(ListenError::TipcNotBuilt);
    }
    sys::tipc::probe().map_err(ListenError::TipcNotInKernel)?;
    let socket = sys::tipc::listen(service).map_err(ListenError::Tipc)?;
    Ok(Offer { socket, service })
}

fn listen_tcp(config: &Config, port: u16) -> Result<TcpListener, ListenError> {
    let address = SocketAddr::new(config.listen, port);
    TcpListener::bind(address).map_err(|cause| ListenError::Tcp { address, cause })
}

/// Whether the kernel lets a socket have only addresses that the machine has.
fn binds_to_own_addresses() -> bool {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_nonlocal_bind");
    text.is_ok_and(|text| text.trim() == "0")
}

/// Told to listen everywhere, it listens where others look for it, if this machine has that address: answers then come
/// from there, and not from whichever address of the machine is nearer, whose datagrams they would not take (RFC 9000
/// section 9).
fn listen_quic(config: &Config, port: u16) -> Result<UdpSocket, ListenError> {
    let everywhere = SocketAddr::new(config.listen, port);
    let open =
        |address| sys::udp::open(address).map(UdpSocket::from).map_err(|cause| ListenError::Quic { address, cause });
    let may_narrow = config.listen.is_ipv4() && config.listen.is_unspecified() && config.advertise.is_ipv4();
    if !(may_narrow && binds_to_own_addresses()) {
        return open(everywhere);
    }
    match open(SocketAddr::new(config.advertise, port)) {
        Err(ListenError::Quic { cause, .. }) if cause.kind() == std::io::ErrorKind::AddrNotAvailable => {
            tracing::info!(advertise = %config.advertise, "not an address of this machine: QUIC listens at all it has");
            open(everywhere)
        }
        result => result,
    }
}

fn listen_unix(config: &Config, proxy_uid: u32, pair: PairId) -> Result<UnixListener, ListenError> {
    let path = socket_of(&config.proxy_socket, pair);
    bind_unix(&path, proxy_uid).map_err(|cause| ListenError::Unix { path, cause })
}

/// The port of a pair's proxy, `first` being that of the first.
fn port_of(first: u16, pair: PairId) -> Option<u16> {
    first.checked_add(u16::from(pair.number()))
}

/// `proxy.sock`, `proxy.1.sock` and so on.
pub fn socket_of(first: &Path, pair: PairId) -> PathBuf {
    if pair == PairId::FIRST {
        return first.to_owned();
    }
    let mut name = first.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{pair}"));
    if let Some(extension) = first.extension() {
        name.push(".");
        name.push(extension);
    }
    first.with_file_name(name)
}

fn show_service(service: Service) -> String {
    format!("{}:{}", service.kind, service.instance)
}

fn service_of(first: Service, pair: PairId) -> Service {
    Service { instance: first.instance.wrapping_add(u32::from(pair.number())), ..first }
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

/// How many pairs of proxies this node has with `member`.
pub fn pairs_with(config: &Config, member: &NodeRecord) -> u8 {
    config.pairs.min(member.pairs).max(1)
}

/// Where a proxy of this node dials that of `member`; `None` when they have no transport in common. What a program in
/// place of our proxy dials first may have any name: it is told none for what comes first with us.
pub fn address(config: &Config, member: &NodeRecord, pair: PairId) -> Option<PeerAddress> {
    let link = config.links.get(&member.name);
    let preferred = link.and_then(|link| link.transports.as_ref()).unwrap_or(&config.transports);
    let usable = preferred.iter().filter(|transport| config.transports.contains(transport));
    let (transport, addr) =
        usable.filter_map(|transport| Some((transport, offered(*transport, member, pair)?))).next()?;
    let is_first_of_a_program = config.proxy_program.is_some() && config.transports.first() == Some(transport);
    Some(PeerAddress {
        name: member.name.clone(),
        id: member.id,
        transport: (!is_first_of_a_program).then(|| transport.name().to_owned()),
        addr,
        tls: link.and_then(|link| link.tls),
        plain_over: link.filter(|_| config.proxy_program.is_none()).and_then(plain_over),
    })
}

/// Who lets one link be plain trusts the wires it was given, not all by which somebody may come.
fn plain_over(link: &LinkSettings) -> Option<Vec<String>> {
    let transports = link.transports.as_ref().filter(|_| link.tls == Some(false))?;
    Some(transports.iter().map(|transport| transport.name().to_owned()).collect())
}

fn offered(transport: Transport, member: &NodeRecord, pair: PairId) -> Option<String> {
    let at_port = |first: u16| {
        let address: std::net::IpAddr = member.address.parse().ok()?;
        let port = port_of(first, pair).filter(|_| first != 0)?;
        Some(SocketAddr::new(address, port).to_string())
    };
    match transport {
        Transport::Tcp => at_port(member.proxy_port),
        Transport::Quic => at_port(member.proxy_quic_port),
        Transport::Eth => member.proxy_mac.clone().filter(|_| pair == PairId::FIRST),
        Transport::Tipc => {
            let (kind, instance) = member.proxy_tipc.as_deref()?.split_once(':')?;
            let first = Service { kind: kind.parse().ok()?, instance: instance.parse().ok()? };
            Some(show_service(service_of(first, pair)))
        }
        Transport::Unix => {
            let is_here = !member.boot_id.is_empty() && member.boot_id == boot_id();
            let path = member.proxy_socket.as_deref().filter(|_| is_here)?;
            Some(socket_of(Path::new(path), pair).display().to_string())
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
        let address = address(&settings.settle().unwrap(), member, PairId::FIRST)?;
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
    fn quic_told_to_listen_everywhere_answers_from_where_it_is_looked_for() {
        let listens_at = |listen: &str, advertise: &str| {
            let text = format!("node = \"n1\"\nlisten = \"{listen}\"\nadvertise = \"{advertise}\"");
            let config = toml::from_str::<Settings>(&text).unwrap().settle().unwrap();
            listen_quic(&config, 0).unwrap().local_addr().unwrap().ip().to_string()
        };
        let narrowed = if binds_to_own_addresses() { "127.0.0.2" } else { "0.0.0.0" };
        assert_eq!(listens_at("0.0.0.0", "127.0.0.2"), narrowed);
        assert_eq!(listens_at("0.0.0.0", "192.0.2.1"), "0.0.0.0", "an address that others translate");
        assert_eq!(listens_at("127.0.0.1", "127.0.0.2"), "127.0.0.1");
    }

    #[test]
    fn link_that_need_not_be_encrypted_over_its_transports_must_be_over_others() {
        let plain_over = |text: &str| {
            let text = format!("node = \"n1\"\nadvertise = \"10.0.0.1\"\ntransports = [\"unix\", \"tcp\"]\n{text}");
            let config = toml::from_str::<Settings>(&text).unwrap().settle().unwrap();
            address(&config, &member("another machine"), PairId::FIRST).and_then(|address| address.plain_over)
        };
        assert_eq!(plain_over("[links.n2]\ntls = false\ntransports = [\"tcp\"]"), Some(vec!["tcp".to_owned()]));
        assert_eq!(plain_over("[links.n2]\ntls = false"), None);
        assert_eq!(plain_over("[links.n2]\ntransports = [\"tcp\"]"), None);
    }

    #[test]
    fn program_in_place_of_our_proxy_is_told_no_name_of_what_it_dials_first() {
        let named = |text: &str| {
            let text = format!("node = \"n1\"\nadvertise = \"10.0.0.1\"\ntransports = [\"tcp\", \"quic\"]\n{text}");
            let config = toml::from_str::<Settings>(&text).unwrap().settle().unwrap();
            address(&config, &member("another machine"), PairId::FIRST).unwrap().transport
        };
        let program = "proxy_program = \"/opt/proxy\"";
        assert_eq!(named("").as_deref(), Some("tcp"));
        assert_eq!(named(program), None);
        assert_eq!(named(&format!("{program}\n[links.n2]\ntransports = [\"quic\"]")).as_deref(), Some("quic"));
    }

    #[test]
    fn each_pair_has_a_place_of_its_own_that_follows_from_the_first() {
        let near = NodeRecord { pairs: 3, proxy_tipc: Some("5:7".to_owned()), ..member(boot_id()) };
        let at = |transport, number| offered(transport, &near, PairId::new(number).unwrap());
        assert_eq!(at(Transport::Tcp, 2).as_deref(), Some("10.0.0.2:7423"));
        assert_eq!(at(Transport::Quic, 1).as_deref(), Some("10.0.0.2:7423"));
        assert_eq!(at(Transport::Unix, 0).as_deref(), Some("/run/n2/proxy.sock"));
        assert_eq!(at(Transport::Unix, 2).as_deref(), Some("/run/n2/proxy.2.sock"));
        assert_eq!(at(Transport::Tipc, 2).as_deref(), Some("5:9"));
        assert_eq!((at(Transport::Eth, 0).is_some(), at(Transport::Eth, 1)), (true, None));
        assert_eq!(socket_of(Path::new("/run/p"), PairId::new(1).unwrap()), Path::new("/run/p.1"));
    }

    #[test]
    fn two_nodes_have_as_many_pairs_as_the_one_with_fewer() {
        let with = |ours: &str, theirs| {
            let settings: Settings =
                toml::from_str(&format!("node = \"n1\"\nadvertise = \"10.0.0.1\"\n{ours}")).unwrap();
            pairs_with(&settings.settle().unwrap(), &NodeRecord { pairs: theirs, ..member("") })
        };
        assert_eq!([with("pairs = 3", 2), with("pairs = 2", 8), with("", 8), with("pairs = 8", 0)], [2, 2, 1, 1]);
        // What an earlier version wrote.
        assert_eq!(member("").pairs, 1);
    }

    #[test]
    fn daemon_that_cannot_have_tipc_says_what_is_missing() {
        match (HAS_TIPC, sys::tipc::probe().is_ok(), draw_service().and_then(offer_tipc)) {
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
