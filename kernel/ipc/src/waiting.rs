//! A wait for one peer: look, pause, yield, park; the sleeping half of the protocol in `docs/design/channel.md`.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use abi::{Endpoint, IpcError};
use ipc_core::wake::fall_asleep;
use ipc_core::{Budget, CROWDED_AFTER, Cpus, Ended, Sleep, WaitMode, Words};
use ipc_shm::{ChannelHalf, ControlPage, Life, Seen};

use crate::errors::CHANNEL_ENDS;
use crate::lanes::Attend;
use crate::wait::{Deadline, Wait};

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    TimedOut,
    /// The peer is dead, unreachable or fenced, or closed the channel, and left nothing more to see.
    PeerGone(Gone),
    /// The waiter's own binding ended, or a manager woke it.
    Own(IpcError),
    /// The peer waits for the waiter, perhaps over others, and this is the call to be refused.
    Deadlock,
}

/// How a peer, or only its channel, went. A death means different errors before and after it took a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    Died,
    For(IpcError),
    /// There is another channel, or another owner: whatever nobody took is begun again.
    Replaced(Replaced),
}

/// What took the place of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Replaced {
    /// The peer's own, opened at the same moment on another node.
    ByPeersOwn,
    /// The peer was handed over.
    ByNewOwner,
}

impl Gone {
    /// For a call that can begin again.
    pub fn or_died(self, died: IpcError) -> Failure {
        match self {
            Gone::Died => Failure::Error(died),
            Gone::For(error) => Failure::Error(error),
            Gone::Replaced(by) => Failure::Again(by),
        }
    }

    /// Why a channel has ended, as its parties say it to each other and to the broker.
    pub fn reason(self, died: IpcError) -> IpcError {
        match self {
            Gone::Died => died,
            Gone::For(error) => error,
            Gone::Replaced(Replaced::ByPeersOwn) => IpcError::EndpointInUse,
            Gone::Replaced(Replaced::ByNewOwner) => IpcError::Moved,
        }
    }
}

/// Why a call over one channel came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// Its caller hears that.
    Error(IpcError),
    /// Its caller hears nothing: the peer did not take it, and it is begun again over the channel that is there now.
    Again(Replaced),
}

impl From<IpcError> for Failure {
    fn from(error: IpcError) -> Failure {
        Failure::Error(error)
    }
}

/// Whether a manager's wake-up ends the wait: only waits for a message that nobody promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WakeUps {
    Ignored,
    /// The count that was seen before.
    Since(u32),
}

/// What a wait is for, besides what it looks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub deadline: Deadline,
    pub wake_ups: WakeUps,
    /// A wait that only this endpoint can end takes part in the search for deadlocks.
    pub waits_for: Option<Endpoint>,
}

impl Terms {
    pub fn until(deadline: Deadline) -> Terms {
        Terms { deadline, wake_ups: WakeUps::Ignored, waits_for: None }
    }

    /// Of a call to `peer`; one with a limit ends by itself.
    #[must_use]
    pub fn calling(self, peer: Endpoint) -> Terms {
        Terms { waits_for: matches!(self.deadline, Deadline::Never).then_some(peer), ..self }
    }
}

/// The longest nap: what others say is heard so much later at most.
const NAP: Duration = Duration::from_millis(1);
/// How long a sleep goes on after the nap before others are told of the wait: most end much earlier. With the nap it is
/// what a search for deadlocks waits for: of the 10 ms it may take, the rest is for some twenty wake-ups on machines
/// that may be busy.
const UNTOLD: Duration = Duration::from_millis(2);

/// Looks without success after which a hot channel is armed.
pub(crate) const IDLE_LOOKS_MAX: u32 = 256;
/// Sleeps through which a channel without news dozes. While it does, each sleep costs its being armed and looked at,
/// which for so many is less than a ring.
pub(crate) const QUIET_SLEEPS_MAX: u32 = 4;

/// Whether and how the peer of a channel went.
#[inline]
pub(crate) fn gone(half: &ChannelHalf) -> Option<Gone> {
    match (half.peer_control().life(), half.peer_closed()) {
        (Life::Alive, 0) => None,
        (life, closed) => how_gone(life, closed),
    }
}

#[cold]
fn how_gone(life: Life, closed: u32) -> Option<Gone> {
    match life {
        Life::Unreachable => return Some(Gone::For(IpcError::NoLink)),
        Life::Fenced => return Some(Gone::For(IpcError::Fenced)),
        Life::Moved => return Some(Gone::Replaced(Replaced::ByNewOwner)),
        Life::Alive | Life::Dead => {}
    }
    let reason = (closed != 0).then(|| IpcError::from_code(closed));
    match reason {
        None if life == Life::Alive => None,
        None => Some(Gone::Died),
        Some(IpcError::EndpointInUse) => Some(Gone::Replaced(Replaced::ByPeersOwn)),
        Some(IpcError::Moved) => Some(Gone::Replaced(Replaced::ByNewOwner)),
        // It was closed before: an endpoint that only its first message told of is forgotten with its last channel.
        Some(error @ IpcError::Os(_)) => Some(Gone::For(error)),
        Some(error) if CHANNEL_ENDS.contains(&error) => Some(Gone::For(error)),
        Some(_) => Some(Gone::Died),
    }
}

