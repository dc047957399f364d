//! The nodes this proxy keeps links with.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use abi::{Epoch, NodeId, PairId};
use proxy_link::{Identity, LinkTimes, Peer, Phase};

use crate::carriers::{Carrier, Carriers};
use crate::control::{LinkState, LinkStatus, PeerAddress, beginning};
use crate::error::CutReason;
use crate::limits;
use crate::local::Local;
use crate::lz4::Lz4;
use crate::transport::{Compression, Encryption};

/// Where a node is dialled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) carrier: Carrier,
    pub(crate) text: String,
}

/// How a node is to be encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Protection {
    pub(crate) encryption: Encryption,
    /// Over what it may come without, if at all; `None`: over everything.
    plain_over: Option<Vec<Carrier>>,
}

impl Protection {
    #[cfg(test)]
    pub(crate) fn everywhere() -> Protection {
        Protection { encryption: Encryption::Tls, plain_over: None }
    }

    /// Whether a node that came in this way is believed. One who came without encryption may be anybody that reaches
    /// the carrier.
    pub(crate) fn lets_in(&self, came: Encryption, over: Carrier) -> bool {
        let may_be_plain = || self.plain_over.as_ref().is_none_or(|carriers| carriers.contains(&over));
        came == Encryption::Tls || self.encryption == Encryption::Plain && may_be_plain()
    }
}

/// One node and how to reach it.
pub(crate) struct Entry {
    pub(crate) peer: Peer<Local>,
    pub(crate) address: Address,
    pub(crate) protection: Protection,
    /// The connection that is being dialled or carries the link.
    pub(crate) token: Option<u64>,
    pub(crate) next_dial: Duration,
    pause: Duration,
    pub(crate) last_error: Option<String>,
}

impl Entry {
    pub(crate) fn new(
        identity: Identity,
        address: Address,
        protection: Protection,
        common: &Common,
        now: Duration,
    ) -> Entry {
        let mut peer = Peer::new(common.me.clone(), common.incarnation, identity, common.times, now);
        peer.set_pair(common.pair);
        peer.count_connections_from(common.first_connection(now));
        if common.compression == Compression::Lz4 {
            peer.pack_with(Box::new(Lz4::default()));
        }
        Entry { peer, address, protection, token: None, next_dial: now, pause: limits::REDIAL_MIN, last_error: None }
    }

    /// The connection failed or ended.
    pub(crate) fn lost(&mut self, now: Duration, why: &CutReason) {
        if self.peer.phase() == Phase::Up {
            self.pause = limits::REDIAL_MIN;
        }
        self.peer.cut();
        self.token = None;
        self.last_error = Some(why.in_full());
        self.next_dial = now + if why.is_of_versions() { limits::REDIAL_OTHER_RELEASE } else { self.pause };
        self.pause = (self.pause * 2).min(limits::REDIAL_MAX);
    }

    /// `measured`: a round trip by word of the transport, for a link whose heartbeats have not told one.
    pub(crate) fn status(
        &self,
        now: Duration,
        transport: &str,
        encryption: Encryption,
        measured: Option<Duration>,
    ) -> LinkStatus {
        let counters = self.peer.counters();
        let state = match self.peer.phase() {
            _ if self.peer.is_given_up() => LinkState::Down,
            Phase::Up if self.peer.is_suspected() => LinkState::Suspect,
            Phase::Up => LinkState::Up,
            _ if counters.connections == 0 => LinkState::Down,
            _ => LinkState::Broken,
        };
        let silent = (self.peer.phase() != Phase::Apart).then(|| self.peer.silence(now).as_millis() as u64);
        LinkStatus {
            peer: self.peer.identity().node.clone(),
            id: self.peer.identity().id.0,
            state,
            transport: transport.to_owned(),
            tls: encryption == Encryption::Tls,
            sent_frames: counters.sent_frames,
            sent_bytes: counters.sent_bytes,
            received_frames: counters.received_frames,
            received_bytes: counters.received_bytes,
            sent_messages: counters.sent_messages,
            received_messages: counters.received_messages,
            sent_entries: counters.sent_entries,
            received_entries: counters.received_entries,
            packed_from: counters.packed_from,
            packed_to: counters.packed_to,
            reconnects: counters.connections.saturating_sub(1),
            channels: self.peer.channel_count() as u32,
            silent_ms: silent,
            round_trip_us: self.peer.round_trip().or(measured).map(|time| time.as_micros() as u64),
            version: self.peer.version(),
            last_error: self.last_error.clone(),
        }
    }
}

/// What is the same for all links.
pub(crate) struct Common {
    pub(crate) me: Identity,
    pub(crate) incarnation: Epoch,
    pub(crate) pair: PairId,
    pub(crate) times: LinkTimes,
    pub(crate) encryption: Encryption,
    pub(crate) can_encrypt: bool,
    pub(crate) compression: Compression,
    /// When this proxy began, in microseconds: grows over the lives of this node's proxies.
    pub(crate) began: u64,
}

