//! Two nodes on one machine: two brokers, two proxies over any transport, and a register of who is where.

#![allow(dead_code)] // Each test binary uses its part.

pub mod storm;
pub mod watchdog;

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once};
use std::thread::JoinHandle;
use std::time::Duration;

use abi::{DcId, Endpoint, Epoch, NodeId, PairId};
use broker::{
    Broker, BrokerConfig, Claim, DcOptions, Directory, EndpointName, Location, Names, Privileges, ServerIdentity,
};
use ipc::{IpcError, Port};
use pki::{Authority, NodeRequest, Validity};
use proxy_host::control::{FromProxy, LinkState, PeerAddress, ToProxy};
use proxy_host::secure::Credentials;
use proxy_host::transport::eth::{ETHER_TYPE, show_mac};
use proxy_host::transport::tipc::{Tipc, show_service};
use proxy_host::transport::{Compression, Encryption, Eth, Quic, Tcp, Transport, Unix};
use proxy_host::{Proxy, ProxyConfig};
use proxy_link::LinkTimes;
use sandbox::links::Links;
use sandbox::netns;
use storm::StormyCable;
use sys::packet::Mac;
use sys::tipc::Service;

pub const DC: DcId = DcId(7);
pub const CLUSTER: &str = "c1";
pub const UP: LinkState = LinkState::Up;
/// Longer than anything here takes, so that a hang is a failure and not a wait.
pub const PATIENCE: Duration = Duration::from_secs(20);

type Place = (NodeId, Epoch, i32);

#[derive(Clone, Default)]
struct Places {
    endpoints: Arc<Mutex<HashMap<Endpoint, Place>>>,
    names: Arc<Mutex<Names>>,
}

/// What the cluster engine is to a daemon.
struct Register {
    me: NodeId,
    pairs: u8,
    places: Places,
    news: Sender<News>,
}

/// What a node's broker said of its own endpoints, for the other node.
enum News {
    Bound(NodeId, Endpoint, Epoch),
    Unbound(NodeId, Endpoint, Epoch),
    Claimed(NodeId, Endpoint, Epoch, EndpointName, Result<(), IpcError>),
    Stop,
}

impl Directory for Register {
    fn locate(&mut self, _dc: DcId, endpoint: Endpoint) -> Location {
        match self.places.endpoints.lock().expect("not poisoned").get(&endpoint) {
            Some((node, epoch, _)) if *node != self.me => Location::Remote { node: *node, epoch: *epoch },
            Some(_) => Location::Local,
            None => Location::Unknown,
        }
    }

    fn find(&mut self, _dc: DcId, pid: i32) -> Option<Endpoint> {
        let places = self.places.endpoints.lock().expect("not poisoned");
        places.iter().find(|(_, place)| place.2 == pid).map(|(endpoint, _)| *endpoint)
    }

    fn bound(&mut self, _dc: DcId, endpoint: Endpoint, pid: i32, epoch: Epoch) {
        self.places.endpoints.lock().expect("not poisoned").insert(endpoint, (self.me, epoch, pid));
        let _ = self.news.send(News::Bound(self.me, endpoint, epoch));
    }

    fn claim(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        epoch: Epoch,
        name: EndpointName,
        _: Option<NodeId>,
    ) -> Result<Claim, IpcError> {
        let result = self.places.names.lock().expect("not poisoned").claim(dc, endpoint, name);
        let _ = self.news.send(News::Claimed(self.me, endpoint, epoch, name, result));
        Ok(Claim::UnderWay)
    }

    fn named(&mut self, dc: DcId, name: EndpointName) -> Option<Endpoint> {
        self.places.names.lock().expect("not poisoned").holder(dc, name)
    }

    fn name_of(&mut self, dc: DcId, endpoint: Endpoint) -> Option<EndpointName> {
        self.places.names.lock().expect("not poisoned").of(dc, endpoint)
    }

    fn unbound(&mut self, dc: DcId, endpoint: Endpoint, epoch: Epoch) {
        {
            let mut places = self.places.endpoints.lock().expect("not poisoned");
            // Not of a successor.
            if places.get(&endpoint).is_some_and(|place| place.0 == self.me && place.1 <= epoch) {
                self.places.names.lock().expect("not poisoned").end(dc, endpoint);
                places.remove(&endpoint);
            }
        }
        let _ = self.news.send(News::Unbound(self.me, endpoint, epoch));
    }

