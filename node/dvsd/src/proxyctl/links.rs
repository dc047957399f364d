//! What proxies say of their links, as it is shown, and summed up for each node.

use std::collections::BTreeMap;
use std::time::Duration;

use abi::PairId;
use mgmt_api::{LinkInfo, LinkState};
use proxy_host::control;

/// As people are shown it.
pub fn info(pair: PairId, link: control::LinkStatus) -> LinkInfo {
    LinkInfo {
        peer: link.peer,
        pair: pair.number(),
        transport: link.transport,
        state: match link.state {
            control::LinkState::Up => LinkState::Up,
            control::LinkState::Suspect => LinkState::Suspect,
            control::LinkState::Broken => LinkState::Broken,
            control::LinkState::Down => LinkState::Down,
        },
        tls: link.tls,
        sent_frames: link.sent_frames,
        sent_bytes: link.sent_bytes,
        received_frames: link.received_frames,
        received_bytes: link.received_bytes,
        sent_messages: link.sent_messages,
        received_messages: link.received_messages,
        sent_entries: link.sent_entries,
        received_entries: link.received_entries,
        packed_from: link.packed_from,
        packed_to: link.packed_to,
        reconnects: link.reconnects,
        channels: link.channels,
        silent_ms: link.silent_ms,
        round_trip_us: link.round_trip_us,
        version: link.version,
        last_error: link.last_error,
        told_ms: None,
    }
}

/// What is left of it when the proxy said it so long ago and says nothing any more.
pub fn said_long_ago(link: &LinkInfo, age: Duration) -> LinkInfo {
    let told_ms = u64::try_from(age.as_millis()).ok();
    LinkInfo { state: LinkState::Unknown, told_ms, ..link.clone() }
}

/// A node is reached as long as it is by one link.
pub fn best_of_each(links: &[LinkInfo]) -> BTreeMap<String, LinkState> {
    let mut best: BTreeMap<String, LinkState> = BTreeMap::new();
    for link in links {
        let state = best.entry(link.peer.clone()).or_insert(link.state);
        if rank(link.state) < rank(*state) {
            *state = link.state;
        }
    }
    best
}

/// The better, the smaller.
fn rank(state: LinkState) -> u8 {
    match state {
        LinkState::Up => 0,
        LinkState::Suspect => 1,
        LinkState::Broken => 2,
        LinkState::Unknown => 3,
        LinkState::Down => 4,
    }
}

/// A node that is there, but not for everybody.
pub fn half_reached(links: &[LinkInfo]) -> Option<String> {
    let best = best_of_each(links);
    let is_half = |link: &&LinkInfo| link.state == LinkState::Down && best.get(&link.peer) != Some(&LinkState::Down);
    links.iter().find(is_half).map(|link| format!("no link of pair {} with {}", link.pair, link.peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(peer: &str, pair: u8, state: LinkState) -> LinkInfo {
        let text = format!(
            r#"{{"peer":"{peer}","pair":{pair},"transport":"tcp","state":"down","tls":true,"sent_frames":0,"sent_bytes":0,
                "received_frames":0,"received_bytes":0,"reconnects":0,"channels":0}}"#
        );
        LinkInfo { state, ..serde_json::from_str(&text).unwrap() }
    }

    #[test]
    fn node_is_reached_by_its_best_link_and_a_dead_one_beside_it_is_a_problem() {
        let links = [
            link("n2", 0, LinkState::Down),
            link("n2", 1, LinkState::Up),
            link("n3", 0, LinkState::Down),
            link("n3", 1, LinkState::Down),
            link("n4", 0, LinkState::Up),
            link("n4", 1, LinkState::Suspect),
        ];
        let best = best_of_each(&links);
        assert_eq!(best.into_values().collect::<Vec<_>>(), [LinkState::Up, LinkState::Down, LinkState::Up]);
        assert_eq!(half_reached(&links).as_deref(), Some("no link of pair 0 with n2"));
        assert_eq!(half_reached(&links[2..]), None);
    }
}
