//! Ports of this node that lead into a container: bound here, kept by the container's keeper, served by its port gate
//! (`docs/design/ports.md`).
//!
//! Every step may be repeated: a daemon that begins tells the gate everything, a gate that begins is told everything.
//! What must go is told when it goes; a daemon that died over that finds what an earlier one remembered.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use keeper::KeeperClient;
use mgmt_api::{PortProtocol, PortSpec, SharePort};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use vos_api::ports::{
    COUNTS_PER_PACKET, Introduction, NodeAddresses, PORT_PACKET_BYTES_MAX, PortCounts, PortName, PortTransport,
    ToPortGate,
};

use super::share::Share;
use crate::supervise::{Problem, causes};

/// The daemon's end of the gate's socket, which the keeper holds.
pub const CONTROL: &str = "ports";
/// Clients that wait to be accepted. The kernel takes what it has at most.
const BACKLOG: i32 = 1024;
/// A gate that serves counts at once.
const COUNT_LIMIT_S: i64 = 1;
/// After an attempt to listen that failed.
const REST: Duration = Duration::from_secs(1);

/// What was told of the ports, and to which gate.
#[derive(Debug, Default)]
pub struct Published {
    gate: Option<u32>,
    nodes: Option<NodeAddresses>,
    ports: BTreeMap<PortName, Told>,
    /// The gate or the keeper could not be spoken to.
    again: Option<Instant>,
}

#[derive(Debug)]
struct Told {
    port: PortSpec,
    /// Why the node does not listen, and when it tries again.
    problem: Option<(String, Instant)>,
}

impl Told {
    fn again(&self) -> Option<Instant> {
        self.problem.as_ref().map(|(_, again)| *again)
    }
}

pub fn name_of(port: &PortSpec) -> PortName {
    let transport = match port.protocol {
        PortProtocol::Tcp => PortTransport::Tcp,
        PortProtocol::Udp => PortTransport::Udp,
    };
    let address = port.address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    PortName { transport, address, port: port.published.get() }
}

/// Under which name the keeper has its socket.
fn key_of(name: &PortName) -> String {
    format!("port {:?} {}", name.transport, SocketAddr::new(name.address, name.port))
}

impl Published {
    /// Brings about that the gate serves what the share publishes. `gate`: its process, when it serves.
    pub fn look(&mut self, share: &Share, node: &str, gate: Option<u32>, nodes: NodeAddresses, keeper: KeeperFinder) {
        if self.gate != gate {
            *self = Published { gate, ..Published::default() };
        }
        let now = Instant::now();
        if gate.is_none() || self.again.is_some_and(|again| now < again) {
            return;
        }
        self.again = None;
        if let Err(problem) = self.tell(share, node, nodes, keeper) {
            tracing::warn!(dc = share.id, problem = causes(&*problem), "the port gate hears nothing");
            self.again = Some(now + REST);
        }
    }

    fn tell(&mut self, share: &Share, node: &str, nodes: NodeAddresses, keeper: KeeperFinder) -> Result<(), Problem> {
        let now = Instant::now();
        let wanted: BTreeMap<PortName, &PortSpec> = share.ports(node).map(|port| (name_of(port), port)).collect();
        let is_due = |(name, port): &(&PortName, &&PortSpec)| {
            let told = self.ports.get(*name);
            told.is_none_or(|told| told.port != ***port || told.again().is_some_and(|again| again <= now))
        };
        let due: Vec<(PortName, PortSpec)> =
            wanted.iter().filter(is_due).map(|(name, port)| (*name, (*port).clone())).collect();
        let gone: Vec<PortName> = self.ports.keys().filter(|name| !wanted.contains_key(name)).copied().collect();
        let other_nodes = self.nodes.as_ref() != Some(&nodes);
        if due.is_empty() && gone.is_empty() && !other_nodes {
            return Ok(());
        }
        let keeper = keeper()?;
        let control = keeper.fetch(CONTROL)?.ok_or("the keeper has no way to the port gate")?;
        if other_nodes {
            let narrow = nodes.without_ipv6();
            if narrow != nodes {
                // A gate of the release before hears this one alone.
                send(&control, &ToPortGate::Nodes(narrow), None)?;
            }
            send(&control, &ToPortGate::Nodes(nodes.clone()), None)?;
            self.nodes = Some(nodes);
        }
        for name in gone {
            close(&keeper, &control, &name)?;
            self.ports.remove(&name);
        }
        for (name, port) in due {
            let problem = match socket_of(&keeper, node, &name, &port)? {
                Ok(socket) => {
                    let introduction = if port.proxy_protocol { Introduction::Proxy } else { Introduction::None };
                    let open = ToPortGate::Open { name, inside: port.port.get(), introduction };
                    send(&control, &open, Some(&socket))?;
                    None
                }
                Err(problem) => {
                    tracing::warn!(dc = share.id, problem, "a port is not published");
                    Some((problem, now + REST))
                }
            };
            self.ports.insert(name, Told { port, problem });
        }
        Ok(())
    }

