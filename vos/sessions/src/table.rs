//! The sessions of one server, in memory.
//!
//! A session is `Live`; `Fencing`, then `Fenced` (everything it asks gets `ESTALE`, and its replies are kept, until its
//! client says that it knows: then it is live again); `Ended` (it is refused for good, and its number is remembered);
//! or `Leaving` (it gets `ESTALE` too, and goes when nothing of it is left). One without a ring is *away*: what it has
//! stays for a while.
//!
//! An operation is *in flight* from [`Table::begin`] to [`Table::finish`] and *executed* from [`Table::record`] on; for
//! a while it is both. A repetition joins an operation that is in flight, or is answered from the record.
//!
//! How many replies are kept: [`REPLIES_KEPT`], twice the operations that a client may have in flight, and any reply
//! that nobody was given yet. `docs/design/sessions.md` proves that these are enough. The server's part: it answers
//! operations in the order in which it recorded them.

use std::collections::{HashMap, VecDeque};

use vos_api::Errno;
use vos_api::session::{IN_FLIGHT_MAX, Progress, SESSIONS_MAX};

use crate::record::{Place, Record, Standing, Step};

/// Replies of executed operations that are kept for each session.
pub const REPLIES_KEPT: usize = 2 * IN_FLIGHT_MAX as usize;

/// More than one, so that there are as few again as there should be after some had to be kept for longer.
const DROPS_PER_RECORD: usize = 2;

/// Names an operation of a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mark {
    pub session: u64,
    pub sequence: u64,
}

/// A ring said HELLO.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    pub session: u64,
    /// The client's word.
    pub progress: Progress,
    /// The server's clock, which only rises.
    pub now_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Highest sequence that was executed.
    pub highest: u64,
    /// A session without a ring that has to go to make room: the caller ends it.
    pub leaving: Option<u64>,
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It said goodbye, or had to make room: nothing of it is kept.
    Forget,
    /// It lost what it held, and may be revived: its replies are kept. [`Table::settle`] follows.
    Fence,
    /// A fenced one that nobody revived: nothing of it is kept, and its number stays refused.
    Lapse,
}

/// Why nothing is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The session was fenced, or forgotten.
    Stale,
    /// As many sessions as a server remembers have rings.
    Full,
    /// More operations than a client may have in flight; or a session cannot be revived yet.
    Busy,
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Errno {
        match refusal {
            Refusal::Stale => Errno::Stale,
            Refusal::Full => Errno::NoSpace,
            Refusal::Busy => Errno::TryAgain,
        }
    }
}

/// What to do with an operation that carries a sequence.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun<W> {
    /// Execute it, and answer it after [`Table::finish`].
    Execute(W),
    /// It is under way: this repetition is answered together with the first.
    Joined,
    /// Executed before: the reply lies there.
    Executed(W, Place),
    Refused(W, Refusal),
}

/// What the reply of an executed operation changes in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an operation whose reply is not put into its step may happen twice"]
pub struct Entry {
    session: u64,
    is_first: bool,
    place: Place,
    dropped: [Option<Place>; DROPS_PER_RECORD],
}

impl Entry {
    /// Puts the reply beside the effects, and drops what nobody can ask for any more.
    pub fn put<S: Step + ?Sized>(&self, step: &mut S, reply: &[u8]) -> Result<(), S::Error> {
        if self.is_first {
            step.put_standing(self.session, Standing::Live)?;
        }
        step.put_reply(self.session, self.place, reply)?;
        self.dropped.iter().flatten().try_for_each(|place| step.drop_reply(self.session, *place))
    }
}

/// All sessions of one server. `W` is who waits for an answer.
pub struct Table<W> {
    sessions: HashMap<u64, Session<W>>,
    replies_kept: usize,
}

struct Session<W> {
    state: State,
    rings: u32,
    away_since_ms: u64,
    highest: u64,
    /// Replies of lower orders are of before the last fence.
    fence: u64,
    /// Executed operations whose replies are kept: in the order of execution, and where each lies.
    order: VecDeque<u64>,
    places: HashMap<u64, u64>,
    /// In flight, and who else asked meanwhile over another ring.
    in_flight: HashMap<u64, Vec<W>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    /// What it holds is being taken from it.
    Fencing,
    Fenced,
    Ended,
    Leaving,
}

