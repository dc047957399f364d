//! Takes away what a run made when a signal ends it.
//!
//! One thread hears the signals; whoever makes something that would outlive this process says how it is taken away.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::Outcome;

/// Of the shell, for a program that was told to end.
const STATUS_INTERRUPTED: i32 = 130;

type CleanUp = Arc<dyn Fn() + Send + Sync>;

static CLEAN_UPS: Mutex<Vec<CleanUp>> = Mutex::new(Vec::new());
static HEARD: OnceLock<()> = OnceLock::new();

/// What was registered is not done any more when this is dropped.
pub struct Registered(CleanUp);

/// Called when this process is told to end. The first call has to come before the first thread.
pub fn clean_up_by(clean_up: impl Fn() + Send + Sync + 'static) -> Outcome<Registered> {
    let clean_up: CleanUp = Arc::new(clean_up);
    CLEAN_UPS.lock().push(Arc::clone(&clean_up));
    if HEARD.set(()).is_ok() {
        hear()?;
    }
    Ok(Registered(clean_up))
}

fn hear() -> Outcome<()> {
    let signals = [rustix::process::Signal::INT, rustix::process::Signal::TERM, rustix::process::Signal::HUP];
    let signals = sys::signals::open(&signals.map(rustix::process::Signal::as_raw))?;
    std::thread::spawn(move || {
        if sys::signals::next(&signals).is_ok() {
            for clean_up in CLEAN_UPS.lock().iter().rev() {
                clean_up();
            }
            std::process::exit(STATUS_INTERRUPTED);
        }
    });
    Ok(())
}

impl Drop for Registered {
    fn drop(&mut self) {
        CLEAN_UPS.lock().retain(|one| !Arc::ptr_eq(one, &self.0));
    }
}
