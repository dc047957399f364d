//! Which node of the container takes a connection. Pure: what became of attempts in, what to do out.
//!
//! Nobody says where somebody listens: a connection is tried. A port at which nobody listens refuses at once, so the
//! own node is asked first, then those that took a connection when they were asked last, in turn, then the others. A
//! node that says nothing is given [`STAGGER_MS`], then the next one is asked beside it. A node with IPv6 is asked at
//! both of its addresses, for a program may listen at one of them alone; first at the one that took a connection last,
//! else at that of IPv4. When all have refused the client is kept for [`HOLD_MS`]: a listener that moves, or begins
//! anew, is there again within that time.

use std::net::IpAddr;

use vos_api::ports::{NodeAddress, NodeAddresses};

/// What a silent node is waited for before the next one is asked, too.
pub const STAGGER_MS: u64 = 250;
/// From the client's arrival on, for somebody to listen.
pub const HOLD_MS: u64 = 1_000;
/// Between two rounds of questions.
pub const ROUND_MS: u64 = 25;
/// From the client's arrival on, for a node to answer.
pub const LIMIT_MS: u64 = 5_000;

/// Attempts for one client.
#[derive(Debug)]
pub struct Dial {
    order: Vec<IpAddr>,
    /// Place in the order of the next attempt.
    next: usize,
    /// That were over without success.
    rounds: u64,
    arrived_ms: u64,
    /// How long all are asked again and again.
    hold_ms: u64,
    /// When the last attempt began, or the last round ended.
    since_ms: u64,
    underway: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DialStep {
    Try(IpAddr),
    /// Until then, or until something becomes of an attempt.
    Wait {
        until_ms: u64,
    },
    /// Nobody listens, or whoever might says nothing.
    GiveUp,
}

impl Dial {
    pub fn new(order: Vec<IpAddr>, now_ms: u64) -> Dial {
        Dial { order, next: 0, rounds: 0, arrived_ms: now_ms, hold_ms: HOLD_MS, since_ms: now_ms, underway: 0 }
    }

    /// The one that is meant, who is asked once.
    pub fn one(target: IpAddr, now_ms: u64) -> Dial {
        Dial { hold_ms: 0, ..Dial::new(vec![target], now_ms) }
    }

    /// What to do now; asked again after each step and each answer.
    pub fn step(&mut self, now_ms: u64) -> DialStep {
        let limit_ms = self.arrived_ms + LIMIT_MS;
        if now_ms >= limit_ms {
            return DialStep::GiveUp;
        }
        let Some(target) = self.order.get(self.next).copied() else {
            return if self.underway > 0 { DialStep::Wait { until_ms: limit_ms } } else { DialStep::GiveUp };
        };
        let begins_round = self.next == 0 && self.rounds > 0;
        if begins_round && now_ms >= self.arrived_ms + self.hold_ms {
            return DialStep::GiveUp;
        }
        let may_begin_ms = match (self.underway > 0, begins_round) {
            (true, _) => self.since_ms + STAGGER_MS,
            (false, true) => self.since_ms + ROUND_MS,
            (false, false) => now_ms,
        };
        if now_ms < may_begin_ms {
            return DialStep::Wait { until_ms: may_begin_ms.min(limit_ms) };
        }
        self.next += 1;
        self.underway += 1;
        self.since_ms = now_ms;
        DialStep::Try(target)
    }

    /// An attempt came to nothing.
    pub fn refused(&mut self, now_ms: u64) {
        self.underway = self.underway.saturating_sub(1);
        if self.underway == 0 && self.next >= self.order.len() {
            self.next = 0;
            self.rounds += 1;
            self.since_ms = now_ms;
        }
    }
}

/// How often one of those that did not listen is asked before those that do: it may have begun.
const CURIOSITY: usize = 32;

/// Who listens at one port inside, as far as is known.
#[derive(Debug, Default)]
pub struct Listening {
    addresses: Vec<IpAddr>,
    turn: usize,
}

impl Listening {
    pub fn took(&mut self, address: IpAddr) {
        if !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
    }