/// What the waiter's own page says against going on.
pub(crate) fn own_end(own: &ControlPage) -> Option<IpcError> {
    match own.life() {
        Life::Alive => None,
        Life::Fenced => Some(IpcError::Fenced),
        Life::Moved => Some(IpcError::Moved),
        Life::Dead | Life::Unreachable => Some(IpcError::NotBound),
    }
}

/// The environment variable that says how the endpoints of a process wait: `park`, `adaptive` or `spin`.
pub const WAIT_MODE_VARIABLE: &str = "DVS_WAIT";

/// Pauses of a spinning waiter between two looks at anything but what it waits for.
pub(crate) const SPIN_BATCH: u32 = 1024;
const _: () = assert!(SPIN_BATCH > ipc_core::PAUSES_MAX, "an adaptive wait looks at nothing else");

pub(crate) fn new_budget() -> Budget {
    static MODE: OnceLock<WaitMode> = OnceLock::new();
    let mode = *MODE.get_or_init(|| {
        let name = std::env::var(WAIT_MODE_VARIABLE).unwrap_or_default();
        WaitMode::named(&name).unwrap_or_default()
    });
    Budget::new(mode, cpus())
}

/// A process that keeps to one CPU may have its peer on another: whether pausing pays is found out. One whose quota is
/// a CPU at most pays for each pause with time that its work needs.
fn cpus() -> Cpus {
    let allowed = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
    match std::thread::available_parallelism() {
        Ok(count) if count.get() > 1 || allowed == 1 => Cpus::Several,
        _ => Cpus::One,
    }
}

/// Waits until `look` finds something. `look` is called often and must be cheap. Lanes are served meanwhile.
pub(crate) fn wait_for<T>(
    half: &ChannelHalf,
    own: &ControlPage,
    budget: &mut Budget,
    terms: Terms,
    attend: &mut Attend<'_>,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, Stop> {
    if let Some(found) = look() {
        return Ok(found);
    }
    loop {
        let seen_event = own.event();
        let mut look_and_serve = || {
            attend.serve();
            look()
        };
        let mut is_over = || gone(half).is_some() || own.event() != seen_event || terms.deadline.has_passed();
        if let Some(found) = look_awake(budget, &mut is_over, &mut look_and_serve) {
            return Ok(found);
        }
        if attend.has_no_lanes()
            && let Some(found) = nap(half, terms.deadline, &mut look)?
        {
            return Ok(found);
        }
        let outcome = sleep_for(half, own, terms, attend, &mut look);
        attend.tell_wait_is_over();
        if let Some(outcome) = outcome {
            return outcome;
        }
        // Whoever was served is likely to ask for more at once.
    }
}

/// How long a nap may be when so much is left of the wait.
#[inline]
pub(crate) fn nap_within(left: Option<Duration>) -> Duration {
    left.map_or(NAP, |left| left.min(NAP))
}

/// The sleep in which most waits end: on the peer's word alone, which costs less than sleeping on all that may end a
/// wait. It is short, so that what others say is heard in time.
fn nap<T>(half: &ChannelHalf, deadline: Deadline, look: &mut impl FnMut() -> Option<T>) -> Result<Option<T>, Stop> {
    let limit = nap_within(deadline.left());
    if limit.is_zero() {
        return Ok(None);
    }
    let last_look = |_: &u32| look().map(Some).or_else(|| gone(half).map(|_| None));
    let event = match fall_asleep(half, Sleep::Futex, || half.peer_event(), last_look) {
        Ok(found) => return Ok(found),
        Err(event) => event,
    };
    let outcome = half.nap(event, limit).map(|_| look()).map_err(|error| Stop::Own(error.into()));
    half.prepare_sleep(Sleep::Awake);
    outcome
}

