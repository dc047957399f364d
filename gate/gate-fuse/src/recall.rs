//! Recalls on their way: which events of the server were carried out, and up to which one the server may be told so.
//!
//! Pure: time is passed in, and what is in flight is asked for. Events are carried out in any order, released in
//! theirs.
//!
//! An event is carried out when the notifier has done all, and when no read or write of the inode that was under way is
//! left: its answer came without a lease, and what it left in the kernel has been dropped, too. Until the event is
//! released, further reads and writes of the inode are put off ([`Recalls::is_draining`]).
//!
//! The notifier can hang in the kernel at a lock that one of our own requests holds, while that request waits at the
//! server for somebody who waits for us (`docs/design/gate-fuse.md`, *Recall*). The stage says which lock that is, and
//! with it what is safe to conclude.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use vos_api::fs;
use zerocopy::FromBytes;

/// How long a notification may hang before we suspect that it waits for ourselves.
pub const GRACE: Duration = Duration::from_millis(100);
/// The same for dropping everything.
const EVERYTHING_GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    Inode {
        ino: u64,
        /// How long the file is about to be, at least.
        bytes: Option<u64>,
        why: Why,
    },
    Name {
        parent: u64,
        name: Vec<u8>,
    },
    /// The server does not know any more who keeps what.
    Everything,
    /// What was promised of it is wanted, and nothing else.
    Tell {
        ino: u64,
    },
}

/// Why a lease is asked back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Another node changes the inode.
    Change,
    /// There are too many ([`fs::SPARE`]).
    Spare,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub recall: u64,
    pub what: What,
}

/// Reads the events of a completion. `None` when they make no sense.
pub fn parse(mut bytes: &[u8]) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = fs::Event::read_from_prefix(bytes).ok()?;
        let name_bytes = head.name_bytes.get() as usize;
        if name_bytes > fs::NAME_BYTES_MAX {
            return None;
        }
        let name = rest.get(..name_bytes)?;
        bytes = rest.get(name_bytes.next_multiple_of(8)..)?;
        let ino = head.ino.get();
        let what = match head.kind.get() {
            fs::INODE if ino == 0 => What::Everything,
            fs::INODE => {
                let why = if name == [fs::SPARE] { Why::Spare } else { Why::Change };
                What::Inode { ino, bytes: name.try_into().ok().map(u64::from_le_bytes), why }
            }
            fs::TELL => What::Tell { ino },
            fs::ENTRY if name_bytes > 0 => What::Name { parent: ino, name: name.to_vec() },
            _ => return None,
        };
        events.push(Event { recall: head.recall.get(), what });
    }
    Some(events)
}

/// How far the notifier is with an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    Begun,
    /// It waits for the lock of the directory in which the inode was found lately.
    Settling,
    /// All but the pages that our own reads and writes in flight may have locked.
    Most,
    /// Attributes and pages; names come last.
    Pages,
    Done,
}

struct Under {
    event: Begin,
    since: Instant,
    /// When the notifier is told once more which pages it should leave for the end.
    again_at: Instant,
}

/// What is known of an event at its beginning.
pub struct Begin {
    pub recall: u64,
    /// `None`: a name, or everything.
    pub ino: Option<u64>,
    pub stage: Stage,
    /// When the names are trusted no more, distrusted or not.
    pub names_until: Option<Instant>,
    /// Those names of the inode, a directory, that the notifier takes from the kernel at last.
    pub names: Vec<Vec<u8>>,
    /// Names that nobody knows are trusted until then.
    pub not_before: Option<Instant>,
    /// The directory in which the inode was found lately.
    pub found_in: Option<u64>,
    /// How long the file is about to be, at least.
    pub bytes: Option<u64>,
    /// Inodes that are open without the server's knowledge, and of which it has to be told first.
    pub untold: Vec<u64>,
    /// Inodes of which something is promised, and has to be told first.
    pub promised: Vec<u64>,
    /// The server waits for these promises alone, besides.
    pub is_told_early: bool,
}

/// What of ours is in flight.
pub trait InFlight {
    /// Bytes of the inode are being read or written, or what that left is being dropped.
    fn has_bytes(&self, ino: u64) -> bool;
    /// A change of ours holds the directory's lock.
    fn changes_names_of(&self, directory: u64) -> bool;
    fn has_changes(&self) -> bool;
    /// The server does not know that the inode is open.
    fn is_untold(&self, ino: u64) -> bool;
    /// Something of the inode is promised.
    fn is_promised(&self, ino: u64) -> bool;
}

