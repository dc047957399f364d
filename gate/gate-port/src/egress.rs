//! Where programs of a container may connect to outside, and their datagrams there.
//!
//! Everything that a program sends to an address that is none of its container's is heard by the gate, which has that
//! address as its own end (`sys::sk_lookup`); what is allowed it sends on from the node. [`Policy`] is pure.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use sys::ns::Kinds;
use vos_api::ports::RESOLVER;

use crate::recent::Recent;

const DNS: u16 = 53;

/// A network, and of it one port or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowed {
    pub network: Ipv4Addr,
    pub prefix_bits: u8,
    pub port: Option<u16>,
}

impl Allowed {
    fn admits(&self, to: &SocketAddrV4) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_bits.min(32))).unwrap_or(0);
        let is_within = u32::from(*to.ip()) & mask == u32::from(self.network) & mask;
        is_within && self.port.is_none_or(|port| port == to.port())
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    pub allowed: Vec<Allowed>,
    /// Addresses of the cluster's nodes: their doors are none of the container's.
    pub never: Vec<Ipv4Addr>,
    /// The node's own name server, which programs reach at [`RESOLVER`].
    pub resolver: Option<SocketAddrV4>,
}

impl Policy {
    /// The same, without what turns out to be an address of the node, in whose network the calling thread is.
    pub fn way_of_node(&self, to: SocketAddrV4) -> Option<SocketAddrV4> {
        let way = self.way(to)?;
        // The name server may well be one of the node.
        let is_fine = Some(way) == self.resolver || !is_own(*way.ip()).unwrap_or(true);
        is_fine.then_some(way)
    }

    /// Where something for an address goes. `None`: nowhere.
    pub fn way(&self, to: SocketAddrV4) -> Option<SocketAddrV4> {
        if *to.ip() == RESOLVER && to.port() == DNS {
            return self.resolver;
        }
        let may = !is_reserved(*to.ip()) && !self.never.contains(to.ip());
        (may && self.allowed.iter().any(|allowed| allowed.admits(&to))).then_some(to)
    }
}

/// What means the machine itself, its wire, several machines, or nobody.
fn is_reserved(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first == 0 || address.is_loopback() || address.is_link_local() || address.is_multicast() || first >= 240
}

/// Whether it is an address of the node itself, in whose network the calling thread is.
fn is_own(address: Ipv4Addr) -> io::Result<bool> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // Nothing is sent: the kernel chooses whose name it would be in, which is the own one for who speaks with himself.
    connect(&socket, &SocketAddrV4::new(address, DNS))?;
    let own = rustix::net::getsockname(&socket)?;
    Ok(SocketAddrV4::try_from(own).is_ok_and(|own| *own.ip() == address))
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
        own: SocketAddrV4,
        peer: SocketAddrV4,
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

    fn speak_as(&self, own: SocketAddrV4, peer: SocketAddrV4) -> io::Result<OwnedFd> {
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
}

/// Datagrams that leave and their answers, by numbers that the gate gives.
#[derive(Debug, Default)]
pub struct OutFlows(Recent<(SocketAddrV4, SocketAddrV4), OutFlow>);

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
        pair: (SocketAddrV4, SocketAddrV4),
        way: SocketAddrV4,
        datagram: &[u8],
        (now_ms, fresh): (u64, u64),
        insider: &Insider,
    ) -> io::Result<bool> {
        let known = self.0.number(&pair);
        let number = known.unwrap_or(fresh);
        if known.is_none() {
            let (from, to) = pair;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let outside = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
            connect(&outside, &way)?;
            let flow = OutFlow { inside: insider.speak_as(to, from)?, outside };
            self.0.insert(pair, fresh, flow, now_ms);
        }
        self.0.used(number, now_ms);
        if let Some(flow) = self.0.get(number) {
            let _ = send(&flow.outside, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        Ok(known.is_none())
    }

    /// Carries what came to one side to the other; at most so many datagrams.
    pub fn carry(&mut self, number: u64, side: FlowSide, buffer: &mut [u8], now_ms: u64, most: usize) {
        let Some(flow) = self.0.get(number) else { return };
        let mut has_carried = false;
        let (from, to) = match side {
            FlowSide::Inside => (&flow.inside, &flow.outside),
            FlowSide::Outside => (&flow.outside, &flow.inside),
        };
        for _ in 0..most {
            match recv(from, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => {
                    has_carried = true;
                    let datagram = buffer.get(..bytes).unwrap_or_default();
                    let _ = send(to, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
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
        let any = Allowed { network: Ipv4Addr::UNSPECIFIED, prefix_bits: 0, port: None };
        let policy = Policy {
            allowed: vec![any],
            never: vec![Ipv4Addr::new(192, 0, 2, 1)],
            resolver: Some("127.0.0.53:53".parse().unwrap()),
        };
        assert_eq!(way(&policy, "198.51.100.7:443").as_deref(), Some("198.51.100.7:443"));
        for never in
            ["127.0.0.1:22", "0.0.0.0:80", "169.254.169.254:80", "224.0.0.1:1", "255.255.255.255:9", "192.0.2.1:7420"]
        {
            assert_eq!(way(&policy, never), None, "{never}");
        }
        assert_eq!(way(&policy, &format!("{RESOLVER}:53")).as_deref(), Some("127.0.0.53:53"));
        assert_eq!(way(&policy, &format!("{RESOLVER}:80")), None);

        let some = |text: &str, prefix_bits, port| Allowed { network: text.parse().unwrap(), prefix_bits, port };
        let narrow = Policy {
            allowed: vec![some("10.0.0.0", 8, Some(5432)), some("198.51.100.7", 32, None)],
            ..Policy::default()
        };
        assert!(way(&narrow, "10.200.3.4:5432").is_some() && way(&narrow, "198.51.100.7:1").is_some());
        for refused in ["10.200.3.4:5433", "11.0.0.1:5432", "198.51.100.8:1", "169.254.0.53:53"] {
            assert_eq!(way(&narrow, refused), None, "{refused}");
        }
    }
}
