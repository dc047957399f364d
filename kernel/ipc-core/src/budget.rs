//! How long a waiter looks before it parks.
//!
//! Looking costs CPU that the peer may need; parking costs a wake-up, which on an idle virtual CPU is forty microseconds.
//! Nobody knows where the peer runs, so the waiter measures: a wait that ended while it paused says that the peer runs on
//! another CPU, and the pauses grow; one that ended while it yielded, or not before parking, says that pausing stole from
//! the peer, and they shrink to nothing. From nothing they are tried again now and then.
//!
//! Bounds, in adaptive mode: a wait pauses at most `PAUSES_MAX` times (a few microseconds) and yields at most `YIELDS_MAX` times, so an idle
//! endpoint uses no CPU.

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
    Yielding,
    Parked,
}

/// What one wait may spend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    pub pauses: u32,
    pub yields: u32,
}

pub const PAUSES_MAX: u32 = 128;
pub const YIELDS_MAX: u32 = 16;
const YIELDS_MIN: u32 = 2;
const PAUSES_FIRST: u32 = 48;
/// Waits between two trials of pausing once it did not pay.
const TRIAL_EVERY: u32 = 64;
/// About a second: a peer that says nothing for so long may as well be waited for asleep.
pub const PAUSES_SPIN: u32 = 1 << 24;

#[derive(Clone, Debug)]
pub struct Budget {
    mode: WaitMode,
    pauses: u32,
    yields: u32,
    waits: u32,
    several_cpus: bool,
}

/// How many CPUs this process may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cpus {
    One,
    Several,
}

impl Budget {
    pub fn new(mode: WaitMode, cpus: Cpus) -> Budget {
        let several_cpus = cpus == Cpus::Several;
        let pauses = if several_cpus { PAUSES_FIRST } else { 0 };
        Budget { mode, pauses, yields: YIELDS_MAX, waits: 0, several_cpus }
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
        self.waits = self.waits.wrapping_add(1);
        match self.mode {
            WaitMode::Park => Plan { pauses: 0, yields: 0 },
            WaitMode::Spin => Plan { pauses: PAUSES_SPIN, yields: YIELDS_MAX },
            WaitMode::Adaptive if self.pauses == 0 && self.several_cpus && self.waits.is_multiple_of(TRIAL_EVERY) => {
                Plan { pauses: PAUSES_FIRST, yields: self.yields }
            }
            WaitMode::Adaptive => Plan { pauses: self.pauses, yields: self.yields },
        }
    }

    /// Tells how a wait ended that was not over before it began.
    #[inline]
    pub fn learn(&mut self, ended: Ended) {
        match ended {
            Ended::Pausing => self.pauses = (self.pauses + 16).min(PAUSES_MAX),
            Ended::Yielding => {
                self.pauses /= 2;
                self.yields = (self.yields + 2).min(YIELDS_MAX);
            }
            Ended::Parked => {
                self.pauses /= 2;
                self.yields = self.yields.saturating_sub(1).max(YIELDS_MIN);
            }
        }
        if !self.several_cpus {
            self.pauses = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pausing_stops_when_it_does_not_pay_and_comes_back_when_it_does() {
        let mut budget = Budget::new(WaitMode::Adaptive, Cpus::Several);
        for _ in 0..10 {
            budget.plan();
            budget.learn(Ended::Parked);
        }
        assert_eq!(budget.plan().pauses, 0);
        let trials = (0..TRIAL_EVERY).filter(|_| budget.plan().pauses > 0).count();
        assert_eq!(trials, 1);
        for _ in 0..10 {
            budget.learn(Ended::Pausing);
        }
        assert_eq!(budget.plan().pauses, PAUSES_MAX);
    }

    #[test]
    fn one_cpu_never_pauses() {
        let mut budget = Budget::new(WaitMode::Adaptive, Cpus::One);
        for ended in [Ended::Pausing, Ended::Yielding, Ended::Pausing] {
            budget.learn(ended);
            assert_eq!(budget.plan().pauses, 0);
        }
    }

    #[test]
    fn mode_can_be_changed_and_is_known_by_its_name() {
        let mut budget = Budget::new(WaitMode::Adaptive, Cpus::One);
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
