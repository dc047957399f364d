//! Waiting for anything.
//!
//! One turn: what is pending; notifications of the hot channels; the hot channels in turn; the descriptors. The
//! descriptors are looked at when nothing is hot, and now and then in any case, so that busy channels starve neither
//! new ones nor the waker.

use std::time::Duration;

use abi::IpcError;
use ipc_core::{Ended, Kind, WaitMode};

use super::attached::{Attached, AttachedKey, Use};
use super::{Event, Port, TOKEN_BROKER, TOKEN_WAKER};
use crate::copy::serve;
use crate::errors;
use crate::ring::RingId;
use crate::wait::{Deadline, Wait};
use crate::waiting::{SPIN_BATCH, Went, Yields, gone, own_end};

/// Events between two looks at the descriptors.
const UNPOLLED_MAX: u32 = 32;
/// The same while nobody needs them: the broker may have said that a channel ended.
const UNPOLLED_IN_MEMORY_MAX: u32 = 1024;

/// What a wait takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    Everything,
    Messages,
    Requests,
}

impl Port {
    /// The next thing that concerns this endpoint: notifications first, then channels in turn. `TimedOut` when nothing
    /// came in time, `WokenUp` when a manager ended the wait; a lost broker is not reported here, existing channels go
    /// on. Errors: [`errors::RECEIVE_ANY`].
    pub fn wait_event(&mut self, wait: Wait) -> Result<Event, IpcError> {
        self.check_bound()?;
        let deadline = Deadline::after(wait);
        loop {
            match errors::RECEIVE_ANY.only(self.wait_for_any(Wanted::Everything, deadline))? {
                Found::Message => return Ok(Event::Message(self.inbox.message)),
                Found::Pending => {
                    if let Some(event) = self.pending.pop_front() {
                        return Ok(event);
                    }
                }
            }
        }
    }

    pub(super) fn wait_for_any(&mut self, wanted: Wanted, deadline: Deadline) -> Result<Found, IpcError> {
        self.waker.get_up();
        self.attached.get_up();
        self.watch.pause();
        self.take_up_news();
        if self.is_spinning() {
            self.attached.heat_all();
        }
        self.unpolled = self.unpolled.saturating_add(1);
        let limit = match (self.is_all_in_memory(), self.is_spinning()) {
            (false, _) => UNPOLLED_MAX,
            (true, false) => UNPOLLED_IN_MEMORY_MAX,
            (true, true) => u32::MAX,
        };
        if self.unpolled > limit {
            self.poll_descriptors(Some(Duration::ZERO))?;
        }
        if let Some(found) = self.look(wanted) {
            return Ok(found);
        }
        if !deadline.has_passed()
            && let Some(event) = self.look_for_a_while(wanted, deadline)
        {
            return Ok(event);
        }
        loop {
            if std::mem::take(&mut self.woken_up) {
                self.seen_wakeups = self.control.wakeups();
                return Err(IpcError::WokenUp);
            }
            if let Some(error) = own_end(&self.control) {
                return Err(error);
            }
            self.settle_hold();
            self.arm_all(wanted);
            self.waker.fall_asleep();
            if let Some(event) = self.look(wanted) {
                return Ok(event);
            }
            // What is hot after arming has news that came to nothing in the look, as a message withdrawn meanwhile.
            let is_news = !self.attached.hot().is_empty() || self.is_other_news(wanted);
            self.poll_descriptors(if is_news { Some(Duration::ZERO) } else { deadline.left() })?;
            if let Some(event) = self.look(wanted) {
                return Ok(event);
            }
            if deadline.has_passed() && self.attached.hot().is_empty() {
                // Asleep for whoever polls `fd` now.
                self.waker.fall_asleep();
                if !self.is_other_news(wanted) {
                    self.watch.go_on(wanted);
                    return Err(IpcError::TimedOut);
                }
            }
        }
    }

    /// Makes everything hot that came, or was passed over, since the last wait for anything.
    pub(super) fn take_up_news(&mut self) {
        self.attached.heat_neglected();
        if self.connection.has_kept_notices() {
            self.take_notices();
        }
        self.settle_lanes();
    }

