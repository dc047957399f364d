//! Until when the owner of a disk may answer from memory.
//!
//! Another one opens the disk when this one was moved, or when its node was lost; it is served only after this one's
//! hold is over. So nothing that may have changed is answered after that (`vos_api::disk::Hold`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A hold that ends in less is asked for again.
const SOON: Duration = Duration::from_millis(250);

/// Of one server.
pub struct OwnHold {
    began: Instant,
    /// In nanoseconds since then.
    until: AtomicU64,
    asking: Mutex<()>,
}

impl OwnHold {
    pub fn none() -> OwnHold {
        OwnHold { began: Instant::now(), until: AtomicU64::new(0), asking: Mutex::default() }
    }

    fn now(&self) -> u64 {
        nanoseconds(self.began.elapsed())
    }

    pub fn is_over(&self) -> bool {
        self.now() >= self.until.load(Ordering::Acquire)
    }

    pub fn ends_soon(&self) -> bool {
        self.now().saturating_add(nanoseconds(SOON)) >= self.until.load(Ordering::Acquire)
    }

    /// Asks the disk for how long, unless somebody did meanwhile. Blocks as long as it does not answer.
    pub fn renew<E>(&self, ask: impl FnOnce() -> Result<Duration, E>) -> Result<(), E> {
        let _asking = self.asking.lock();
        if self.ends_soon() {
            let asked = self.now();
            let until = asked.saturating_add(nanoseconds(ask()?));
            self.until.fetch_max(until, Ordering::AcqRel);
        }
        Ok(())
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_of_this_process_alone_is_asked_once_and_never_again() {
        let hold = OwnHold::none();
        assert!(hold.is_over() && hold.ends_soon());
        assert_eq!(hold.renew(|| Err::<Duration, _>(7)), Err(7));
        assert!(hold.is_over());
        assert_eq!(hold.renew(|| Ok::<_, ()>(Duration::MAX)), Ok(()));
        assert!(!hold.is_over() && !hold.ends_soon());
        assert_eq!(hold.renew(|| Err::<Duration, _>(7)), Ok(()), "nobody is asked");
    }
}
