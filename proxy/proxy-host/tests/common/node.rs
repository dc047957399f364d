//! One node: its broker, and how its proxies are started.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use abi::{Epoch, NodeId, PairId};
use broker::{Broker, BrokerConfig, DcOptions, Privileges};
use pki::{Authority, NodeRequest, Validity};
use proxy_host::control::PeerAddress;
use proxy_host::transport::eth::show_mac;
use proxy_host::transport::tipc::show_service;
use proxy_host::transport::{Compression, Encryption};
use proxy_host::{Proxy, ProxyConfig};
use proxy_link::LinkTimes;

use super::proxy::PROXY_PROCESS;
use super::register::{News, Places, Register};
use super::wire::{Cables, Listening, address_of};
use super::{CLUSTER, Control, DC, RunningProxy, Way};

/// A machine may stand still while a proxy is replaced.
const UNMANNED_MAX: Duration = Duration::from_secs(60);

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
pub(super) struct Surroundings<'a> {
    pub(super) way: Way,
    /// Pairs of proxies that each node has.
    pub(super) pairs: u8,
    pub(super) cables: &'a Cables,
    pub(super) dir: &'a Path,
    pub(super) authority: &'a Authority,
    pub(super) places: &'a Places,
    pub(super) news: &'a Sender<News>,
}

impl Node {
    pub(super) fn new(number: u16, around: &Surroundings<'_>) -> Node {
        let Surroundings { way, pairs, cables, dir, authority, places, news } = *around;
        let name = format!("n{number}");
        let tls_dir = dir.join(&name);
        let request = NodeRequest { node: &name, addresses: &[], valid: Validity::of_a_node() };
        authority.issue_node(&request, &tls_dir).expect("certificate");
        let register = Register { me: NodeId(number), pairs, places: places.clone(), news: news.clone() };
        let (node, directory) = (NodeId(number), Box::new(register));
        let config = BrokerConfig { node, directory, unmanned_max: UNMANNED_MAX, ..BrokerConfig::local() };
        let broker = Broker::start(config).expect("broker");
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
        PeerAddress {
            name: self.name.clone(),
            id: self.id.0,
            transport: Some(transport.to_owned()),
            addr,
            tls: None,
            plain_over: None,
        }
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
            presence: None,
        };
        let mut proxy = Proxy::new(config).expect("proxy");
        proxy.set_peers(peers, peers.len()).expect("peers");
        let stop = sys::eventfd::create().expect("eventfd");
        proxy.stop_on(stop.try_clone().expect("eventfd")).expect("watched");
        let thread = std::thread::spawn(move || {
            proxy.run().expect("the loop does not fail");
        });
        (RunningProxy::Thread { stop, thread: Some(thread) }, Control { socket: control })
    }

    /// A proxy as the daemon starts it: a process of its own with a spawn record.
    pub fn spawn_proxy(&mut self, peer: &PeerAddress, down_ms: u64) -> (RunningProxy, Control) {
        self.spawn_proxy_of(PairId::FIRST, peer, down_ms)
    }

    pub fn spawn_proxy_of(&mut self, pair: PairId, peer: &PeerAddress, down_ms: u64) -> (RunningProxy, Control) {
        let (proxy, control) = self.spawn_proxy_without_list(pair, down_ms);
        control.set_peers(std::slice::from_ref(peer));
        (proxy, control)
    }

    /// One that was not told yet which other nodes there are.
    pub fn spawn_proxy_without_list(&mut self, pair: PairId, down_ms: u64) -> (RunningProxy, Control) {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.args(["--exact", PROXY_PROCESS, "--nocapture", "--test-threads=1"]).stdout(std::process::Stdio::null());
        self.spawn_program_of(pair, command, serde_json::json!({ "down_ms": down_ms }))
    }

    /// Any program as a proxy.
    pub fn spawn_program(
        &mut self,
        peer: &PeerAddress,
        command: Command,
        options: serde_json::Value,
    ) -> (RunningProxy, Control) {
        let (proxy, control) = self.spawn_program_of(PairId::FIRST, command, options);
        control.set_peers(std::slice::from_ref(peer));
        (proxy, control)
    }

    fn spawn_program_of(
        &mut self,
        pair: PairId,
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
        (RunningProxy::Process(child), Control { socket: control })
    }
}