    /// What an earlier daemon published and nobody wants any more.
    pub fn withdraw(gone: &[PortSpec], keeper: KeeperFinder) -> Result<(), Problem> {
        if gone.is_empty() {
            return Ok(());
        }
        let keeper = keeper()?;
        let Some(control) = keeper.fetch(CONTROL)? else { return Ok(()) };
        gone.iter().try_for_each(|port| close(&keeper, &control, &name_of(port)))
    }

    /// As the share reports them.
    pub fn ports(&self) -> Vec<SharePort> {
        let told = self.ports.values();
        let problem = |told: &Told| told.problem.as_ref().map(|(problem, _)| problem.clone());
        told.map(|told| SharePort { port: told.port.to_string(), problem: problem(told) }).collect()
    }

    /// When something is to be tried again.
    pub fn due(&self) -> Option<Instant> {
        self.ports.values().filter_map(Told::again).chain(self.again).min()
    }
}

/// The keeper is asked only when there is something to do.
pub type KeeperFinder<'a> = &'a dyn Fn() -> Result<KeeperClient, Problem>;

/// The gate that serves gives way to another one, and ends with its last connection. `control`: under which name the
/// keeper has the daemon's end of its socket.
pub fn send_away(keeper: &KeeperClient, control: &str) -> Result<(), Problem> {
    let control = keeper.fetch(control)?.ok_or("the keeper has no way to the port gate")?;
    send(&control, &ToPortGate::Leave, None)
}

/// The gate that serves lets nobody reach these addresses, and those that it was told before if they are among them.
pub fn keep_from(keeper: &KeeperClient, control: &str, addresses: &[IpAddr]) -> Result<(), Problem> {
    let control = keeper.fetch(control)?.ok_or("the keeper has no way to the gate")?;
    ToPortGate::never(addresses).iter().try_for_each(|packet| send(&control, packet, None))
}

/// What the gate counted. Of those who ask at a time one is answered after the other.
pub fn counts(keeper: &KeeperClient) -> Result<Vec<PortCounts>, Problem> {
    static ASKING: Mutex<()> = Mutex::new(());
    let control = keeper.fetch(CONTROL)?.ok_or("the keeper has no way to the port gate")?;
    let _one = ASKING.lock();
    let mut packet = [0; PORT_PACKET_BYTES_MAX];
    // An answer to somebody who did not wait for it.
    while sys::seqpacket::receive(&control, &mut packet).is_ok_and(|late| late.bytes > 0) {}
    send(&control, &ToPortGate::Count, None)?;
    let mut counts = Vec::new();
    loop {
        let limit = Timespec { tv_sec: COUNT_LIMIT_S, tv_nsec: 0 };
        poll(&mut [PollFd::new(&control, PollFlags::IN)], Some(&limit))?;
        let received = sys::seqpacket::receive(&control, &mut packet)?;
        let bytes = packet.get(..received.bytes).unwrap_or_default();
        let some = PortCounts::decode_all(bytes).map_err(|_| "the port gate says what nobody understands")?;
        let is_last = some.len() < COUNTS_PER_PACKET;
        counts.extend(some);
        if is_last {
            return Ok(counts);
        }
    }
}