    fn is_spinning(&self) -> bool {
        self.budget.mode() == WaitMode::Spin
    }

    /// Whether the port would see every message that came without its descriptors: all channels are hot, and the
    /// broker, which bumps the event of the own page with every channel it makes, said nothing since the descriptors
    /// were looked at.
    fn is_all_in_memory(&self) -> bool {
        self.attached.hot().len() == self.attached.len() && self.control.event() == self.polled_event
    }

    /// Pauses and yields as far as it paid lately.
    fn look_for_a_while(&mut self, wanted: Wanted, deadline: Deadline) -> Option<Found> {
        if self.attached.hot().is_empty() {
            return None;
        }
        let plan = self.budget.plan();
        for pause in 1..=plan.pauses {
            std::hint::spin_loop();
            if let Some(event) = self.look(wanted) {
                self.budget.learn(Ended::Pausing);
                return Some(event);
            }
            if pause % SPIN_BATCH == 0 && (deadline.has_passed() || !self.is_all_in_memory()) {
                return None;
            }
        }
        let mut yields = Yields::default();
        for count in 1..=plan.yields {
            rustix::thread::sched_yield();
            if let Some(event) = self.look(wanted) {
                self.budget.learn(Ended::Yielding(count));
                return Some(event);
            }
            if yields.went() == Went::ToOthers {
                self.budget.learn(Ended::Crowded);
                return None;
            }
        }
        self.budget.learn(Ended::Parked);
        None
    }

    /// One look at everything in memory.
    fn look(&mut self, wanted: Wanted) -> Option<Found> {
        if wanted == Wanted::Everything {
            if !self.pending.is_empty() {
                return Some(Found::Pending);
            }
            if self.waker.take() {
                return Some(self.found(Event::Woken));
            }
            if let Some(event) = self.look_for_notifications() {
                return Some(self.found(event));
            }
        }
        let mut position = 0;
        while let Some(key) = self.attached.hot().get(position).copied() {
            match self.look_at(key, wanted) {
                Ok(Some(found)) => {
                    self.attached.served(position, key);
                    return Some(found);
                }
                Ok(None) => {
                    let is_idle = self.attached.is_idle_after_look(key) && !self.is_spinning();
                    if !is_idle || self.arm(key, wanted) == News::Wanted {
                        position += 1;
                    }
                }
                Err(error) => self.close_slot(key, error),
            }
        }
        (wanted == Wanted::Everything && !self.pending.is_empty()).then_some(Found::Pending)
    }

    /// To be reported next.
    pub(super) fn found(&mut self, event: Event) -> Found {
        self.pending.push_front(event);
        Found::Pending
    }

    fn look_for_notifications(&mut self) -> Option<Event> {
        if let Some(event) = self.notification_for_another() {
            return Some(event);
        }
        for position in 0..self.attached.hot().len() {
            let key = self.attached.hot().get(position).copied()?;
            if let Some(event) = self.look_for_notification(key) {
                return Some(event);
            }
        }
        None
    }

    fn look_for_notification(&mut self, key: AttachedKey) -> Option<Event> {
        let attached = self.attached.get_mut(key)?;
        let Use::Messages(talk) = &mut attached.usage else { return None };
        match talk.take_notifications(&attached.half) {
            0 => None,
            mask => Some(Event::Notified { from: attached.peer, mask }),
        }
    }

    fn look_at(&mut self, key: AttachedKey, wanted: Wanted) -> Result<Option<Found>, IpcError> {
        let Some(attached) = self.attached.get_mut(key) else { return Ok(None) };
        match &attached.usage {
            Use::Copies(lane) => {
                if serve(lane, &mut self.lanes.copying.grants) {
                    self.attached.stay_hot(key);
                }
                Ok(None)
            }
            Use::Delegation { .. } => self.look_at_delegation(key, wanted),
            Use::Ring(_) if wanted != Wanted::Everything => Ok(None),
            Use::Ring(ring) => match ring.closed_here() {
                Some(reason) => Err(reason),
                None if ring.has_submissions() => {
                    let event = Event::RingReady(RingId(attached.channel.0));
                    Ok(Some(self.found(event)))
                }
                None => Ok(None),
            },
            Use::Messages(_) if self.control.is_held() => Ok(None),
            Use::Messages(_) => Ok(self.take_message(key, wanted)?.then_some(Found::Message)),
        }
    }