impl Common {
    /// From where connections of a peer that is made now are counted: above all of an earlier peer of that node, here
    /// or in an earlier proxy, because a connection takes longer than a microsecond.
    fn first_connection(&self, now: Duration) -> u64 {
        self.began.saturating_add(now.as_micros() as u64)
    }
}

/// What has to follow from a new list.
pub(crate) struct Changes {
    pub(crate) added: Vec<NodeId>,
    pub(crate) removed: Vec<Entry>,
    /// Their connection goes to an address that is no longer theirs.
    pub(crate) moved: Vec<NodeId>,
    /// What of the list was passed over, for people.
    pub(crate) refused: Option<String>,
}

pub(crate) type Table = HashMap<NodeId, Entry>;

/// Makes the table equal to the daemon's list. An entry that cannot be is passed over: a node that is known by it keeps
/// the address it has, and no other node misses its link for it.
///
/// # Errors
/// Nothing was changed; the text says what is wrong with the list.
pub(crate) fn update(
    table: &mut Table,
    list: &[PeerAddress],
    common: &Common,
    carriers: &Carriers,
    now: Duration,
) -> Result<Changes, String> {
    if list.len() > limits::PEERS_MAX {
        return Err(format!("{} peers are more than the limit of {}", list.len(), limits::PEERS_MAX));
    }
    let mut refused = Vec::new();
    let wanted = check(list, common, carriers, &mut refused);
    let named: HashSet<(u16, &str)> = list.iter().map(|peer| (peer.id, peer.name.as_str())).collect();
    let refused = told(&refused);
    let mut changes = Changes { added: Vec::new(), removed: Vec::new(), moved: Vec::new(), refused };
    let gone = |(node, entry): (&NodeId, &Entry)| {
        let name = entry.peer.identity().node.as_str();
        let same = match wanted.get(node) {
            Some((wanted, ..)) => *wanted == name,
            None => named.contains(&(node.0, name)),
        };
        (!same).then_some(*node)
    };
    let gone: Vec<NodeId> = table.iter().filter_map(gone).collect();
    changes.removed.extend(gone.iter().filter_map(|node| table.remove(node)));
    for (node, (name, address, protection)) in wanted {
        match table.get_mut(&node) {
            Some(entry) if entry.address == address && entry.protection == protection => {}
            Some(entry) => {
                (entry.address, entry.protection) = (address, protection);
                changes.moved.push(node);
            }
            None => {
                let identity = Identity { cluster: common.me.cluster.clone(), node: name.to_owned(), id: node };
                table.insert(node, Entry::new(identity, address, protection, common, now));
                changes.added.push(node);
            }
        }
    }
    Ok(changes)
}

type Wanted<'a> = HashMap<NodeId, (&'a str, Address, Protection)>;

/// The entries that can be; why others cannot goes to `refused`.
fn check<'a>(list: &'a [PeerAddress], common: &Common, carriers: &Carriers, refused: &mut Vec<String>) -> Wanted<'a> {
    let mut wanted = HashMap::new();
    for peer in list {
        match check_one(peer, common, carriers) {
            Err(why) => refused.push(why),
            Ok(_) if wanted.contains_key(&NodeId(peer.id)) => {
                refused.push(format!("number {} of peer '{}' is given twice", peer.id, peer.name));
            }
            Ok((address, protection)) => {
                wanted.insert(NodeId(peer.id), (peer.name.as_str(), address, protection));
            }
        }
    }
    wanted
}

fn check_one(peer: &PeerAddress, common: &Common, carriers: &Carriers) -> Result<(Address, Protection), String> {
    if peer.id == 0 || peer.id == common.me.id.0 || peer.name.len() > abi::limits::NAME_BYTES_MAX {
        return Err(format!("peer '{}' with number {} cannot be", peer.name, peer.id));
    }
    let encryption = match peer.tls {
        None => common.encryption,
        Some(true) => Encryption::Tls,
        Some(false) => Encryption::Plain,
    };
    if encryption == Encryption::Tls && !common.can_encrypt {
        return Err(format!("the link with '{}' is to be encrypted, and this node has no certificates", peer.name));
    }
    // One that this proxy has not lets nobody in.
    let carriers_of = |names: &Vec<String>| names.iter().filter_map(|name| carriers.named(Some(name))).collect();
    let plain_over = peer.plain_over.as_ref().map(carriers_of);
    Ok((address_of(peer, carriers)?, Protection { encryption, plain_over }))
}

fn address_of(peer: &PeerAddress, carriers: &Carriers) -> Result<Address, String> {
    let name = peer.transport.as_deref();
    let carrier = carriers.named(name).ok_or_else(|| {
        format!(
            "the link with '{}' needs transport '{}', which this proxy has not",
            peer.name,
            name.unwrap_or_default()
        )
    })?;
    carriers.check(carrier, &peer.addr).map_err(|why| format!("address of peer '{}': {why}", peer.name))?;
    Ok(Address { carrier, text: peer.addr.clone() })
}

