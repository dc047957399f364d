//! Who waits for whom, and whether that goes round: the decisions of `docs/design/deadlock.md`.
//!
//! An endpoint waits in one call at a time, so the waits of a container form a graph in which every endpoint has at
//! most one edge out, and a chase never has to choose. A broker knows the waits of its own node; a chase that leaves it
//! travels as a [`Probe`].

use std::collections::HashMap;

use abi::Endpoint;

/// Endpoints in one cycle that is looked for. A longer one is not found.
pub const MEMBERS_MAX: usize = 64;

/// One wait of one endpoint, told from its earlier and later ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Waiting {
    pub endpoint: Endpoint,
    /// Which wait of the endpoint: never the same again while its binding lasts.
    pub serial: u32,
}

/// The waits of one node's endpoints.
#[derive(Debug, Default)]
pub struct Waits {
    of: HashMap<Endpoint, (u32, Endpoint)>,
}

impl Waits {
    pub fn begin(&mut self, who: Waiting, peer: Endpoint) {
        self.of.insert(who.endpoint, (who.serial, peer));
    }

    pub fn end(&mut self, who: Waiting) {
        if self.of.get(&who.endpoint).is_some_and(|(serial, _)| *serial == who.serial) {
            self.of.remove(&who.endpoint);
        }
    }

    /// The endpoint is bound no more.
    pub fn forget(&mut self, endpoint: Endpoint) {
        self.of.remove(&endpoint);
    }

    /// Every wait there is, with its peer.
    pub fn iter(&self) -> impl Iterator<Item = (Waiting, Endpoint)> {
        self.of.iter().map(|(endpoint, (serial, peer))| (Waiting { endpoint: *endpoint, serial: *serial }, *peer))
    }

    /// For whom `endpoint` waits.
    pub fn peer_of(&self, endpoint: Endpoint) -> Option<Endpoint> {
        self.of.get(&endpoint).map(|(_, peer)| *peer)
    }

    fn wait_of(&self, endpoint: Endpoint) -> Option<(Waiting, Endpoint)> {
        self.of.get(&endpoint).map(|(serial, peer)| (Waiting { endpoint, serial: *serial }, *peer))
    }
}

/// What a chase is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Round {
    /// The members are being collected.
    Collecting,
    /// They form a cycle; each is asked, in turn, whether it still waits. The number says who is next.
    Confirming(u8),
}

/// A chase along the waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    round: Round,
    members: Vec<Waiting>,
}

/// What is to be done with a probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// It goes on at the broker of this endpoint, with [`Probe::go_on`].
    Elsewhere(Endpoint),
    /// This endpoint, of this node, is to say whether it still waits; then [`Probe::confirmed`].
    Ask(Waiting),
    /// A deadlock: this member's call is to be refused.
    Refuse(Waiting),
    /// There is no deadlock, or it is no longer there.
    Ended,
}

impl Probe {
    pub const BYTES_MAX: usize = 2 + 8 * MEMBERS_MAX;

    /// A chase that begins with a wait.
    pub fn from(first: Waiting) -> Probe {
        Probe { round: Round::Collecting, members: vec![first] }
    }

    /// Goes on at `at`, an endpoint that may be of this node: `is_here` says which are.
    pub fn go_on(&mut self, at: Endpoint, waits: &Waits, is_here: impl Fn(Endpoint) -> bool) -> Step {
        match self.round {
            Round::Collecting => self.collect(at, waits, is_here),
            Round::Confirming(next) => self.ask(next, is_here),
        }
    }

    fn collect(&mut self, mut at: Endpoint, waits: &Waits, is_here: impl Fn(Endpoint) -> bool) -> Step {
        loop {
            if self.members.first().is_some_and(|first| first.endpoint == at) {
                self.round = Round::Confirming(0);
                return self.ask(0, is_here);
            }
            // A cycle that the first wait merely leads to is found by the chases of its members.
            if self.members.iter().any(|member| member.endpoint == at) || self.members.len() >= MEMBERS_MAX {
                return Step::Ended;
            }
            if !is_here(at) {
                return Step::Elsewhere(at);
            }
            let Some((wait, peer)) = waits.wait_of(at) else { return Step::Ended };
            self.members.push(wait);
            at = peer;
        }
    }

    fn ask(&self, next: u8, is_here: impl Fn(Endpoint) -> bool) -> Step {
        match self.members.get(usize::from(next)) {
            Some(member) if is_here(member.endpoint) => Step::Ask(*member),
            Some(member) => Step::Elsewhere(member.endpoint),
            None => {
                self.members.iter().max_by_key(|member| member.endpoint).map_or(Step::Ended, |it| Step::Refuse(*it))
            }
        }
    }

    /// `member` still waits.
    pub fn confirmed(&mut self, member: Waiting, is_here: impl Fn(Endpoint) -> bool) -> Step {
        match self.round {
            Round::Confirming(next) if self.members.get(usize::from(next)) == Some(&member) => {
                self.round = Round::Confirming(next + 1);
                self.ask(next + 1, is_here)
            }
            _ => Step::Ended,
        }
    }