    fn pairs(&self, _node: NodeId) -> u8 {
        self.pairs
    }
}

/// A proxy in a thread of this process, or in a process of its own.
pub enum RunningProxy {
    Thread { stop: OwnedFd, thread: Option<JoinHandle<()>> },
    Process(Child),
}

impl RunningProxy {
    /// SIGKILL; only a process can be killed.
    pub fn kill(&mut self) {
        let RunningProxy::Process(child) = self else { panic!("a thread cannot be killed") };
        child.kill().expect("killed");
        child.wait().expect("ended");
    }
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        match self {
            RunningProxy::Thread { stop, thread } => {
                sys::eventfd::signal(&*stop);
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
            RunningProxy::Process(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// What carries the bytes between the two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Tcp,
    Unix,
    Eth,
    Quic,
    Tipc,
    /// As raw Ethernet, over a simulated cable.
    Storm {
        seed: u64,
    },
}

/// Raw Ethernet needs a wire, which two network namespaces have between them.
pub fn can_use_namespaces() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: this test needs root, to make network namespaces");
    }
    root
}

/// TIPC is in few kernels, and within one node it needs no bearer.
pub fn can_use_tipc() -> bool {
    static TOLD: Once = Once::new();
    let probed = sys::tipc::probe();
    if let Err(error) = &probed {
        // Past the harness, which shows what tests print only when they fail; once is enough.
        TOLD.call_once(|| {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: the kernel has no TIPC ({error}); tests over it that are 'ok' have tried nothing"
            );
        });
    }
    probed.is_ok()
}

/// Runs each test over each transport: `tcp::NAME`, `unix::NAME`, `eth::NAME`, `quic::NAME`, `tipc::NAME`.
#[macro_export]
macro_rules! over_each_transport {
    ($($name:ident),* $(,)?) => {
        mod tcp {
            $(#[test] fn $name() { super::$name(super::common::Way::Tcp); })*
        }
        mod unix {
            $(#[test] fn $name() { super::$name(super::common::Way::Unix); })*
        }
        mod eth {
            $(#[test] fn $name() {
                if super::common::can_use_namespaces() {
                    super::$name(super::common::Way::Eth);
                }
            })*
        }
        mod quic {
            $(#[test] fn $name() { super::$name(super::common::Way::Quic); })*
        }
        mod tipc {
            $(#[test] fn $name() {
                if super::common::can_use_tipc() {
                    super::$name(super::common::Way::Tipc);
                }
            })*
        }
    };
}

/// The socket that outlives a node's proxies.
enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
    Eth { socket: OwnedFd, mac: Mac, mtu: usize },
    Quic(OwnedFd),
    Tipc { socket: OwnedFd, service: Service },
}

/// Two network namespaces with a cable between them. Anonymous: when the test ends, however it ends, the kernel removes them.
pub struct Cable {
    pub ends: [OwnedFd; 2],
}

const INTERFACE: &str = "cable";

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
struct Cables {
    real: Option<Cable>,
    stormy: Option<StormyCable>,
}

impl Cables {
    fn of(way: Way) -> Cables {
        match way {
            Way::Eth => Cables { real: Some(Cable::new()), stormy: None },
            Way::Storm { seed } => Cables { real: None, stormy: Some(StormyCable::new(seed)) },
            Way::Tcp | Way::Unix | Way::Quic | Way::Tipc => Cables::default(),
        }
    }
}