impl From<Standing> for State {
    fn from(standing: Standing) -> State {
        match standing {
            Standing::Live => State::Live,
            Standing::Fenced => State::Fenced,
            Standing::Ended => State::Ended,
        }
    }
}

impl<W> Default for Table<W> {
    fn default() -> Table<W> {
        Table { sessions: HashMap::new(), replies_kept: REPLIES_KEPT }
    }
}

impl<W> Session<W> {
    fn new(state: State, now_ms: u64) -> Session<W> {
        let (order, places, in_flight) = (VecDeque::new(), HashMap::new(), HashMap::new());
        Session { state, rings: 0, away_since_ms: now_ms, highest: 0, fence: 0, order, places, in_flight }
    }

    fn is_away(&self) -> bool {
        self.rings == 0 && matches!(self.state, State::Live | State::Fenced)
    }

    fn place(&self, sequence: u64) -> Option<Place> {
        self.places.get(&sequence).map(|&order| Place { order, sequence })
    }

    /// The oldest reply, if it is one too many. One for which somebody waits counts as new from here on.
    fn take_superfluous(&mut self, replies_kept: usize) -> Option<Place> {
        if self.order.len() <= replies_kept {
            return None;
        }
        let oldest = *self.order.front()?;
        if self.in_flight.contains_key(&oldest) {
            self.order.rotate_left(1);
            return None;
        }
        self.take_oldest()
    }

    fn take_oldest(&mut self) -> Option<Place> {
        let oldest = self.order.pop_front()?;
        self.places.remove(&oldest).map(|order| Place { order, sequence: oldest })
    }
}

impl<W> Table<W> {
    /// All sessions that a store knows; none has a ring.
    pub fn load<R: Record>(record: &R, now_ms: u64) -> Result<Table<W>, R::Error> {
        let mut table = Table::default();
        table.reload(record, now_ms)?;
        Ok(table)
    }

    /// Replaces what was thought to be recorded by what the store knows, after a step of which nobody knows whether it
    /// happened. Rings, and what is in flight, stay; a session that was leaving has not left.
    pub fn reload<R: Record>(&mut self, record: &R, now_ms: u64) -> Result<(), R::Error> {
        for session in self.sessions.values_mut() {
            session.order.clear();
            session.places.clear();
            if session.state == State::Leaving {
                session.state = State::Live;
            }
        }
        for (id, standing) in record.standings()? {
            let mut places = record.places(id)?;
            places.sort_unstable();
            let session = self.sessions.entry(id).or_insert_with(|| Session::new(standing.into(), now_ms));
            session.highest = places.iter().map(|place| place.sequence).max().unwrap_or(0).max(session.highest);
            session.order = places.iter().map(|place| place.sequence).collect();
            session.places = places.iter().map(|place| (place.sequence, place.order)).collect();
        }
        Ok(())
    }

    /// Fewer replies than [`REPLIES_KEPT`], for simulations of few operations.
    pub(crate) fn keep(&mut self, replies: usize) {
        self.replies_kept = replies;
    }

    /// A ring of a session opened.
    pub fn open(&mut self, opening: Opening) -> Result<Opened, Refusal> {
        let Progress { acknowledged, revives } = opening.progress;
        if let Some(known) = self.sessions.get_mut(&opening.session) {
            match known.state {
                State::Live => {}
                // What is under way for it must not take what it gets from now on for its own.
                State::Fencing if revives => return Err(Refusal::Busy),
                State::Fenced if revives && !known.in_flight.is_empty() => return Err(Refusal::Busy),
                State::Fenced if revives => known.state = State::Live,
                _ => return Err(Refusal::Stale),
            }
            known.rings += 1;
            return Ok(Opened { highest: known.highest, leaving: None });
        }
        if acknowledged > 0 || revives {
            return Err(Refusal::Stale);
        }
        let leaving = self.make_room()?;
        let session = Session { rings: 1, ..Session::new(State::Live, opening.now_ms) };
        self.sessions.insert(opening.session, session);
        Ok(Opened { highest: 0, leaving })
    }

