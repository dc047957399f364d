//! The channels of a port: which of them are looked at, and which ring when something comes.
//!
//! A channel is `Hot` while it was active lately: it is polled. It is `Armed` when it is to ring its bell: nobody looks
//! at it until then. So a wait costs O(active). Before the port sleeps every hot channel is armed and looked at once
//! more. Those that were active lately only doze: they are hot again when the port gets up, whoever woke it. So where
//! many are active, one rings for all.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use abi::Endpoint;
use foldhash::fast::RandomState;
use ipc_core::{ChannelId, Proxied, Sleep, Words};
use ipc_shm::ChannelHalf;
use slotmap::{Key, KeyData, SlotMap};

use crate::ring::{RingServer, RingShared};
use crate::talk::Talk;
use crate::waiting::{IDLE_LOOKS_MAX, QUIET_SLEEPS_MAX};

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
    /// A delegate lane, of either party. Clients whose requests have their turn before the channel has had its own.
    Delegation {
        turns: u32,
    },
}

#[derive(Debug)]
pub(super) struct Attached {
    pub channel: ChannelId,
    pub peer: Endpoint,
    pub half: Arc<ChannelHalf>,
    pub proxied: Proxied,
    pub usage: Use,
    watch: Watch,
    idle_looks: u32,
    /// Sleeps since it was active.
    quiet_sleeps: u32,
    /// It is among the neglected.
    is_neglected: bool,
}

slotmap::new_key_type! {
    /// Names a channel, and no other that gets its place later: a late bell of a channel that is gone names nothing.
    pub(super) struct AttachedKey;
}

/// Tokens below belong to the port itself. A key's version, in its upper half, is never 0.
const TOKENS_BEGIN: u64 = 1 << 32;

impl AttachedKey {
    /// Its name in the port's poller.
    pub fn token(self) -> u64 {
        self.data().as_ffi()
    }

    pub fn of_token(token: u64) -> Option<AttachedKey> {
        (token >= TOKENS_BEGIN).then(|| KeyData::from_ffi(token).into())
    }
}

#[derive(Debug, Default)]
pub(super) struct AttachedChannels {
    attached: SlotMap<AttachedKey, Attached>,
    by_peer: HashMap<Endpoint, AttachedKey, RandomState>,
    /// Whom the port talked with last, as in `by_peer`: a call is mostly to the same.
    latest: Option<(Endpoint, AttachedKey)>,
    by_channel: HashMap<ChannelId, AttachedKey, RandomState>,
    hot: VecDeque<AttachedKey>,
    /// Empty: room for those that are hot after a sleep.
    spare: VecDeque<AttachedKey>,
    /// Armed, and perhaps gone or hot again since.
    dozing: Vec<AttachedKey>,
    /// Armed although they hold what a wait for something else did not take; each once, however often it rings during
    /// that wait.
    neglected: Vec<AttachedKey>,
}

impl AttachedChannels {
    pub fn len(&self) -> usize {
        self.attached.len()
    }

    /// A new channel is hot: its peer may have published already.
    pub fn insert(
        &mut self,
        channel: ChannelId,
        peer: Endpoint,
        half: Arc<ChannelHalf>,
        proxied: Proxied,
        usage: Use,
    ) -> AttachedKey {
        let is_talk = matches!(usage, Use::Messages(_));
        let watch = Watch::Hot;
        let key = self.attached.insert(Attached {
            channel,
            peer,
            half,
            proxied,
            usage,
            watch,
            idle_looks: 0,
            quiet_sleeps: 0,
            is_neglected: false,
        });
        if is_talk {
            self.by_peer.insert(peer, key);
            self.latest = Some((peer, key));
        }
        self.by_channel.insert(channel, key);
        self.hot.push_back(key);
        key
    }

    pub fn remove(&mut self, key: AttachedKey) -> Option<Attached> {
        let attached = self.attached.remove(key)?;
        self.by_channel.remove(&attached.channel);
        if self.by_peer.get(&attached.peer) == Some(&key) {
            self.by_peer.remove(&attached.peer);
        }
        self.latest = None;
        self.hot.retain(|hot| *hot != key);
        if attached.is_neglected {
            self.neglected.retain(|neglected| *neglected != key);
        }
        Some(attached)
    }

    #[inline]
    pub fn get_mut(&mut self, key: AttachedKey) -> Option<&mut Attached> {
        self.attached.get_mut(key)
    }

    /// The channel of messages with `peer`.
    #[inline]
    pub fn talk_with(&mut self, peer: Endpoint) -> Option<AttachedKey> {
        match self.latest {
            Some((latest, key)) if latest == peer => Some(key),
            _ => self.find_talk(peer),
        }
    }

    fn find_talk(&mut self, peer: Endpoint) -> Option<AttachedKey> {
        let key = self.by_peer.get(&peer).copied()?;
        self.latest = Some((peer, key));
        Some(key)
    }

    pub fn any(&self, is_meant: impl Fn(&Attached) -> bool) -> bool {
        self.attached.values().any(is_meant)
    }

    /// From now on every channel is looked at.
    pub fn heat_all(&mut self) {
        if self.hot.len() == self.attached.len() {
            return;
        }
        for key in Vec::from_iter(self.attached.keys()) {
            self.heat(key);
        }
    }

    /// The lanes that the library serves by itself.
    pub fn lanes(&self) -> Vec<AttachedKey> {
        let lanes = self
            .attached
            .iter()
            .filter(|(_, attached)| matches!(attached.usage, Use::Copies(_) | Use::Delegation { .. }));
        lanes.map(|(key, _)| key).collect()
    }