    /// The round (255: collecting, else who is next), the number of members, then endpoint and serial of each,
    /// little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let round = match self.round {
            Round::Collecting => u8::MAX,
            Round::Confirming(next) => next,
        };
        let mut out = vec![round, self.members.len() as u8];
        for member in &self.members {
            out.extend(member.endpoint.number().to_le_bytes());
            out.extend(member.serial.to_le_bytes());
        }
        out
    }

    /// `None` for what [`Probe::to_bytes`] never wrote.
    pub fn from_bytes(bytes: &[u8]) -> Option<Probe> {
        let ([round, count], rest) = bytes.split_first_chunk()?;
        let (pairs, []) = rest.as_chunks::<8>() else { return None };
        if pairs.len() != usize::from(*count) || pairs.is_empty() || pairs.len() > MEMBERS_MAX {
            return None;
        }
        let round = match *round {
            u8::MAX => Round::Collecting,
            next if next <= *count => Round::Confirming(next),
            _ => return None,
        };
        let member = |pair: &[u8; 8]| {
            let [e0, e1, e2, e3, s0, s1, s2, s3] = *pair;
            let endpoint = Endpoint::new(u32::from_le_bytes([e0, e1, e2, e3]))?;
            Some(Waiting { endpoint, serial: u32::from_le_bytes([s0, s1, s2, s3]) })
        };
        Some(Probe { round, members: pairs.iter().map(member).collect::<Option<_>>()? })
    }
}

const _: () = assert!(MEMBERS_MAX < u8::MAX as usize);
const _: () = assert!(Probe::BYTES_MAX <= abi::limits::PRIVILEGES_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint(number: u32) -> Endpoint {
        Endpoint::new(number).unwrap()
    }

    /// Brokers of several nodes, each with the waits of its own endpoints: node of an endpoint is its number modulo.
    struct Cluster {
        nodes: Vec<Waits>,
        asked: usize,
    }

    impl Cluster {
        fn new(nodes: usize) -> Cluster {
            Cluster { nodes: (0..nodes).map(|_| Waits::default()).collect(), asked: 0 }
        }

        fn node_of(&self, of: Endpoint) -> usize {
            of.number() as usize % self.nodes.len()
        }

        fn begin(&mut self, who: u32, peer: u32) {
            let node = self.node_of(endpoint(who));
            self.nodes[node].begin(Waiting { endpoint: endpoint(who), serial: 1 }, endpoint(peer));
        }

        /// Chases from a wait; whoever is asked confirms when `is_waiting` says so.
        fn chase(&mut self, from: u32, is_waiting: impl Fn(Endpoint) -> bool) -> Option<Endpoint> {
            let (first, peer) = self.nodes[self.node_of(endpoint(from))].wait_of(endpoint(from))?;
            let mut probe = Probe::from(first);
            let mut node = self.node_of(first.endpoint);
            let count = self.nodes.len();
            let here = |node: usize| move |of: Endpoint| of.number() as usize % count == node;
            let mut step = probe.go_on(peer, &self.nodes[node], here(node));
            loop {
                step = match step {
                    Step::Elsewhere(at) => {
                        node = self.node_of(at);
                        probe = Probe::from_bytes(&probe.to_bytes()).unwrap();
                        probe.go_on(at, &self.nodes[node], here(node))
                    }
                    Step::Ask(member) if is_waiting(member.endpoint) => {
                        self.asked += 1;
                        probe.confirmed(member, here(node))
                    }
                    Step::Ask(_) | Step::Ended => return None,
                    Step::Refuse(member) => return Some(member.endpoint),
                };
            }
        }
    }

    #[test]
    fn highest_endpoint_of_a_cycle_over_nodes_is_refused_after_all_confirmed() {
        let mut cluster = Cluster::new(2);
        for (who, peer) in [(300, 301), (301, 303), (303, 300), (305, 300)] {
            cluster.begin(who, peer);
        }
        assert_eq!(cluster.chase(301, |_| true), Some(endpoint(303)));
        assert_eq!(cluster.asked, 3);
        assert_eq!(cluster.chase(305, |_| true), None, "305 merely waits for the cycle");
        assert_eq!(cluster.chase(301, |of| of != endpoint(300)), None, "one of them went on");
    }

    #[test]
    fn end_of_an_older_wait_does_not_end_a_newer_one() {
        let mut waits = Waits::default();
        let wait = |serial| Waiting { endpoint: endpoint(300), serial };
        waits.begin(wait(1), endpoint(301));
        waits.begin(wait(2), endpoint(302));
        waits.end(wait(1));
        assert_eq!(waits.wait_of(endpoint(300)), Some((wait(2), endpoint(302))));
        waits.end(wait(2));
        assert_eq!(waits.wait_of(endpoint(300)), None);
    }

    proptest! {
        /// A cycle is found from each of its members and from nobody else.
        #[test]
        fn chase_finds_exactly_the_cycles(
            edges in proptest::collection::vec(0..24_u32, 24), nodes in 1..5_usize
        ) {
            let mut cluster = Cluster::new(nodes);
            let next: Vec<u32> = edges.iter().enumerate().map(|(who, to)| if who as u32 == *to { 24 } else { *to }).collect();
            for (who, to) in next.iter().enumerate() {
                cluster.begin(who as u32, *to);
            }
            for from in 0..24_u32 {
                let (mut at, mut highest) = (from, from);
                let mut is_in_cycle = false;
                for _ in 0..24 {
                    at = *next.get(at as usize).unwrap_or(&24);
                    if at == from {
                        is_in_cycle = true;
                        break;
                    }
                    highest = highest.max(at);
                }
                let expected = is_in_cycle.then(|| endpoint(highest));
                prop_assert_eq!(cluster.chase(from, |_| true), expected);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic_and_what_is_read_writes_the_same(
            bytes in proptest::collection::vec(any::<u8>(), 0..40)
        ) {
            if let Some(probe) = Probe::from_bytes(&bytes) {
                prop_assert_eq!(probe.to_bytes(), bytes);
            }
        }
    }
}
