//! The thread that has the state of every call: hears news, lets `proc_core::origin` decide, and does what it says.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use proc_core::caller::Uids;
use proc_core::calls::Led;
use proc_core::journal::{CallAnswer, Notification, SlotIndex};
use proc_core::order::{LifeNumber, Order, Outcome};
use proc_core::origin::{CallEffect, Origin};
use proc_core::permission::SignalError;
use proc_core::range::{Seat, Seats};
use sys::notify::NotifyAnswer;

use crate::listeners::Listeners;
use crate::look;
use crate::memory::KeptMemory;
use crate::placeholders::{Lives, PlaceholderWatch};
use crate::reader::{MemoryReader, ReadArgument};
use crate::receiver::{CallReceiver, Wake};

/// What the thread of calls hears.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// The kernel wrote a call into this slot.
    Received(SlotIndex),
    /// A connection to the call gate of a node begins; by [`Wake::greeted`] alone.
    Greeted {
        node: Seat,
        life: LifeNumber,
    },
    /// It ended.
    Parted(Seat),
    /// There is no link to the node any more.
    GivenUp(Seat),
    Outcome {
        node: Seat,
        outcome: Outcome,
    },
    /// What a call points at, or why that is not known.
    Read {
        slot: SlotIndex,
        id: u64,
        read: ReadArgument,
    },
    /// Where a descriptor of a call leads.
    Looked {
        slot: SlotIndex,
        id: u64,
        led: Led,
    },
    /// The caller has what its call gives back, in its memory or as a descriptor; or why not.
    Finished {
        slot: SlotIndex,
        id: u64,
        done: Result<(), SignalError>,
    },
    /// There is a placeholder here for a process in this life of its node.
    Placeholder {
        process: u32,
        life: LifeNumber,
    },
    /// Asked to end. CallStates stay in the journal.
    Stop,
}

/// The way to the call gates of other nodes. Says what becomes of it as [`News`].
pub trait NodeLinks {
    /// Over the connection that greeted last; nothing is kept for a later one.
    fn send(&mut self, to: Seat, order: &Order);
}

/// Whose calls these are.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub own: Seat,
    /// The other nodes of the container.
    pub others: Seats,
    /// Of these, those that the engine decided to be lost: their processes are gone.
    pub lost: Seats,
    /// Host uids of the container.
    pub uids: Uids,
    /// Of a journal that is made now: larger than that of any before.
    pub life: LifeNumber,
}

pub struct CallStates<L> {
    origin: Origin<KeptMemory>,
    uids: Uids,
    listeners: Listeners,
    links: L,
    reader: MemoryReader,
    /// `None`: what processes of other nodes do cannot be seen.
    placeholders: Option<PlaceholderWatch>,
    /// Placeholders that are being given.
    held: BTreeMap<SlotIndex, (u32, LifeNumber)>,
    lost: Seats,
    wake: Wake,
    news: mpsc::Receiver<News>,
    begun: Instant,
}

impl<L: NodeLinks> CallStates<L> {
    /// Over `keeper` what calls point at is asked for. `lives`: where processes of other nodes can be seen. Goes on
    /// with what the journal says. All listeners that there are must be in the table: calls of others are over. Gives
    /// the receiving thread's half, and how to tell news.
    ///
    /// # Errors
    /// No descriptors for the receiving thread, or what `links` says.
    pub fn new(
        setting: Setting,
        memory: &KeptMemory,
        listeners: Listeners,
        keeper: OwnedFd,
        lives: Option<Box<dyn Lives>>,
        links: impl FnOnce(Sender<News>, Wake) -> std::io::Result<L>,
    ) -> std::io::Result<(CallStates<L>, CallReceiver, Sender<News>)> {
        let (tell, news) = mpsc::channel();
        let wake = Wake::new()?;
        let (origin, found, effects) = Origin::resume(setting.own, setting.others, memory.journal(setting.life), 0);
        let receiving = memory.journal(setting.life);
        let receiver = CallReceiver::new(wake.clone(), listeners.clone(), memory.clone(), receiving, tell.clone())?;
        let reader = MemoryReader::start(keeper, tell.clone())?;
        let placeholders = lives.map(|lives| PlaceholderWatch::start(reader.clone(), lives)).transpose()?;
        let links = links(tell.clone(), wake.clone())?;
        let Setting { uids, lost, .. } = setting;
        let (begun, held) = (Instant::now(), BTreeMap::new());
        let mut calls =
            CallStates { origin, uids, listeners, links, reader, placeholders, held, lost, wake, news, begun };
        calls.wake.give_back(found.free);
        calls.carry_out(effects);
        for node in Seat::all().filter(|seat| setting.lost.contains(*seat)) {
            let effects = calls.origin.fenced(node);
            calls.carry_out(effects);
        }
        found.received.into_iter().for_each(|slot| calls.look_at(slot));
        Ok((calls, receiver, tell))
    }

    pub fn wake(&self) -> &Wake {
        &self.wake
    }

