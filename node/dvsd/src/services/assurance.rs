//! Until when this node's keepers may hold what runs at most once (`service_core::tenure`).
//!
//! | who says that the node was there | counts when |
//! |---|---|
//! | half of the other nodes: something that went there then was heard | each of them confirms without a pause for [`STEADY`]: whoever had suspected this node has taken that back by then |
//! | the engine | nobody accuses this node; or its objection came in before a verdict ([`crate::judging::confirm`]) |
//!
//! The engine is asked only while the others say too little, by a thread of its own: it may take its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use service_core::tenure::{EXTEND_EVERY, PERMIT};
use sys::clock::monotonic_ns;

use crate::context::Context;
use crate::judging;

/// Whoever confirms for so long without a pause does not suspect this node, and nothing that follows of an earlier
/// suspicion is still on its way.
const STEADY: Duration = Duration::from_secs(2);
/// The engine is asked when the others said nothing for so long.
const ASK_AFTER: Duration = Duration::from_millis(300);
const HURRY: Duration = Duration::from_millis(400);

pub struct Assurance {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Who holds something.
    users: AtomicUsize,
    /// The last moment at which the node surely was there; 0: none.
    there: AtomicU64,
    stopping: AtomicBool,
    asks: Mutex<bool>,
    wake: Condvar,
    sleeper: Mutex<()>,
    roused: Condvar,
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// `None`: nobody says that it was.
    fn was_there(&self, at: Option<u64>) {
        self.there.fetch_max(at.unwrap_or(0), Ordering::AcqRel);
    }
}

/// As long as it is there, permits are extended.
pub struct Holding(Arc<Shared>);

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Assurance {
    pub fn start(context: &Arc<Context>) -> std::io::Result<Assurance> {
        let shared = Arc::new(Shared::default());
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (also, of) = (Arc::clone(&shared), Arc::clone(context));
        let looking = thread("assurance").spawn(move || look(&of, &also))?;
        let (also, of) = (Arc::clone(&shared), Arc::clone(context));
        let asking = thread("confirmation").spawn(move || ask(&of, &also))?;
        Ok(Assurance { shared, threads: vec![looking, asking] })
    }

    /// Somebody is to hold something.
    pub fn hold(&self) -> Holding {
        self.shared.users.fetch_add(1, Ordering::AcqRel);
        drop(self.shared.sleeper.lock());
        self.shared.roused.notify_all();
        Holding(Arc::clone(&self.shared))
    }

    /// By the node's monotonic clock, in nanoseconds; 0: nothing may be held.
    pub fn until_ns(&self) -> u64 {
        match self.shared.there.load(Ordering::Acquire) {
            0 => 0,
            there => there.saturating_add(nanoseconds(PERMIT)),
        }
    }
}

impl Drop for Assurance {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        drop(self.shared.sleeper.lock());
        self.shared.roused.notify_all();
        drop(self.shared.asks.lock());
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that extends permits had panicked");
            }
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn look(context: &Context, shared: &Shared) {
    while !shared.is_stopping() {
        let is_used = shared.users.load(Ordering::Acquire) > 0;
        context.proxy.hurry(is_used);
        let mut sleeper = shared.sleeper.lock();
        if !is_used {
            if shared.users.load(Ordering::Acquire) == 0 && !shared.is_stopping() {
                shared.roused.wait(&mut sleeper);
            }
            continue;
        }
        drop(sleeper);
        let now = monotonic_ns();
        shared.was_there(by_links(context, now));
        if now.saturating_sub(shared.there.load(Ordering::Acquire)) >= nanoseconds(ASK_AFTER) {
            *shared.asks.lock() = true;
            shared.wake.notify_all();
        }
        std::thread::sleep(EXTEND_EVERY);
    }
}

fn by_links(context: &Context, now: u64) -> Option<u64> {
    let own = &context.config.node;
    // An incarnation that is over has nothing to extend.
    if context.verdicts.read().get(own).is_some_and(|over| context.node.epoch <= *over) {
        return None;
    }
    let others: Vec<String> = {
        let members = context.members.read();
        let others = members.values().filter(|member| member.name != *own && !context.is_fenced(member));
        others.map(|member| member.name.clone()).collect()
    };
    let accusers = context.court.lock().as_ref().map(|court| court.accusers_of(own)).unwrap_or_default();
    let mut confirmed = context.proxy.confirmed();
    confirmed.retain(|peer, _| !accusers.contains(peer));
    heard_by_half(others.iter().map(|other| confirmed.get(other).copied()), now)
}

/// The last moment of which half of the others say that they had heard this node, from what each of them said last: the
/// moment, and since when without a pause. Without others nobody judges it.
pub(crate) fn heard_by_half(others: impl ExactSizeIterator<Item = Option<(u64, u64)>>, now: u64) -> Option<u64> {
    let Some(last) = others.len().div_ceil(2).checked_sub(1) else { return Some(now) };
    let is_steady = |(at, since): &(u64, u64)| at.saturating_sub(*since) >= nanoseconds(STEADY);
    let mut heard: Vec<u64> = others.flatten().filter(is_steady).map(|(at, _)| at).collect();
    heard.sort_unstable_by(|one, other| other.cmp(one));
    heard.get(last).copied()
}

fn ask(context: &Context, shared: &Shared) {
    let engine = context.engine.hurried(HURRY).unwrap_or_else(|| Arc::clone(&context.engine));
    let (own, epoch) = (&context.config.node, context.node.epoch);
    loop {
        {
            let mut asks = shared.asks.lock();
            while !*asks && !shared.is_stopping() {
                shared.wake.wait(&mut asks);
            }
            *asks = false;
        }
        if shared.is_stopping() {
            return;
        }
        match judging::confirm(&*engine, own, epoch, context.lease()) {
            Ok(there) => shared.was_there(there),
            Err(error) => tracing::debug!(%error, "the engine does not say whether this node goes on"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn heard(told: &[(&str, u64, u64)], others: &[&str]) -> Option<u64> {
        let of = |peer: &&str| told.iter().find(|(of, ..)| of == peer).map(|(_, at, since)| (*at, *since));
        heard_by_half(others.iter().map(of), 99 * SECOND)
    }

    #[test]
    fn half_of_the_others_are_enough_when_they_confirm_without_a_pause() {
        assert_eq!(heard(&[], &[]), Some(99 * SECOND), "nobody judges it");
        let (late, early) = (50 * SECOND, 49 * SECOND);
        assert_eq!(heard(&[("b", late, 0)], &["b"]), Some(late));
        assert_eq!(heard(&[("b", late, 0), ("c", early, 0)], &["b", "c"]), Some(late));
        assert_eq!(heard(&[("b", late, 0), ("c", early, 0)], &["b", "c", "d"]), Some(early));
        assert_eq!(heard(&[("b", late, 0)], &["b", "c", "d"]), None);
        // Somebody who is none of them any more.
        assert_eq!(heard(&[("x", late, 0), ("c", early, 0)], &["b", "c"]), Some(early));
        let just = late - nanoseconds(STEADY);
        assert_eq!(heard(&[("b", late, just)], &["b"]), Some(late));
        assert_eq!(heard(&[("b", late, just + 1)], &["b"]), None);
    }
}
