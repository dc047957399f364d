//! Where programs of a container may connect to outside, and their datagrams there.
//!
//! Everything that a program sends to an address that is none of its container's is heard by the gate, which has that
//! address as its own end (`sys::sk_lookup`); what is allowed it sends on from the node. [`Policy`] is pure.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use sys::ns::Kinds;
use vos_api::ports::RESOLVER;

use crate::names;
use crate::recent::Recent;

const DNS: u16 = 53;

/// A network, and of it one port or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowed {
    pub network: IpAddr,
    pub prefix_bits: u8,
    pub port: Option<u16>,
}

impl Allowed {
    fn admits(&self, to: &SocketAddr) -> bool {
        is_within(to.ip(), self.network, self.prefix_bits) && self.port.is_none_or(|port| port == to.port())
    }
}

fn is_within(address: IpAddr, network: IpAddr, prefix_bits: u8) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix_bits.min(128))).unwrap_or(0);
    address.is_ipv4() == network.is_ipv4() && bits(address) & mask == bits(network) & mask
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    pub allowed: Vec<Allowed>,
    /// Addresses of the cluster's nodes: their doors are none of the container's.
    pub never: BTreeSet<IpAddr>,
    /// The node's own name server, which programs reach at [`RESOLVER`].
    pub resolver: Option<SocketAddr>,
}

impl Policy {
    /// Whether that is how programs reach the node's name server.
    pub fn is_resolver(to: SocketAddr) -> bool {
        to == SocketAddr::new(RESOLVER.into(), DNS)
    }

    /// The same, without what turns out to be an address of the node, in whose network the calling thread is.
    pub fn way_of_node(&self, to: SocketAddr) -> Option<SocketAddr> {
        let way = self.way(to)?;
        // The name server may well be one of the node.
        let is_fine = Some(way) == self.resolver || !is_own(way.ip()).unwrap_or(true);
        is_fine.then_some(way)
    }

    /// Where something for an address goes. `None`: nowhere.
    pub fn way(&self, to: SocketAddr) -> Option<SocketAddr> {
        if Policy::is_resolver(to) {
            return self.resolver;
        }
        let is_kept_from = |address: IpAddr| is_reserved(address) || self.never.contains(&address);
        let may = !is_kept_from(to.ip()) && !translated(to.ip()).is_some_and(is_kept_from);
        (may && self.allowed.iter().any(|allowed| allowed.admits(&to))).then_some(to)
    }
}

/// What means the machine itself, its wire, several machines, or nobody.
fn is_reserved(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let first = address.octets()[0];
            first == 0 || address.is_loopback() || address.is_link_local() || address.is_multicast() || first >= 240
        }
        IpAddr::V6(address) => {
            // Unspecified, loopback, and whatever stands for an address of IPv4 in a machine or in a tunnel.
            const TUNNELS: [(u128, u8); 3] = [(0, 80), (0x2002 << 112, 16), (0x2001 << 112, 32)];
            // Of the wire; formerly of the site.
            const NEAR: [(u128, u8); 2] = [(0xfe80 << 112, 10), (0xfec0 << 112, 10)];
            let within =
                |&(network, bits): &(u128, u8)| is_within(address.into(), Ipv6Addr::from_bits(network).into(), bits);
            // Where clouds keep what a machine may do, as at 169.254.169.254 (Amazon, Google, Oracle, Scaleway); and a
            // translator's own prefix (RFC 8215), of which nobody knows where it leads.
            const SECRETS: [(u128, u8); 5] = [
                (0xfd00_0ec2 << 96, 32),
                (0xfd20_00ce << 96, 32),
                (0xfd00_00c1 << 96, 32),
                (0xfd00_0042 << 96, 32),
                (0x0064_ff9b_0001 << 80, 48),
            ];
            address.is_multicast() || TUNNELS.iter().chain(&NEAR).chain(&SECRETS).any(within)
        }
    }
}

/// The address of IPv4 that a router makes of one of IPv6 (RFC 6052).
fn translated(address: IpAddr) -> Option<IpAddr> {
    const PREFIX: u128 = 0x64_ff9b << 96;
    let IpAddr::V6(address) = address else { return None };
    let bits = address.to_bits();
    (bits >> 32 == PREFIX >> 32).then(|| Ipv4Addr::from_bits(bits as u32).into())
}

