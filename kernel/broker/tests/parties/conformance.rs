//! The promises of M3-IPC, with both peers on one node and with peers on two nodes.

use crate::common::{OneNode, TwoNodes};
use ipc::conformance::cases;

#[test]
fn peers_on_one_node_keep_every_promise() {
    for (name, case) in cases() {
        eprintln!("case: {name}");
        case(&OneNode::new());
    }
}

#[test]
fn peers_on_two_nodes_keep_every_promise() {
    for (name, case) in cases() {
        eprintln!("case: {name}");
        case(&TwoNodes::new());
    }
}

/// A node knows a caller by its first message, and forgets it with its last channel.
#[test]
fn copies_between_two_nodes_need_no_news_of_who_was_bound() {
    for (name, case) in cases().filter(|(name, _)| name.contains("cop")) {
        eprintln!("case: {name}");
        case(&TwoNodes::without_news());
    }
}

#[test]
fn peers_on_two_nodes_with_three_pairs_of_proxies_keep_every_promise() {
    for (name, case) in cases() {
        eprintln!("case: {name}");
        case(&TwoNodes::with_pairs(3));
    }
}
