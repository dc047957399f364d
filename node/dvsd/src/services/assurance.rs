//! Until when this node's keepers may hold what runs at most once (`service_core::tenure`).
//!
//! | who says that the node was there | counts when |
//! |---|---|
//! | half of the other nodes, as this node's proxies know (`proxy_link::presence`): what went there then was heard | each of them vouches for it without a pause for two seconds |
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
        shared.was_there(by_links(context));
        if now.saturating_sub(shared.there.load(Ordering::Acquire)) >= nanoseconds(ASK_AFTER) {
            *shared.asks.lock() = true;
            shared.wake.notify_all();
        }
        std::thread::sleep(EXTEND_EVERY);
    }
}

fn by_links(context: &Context) -> Option<u64> {
    // An incarnation that is over has nothing to extend.
    let is_over = context.verdicts.read().get(&context.config.node).is_some_and(|over| context.node.epoch <= *over);
    if is_over { None } else { context.proxy.there_ns() }
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