/// Whether the node itself, in whose network the calling thread is, takes what is sent to an address.
///
/// # Errors
/// Nothing is known; or no route leads there.
fn is_own(address: IpAddr) -> io::Result<bool> {
    match address {
        IpAddr::V4(address) => is_own_ipv4(address),
        IpAddr::V6(address) => is_own_ipv6(address),
    }
}

fn is_own_ipv4(address: Ipv4Addr) -> io::Result<bool> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // Nothing is sent: the kernel chooses whose name it would be in, which is the own one for who speaks with himself.
    connect(&socket, &SocketAddr::new(address.into(), DNS))?;
    let own = rustix::net::getsockname(&socket)?;
    Ok(SocketAddr::try_from(own).is_ok_and(|own| own.ip() == address))
}

/// A router also takes what is sent to addresses that it has in common with others (anycast), and never speaks as one
/// of these: so its routes are asked (`rtnetlink(7)`).
fn is_own_ipv6(address: Ipv6Addr) -> io::Result<bool> {
    const RTM_GETROUTE: u16 = 26;
    const RTM_NEWROUTE: u16 = 24;
    const REQUEST: u16 = 1;
    const RTA_DST: u16 = 1;
    const UNICAST: u8 = 1;
    const HEADER_BYTES: usize = 16;
    const TYPE_AT: usize = HEADER_BYTES + 7;
    let bytes = address.octets();
    // `struct nlmsghdr`, `struct rtmsg`, and one attribute.
    let route = [[libc::AF_INET6 as u8, 128, 0, 0], [0; 4], [0; 4]].concat();
    let attribute = [&(4 + bytes.len() as u16).to_ne_bytes()[..], &RTA_DST.to_ne_bytes(), &bytes].concat();
    let length = (HEADER_BYTES + route.len() + attribute.len()) as u32;
    let header = [&length.to_ne_bytes()[..], &RTM_GETROUTE.to_ne_bytes(), &REQUEST.to_ne_bytes(), &[0; 8]].concat();
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &[header, route, attribute].concat(), SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (bytes, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    let answer = answer.get(..bytes).unwrap_or_default();
    let kind = answer.get(4..6).and_then(|kind| Some(u16::from_ne_bytes(kind.try_into().ok()?)));
    match (kind, answer.get(TYPE_AT)) {
        (Some(RTM_NEWROUTE), Some(of)) => Ok(*of != UNICAST),
        _ => Err(io::ErrorKind::HostUnreachable.into()),
    }
}

/// Makes sockets inside the container for the gate, which is outside: a thread that is there.
#[derive(Debug)]
pub struct Insider {
    asked: Sender<Asked>,
    made: Receiver<io::Result<Option<OwnedFd>>>,
}

#[derive(Debug)]
enum Asked {
    /// The process has given up its privileges.
    Settle,
    SpeakAs {
        own: SocketAddr,
        peer: SocketAddr,
    },
}

impl Insider {
    /// Enters the namespace, while it still may.
    ///
    /// # Errors
    /// No thread, or it may not enter.
    pub fn start(namespace: OwnedFd) -> io::Result<Insider> {
        let (asked, questions) = channel();
        let (answers, made) = channel();
        let work = move || {
            // With a change of user a thread loses what it may, unless it says before that it does not.
            let entered = sys::ns::join(&namespace, Kinds::NET)
                .and_then(|()| Ok(rustix::thread::set_keep_capabilities(true)?))
                .map(|()| None);
            drop(namespace);
            let mut answer = entered;
            while answers.send(answer).is_ok() {
                answer = match questions.recv() {
                    Ok(Asked::Settle) => keep_what_it_takes().map(|()| None),
                    Ok(Asked::SpeakAs { own, peer }) => sys::sk_lookup::speak_as(own, peer).map(Some),
                    Err(_) => return,
                };
            }
        };
        std::thread::Builder::new().name("inside".to_owned()).spawn(work)?;
        let insider = Insider { asked, made };
        insider.made.recv().map_err(io::Error::other)??;
        Ok(insider)
    }

    /// Once the process has given up its privileges: of those of the thread two are left, CAP_NET_RAW and
    /// CAP_NET_BIND_SERVICE, to speak as others and from any port. They are good for nothing but the namespace that it
    /// is in.
    ///
    /// # Errors
    /// It has not even those.
    pub fn settle(&self) -> io::Result<()> {
        self.ask(Asked::Settle).map(drop)
    }

    fn speak_as(&self, own: SocketAddr, peer: SocketAddr) -> io::Result<OwnedFd> {
        self.ask(Asked::SpeakAs { own, peer })?.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn ask(&self, what: Asked) -> io::Result<Option<OwnedFd>> {
        self.asked.send(what).map_err(io::Error::other)?;
        self.made.recv().map_err(io::Error::other)?
    }
}

fn keep_what_it_takes() -> io::Result<()> {
    let few = CapabilitySet::NET_RAW | CapabilitySet::NET_BIND_SERVICE;
    let sets = CapabilitySets { effective: few, permitted: few, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// Between one socket inside and an address outside.
#[derive(Debug)]
struct OutFlow {
    /// Speaks as whom the program meant.
    inside: OwnedFd,
    outside: OwnedFd,
    /// To the node's name server.
    is_of_names: bool,
}

impl OutFlow {
    /// A datagram from one side, to the other one. That it is lost is no error.
    fn pass(&self, from: FlowSide, datagram: &[u8]) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let is_kept = self.is_of_names && names::mentions_cluster(datagram);
        let _ = match from {
            FlowSide::Inside if is_kept => match names::answer(datagram) {
                Some(answer) => send(&self.inside, &answer, flags),
                None => return,
            },
            FlowSide::Outside if is_kept => return,
            FlowSide::Inside => send(&self.outside, datagram, flags),
            FlowSide::Outside => send(&self.inside, datagram, flags),
        };
    }
}

/// Datagrams that leave and their answers, by numbers that the gate gives.
#[derive(Debug, Default)]
pub struct OutFlows(Recent<(SocketAddr, SocketAddr), OutFlow>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowSide {
    Inside,
    Outside,
}

impl OutFlows {
    pub fn count(&self) -> usize {
        self.0.count()
    }

    pub fn socket(&self, number: u64, side: FlowSide) -> Option<BorrowedFd<'_>> {
        self.0.get(number).map(|flow| match side {
            FlowSide::Inside => flow.inside.as_fd(),
            FlowSide::Outside => flow.outside.as_fd(),
        })
    }

    /// A datagram from a program to somebody. True: it is the first, and the flow with the number `fresh` is to be
    /// watched.
    ///
    /// # Errors
    /// No sockets. That a datagram is lost is none.
    pub fn put(
        &mut self,
        pair: (SocketAddr, SocketAddr),
        way: SocketAddr,
        datagram: &[u8],
        (now_ms, fresh): (u64, u64),
        insider: &Insider,
    ) -> io::Result<bool> {
        let known = self.0.number(&pair);
        let number = known.unwrap_or(fresh);
        if known.is_none() {
            let (from, to) = pair;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let family = if way.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let outside = socket_with(family, SocketType::DGRAM, flags, None)?;
            connect(&outside, &way)?;
            let is_of_names = Policy::is_resolver(to);
            let flow = OutFlow { inside: insider.speak_as(to, from)?, outside, is_of_names };
            self.0.insert(pair, fresh, flow, now_ms);
        }
        self.0.used(number, now_ms);
        if let Some(flow) = self.0.get(number) {
            flow.pass(FlowSide::Inside, datagram);
        }
        Ok(known.is_none())
    }

    /// Carries what came to one side to the other; at most so many datagrams.
    pub fn carry(&mut self, number: u64, side: FlowSide, buffer: &mut [u8], now_ms: u64, most: usize) {
        let Some(flow) = self.0.get(number) else { return };
        let mut has_carried = false;
        let from = match side {
            FlowSide::Inside => &flow.inside,
            FlowSide::Outside => &flow.outside,
        };
        for _ in 0..most {
            match recv(from, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => {
                    has_carried = true;
                    flow.pass(side, buffer.get(..bytes).unwrap_or_default());
                }
                // That nobody listened: whoever asked waits, and asks again.
                Err(Errno::INTR | Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => (),
                Err(_) => break,
            }
        }
        if has_carried {
            self.0.used(number, now_ms);
        }
    }

    pub fn forget_idle(&mut self, now_ms: u64) {
        self.0.forget_idle(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(policy: &Policy, to: &str) -> Option<String> {
        policy.way(to.parse().unwrap()).map(|way| way.to_string())
    }

    #[test]
    fn what_is_allowed_goes_out_and_the_machine_and_the_cluster_are_never_reached() {
        let any = |network: &str| Allowed { network: network.parse().unwrap(), prefix_bits: 0, port: None };
        let policy = Policy {
            allowed: vec![any("0.0.0.0"), any("::")],
            never: ["192.0.2.1", "2001:db8::1"].map(|node| node.parse().unwrap()).into(),
            resolver: Some("127.0.0.53:53".parse().unwrap()),
        };
        for may in ["198.51.100.7:443", "[2001:db8::7]:443", "[fd00::7]:1", "[64:ff9b::c633:6407]:80"] {
            assert_eq!(way(&policy, may).as_deref(), Some(may));
        }
        for never in [
            "127.0.0.1:22",
            "0.0.0.0:80",
            "169.254.169.254:80",
            "224.0.0.1:1",
            "255.255.255.255:9",
            "192.0.2.1:7420",
            "[::1]:22",
            "[::]:80",
            "[::ffff:198.51.100.7]:443",
            "[::198.51.100.7]:443",
            "[fe80::1]:80",
            "[fec0::1]:80",
            "[ff02::1]:1",
            "[ff0e::1]:1",
            "[2002:c000:201::1]:80",
            "[2001:0:c000:201::1]:80",
            "[2001:db8::1]:7420",
            "[fd00:ec2::254]:80",
            "[fd20:ce::254]:80",
            "[fd00:c1::a9fe:a9fe]:80",
            "[fd00:42::42]:80",
            "[64:ff9b:1::a9fe:a9fe]:80",
            // To the cluster, to the machine and to where clouds keep their secrets by way of a translator.
            "[64:ff9b::c000:201]:7420",
            "[64:ff9b::7f00:1]:22",
            "[64:ff9b::a9fe:a9fe]:80",
        ] {
            assert_eq!(way(&policy, never), None, "{never}");
        }
        assert_eq!(way(&policy, &format!("{RESOLVER}:53")).as_deref(), Some("127.0.0.53:53"));
        assert_eq!(way(&policy, &format!("{RESOLVER}:80")), None);

        let some = |text: &str, prefix_bits, port| Allowed { network: text.parse().unwrap(), prefix_bits, port };
        let narrow = Policy {
            allowed: vec![
                some("10.0.0.0", 8, Some(5432)),
                some("198.51.100.7", 32, None),
                some("2001:db8:1::", 48, Some(443)),
            ],
            ..Policy::default()
        };
        for may in ["10.200.3.4:5432", "198.51.100.7:1", "[2001:db8:1:2::3]:443"] {
            assert!(way(&narrow, may).is_some(), "{may}");
        }
        for refused in [
            "10.200.3.4:5433",
            "11.0.0.1:5432",
            "198.51.100.8:1",
            "169.254.0.53:53",
            "[2001:db8:1:2::3]:80",
            "[2001:db8:2::3]:443",
            "[a00:1::]:5432",
        ] {
            assert_eq!(way(&narrow, refused), None, "{refused}");
        }
    }

    #[test]
    fn addresses_of_the_machine_are_its_own() {
        assert!(is_own(Ipv4Addr::LOCALHOST.into()).unwrap());
        if std::path::Path::new("/proc/sys/net/ipv6").exists() {
            assert!(is_own(Ipv6Addr::LOCALHOST.into()).unwrap());
        }
        // Of a machine without a route there, nothing is known, which is no.
        assert!(!is_own(Ipv4Addr::new(192, 0, 2, 1).into()).unwrap_or(false));
    }
}