#[derive(Default)]
pub struct Recalls {
    under_way: VecDeque<Under>,
    /// Highest event seen, carried out with all before it, and told to the server.
    seen: u64,
    released: u64,
    told: u64,
    /// The same of those whose promises were told.
    told_early: u64,
}

impl Under {
    fn has_promises(&self, in_flight: &impl InFlight) -> bool {
        self.event.promised.iter().any(|ino| in_flight.is_promised(*ino))
    }

    fn is_over(&self, now: Instant, in_flight: &impl InFlight) -> bool {
        let is_untold = self.event.untold.iter().any(|ino| in_flight.is_untold(*ino));
        if is_untold || self.has_promises(in_flight) || self.event.not_before.is_some_and(|at| now < at) {
            return false;
        }
        let has_waited = now >= self.since + GRACE;
        let are_names_old = self.event.names_until.is_none_or(|until| now >= until);
        let Some(ino) = self.event.ino else {
            // After the restart of a server everybody gives back everything at once, with writes in flight.
            let hangs = now >= self.since + EVERYTHING_GRACE && in_flight.has_changes();
            return self.event.stage == Stage::Done || self.event.stage == Stage::Pages && are_names_old || hangs;
        };
        let is_quiet = has_waited || !in_flight.has_bytes(ino);
        match self.event.stage {
            Stage::Begun | Stage::Settling => false,
            // What is left is locked by a write of ours that is not answered: a reader of it waits for that write.
            Stage::Most => has_waited && are_names_old && in_flight.has_bytes(ino),
            Stage::Pages => are_names_old && is_quiet,
            Stage::Done => is_quiet,
        }
    }
}

impl Recalls {
    /// Whether an event is new.
    pub fn is_news(&self, recall: u64) -> bool {
        recall > self.seen
    }

    pub fn begin(&mut self, event: Begin, now: Instant) {
        self.seen = self.seen.max(event.recall);
        self.under_way.push_back(Under { event, since: now, again_at: now + GRACE });
    }

    /// The notifier got so far; it may be told twice of one event.
    pub fn reached(&mut self, recall: u64, stage: Stage) {
        if let Some(under) = self.under_way.iter_mut().find(|under| under.event.recall == recall) {
            under.event.stage = under.event.stage.max(stage);
        }
    }

    /// Inodes for which the notifier hangs at a page that was locked after it had been told which are: it must be told
    /// again. With the size that goes with the event.
    pub fn hanging(&mut self, now: Instant, in_flight: &impl InFlight) -> Vec<(u64, u64, Option<u64>)> {
        let hangs = |under: &&mut Under| {
            under.event.stage == Stage::Begun
                && now >= under.again_at
                && under.event.ino.is_some_and(|ino| in_flight.has_bytes(ino))
        };
        let hanging = self.under_way.iter_mut().filter(hangs).filter_map(|under| {
            under.again_at = now + GRACE;
            under.event.ino.map(|ino| (under.event.recall, ino, under.event.bytes))
        });
        hanging.collect()
    }

    /// Events for which the notifier waits for the lock of a directory that a change of ours holds: with it held nobody
    /// looks up anything there.
    pub fn settled(&self, in_flight: &impl InFlight) -> Vec<(u64, u64)> {
        let settled = self.under_way.iter().filter(|under| {
            under.event.stage == Stage::Settling
                && under.event.found_in.is_some_and(|directory| in_flight.changes_names_of(directory))
        });
        settled.filter_map(|under| under.event.ino.map(|ino| (under.event.recall, ino))).collect()
    }

    /// Events for which the notifier may wait for the lock of a directory, which a change of ours took after the event
    /// came: the directory, and its names that are still trusted, but for those that `leave_out` takes out because a
    /// change in flight is about them. An event with none left is carried out.
    pub fn settle_names(&mut self, mut leave_out: impl FnMut(u64, &mut Vec<Vec<u8>>)) {
        for under in self.under_way.iter_mut().filter(|under| under.event.stage == Stage::Pages) {
            let names = &mut under.event.names;
            if let Some(ino) = under.event.ino.filter(|_| !names.is_empty()) {
                leave_out(ino, names);
                if names.is_empty() {
                    under.event.stage = Stage::Done;
                }
            }
        }
    }

    /// Whether any event waits for the server to be told what is open.
    pub fn has_untold(&self) -> bool {
        self.under_way.iter().any(|under| !under.event.untold.is_empty())
    }

    /// Of which inodes it has to be told, or had to be when their events came.
    pub fn untold(&self) -> impl Iterator<Item = u64> {
        self.under_way.iter().flat_map(|under| under.event.untold.iter().copied())
    }

