//! The monotonic clock, as processes of one machine can compare it.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since some moment before all of them.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}
