//! Whether the other nodes hear this one: put together from what all links know, said to peers in heartbeats, and to
//! keepers in a file (`proxy_link::presence`).

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use abi::{Epoch, PairId};
use proxy_link::LinkTimes;
use proxy_link::presence::{self, Opinion};
use sys::presence::{Presence, PresenceSlot};

use crate::peers::{Entry, Table};

/// So many restarts of a proxy, of which the lower bits of its epoch tell, the node's incarnation being in the upper
/// ones.
pub const RESTART_BITS: u32 = 20;

pub(crate) struct Attendance {
    /// Of the node.
    incarnation: u64,
    /// How many there are. `None`: nobody has said yet.
    others: Option<usize>,
    accused: BTreeSet<String>,
    slot: Option<PresenceSlot>,
}

/// This proxy's time, and what the node's clock said when that began.
type Now = (Duration, u64);

impl Attendance {
    pub(crate) fn new(epoch: Epoch, pair: PairId, file: Option<OwnedFd>) -> Attendance {
        let slot = file.map(|file| PresenceSlot::new(file, pair.number()));
        Attendance { incarnation: epoch.0 >> RESTART_BITS, others: None, accused: BTreeSet::new(), slot }
    }

    pub(crate) fn set_others(&mut self, others: usize) {
        self.others = Some(others);
    }

    pub(crate) fn accuse(&mut self, accused: BTreeSet<String>) {
        self.accused = accused;
    }

    /// Before heartbeats go: what they say, and what keepers are told.
    pub(crate) fn look(&mut self, peers: &mut Table, times: LinkTimes, now: Now) {
        let Some(others) = self.others else { return };
        let since = now.0.saturating_sub(2 * times.suspect);
        let heard = self.trusted(peers).filter_map(|entry| entry.peer.confirmed()).map(|(at, _)| at);
        let is_heard = presence::is_heard(others, heard, since);
        for entry in peers.values_mut() {
            let accuses = self.accused.contains(&entry.peer.identity().node);
            entry.peer.set_opinion(Opinion { accuses, is_heard });
        }
        let there_ns = self.there_ns(peers, now).unwrap_or(0);
        let is_alone = others == 0;
        let said = Presence { incarnation: self.incarnation, there_ns: if is_alone { 0 } else { there_ns }, is_alone };
        if let Some(Err(error)) = self.slot.as_mut().map(|slot| slot.say(said)) {
            tracing::debug!(%error, "keepers are not told that this node is heard");
        }
    }

    /// [`crate::control::FromProxy::there_ns`]
    pub(crate) fn there_ns(&self, peers: &Table, (now, origin_ns): Now) -> Option<u64> {
        let vouched = self.trusted(peers).filter_map(|entry| entry.peer.vouched());
        let there = presence::there(self.others?, vouched, now)?;
        Some(origin_ns.saturating_add(u64::try_from(there.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Whoever is accused may have been judged, and says nothing that counts.
    fn trusted<'a>(&'a self, peers: &'a Table) -> impl Iterator<Item = &'a Entry> {
        peers.values().filter(|entry| !self.accused.contains(&entry.peer.identity().node))
    }
}
