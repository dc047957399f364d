//! The end of a case that hangs. When a case fails, the threads of its other parties may wait for ever for the one that
//! is gone, and nobody would ever hear which case it was.

use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than any case takes, in a storm and on a loaded machine: what it waits for is there within seconds.
const CASE_MAX: Duration = Duration::from_secs(300);

/// While it lives, the process ends when the case takes too long.
pub struct Watchdog {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// `case` is what is said of it: how to run it again.
    pub fn over(case: &str) -> Watchdog {
        Watchdog::with_limit(case, CASE_MAX)
    }

    pub fn with_limit(case: &str, limit: Duration) -> Watchdog {
        let (over, heard) = channel();
        let case = case.to_owned();
        let thread = std::thread::spawn(move || {
            if heard.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Past the harness, which shows what a test printed only when that has ended.
                let _ = writeln!(
                    std::io::stderr(),
                    "HANGS: {case}: no end within {limit:?}; --nocapture shows what failed before"
                );
                std::process::exit(101);
            }
        });
        Watchdog { over: Some(over), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
