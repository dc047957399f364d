//! The proxies of this node, and which of their links stand. Knows nodes and pairs, not endpoints.
//!
//! Proxy k of this node speaks with proxies k only. A node counts as down when all the pairs that this node has with it
//! are.

use std::collections::HashSet;

use abi::limits::{NODES_PER_CLUSTER, PAIRS_MAX};
use abi::{NodeId, PairId};
use ipc::info::ProxyState;
use ipc_core::table::OwnerId;

/// Every link there may be.
const LINKS_MAX: usize = NODES_PER_CLUSTER as usize * PAIRS_MAX as usize;

#[derive(Debug, Default)]
pub(crate) struct Links {
    proxies: [Option<OwnerId>; PAIRS_MAX as usize],
    /// Links that stand by word of the proxy that is there now.
    up: HashSet<(NodeId, PairId)>,
    /// Links that were given up. One of which nothing was said may still come.
    down: HashSet<(NodeId, PairId)>,
    /// Nodes with which there was a link, and that are not down since.
    met: HashSet<NodeId>,
}

impl Links {
    pub fn proxy(&self, pair: PairId) -> Option<OwnerId> {
        self.proxies.get(usize::from(pair.number())).copied().flatten()
    }

    pub fn has_any_proxy(&self) -> bool {
        self.proxies.iter().any(Option::is_some)
    }

    pub fn pair_of(&self, proxy: OwnerId) -> Option<PairId> {
        PairId::all(PAIRS_MAX).find(|pair| self.proxy(*pair) == Some(proxy))
    }

    /// `proxy` is that of its pair from now on. Answers who was before; his links are nobody's.
    pub fn set_proxy(&mut self, pair: PairId, proxy: OwnerId) -> Option<OwnerId> {
        self.put(pair, Some(proxy))
    }

    /// A connection is gone. If it was a proxy's, its channels stay for its successor; answers the nodes to which
    /// another pair leads from now on.
    pub fn lost(&mut self, owner: OwnerId) -> Vec<NodeId> {
        let Some(pair) = self.pair_of(owner) else { return Vec::new() };
        let led = |node: &NodeId| self.route(*node) == Some(pair);
        let mut nodes: Vec<NodeId> = self.up.iter().filter(|(_, of)| *of == pair).map(|(node, _)| *node).collect();
        nodes.retain(led);
        self.put(pair, None);
        nodes.retain(|node| self.route(*node).is_some_and(|other| self.up.contains(&(*node, other))));
        nodes
    }

    fn put(&mut self, pair: PairId, proxy: Option<OwnerId>) -> Option<OwnerId> {
        let place = self.proxies.get_mut(usize::from(pair.number()))?;
        self.up.retain(|(_, of)| *of != pair);
        std::mem::replace(place, proxy)
    }

    /// Which pair takes what brokers say to each other: the lowest that is up. With none there is still a proxy, which
    /// loses it.
    pub fn route(&self, node: NodeId) -> Option<PairId> {
        let manned = || PairId::all(PAIRS_MAX).filter(|pair| self.proxy(*pair).is_some());
        manned().find(|pair| self.up.contains(&(node, *pair))).or_else(|| manned().next())
    }

    /// Whether it had been given up.
    pub fn came_up(&mut self, node: NodeId, pair: PairId) -> bool {
        if self.up.len() < LINKS_MAX {
            self.up.insert((node, pair));
        }
        if self.met.len() < usize::from(NODES_PER_CLUSTER) {
            self.met.insert(node);
        }
        self.down.remove(&(node, pair))
    }

    /// Whether there was room to remember it. `pairs`: how many there are with this node.
    pub fn went_down(&mut self, node: NodeId, pair: PairId, pairs: u8) -> bool {
        self.up.remove(&(node, pair));
        let has_room = self.down.len() < LINKS_MAX;
        if has_room {
            self.down.insert((node, pair));
        }
        if self.is_down(node, pairs) {
            self.met.remove(&node);
        }
        has_room
    }

    /// Whether all of its pairs are.
    pub fn is_down(&self, node: NodeId, pairs: u8) -> bool {
        PairId::all(pairs).all(|pair| self.is_pair_down(node, pair))
    }

    pub fn is_pair_down(&self, node: NodeId, pair: PairId) -> bool {
        self.down.contains(&(node, pair))
    }

    pub fn state(&self, node: NodeId, pair: PairId) -> ProxyState {
        if self.is_pair_down(node, pair) {
            ProxyState::Down
        } else if self.up.contains(&(node, pair)) {
            ProxyState::Up
        } else {
            ProxyState::Unknown
        }
    }

    pub fn all_down(&self) -> Vec<(NodeId, PairId)> {
        self.down.iter().copied().collect()
    }

    /// What an earlier broker knew.
    pub fn adopt_down(&mut self, node: NodeId, pair: PairId) {
        self.down.insert((node, pair));
    }

    pub fn met(&self) -> impl Iterator<Item = NodeId> {
        self.met.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);

    fn pair(number: u8) -> PairId {
        PairId::new(number).unwrap()
    }

    fn of_three() -> Links {
        let mut links = Links::default();
        for number in 0..3 {
            links.set_proxy(pair(number), OwnerId(u64::from(number) + 10));
            links.came_up(NODE, pair(number));
        }
        links
    }

    #[test]
    fn node_is_down_with_the_last_of_its_pairs_and_no_more_with_the_first_that_comes_back() {
        let mut links = of_three();
        for number in 0..3 {
            assert!(!links.is_down(NODE, 3) && links.met().count() == 1);
            links.went_down(NODE, pair(number), 3);
        }
        assert!(links.is_down(NODE, 3) && links.met().count() == 0);
        assert!(links.came_up(NODE, pair(1)), "it had been given up");
        assert!(!links.is_down(NODE, 3) && links.is_pair_down(NODE, pair(0)));
        // The other node has fewer pairs now.
        assert!(links.is_down(NODE, 1));
    }

    #[test]
    fn what_brokers_say_goes_by_the_lowest_pair_that_is_up() {
        let mut links = of_three();
        assert_eq!(links.route(NODE), Some(pair(0)));
        links.went_down(NODE, pair(0), 3);
        assert_eq!(links.route(NODE), Some(pair(1)));
        // Its proxy is killed; the next one's links are not up before it says so.
        assert_eq!(links.lost(OwnerId(11)), [NODE]);
        links.set_proxy(pair(1), OwnerId(20));
        assert_eq!(links.route(NODE), Some(pair(2)));
        assert!(links.lost(OwnerId(20)).is_empty(), "nothing went by it");
        links.came_up(NODE, pair(0));
        assert_eq!(links.route(NODE), Some(pair(0)));
    }

    #[test]
    fn without_any_link_there_is_a_proxy_still_and_without_proxies_none() {
        let mut links = Links::default();
        assert_eq!(links.route(NODE), None);
        links.set_proxy(pair(1), OwnerId(1));
        assert_eq!(links.route(NODE), Some(pair(1)));
        assert_eq!(links.set_proxy(pair(1), OwnerId(2)), Some(OwnerId(1)));
        assert_eq!(links.pair_of(OwnerId(2)), Some(pair(1)));
        links.lost(OwnerId(2));
        assert!(!links.has_any_proxy());
    }
}
