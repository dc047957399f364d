//! Until when a primary may answer reads. Both sides look at their own monotonic clock; neither is told the other's
//! time. Milliseconds.

/// A backup that was asked grants this, from when it was asked, by the primary's clock.
pub const TERM_MS: u64 = 500;
/// It promises to serve nobody for this, from when it heard, by its own clock: the two may differ by a tenth in speed.
pub const PROMISE_MS: u64 = 550;
/// How often a primary asks.
pub const ASK_EVERY_MS: u64 = 150;
const _: () = assert!(PROMISE_MS * 10 >= TERM_MS * 11 && ASK_EVERY_MS * 3 <= TERM_MS);

/// What a backup granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promised {
    until_ms: u64,
}

impl Promised {
    /// Who begins has forgotten what it granted.
    pub fn at_begin(now_ms: u64) -> Promised {
        Promised { until_ms: now_ms.saturating_add(PROMISE_MS) }
    }

    pub fn grant(&mut self, now_ms: u64) {
        self.until_ms = self.until_ms.max(now_ms.saturating_add(PROMISE_MS));
    }

    /// From when on it may serve.
    pub fn until_ms(self) -> u64 {
        self.until_ms
    }
}

/// What one backup granted the primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    since_ms: u64,
    until_ms: u64,
    last_asked_ms: Option<u64>,
}

impl Lease {
    /// What was asked before is worth nothing.
    pub fn from(now_ms: u64) -> Lease {
        Lease { since_ms: now_ms, ..Lease::default() }
    }

    /// Whether it is time to ask again; then it is taken for asked.
    pub fn ask(&mut self, now_ms: u64) -> bool {
        let is_due = self.last_asked_ms.is_none_or(|last| now_ms.saturating_sub(last) >= ASK_EVERY_MS);
        if is_due {
            self.last_asked_ms = Some(now_ms);
        }
        is_due
    }

    /// Granted, as of when it was asked.
    pub fn granted(&mut self, asked_ms: u64) {
        if asked_ms >= self.since_ms {
            self.until_ms = self.until_ms.max(asked_ms.saturating_add(TERM_MS));
        }
    }

    /// 0: no read is answered.
    pub fn left_ms(self, now_ms: u64) -> u64 {
        self.until_ms.saturating_sub(now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_serves_after_the_last_read_whatever_the_delay_and_the_speed_of_clocks() {
        // The primary's clock runs at 100, the backup's between 91 and 109.
        for speed in 91..=109 {
            for delay in [0, 1, 100, 499, 10_000] {
                let asked = 1000;
                let mut lease = Lease::default();
                lease.granted(asked);
                let heard = (asked + delay) * speed / 100;
                let mut promised = Promised::at_begin(0);
                promised.grant(heard);
                let last_read = asked + TERM_MS - 1;
                assert_eq!((lease.left_ms(last_read), lease.left_ms(last_read + 1)), (1, 0));
                let serves_at = promised.until_ms() * 100 / speed;
                assert!(serves_at > last_read, "speed {speed} delay {delay}: {serves_at}");
            }
        }
    }

    #[test]
    fn asks_now_and_then_and_never_forgets_the_longer_one() {
        let mut lease = Lease::default();
        assert!(lease.ask(10) && !lease.ask(10 + ASK_EVERY_MS - 1) && lease.ask(10 + ASK_EVERY_MS));
        lease.granted(100);
        lease.granted(50);
        assert_eq!(lease.left_ms(599), 1);
        let mut anew = Lease::from(200);
        anew.granted(199);
        assert_eq!(anew.left_ms(200), 0);
        anew.granted(200);
        assert_eq!(anew.left_ms(200), TERM_MS);
        let mut promised = Promised::at_begin(1000);
        promised.grant(500);
        assert_eq!(promised.until_ms(), 1550);
    }
}
