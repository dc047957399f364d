//! Which channels of a proxy have something new.
//!
//! The same hot and armed channels as in a port, but what is looked for is any change of what the local party writes:
//! the proxy reads the rest itself.

use std::collections::HashMap;
use std::sync::Arc;

use abi::{DcId, Endpoint, Lane};
use ipc_core::{ChannelId, Direction, Sleep, Words};
use ipc_shm::ChannelHalf;

use crate::waiting::{IDLE_LOOKS_MAX, QUIET_SLEEPS_MAX};

/// Everything the local party changes that concerns the proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Snapshot {
    word: u32,
    taken: u32,
    notified: u32,
    tail: u32,
    closed: u32,
    state: u32,
}

impl Snapshot {
    fn of(half: &ChannelHalf) -> Snapshot {
        Snapshot {
            word: half.peer_word(),
            taken: half.peer_taken(),
            notified: half.peer_notified(),
            tail: half.peer_tail(),
            closed: half.peer_closed(),
            state: half.state(Direction::Peer),
        }
    }
}

/// Between whom a channel is, seen from this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parties {
    pub dc: DcId,
    pub local: Endpoint,
    pub remote: Endpoint,
    pub lane: Lane,
}

#[derive(Debug)]
pub(super) struct Watched {
    pub parties: Parties,
    pub half: Arc<ChannelHalf>,
    key: u64,
    channel: ChannelId,
    reported: Option<Snapshot>,
    idle_looks: u32,
    /// Sleeps since it was active.
    quiet_sleeps: u32,
}

#[derive(Debug, Default)]
pub(super) struct WatchList {
    /// Looked at in turn, from `next` on: side by side, because all of them are looked at in every round of a busy
    /// proxy.
    hot: Vec<Watched>,
    next: usize,
    /// They ring while the proxy sleeps, and are hot again when it gets up, whoever woke it: where many are active, one
    /// rings for all.
    dozing: Vec<Watched>,
    /// They ring.
    armed: HashMap<u64, Watched>,
    keys: HashMap<ChannelId, u64>,
    next_key: u64,
}

impl WatchList {
    /// Keys begin here; lower poller tokens belong to the port itself.
    pub const FIRST_KEY: u64 = 16;

    /// A new channel is hot, and active once in any case.
    pub fn insert(&mut self, channel: ChannelId, parties: Parties, half: Arc<ChannelHalf>) -> u64 {
        let key = self.next_key.max(WatchList::FIRST_KEY);
        self.next_key = key + 1;
        self.keys.insert(channel, key);
        self.hot.push(Watched { parties, half, key, channel, reported: None, idle_looks: 0, quiet_sleeps: 0 });
        key
    }

    pub fn remove(&mut self, channel: ChannelId) -> Option<Watched> {
        let key = self.keys.remove(&channel)?;
        self.get_up();
        let hot = self.hot.iter().position(|watched| watched.key == key);
        hot.map(|position| self.hot.swap_remove(position)).or_else(|| self.armed.remove(&key))
    }

    pub fn half(&self, channel: ChannelId) -> Option<&Arc<ChannelHalf>> {
        let key = self.keys.get(&channel)?;
        let others = || self.hot.iter().chain(&self.dozing).find(|watched| watched.key == *key);
        self.armed.get(key).or_else(others).map(|watched| &watched.half)
    }

    pub fn is_empty(&self) -> bool {
        self.hot.is_empty()
    }

    /// The proxy is awake: what dozed is hot.
    pub fn get_up(&mut self) {
        for watched in &self.dozing {
            watched.half.prepare_sleep(Sleep::Awake);
        }
        self.hot.append(&mut self.dozing);
    }

    /// It rang.
    pub fn heat(&mut self, key: u64) {
        if let Some(watched) = self.armed.remove(&key) {
            watched.half.prepare_sleep(Sleep::Awake);
            self.hot.push(watched);
        }
    }

    /// The next hot channel that changed, in turn.
    pub fn next_active(&mut self) -> Option<ChannelId> {
        for _ in 0..self.hot.len() {
            if self.next >= self.hot.len() {
                self.next = 0;
            }
            let watched = self.hot.get_mut(self.next)?;
            if let Some(channel) = watched.look() {
                self.next += 1;
                return Some(channel);
            }
            if watched.idle_looks <= IDLE_LOOKS_MAX {
                self.next += 1;
            } else if let Some(channel) = self.arm(self.next) {
                return Some(channel);
            }
        }
        None
    }

    /// Arms every hot channel, of which those that were active lately doze; one that changed meanwhile is returned,
    /// hot.
    pub fn arm_all(&mut self) -> Option<ChannelId> {
        while let Some(last) = self.hot.len().checked_sub(1) {
            if let Some(channel) = self.arm(last) {
                return Some(channel);
            }
        }
        None
    }

    /// Arms the hot channel at `position`, unless it changed meanwhile: that one is returned, hot.
    fn arm(&mut self, position: usize) -> Option<ChannelId> {
        let watched = self.hot.get_mut(position)?;
        watched.half.prepare_sleep(Sleep::EventFd);
        let was_idle = std::mem::take(&mut watched.idle_looks) > IDLE_LOOKS_MAX;
        if let Some(channel) = watched.look() {
            watched.half.prepare_sleep(Sleep::Awake);
            return Some(channel);
        }
        let mut watched = self.hot.swap_remove(position);
        watched.quiet_sleeps = if was_idle { QUIET_SLEEPS_MAX } else { watched.quiet_sleeps + 1 };
        if watched.quiet_sleeps < QUIET_SLEEPS_MAX {
            self.dozing.push(watched);
        } else {
            self.armed.insert(watched.key, watched);
        }
        None
    }
}

impl Watched {
    fn look(&mut self) -> Option<ChannelId> {
        let now = Snapshot::of(&self.half);
        if self.reported == Some(now) {
            self.idle_looks += 1;
            return None;
        }
        self.reported = Some(now);
        (self.idle_looks, self.quiet_sleeps) = (0, 0);
        Some(self.channel)
    }
}