    /// Arms every hot channel; one with wanted news stays hot. Dead ones are forgotten.
    pub(super) fn arm_all(&mut self, wanted: Wanted) {
        let mut keys = self.attached.take_hot();
        for key in keys.drain(..) {
            if self.arm(key, wanted) == News::None {
                let gone = self.attached.get_mut(key).and_then(|attached| gone(&attached.half));
                match gone {
                    Some(gone) => self.end_slot(key, gone.reason(IpcError::SourceDied)),
                    None => self.attached.doze(key),
                }
            }
        }
        self.attached.give_back(keys);
    }

    /// Arms a channel and looks at it once more: with wanted news it is hot again; with other news it will not ring for
    /// them, so the next wait begins with it.
    fn arm(&mut self, key: AttachedKey, wanted: Wanted) -> News {
        self.attached.arm(key);
        let is_held = self.control.is_held();
        let Some(attached) = self.attached.get_mut(key) else { return News::None };
        let news = match attached.usage {
            Use::Delegation { .. } => self.news_of_delegation(key),
            _ => news_of(attached, wanted, is_held),
        };
        match news {
            News::None => {}
            News::Wanted => {
                self.attached.heat(key);
            }
            News::Unwanted => self.attached.neglect(key),
        }
        news
    }

    /// Wakes and events that lie in no channel and came after the look.
    pub(super) fn is_other_news(&self, wanted: Wanted) -> bool {
        let is_any = || !self.pending.is_empty() || self.waker.is_woken() || self.has_bits_apart();
        wanted == Wanted::Everything && is_any()
    }

    pub(super) fn poll_descriptors(&mut self, limit: Option<Duration>) -> Result<(), IpcError> {
        self.unpolled = 0;
        self.polled_event = self.control.event();
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let result = self.poller.wait(&mut ready, limit);
        self.waker.get_up();
        if !ready.is_empty() {
            self.attached.get_up();
        }
        for token in &ready {
            match *token {
                TOKEN_BROKER => self.take_notices(),
                TOKEN_WAKER => sys::eventfd::drain(self.waker.fd()),
                token => {
                    if let Some(key) = AttachedKey::of_token(token) {
                        self.attached.heat(key);
                    }
                }
            }
        }
        self.ready = ready;
        result.map_err(IpcError::from)
    }
}

/// What a look came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// A message lies in the inbox.
    Message,
    /// There are pending events.
    Pending,
}

/// What lies in a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum News {
    None,
    Wanted,
    /// Only what this wait does not take.
    Unwanted,
}

fn news_of(attached: &mut Attached, wanted: Wanted, is_held: bool) -> News {
    let (is_any, is_wanted) = match &mut attached.usage {
        Use::Copies(lane) => (lane.has_submissions(), lane.has_submissions() && lane.is_closed().is_none()),
        Use::Delegation { .. } => (false, false),
        Use::Ring(ring) => {
            let is_any = ring.closed_here().is_some() || ring.has_submissions();
            (is_any, is_any && wanted == Wanted::Everything)
        }
        Use::Messages(talk) => {
            let is_notified = talk.has_notifications(&attached.half);
            let (is_offered, is_taken_now) = match talk.offered(&attached.half) {
                Ok(Some(word)) => (true, !is_held && (wanted != Wanted::Requests || word.kind == Kind::Request)),
                Ok(None) => (false, false),
                Err(_) => (true, true),
            };
            (is_notified || is_offered, is_taken_now || is_notified && wanted == Wanted::Everything)
        }
    };
    match (is_any, is_wanted) {
        (_, true) => News::Wanted,
        (true, false) => News::Unwanted,
        (false, false) => News::None,
    }
}
