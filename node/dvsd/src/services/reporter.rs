//! Tells the engine how instances are. Only the newest report of each matters, and nobody waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cluster::{Compare, Engine, Op};
use parking_lot::{Condvar, Mutex};

const RETRY: Duration = Duration::from_millis(300);

#[derive(Default)]
struct Pending {
    /// By key: the value, and the key without which nobody wants to know.
    reports: BTreeMap<String, (Vec<u8>, String)>,
    is_over: bool,
}

/// Ends when dropped; what was not told is told again by the next daemon.
pub struct Reporter {
    shared: Arc<(Mutex<Pending>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    pub fn start(engine: &Arc<dyn Engine>) -> std::io::Result<Reporter> {
        let shared = Arc::new((Mutex::new(Pending::default()), Condvar::new()));
        let (also, engine) = (Arc::clone(&shared), Arc::clone(engine));
        let run = move || run(&*engine, &also);
        let thread = std::thread::Builder::new().name("service-reports".to_owned()).spawn(run)?;
        Ok(Reporter { shared, thread: Some(thread) })
    }

    pub fn tell(&self, key: String, value: Vec<u8>, only_with: String) {
        self.shared.0.lock().reports.insert(key, (value, only_with));
        self.shared.1.notify_all();
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.shared.0.lock().is_over = true;
        self.shared.1.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that reports on services had panicked");
        }
    }
}

fn run(engine: &dyn Engine, (pending, wake): &(Mutex<Pending>, Condvar)) {
    let mut pending = pending.lock();
    loop {
        if pending.is_over {
            return;
        }
        let Some((key, (value, only_with))) = pending.reports.pop_first() else {
            wake.wait(&mut pending);
            continue;
        };
        let told = parking_lot::MutexGuard::unlocked(&mut pending, || {
            engine.transact(&[Compare::Present { key: only_with.clone() }], &[Op::put(&*key, value.clone())])
        });
        if let Err(error) = told {
            tracing::debug!(%error, key, "how a service is was not told");
            // Unless there is something newer by now.
            pending.reports.entry(key).or_insert((value, only_with));
            wake.wait_for(&mut pending, RETRY);
        }
    }
}
