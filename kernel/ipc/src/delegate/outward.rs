//! The delegator's end of a delegate lane.
//!
//! An entry, with its slot of the arena, is free, or carries a relay or a notification until its completion.

use abi::delegation::{Limit, Relayed, Request, SLOT_BYTES, head_of, message_of};
use abi::limits::{DELEGATE_ENTRIES, INLINE_BYTES_MAX, RELAYS_PER_LANE};
use abi::ring::Completion;
use abi::{Endpoint, IpcError, Message};
use ipc_core::Timing;
use ipc_shm::ChannelHalf;

use super::{Bits, Delegating, Origin, Outcome};
use crate::ring::RingClient;

const NOTIFICATIONS_MAX: u32 = DELEGATE_ENTRIES - RELAYS_PER_LANE;

#[derive(Clone, Debug)]
enum Entry {
    Free,
    Relay(Origin),
    Notification,
}

/// A request to be passed on.
pub(crate) struct Relay<'a> {
    pub origin: Origin,
    pub client: Endpoint,
    pub message: &'a Message,
    pub data: &'a [u8],
}

#[derive(Debug)]
pub(crate) struct Outward {
    ring: RingClient,
    entries: Vec<Entry>,
    relays: u32,
    notifications: u32,
    /// Notifications that found no room.
    waiting: Bits,
}

impl Outward {
    pub fn new(ring: RingClient) -> Outward {
        let entries = vec![Entry::Free; DELEGATE_ENTRIES as usize];
        Outward { ring, entries, relays: 0, notifications: 0, waiting: Bits::default() }
    }

    pub fn target(&self) -> Endpoint {
        self.ring.peer()
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.relays == 0 && self.notifications == 0
    }

    pub fn is_over(&self) -> bool {
        self.ring.is_closed().is_some()
    }

    /// Whether there is something to take, or the lane's end to be learnt.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.is_idle() && self.ring.has_news()
    }

    pub fn relay(&mut self, relay: Relay<'_>) -> Result<(), IpcError> {
        if self.relays >= RELAYS_PER_LANE {
            return Err(IpcError::TableFull);
        }
        let limit = match relay.origin.timing() {
            Timing::Timed => Limit::Timed,
            Timing::Untimed => Limit::Untimed,
        };
        let (tag, arena) = (self.free_entry()?, self.ring.arena());
        let at = tag * SLOT_BYTES;
        arena.copy_in(at as usize, &head_of(relay.message))?;
        arena.copy_in(at as usize + Message::BYTES, relay.data)?;
        let request = Request::Relay(Relayed { client: relay.client, limit, data_bytes: relay.data.len() as u32 });
        self.submit(request, tag, at, Entry::Relay(relay.origin))?;
        self.relays += 1;
        self.ring.publish();
        Ok(())
    }

    pub fn notify(&mut self, source: Endpoint, mask: u64) {
        self.waiting.add(source, mask);
        self.flush();
    }

    /// Whether an answer may come that somebody waits for.
    pub fn has_relays(&self) -> bool {
        self.relays > 0
    }

    /// Whether it is the request `request` of the channel `half` that is under way.
    pub fn relays_from(&self, half: &ChannelHalf, request: u32) -> bool {
        self.entries.iter().any(|entry| match entry {
            Entry::Relay(Origin::Caller { half: of, request: its, .. }) => {
                std::ptr::eq(&**of, half) && its.raw() == request
            }
            _ => false,
        })
    }

    /// Takes completions; their answers are left with `delegating`. The reason once the lane is over: then every relay
    /// under way ended with it.
    pub fn take_completions(&mut self, delegating: &mut Delegating) -> Result<(), IpcError> {
        loop {
            let taken = match self.ring.poll() {
                Ok(Some(completion)) => self.complete(&completion, delegating),
                Ok(None) => {
                    self.flush();
                    return Ok(());
                }
                Err(reason) => Err(reason),
            };
            if let Err(reason) = taken {
                self.end(reason, delegating);
                return Err(reason);
            }
        }
    }

    /// Ends every relay under way.
    pub fn end(&mut self, reason: IpcError, delegating: &mut Delegating) {
        for entry in &mut self.entries {
            if let Entry::Relay(origin) = std::mem::replace(entry, Entry::Free) {
                delegating.answers.push((origin, Err(reason)));
                delegating.in_flight -= 1;
            }
        }
        (self.relays, self.notifications) = (0, 0);
    }

    fn complete(&mut self, completion: &Completion, delegating: &mut Delegating) -> Result<(), IpcError> {
        let entry = self.entries.get_mut(completion.tag as usize).ok_or(IpcError::Corrupt)?;
        match std::mem::replace(entry, Entry::Free) {
            Entry::Free => return Err(IpcError::Corrupt),
            Entry::Notification => self.notifications -= 1,
            Entry::Relay(origin) => {
                self.relays -= 1;
                delegating.in_flight -= 1;
                let outcome = self.outcome(completion);
                let is_broken = outcome.is_err() && completion.status == 0;
                delegating.answers.push((origin, outcome));
                if is_broken {
                    return Err(IpcError::Corrupt);
                }
            }
        }
        Ok(())
    }

    /// The reply is copied first, then looked at.
    fn outcome(&self, completion: &Completion) -> Outcome {
        if completion.status != 0 {
            return Err(IpcError::from_code(completion.status));
        }
        let bytes = (completion.in_bytes as usize).checked_sub(Message::BYTES).ok_or(IpcError::Corrupt)?;
        if bytes > INLINE_BYTES_MAX {
            return Err(IpcError::Corrupt);
        }
        let (arena, at) = (self.ring.arena(), completion.tag as usize * SLOT_BYTES as usize);
        let mut head = [0; Message::BYTES];
        arena.copy_out(at, &mut head)?;
        Ok((message_of(&head), arena.to_vec(at + Message::BYTES, bytes)?))
    }

    /// Submits notifications as far as there is room.
    fn flush(&mut self) {
        let mut any = false;
        while self.notifications < NOTIFICATIONS_MAX
            && let Ok(tag) = self.free_entry()
            && let Some((source, mask)) = self.waiting.pop()
        {
            if self.submit(Request::Notify { source, mask }, tag, 0, Entry::Notification).is_err() {
                self.waiting.add(source, mask);
                break;
            }
            self.notifications += 1;
            any = true;
        }
        if any {
            self.ring.publish();
        }
    }

    fn free_entry(&self) -> Result<u32, IpcError> {
        let free = self.entries.iter().position(|entry| matches!(entry, Entry::Free));
        free.map(|tag| tag as u32).ok_or(IpcError::TableFull)
    }

    fn submit(&mut self, request: Request, tag: u32, at: u32, entry: Entry) -> Result<(), IpcError> {
        self.ring.submit(&request.to_submission(tag, at)).map_err(|_| IpcError::TableFull)?;
        if let Some(place) = self.entries.get_mut(tag as usize) {
            *place = entry;
        }
        Ok(())
    }
}