    /// Whether reads and writes of `ino` are to be put off until its event is released.
    pub fn is_draining(&self, ino: u64) -> bool {
        self.under_way.iter().any(|under| under.event.ino == Some(ino) && under.event.stage >= Stage::Pages)
    }

    /// Up to which event the server can be told, when that is news. Call [`Recalls::told`] once it was.
    pub fn released(&mut self, now: Instant, in_flight: &impl InFlight) -> Option<u64> {
        while let Some(under) = self.under_way.front().filter(|under| under.is_over(now, in_flight)) {
            self.released = self.released.max(under.event.recall);
            self.under_way.pop_front();
        }
        (self.released > self.told).then_some(self.released)
    }

    pub fn told(&mut self, recall: u64) {
        self.told = self.told.max(recall);
    }

    /// Up to which event everything was told that had been promised, when the server waits for that and not for more.
    /// Call [`Recalls::said_told`] once it was said.
    pub fn told_early(&self, in_flight: &impl InFlight) -> Option<u64> {
        let told = self.under_way.iter().take_while(|under| !under.has_promises(in_flight));
        told.filter(|under| under.event.is_told_early && under.event.recall > self.told_early)
            .last()
            .map(|under| under.event.recall)
    }

    /// Whether an event waits for what was promised of an inode.
    pub fn awaits(&self, ino: u64) -> bool {
        self.under_way.iter().any(|under| under.event.promised.contains(&ino))
    }

    /// Promises of when an event came that are told, whatever was promised since.
    pub fn forget_told(&mut self, in_flight: &impl InFlight) {
        for under in &mut self.under_way {
            under.event.promised.retain(|ino| in_flight.is_promised(*ino));
        }
    }

    pub fn said_told(&mut self, recall: u64) {
        self.told_early = self.told_early.max(recall);
    }

