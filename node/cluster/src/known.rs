//! Look-ups that are answered also while the engine is away: then from what a daemon has followed.
//!
//! The engine is `Present` or `Away`. While it is `Present` it is asked, so an answer is not older than its question.
//! A look-up that meets its absence makes it `Away`; from then on the mirror answers at once, and only
//! [`Answers::probe`] asks the engine, until it answers again. Nothing is decided from the mirror: changes are
//! transactions, and they are refused meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::engine::{Engine, EngineError, Entry, EventKind, Listing, Lookup, Revision, each_listed};
use crate::follow::Change;

/// What a follower of all keys was told.
#[derive(Default)]
pub struct Mirror {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    /// `None`: nothing was told yet.
    entries: Option<BTreeMap<String, Entry>>,
    revision: Revision,
}

impl Mirror {
    pub fn take(&self, change: &Change) {
        let mut state = self.state.write();
        match change {
            Change::All(entries) => {
                state.revision = entries.iter().map(|entry| entry.modified).max().unwrap_or_default();
                state.entries = Some(entries.iter().map(|entry| (entry.key.clone(), entry.clone())).collect());
            }
            Change::One(event) => {
                state.revision = event.revision;
                let Some(entries) = &mut state.entries else { return };
                match &event.kind {
                    EventKind::Put { value, created, lease } => {
                        let (key, modified) = (event.key.clone(), event.revision);
                        let entry = Entry { key, value: value.clone(), created: *created, modified, lease: *lease };
                        entries.insert(event.key.clone(), entry);
                    }
                    EventKind::Delete => drop(entries.remove(&event.key)),
                }
            }
            Change::Unknown(_) => (),
        }
    }
}

impl Lookup for Mirror {
    fn read(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        let state = self.state.read();
        Ok(state.entries.as_ref().ok_or_else(nothing_known)?.get(key).cloned())
    }

    fn list(&self, prefix: &str) -> Result<Listing, EngineError> {
        let state = self.state.read();
        let entries = state.entries.as_ref().ok_or_else(nothing_known)?;
        let from = entries.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        Ok(Listing { revision: state.revision, entries: from.map(|(_, entry)| entry.clone()).collect() })
    }

    fn lists(&self, prefixes: &[&str]) -> Result<Vec<Listing>, EngineError> {
        each_listed(self, prefixes)
    }
}

fn nothing_known() -> EngineError {
    EngineError::Unreachable("nothing was heard of it yet".into())
}

/// The engine, or what is known of it.
pub struct Answers {
    engine: Arc<dyn Engine>,
    pub mirror: Arc<Mirror>,
    away_since: Mutex<Option<Instant>>,
}

impl Answers {
    pub fn new(engine: Arc<dyn Engine>) -> Answers {
        Answers { engine, mirror: Arc::default(), away_since: Mutex::new(None) }
    }

    /// For how long the engine has been away; `None`: it answers, as far as anybody asked.
    pub fn away_for(&self) -> Option<Duration> {
        self.away_since.lock().map(|since| since.elapsed())
    }

    /// Asks the engine itself, whatever was known.
    pub fn probe(&self, key: &str) -> Result<(), EngineError> {
        self.noted(self.engine.read(key)).map(drop)
    }

    fn answer<T>(&self, look_up: impl Fn(&dyn Lookup) -> Result<T, EngineError>) -> Result<T, EngineError> {
        if self.away_for().is_none() {
            match self.noted(look_up(&*self.engine)) {
                Err(error) if error.is_absence() => (),
                answered => return answered,
            }
        }
        look_up(&*self.mirror)
    }

    fn noted<T>(&self, answered: Result<T, EngineError>) -> Result<T, EngineError> {
        let is_away = answered.as_ref().is_err_and(EngineError::is_absence);
        let mut since = self.away_since.lock();
        *since = if is_away { since.or_else(|| Some(Instant::now())) } else { None };
        answered
    }
}

impl Lookup for Answers {
    fn read(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        self.answer(|lookup| lookup.read(key))
    }

    fn list(&self, prefix: &str) -> Result<Listing, EngineError> {
        self.answer(|lookup| lookup.list(prefix))
    }

    fn lists(&self, prefixes: &[&str]) -> Result<Vec<Listing>, EngineError> {
        self.answer(|lookup| lookup.lists(prefixes))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::engine::Op;
    use crate::follow::Follower;
    use crate::local::{LocalConfig, LocalEngine};
    use crate::steered::{Course, EngineCall, Steered};

    #[test]
    fn what_was_followed_is_answered_while_the_engine_is_away_and_the_engine_when_it_is_back() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let is_away = Arc::new(AtomicBool::new(false));
        let also = Arc::clone(&is_away);
        let engine: Arc<dyn Engine> = Arc::new(Steered::new(LocalEngine::open(config).unwrap(), move |call| {
            if call == EngineCall::LookUp && also.load(Ordering::Relaxed) { Course::IsLost } else { Course::Happens }
        }));
        let answers = Arc::new(Answers::new(Arc::clone(&engine)));
        is_away.store(true, Ordering::Relaxed);
        assert!(answers.read("/a/1").is_err(), "nothing is known");
        is_away.store(false, Ordering::Relaxed);
        answers.probe("/a/1").unwrap();

        engine.transact(&[], &[Op::put("/a/1", "1"), Op::put("/a/2", "1"), Op::put("/b", "1")]).unwrap();
        let (also, (heard, is_heard)) = (Arc::clone(&answers), std::sync::mpsc::channel());
        let follower = Follower::start(&engine, "/", move |change| {
            also.mirror.take(&change);
            let _ = heard.send(());
        });
        is_heard.recv().unwrap();
        engine.transact(&[], &[Op::put("/a/1", "2"), Op::delete("/a/2")]).unwrap();
        is_heard.recv().unwrap();
        is_heard.recv().unwrap();
        let present = (answers.read("/a/1").unwrap(), answers.list("/a/").unwrap());

        is_away.store(true, Ordering::Relaxed);
        assert_eq!((answers.read("/a/1").unwrap(), answers.list("/a/").unwrap()), present);
        assert_eq!(answers.read("/a/2").unwrap(), None);
        assert!(answers.away_for().is_some() && answers.probe("/a/1").is_err());
        is_away.store(false, Ordering::Relaxed);
        assert!(answers.away_for().is_some(), "only a probe finds that it is back");
        answers.probe("/a/1").unwrap();
        assert!(answers.away_for().is_none());
        drop(follower);
    }
}
