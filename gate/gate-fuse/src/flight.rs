//! Requests in flight: what each operation at the server is for.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use vos_api::fs::Attr;

use crate::backend::Token;
use crate::memory::{Moment, Touched};
use crate::translate::Then;

/// One operation without a completion.
pub struct Flight {
    /// The request's number as the kernel wrote it: the answer must carry the same.
    pub unique: u64,
    /// The same without the mark of being resent.
    pub key: u64,
    pub ino: u64,
    pub then: Then,
    pub step: u32,
    pub changes: bool,
    /// Changes of extended attributes that this gate had submitted or seen complete before.
    pub xattr_changes: u64,
    /// When the server was last asked for locks of the inode, this request included.
    pub locks_asked: u64,
    /// Number in the session of a lock that waits.
    pub waiting_lock: Option<u64>,
    /// Bytes of the file that are read or written: the kernel may hold their pages locked.
    pub locked: Option<(u64, u64)>,
    /// Of the bytes that this writes, those that were read meanwhile, and may be of before.
    pub read_beside: Option<(u64, u64)>,
    /// A write of bytes that this reads, which was under way when they were asked for, is through.
    pub is_overtaken: bool,
    /// The request itself, when another step follows, or it may have to be asked once more.
    pub request: Option<Vec<u8>>,
    /// Names that the request is about, with their directories. A change holds the locks of these directories.
    pub names: Vec<(u64, Vec<u8>)>,
    /// The kernel must distrust these names after the answer.
    pub distrusts: bool,
    pub since: Instant,
    /// The gate has answered the kernel by itself; the server's completion is only cleaned up after.
    pub is_left: bool,
    /// When the gate answers the kernel by itself, without waiting for the server any longer.
    pub leave_at: Option<Instant>,
    /// The thread that waits for the answer, in the numbers of whoever mounted the tree; 0: none that is known.
    pub thread: u32,
    /// It runs no code of its program any more.
    pub is_dying: bool,
    /// When the server was asked.
    pub asked: Moment,
    /// What a change touches.
    pub touched: Touched,
    /// What directories are once it is through.
    pub directories: Vec<Attr>,
    /// A dead gate had asked the same before.
    pub is_repeated: bool,
    /// What loses its name.
    pub loses: Loser,
    /// A signal reached its program; there is a further step, which is not taken then.
    pub is_interrupted: bool,
}

/// What loses a name by a change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Loser {
    Nothing,
    Inode(u64),
    /// Something, perhaps.
    Unknown,
}

