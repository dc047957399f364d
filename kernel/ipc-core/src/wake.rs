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
//! Either the publisher sees `parked`, or the sleeper's second look sees P: both fences are needed, and the model below
//! loses a wake-up without either. The memory is whatever implements [`Words`]: that of a channel, or the model's.

use abi::layout::parked;

/// The words of one channel, as one of its parties reaches them.
pub trait Words {
    /// How the peer waits: a plain load.
    fn peer_parked(&self) -> u32;
    /// How this party waits: a plain store.
    fn set_own_parked(&self, how: u32);
    /// A full fence.
    fn fence(&self);
    /// Adds one to the word that the peer sleeps on, with Release.
    fn bump_event(&self);
    /// Wakes a peer that sleeps in the way it said.
    fn wake_peer(&self, how: u32);
}

/// After every publication: wakes the peer if it sleeps.
#[inline]
pub fn kick(words: &impl Words) {
    // Pairs with the fence in `prepare_sleep`.
    words.fence();
    match words.peer_parked() {
        parked::AWAKE => {}
        how => {
            words.bump_event();
            words.wake_peer(how);
        }
    }
}

/// Says how this party is about to sleep. It looks at everything once more afterwards.
#[inline]
pub fn prepare_sleep(words: &impl Words, how: u32) {
    words.set_own_parked(how);
    if how != parked::AWAKE {
        // Pairs with the fence in `kick`.
        words.fence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering, fence};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Fence {
        There,
        Removed,
    }

    /// The words between a publisher and a sleeper.
    struct Channel {
        published: AtomicU32,
        event: AtomicU32,
        parked: AtomicU32,
    }

    struct Party {
        channel: Arc<Channel>,
        fence: Fence,
    }

    impl Words for Party {
        fn peer_parked(&self) -> u32 {
            self.channel.parked.load(Ordering::Relaxed)
        }

        fn set_own_parked(&self, how: u32) {
            self.channel.parked.store(how, Ordering::Relaxed);
        }

        fn fence(&self) {
            if self.fence == Fence::There {
                fence(Ordering::SeqCst);
            }
        }

        fn bump_event(&self) {
            self.channel.event.fetch_add(1, Ordering::Release);
        }

        fn wake_peer(&self, _how: u32) {}
    }

    /// What the sleeper did.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Slept {
        No,
        /// While the event is this.
        While(u32),
    }

    fn sleep(party: &Party) -> Slept {
        let channel = &party.channel;
        let seen = channel.event.load(Ordering::Acquire);
        prepare_sleep(party, parked::FUTEX);
        if channel.published.load(Ordering::Acquire) != 0 {
            prepare_sleep(party, parked::AWAKE);
            return Slept::No;
        }
        // The kernel compares and sleeps in one step; whoever changes the event afterwards wakes.
        match channel.event.compare_exchange(seen, seen, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Slept::While(seen),
            Err(_) => Slept::No,
        }
    }

    /// Whether some order of two publications and a sleep leaves the sleeper asleep with something published.
    fn loses_a_wake_up(publisher: Fence, sleeper: Fence) -> bool {
        let model = move || {
            let channel = Arc::new(Channel {
                published: AtomicU32::new(0),
                event: AtomicU32::new(0),
                parked: AtomicU32::new(parked::AWAKE),
            });
            let other = Party { channel: channel.clone(), fence: publisher };
            let thread = loom::thread::spawn(move || {
                other.channel.published.store(1, Ordering::Release);
                kick(&other);
            });
            let slept = sleep(&Party { channel: channel.clone(), fence: sleeper });
            thread.join().unwrap();
            if let Slept::While(event) = slept {
                assert_ne!(channel.event.load(Ordering::SeqCst), event, "asleep for ever");
            }
        };
        catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_err()
    }

    #[test]
    fn no_order_of_events_loses_a_wake_up() {
        assert!(!loses_a_wake_up(Fence::There, Fence::There));
    }

    #[test]
    fn publisher_without_its_fence_loses_a_wake_up() {
        assert!(loses_a_wake_up(Fence::Removed, Fence::There));
    }

    #[test]
    fn sleeper_without_its_fence_loses_a_wake_up() {
        assert!(loses_a_wake_up(Fence::There, Fence::Removed));
    }
}
