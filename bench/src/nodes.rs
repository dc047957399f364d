//! Two nodes on this machine: a network namespace, a broker and a proxy process each, and a cable between the
//! namespaces.
//!
//! The namespaces have no names: descriptors of this process and its children keep them, so that they go when the last
//! of those is gone, however that came. Brokers are threads of the orchestrator: they are not on the path of a message.
//! What a daemon learns from the cluster's engine, who is bound where, they learn from a register in memory.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::{DcId, Endpoint, Epoch, NodeId};
use broker::{Broker, BrokerConfig, DcOptions, Directory, Location, Privileges};
use parking_lot::Mutex;
use pki::{Authority, NodeRequest, Validity};
use proxy_host::control::{FromProxy, LinkState, PeerAddress, ToProxy};
use proxy_host::transport::Encryption;
use sandbox::links::Links;
use sandbox::netns;

use crate::Outcome;
use crate::mechanism::Site;
use crate::places::keep_to;

pub const NAMES: [&str; 2] = ["n1", "n2"];
pub const CLUSTER: &str = "bench";
const DC: DcId = DcId(1);
const PATIENCE: Duration = Duration::from_secs(10);
/// A proxy is given up after this silence: long, since the machine is busy on purpose.
const DOWN_MS: u64 = 10_000;
/// Numbers that a node gives to programs.
const ENDPOINTS_PER_NODE: u32 = 1000;
const ADDRESSES: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 99, 0, 2))];
const INTERFACE: &str = "bench0";

/// Two network namespaces with a cable between them, and the certificates of two nodes.
pub struct Lan {
    namespaces: [OwnedFd; 2],
}

impl Lan {
    pub fn new(directory: &Path) -> Outcome<Lan> {
        let privileged = |error| format!("network namespaces cannot be made ({error}); dvs-bench proxy needs root");
        let namespaces =
            [netns::create_anonymous().map_err(privileged)?, netns::create_anonymous().map_err(privileged)?];
        Links::within(&namespaces[0])?.ensure_veth(INTERFACE, INTERFACE, &namespaces[1])?;
        for (namespace, address) in namespaces.iter().zip(ADDRESSES) {
            let mut links = Links::within(namespace)?;
            let link = links.get(INTERFACE)?;
            links.ensure_address(&link, address, 24)?;
            links.set_loopback_up()?;
            links.set_up(&link)?;
        }
        let authority = Authority::create(&directory.join("ca"), CLUSTER)?;
        for name in NAMES {
            let request = NodeRequest { node: name, addresses: &[], valid: Validity::of_a_node() };
            authority.issue_node(&request, &directory.join(name))?;
        }
        Ok(Lan { namespaces })
    }

    /// Where a party of a node is; the nodes are counted from 1.
    pub fn site(&self, directory: &Path, node: usize) -> Site {
        Site { directory: directory.to_owned(), node, host: ADDRESSES.get(node - 1).copied() }
    }

    /// Starts a process on a node.
    pub fn spawn(&self, node: usize, cpu: Option<usize>, command: &mut Command) -> Outcome<Child> {
        self.within(node, || {
            // The thread is this spawn's own.
            cpu.map_or(Ok(()), keep_to)?;
            Ok(command.spawn()?)
        })
    }

    fn within<T: Send>(&self, node: usize, work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
        netns::within(&self.namespaces[node - 1], work)?
    }
}

type Places = Arc<Mutex<HashMap<Endpoint, (NodeId, Epoch, i32)>>>;

/// What the cluster's engine is to a daemon.
struct Register {
    own: NodeId,
    places: Places,
    news: Sender<News>,
}

/// What a broker said of its own endpoints, for the other's.
struct News {
    node: NodeId,
    endpoint: Endpoint,
    epoch: Epoch,
    is_bound: bool,
}

impl Register {
    fn say(&self, endpoint: Endpoint, epoch: Epoch, is_bound: bool) {
        let _ = self.news.send(News { node: self.own, endpoint, epoch, is_bound });
    }
}