    /// Until it is asked to end.
    pub fn run(mut self) {
        loop {
            let limit = self.origin.next_tick_ms().map(|at| Duration::from_millis(at.saturating_sub(self.now_ms())));
            let heard = match limit {
                Some(limit) => self.news.recv_timeout(limit),
                None => self.news.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let effects = match heard {
                Ok(News::Received(slot)) => {
                    self.look_at(slot);
                    Vec::new()
                }
                Ok(News::Greeted { node, life }) => {
                    if let Some(watch) = &self.placeholders {
                        watch.lives(node, life);
                    }
                    self.origin.greeted(node, life)
                }
                Ok(News::Parted(node)) => {
                    let now = self.now_ms();
                    self.origin.parted(node, now);
                    Vec::new()
                }
                Ok(News::GivenUp(node)) => self.origin.given_up(node),
                Ok(News::Outcome { node, outcome }) => self.origin.outcome(node, outcome),
                Ok(News::Read { slot, id, read }) => self.take_read(slot, id, read),
                Ok(News::Looked { slot, id, led }) => self.take_look(slot, id, led),
                Ok(News::Finished { slot, id, done }) => {
                    self.take_placeholder(slot, done);
                    self.origin.finished(slot, id, done)
                }
                Ok(News::Placeholder { process, life }) => {
                    if let Some(watch) = &self.placeholders {
                        watch.add(process, life);
                        watch.lost(self.lost);
                    }
                    Vec::new()
                }
                Err(RecvTimeoutError::Timeout) => {
                    let now = self.now_ms();
                    self.origin.tick(now)
                }
                Ok(News::Stop) | Err(RecvTimeoutError::Disconnected) => return self.wake.stop(),
            };
            self.carry_out(effects);
        }
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn look_at(&mut self, slot: SlotIndex) {
        let Some(notification) = self.origin.journal().notification(slot) else { return };
        let listener = self.listeners.get(notification.listener);
        let sender = listener.and_then(|listener| look::who(&notification, &*listener, self.uids));
        let effects = self.origin.received(slot, sender);
        self.carry_out(effects);
    }

    /// The number of a thread that ended may be another one's: what was read counts if the call still waits.
    fn take_read(&mut self, slot: SlotIndex, id: u64, read: ReadArgument) -> Vec<CallEffect> {
        let waits = self.still_waits(slot, id);
        self.origin.read(slot, id, if waits { read } else { Err(SignalError::NoProcess) })
    }

    /// Likewise.
    fn take_look(&mut self, slot: SlotIndex, id: u64, led: Led) -> Vec<CallEffect> {
        let waits = self.still_waits(slot, id);
        self.origin.looked(slot, id, if waits { led } else { Led::Elsewhere })
    }

    /// Of a call whose answer is one.
    fn take_placeholder(&mut self, slot: SlotIndex, done: Result<(), SignalError>) {
        let held = self.held.remove(&slot);
        if let (Some(watch), Some((process, life)), Ok(())) = (&self.placeholders, held, done) {
            watch.add(process, life);
        }
    }

    fn still_waits(&self, slot: SlotIndex, id: u64) -> bool {
        let Some(notification) = self.origin.journal().notification(slot) else { return false };
        let listener = self.listeners.get(notification.listener);
        listener.is_some_and(|listener| sys::notify::is_valid(&*listener, id))
    }

    fn carry_out(&mut self, effects: Vec<CallEffect>) {
        let mut effects: VecDeque<CallEffect> = effects.into();
        while let Some(effect) = effects.pop_front() {
            match effect {
                CallEffect::Read { slot, notification, address, pointed } => {
                    if let Err(error) = self.reader.read(slot, &notification, address, pointed) {
                        effects.extend(self.origin.read(slot, notification.id, Err(error)));
                    }
                }
                CallEffect::Write { slot, notification, address, bytes } => {
                    if let Err(error) = self.reader.write(slot, &notification, address, &bytes) {
                        effects.extend(self.origin.finished(slot, notification.id, Err(error)));
                    }
                }
                CallEffect::Hold { slot, notification, process, life } => {
                    // Where nobody could say when the process ends, it has no placeholder.
                    let asked = match self.placeholders {
                        None => Err(SignalError::NoProcess),
                        Some(_) => {
                            // Watched when it is there.
                            self.held.insert(slot, (process, life));
                            self.reader.give_placeholder(slot, &notification, process, life)
                        }
                    };
                    if let Err(error) = asked {
                        self.held.remove(&slot);
                        effects.extend(self.origin.finished(slot, notification.id, Err(error)));
                    }
                }
                CallEffect::Look { slot, notification, descriptor } => {
                    if self.reader.look(slot, &notification, descriptor).is_err() {
                        effects.extend(self.origin.looked(slot, notification.id, Led::Elsewhere));
                    }
                }
                CallEffect::Send { to, order } => self.links.send(to, &order),
                CallEffect::Answer { slot, notification, answer } => {
                    self.answer(&notification, answer);
                    self.origin.answered(slot);
                    self.wake.give_back([slot]);
                }
            }
        }
    }

    fn answer(&self, notification: &Notification, answer: CallAnswer) {
        let told = match answer {
            CallAnswer::Done => NotifyAnswer::Value(0),
            CallAnswer::Value(value) => NotifyAnswer::Value(i64::from(value)),
            CallAnswer::Failed(error) => NotifyAnswer::Errno(error.errno()),
            CallAnswer::Native => NotifyAnswer::Native,
        };
        // Without a listener its callers are gone.
        let Some(listener) = self.listeners.get(notification.listener) else { return };
        match sys::notify::answer(&*listener, notification.id, told) {
            Ok(()) => (),
            // The caller is gone, or a predecessor answered it just before it was killed.
            Err(cause) if cause.raw_os_error() == Some(libc::ENOENT) => (),
            Err(cause) => tracing::error!(%cause, "a call was not answered"),
        }
    }
}
