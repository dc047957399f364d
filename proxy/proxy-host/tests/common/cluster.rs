//! Nodes that know each other: two over any transport, or several over TCP.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use abi::{Endpoint, Epoch, NodeId, PairId};
use broker::ServerIdentity;
use ipc::Port;
use ipc::conformance::World;
use pki::Authority;
use proxy_host::control::{FromProxy, LinkState, PeerAddress};
use proxy_host::transport::Encryption;
use proxy_link::LinkTimes;

use super::node::Surroundings;
use super::register::{News, Places, gossip};
use super::wire::Cables;
use super::{CLUSTER, Cable, Control, DC, Node, RunningProxy, Way, calm_times};

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

/// Clients on the first node, servers on the other.
impl World for Pair {
    fn server(&self, endpoint: Endpoint, epoch: u64) -> Port {
        self.bind_epoch(Which::B, endpoint, Epoch(epoch))
    }

    fn near_server(&self, endpoint: Endpoint, epoch: u64) -> Port {
        self.bind_epoch(Which::A, endpoint, Epoch(epoch))
    }

    fn program(&self) -> Port {
        Port::connect(&self.a.socket, None).expect("bound")
    }

    fn near(&self) -> (NodeId, PathBuf) {
        (self.a.id, self.a.socket.clone())
    }

    fn far(&self) -> (NodeId, PathBuf) {
        (self.b.id, self.b.socket.clone())
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

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.news.send(News::Stop);
        if let Some(gossip) = self.gossip.take() {
            let _ = gossip.join();
        }
    }
}