impl Listening {
    fn new(way: Way, path: &Path, number: u16, cables: &Cables) -> Listening {
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
    fn transport(&self, tls_dir: &Path) -> Box<dyn Transport> {
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
    fn handed_over(&self) -> (&'static str, OwnedFd) {
        match self {
            Listening::Tcp(listener) => ("listen", listener.try_clone().expect("listener").into()),
            Listening::Unix(listener) => ("listen_unix", listener.try_clone().expect("listener").into()),
            Listening::Eth { socket, .. } => ("eth", socket.try_clone().expect("socket")),
            Listening::Tipc { socket, .. } => ("tipc", socket.try_clone().expect("socket")),
            Listening::Quic(socket) => ("quic", socket.try_clone().expect("socket")),
        }
    }
}

pub struct Node {
    pub name: String,
    pub id: NodeId,
    pub broker: Arc<Broker>,
    /// Where programs of this node connect.
    pub socket: PathBuf,
    /// Name of the transport, and where its first proxy is dialled.
    pub address: (&'static str, String),
    pub tls_dir: PathBuf,
    /// By pair.
    listening: Vec<Listening>,
    incarnation: u64,
}

/// What the nodes of a cluster have in common.
struct Surroundings<'a> {
    way: Way,
    /// Pairs of proxies that each node has.
    pairs: u8,
    cables: &'a Cables,
    dir: &'a Path,
    authority: &'a Authority,
    places: &'a Places,
    news: &'a Sender<News>,
}

impl Node {
    fn new(number: u16, around: &Surroundings<'_>) -> Node {
        let Surroundings { way, pairs, cables, dir, authority, places, news } = *around;
        let name = format!("n{number}");
        let tls_dir = dir.join(&name);
        let request = NodeRequest { node: &name, addresses: &[], valid: Validity::of_a_node() };
        authority.issue_node(&request, &tls_dir).expect("certificate");
        let register = Register { me: NodeId(number), pairs, places: places.clone(), news: news.clone() };
        let broker = Broker::start(BrokerConfig { node: NodeId(number), directory: Box::new(register), shelf: None })
            .expect("broker");
        let socket = dir.join(format!("m3ipc-{number}"));
        let first = 256 + u32::from(number) * 1000;
        let options = DcOptions {
            listen: Some(socket.clone()),
            program_endpoints: first..first + 1000,
            // Anything but to manage others.
            program_privileges: Privileges { calls: Privileges::program().calls, ..Privileges::server() },
        };
        broker.add_dc(DC, options).expect("container");
        let path = |pair| dir.join(format!("proxy-{number}-{pair}"));
        let listening: Vec<_> =
            PairId::all(pairs).map(|pair| Listening::new(way, &path(pair), number, cables)).collect();
        let address = address_of(&listening[0], &tls_dir);
        Node { name, id: NodeId(number), broker: Arc::new(broker), socket, address, tls_dir, listening, incarnation: 0 }
    }

    pub fn as_peer(&self) -> PeerAddress {
        self.as_peer_of(PairId::FIRST)
    }

    pub fn as_peer_of(&self, pair: PairId) -> PeerAddress {
        let (transport, addr) = address_of(self.listening(pair), &self.tls_dir);
        PeerAddress { name: self.name.clone(), id: self.id.0, transport: Some(transport.to_owned()), addr, tls: None }
    }

    fn listening(&self, pair: PairId) -> &Listening {
        &self.listening[usize::from(pair.number())]
    }

    /// A proxy in a thread of this process, with one other node.
    pub fn start_proxy(
        &mut self,
        peer: &PeerAddress,
        encryption: Encryption,
        times: LinkTimes,
    ) -> (RunningProxy, Control) {
        self.start_proxy_to(std::slice::from_ref(peer), encryption, times)
    }

    pub fn start_proxy_to(
        &mut self,
        peers: &[PeerAddress],
        encryption: Encryption,
        times: LinkTimes,
    ) -> (RunningProxy, Control) {
        self.start_proxy_of(PairId::FIRST, peers, encryption, times)
    }

    pub fn start_proxy_of(
        &mut self,
        pair: PairId,
        peers: &[PeerAddress],
        encryption: Encryption,
        times: LinkTimes,
    ) -> (RunningProxy, Control) {
        self.incarnation += 1;
        let (control, proxys_control) = sys::seqpacket::pair().expect("pair");
        let config = ProxyConfig {
            node: self.name.clone(),
            node_id: self.id,
            cluster: CLUSTER.to_owned(),
            pair,
            incarnation: Epoch(self.incarnation),
            times,
            transports: vec![self.listening(pair).transport(&self.tls_dir)],
            inspector: None,
            encryption,
            compression: Compression::default(),
            tls_dir: Some(self.tls_dir.clone()),
            broker: self.broker.proxy_socket_of(pair).expect("proxy socket"),
            control: Some(proxys_control),
        };
        let mut proxy = Proxy::new(config).expect("proxy");
        proxy.set_peers(peers).expect("peers");
        let stop = sys::eventfd::create().expect("eventfd");
        proxy.stop_on(stop.try_clone().expect("eventfd")).expect("watched");
        let thread = std::thread::spawn(move || {
            proxy.run().expect("the loop does not fail");
        });
        (RunningProxy::Thread { stop, thread: Some(thread) }, Control { socket: control })
    }

    /// A proxy as the daemon starts it: a process of its own with a spawn record. `test` is the name of the test in this
    /// binary that calls `main_from_spawn`.
    pub fn spawn_proxy(&mut self, peer: &PeerAddress, test: &str, down_ms: u64) -> (RunningProxy, Control) {
        self.spawn_proxy_of(PairId::FIRST, peer, test, down_ms)
    }

    pub fn spawn_proxy_of(
        &mut self,
        pair: PairId,
        peer: &PeerAddress,
        test: &str,
        down_ms: u64,
    ) -> (RunningProxy, Control) {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).stdout(std::process::Stdio::null());
        self.spawn_program_of(pair, peer, command, serde_json::json!({ "down_ms": down_ms }))
    }

    /// Any program as a proxy.
    pub fn spawn_program(
        &mut self,
        peer: &PeerAddress,
        command: Command,
        options: serde_json::Value,
    ) -> (RunningProxy, Control) {
        self.spawn_program_of(PairId::FIRST, peer, command, options)
    }

    fn spawn_program_of(
        &mut self,
        pair: PairId,
        peer: &PeerAddress,
        mut command: Command,
        mut options: serde_json::Value,
    ) -> (RunningProxy, Control) {
        options["tls_dir"] = self.tls_dir.display().to_string().into();
        if let Listening::Eth { mac, mtu, .. } = self.listening(pair) {
            options["eth_mac"] = show_mac(*mac).into();
            options["eth_mtu"] = (*mtu).into();
        }
        if let Listening::Tipc { service, .. } = self.listening(pair) {
            options["tipc_service"] = show_service(*service).into();
        }
        self.incarnation += 1;
        let (control, childs_control) = sys::seqpacket::pair().expect("pair");
        let (ready, childs_ready) = rustix::pipe::pipe().expect("pipe");
        let broker = self.broker.proxy_socket_of(pair).expect("proxy socket");
        let (listen, listener) = self.listening(pair).handed_over();
        let number = |fd: &OwnedFd| {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).expect("inheritable");
            std::os::fd::AsRawFd::as_raw_fd(&fd.as_fd())
        };
        let record = serde_json::json!({
            "node": self.name, "node_id": self.id.0, "cluster": CLUSTER, "epoch": self.incarnation,
            "pair": pair.number(),
            "broker_fd": number(&broker), "ready_fd": number(&childs_ready),
            "fds": { "control": number(&childs_control), listen: number(&listener) },
            "options": options,
        });
        let child = command.env("DVS_SPAWN", record.to_string()).spawn().expect("started");
        drop((broker, listener, childs_control, childs_ready));
        let mut byte = [0];
        assert_eq!(rustix::io::read(&ready, &mut byte).expect("pipe"), 1, "the proxy did not become ready");
        let control = Control { socket: control };
        control.set_peers(std::slice::from_ref(peer));
        (RunningProxy::Process(child), control)
    }
}