/// Sleeps until `look` finds something, or something ends the wait; `None` when a lane was served.
fn sleep_for<T>(
    half: &ChannelHalf,
    own: &ControlPage,
    terms: Terms,
    attend: &mut Attend<'_>,
    look: &mut impl FnMut() -> Option<T>,
) -> Option<Result<T, Stop>> {
    let mut untold = terms.waits_for.map(|peer| (peer, Deadline::after(Wait::For(UNTOLD))));
    loop {
        let (mut is_served, mut limit) = (false, None);
        let last_look = |seen: &Seen| {
            attend.take_news(seen.own_control);
            attend.prepare_sleep();
            is_served = attend.serve();
            limit = terms.deadline.left();
            let ended = || attend.ended().map(|error| Err(Stop::PeerGone(Gone::For(error))));
            match last_look(half, own, terms.wake_ups, look).or_else(ended) {
                None if limit.is_some_and(|left| left.is_zero()) => Some(Some(Err(Stop::TimedOut))),
                None if is_served => Some(None),
                None if attend.is_refused() => Some(Some(Err(Stop::Deadlock))),
                found => found.map(Some),
            }
        };
        let outcome = match fall_asleep(half, Sleep::Futex, || half.seen(own), last_look) {
            Ok(outcome) => outcome,
            Err(seen) => {
                let limit = tell_wait(&mut untold, attend).or(limit);
                let slept = half.sleep_among(seen, own, attend.sleeping_on(), limit);
                half.prepare_sleep(Sleep::Awake);
                slept.err().map(|error| Err(Stop::Own(error.into())))
            }
        };
        attend.end_sleep();
        if outcome.is_some() || is_served {
            return outcome;
        }
    }
}

/// Tells the broker of a wait that has become long, and answers its questions about it, after a look that found
/// nothing. Until then: how long to sleep at most.
fn tell_wait(untold: &mut Option<(Endpoint, Deadline)>, attend: &mut Attend<'_>) -> Option<Duration> {
    let Some((peer, until)) = *untold else {
        attend.confirm_wait();
        return None;
    };
    let left = until.left().filter(|left| !left.is_zero());
    if left.is_none() {
        *untold = None;
        attend.tell_wait(peer);
    }
    left
}

/// The part of a wait that costs CPU and no wake-up. It asks `is_over` when it would otherwise miss it for long.
pub(crate) fn look_awake<T>(
    budget: &mut Budget,
    is_over: &mut impl FnMut() -> bool,
    look: &mut impl FnMut() -> Option<T>,
) -> Option<T> {
    let plan = budget.plan();
    for pause in 1..=plan.pauses {
        std::hint::spin_loop();
        if let Some(found) = look() {
            budget.learn(Ended::Pausing);
            return Some(found);
        }
        if pause % SPIN_BATCH == 0 && is_over() {
            return None;
        }
    }
    let mut yields = Yields::default();
    for count in 1..=plan.yields {
        rustix::thread::sched_yield();
        if let Some(found) = look() {
            budget.learn(Ended::Yielding(count));
            return Some(found);
        }
        if yields.went() == Went::ToOthers {
            budget.learn(Ended::Crowded);
            return None;
        }
        if is_over() {
            break;
        }
    }
    budget.learn(Ended::Parked);
    None
}

/// Yields in a row that brought nothing. The first reads the clock afterwards only: most waits end with it, and a clock
/// is not for nothing.
#[derive(Default)]
pub(crate) struct Yields {
    before: Option<Instant>,
}

/// To whom a yield gave the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Went {
    ToPeers,
    /// To somebody who computes, and has it again before we have.
    ToOthers,
}

impl Yields {
    /// After a yield.
    pub fn went(&mut self) -> Went {
        let now = Instant::now();
        match self.before.replace(now) {
            Some(before) if now.duration_since(before) > CROWDED_AFTER => Went::ToOthers,
            _ => Went::ToPeers,
        }
    }
}

/// The look after the party said that it sleeps.
fn last_look<T>(
    half: &ChannelHalf,
    own: &ControlPage,
    wake_ups: WakeUps,
    look: &mut impl FnMut() -> Option<T>,
) -> Option<Result<T, Stop>> {
    if let Some(found) = look() {
        return Some(Ok(found));
    }
    if let Some(gone) = gone(half) {
        // What it published before it went can still be taken.
        return Some(look().ok_or(Stop::PeerGone(gone)));
    }
    if let Some(error) = own_end(own) {
        return Some(Err(Stop::Own(error)));
    }
    match wake_ups {
        WakeUps::Since(seen) if own.wakeups() != seen => Some(Err(Stop::Own(IpcError::WokenUp))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer writes what it likes.
    #[test]
    fn caller_hears_of_a_channel_that_ended_only_what_it_can_act_on() {
        let lives = [Life::Alive, Life::Dead, Life::Unreachable, Life::Fenced, Life::Moved];
        for (life, closed) in lives.into_iter().flat_map(|life| (1..64).map(move |code| (life, code))) {
            let heard = match how_gone(life, closed) {
                Some(Gone::Died) => IpcError::SourceDied,
                Some(Gone::For(error)) => error,
                Some(Gone::Replaced(_)) => continue,
                None => panic!("{life:?} with {closed} is an end"),
            };
            assert!(crate::errors::SEND.contains(&heard), "{life:?} with {closed} is heard as {heard:?}");
        }
    }

    #[test]
    fn thread_that_keeps_to_one_cpu_may_have_its_peer_on_another() {
        std::thread::spawn(|| {
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
            let mut one = rustix::thread::CpuSet::new();
            one.set(first);
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            assert_eq!(cpus(), Cpus::Several);
        })
        .join()
        .unwrap();
    }
}
