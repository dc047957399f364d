//! What the proxies of a node listen on, and the cables between nodes.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use proxy_host::secure::Credentials;
use proxy_host::transport::eth::ETHER_TYPE;
use proxy_host::transport::tipc::Tipc;
use proxy_host::transport::{Eth, Quic, Tcp, Transport, Unix};
use sandbox::links::Links;
use sandbox::netns;
use sys::packet::Mac;
use sys::tipc::Service;

use super::storm::{self, StormyCable};
use super::{CLUSTER, Way};

/// The socket that outlives a node's proxies.
pub(super) enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
    Eth { socket: OwnedFd, mac: Mac, mtu: usize },
    Quic(OwnedFd),
    Tipc { socket: OwnedFd, service: Service },
}

/// Two network namespaces with a cable between them. Anonymous: when the test ends, however it ends, the kernel removes
/// them.
pub struct Cable {
    pub ends: [OwnedFd; 2],
}

pub(super) const INTERFACE: &str = "cable";

impl Cable {
    fn new() -> Cable {
        let ends = [netns::create_anonymous().expect("namespace"), netns::create_anonymous().expect("namespace")];
        Links::within(&ends[0]).expect("links").ensure_veth(INTERFACE, INTERFACE, &ends[1]).expect("cable");
        let cable = Cable { ends };
        cable.plug();
        cable
    }

    pub fn plug(&self) {
        for end in &self.ends {
            let mut links = Links::within(end).expect("links");
            let link = links.get(INTERFACE).expect("cable");
            links.set_up(&link).expect("up");
        }
    }

    /// No frame passes any more, and nobody is told.
    pub fn pull(&self) {
        let mut links = Links::within(&self.ends[1]).expect("links");
        let link = links.get(INTERFACE).expect("cable");
        links.set_down(&link).expect("down");
    }
}

/// What joins two nodes that have no network between them.
#[derive(Default)]
pub(super) struct Cables {
    pub(super) real: Option<Cable>,
    pub(super) stormy: Option<StormyCable>,
}

impl Cables {
    pub(super) fn of(way: Way) -> Cables {
        match way {
            Way::Eth => Cables { real: Some(Cable::new()), stormy: None },
            Way::Storm { seed } => Cables { real: None, stormy: Some(StormyCable::new(seed)) },
            Way::Tcp | Way::Unix | Way::Quic | Way::Tipc => Cables::default(),
        }
    }
}

impl Listening {
    pub(super) fn new(way: Way, path: &Path, number: u16, cables: &Cables) -> Listening {
        let end = usize::from(number) - 1;
        match way {
            Way::Tcp => Listening::Tcp(TcpListener::bind("127.0.0.1:0").expect("a port")),
            Way::Unix => Listening::Unix(UnixListener::bind(path).expect("a socket")),
            Way::Tipc => {
                let mut bytes = [0; 4];
                rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).expect("random");
                let service = Service { kind: 0x4456_5300, instance: u32::from_ne_bytes(bytes) };
                Listening::Tipc { socket: sys::tipc::listen(service).expect("a service"), service }
            }
            Way::Quic => {
                let any = "127.0.0.1:0".parse().expect("an address");
                Listening::Quic(sys::udp::open(any).expect("a port"))
            }
            Way::Eth => {
                let cable = cables.real.as_ref().expect("a cable");
                let opened = netns::within(&cable.ends[end], || {
                    let (mac, mtu) = sys::packet::interface(INTERFACE)?;
                    Ok((sys::packet::open(INTERFACE, ETHER_TYPE)?, mac, mtu))
                });
                let opened: std::io::Result<_> = opened.expect("a thread in the namespace");
                let (socket, mac, mtu) = opened.expect("a packet socket");
                Listening::Eth { socket, mac, mtu }
            }
            Way::Storm { .. } => {
                let cable = cables.stormy.as_ref().expect("a cable");
                let socket = cable.ends[end].try_clone().expect("socket");
                Listening::Eth { socket, mac: storm::mac(end), mtu: storm::MTU }
            }
        }
    }

    /// `tls_dir`: certificates, for what encrypts by itself.
    pub(super) fn transport(&self, tls_dir: &Path) -> Box<dyn Transport> {
        match self {
            Listening::Tcp(listener) => Box::new(Tcp::new(listener.try_clone().expect("listener")).expect("tcp")),
            Listening::Unix(listener) => Box::new(Unix::new(listener.try_clone().expect("listener")).expect("unix")),
            Listening::Quic(socket) => {
                let credentials = Credentials::load(tls_dir, CLUSTER).expect("certificates");
                Box::new(Quic::new(socket.try_clone().expect("socket"), credentials).expect("quic"))
            }
            Listening::Tipc { socket, service } => Box::new(Tipc::new(socket.try_clone().expect("socket"), *service)),
            Listening::Eth { socket, mac, mtu } => {
                Box::new(Eth::new(socket.try_clone().expect("socket"), *mac, *mtu).expect("eth"))
            }
        }
    }

    /// The descriptor as the spawn record names it.
    pub(super) fn handed_over(&self) -> (&'static str, OwnedFd) {
        match self {
            Listening::Tcp(listener) => ("listen", listener.try_clone().expect("listener").into()),
            Listening::Unix(listener) => ("listen_unix", listener.try_clone().expect("listener").into()),
            Listening::Eth { socket, .. } => ("eth", socket.try_clone().expect("socket")),
            Listening::Tipc { socket, .. } => ("tipc", socket.try_clone().expect("socket")),
            Listening::Quic(socket) => ("quic", socket.try_clone().expect("socket")),
        }
    }
}

pub(super) fn address_of(listening: &Listening, tls_dir: &Path) -> (&'static str, String) {
    let transport = listening.transport(tls_dir);
    (transport.name(), transport.local_address())
}
