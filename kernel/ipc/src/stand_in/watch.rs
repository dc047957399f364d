//! Which channels of a proxy have something new.
//!
//! The same hot and armed channels as in a port, but what is looked for is any change of what the local party writes: the
//! proxy reads the rest itself.

use std::collections::HashMap;
use std::sync::Arc;

use ipc_core::ChannelId;
use ipc_shm::{Direction, Link, Sleep};

/// Looks without success after which a hot channel is armed.
const IDLE_LOOKS_MAX: u32 = 256;

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
    fn of(link: &Link) -> Snapshot {
        Snapshot {
            word: link.peer_word(),
            taken: link.peer_taken(),
            notified: link.peer_notified(),
            tail: link.peer_tail(),
            closed: link.peer_closed(),
            state: link.state(Direction::Peer),
        }
    }
}

#[derive(Debug)]
struct Watched {
    key: u64,
    channel: ChannelId,
    link: Arc<Link>,
    reported: Option<Snapshot>,
    idle_looks: u32,
}

#[derive(Debug, Default)]
pub(super) struct WatchList {
    /// Looked at in turn, from `next` on: side by side, because all of them are looked at in every round of a busy proxy.
    hot: Vec<Watched>,
    next: usize,
    /// They ring.
    armed: HashMap<u64, Watched>,
    keys: HashMap<ChannelId, u64>,
    next_key: u64,
}

impl WatchList {
    /// Keys begin here; lower poller tokens belong to the port itself.
    pub const FIRST_KEY: u64 = 16;

    /// A new channel is hot, and active once in any case.
    pub fn insert(&mut self, channel: ChannelId, link: Arc<Link>) -> u64 {
        let key = self.next_key.max(WatchList::FIRST_KEY);
        self.next_key = key + 1;
        self.keys.insert(channel, key);
        self.hot.push(Watched { key, channel, link, reported: None, idle_looks: 0 });
        key
    }

    pub fn remove(&mut self, channel: ChannelId) -> Option<Arc<Link>> {
        let key = self.keys.remove(&channel)?;
        let hot = self.hot.iter().position(|watched| watched.key == key);
        let watched = hot.map(|position| self.hot.swap_remove(position)).or_else(|| self.armed.remove(&key));
        watched.map(|watched| watched.link)
    }

    pub fn link(&self, channel: ChannelId) -> Option<&Arc<Link>> {
        let key = self.keys.get(&channel)?;
        let hot = || self.hot.iter().find(|watched| watched.key == *key);
        self.armed.get(key).or_else(hot).map(|watched| &watched.link)
    }

    pub fn is_empty(&self) -> bool {
        self.hot.is_empty()
    }

    pub fn heat(&mut self, key: u64) {
        if let Some(watched) = self.armed.remove(&key) {
            watched.link.prepare_sleep(Sleep::Awake);
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

    /// Arms every hot channel; one that changed meanwhile is returned, hot.
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
        watched.link.prepare_sleep(Sleep::EventFd);
        watched.idle_looks = 0;
        if let Some(channel) = watched.look() {
            watched.link.prepare_sleep(Sleep::Awake);
            return Some(channel);
        }
        let watched = self.hot.swap_remove(position);
        self.armed.insert(watched.key, watched);
        None
    }
}

impl Watched {
    fn look(&mut self) -> Option<ChannelId> {
        let now = Snapshot::of(&self.link);
        if self.reported == Some(now) {
            self.idle_looks += 1;
            return None;
        }
        self.reported = Some(now);
        self.idle_looks = 0;
        Some(self.channel)
    }
}