    /// When to look at the clock next.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let times = |under: &Under| {
            [Some(under.since + GRACE), Some(under.since + EVERYTHING_GRACE), Some(under.again_at)]
                .into_iter()
                .chain([under.event.names_until, under.event.not_before])
                .flatten()
        };
        self.under_way.iter().flat_map(times).filter(|at| *at > now).min()
    }

    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Another session: its numbers begin anew.
    pub fn reset(&mut self) {
        *self = Recalls::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inode 5 with bytes, directory 6 with a change.
    #[derive(Default)]
    struct Ours {
        bytes: bool,
        change: bool,
        untold: bool,
        promised: bool,
    }

    impl InFlight for Ours {
        fn has_bytes(&self, ino: u64) -> bool {
            self.bytes && ino == 5
        }

        fn changes_names_of(&self, directory: u64) -> bool {
            self.change && directory == 6
        }

        fn has_changes(&self) -> bool {
            self.bytes || self.change
        }

        fn is_untold(&self, ino: u64) -> bool {
            self.untold && ino == 5
        }

        fn is_promised(&self, ino: u64) -> bool {
            self.promised && ino == 5
        }
    }

    const NOTHING: Ours = Ours { bytes: false, change: false, untold: false, promised: false };

    fn event(recall: u64, ino: u64) -> Begin {
        let (names_until, not_before, found_in) = (None, None, Some(6));
        let (stage, bytes, untold) = (Stage::Begun, None, Vec::new());
        let (promised, is_told_early, names) = (Vec::new(), false, Vec::new());
        let ino = Some(ino);
        Begin { recall, ino, stage, names_until, names, not_before, found_in, bytes, untold, promised, is_told_early }
    }

    #[test]
    fn events_are_released_in_order_whatever_the_order_they_finish_in() {
        let (mut recalls, now) = (Recalls::default(), Instant::now());
        assert!(recalls.is_news(1));
        recalls.begin(event(1, 5), now);
        recalls.begin(event(2, 7), now);
        assert!(!recalls.is_news(2));
        recalls.reached(2, Stage::Done);
        assert_eq!(recalls.released(now, &NOTHING), None);
        recalls.reached(1, Stage::Done);
        assert_eq!(recalls.released(now, &NOTHING), Some(2));
        recalls.told(2);
        assert_eq!(recalls.released(now, &NOTHING), None);
    }

    #[test]
    fn event_that_hangs_is_released_early_only_behind_a_write_of_its_inode() {
        let (mut recalls, now) = (Recalls::default(), Instant::now());
        let later = now + 100 * GRACE;
        recalls.begin(event(1, 5), now);
        recalls.reached(1, Stage::Most);
        assert_eq!(recalls.released(later, &NOTHING), None);
        // A change of something else says nothing of the lock it waits for.
        assert_eq!(recalls.released(later, &Ours { change: true, bytes: false, ..NOTHING }), None);
        let ours = Ours { bytes: true, change: false, ..NOTHING };
        assert_eq!(recalls.released(now, &ours), None);
        assert_eq!(recalls.released(now + GRACE, &ours), Some(1));
        // And not while other pages may be left.
        recalls.begin(event(2, 5), now);
        assert_eq!(recalls.released(later, &ours), Some(1));
        assert_eq!(recalls.hanging(later, &ours), [(2, 5, None)]);
    }

    #[test]
    fn event_waits_for_reads_and_writes_that_were_under_way_and_further_ones_wait_for_it() {
        let (mut recalls, now) = (Recalls::default(), Instant::now());
        recalls.begin(event(1, 5), now);
        assert!(!recalls.is_draining(5));
        recalls.reached(1, Stage::Done);
        assert!(recalls.is_draining(5) && !recalls.is_draining(6));
        assert_eq!(recalls.released(now, &Ours { bytes: true, change: false, ..NOTHING }), None);
        assert_eq!(recalls.released(now, &NOTHING), Some(1));
        assert!(!recalls.is_draining(5));
    }

    #[test]
    fn event_waits_until_the_server_knows_what_is_open() {
        let (mut recalls, now) = (Recalls::default(), Instant::now());
        recalls.begin(Begin { untold: vec![5], ..event(1, 5) }, now);
        recalls.begin(event(2, 7), now);
        recalls.reached(1, Stage::Done);
        recalls.reached(2, Stage::Done);
        assert_eq!(recalls.untold().collect::<Vec<_>>(), [5]);
        assert_eq!(recalls.released(now + 100 * GRACE, &Ours { untold: true, ..NOTHING }), None);
        assert_eq!(recalls.released(now, &NOTHING), Some(2));
        assert!(!recalls.has_untold());
    }

    #[test]
    fn names_that_cannot_be_distrusted_are_waited_for_and_no_longer() {
        let (mut recalls, now) = (Recalls::default(), Instant::now());
        let until = now + 3 * GRACE;
        recalls.begin(Begin { names_until: Some(until), ..event(1, 6) }, now);
        recalls.reached(1, Stage::Pages);
        assert_eq!(recalls.deadline(now), Some(now + GRACE));
        assert_eq!(recalls.released(until - GRACE, &Ours { bytes: false, change: true, ..NOTHING }), None);
        assert_eq!(recalls.released(until, &Ours { bytes: false, change: true, ..NOTHING }), Some(1));
    }

    #[test]
    fn names_that_a_later_change_of_ours_is_about_are_not_waited_for() {
        let (mut recalls, now) = (Recalls::default(), Instant::now());
        let names = vec![b"a".to_vec(), b"b".to_vec()];
        recalls.begin(Begin { names, names_until: Some(now + 10 * GRACE), ..event(1, 6) }, now);
        // Pages and attributes come first.
        recalls.settle_names(|_, names| names.clear());
        assert_eq!(recalls.released(now, &NOTHING), None);
        recalls.reached(1, Stage::Pages);
        let without =
            |name: &'static [u8]| move |ino: u64, names: &mut Vec<Vec<u8>>| names.retain(|one| ino != 6 || one != name);
        recalls.settle_names(without(b"a"));
        assert_eq!(recalls.released(now, &NOTHING), None, "the other one is still trusted");
        recalls.settle_names(without(b"b"));
        assert_eq!(recalls.released(now, &NOTHING), Some(1));
    }

    #[test]
    fn lock_of_a_directory_is_not_waited_for_while_a_change_of_ours_holds_it() {
        let (mut recalls, now) = (Recalls::default(), Instant::now());
        recalls.begin(event(1, 5), now);
        recalls.reached(1, Stage::Settling);
        assert!(recalls.settled(&NOTHING).is_empty());
        assert_eq!(recalls.settled(&Ours { bytes: false, change: true, ..NOTHING }), [(1, 5)]);
    }

    #[test]
    fn events_that_make_no_sense_are_refused() {
        assert_eq!(parse(&[]), Some(Vec::new()));
        assert_eq!(parse(&[1; 24]), None);
        let mut bytes = [0; 32];
        bytes[0] = 9;
        bytes[8] = 5;
        bytes[16] = fs::ENTRY as u8;
        bytes[20] = 2;
        bytes[24..26].copy_from_slice(b"ab");
        let name = What::Name { parent: 5, name: b"ab".to_vec() };
        assert_eq!(parse(&bytes), Some(vec![Event { recall: 9, what: name }]));
        assert_eq!(parse(&bytes[..31]), None);
    }
}