impl Directory for Register {
    fn locate(&mut self, _: DcId, endpoint: Endpoint) -> Location {
        match self.places.lock().get(&endpoint) {
            Some((node, epoch, _)) if *node != self.own => Location::Remote { node: *node, epoch: *epoch },
            Some(_) => Location::Local,
            None => Location::Unknown,
        }
    }

    fn find(&mut self, _: DcId, pid: i32) -> Option<Endpoint> {
        self.places.lock().iter().find(|(_, place)| place.2 == pid).map(|(endpoint, _)| *endpoint)
    }

    fn bound(&mut self, _: DcId, endpoint: Endpoint, pid: i32, epoch: Epoch) {
        self.places.lock().insert(endpoint, (self.own, epoch, pid));
        self.say(endpoint, epoch, true);
    }

    fn unbound(&mut self, _: DcId, endpoint: Endpoint, epoch: Epoch) {
        self.places.lock().remove(&endpoint);
        self.say(endpoint, epoch, false);
    }
}

/// Tells each broker what happened at the other. Ends when the brokers are gone.
fn gossip(brokers: &[Arc<Broker>; 2], heard: &Receiver<News>, is_over: &std::sync::atomic::AtomicBool) {
    use std::sync::atomic::Ordering;
    while !is_over.load(Ordering::Acquire) {
        let Ok(News { node, endpoint, epoch, is_bound }) = heard.recv_timeout(Duration::from_millis(100)) else {
            continue;
        };
        let other = &brokers[if node == NodeId(1) { 1 } else { 0 }];
        let _ = match is_bound {
            true => other.remote_bound(DC, endpoint, node, epoch),
            false => other.remote_unbound(DC, endpoint, node, epoch),
        };
    }
}

/// The brokers and proxies of both nodes, for one measurement; the link between them is up.
pub struct Nodes {
    proxies: Vec<Proxy>,
    gossip: Option<JoinHandle<()>>,
    is_over: Arc<std::sync::atomic::AtomicBool>,
}

struct Proxy {
    child: Child,
    control: OwnedFd,
}

impl Nodes {
    /// `cpu`: which one the proxies keep to.
    pub fn start(lan: &Lan, directory: &Path, encryption: Encryption, cpu: Option<usize>) -> Outcome<Nodes> {
        let (places, (news, heard)) = (Places::default(), channel());
        let brokers = [1, 2].map(|node| start_broker(lan, directory, node, &places, &news));
        let [first, second] = brokers;
        let brokers = [first?, second?];
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut nodes = Nodes { proxies: Vec::new(), gossip: None, is_over: is_over.clone() };
        let listeners =
            [1, 2].map(|node| lan.within(node, || Ok(TcpListener::bind(SocketAddr::new(ADDRESSES[node - 1], 0))?)));
        let [first, second] = listeners;
        let listeners = [first?, second?];
        let addresses = [listeners[0].local_addr()?, listeners[1].local_addr()?];
        for (index, listener) in listeners.into_iter().enumerate() {
            let starting = Starting { lan, directory, node: index + 1, encryption, cpu };
            let proxy = starting.proxy(&brokers[index], listener)?;
            let other = 1 - index;
            let peer = PeerAddress {
                name: NAMES[other].to_owned(),
                id: other as u16 + 1,
                transport: None,
                addr: addresses[other].to_string(),
                tls: None,
                plain_over: None,
            };
            let message = serde_json::to_vec(&ToProxy { peers: Some(vec![peer]), ..ToProxy::default() })?;
            sys::seqpacket::send(&proxy.control, &message, &[] as &[OwnedFd])?;
            nodes.proxies.push(proxy);
        }
        nodes.gossip = Some(std::thread::spawn(move || gossip(&brokers, &heard, &is_over)));
        for proxy in &nodes.proxies {
            proxy.wait_until_up()?;
        }
        Ok(nodes)
    }

    /// CPU seconds that the proxies used so far.
    pub fn cpu_seconds(&self) -> f64 {
        self.proxies.iter().map(|proxy| cpu_seconds_of(proxy.child.id())).sum()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for proxy in &mut self.proxies {
            let _ = proxy.child.kill();
            let _ = proxy.child.wait();
        }
        self.is_over.store(true, std::sync::atomic::Ordering::Release);
        if let Some(gossip) = self.gossip.take() {
            let _ = gossip.join();
        }
    }
}