    pub fn by_channel(&self, channel: ChannelId) -> Option<AttachedKey> {
        self.by_channel.get(&channel).copied()
    }

    /// The hot channels in turn: the one that was served last comes last.
    pub fn hot(&self) -> &VecDeque<AttachedKey> {
        &self.hot
    }

    /// A channel was served: it goes to the end of the order, unless its turn goes on.
    pub fn served(&mut self, position: usize, key: AttachedKey) {
        if let Some(attached) = self.attached.get_mut(key) {
            (attached.idle_looks, attached.quiet_sleeps) = (0, 0);
            if let Use::Delegation { turns: 1.. } = attached.usage {
                return;
            }
        }
        self.hot.remove(position);
        self.hot.push_back(key);
    }

    /// Something was found that is no event of its own.
    pub fn stay_hot(&mut self, key: AttachedKey) {
        if let Some(attached) = self.attached.get_mut(key) {
            (attached.idle_looks, attached.quiet_sleeps) = (0, 0);
        }
    }

    /// Counts a look that found nothing; `true` when the channel should be armed.
    pub fn is_idle_after_look(&mut self, key: AttachedKey) -> bool {
        self.attached.get_mut(key).is_some_and(|attached| {
            attached.idle_looks += 1;
            attached.idle_looks > IDLE_LOOKS_MAX
        })
    }

    /// From now on the channel rings. Look at it once more.
    pub fn arm(&mut self, key: AttachedKey) {
        if let Some(attached) = self.attached.get_mut(key) {
            attached.half.prepare_sleep(Sleep::EventFd);
            attached.watch = Watch::Armed;
            attached.idle_looks = 0;
        }
        self.hot.retain(|hot| *hot != key);
    }

    /// All that are hot, to be armed one by one and given back empty.
    pub fn take_hot(&mut self) -> VecDeque<AttachedKey> {
        std::mem::replace(&mut self.hot, std::mem::take(&mut self.spare))
    }

    /// Keeps the room for the next sleep.
    pub fn give_back(&mut self, emptied: VecDeque<AttachedKey>) {
        self.spare = emptied;
    }

    /// An armed channel had no news before this sleep.
    pub fn doze(&mut self, key: AttachedKey) {
        let Some(attached) = self.attached.get_mut(key) else { return };
        attached.quiet_sleeps += 1;
        if attached.quiet_sleeps < QUIET_SLEEPS_MAX {
            self.dozing.push(key);
        }
    }

    /// The port is awake: what dozed is hot.
    pub fn get_up(&mut self) {
        let mut dozing = std::mem::take(&mut self.dozing);
        for key in dozing.drain(..) {
            if self.attached.get(key).is_some_and(|attached| attached.watch == Watch::Armed) {
                self.heat(key);
            }
        }
        // For the next sleep.
        self.dozing = dozing;
    }

    /// An armed channel has news that this wait does not take, and will not ring for them.
    pub fn neglect(&mut self, key: AttachedKey) {
        if let Some(attached) = self.attached.get_mut(key)
            && !std::mem::replace(&mut attached.is_neglected, true)
        {
            self.neglected.push(key);
        }
    }

    /// Another wait begins: what was neglected is hot.
    #[inline]
    pub fn heat_neglected(&mut self) {
        while let Some(key) = self.neglected.pop() {
            if let Some(attached) = self.heat(key) {
                attached.is_neglected = false;
            }
        }
    }

    /// From now on the channel is looked at.
    #[inline]
    pub fn heat(&mut self, key: AttachedKey) -> Option<&mut Attached> {
        let attached = self.attached.get_mut(key)?;
        attached.half.prepare_sleep(Sleep::Awake);
        if attached.watch == Watch::Armed {
            attached.watch = Watch::Hot;
            self.hot.push_back(key);
        }
        Some(attached)
    }
}

#[cfg(test)]
mod tests {
    use ipc_shm::{ChannelFiles, ControlPage, ControlWriter, Role, Size};

    use super::*;

    fn add(attached: &mut AttachedChannels, channel: u64) -> AttachedKey {
        let size = Size::default();
        let files = ChannelFiles::create(size).unwrap().party(Role::Right).unwrap();
        let page = ControlWriter::create(abi::Epoch(1)).unwrap();
        let control = Arc::new(ControlPage::of(page.reader().unwrap()).unwrap());
        let half = Arc::new(ChannelHalf::map(files, Role::Right, size, control).unwrap());
        attached.insert(ChannelId(channel), Endpoint::FS, half, Proxied::No, Use::Delegation { turns: 0 })
    }

    #[test]
    fn channel_that_rings_all_the_time_is_neglected_once() {
        let mut attached = AttachedChannels::default();
        let keys = [1, 2].map(|channel| add(&mut attached, channel));
        for _ in 0..10_000 {
            for key in keys {
                attached.heat(key);
                attached.arm(key);
                attached.neglect(key);
            }
        }
        assert_eq!(attached.neglected.len(), 2);
        attached.remove(keys[0]).unwrap();
        assert_eq!(attached.neglected, [keys[1]]);
        attached.heat_neglected();
        assert_eq!(attached.hot(), &[keys[1]]);
        attached.arm(keys[1]);
        attached.neglect(keys[1]);
        assert_eq!(attached.neglected, [keys[1]], "again during the next wait");
    }
}