/// For numbers about it: `8080/tcp`, or with the address at which alone it is published.
pub fn in_short(name: &PortName) -> String {
    let transport = match name.transport {
        PortTransport::Tcp => "tcp",
        PortTransport::Udp => "udp",
    };
    let at = SocketAddr::new(name.address, name.port);
    if name.address == Ipv6Addr::UNSPECIFIED {
        format!("{}/{transport}", name.port)
    } else {
        format!("{at}/{transport}")
    }
}

fn close(keeper: &KeeperClient, control: &OwnedFd, name: &PortName) -> Result<(), Problem> {
    // The keeper first: who listens nowhere any more can be told again.
    keeper.drop_stored(&key_of(name))?;
    send(control, &ToPortGate::Close(*name), None)
}

fn send(control: &OwnedFd, told: &ToPortGate, socket: Option<&OwnedFd>) -> Result<(), Problem> {
    let sockets: Vec<_> = socket.into_iter().map(AsFd::as_fd).collect();
    Ok(sys::seqpacket::send(control, &told.encode(), &sockets)?)
}

/// The socket that is kept, or one that is made now; within: why it cannot be made.
fn socket_of(
    keeper: &KeeperClient,
    node: &str,
    name: &PortName,
    port: &PortSpec,
) -> Result<Result<OwnedFd, String>, Problem> {
    let key = key_of(name);
    if let Some(kept) = keeper.fetch(&key)? {
        return Ok(Ok(kept));
    }
    match open(name) {
        Ok(socket) => {
            keeper.store(&key, socket.as_fd())?;
            Ok(Ok(socket))
        }
        Err(cause) => Ok(Err(in_words(node, port, &cause))),
    }
}

fn in_words(node: &str, port: &PortSpec, cause: &io::Error) -> String {
    let (published, protocol) = (port.published, port.protocol.name());
    match (cause.raw_os_error(), port.address) {
        (Some(libc::EADDRINUSE), _) => format!("port {published}/{protocol} of node {node} is taken"),
        (Some(libc::EADDRNOTAVAIL), Some(address)) => format!("node {node} has no address {address}"),
        _ => format!("node {node} cannot listen at port {published}/{protocol}: {cause}"),
    }
}

/// Bound, and of TCP listening, in the network namespace of the node.
fn open(name: &PortName) -> io::Result<OwnedFd> {
    let at = |address: IpAddr| bound(name.transport, SocketAddr::new(address, name.port));
    match at(name.address) {
        // A node without IPv6.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if name.address.is_unspecified() => {
            Ok(at(Ipv4Addr::UNSPECIFIED.into())?)
        }
        done => Ok(done?),
    }
}

fn bound(transport: PortTransport, at: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = match transport {
        PortTransport::Tcp => SocketType::STREAM,
        PortTransport::Udp => SocketType::DGRAM,
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if at.is_ipv6() {
        // All addresses are those of IPv4, too.
        sockopt::set_ipv6_v6only(&socket, !at.ip().is_unspecified())?;
    }
    if transport == PortTransport::Tcp {
        // Of datagrams it would let others bind the same port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &at)?;
    if transport == PortTransport::Tcp {
        listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_that_is_taken_is_said_to_be_so_and_both_families_lead_to_one() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let number = taken.local_addr().unwrap().port();
        let port: PortSpec = format!("{number}:80").parse().unwrap();
        let refused = open(&name_of(&port)).unwrap_err();
        assert_eq!(in_words("n1", &port, &refused), format!("port {number}/tcp of node n1 is taken"));
        drop(taken);
        let _listening = open(&name_of(&port)).unwrap();
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, number)).unwrap();
        let foreign: PortSpec = "192.0.2.1:1:1/udp".parse().unwrap();
        let refused = open(&name_of(&foreign)).unwrap_err();
        assert_eq!(in_words("n1", &foreign, &refused), "node n1 has no address 192.0.2.1");
        let datagrams: PortSpec = format!("{number}:80/udp").parse().unwrap();
        let _first = open(&name_of(&datagrams)).unwrap();
        open(&name_of(&datagrams)).expect_err("two cannot have one");
    }
}
