//! The channels of a port: which of them are looked at, and which ring when something comes.
//!
//! A channel is `Hot` while it was active lately: it is polled. It is `Armed` when it is to ring its bell: nobody looks at it
//! until then. So a wait costs O(active). Before the port sleeps every hot channel is armed and looked at once more.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use abi::Endpoint;
use ipc_core::ChannelId;
use ipc_shm::{Link, Sleep};

use crate::ring::{RingServer, RingShared};
use crate::talk::{Proxied, Talk};

/// Looks without success after which a hot channel is armed.
const IDLE_LOOKS_MAX: u32 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watch {
    Hot,
    Armed,
}

#[derive(Debug)]
pub(super) enum Use {
    Messages(Talk),
    Ring(Arc<RingShared>),
    /// The peer copies from and to what was granted to it.
    Copies(Arc<RingServer>),
}

#[derive(Debug)]
pub(super) struct Slot {
    pub channel: ChannelId,
    pub peer: Endpoint,
    pub link: Arc<Link>,
    pub proxied: Proxied,
    pub usage: Use,
    watch: Watch,
    idle_looks: u32,
}

/// Numbers a channel in the port's poller: never reused, so a late bell of a channel that is gone names nothing.
pub(super) type SlotKey = u64;

#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: HashMap<SlotKey, Slot>,
    by_peer: HashMap<Endpoint, SlotKey>,
    by_channel: HashMap<ChannelId, SlotKey>,
    hot: VecDeque<SlotKey>,
    next_key: SlotKey,
}

impl Slots {
    /// Keys begin here; lower poller tokens belong to the port itself.
    pub const FIRST_KEY: SlotKey = 16;

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// A new channel is hot: its peer may have published already.
    pub fn insert(
        &mut self,
        channel: ChannelId,
        peer: Endpoint,
        link: Arc<Link>,
        proxied: Proxied,
        usage: Use,
    ) -> SlotKey {
        let key = self.next_key.max(Slots::FIRST_KEY);
        self.next_key = key + 1;
        if matches!(usage, Use::Messages(_)) {
            self.by_peer.insert(peer, key);
        }
        self.by_channel.insert(channel, key);
        self.slots.insert(key, Slot { channel, peer, link, proxied, usage, watch: Watch::Hot, idle_looks: 0 });
        self.hot.push_back(key);
        key
    }

    pub fn remove(&mut self, key: SlotKey) -> Option<Slot> {
        let slot = self.slots.remove(&key)?;
        self.by_channel.remove(&slot.channel);
        if self.by_peer.get(&slot.peer) == Some(&key) {
            self.by_peer.remove(&slot.peer);
        }
        self.hot.retain(|hot| *hot != key);
        Some(slot)
    }

    pub fn get_mut(&mut self, key: SlotKey) -> Option<&mut Slot> {
        self.slots.get_mut(&key)
    }

    /// The channel of messages with `peer`.
    pub fn talk_with(&self, peer: Endpoint) -> Option<SlotKey> {
        self.by_peer.get(&peer).copied()
    }

    /// From now on every channel is looked at.
    pub fn heat_all(&mut self) {
        if self.hot.len() == self.slots.len() {
            return;
        }
        for key in Vec::from_iter(self.slots.keys().copied()) {
            self.heat(key);
        }
    }

    /// The lanes over which others copy.
    pub fn copy_lanes(&self) -> Vec<SlotKey> {
        let lanes = self.slots.iter().filter(|(_, slot)| matches!(slot.usage, Use::Copies(_)));
        lanes.map(|(key, _)| *key).collect()
    }

    pub fn by_channel(&self, channel: ChannelId) -> Option<SlotKey> {
        self.by_channel.get(&channel).copied()
    }

    /// The hot channels in turn: the one that was served last comes last.
    pub fn hot(&self) -> &VecDeque<SlotKey> {
        &self.hot
    }

    /// Puts a channel that was served behind the others.
    pub fn served(&mut self, position: usize, key: SlotKey) {
        self.hot.remove(position);
        self.hot.push_back(key);
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.idle_looks = 0;
        }
    }

    /// Something was found that is no event of its own.
    pub fn stay_hot(&mut self, key: SlotKey) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.idle_looks = 0;
        }
    }

    /// Counts a look that found nothing; `true` when the channel should be armed.
    pub fn is_idle_after_look(&mut self, key: SlotKey) -> bool {
        self.slots.get_mut(&key).is_some_and(|slot| {
            slot.idle_looks += 1;
            slot.idle_looks > IDLE_LOOKS_MAX
        })
    }

    /// From now on the channel rings. Look at it once more.
    pub fn arm(&mut self, key: SlotKey) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.link.prepare_sleep(Sleep::EventFd);
            slot.watch = Watch::Armed;
            slot.idle_looks = 0;
        }
        self.hot.retain(|hot| *hot != key);
    }

    /// From now on the channel is looked at.
    pub fn heat(&mut self, key: SlotKey) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.link.prepare_sleep(Sleep::Awake);
            if slot.watch == Watch::Armed {
                slot.watch = Watch::Hot;
                self.hot.push_back(key);
            }
        }
    }
}
