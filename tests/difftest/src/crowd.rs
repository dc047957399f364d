//! Calls at the same time. No order is right then, so nobody is an oracle: only what must hold in every order is asked
//! for.

use std::time::Instant;

use crate::world::World;

/// What all workers do at once, each so many rounds, in one directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crowd {
    /// The first renames over a file, all others open it: it is there at any time, and whole.
    Replace,
    /// A counter under a file made with `O_EXCL`.
    Exclusive,
    /// Appends to one file: each arrives once, in the order of its writer.
    Append,
    /// A counter under a lock that belongs to the description, released by close.
    Ofd,
    /// A counter under `flock`, released by close.
    Flock,
    /// A counter under a lock of the process.
    Posix,
}

impl Crowd {
    pub const ALL: &[Crowd] =
        &[Crowd::Replace, Crowd::Exclusive, Crowd::Append, Crowd::Ofd, Crowd::Flock, Crowd::Posix];

    pub fn word(self) -> &'static str {
        match self {
            Crowd::Replace => "replace",
            Crowd::Exclusive => "exclusive",
            Crowd::Append => "append",
            Crowd::Ofd => "ofd",
            Crowd::Flock => "flock",
            Crowd::Posix => "posix",
        }
    }
}

/// Lets all workers of a tree do it; panics where the invariant does not hold.
pub fn crowd(world: &mut World, what: Crowd, rounds: usize) {
    let (directory, begun) = (format!("crowd-{}", what.word()), Instant::now());
    world.begin(&directory).expect("a directory");
    let first = world.lane(0, 0).ask(&format!("crowd prepare {}", what.word()));
    assert_eq!(first.as_deref(), Ok("0"), "{what:?}");
    for (number, lane) in world.lanes().enumerate() {
        lane.tell(&format!("crowd {} {rounds} {number}", what.word()));
    }
    let answers: Vec<_> = world.lanes().map(|lane| lane.hear()).collect();
    let workers = answers.len();
    for (number, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.as_deref(), Ok("0"), "{what:?}: worker {number} of {workers}");
    }
    // As each of them sees it.
    for lane in world.lanes() {
        let all = lane.ask(&format!("crowd check {} {rounds} {workers}", what.word()));
        assert_eq!(all.as_deref(), Ok("0"), "{what:?}: the sum of {workers} workers");
    }
    world.clear(&directory).expect("removed");
    eprintln!("difftest: {what:?}, {workers} workers, {rounds} rounds each: {:.1} s", begun.elapsed().as_secs_f64());
}