fn address_of(listening: &Listening, tls_dir: &Path) -> (&'static str, String) {
    let transport = listening.transport(tls_dir);
    (transport.name(), transport.local_address())
}

/// The daemon's end of a control socket.
pub struct Control {
    socket: OwnedFd,
}

impl Control {
    pub fn set_peers(&self, peers: &[PeerAddress]) {
        self.tell(&ToProxy { peers: Some(peers.to_vec()) });
    }

    /// Asks for the states of links.
    pub fn ask(&self) {
        self.tell(&ToProxy { peers: None });
    }

    fn tell(&self, message: &ToProxy) {
        let bytes = serde_json::to_vec(message).expect("json");
        sys::seqpacket::send(&self.socket, &bytes, &[] as &[OwnedFd]).expect("sent");
    }

    /// The next state that the proxy tells.
    pub fn next(&self) -> FromProxy {
        let poller = sys::eventfd::Poller::new().expect("epoll");
        poller.add(&self.socket, 1, sys::eventfd::Trigger::Level).expect("watched");
        let mut ready = Vec::new();
        poller.wait(&mut ready, Some(PATIENCE)).expect("epoll");
        assert!(!ready.is_empty(), "the proxy says nothing");
        let mut buffer = vec![0; proxy_host::control::MESSAGE_BYTES_MAX];
        let received = sys::seqpacket::receive(&self.socket, &mut buffer).expect("received");
        serde_json::from_slice(&buffer[..received.bytes]).expect("json")
    }

