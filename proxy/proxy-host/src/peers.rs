//! The nodes this proxy keeps links with.

use std::collections::HashMap;
use std::time::Duration;

use abi::{Epoch, NodeId, PairId};
use proxy_link::{Identity, LinkTimes, Peer, Phase};

use crate::carriers::{Carrier, Carriers};
use crate::control::{LinkState, LinkStatus, PeerAddress};
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

/// One node and how to reach it.
pub(crate) struct Entry {
    pub(crate) peer: Peer<Local>,
    pub(crate) address: Address,
    pub(crate) encryption: Encryption,
    /// The connection that is being dialled or carries the link.
    pub(crate) token: Option<u64>,
    pub(crate) next_dial: Duration,
    pause: Duration,
    pub(crate) last_error: Option<String>,
}

impl Entry {
    /// The connection failed or ended.
    pub(crate) fn lost(&mut self, now: Duration, reason: String) {
        if self.peer.phase() == Phase::Up {
            self.pause = limits::REDIAL_MIN;
        }
        self.peer.cut();
        self.token = None;
        self.last_error = Some(reason);
        self.next_dial = now + self.pause;
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
    /// Grows over the lives of this node's proxies.
    pub(crate) first_connection: u64,
}

/// What has to follow from a new list.
pub(crate) struct Changes {
    pub(crate) added: Vec<NodeId>,
    pub(crate) removed: Vec<Entry>,
    /// Their connection goes to an address that is no longer theirs.
    pub(crate) moved: Vec<NodeId>,
}

pub(crate) type Table = HashMap<NodeId, Entry>;

/// Makes the table equal to the daemon's list.
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
    let wanted = check(list, common, carriers)?;
    let mut changes = Changes { added: Vec::new(), removed: Vec::new(), moved: Vec::new() };
    let gone = |(node, entry): (&NodeId, &Entry)| {
        let same = wanted.get(node).is_some_and(|(name, ..)| *name == entry.peer.identity().node);
        (!same).then_some(*node)
    };
    let gone: Vec<NodeId> = table.iter().filter_map(gone).collect();
    changes.removed.extend(gone.iter().filter_map(|node| table.remove(node)));
    for (node, (name, address, encryption)) in wanted {
        match table.get_mut(&node) {
            Some(entry) if entry.address == address && entry.encryption == encryption => {}
            Some(entry) => {
                (entry.address, entry.encryption) = (address, encryption);
                changes.moved.push(node);
            }
            None => {
                let identity = Identity { cluster: common.me.cluster.clone(), node: name.to_owned(), id: node };
                let mut peer = Peer::new(common.me.clone(), common.incarnation, identity, common.times, now);
                peer.set_pair(common.pair);
                peer.count_connections_from(common.first_connection);
                if common.compression == Compression::Lz4 {
                    peer.pack_with(Box::new(Lz4::default()));
                }
                let entry = Entry {
                    peer,
                    address,
                    encryption,
                    token: None,
                    next_dial: now,
                    pause: limits::REDIAL_MIN,
                    last_error: None,
                };
                table.insert(node, entry);
                changes.added.push(node);
            }
        }
    }
    Ok(changes)
}

type Wanted<'a> = HashMap<NodeId, (&'a str, Address, Encryption)>;

fn check<'a>(list: &'a [PeerAddress], common: &Common, carriers: &Carriers) -> Result<Wanted<'a>, String> {
    if list.len() > limits::PEERS_MAX {
        return Err(format!("{} peers are more than the limit of {}", list.len(), limits::PEERS_MAX));
    }
    let mut wanted = HashMap::new();
    for peer in list {
        let address = address_of(peer, carriers)?;
        let encryption = match peer.tls {
            None => common.encryption,
            Some(true) => Encryption::Tls,
            Some(false) => Encryption::Plain,
        };
        if encryption == Encryption::Tls && !common.can_encrypt {
            return Err(format!("the link with '{}' is to be encrypted, and this node has no certificates", peer.name));
        }
        if peer.id == 0 || peer.id == common.me.id.0 || peer.name.len() > abi::limits::NAME_BYTES_MAX {
            return Err(format!("peer '{}' with number {} cannot be", peer.name, peer.id));
        }
        if wanted.insert(NodeId(peer.id), (peer.name.as_str(), address, encryption)).is_some() {
            return Err(format!("number {} is given twice", peer.id));
        }
    }
    Ok(wanted)
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