/// In one line, of which the daemon can take more than the state of all links beside.
fn told(refused: &[String]) -> Option<String> {
    let shortened = refused.iter().map(|why| beginning(why, limits::REFUSAL_BYTES_MAX));
    let first = shortened.take(limits::REFUSALS_TOLD);
    let mut text = first.collect::<Vec<_>>().join("; ");
    if let Some(more) = refused.len().checked_sub(limits::REFUSALS_TOLD).filter(|more| *more > 0) {
        text.push_str(&format!("; and {more} more"));
    }
    (!refused.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::transport::Tcp;

    const ADDRESS: &str = "127.0.0.1:7421";

    struct World {
        table: Table,
        common: Common,
        carriers: Carriers,
        now: Duration,
    }

    impl World {
        fn new() -> World {
            let tcp = Tcp::new(TcpListener::bind("127.0.0.1:0").expect("a port")).expect("tcp");
            World {
                table: Table::new(),
                common: Common {
                    me: Identity { cluster: "c1".to_owned(), node: "n1".to_owned(), id: NodeId(1) },
                    incarnation: Epoch(1),
                    pair: PairId::FIRST,
                    times: LinkTimes::default(),
                    encryption: Encryption::Plain,
                    can_encrypt: false,
                    compression: Compression::Off,
                    began: 1_000_000,
                },
                carriers: Carriers::new(vec![Box::new(tcp)]).expect("carriers"),
                now: Duration::ZERO,
            }
        }

        fn update(&mut self, list: &[PeerAddress]) -> Changes {
            update(&mut self.table, list, &self.common, &self.carriers, self.now).expect("not too long")
        }

        fn known(&self) -> Vec<u16> {
            let mut known: Vec<u16> = self.table.keys().map(|node| node.0).collect();
            known.sort_unstable();
            known
        }

        /// Dials node 2: the number of the connection in HELLO.
        fn dial(&mut self) -> u64 {
            let peer = &mut self.table.get_mut(&NodeId(2)).expect("known").peer;
            peer.cut();
            peer.dialled(self.now);
            let Ok(wire::Frame::Hello(hello)) = wire::Frame::decode(peer.outgoing().pending()) else { panic!("HELLO") };
            hello.connection
        }
    }

    fn peer(id: u16) -> PeerAddress {
        PeerAddress {
            name: format!("n{id}"),
            id,
            transport: None,
            addr: ADDRESS.to_owned(),
            tls: None,
            plain_over: None,
        }
    }

    #[test]
    fn entry_that_cannot_be_is_named_and_the_others_are_taken() {
        let bad = [
            PeerAddress { addr: "nowhere".to_owned(), ..peer(3) },
            PeerAddress { transport: Some("pigeon".to_owned()), ..peer(3) },
            PeerAddress { tls: Some(true), ..peer(3) },
            PeerAddress { id: 1, ..peer(3) },
            PeerAddress { id: 2, ..peer(3) },
        ];
        for bad in bad {
            let mut world = World::new();
            let changes = world.update(&[peer(2), bad.clone(), peer(4)]);
            assert_eq!(world.known(), [2, 4], "{bad:?}");
            let refused = changes.refused.expect("told");
            assert!(refused.contains("'n3'"), "{refused}");
        }
    }

    #[test]
    fn node_whose_new_address_cannot_be_used_keeps_the_one_it_has_until_it_leaves_the_list() {
        let mut world = World::new();
        world.update(&[peer(2), peer(3)]);
        let lost = PeerAddress { addr: "nowhere".to_owned(), ..peer(3) };
        let changes = world.update(&[peer(2), lost.clone()]);
        assert!(changes.refused.is_some() && changes.moved.is_empty() && changes.removed.is_empty());
        assert_eq!(world.table[&NodeId(3)].address.text, ADDRESS);
        // Another node has taken its number, and cannot be reached either.
        let changes = world.update(&[peer(2), PeerAddress { name: "m3".to_owned(), ..lost }]);
        assert_eq!((changes.removed.len(), world.known()), (1, vec![2]));
    }

    #[test]
    fn refusals_of_many_entries_are_told_in_a_line_of_bounded_length() {
        let mut world = World::new();
        let list: Vec<_> = (2..100).map(|id| PeerAddress { name: "\u{e9}".repeat(1000), ..peer(id) }).collect();
        let refused = world.update(&list).refused.expect("told");
        assert!(refused.len() < 2 * limits::REFUSALS_TOLD * limits::REFUSAL_BYTES_MAX, "{} bytes", refused.len());
        assert!(refused.ends_with("; and 94 more"), "{refused}");
    }

    #[test]
    fn connections_of_a_node_that_left_the_list_and_is_back_are_newer_than_its_earlier_ones() {
        let mut world = World::new();
        world.update(&[peer(2)]);
        let last = (0..20).map(|_| world.dial()).last().expect("dialled");
        world.update(&[]);
        world.now += Duration::from_millis(1);
        world.update(&[peer(2)]);
        let next = world.dial();
        assert!(next > last, "connection {next} after {last}");
    }
}