    /// The states as they are now: what was told before is passed over.
    pub fn latest(&self) -> FromProxy {
        let mut buffer = vec![0; proxy_host::control::MESSAGE_BYTES_MAX];
        while sys::seqpacket::receive(&self.socket, &mut buffer).is_ok_and(|received| received.bytes > 0) {}
        self.ask();
        self.next()
    }

    pub fn wait_until_up(&self) {
        self.wait_until(|status| status.links.iter().any(|link| link.state == LinkState::Up));
    }

    pub fn wait_until(&self, what: impl Fn(&FromProxy) -> bool) -> FromProxy {
        loop {
            let status = self.next();
            if what(&status) {
                return status;
            }
        }
    }
}

/// Two nodes of one cluster, without proxies yet.
pub struct Pair {
    pub a: Node,
    pub b: Node,
    epochs: u64,
    news: Sender<News>,
    gossip: Option<JoinHandle<()>>,
    cables: Cables,
    _dir: tempfile::TempDir,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    A,
    B,
}

impl Pair {
    pub fn over(way: Way) -> Pair {
        Pair::with_pairs(way, 1)
    }

    /// With so many proxies on either node.
    pub fn with_pairs(way: Way, pairs: u8) -> Pair {
        let dir = tempfile::tempdir().expect("directory");
        let authority = Authority::create(&dir.path().join("ca"), CLUSTER).expect("authority");
        let places = Places::default();
        let cables = Cables::of(way);
        let (news, heard) = channel();
        let around = Surroundings {
            way,
            pairs,
            cables: &cables,
            dir: dir.path(),
            authority: &authority,
            places: &places,
            news: &news,
        };
        let (a, b) = (Node::new(1, &around), Node::new(2, &around));
        let brokers = [(a.id, a.broker.clone()), (b.id, b.broker.clone())];
        let gossip = std::thread::spawn(move || gossip(&brokers, &Mutex::default(), &heard));
        Pair { a, b, epochs: 0, news, gossip: Some(gossip), cables, _dir: dir }
    }

    /// Over raw Ethernet.
    pub fn cable(&self) -> &Cable {
        self.cables.real.as_ref().expect("a cable")
    }

    /// Proxies in threads of this process; the link is up.
    pub fn start_proxies(&mut self, encryption: Encryption, times: LinkTimes) -> (RunningProxy, RunningProxy) {
        self.start_proxies_of(PairId::FIRST, encryption, times)
    }

    pub fn start_proxies_of(
        &mut self,
        pair: PairId,
        encryption: Encryption,
        times: LinkTimes,
    ) -> (RunningProxy, RunningProxy) {
        let (a, b) = (self.a.as_peer_of(pair), self.b.as_peer_of(pair));
        let (proxy_a, control_a) = self.a.start_proxy_of(pair, &[b], encryption, times);
        let (proxy_b, control_b) = self.b.start_proxy_of(pair, &[a], encryption, times);
        control_a.wait_until_up();
        control_b.wait_until_up();
        (proxy_a, proxy_b)
    }

    /// Binds an endpoint on one node and lets the other know.
    pub fn bind(&mut self, which: Which, endpoint: Endpoint) -> Port {
        self.epochs += 1;
        self.bind_epoch(which, endpoint, Epoch(self.epochs))
    }

    pub fn bind_epoch(&self, which: Which, endpoint: Endpoint, epoch: Epoch) -> Port {
        let (here, there) = match which {
            Which::A => (&self.a, &self.b),
            Which::B => (&self.b, &self.a),
        };
        let socket = here.broker.server_socket(DC, ServerIdentity::new(endpoint, epoch)).expect("socket");
        let port = Port::from_socket(socket, Some(endpoint)).expect("bound");
        // Also told by gossip; here so that the caller can count on it.
        there.broker.remote_bound(DC, endpoint, here.id, epoch).expect("told");
        port
    }
}

