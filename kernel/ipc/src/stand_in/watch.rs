//! Which channels of a proxy have something new.
//!
//! The same hot and armed channels as in a port, but what is looked for is any change of what the local party writes: the
//! proxy reads the rest itself.

use std::collections::{HashMap, VecDeque};
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watch {
    Hot,
    Armed,
}

#[derive(Debug)]
struct Watched {
    channel: ChannelId,
    link: Arc<Link>,
    reported: Option<Snapshot>,
    watch: Watch,
    idle_looks: u32,
}

#[derive(Debug, Default)]
pub(super) struct WatchList {
    watched: HashMap<u64, Watched>,
    keys: HashMap<ChannelId, u64>,
    hot: VecDeque<u64>,
    next_key: u64,
}

impl WatchList {
    /// Keys begin here; lower poller tokens belong to the port itself.
    pub const FIRST_KEY: u64 = 16;

    /// A new channel is hot, and active once in any case.
    pub fn insert(&mut self, channel: ChannelId, link: Arc<Link>) -> u64 {
        let key = self.next_key.max(WatchList::FIRST_KEY);
        self.next_key = key + 1;
        self.watched.insert(key, Watched { channel, link, reported: None, watch: Watch::Hot, idle_looks: 0 });
        self.keys.insert(channel, key);
        self.hot.push_back(key);
        key
    }

    pub fn remove(&mut self, channel: ChannelId) -> Option<Arc<Link>> {
        let key = self.keys.remove(&channel)?;
        self.hot.retain(|hot| *hot != key);
        self.watched.remove(&key).map(|watched| watched.link)
    }

    pub fn link(&self, channel: ChannelId) -> Option<&Arc<Link>> {
        Some(&self.watched.get(self.keys.get(&channel)?)?.link)
    }

    pub fn is_empty(&self) -> bool {
        self.hot.is_empty()
    }

    pub fn heat(&mut self, key: u64) {
        if let Some(watched) = self.watched.get_mut(&key) {
            watched.link.prepare_sleep(Sleep::Awake);
            if watched.watch == Watch::Armed {
                watched.watch = Watch::Hot;
                self.hot.push_back(key);
            }
        }
    }

    /// The next hot channel that changed, in turn.
    pub fn next_active(&mut self) -> Option<ChannelId> {
        for _ in 0..self.hot.len() {
            let key = self.hot.pop_front()?;
            let Some(watched) = self.watched.get_mut(&key) else { continue };
            if let Some(channel) = watched.look() {
                self.hot.push_back(key);
                return Some(channel);
            }
            if watched.idle_looks <= IDLE_LOOKS_MAX {
                self.hot.push_back(key);
                continue;
            }
            watched.arm();
            if let Some(channel) = watched.look() {
                self.heat(key);
                return Some(channel);
            }
        }
        None
    }

    /// Arms every hot channel; one that changed meanwhile is returned, hot.
    pub fn arm_all(&mut self) -> Option<ChannelId> {
        while let Some(key) = self.hot.pop_front() {
            let Some(watched) = self.watched.get_mut(&key) else { continue };
            watched.arm();
            if let Some(channel) = watched.look() {
                self.heat(key);
                return Some(channel);
            }
        }
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

    fn arm(&mut self) {
        self.link.prepare_sleep(Sleep::EventFd);
        self.watch = Watch::Armed;
        self.idle_looks = 0;
    }
}
