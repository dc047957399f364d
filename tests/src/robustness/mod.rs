//! Robustness runs: three machines, a container over them, people and programs that use it, and faults from a seed.
//!
//! ```text
//! faults.rs     what is done to whom: a list from a seed, written and read as text
//! site.rs       the machines, each with a disk of its own: start, restart, replace, who runs what
//! nemesis.rs    does one fault, and heals it
//! watch.rs      looks at the processes of all machines, again and again
//! people.rs     commands through the daemons of all nodes
//! members.rs    programs of the container that use locks, elections and values
//! files.rs      programs of the container that work on files
//! examine.rs    is everything well again, and was everything as it should be
//! run.rs        all of it
//! figures.rs    how long things take
//! ```
//!
//! docs/design/robustness.md says what must hold, and how a run is repeated.

pub mod examine;
pub mod faults;
pub mod figures;
pub mod files;
pub mod members;
pub mod nemesis;
pub mod people;
pub mod run;
pub mod site;
pub mod watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use histories::Recorder;
use histories::models::{race, register};
use histories::terms::Told;

/// What one generation of traffic leaves to be judged, and what was found wrong already.
pub struct Notes {
    began: Instant,
    has_ended: AtomicBool,
    /// By store and key.
    pub values: Recorder<String, register::Ask, register::Answer>,
    /// By lock or election.
    pub races: Recorder<String, race::Ask, race::Answer>,
    told: Mutex<Vec<Told>>,
    wrong: Mutex<Vec<String>>,
    /// Since when programs of a node may have been killed, counted by faults.
    kills: [std::sync::atomic::AtomicU64; 3],
    /// Errors that people and programs heard, counted by their words.
    heard: Mutex<std::collections::BTreeMap<String, u64>>,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes {
            began: Instant::now(),
            has_ended: AtomicBool::new(false),
            values: Recorder::default(),
            races: Recorder::default(),
            told: Mutex::default(),
            wrong: Mutex::default(),
            kills: Default::default(),
            heard: Mutex::default(),
        }
    }
}

impl Notes {
    /// Nanoseconds since the traffic began.
    pub fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// A fault that kills programs there is about to come.
    pub fn programs_may_die(&self, node: usize) {
        self.kills[node].fetch_add(1, Ordering::SeqCst);
    }

    /// How many such faults there were.
    pub fn kills(&self, node: usize) -> u64 {
        self.kills[node].load(Ordering::SeqCst)
    }

    /// Something that must not be.
    pub fn is_wrong(&self, what: String) {
        eprintln!("WRONG at {:.3} s: {what}", self.began.elapsed().as_secs_f64());
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    pub fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn told(&self, told: Told) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).push(told);
    }

    pub fn all_told(&self) -> Vec<Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An error that may be; for people who read the run.
    pub fn heard(&self, what: &str) {
        let first = what.lines().next().unwrap_or_default();
        let because = what.lines().rev().find(|line| line.contains("because:")).unwrap_or_default();
        let words = format!("{first} {because}");
        // Numbers differ from time to time.
        let words: String = words.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner).entry(words).or_default() += 1;
    }

    pub fn all_heard(&self) -> Vec<(String, u64)> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.iter().map(|(words, times)| (words.clone(), *times)).collect()
    }
}