/// Several nodes of one cluster, each linked with each over TCP.
pub struct Nodes {
    pub nodes: Vec<Node>,
    pub proxies: Vec<Option<RunningProxy>>,
    /// Nodes whose daemon hears nothing of the others.
    pub deaf: Arc<Mutex<HashSet<NodeId>>>,
    news: Sender<News>,
    gossip: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Nodes {
    pub fn linked(count: u16, encryption: Encryption) -> Nodes {
        let dir = tempfile::tempdir().expect("directory");
        let authority = Authority::create(&dir.path().join("ca"), CLUSTER).expect("authority");
        let (news, heard) = channel();
        let places = Places::default();
        let around = Surroundings {
            way: Way::Tcp,
            pairs: 1,
            cables: &Cables::default(),
            dir: dir.path(),
            authority: &authority,
            places: &places,
            news: &news,
        };
        let nodes: Vec<Node> = (1..=count).map(|id| Node::new(id, &around)).collect();
        let brokers: Vec<_> = nodes.iter().map(|node| (node.id, node.broker.clone())).collect();
        let deaf = Arc::<Mutex<HashSet<NodeId>>>::default();
        let of_gossip = deaf.clone();
        let gossip = std::thread::spawn(move || gossip(&brokers, &of_gossip, &heard));
        let proxies = nodes.iter().map(|_| None).collect();
        let mut cluster = Nodes { nodes, proxies, deaf, news, gossip: Some(gossip), _dir: dir };
        let controls: Vec<Control> =
            (0..cluster.nodes.len()).map(|index| cluster.start_proxy(index, encryption)).collect();
        let is_up = |status: &FromProxy| {
            status.links.len() + 1 == usize::from(count) && status.links.iter().all(|link| link.state == LinkState::Up)
        };
        controls.iter().for_each(|control| drop(control.wait_until(is_up)));
        cluster
    }

    pub fn start_proxy(&mut self, index: usize, encryption: Encryption) -> Control {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != index);
        let peers: Vec<PeerAddress> = others.map(|(_, node)| node.as_peer()).collect();
        let (proxy, control) = self.nodes[index].start_proxy_to(&peers, encryption, calm_times());
        self.proxies[index] = Some(proxy);
        control
    }

    pub fn server(&self, index: usize, endpoint: Endpoint, epoch: Epoch) -> Port {
        let socket = self.nodes[index].broker.server_socket(DC, ServerIdentity::new(endpoint, epoch)).expect("socket");
        Port::from_socket(socket, Some(endpoint)).expect("bound")
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.proxies.clear();
        let _ = self.news.send(News::Stop);
        if let Some(gossip) = self.gossip.take() {
            let _ = gossip.join();
        }
    }
}

/// Tells each broker what happened at the other, as a daemon does that watches the engine.
fn gossip(brokers: &[(NodeId, Arc<Broker>)], deaf: &Mutex<HashSet<NodeId>>, heard: &Receiver<News>) {
    for said in heard {
        let deaf = deaf.lock().expect("not poisoned").clone();
        let deaf = &deaf;
        let others = |node: NodeId| {
            let hears = move |id: &NodeId| *id != node && !deaf.contains(id);
            brokers.iter().filter(move |(id, _)| hears(id)).map(|(_, broker)| broker)
        };
        match said {
            News::Bound(node, endpoint, epoch) => {
                others(node).for_each(|broker| drop(broker.remote_bound(DC, endpoint, node, epoch)));
            }
            News::Unbound(node, endpoint, epoch) => {
                others(node).for_each(|broker| drop(broker.remote_unbound(DC, endpoint, node, epoch)));
            }
            News::Claimed(node, endpoint, epoch, name, result) => {
                if result.is_ok() {
                    others(node).for_each(|broker| drop(broker.remote_bound(DC, endpoint, node, epoch)));
                }
                let own = brokers.iter().filter(|(id, _)| *id == node);
                own.for_each(|(_, broker)| drop(broker.name_claimed(DC, endpoint, name, result)));
            }
            News::Stop => return,
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.news.send(News::Stop);
        if let Some(gossip) = self.gossip.take() {
            let _ = gossip.join();
        }
    }
}

/// Patient with a loaded machine: only tests of silence shorten it.
pub fn calm_times() -> LinkTimes {
    LinkTimes { down: Duration::from_secs(10), ..LinkTimes::default() }
}