    pub fn refused(&mut self, address: IpAddr) {
        self.addresses.retain(|known| *known != address);
    }

    /// In which order addresses of nodes are asked for a connection.
    pub fn order(&mut self, nodes: &NodeAddresses) -> Vec<IpAddr> {
        self.turn = self.turn.wrapping_add(1);
        self.addresses.retain(|known| nodes.nodes().flat_map(NodeAddress::all).any(|address| address == *known));
        let known = |node: &NodeAddress| node.all().find(|address| self.addresses.contains(address));
        let at_first = |node: &NodeAddress| known(node).unwrap_or(node.ipv4.into());
        let (mut listen, mut others): (Vec<NodeAddress>, Vec<NodeAddress>) =
            nodes.others.iter().partition(|other| known(other).is_some());
        for some in [&mut listen, &mut others] {
            let first = self.turn % some.len().max(1);
            some.rotate_left(first);
        }
        let (first, second) = if self.turn.is_multiple_of(CURIOSITY) { (&others, &listen) } else { (&listen, &others) };
        // Of the own node both: it costs next to nothing.
        let mut order = vec![at_first(&nodes.own)];
        order.extend(nodes.own.all().find(|address| !order.contains(address)));
        order.extend(first.iter().chain(second).map(at_first));
        // At last where the others did not listen when they listened at all.
        let both = others.iter().chain(&listen).flat_map(|node| node.all());
        let rest: Vec<IpAddr> = both.filter(|address| !order.contains(address)).collect();
        order.extend(rest);
        order
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2));
    const C: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 3));
    const D: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 4));

    fn node(address: IpAddr) -> NodeAddress {
        let IpAddr::V4(ipv4) = address else { panic!("{address}") };
        ipv4.into()
    }

    /// Each target says yes (`Some`, after so many milliseconds) or no (likewise), or nothing.
    #[derive(Clone, Copy)]
    enum Says {
        Yes(u64),
        No(u64),
        Nothing,
    }

    /// Who took the connection, and when; or when it was given up.
    fn played(says: &[(IpAddr, Says)]) -> (Option<IpAddr>, u64) {
        let mut dial = Dial::new(says.iter().map(|(node, _)| *node).collect(), 0);
        let mut coming: Vec<(u64, IpAddr, bool)> = Vec::new();
        let mut now = 0;
        loop {
            coming.sort();
            while let Some((at, node, yes)) = coming.first().copied().filter(|(at, ..)| *at <= now) {
                coming.remove(0);
                if yes {
                    return (Some(node), at);
                }
                dial.refused(now);
            }
            match dial.step(now) {
                DialStep::Try(node) => match says.iter().find(|(one, _)| *one == node).unwrap().1 {
                    Says::Yes(after) => coming.push((now + after, node, true)),
                    Says::No(after) => coming.push((now + after, node, false)),
                    Says::Nothing => (),
                },
                DialStep::Wait { until_ms } => {
                    let next = coming.iter().map(|(at, ..)| *at).min().unwrap_or(u64::MAX);
                    now = until_ms.min(next).max(now + 1);
                }
                DialStep::GiveUp => return (None, now),
            }
        }
    }

    #[test]
    fn first_who_listens_has_it_and_refusals_cost_no_time() {
        assert_eq!(played(&[(A, Says::Yes(0)), (B, Says::Yes(0))]), (Some(A), 0));
        assert_eq!(played(&[(A, Says::No(0)), (B, Says::No(1)), (C, Says::Yes(1))]), (Some(C), 2));
    }

    #[test]
    fn silent_node_costs_a_moment() {
        assert_eq!(played(&[(A, Says::No(0)), (B, Says::Nothing), (C, Says::Yes(1))]), (Some(C), STAGGER_MS + 1));
        // It may say so late.
        assert_eq!(played(&[(B, Says::Yes(STAGGER_MS + 5)), (C, Says::Nothing)]), (Some(B), STAGGER_MS + 5));
        assert_eq!(played(&[(B, Says::Nothing), (C, Says::Nothing)]), (None, LIMIT_MS));
    }

    #[test]
    fn client_is_kept_for_a_second_while_nobody_listens() {
        let (node, at) = played(&[(A, Says::No(0)), (B, Says::No(1))]);
        assert_eq!(node, None);
        assert!((HOLD_MS..HOLD_MS + ROUND_MS + 2).contains(&at), "{at}");
        assert_eq!(played(&[]), (None, 0));
    }

    #[test]
    fn all_are_asked_again_in_each_round() {
        let mut dial = Dial::new(vec![A, B], 0);
        let mut tried = Vec::new();
        for now in 0..=ROUND_MS + 5 {
            while let DialStep::Try(node) = dial.step(now) {
                tried.push(node);
                dial.refused(now);
            }
        }
        assert_eq!(tried, [A, B, A, B]);
    }

    #[test]
    fn own_node_comes_first_then_those_that_listen_in_turn_then_the_others() {
        let nodes = NodeAddresses { own: node(A), others: [B, C, D].map(node).to_vec() };
        let mut listening = Listening::default();
        let thirds: Vec<IpAddr> = (1..9).map(|_| listening.order(&nodes)[1]).collect();
        assert!([B, C, D].iter().all(|node| thirds.contains(node)), "{thirds:?}");
        listening.took(D);
        listening.took(B);
        let orders: Vec<Vec<IpAddr>> = (9..32).map(|_| listening.order(&nodes)).collect();
        assert!(orders.iter().all(|order| order[0] == A && order[3] == C), "{orders:?}");
        assert!([B, D].iter().all(|node| orders.iter().any(|order| order[1] == *node)), "{orders:?}");
        assert_eq!(listening.order(&nodes)[1], C, "now and then");
        listening.refused(B);
        assert_eq!(listening.order(&nodes)[1], D);
        let alone = NodeAddresses { own: node(A), others: Vec::new() };
        assert_eq!(listening.order(&alone), [A], "a node that is gone is not asked");
    }

    #[test]
    fn nodes_are_asked_at_both_addresses_and_where_they_listened_first() {
        let six = |address: IpAddr| {
            let IpAddr::V4(address) = address else { panic!("{address}") };
            IpAddr::V6(Ipv6Addr::new(0xfd64, 0x7673, 0, 7, 0, 0, 0, address.octets()[3].into()))
        };
        let both = |address: IpAddr| {
            let IpAddr::V6(ipv6) = six(address) else { panic!("{address}") };
            NodeAddress { ipv6: Some(ipv6), ..node(address) }
        };
        let nodes = NodeAddresses { own: both(A), others: vec![both(B), node(C), both(D)] };
        let mut listening = Listening::default();
        let order = listening.order(&nodes);
        assert_eq!((order[0], order[1], order.len()), (A, six(A), 7), "{order:?}");
        assert!([B, C, D].iter().all(|address| order[2..5].contains(address)), "{order:?}");
        listening.took(six(A));
        listening.took(six(D));
        let order = listening.order(&nodes);
        assert_eq!(order[..3], [six(A), A, six(D)]);
        assert!([B, C].iter().all(|address| order[3..5].contains(address)), "{order:?}");
        assert_eq!(order[5..], [six(B), D]);
        // It listens elsewhere now.
        listening.refused(six(D));
        listening.took(D);
        assert_eq!(listening.order(&nodes)[2], D);
        listening.took(six(D));
        assert_eq!(listening.order(&nodes).iter().filter(|address| [D, six(D)].contains(address)).count(), 2);
        // Without IPv6 nobody is asked by it.
        assert!(listening.order(&nodes.without_ipv6()).iter().all(IpAddr::is_ipv4));
    }
}
