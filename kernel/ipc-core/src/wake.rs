//! The protocol of sleeping and waking, see `docs/design/channel.md`: who publishes looks whether the peer sleeps, who
//! goes to sleep looks once more for what was published.
//!
//! ```text
//! publisher                      sleeper
//! store P (Release)              e = event
//! fence                          store parked
//! parked? then event += 1, wake  fence
//!                                P is there? then do not sleep
//!                                sleep while event == e
//! ```
//!
//! Either the publisher sees `parked`, or the sleeper's second look sees P: both fences are needed, and the model in
//! `tests/channel_model.rs` loses a wake-up without either.

use abi::layout::parked;

use crate::words::{Fence, Words};

/// How a party sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Not at all: it looks by itself.
    Awake,
    Futex,
    EventFd,
}

/// After every publication: wakes the peer if it sleeps.
#[inline]
pub fn kick(half: &impl Words) {
    // Pairs with the fence in `prepare_sleep`.
    half.fence(Fence::Publisher);
    match half.peer_parked() {
        parked::AWAKE => {}
        how => {
            half.bump_event();
            half.wake_peer(how);
        }
    }
}

/// Says how this party is about to sleep. It looks at everything once more afterwards.
#[inline]
pub fn prepare_sleep(half: &impl Words, sleep: Sleep) {
    let how = match sleep {
        Sleep::Awake => parked::AWAKE,
        Sleep::Futex => parked::FUTEX,
        Sleep::EventFd => parked::EVENTFD,
    };
    half.set_own_parked(how);
    if sleep != Sleep::Awake {
        // Pairs with the fence in `kick`.
        half.fence(Fence::Sleeper);
    }
}

/// Goes to sleep unless the last look finds something. `Err` is what was `seen` before that look: the party sleeps as
/// long as it is so, and says afterwards that it is awake.
#[inline]
pub fn fall_asleep<S, T>(
    half: &impl Words,
    sleep: Sleep,
    see: impl FnOnce() -> S,
    look: impl FnOnce(&S) -> Option<T>,
) -> Result<T, S> {
    let seen = see();
    prepare_sleep(half, sleep);
    let Some(found) = look(&seen) else { return Err(seen) };
    prepare_sleep(half, Sleep::Awake);
    Ok(found)
}
