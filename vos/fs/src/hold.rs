//! Until when this server may answer from memory.
//!
//! Another one opens the volume when this one was moved, or when its node was lost; it is served by the device only
//! after this one's hold is over. So no answer is given after that: neither of a file nor of a lock. What was executed
//! and cannot be answered any more is executed again, which changes nothing that was changed before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fs_core::device::{BlockDevice, DeviceError};
use parking_lot::Mutex;

/// A hold that ends in less is asked for again.
const SOON: Duration = Duration::from_millis(250);

pub struct Hold {
    began: Instant,
    /// In nanoseconds since then.
    until: AtomicU64,
    asking: Mutex<()>,
}

impl Hold {
    pub fn none() -> Hold {
        Hold { began: Instant::now(), until: AtomicU64::new(0), asking: Mutex::default() }
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

    /// Asks the device, unless somebody did meanwhile. Blocks as long as it does not answer.
    pub fn renew(&self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        let _asking = self.asking.lock();
        if self.ends_soon() {
            let asked = self.now();
            let until = asked.saturating_add(nanoseconds(device.hold()?));
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
    use fs_core::testing::MemoryDevice;

    use super::*;

    #[test]
    fn device_of_this_process_alone_is_asked_once_and_never_again() {
        let hold = Hold::none();
        assert!(hold.is_over() && hold.ends_soon());
        hold.renew(&MemoryDevice::new(1 << 20)).unwrap();
        assert!(!hold.is_over() && !hold.ends_soon());
    }
}
