//! Follows all keys of a prefix in a thread of its own: first everything, then every change; everything again when the
//! watch lost track. The consumer sees a sequence of states, never a gap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::engine::{Canceller, Engine, EngineError, Entry, Event};

/// Between attempts while the engine does not answer.
const RETRY: Duration = Duration::from_millis(200);
/// How long one `recv` waits; cancelling ends it at once.
const RECV: Duration = Duration::from_secs(60);

pub enum Change {
    /// All there is; whatever was known before and is not here is gone.
    All(Vec<Entry>),
    One(Event),
    /// The engine does not answer: what was said last may be old. Followed by `All`.
    Unknown(EngineError),
}

/// Ends when dropped, after the callback that runs has returned. Not to be dropped from inside the callback.
pub struct Follower {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Control {
    stopping: AtomicBool,
    canceller: Mutex<Option<Canceller>>,
    stopped: Condvar,
}

impl Follower {
    pub fn start(
        engine: &Arc<dyn Engine>,
        prefix: &str,
        mut changed: impl FnMut(Change) + Send + 'static,
    ) -> std::io::Result<Follower> {
        let control = Arc::new(Control::default());
        let (engine, prefix, also_control) = (Arc::clone(engine), prefix.to_owned(), Arc::clone(&control));
        let thread = std::thread::Builder::new().name("follow".to_owned()).spawn(move || {
            while !also_control.is_stopping() {
                match round(&*engine, &prefix, &also_control, &mut changed) {
                    Err(EngineError::Compacted { .. } | EngineError::Cancelled) | Ok(()) => (),
                    Err(error) => {
                        changed(Change::Unknown(error));
                        also_control.pause();
                    }
                }
            }
        })?;
        Ok(Follower { control, thread: Some(thread) })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a follower had panicked");
        }
    }
}

fn round(
    engine: &dyn Engine,
    prefix: &str,
    control: &Control,
    changed: &mut impl FnMut(Change),
) -> Result<(), EngineError> {
    let listing = engine.list(prefix)?;
    let mut watch = engine.watch(prefix, listing.revision)?;
    control.arm(watch.canceller());
    changed(Change::All(listing.entries));
    while !control.is_stopping() {
        if let Some(event) = watch.recv(RECV)? {
            changed(Change::One(event));
        }
    }
    Ok(())
}

impl Control {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn arm(&self, canceller: Canceller) {
        // Either `stop` finds the canceller here, or we find that it is stopping.
        *self.canceller.lock() = Some(canceller.clone());
        if self.is_stopping() {
            canceller.cancel();
        }
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        if let Some(canceller) = &*self.canceller.lock() {
            canceller.cancel();
        }
        self.stopped.notify_all();
    }

    fn pause(&self) {
        let mut canceller = self.canceller.lock();
        if !self.is_stopping() {
            self.stopped.wait_for(&mut canceller, RETRY);
        }
    }
}
