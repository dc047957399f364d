//! Two nodes on one machine: two brokers, two proxies over loopback, and a register of who is where.

#![allow(dead_code)] // Each test binary uses its part.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use abi::{DcId, Endpoint, Epoch, NodeId};
use broker::{Broker, BrokerConfig, DcOptions, Directory, Location, ServerIdentity};
use ipc::Port;
use pki::{Authority, NodeRequest, Validity};
use proxy_link::LinkTimes;
use proxy_tcp::control::{FromProxy, PeerAddress, ToProxy};
use proxy_tcp::transport::Encryption;
use proxy_tcp::{Proxy, ProxyConfig};

pub const DC: DcId = DcId(7);
pub const CLUSTER: &str = "c1";
/// Longer than anything here takes, so that a hang is a failure and not a wait.
pub const PATIENCE: Duration = Duration::from_secs(20);

type Places = Arc<Mutex<HashMap<Endpoint, (NodeId, Epoch)>>>;

/// What the cluster engine is to a daemon.
struct Register {
    me: NodeId,
    places: Places,
}

impl Directory for Register {
    fn locate(&mut self, _dc: DcId, endpoint: Endpoint) -> Location {
        match self.places.lock().expect("not poisoned").get(&endpoint) {
            Some((node, epoch)) if *node != self.me => Location::Remote { node: *node, epoch: *epoch },
            Some(_) => Location::Local,
            None => Location::Unknown,
        }
    }

    fn bound(&mut self, _dc: DcId, _endpoint: Endpoint, _pid: i32, _epoch: Epoch) {}

    fn unbound(&mut self, _dc: DcId, _endpoint: Endpoint, _epoch: Epoch) {}
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

pub struct Node {
    pub name: String,
    pub id: NodeId,
    pub broker: Broker,
    pub address: SocketAddr,
    pub tls_dir: PathBuf,
    listener: TcpListener,
    incarnation: u64,
}

impl Node {
    fn new(number: u16, dir: &Path, authority: &Authority, places: &Places) -> Node {
        let name = format!("n{number}");
        let tls_dir = dir.join(&name);
        let request = NodeRequest { node: &name, addresses: &[], valid: Validity::of_a_node() };
        authority.issue_node(&request, &tls_dir).expect("certificate");
        let register = Register { me: NodeId(number), places: places.clone() };
        let broker =
            Broker::start(BrokerConfig { node: NodeId(number), directory: Box::new(register) }).expect("broker");
        broker.add_dc(DC, DcOptions::default()).expect("container");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("address");
        Node { name, id: NodeId(number), broker, address, tls_dir, listener, incarnation: 0 }
    }

    pub fn as_peer(&self) -> PeerAddress {
        PeerAddress { name: self.name.clone(), id: self.id.0, addr: self.address.to_string(), tls: None }
    }

    /// A proxy in a thread of this process.
    pub fn start_proxy(&mut self, peer: &PeerAddress, encryption: Encryption, times: LinkTimes) -> RunningProxy {
        self.incarnation += 1;
        let config = ProxyConfig {
            node: self.name.clone(),
            node_id: self.id,
            cluster: CLUSTER.to_owned(),
            incarnation: Epoch(self.incarnation),
            times,
            listener: self.listener.try_clone().expect("listener"),
            encryption,
            tls_dir: Some(self.tls_dir.clone()),
            broker: self.broker.proxy_socket().expect("proxy socket"),
            control: None,
        };
        let mut proxy = Proxy::new(config).expect("proxy");
        proxy.set_peers(std::slice::from_ref(peer)).expect("peers");
        let stop = sys::eventfd::create().expect("eventfd");
        proxy.stop_on(stop.try_clone().expect("eventfd")).expect("watched");
        let thread = std::thread::spawn(move || {
            proxy.run().expect("the loop does not fail");
        });
        RunningProxy::Thread { stop, thread: Some(thread) }
    }

