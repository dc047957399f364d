//! How long a waiter looks before it parks.
//!
//! Looking costs CPU that the peer may need; parking costs a wake-up, which on an idle virtual CPU is tens of
//! microseconds. Nobody knows where the peer runs, so the waiter measures: a wait that ended while it paused says that
//! the peer runs on another CPU; one that ended while it yielded, or not before parking, says that pausing stole from
//! the peer.
//!
//! - **Pausing** pays or rests. While it pays, failures halve the pauses and successes double them. Once it does not it
//!   rests, for longer each time, and between rests a trial of a few waits decides. A single wait decides nothing: of
//!   several pairs on few CPUs some peer always happens to run.
//! - **Yielding** is for a peer on our own CPU, and for one elsewhere that works for longer than it pays to pause: a
//!   wait yields twice as often as the last one needed. A yield that was away for long gave the CPU to somebody who
//!   computes: then parking is quicker, because a wake-up preempts and a yield does not.
//! - **Parking feeds itself.** When both sides park, each waits for the other's wake-up, which no ordinary budget
//!   outlasts, so both would park for ever. So the wait after one that parked yields for longer than a wake-up takes,
//!   and when that fails the second after it, the fourth, the eighth. That costs nobody who wants the CPU anything.
//!
//! Bounds, in adaptive mode: a wait pauses at most `PAUSES_MAX` times (a few microseconds) and yields at most
//! `YIELDS_LONG` times, so an idle endpoint uses no CPU.

use std::time::Duration;

/// How a container or an endpoint wants to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WaitMode {
    /// Sleep at once: for containers with less than one CPU.
    Park,
    #[default]
    Adaptive,
    /// Look for about a second before sleeping: no system call while messages flow, and a CPU of its own for it.
    Spin,
}

impl WaitMode {
    /// By its name: `park`, `adaptive`, `spin`.
    pub fn named(name: &str) -> Option<WaitMode> {
        match name {
            "park" => Some(WaitMode::Park),
            "adaptive" => Some(WaitMode::Adaptive),
            "spin" => Some(WaitMode::Spin),
            _ => None,
        }
    }
}

/// How the last wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    Pausing,
    /// After so many yields.
    Yielding(u32),
    Parked,
    /// It parked because a yield was away for [`CROWDED_AFTER`].
    Crowded,
}

/// What one wait may spend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    pub pauses: u32,
    pub yields: u32,
}

pub const PAUSES_MAX: u32 = 128;
const PAUSES_FIRST: u32 = 48;
/// Fewer are not worth the trouble.
const PAUSES_MIN: u32 = 8;
/// Waits of a trial of pausing, and how many of them have to end that way.
const TRIAL_WAITS: u32 = 4;
const TRIAL_WINS: u32 = 3;
/// Waits between two trials: doubled with each that fails.
const REST_FIRST: u32 = 64;
const REST_MAX: u32 = 4096;

/// After a wait that needed few.
const YIELDS_SHORT: u32 = 16;
const YIELDS_MIN: u32 = 4;
/// Longer than a wake-up takes: 0.3 to 0.9 microseconds each on a CPU that nobody else wants.
const YIELDS_LONG: u32 = 256;
/// Waits that parked between two long ones: doubled with each that fails. The first that parks is mostly of a peer that
/// was held up once, and would hold up the next in turn.
const LONG_FIRST: u32 = 1;
/// The same after a yield that went to somebody who computes, each of which costs his slice.
const LONG_CROWDED: u32 = 8;
const LONG_MAX: u32 = 1024;
/// A yield that is away longer went to somebody who computes. Peers that take turns are back sooner, even hundreds of
/// them.
pub const CROWDED_AFTER: Duration = Duration::from_micros(500);

/// About a second: a peer that says nothing for so long may as well be waited for asleep.
pub const PAUSES_SPIN: u32 = 1 << 24;

#[derive(Clone, Debug)]
pub struct Budget {
    mode: WaitMode,
    cpus: Cpus,
    pausing: Pausing,
    yielding: Yielding,
}

#[derive(Clone, Copy, Debug)]
enum Pausing {
    Pays {
        pauses: u32,
    },
    /// For so many waits; the rest after the next trial that fails.
    Rests {
        waits: u32,
        next: u32,
    },
    /// A trial; the rest that follows when it fails.
    Tried {
        waits: u32,
        wins: u32,
        next: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Yielding {
    yields: u32,
    /// Waits in a row that parked.
    parked: u32,
    /// After how many of them a wait is long.
    long_after: u32,
}

/// How many CPUs' time this process and its peers may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cpus {
    One,
    Several,
}

impl Budget {
    pub fn new(mode: WaitMode, cpus: Cpus) -> Budget {
        let yielding = Yielding { yields: YIELDS_SHORT, parked: 0, long_after: LONG_FIRST };
        Budget { mode, cpus, pausing: Pausing::Pays { pauses: PAUSES_FIRST }, yielding }
    }