impl Flight {
    /// One that is under way from now on.
    pub fn new(unique: u64, key: u64, ino: u64, then: Then) -> Flight {
        Flight {
            unique,
            key,
            ino,
            then,
            step: 0,
            changes: false,
            xattr_changes: 0,
            locks_asked: 0,
            waiting_lock: None,
            locked: None,
            read_beside: None,
            is_overtaken: false,
            request: None,
            names: Vec::new(),
            distrusts: false,
            since: Instant::now(),
            is_left: false,
            leave_at: None,
            thread: 0,
            is_dying: false,
            asked: Moment::default(),
            touched: Touched::default(),
            directories: Vec::new(),
            is_repeated: false,
            loses: Loser::Unknown,
            is_interrupted: false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    Reads,
    Writes,
}

impl Flight {
    /// Which of these bytes it reads, or writes.
    fn common(&self, moves: Moves, ino: u64, (first, end): (u64, u64)) -> Option<(u64, u64)> {
        let does = match self.then {
            Then::Read { .. } => moves == Moves::Reads,
            Then::Write { .. } => moves == Moves::Writes,
            _ => false,
        };
        let (from, to) = self.locked.filter(|_| does && self.ino == ino)?;
        (first.max(from) < end.min(to)).then(|| (first.max(from), end.min(to)))
    }

    /// Whether a name goes of which the server does not know that we may have opened what it leads to.
    fn is_blind(&self) -> bool {
        match self.then {
            Then::Removed { says_delegated } | Then::Renamed { says_delegated, .. } => {
                !says_delegated || self.is_repeated
            }
            _ => false,
        }
    }

    /// Whether the kernel holds the locks of the directories whose names this changes.
    fn locks_directory(&self) -> bool {
        self.changes && !self.is_left && self.then != Then::Placed
    }
}

#[derive(Default)]
pub struct Flights {
    by_token: HashMap<Token, Flight>,
    by_key: HashMap<u64, Token>,
    /// Those whose answer is not awaited for ever.
    leaving: BTreeSet<(Instant, Token)>,
    changes: usize,
    waiting_locks: usize,
    /// Changes that take a name blindly.
    blind: HashMap<Loser, usize>,
    standing: usize,
    /// Reads and writes by inode.
    bytes: HashMap<u64, usize>,
}

impl Flights {
    pub fn insert(&mut self, token: Token, flight: Flight) {
        self.changes += usize::from(flight.changes);
        self.waiting_locks += usize::from(flight.waiting_lock.is_some());
        if flight.is_blind() {
            *self.blind.entry(flight.loses).or_default() += 1;
        }
        self.standing += usize::from(flight.then == Then::Stands);
        if flight.locked.is_some() {
            *self.bytes.entry(flight.ino).or_default() += 1;
        }
        self.by_key.insert(flight.key, token);
        self.by_token.insert(token, flight);
    }

    pub fn remove(&mut self, token: Token) -> Option<Flight> {
        let flight = self.by_token.remove(&token)?;
        self.by_key.remove(&flight.key);
        if let Some(at) = flight.leave_at {
            self.leaving.remove(&(at, token));
        }
        self.changes -= usize::from(flight.changes);
        self.waiting_locks -= usize::from(flight.waiting_lock.is_some());
        if flight.is_blind()
            && let Some(count) = self.blind.get_mut(&flight.loses)
        {
            *count -= 1;
            if *count == 0 {
                self.blind.remove(&flight.loses);
            }
        }
        self.standing -= usize::from(flight.then == Then::Stands);
        if flight.locked.is_some() {
            self.unlock(flight.ino);
        }
        Some(flight)
    }

    pub fn by_key(&self, key: u64) -> Option<(Token, &Flight)> {
        let token = *self.by_key.get(&key)?;
        Some((token, self.by_token.get(&token)?))
    }

    /// Gives a flight a last moment, unless it has one or is left already.
    pub fn leave_at(&mut self, token: Token, at: Instant) {
        let Some(flight) = self.by_token.get_mut(&token) else { return };
        if flight.leave_at.is_none() && !flight.is_left {
            flight.leave_at = Some(at);
            self.leaving.insert((at, token));
        }
    }

    /// As if all had begun so much later.
    pub fn postpone(&mut self, by: Duration) {
        self.leaving.clear();
        for (token, flight) in &mut self.by_token {
            flight.since += by;
            flight.leave_at = flight.leave_at.map(|at| at + by);
            self.leaving.extend(flight.leave_at.map(|at| (at, *token)));
        }
    }

    pub fn next_leave(&self) -> Option<Instant> {
        self.leaving.first().map(|(at, _)| *at)
    }

    /// The next flight whose last moment has come.
    pub fn due(&self, now: Instant) -> Option<(Token, &Flight)> {
        let (_, token) = *self.leaving.first().filter(|(at, _)| *at <= now)?;
        Some((token, self.by_token.get(&token)?))
    }

    /// A signal reached the program that waits for this one.
    pub fn interrupted(&mut self, token: Token) {
        if let Some(flight) = self.by_token.get_mut(&token) {
            flight.is_interrupted = true;
        }
    }

    /// Gives a flight that has a last moment another one.
    pub fn leave_rather_at(&mut self, token: Token, at: Instant) {
        let last = self.by_token.get_mut(&token).and_then(|flight| flight.leave_at.as_mut());
        if let Some(last) = last {
            self.leaving.remove(&(std::mem::replace(last, at), token));
            self.leaving.insert((at, token));
        }
    }

    /// Who waits for the answer to this request runs no code of its program any more.
    pub fn dies(&mut self, key: u64) {
        let Some(token) = self.by_key.get(&key).copied() else { return };
        if let Some(flight) = self.by_token.get_mut(&token) {
            flight.is_dying = true;
        }
        self.leave_rather_at(token, Instant::now());
    }

    /// Leaves a flight: number of the request, and what would have become of it.
    pub fn leave(&mut self, token: Token) -> Option<(u64, Then)> {
        let flight = self.by_token.get_mut(&token)?;
        if let Some(at) = flight.leave_at.take() {
            self.leaving.remove(&(at, token));
        }
        flight.is_left = true;
        let left = (flight.unique, flight.then);
        // With the answer the kernel lets go of the pages.
        let (ino, was_locked) = (flight.ino, flight.locked.take().is_some());
        if was_locked {
            self.unlock(ino);
        }
        Some(left)
    }

    pub fn len(&self) -> usize {
        self.by_token.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_token.is_empty()
    }

    /// Whether the inode may lose its last name without the server keeping it if we open it meanwhile.
    pub fn is_blind(&self, ino: u64) -> bool {
        [Loser::Unknown, Loser::Inode(ino)].iter().any(|loser| self.blind.contains_key(loser))
    }

    /// Opens that stand for others.
    pub fn standing(&self) -> usize {
        self.standing
    }

    pub fn waiting_locks(&self) -> usize {
        self.waiting_locks
    }

    /// Whether a change is in flight that is expected to end soon; a lock may wait for hours and holds nothing.
    pub fn has_changes(&self) -> bool {
        self.changes > self.waiting_locks
    }

    /// Byte ranges of `ino` that are being read or written.
    pub fn locked_ranges(&self, ino: u64) -> Vec<(u64, u64)> {
        if !self.has_bytes(ino) {
            return Vec::new();
        }
        self.by_token.values().filter(|flight| flight.ino == ino).filter_map(|flight| flight.locked).collect()
    }

    /// Whether a file of `ino` is being closed that `may_unlock`.
    pub fn is_closing(&self, ino: u64, may_unlock: impl Fn(u64) -> bool) -> bool {
        let mut closing = self.by_token.values().filter(|flight| flight.ino == ino);
        closing.any(|flight| matches!(flight.then, Then::Release { fh } if may_unlock(fh)))
    }

    /// Whether a lock of `ino` is asked for, or given up.
    pub fn is_locking(&self, ino: u64) -> bool {
        let of_it = self.by_token.values().filter(|flight| flight.ino == ino);
        of_it.into_iter().any(|flight| matches!(flight.then, Then::Lock { .. } | Then::Unlocked { .. }))
    }

    /// Whether bytes of `ino` are being read or written.
    pub fn has_bytes(&self, ino: u64) -> bool {
        self.bytes.contains_key(&ino)
    }

    /// Whether any of these bytes are being written.
    pub fn writes(&self, ino: u64, bytes: (u64, u64)) -> bool {
        self.has_bytes(ino) && self.by_token.values().any(|flight| flight.common(Moves::Writes, ino, bytes).is_some())
    }

    /// These bytes were read.
    pub fn were_read(&mut self, ino: u64, bytes: (u64, u64)) {
        if !self.has_bytes(ino) {
            return;
        }
        for flight in self.by_token.values_mut() {
            let Some((first, end)) = flight.common(Moves::Writes, ino, bytes) else { continue };
            let (from, to) = flight.read_beside.unwrap_or((first, end));
            flight.read_beside = Some((first.min(from), end.max(to)));
        }
    }

    /// These bytes were written.
    pub fn were_written(&mut self, ino: u64, bytes: (u64, u64)) {
        if !self.has_bytes(ino) {
            return;
        }
        for flight in self.by_token.values_mut().filter(|flight| flight.common(Moves::Reads, ino, bytes).is_some()) {
            flight.is_overtaken = true;
        }
    }

    /// Whether a change of ours holds the lock of this directory.
    pub fn changes_names_of(&self, directory: u64) -> bool {
        let locking = self.by_token.values().filter(|flight| flight.locks_directory());
        locking.into_iter().any(|flight| flight.names.iter().any(|(parent, _)| *parent == directory))
    }

    /// Takes names out of `told` that a change in flight is about: after its answer the kernel is told anew, or made to
    /// distrust them.
    pub fn leave_out_changed(&mut self, directory: u64, told: &mut Vec<Vec<u8>>) {
        for flight in self.by_token.values_mut().filter(|flight| flight.locks_directory()) {
            for (_, name) in flight.names.iter().filter(|(parent, _)| *parent == directory) {
                if let Some(at) = told.iter().position(|told| told == name) {
                    told.swap_remove(at);
                    flight.distrusts = true;
                }
            }
        }
    }

    fn unlock(&mut self, ino: u64) {
        if let Some(count) = self.bytes.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.bytes.remove(&ino);
            }
        }
    }

    /// Everything that was in flight, forgotten.
    pub fn drain(&mut self) -> Vec<Flight> {
        (self.changes, self.waiting_locks, self.standing) = (0, 0, 0);
        self.blind.clear();
        self.by_key.clear();
        self.bytes.clear();
        self.leaving.clear();
        self.by_token.drain().map(|(_, flight)| flight).collect()
    }
}