    /// Chooses the session that leaves when the table is full: a fenced one first, then the one without a ring for
    /// longest.
    fn make_room(&mut self) -> Result<Option<u64>, Refusal> {
        if self.sessions.len() < SESSIONS_MAX {
            return Ok(None);
        }
        let may_go = |known: &Session<W>| known.rings == 0 && !matches!(known.state, State::Leaving | State::Fencing);
        let idle = self.sessions.iter_mut().filter(|(_, known)| may_go(known));
        let longest = idle.min_by_key(|(id, known)| (known.state == State::Live, known.away_since_ms, **id));
        let (&id, session) = longest.ok_or(Refusal::Full)?;
        session.state = State::Leaving;
        Ok(Some(id))
    }

    /// A ring of the session closed. Answers whether that was its last one.
    pub fn detach(&mut self, session: u64, now_ms: u64) -> bool {
        let Some(known) = self.sessions.get_mut(&session) else { return true };
        known.rings = known.rings.saturating_sub(1);
        known.away_since_ms = now_ms;
        known.rings == 0
    }

    /// `ESTALE` to everything that the session asks from now on; what is in flight comes to its end. `false`: there is
    /// nothing to end in this way.
    pub fn refuse(&mut self, session: u64, end: End) -> bool {
        let Some(known) = self.sessions.get_mut(&session) else { return end == End::Forget };
        known.state = match (end, known.state) {
            (End::Forget, _) => State::Leaving,
            (End::Fence, State::Live) => State::Fencing,
            // One that came back meanwhile lives on.
            (End::Lapse, State::Fenced) if known.rings == 0 => State::Ended,
            _ => return false,
        };
        true
    }

    /// What a fenced session held is taken from it: it can be revived. `fence`: the order of the first reply after all
    /// that it had recorded.
    pub fn settle(&mut self, session: u64, fence: u64) {
        if let Some(known) = self.sessions.get_mut(&session)
            && known.state == State::Fencing
        {
            (known.state, known.fence) = (State::Fenced, fence);
        }
    }

    /// A fence of before this server, as [`Table::settle`] was told of it.
    pub fn restore_fence(&mut self, session: u64, fence: u64) {
        if let Some(known) = self.sessions.get_mut(&session) {
            known.fence = fence;
        }
    }

    /// Replies of a session that ended, for the caller to drop: at most `most`, and fewer only when there are no more.
    pub fn clear(&mut self, session: u64, most: usize) -> Vec<Place> {
        let Some(known) = self.sessions.get_mut(&session) else { return Vec::new() };
        std::iter::from_fn(|| known.take_oldest()).take(most).collect()
    }

    /// Nothing of the session is left.
    pub fn forget(&mut self, session: u64) {
        self.sessions.remove(&session);
    }

    pub fn begin(&mut self, mark: Mark, waiter: W) -> Begun<W> {
        let Some(session) = self.sessions.get_mut(&mark.session).filter(|known| known.state == State::Live) else {
            return Begun::Refused(waiter, Refusal::Stale);
        };
        if let Some(others) = session.in_flight.get_mut(&mark.sequence) {
            others.push(waiter);
            return Begun::Joined;
        }
        if let Some(place) = session.place(mark.sequence) {
            return Begun::Executed(waiter, place);
        }
        if session.in_flight.len() >= IN_FLIGHT_MAX as usize {
            return Begun::Refused(waiter, Refusal::Busy);
        }
        session.in_flight.insert(mark.sequence, Vec::new());
        Begun::Execute(waiter)
    }

    /// As [`Table::begin`], of an operation whose effect is something that the session holds, and loses when it is
    /// fenced: executed before a fence, it is to be executed again, after that reply was dropped.
    pub fn begin_held(&mut self, mark: Mark, waiter: W) -> (Begun<W>, Option<Place>) {
        let void = self.sessions.get_mut(&mark.session).filter(|known| known.state == State::Live).and_then(|known| {
            let place = known.place(mark.sequence).filter(|place| place.order < known.fence)?;
            known.places.remove(&mark.sequence);
            known.order.retain(|sequence| *sequence != mark.sequence);
            Some(place)
        });
        (self.begin(mark, waiter), void)
    }