fn start_broker(lan: &Lan, directory: &Path, node: u16, places: &Places, news: &Sender<News>) -> Outcome<Arc<Broker>> {
    let register = Register { own: NodeId(node), places: places.clone(), news: news.clone() };
    let broker =
        Broker::start(BrokerConfig { node: NodeId(node), directory: Box::new(register), ..BrokerConfig::local() })?;
    let first = 256 + u32::from(node) * ENDPOINTS_PER_NODE;
    let socket = lan.site(directory, node.into()).broker();
    // Of the measurement before.
    let _ = std::fs::remove_file(&socket);
    let options = DcOptions {
        listen: Some(socket),
        program_endpoints: first..first + ENDPOINTS_PER_NODE,
        program_privileges: Privileges::server(),
    };
    broker.add_dc(DC, options)?;
    Ok(Arc::new(broker))
}

/// What a proxy is started with.
struct Starting<'a> {
    lan: &'a Lan,
    directory: &'a Path,
    node: usize,
    encryption: Encryption,
    cpu: Option<usize>,
}

impl Starting<'_> {
    fn proxy(&self, broker: &Broker, listener: TcpListener) -> Outcome<Proxy> {
        let (control, childs_control) = sys::seqpacket::pair()?;
        let (ready, childs_ready) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (broker, listener) = (broker.proxy_socket()?, OwnedFd::from(listener));
        let record = serde_json::json!({
            "node": NAMES[self.node - 1], "node_id": self.node, "cluster": CLUSTER, "epoch": 1,
            "broker_fd": inherited(&broker)?, "ready_fd": inherited(&childs_ready)?,
            "fds": { "control": inherited(&childs_control)?, "listen": inherited(&listener)? },
            "options": {
                "tls_dir": self.directory.join(NAMES[self.node - 1]), "down_ms": DOWN_MS,
                "tls": if self.encryption == Encryption::Tls { "on" } else { "off" },
            },
        });
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("link").env(sys::spawn::VARIABLE, record.to_string()).stdin(Stdio::piped()).stdout(Stdio::null());
        command.env("DVS_LOG", "error");
        let child = self.lan.spawn(self.node, self.cpu, &mut command)?;
        let proxy = Proxy { child, control };
        drop((broker, listener, childs_control, childs_ready));
        let mut byte = [0];
        match rustix::io::read(&ready, &mut byte)? {
            1 => Ok(proxy),
            _ => Err("the proxy does not start".into()),
        }
    }
}

/// Its number for a child. The next spawn of this process is that child's.
fn inherited(fd: &OwnedFd) -> Outcome<i32> {
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
    Ok(fd.as_fd().as_raw_fd())
}

impl Proxy {
    fn wait_until_up(&self) -> Outcome<()> {
        let (poller, limit) = (sys::eventfd::Poller::new()?, Instant::now() + PATIENCE);
        poller.add(&self.control, 1, sys::eventfd::Trigger::Level)?;
        let (mut ready, mut buffer) = (Vec::new(), vec![0; proxy_host::control::MESSAGE_BYTES_MAX]);
        while Instant::now() < limit {
            ready.clear();
            poller.wait(&mut ready, Some(limit.saturating_duration_since(Instant::now())))?;
            if ready.is_empty() {
                continue;
            }
            let received = sys::seqpacket::receive(&self.control, &mut buffer)?;
            let status: FromProxy = serde_json::from_slice(&buffer[..received.bytes])?;
            if status.links.iter().any(|link| link.state == LinkState::Up) {
                return Ok(());
            }
        }
        Err("the link between the nodes does not come up".into())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process of a proxy. Its standard input ends with the orchestrator.
pub fn link() -> std::process::ExitCode {
    std::thread::spawn(|| {
        let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
        std::process::exit(1);
    });
    proxy_host::main_from_spawn()
}

fn cpu_seconds_of(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which ends with the last parenthesis: state, then numbers; utime and stime are the 12th and
    // 13th.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / rustix::param::clock_ticks_per_second() as f64
}