    pub fn set_mode(&mut self, mode: WaitMode) {
        self.mode = mode;
    }

    #[inline]
    pub fn mode(&self) -> WaitMode {
        self.mode
    }

    /// What the wait that begins now may spend.
    #[inline]
    pub fn plan(&mut self) -> Plan {
        match self.mode {
            WaitMode::Park => Plan { pauses: 0, yields: 0 },
            WaitMode::Spin => Plan { pauses: PAUSES_SPIN, yields: YIELDS_SHORT },
            WaitMode::Adaptive => {
                let pauses = if self.cpus == Cpus::One { 0 } else { self.pausing.plan() };
                Plan { pauses, yields: self.yielding.plan() }
            }
        }
    }

    /// Tells how a wait ended that was not over before it began.
    #[inline]
    pub fn learn(&mut self, ended: Ended) {
        self.pausing.learn(ended);
        self.yielding.learn(ended);
    }
}

impl Pausing {
    #[inline]
    fn plan(&mut self) -> u32 {
        match self {
            Pausing::Pays { pauses } => *pauses,
            Pausing::Rests { waits: 0, next } => {
                *self = Pausing::Tried { waits: 0, wins: 0, next: *next };
                PAUSES_FIRST
            }
            Pausing::Rests { waits, .. } => {
                *waits -= 1;
                0
            }
            Pausing::Tried { .. } => PAUSES_FIRST,
        }
    }

    #[inline]
    fn learn(&mut self, ended: Ended) {
        let is_won = ended == Ended::Pausing;
        match self {
            Pausing::Pays { pauses } if is_won => *pauses = (*pauses * 2).min(PAUSES_MAX),
            Pausing::Pays { pauses } if *pauses / 2 >= PAUSES_MIN => *pauses /= 2,
            Pausing::Pays { .. } => *self = Pausing::Rests { waits: REST_FIRST, next: REST_FIRST * 2 },
            Pausing::Rests { .. } => {}
            Pausing::Tried { waits, wins, next } => {
                *waits += 1;
                *wins += u32::from(is_won);
                if *waits == TRIAL_WAITS {
                    *self = Pausing::after_trial(*wins, *next);
                }
            }
        }
    }

    fn after_trial(wins: u32, rest: u32) -> Pausing {
        if wins >= TRIAL_WINS {
            Pausing::Pays { pauses: PAUSES_MAX }
        } else {
            Pausing::Rests { waits: rest, next: (rest * 2).min(REST_MAX) }
        }
    }
}

impl Yielding {
    #[inline]
    fn plan(&self) -> u32 {
        if self.is_long() { YIELDS_LONG } else { self.yields }
    }

    #[inline]
    fn is_long(&self) -> bool {
        self.parked >= self.long_after
    }