    /// An operation was executed: its reply is to be put into the step that has its effects. A failure that changed
    /// nothing needs no record. `order` rises from call to call. `None` for a session of which nothing is left.
    pub fn record(&mut self, mark: Mark, order: u64) -> Option<Entry> {
        let session = self.sessions.get_mut(&mark.session)?;
        let is_first = session.order.is_empty() && session.state == State::Live;
        session.highest = session.highest.max(mark.sequence);
        session.order.push_back(mark.sequence);
        session.places.insert(mark.sequence, order);
        let dropped = [(); DROPS_PER_RECORD].map(|()| session.take_superfluous(self.replies_kept));
        Some(Entry { session: mark.session, is_first, place: Place { order, sequence: mark.sequence }, dropped })
    }

    /// The operation has its reply, or none. Returns those that wait for it besides the first.
    pub fn finish(&mut self, mark: Mark) -> Vec<W> {
        let session = self.sessions.get_mut(&mark.session);
        session.and_then(|session| session.in_flight.remove(&mark.sequence)).unwrap_or_default()
    }

    /// The server ends: whoever waits besides the first for what is in flight.
    pub fn abandon(&mut self) -> Vec<W> {
        let in_flight = self.sessions.values_mut().flat_map(|session| session.in_flight.values_mut());
        in_flight.flat_map(std::mem::take).collect()
    }

    /// Where the reply of an executed operation lies.
    pub fn executed(&self, mark: Mark) -> Option<Place> {
        self.sessions.get(&mark.session)?.place(mark.sequence)
    }

