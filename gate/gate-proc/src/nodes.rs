//! The other nodes of the container, and which of them answer.
//!
//! A node that does not answer is *silent*: nobody asks it any more, so it costs its second once. It is asked by
//! [`Nodes::try_silent`] alone until it answers.

use std::sync::OnceLock;
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;
use proc_core::range::{Seat, Seats};

use crate::ask::{ASK_BYTES, Ask, ListedProcess, ProcAnswer, ProcFacts, ProcQuestion};
use crate::visible::Asker;

/// For an answer of another node.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// A node that said nothing, or nothing that can be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SilentNode;

/// The way to gates of other nodes.
pub trait Others: Send + Sync {
    /// The bytes of an answer, within `limit`.
    ///
    /// # Errors
    /// The node did not answer.
    fn ask(&self, node: Seat, ask: &[u8; ASK_BYTES], limit: Duration) -> Result<Vec<u8>, SilentNode>;
}

#[derive(Debug)]
pub struct Nodes<O> {
    others: O,
    seats: Seats,
    silent: Mutex<Seats>,
    /// Who calls [`Nodes::try_silent`]; woken when a node falls silent.
    trying: OnceLock<Thread>,
}

/// Whether every node answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    All,
    NotAll,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    Answers,
    Silent,
}

impl<O: Others> Nodes<O> {
    pub fn new(others: O, seats: Seats) -> Nodes<O> {
        Nodes { others, seats, silent: Mutex::new(Seats::NONE), trying: OnceLock::new() }
    }

    /// The other node where a process with this number would be.
    pub fn seat_of(&self, pid: u32) -> Option<Seat> {
        Seat::of_pid(pid).filter(|seat| self.seats.contains(*seat))
    }

    pub fn standings(&self) -> Vec<(Seat, Standing)> {
        let silent = *self.silent.lock();
        let standing = |seat| if silent.contains(seat) { Standing::Silent } else { Standing::Answers };
        self.seats().map(|seat| (seat, standing(seat))).collect()
    }

    fn seats(&self) -> impl Iterator<Item = Seat> {
        let seats = self.seats;
        Seat::all().filter(move |seat| seats.contains(*seat))
    }

    pub fn ask(&self, node: Seat, ask: &Ask) -> Result<ProcAnswer, SilentNode> {
        if self.silent.lock().contains(node) {
            return Err(SilentNode);
        }
        self.ask_whoever(node, ask).inspect_err(|_| {
            let mut silent = self.silent.lock();
            if !silent.contains(node) {
                tracing::warn!(node = node.index(), "does not answer: its processes are left out");
            }
            *silent = silent.with(node);
            drop(silent);
            if let Some(trying) = self.trying.get() {
                trying.unpark();
            }
        })
    }

    /// Unparks this thread when a node falls silent. The first one counts.
    pub fn tell_of_silence(&self, thread: Thread) {
        let _ = self.trying.set(thread);
    }

    fn ask_whoever(&self, node: Seat, ask: &Ask) -> Result<ProcAnswer, SilentNode> {
        let bytes = self.others.ask(node, &ask.encode(), PATIENCE)?;
        ProcAnswer::decode(&bytes, ask.question, node).map_err(|_| SilentNode)
    }

    /// All processes of nodes that answer, by number. They are asked at the same time.
    pub fn processes(&self, asker: Asker) -> Vec<ListedProcess> {
        let ask = Ask { question: ProcQuestion::Processes, asker };
        let heard = std::thread::scope(|scope| {
            let asked = self.seats().map(|seat| {
                let one = move || match self.ask(seat, &ask).map(|answer| answer.said) {
                    Ok(Ok(ProcFacts::Processes(listed))) => listed,
                    _ => Vec::new(),
                };
                std::thread::Builder::new().name("list".to_owned()).spawn_scoped(scope, one)
            });
            let asked: Vec<_> = asked.collect();
            asked.into_iter().filter_map(|thread| thread.ok()?.join().ok()).collect::<Vec<_>>()
        });
        let mut all = heard.concat();
        all.sort_unstable_by_key(|one| one.pid);
        all
    }

    /// Asks those that are silent whether they are back.
    pub fn try_silent(&self) -> Heard {
        let silent = *self.silent.lock();
        // About a process that nobody has.
        let ask = Ask { question: ProcQuestion::Owner(0), asker: Asker { uid: 0, gid: 0, effective: 0 } };
        for seat in self.seats().filter(|seat| silent.contains(*seat)) {
            if self.ask_whoever(seat, &ask).is_ok() {
                tracing::info!(node = seat.index(), "answers again");
                let mut silent = self.silent.lock();
                *silent = silent.without(seat);
            }
        }
        if *self.silent.lock() == Seats::NONE { Heard::All } else { Heard::NotAll }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct World {
        is_silent: AtomicBool,
        asked: AtomicU32,
    }

    impl Others for &World {
        fn ask(&self, node: Seat, ask: &[u8; ASK_BYTES], _: Duration) -> Result<Vec<u8>, SilentNode> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if node.index() == 2 && self.is_silent.load(Ordering::Relaxed) {
                return Err(SilentNode);
            }
            let said = match Ask::decode(ask).unwrap().question {
                ProcQuestion::Processes => {
                    Ok(ProcFacts::Processes(vec![ListedProcess { pid: node.first_pid(), uid: 0, gid: 0 }]))
                }
                _ => Err(libc::ENOENT),
            };
            Ok(ProcAnswer { began_ns: 0, said }.encode())
        }
    }

    #[test]
    fn silent_node_is_asked_once_and_left_out_until_it_is_back() {
        let world = World::default();
        let seats: Seats = [1, 2].into_iter().filter_map(Seat::new).collect();
        let nodes = Nodes::new(&world, seats);
        let asker = Asker { uid: 0, gid: 0, effective: 0 };
        let pids = || nodes.processes(asker).iter().map(|one| one.pid).collect::<Vec<_>>();
        assert_eq!(pids(), [131_072, 196_608]);
        world.is_silent.store(true, Ordering::Relaxed);
        assert_eq!((pids(), pids()), (vec![131_072], vec![131_072]));
        assert_eq!(world.asked.load(Ordering::Relaxed), 5, "the silent one was asked once");
        let standing = || nodes.standings()[1].1;
        assert_eq!(nodes.try_silent(), Heard::NotAll);
        assert_eq!(standing(), Standing::Silent);
        world.is_silent.store(false, Ordering::Relaxed);
        assert_eq!(nodes.try_silent(), Heard::All);
        assert_eq!((standing(), pids()), (Standing::Answers, vec![131_072, 196_608]));
        assert_eq!((nodes.seat_of(65_536), nodes.seat_of(196_700)), (None, Seat::new(2)));
    }
}
