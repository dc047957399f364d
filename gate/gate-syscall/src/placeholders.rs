//! Watches the processes of other nodes for which there are placeholders here (`keeper/src/placeholders.rs`), and says
//! which have ended.
//!
//! As long as somebody is watched, all nodes that have some are asked every [`LOOK_AGAIN`]. A node that does not answer
//! says nothing: its processes have ended when it is lost, or begins another life.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use proc_core::order::LifeNumber;
use proc_core::range::{Seat, Seats};

use crate::reader::MemoryReader;

/// So late a descriptor may say that its process has ended, beyond the time that the question takes.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What other nodes say of their processes.
pub trait Lives: Send {
    /// Those of `processes`, which are by number, that have ended; none when the node does not answer.
    fn ended(&self, node: Seat, processes: &[u32]) -> BTreeSet<u32>;
}

/// What is watched, shared with the thread that asks.
pub struct PlaceholderWatch(Arc<Shared>);

struct Shared {
    standing: Mutex<BTreeMap<u32, LifeNumber>>,
    /// There is one, after there was none.
    begun: Condvar,
    reader: MemoryReader,
}

impl PlaceholderWatch {
    /// Goes on with those that there are already.
    ///
    /// # Errors
    /// No thread.
    pub fn start(reader: MemoryReader, lives: Box<dyn Lives>) -> io::Result<PlaceholderWatch> {
        let shared = Arc::new(Shared { standing: Mutex::default(), begun: Condvar::new(), reader });
        let watch = PlaceholderWatch(Arc::clone(&shared));
        std::thread::Builder::new().name("placeholders".to_owned()).spawn(move || shared.run(&*lives))?;
        watch.0.reader.list_placeholders();
        Ok(watch)
    }

    /// From now on it is watched.
    pub fn add(&self, process: u32, life: LifeNumber) {
        self.0.standing.lock().insert(process, life);
        self.0.begun.notify_one();
    }

    /// The node has this life, and nobody of an earlier one.
    pub fn lives(&self, node: Seat, life: LifeNumber) {
        self.0.end(|process, of| Seat::of_pid(process) == Some(node) && of < life);
    }

    /// The nodes have nobody any more.
    pub fn lost(&self, nodes: Seats) {
        self.0.end(|process, _| Seat::of_pid(process).is_some_and(|seat| nodes.contains(seat)));
    }
}

impl Shared {
    fn run(&self, lives: &dyn Lives) {
        loop {
            // Only those that are watched before the question are judged by its answer.
            let mut standing = self.standing.lock();
            while standing.is_empty() {
                self.begun.wait(&mut standing);
            }
            let mut by_node: BTreeMap<Seat, Vec<u32>> = BTreeMap::new();
            for process in standing.keys() {
                if let Some(node) = Seat::of_pid(*process) {
                    by_node.entry(node).or_default().push(*process);
                }
            }
            let lives_then = standing.clone();
            drop(standing);
            for (node, processes) in by_node {
                let ended = lives.ended(node, &processes);
                self.end(|process, life| ended.contains(&process) && lives_then.get(&process) == Some(&life));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn end(&self, has_ended: impl Fn(u32, LifeNumber) -> bool) {
        self.standing.lock().retain(|process, life| {
            // One that could not be said is said again.
            !has_ended(*process, *life) || self.reader.end_placeholder(*process, *life).is_err()
        });
    }
}