    /// Whether the session may go on.
    pub fn is_live(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|known| known.state == State::Live)
    }

    /// Whether the session is unknown, or without a ring since at least `ms`.
    pub fn is_away(&self, session: u64, ms: u64, now_ms: u64) -> bool {
        let is_away = |known: &Session<W>| known.rings == 0 && now_ms.saturating_sub(known.away_since_ms) >= ms;
        self.sessions.get(&session).is_none_or(is_away)
    }

    pub fn has_away(&self) -> bool {
        self.sessions.values().any(Session::is_away)
    }

    /// Live sessions that are without a ring for more than `ms`.
    pub fn away_for(&self, ms: u64, now_ms: u64) -> Vec<u64> {
        self.absent(State::Live, ms, now_ms)
    }

    /// Fenced ones likewise: nobody revives them.
    pub fn lapsed(&self, ms: u64, now_ms: u64) -> Vec<u64> {
        self.absent(State::Fenced, ms, now_ms)
    }

    fn absent(&self, state: State, ms: u64, now_ms: u64) -> Vec<u64> {
        let is_away = |known: &Session<W>| known.is_away() && now_ms.saturating_sub(known.away_since_ms) > ms;
        let meant = self.sessions.iter().filter(|(_, known)| known.state == state && is_away(known));
        meant.map(|(id, _)| *id).collect()
    }

    /// Whether what the session holds is being taken from it.
    pub fn is_fencing(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|known| known.state == State::Fencing)
    }

    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.sessions.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::conformance::{Bounds, Fate, Simulation, Subject, Work, check};
    use crate::reply::Reply;

    /// A store in memory.
    #[derive(Clone, Default)]
    struct Memory {
        standings: HashMap<u64, Standing>,
        replies: std::collections::BTreeMap<(u64, Place), Vec<u8>>,
    }

    impl Step for Memory {
        type Error = Infallible;

        fn put_standing(&mut self, session: u64, standing: Standing) -> Result<(), Infallible> {
            self.standings.insert(session, standing);
            Ok(())
        }

        fn drop_standing(&mut self, session: u64) -> Result<(), Infallible> {
            self.standings.remove(&session);
            Ok(())
        }

        fn put_reply(&mut self, session: u64, place: Place, reply: &[u8]) -> Result<(), Infallible> {
            self.replies.insert((session, place), reply.to_vec());
            Ok(())
        }

        fn drop_reply(&mut self, session: u64, place: Place) -> Result<(), Infallible> {
            self.replies.remove(&(session, place));
            Ok(())
        }
    }

    impl Record for Memory {
        type Error = Infallible;

        fn standings(&self) -> Result<Vec<(u64, Standing)>, Infallible> {
            Ok(self.standings.iter().map(|(session, standing)| (*session, *standing)).collect())
        }

        fn places(&self, session: u64) -> Result<Vec<Place>, Infallible> {
            Ok(self.replies.keys().filter(|(of, _)| *of == session).map(|(_, place)| *place).collect())
        }

        fn reply(&self, session: u64, place: Place) -> Result<Option<Reply>, Infallible> {
            Ok(self.replies.get(&(session, place)).and_then(|bytes| Reply::from_bytes(bytes)))
        }
    }

    impl Subject for Memory {
        fn step(&mut self, fate: Fate, work: Work<'_, Infallible>) -> Result<(), Infallible> {
            let mut next = self.clone();
            work(&mut next)?;
            if fate == Fate::Happens {
                *self = next;
            }
            Ok(())
        }

        fn restart(&mut self) {}
    }

    fn opening(session: u64, acknowledged: u64) -> Opening {
        Opening { session, progress: Progress { acknowledged, revives: false }, now_ms: 0 }
    }

    fn revival(session: u64, acknowledged: u64) -> Opening {
        Opening { session, progress: Progress { acknowledged, revives: true }, now_ms: 0 }
    }

    #[test]
    fn store_in_memory_conforms() {
        check(Memory::default);
    }

    #[test]
    fn each_operation_happens_once_whatever_is_lost() {
        for seed in 1..=400 {
            for in_flight in [1, 2, 5] {
                let bounds = Bounds { in_flight, kept: 2 * in_flight as usize };
                let result = Simulation::new(Memory::default(), seed, bounds).run(1500);
                result.unwrap_or_else(|fault| panic!("seed {seed}, {bounds:?}: {fault}"));
            }
        }
    }

    #[test]
    fn as_many_replies_as_a_client_may_have_in_flight_are_too_few() {
        let run = |seed| Simulation::new(Memory::default(), seed, Bounds { in_flight: 5, kept: 5 }).run(1500);
        assert!((1..=400).any(|seed| run(seed).is_err_and(|fault| fault.ends_with("executed twice"))));
    }

    #[test]
    fn reply_that_nobody_was_given_yet_is_kept() {
        let (mut table, mut store) = (Table::default(), Memory::default());
        table.keep(2);
        table.open(opening(7, 0)).expect("room");
        let mark = |sequence| Mark { session: 7, sequence };
        let record = |table: &mut Table<()>, store: &mut Memory, sequence| {
            let entry = table.record(mark(sequence), sequence).expect("a session");
            entry.put(store, &Reply::default().to_bytes()).expect("memory");
        };
        for sequence in 1..=5 {
            assert_eq!(table.begin(mark(sequence), ()), Begun::Execute(()));
            record(&mut table, &mut store, sequence);
            if sequence > 1 {
                table.finish(mark(sequence));
            }
        }
        assert_eq!(table.begin(mark(1), ()), Begun::Joined);
        assert_eq!(table.finish(mark(1)), [()]);
        assert_eq!(table.begin(mark(1), ()), Begun::Executed((), Place { order: 1, sequence: 1 }));
        record(&mut table, &mut store, 6);
        let mut left: Vec<u64> = store.replies.keys().map(|(_, place)| place.sequence).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 6]);
    }

    #[test]
    fn client_that_was_forgotten_or_fenced_learns_it_at_hello() {
        let mut table = Table::<()>::default();
        assert_eq!(table.open(opening(7, 3)), Err(Refusal::Stale));
        assert!(table.open(opening(7, 0)).is_ok());
        assert!(table.refuse(7, End::Fence));
        assert_eq!(table.open(opening(7, 0)), Err(Refusal::Stale));
        assert_eq!(table.begin(Mark { session: 7, sequence: 1 }, ()), Begun::Refused((), Refusal::Stale));
    }

    #[test]
    fn fenced_session_is_revived_once_its_client_knows_and_nothing_of_before_is_under_way() {
        let mut table = Table::<()>::default();
        assert_eq!(table.open(revival(7, 0)), Err(Refusal::Stale), "nobody knows what a forgotten one did");
        table.open(opening(7, 0)).expect("room");
        let mark = |sequence| Mark { session: 7, sequence };
        assert_eq!(table.begin(mark(1), ()), Begun::Execute(()));
        assert!(table.refuse(7, End::Fence));
        assert!(!table.refuse(7, End::Fence), "it is fenced once");
        assert_eq!(table.open(revival(7, 0)), Err(Refusal::Busy));
        table.settle(7, 1);
        assert_eq!(table.open(revival(7, 0)), Err(Refusal::Busy));
        assert!(table.finish(mark(1)).is_empty());
        assert_eq!(table.open(opening(7, 0)), Err(Refusal::Stale));
        assert_eq!(table.open(revival(7, 0)), Ok(Opened { highest: 0, leaving: None }));
        assert_eq!(table.begin(mark(1), ()), Begun::Execute(()));
        assert!(!table.refuse(7, End::Lapse), "it is not fenced");
    }

    #[test]
    fn what_a_session_held_before_a_fence_is_executed_again_and_everything_else_is_not() {
        let mut table = Table::<()>::default();
        table.open(opening(7, 0)).expect("room");
        let mark = |sequence| Mark { session: 7, sequence };
        let execute = |table: &mut Table<()>, sequence, order| {
            let _ = table.record(mark(sequence), order).expect("a session");
            table.finish(mark(sequence));
        };
        for (sequence, order) in [(1, 10), (2, 11)] {
            assert_eq!(table.begin(mark(sequence), ()), Begun::Execute(()));
            execute(&mut table, sequence, order);
        }
        table.refuse(7, End::Fence);
        table.settle(7, 12);
        table.open(revival(7, 0)).expect("it is revived");
        let void = Place { order: 10, sequence: 1 };
        assert_eq!(table.begin_held(mark(1), ()), (Begun::Execute(()), Some(void)));
        assert_eq!(table.begin_held(mark(1), ()), (Begun::Joined, None));
        assert_eq!(table.begin(mark(2), ()), Begun::Executed((), Place { order: 11, sequence: 2 }));
        execute(&mut table, 1, 12);
        let again = Place { order: 12, sequence: 1 };
        assert_eq!(table.begin_held(mark(1), ()), (Begun::Executed((), again), None));
    }

    #[test]
    fn fenced_session_that_nobody_revives_is_refused_for_good() {
        let mut table = Table::<()>::default();
        table.open(opening(7, 0)).expect("room");
        table.refuse(7, End::Fence);
        table.settle(7, 1);
        assert_eq!(table.lapsed(5, 9), [], "its client has a ring");
        assert!(!table.refuse(7, End::Lapse));
        table.detach(7, 3);
        assert_eq!((table.lapsed(5, 8), table.lapsed(5, 9), table.away_for(5, 9)), (vec![], vec![7], vec![]));
        assert!(table.has_away() && table.refuse(7, End::Lapse) && !table.has_away());
        assert_eq!(table.open(revival(7, 0)), Err(Refusal::Stale));
    }

    #[test]
    fn session_that_is_away_for_longest_makes_room_after_those_that_were_fenced() {
        let mut table = Table::<()>::default();
        for session in 1..=SESSIONS_MAX as u64 {
            table.open(opening(session, 0)).expect("room");
        }
        assert_eq!(table.open(opening(5000, 0)), Err(Refusal::Full));
        for (now_ms, session) in [(1, 4), (2, 3), (3, 9)] {
            assert!(table.detach(session, now_ms));
        }
        table.refuse(9, End::Fence);
        table.settle(9, 1);
        assert_eq!(table.away_for(1, 3), [4]);
        for (session, leaving) in [(5000, 9), (5001, 4), (5002, 3)] {
            assert_eq!(table.open(opening(session, 0)), Ok(Opened { highest: 0, leaving: Some(leaving) }));
        }
        assert_eq!(table.open(opening(4, 1)), Err(Refusal::Stale));
        assert_eq!(table.open(opening(5003, 0)), Err(Refusal::Full));
    }

    #[test]
    fn client_may_not_have_more_in_flight_than_it_may() {
        let mut table = Table::default();
        table.open(opening(7, 0)).expect("room");
        let mut begin = |sequence| table.begin(Mark { session: 7, sequence }, ());
        assert!((1..=u64::from(IN_FLIGHT_MAX)).all(|sequence| begin(sequence) == Begun::Execute(())));
        assert_eq!(begin(5000), Begun::Refused((), Refusal::Busy));
    }
}