    /// A proxy as the daemon starts it: a process of its own with a spawn record. `test` is the name of the test in this
    /// binary that calls `main_from_spawn`.
    pub fn spawn_proxy(&mut self, peer: &PeerAddress, test: &str, down_ms: u64) -> (RunningProxy, Control) {
        self.incarnation += 1;
        let (control, childs_control) = sys::seqpacket::pair().expect("pair");
        let (ready, childs_ready) = rustix::pipe::pipe().expect("pipe");
        let broker = self.broker.proxy_socket().expect("proxy socket");
        let listener = OwnedFd::from(self.listener.try_clone().expect("listener"));
        let number = |fd: &OwnedFd| {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).expect("inheritable");
            std::os::fd::AsRawFd::as_raw_fd(&fd.as_fd())
        };
        let record = serde_json::json!({
            "node": self.name, "node_id": self.id.0, "cluster": CLUSTER, "epoch": self.incarnation,
            "broker_fd": number(&broker), "ready_fd": number(&childs_ready),
            "fds": { "control": number(&childs_control), "listen": number(&listener) },
            "options": { "tls_dir": self.tls_dir, "down_ms": down_ms },
        });
        let child = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env("DVS_SPAWN", record.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("started");
        drop((broker, listener, childs_control, childs_ready));
        let mut byte = [0];
        assert_eq!(rustix::io::read(&ready, &mut byte).expect("pipe"), 1, "the proxy did not become ready");
        let control = Control { socket: control };
        control.set_peers(std::slice::from_ref(peer));
        (RunningProxy::Process(child), control)
    }
}

/// The daemon's end of a control socket.
pub struct Control {
    socket: OwnedFd,
}

impl Control {
    pub fn set_peers(&self, peers: &[PeerAddress]) {
        let message = ToProxy { peers: Some(peers.to_vec()) };
        let bytes = serde_json::to_vec(&message).expect("json");
        sys::seqpacket::send(&self.socket, &bytes, &[] as &[OwnedFd]).expect("sent");
    }

    /// The next state that the proxy tells.
    pub fn next(&self) -> FromProxy {
        let poller = sys::eventfd::Poller::new().expect("epoll");
        poller.add(&self.socket, 1, sys::eventfd::Trigger::Level).expect("watched");
        let mut ready = Vec::new();
        poller.wait(&mut ready, Some(PATIENCE)).expect("epoll");
        assert!(!ready.is_empty(), "the proxy says nothing");
        let mut buffer = vec![0; proxy_tcp::control::MESSAGE_BYTES_MAX];
        let received = sys::seqpacket::receive(&self.socket, &mut buffer).expect("received");
        serde_json::from_slice(&buffer[..received.bytes]).expect("json")
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
    places: Places,
    epochs: u64,
    _dir: tempfile::TempDir,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    A,
    B,
}

impl Pair {
    pub fn new() -> Pair {
        let dir = tempfile::tempdir().expect("directory");
        let authority = Authority::create(&dir.path().join("ca"), CLUSTER).expect("authority");
        let places = Places::default();
        let a = Node::new(1, dir.path(), &authority, &places);
        let b = Node::new(2, dir.path(), &authority, &places);
        Pair { a, b, places, epochs: 0, _dir: dir }
    }

    /// Proxies in threads of this process.
    pub fn start_proxies(&mut self, encryption: Encryption, times: LinkTimes) -> (RunningProxy, RunningProxy) {
        let (a, b) = (self.a.as_peer(), self.b.as_peer());
        (self.a.start_proxy(&b, encryption, times), self.b.start_proxy(&a, encryption, times))
    }

    /// Binds an endpoint on one node and lets the other know.
    pub fn bind(&mut self, which: Which, endpoint: Endpoint) -> Port {
        self.epochs += 1;
        let epoch = Epoch(self.epochs);
        let (here, there) = match which {
            Which::A => (&self.a, &self.b),
            Which::B => (&self.b, &self.a),
        };
        let socket = here.broker.server_socket(DC, ServerIdentity::new(endpoint, epoch)).expect("socket");
        let port = Port::from_socket(socket, Some(endpoint)).expect("bound");
        self.places.lock().expect("not poisoned").insert(endpoint, (here.id, epoch));
        there.broker.remote_bound(DC, endpoint, here.id, epoch).expect("told");
        port
    }
}

/// Patient with a loaded machine: only tests of silence shorten it.
pub fn calm_times() -> LinkTimes {
    LinkTimes { down: Duration::from_secs(10), ..LinkTimes::default() }
}