    #[inline]
    fn learn(&mut self, ended: Ended) {
        match ended {
            // A peer on another CPU says nothing of who wants ours.
            Ended::Pausing => {
                self.parked = 0;
                return;
            }
            Ended::Yielding(yields) => {
                let yields = yields.saturating_mul(2).clamp(YIELDS_SHORT, YIELDS_LONG);
                *self = Yielding { yields, parked: 0, long_after: LONG_FIRST };
                return;
            }
            Ended::Parked => self.yields = (self.yields / 2).max(YIELDS_MIN.min(self.yields)),
            Ended::Crowded => (self.yields, self.long_after) = (0, self.long_after.max(LONG_CROWDED)),
        }
        if self.is_long() {
            *self = Yielding { parked: 0, long_after: (self.long_after * 2).min(LONG_MAX), ..*self };
        } else {
            self.parked += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: WaitMode = WaitMode::Adaptive;
    /// Nanoseconds, of a machine on which each is as bad as it gets for whoever waits.
    const PAUSE: u64 = 15;
    const YIELD: u64 = 850;
    const WORK: u64 = 400;
    const WAKE_UP: u64 = 40_000;

    /// How a wait of `party` ends whose answer comes after `after` nanoseconds, and when it has it.
    fn wait(party: &mut Budget, after: u64, asleep: u64) -> (Ended, u64) {
        let Plan { pauses, yields } = party.plan();
        let (paused, yielded) = (u64::from(pauses) * PAUSE, u64::from(yields) * YIELD);
        let (ended, took) = if after <= paused {
            (Ended::Pausing, after)
        } else if after <= paused + yielded {
            let yields = (after - paused).div_ceil(YIELD);
            (Ended::Yielding(yields as u32), paused + yields * YIELD)
        } else {
            (Ended::Parked, after.max(paused + yielded) + asleep)
        };
        party.learn(ended);
        (ended, took)
    }

    /// Two parties on a CPU each, the first message of which comes `after`: what one of the last hundred of `trips`
    /// round trips took.
    fn round_trip_on_two_cpus(client: &mut Budget, server: &mut Budget, trips: u32, after: u64) -> u64 {
        let (mut clients_answer, mut last, mut all) = (after, trips.min(100), 0);
        for left in (0..trips).rev() {
            let (_, servers_wait) = wait(server, clients_answer, WAKE_UP);
            // How long the other is away: its wake-up, when it slept, and its work.
            let late = servers_wait.saturating_sub(clients_answer);
            let (_, clients_wait) = wait(client, late + WORK, WAKE_UP);
            clients_answer = clients_wait.saturating_sub(late + WORK) + WORK;
            if left < last {
                last = left;
                all += clients_wait + WORK;
            }
        }
        all / u64::from(trips.min(100))
    }

    fn adaptive() -> Budget {
        Budget::new(MODE, Cpus::Several)
    }

    fn after(endings: &[(Ended, u32)]) -> Budget {
        let mut budget = adaptive();
        for &(ended, times) in endings {
            for _ in 0..times {
                budget.plan();
                budget.learn(ended);
            }
        }
        budget
    }

    #[test]
    fn parties_on_two_cpus_find_each_other_awake() {
        assert!(round_trip_on_two_cpus(&mut adaptive(), &mut adaptive(), 10_000, WORK) < 3 * WORK);
    }

    #[test]
    fn parties_that_both_park_come_out_of_it() {
        let (mut client, mut server) = (after(&[(Ended::Parked, 1000)]), after(&[(Ended::Parked, 1000)]));
        let slow = round_trip_on_two_cpus(&mut client.clone(), &mut server.clone(), 10, WAKE_UP);
        assert!(slow > WAKE_UP, "the test begins where wake-ups feed themselves");
        assert!(round_trip_on_two_cpus(&mut client, &mut server, 10_000, WAKE_UP) < 3 * WORK);
    }

    #[test]
    fn parties_that_both_yield_on_two_cpus_come_to_pause() {
        let (mut client, mut server) = (after(&[(Ended::Yielding(1), 1000)]), after(&[(Ended::Yielding(1), 1000)]));
        assert!(round_trip_on_two_cpus(&mut client, &mut server, 10_000, WORK) < 3 * WORK);
    }

    #[test]
    fn peer_on_the_same_cpu_loses_next_to_nothing_to_trials() {
        let mut budget = after(&[(Ended::Yielding(1), 10_000)]);
        let mut pauses = 0;
        for _ in 0..100_000 {
            pauses += budget.plan().pauses;
            budget.learn(Ended::Yielding(1));
        }
        assert!(pauses > 0, "the peer may have moved");
        assert!(pauses < 100_000 / 10);
    }

    #[test]
    fn success_now_and_then_does_not_make_pausing_pay() {
        let mut budget = after(&[(Ended::Yielding(1), 100)]);
        let mut pauses = 0;
        for wait in 0..10_000 {
            pauses += budget.plan().pauses;
            budget.learn(if wait % 4 == 0 { Ended::Pausing } else { Ended::Yielding(1) });
        }
        assert!(pauses < 10_000);
    }

    #[test]
    fn yields_that_go_to_others_stop_until_they_are_tried_again() {
        let mut budget = after(&[(Ended::Crowded, 1)]);
        assert_eq!(budget.plan().yields, 0);
        let trials = (0..100_000).filter(|_| {
            let is_trial = budget.plan().yields > 0;
            budget.learn(if is_trial { Ended::Crowded } else { Ended::Parked });
            is_trial
        });
        assert!((1..200).contains(&trials.count()));
        budget.learn(Ended::Pausing);
        assert_eq!(budget.plan().yields, 0, "who answers from another CPU does not free ours");
        budget.learn(Ended::Yielding(1));
        assert_eq!(budget.plan().yields, YIELDS_SHORT);
    }

    #[test]
    fn one_cpu_never_pauses() {
        let mut budget = Budget::new(MODE, Cpus::One);
        for ended in [Ended::Pausing, Ended::Yielding(1), Ended::Pausing] {
            budget.learn(ended);
            assert_eq!(budget.plan().pauses, 0);
        }
    }

    #[test]
    fn mode_can_be_changed_and_is_known_by_its_name() {
        let mut budget = Budget::new(MODE, Cpus::One);
        budget.set_mode(WaitMode::named("spin").unwrap());
        assert_eq!(budget.plan().pauses, PAUSES_SPIN);
        assert_eq!(WaitMode::named("sleep"), None);
    }

    #[test]
    fn parking_endpoint_never_looks_twice() {
        let mut budget = Budget::new(WaitMode::Park, Cpus::Several);
        budget.learn(Ended::Pausing);
        assert_eq!(budget.plan(), Plan { pauses: 0, yields: 0 });
    }
}
