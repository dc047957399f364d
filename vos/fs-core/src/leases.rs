//! Who may keep what in caches, and how it is asked back.
//!
//! A session holds a lease on an inode (attributes, pages, names inside it). A change by session A first recalls the
//! leases of all others on the inodes it touches; when each has said RELEASED up to its event, or was fenced, the
//! change runs. A change is `Waiting` (recalls are out) or `Running` (nobody else holds anything of it). While changes
//! of others wait, nobody gets a new lease by looking, so a stream of readers cannot starve a writer; while one runs,
//! no change of another session runs on its inodes. A's own leases stay, and it gets one on what it changed
//! ([`Leases::grant_own`]): whoever else waits there asks for that one too before it runs.
//!
//! Pages are another matter than attributes: a kernel keeps those that it has read or written, with a time-out or
//! without. So a read of bytes comes with a lease. One that finds changes of others under way is parked until those
//! that came before it are through ([`Leases::read`]); one that will change pages without a word (a mapping) first
//! asks all others for their leases, as a change does. The exception is a session that has been asked for its lease and
//! has not given it back: it is answered at once, without a lease, because giving back may wait for that answer.
//!
//! Attributes have no such memory, but a kernel may put an answer into effect long after it was given, and then ignores
//! the answers to whatever was asked in between. So nobody is told attributes from before a change that the session has
//! let pass: who looks while changes of others are under way waits for them and gets a lease ([`Leases::look`]).
//!
//! With a lease goes the right to open the inode without a word ([`vos_api::fs::DELEGATES`]): who gives it back tells
//! first of what is open. A session that removes the last name of such an inode itself is given a handle of it
//! ([`Leases::is_delegated`]).
//!
//! What only one session holds it may have *exclusively*: then it changes files before it tells, and whoever looks
//! waits until it has told ([`exclusive`]).
//!
//! A session that comes near the most leases it may have is asked for those that it has not come for longest
//! ([`vos_api::fs::SPARE`]), and one that has something exclusively and has told nothing of it for a minute is asked to
//! tell ([`State::ask_idle`]): whoever wants it then need not ask.
//!
//! When a session ends, what it has parked ends with it ([`Go::Fenced`]).
//!
//! A restarted server does not know who holds what: every session of before owes one event "drop everything"
//! (inode 0), and until it is acknowledged the session counts as a holder of everything.
//!
//! The lock here is a leaf; answers of parked EVENTS requests are given under it, so that a reply with the lease bit
//! ([`Leases::deliver`]) can never be overtaken by the event that takes the lease back.

pub mod exclusive;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use parking_lot::Mutex;
use vos_api::fs::{ENTRY, Event, INODE, RECALL_MS, SPARE, TELL};

use crate::snapshots::is_shown;
use zerocopy::IntoBytes;

use crate::calls::{Reply, Responder};
use crate::clock::Clock;

/// Leases one session may hold; beyond that it caches nothing new.
const LEASES_PER_SESSION_MAX: usize = 100_000;
/// With so many it is asked for some.
const LEASES_DUE: usize = LEASES_PER_SESSION_MAX / 8 * 7;
/// So many at a time.
const SPARED_MAX: usize = 512;
/// And none while so many events wait.
const SPARED_EVENTS_MAX: usize = 2 * SPARED_MAX;
const _: () = assert!(LEASES_DUE + SPARED_EVENTS_MAX < LEASES_PER_SESSION_MAX && SPARED_EVENTS_MAX < EVENTS_MAX);
/// Events that may wait for one session; a session this far behind is told to drop everything.
const EVENTS_MAX: usize = 16_384;
/// No lease has this number.
const NO_LEASE: u64 = 0;
/// Stands for every inode in an event.
const EVERYTHING: u64 = 0;

/// What a change touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touch {
    pub inos: BTreeSet<u64>,
    /// Parent and name.
    pub names: Vec<(u64, Vec<u8>)>,
    /// The file, of `inos`, that becomes longer, and how long at least.
    pub grows: Option<(u64, u64)>,
}

impl Touch {
    pub fn inode(ino: u64) -> Touch {
        Touch { inos: [ino].into(), ..Touch::default() }
    }

    pub fn name(parent: u64, name: &[u8]) -> Touch {
        Touch { inos: [parent].into(), names: vec![(parent, name.to_vec())], grows: None }
    }

    pub fn and(mut self, ino: u64) -> Touch {
        self.inos.insert(ino);
        self
    }

    pub fn join(mut self, other: Touch) -> Touch {
        self.inos.extend(other.inos);
        self.names.extend(other.names);
        self
    }
}

/// Who changes what.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub session: u64,
    pub touch: &'a Touch,
    pub when: When,
}

/// A change on its way. Given back to [`Leases::end_change`].
#[must_use]
#[derive(Debug)]
pub struct Blocked {
    pub number: u64,
    inos: Vec<u64>,
}

/// What became of somebody who waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Go {
    On,
    /// The session is gone, and with it the right to go on.
    Fenced,
}

/// Goes on with what was parked; called without locks.
pub type Resume = Box<dyn FnOnce(Go) + Send>;
/// Who can go on, and how.
pub type Woken = Vec<(Resume, Go)>;

/// Whether what changes is changed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    Now,
    /// It was changed in a mapping before, and the lease that this was done under may have been asked back because
    /// somebody wants to see it.
    Earlier,
    /// Its program was answered before, while the session had the inode exclusively.
    Behind,
}

/// What a reader does with the pages it is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    Kept,
    /// They may be changed without a word, until they are asked back: nobody else may have any.
    Changed,
}

/// How long somebody waits who looks at attributes. What a session has exclusively is waited for in any case: to tell
/// of it that session needs nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Until nothing can make the answer old before it is taken back.
    Patient,
    /// Not while the session is asked for anything: giving that back may wait for this look (it holds the lock of a
    /// directory).
    Hasty,
    /// For what others have exclusively, and for nothing else.
    Told,
}

/// A lease that somebody had who read what an answer tells. Not the one that came, perhaps, until it was given: others
/// may have changed the inode in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    ino: u64,
    /// Which one it was; `None`: whichever there is.
    number: Option<u64>,
}

impl Seen {
    /// By a change of the session, beside which none of others runs.
    pub fn by_change(ino: u64) -> Seen {
        Seen { ino, number: None }
    }
}

#[derive(Default)]
pub struct Leases {
    state: Mutex<State>,
    stills: exclusive::Stills,
}

#[derive(Default)]
struct State {
    holders: HashMap<u64, BTreeMap<u64, Lease>>,
    /// Of leases.
    last_lease: u64,
    /// Of uses.
    last_use: u64,
    clock: Clock,
    /// How often sessions have an inode open. Their kernels go by a size without asking, so they hear when it grows,
    /// whether they hold a lease or not.
    open: HashMap<u64, BTreeMap<u64, usize>>,
    /// Inodes with changes on their way.
    places: HashMap<u64, Place>,
    /// Of changes and of those who wait for the only lease.
    last_number: u64,
    mailboxes: HashMap<u64, Mailbox>,
    /// By their numbers: in the order in which they came.
    waiters: BTreeMap<u64, Waiter>,
    readers: Vec<Reader>,
    exclusive: exclusive::Exclusive,
}

struct Lease {
    number: u64,
    /// The event that asks it back.
    recall: Option<u64>,
    /// When its session came for it last, in the order of all.
    used: u64,
}

/// What somebody waits for a lease for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Bytes,
    Attributes(Look),
}

/// Changes of one inode that wait or run: their numbers and sessions.
#[derive(Default)]
struct Place {
    under_way: BTreeMap<u64, u64>,
    running: BTreeMap<u64, u64>,
}

/// What an event says of its inode.
enum Told {
    /// `bytes`: how long the file is about to be, at least.
    Inode {
        bytes: Option<u64>,
    },
    /// The same, and nobody wants it.
    Spare,
    Name(Vec<u8>),
    /// What was changed before it was told is wanted.
    Tell,
}

#[derive(Default)]
struct Mailbox {
    /// The session is remembered over a restart, so what it holds can be asked back.
    is_kept: bool,
    leases: usize,
    /// Inodes of these by [`Lease::used`], the longest unused in front.
    order: BTreeMap<u64, u64>,
    next_recall: u64,
    /// Not delivered yet.
    events: VecDeque<(u64, u64, Told)>,
    /// Delivered and not released: delivered again over the next ring, because who took them may be dead.
    taken: VecDeque<(u64, u64, Told)>,
    /// Delivered or not, but not released: recall, inode (`None` for a name), since when.
    owed: VecDeque<(u64, Option<u64>, u64)>,
    /// The recall that asks for everything.
    everything: Option<u64>,
    /// The session may have anything exclusively until it has told up to this recall, and since when.
    untold: Option<(u64, u64)>,
    /// The session said that it changes before it tells.
    writes_behind: bool,
    /// Its client is of an earlier release, and does not understand [`TELL`].
    is_of_before: bool,
    poll: Option<(usize, Responder)>,
}

/// A change, or a reader that needs the only lease.
struct Waiter {
    session: u64,
    touch: Touch,
    when: When,
    /// Session and the recall it must release.
    needs: HashMap<u64, u64>,
    wanted: Wanted,
    resume: Resume,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// To run a change.
    Change,
    OnlyLease,
}

/// Somebody who waits for a lease until changes are through.
struct Reader {
    session: u64,
    ino: u64,
    wish: Wish,
    /// Changes up to this number come first.
    behind: u64,
    resume: Resume,
}

impl Leases {
    pub fn by(clock: Clock) -> Leases {
        Leases { state: Mutex::new(State { clock, ..State::default() }), ..Leases::default() }
    }

    /// Registers a lease before the state it covers is read. Whether it still stands is decided by [`Leases::deliver`].
    pub fn register(&self, session: u64, ino: u64) -> Seen {
        let mut state = self.state.lock();
        if session != 0 && !state.places.contains_key(&ino) && !state.is_taken(session, ino) {
            state.hold(session, ino);
        }
        let lease = state.holders.get(&ino).and_then(|holders| holders.get(&session));
        Seen { ino, number: Some(lease.map_or(NO_LEASE, |lease| lease.number)) }
    }

    /// Registers a lease for somebody who reads bytes, waiting for it if need be: then `resume` is called, and what can
    /// go on because of this is answered. `Err`: nothing has to be waited for, `resume` comes back.
    pub fn read(&self, session: u64, ino: u64, pages: Pages, now_ms: u64, resume: Resume) -> Result<Woken, Resume> {
        if is_shown(ino) {
            return Err(resume);
        }
        let mut state = self.state.lock();
        let behind = state.last_number;
        if session != 0 && pages == Pages::Kept && state.ask_to_tell(session, ino, now_ms) {
            state.readers.push(Reader { session, ino, wish: Wish::Bytes, behind, resume });
            return Ok(Vec::new());
        }
        // A session that was asked for its lease gets its answer: it may wait for the answer before it gives back.
        if session == 0 || state.is_asked(session, ino) {
            return Err(resume);
        }
        if pages == Pages::Changed {
            let (touch, when) = (Touch::inode(ino), When::Now);
            let woken = state.recall(session, &touch, when, now_ms);
            let needs = state.needs(session, &touch, when);
            let waiter = Waiter { session, touch, when, needs, wanted: Wanted::OnlyLease, resume };
            state.last_number += 1;
            let number = state.last_number;
            if waiter.needs.is_empty() && state.start(number, &waiter) {
                return Err(waiter.resume);
            }
            state.waiters.insert(number, waiter);
            return Ok(woken);
        }
        if !state.holds(session, ino) && state.is_changed_by_others(session, ino, behind) {
            state.readers.push(Reader { session, ino, wish: Wish::Bytes, behind, resume });
            return Ok(Vec::new());
        }
        state.hold(session, ino);
        Err(resume)
    }

    /// Waits, if need be, until attributes can be told under a lease; `resume` is called then. `Err`: nothing has to be
    /// waited for, `resume` comes back.
    pub fn look(&self, session: u64, ino: u64, look: Look, now_ms: u64, resume: Resume) -> Result<(), Resume> {
        if is_shown(ino) {
            return Err(resume);
        }
        let mut state = self.state.lock();
        let reader = Reader { session, ino, wish: Wish::Attributes(look), behind: state.last_number, resume };
        let is_taken = session != 0 && state.ask_to_tell(session, ino, now_ms);
        if !is_taken && (session == 0 || state.holds(session, ino) || !state.must_wait(&reader)) {
            return Err(reader.resume);
        }
        state.readers.push(reader);
        Ok(())
    }

    /// Whether [`Leases::look`] could have something to wait for.
    pub fn may_wait(&self, session: u64, ino: u64) -> bool {
        let state = self.state.lock();
        state.places.contains_key(&ino) || state.is_asked(session, ino) || state.is_taken(session, ino)
    }

    /// The session opens the inode once more.
    pub fn opened(&self, session: u64, ino: u64) {
        *self.state.lock().open.entry(ino).or_default().entry(session).or_default() += 1;
    }

    /// The session closes the inode once.
    pub fn closed(&self, session: u64, ino: u64) {
        let mut state = self.state.lock();
        let Some(sessions) = state.open.get_mut(&ino) else { return };
        if let Some(count) = sessions.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                sessions.remove(&session);
            }
        }
        if sessions.is_empty() {
            state.open.remove(&ino);
        }
    }

    /// The inodes are no more, and nobody can keep anything of them.
    pub fn removed(&self, inos: &[u64]) {
        let mut state = self.state.lock();
        for ino in inos {
            state.exclusive.removed(*ino);
            for (session, lease) in state.holders.remove(ino).unwrap_or_default() {
                if let Some(mailbox) = state.mailboxes.get_mut(&session) {
                    mailbox.leases = mailbox.leases.saturating_sub(1);
                    mailbox.order.remove(&lease.used);
                }
            }
        }
    }

    /// Whether the session could keep what it is told of this inode, if it were answered now.
    pub fn holds(&self, session: u64, ino: u64) -> bool {
        self.state.lock().holds(session, ino)
    }

    /// Whether the session may have opened the inode without a word: it holds a lease, asked back or not, or may hold
    /// anything.
    pub fn is_delegated(&self, session: u64, ino: u64) -> bool {
        let state = self.state.lock();
        state.holders.get(&ino).is_some_and(|holders| holders.contains_key(&session))
            || state.mailboxes.get(&session).is_some_and(|mailbox| mailbox.everything.is_some())
    }

    /// Calls `answer` with whether all of what was seen may be kept, in order with the session's events.
    pub fn deliver(&self, session: u64, seen: &[Seen], answer: impl FnOnce(bool)) {
        let state = self.state.lock();
        answer(state.may_keep(session, seen));
    }

    /// Enters a change; [`Leases::wait`] follows.
    pub fn begin_change(&self, session: u64, touch: &Touch) -> Blocked {
        let mut state = self.state.lock();
        state.last_number += 1;
        let number = state.last_number;
        for ino in &touch.inos {
            state.places.entry(*ino).or_default().under_way.insert(number, session);
        }
        Blocked { number, inos: touch.inos.iter().copied().collect() }
    }

    /// Asks all others for their leases on what is touched, and answers what can go on because of this. `resume` is
    /// called when the change may run, which it must then. `Err`: that is so now, and `resume` comes back.
    ///
    /// Asking and waiting are one step: somebody who got a lease in between would be waited for, and never asked.
    pub fn wait(&self, number: u64, change: Change<'_>, now_ms: u64, resume: Resume) -> (Result<(), Resume>, Woken) {
        let mut state = self.state.lock();
        let Change { session, touch, when } = change;
        let woken = state.recall(session, touch, when, now_ms);
        let needs = state.needs(session, touch, when);
        let waiter = Waiter { session, touch: touch.clone(), when, needs, wanted: Wanted::Change, resume };
        if waiter.needs.is_empty() && state.start(number, &waiter) {
            return (Err(waiter.resume), woken);
        }
        state.waiters.insert(number, waiter);
        (Ok(()), woken)
    }

    /// The change was applied or given up.
    #[must_use]
    pub fn end_change(&self, blocked: Blocked, now_ms: u64) -> Woken {
        let mut state = self.state.lock();
        for ino in &blocked.inos {
            let Some(place) = state.places.get_mut(ino) else { continue };
            place.under_way.remove(&blocked.number);
            place.running.remove(&blocked.number);
            if place.under_way.is_empty() {
                state.places.remove(ino);
            }
        }
        let mut woken = state.let_readers_in();
        woken.extend(state.ready(now_ms));
        woken
    }

    /// Grants a lease on what a change of the session itself made or left, while the change runs.
    pub fn grant_own(&self, session: u64, ino: u64) {
        let mut state = self.state.lock();
        let others = state.is_held_by_others(session, ino);
        if session != 0 && !others && !state.is_running_for_others(session, ino) {
            state.hold(session, ino);
        }
    }

    /// Parks an EVENTS request; answers at once when there is something. A second one displaces the first.
    pub fn poll(&self, session: u64, capacity: usize, answer: Responder) {
        let mut state = self.state.lock();
        let mailbox = state.mailboxes.entry(session).or_default();
        if let Some((_, old)) = mailbox.poll.replace((capacity, answer)) {
            old(Reply::failed(crate::error::Errno::Interrupted));
        }
        mailbox.serve();
    }

    /// A new ring of the session: what an older one took and did not release comes again, in order.
    pub fn redeliver(&self, session: u64) {
        let mut state = self.state.lock();
        let Some(mailbox) = state.mailboxes.get_mut(&session) else { return };
        // The older ring's request must not swallow them.
        drop(mailbox.poll.take());
        while let Some(event) = mailbox.taken.pop_back() {
            mailbox.events.push_front(event);
        }
    }

    /// The ring is gone, and the parked request with it.
    pub fn drop_poll(&self, session: u64) {
        let poll = self.state.lock().mailboxes.get_mut(&session).and_then(|mailbox| mailbox.poll.take());
        drop(poll);
    }

    /// The session dropped what its events up to `recall` named. Answers what can go on now.
    #[must_use]
    pub fn released(&self, session: u64, recall: u64, now_ms: u64) -> Woken {
        let mut state = self.state.lock();
        let mut returned = Vec::new();
        if let Some(mailbox) = state.mailboxes.get_mut(&session) {
            while let Some((number, ino, _)) = mailbox.owed.front().copied() {
                if number > recall {
                    break;
                }
                mailbox.owed.pop_front();
                returned.extend(ino.map(|ino| (number, ino)));
            }
            while mailbox.taken.front().is_some_and(|(number, ..)| *number <= recall) {
                mailbox.taken.pop_front();
            }
            if mailbox.everything.is_some_and(|number| number <= recall) {
                mailbox.everything = None;
            }
        }
        for (number, ino) in returned {
            state.give_up(session, ino, number);
        }
        let mut woken = state.satisfied(session, recall, now_ms);
        woken.extend(state.told(session, recall));
        woken.extend(state.let_readers_in());
        woken
    }

    /// The session is gone: what it has parked ends. Its leases stay until [`Leases::forget`].
    #[must_use]
    pub fn end_parked(&self, session: u64) -> Woken {
        let mut state = self.state.lock();
        let of_session = state.waiters.iter().filter(|(_, waiter)| waiter.session == session);
        let numbers: Vec<u64> = of_session.map(|(number, _)| *number).collect();
        let mut resumes: Vec<Resume> =
            numbers.iter().filter_map(|number| state.waiters.remove(number)).map(|waiter| waiter.resume).collect();
        let readers = state.readers.extract_if(.., |reader| reader.session == session);
        resumes.extend(readers.map(|reader| reader.resume));
        resumes.extend(state.exclusive.end_parked(session));
        resumes.into_iter().map(|resume| (resume, Go::Fenced)).collect()
    }

    /// The session is fenced: its leases are gone, what it has open is not. It gets none before [`Leases::admit`], and
    /// its events are numbered on, so that what it says of earlier ones says nothing of later ones. Answers what can go
    /// on now.
    #[must_use]
    pub fn fence(&self, session: u64, now_ms: u64) -> Woken {
        let mut state = self.state.lock();
        let mailbox = state.drop_leases(session);
        let Mailbox { next_recall, writes_behind, .. } = mailbox;
        state.mailboxes.insert(session, Mailbox { next_recall, writes_behind, ..Mailbox::default() });
        state.gone(session, now_ms)
    }

    /// The session is gone; its leases with it. Answers what can go on now.
    #[must_use]
    pub fn forget(&self, session: u64, now_ms: u64) -> Woken {
        let mut state = self.state.lock();
        state.drop_leases(session);
        state.open.retain(|_, sessions| {
            sessions.remove(&session);
            !sessions.is_empty()
        });
        state.gone(session, now_ms)
    }

    /// Whoever waits, to be forgotten.
    pub fn abandon(&self) -> Vec<Resume> {
        let mut state = self.state.lock();
        let waiters = std::mem::take(&mut state.waiters).into_values().map(|waiter| waiter.resume);
        let mut all: Vec<Resume> = waiters.collect();
        all.extend(std::mem::take(&mut state.readers).into_iter().map(|reader| reader.resume));
        all.extend(state.exclusive.abandon());
        all
    }

    /// After a restart: the session may hold anything. Events are numbered from `first` + 1 on, so that a client
    /// that lives on takes them for new. `writes_behind`: and anything exclusively.
    pub fn expect_everything(&self, session: u64, first: u64, writes_behind: bool, now_ms: u64) {
        let mut state = self.state.lock();
        let mailbox = state.mailboxes.entry(session).or_default();
        mailbox.next_recall = mailbox.next_recall.max(first);
        mailbox.is_kept = true;
        mailbox.writes_behind = writes_behind;
        mailbox.ask_everything(now_ms);
    }

    /// From now on the session may hold leases.
    pub fn admit(&self, session: u64) {
        self.state.lock().mailboxes.entry(session).or_default().is_kept = true;
    }

    /// Whether a change waits for a session.
    pub fn has_waiters(&self) -> bool {
        let state = self.state.lock();
        !state.waiters.is_empty() || !state.readers.is_empty() || state.exclusive.has_parked()
    }

    /// Sessions that changes wait for and that stayed silent for too long.
    pub fn silent(&self, now_ms: u64) -> Vec<u64> {
        let state = self.state.lock();
        let is_silent = |session: &u64| {
            let mailbox = state.mailboxes.get(session);
            let since = mailbox.and_then(|mailbox| mailbox.owed.front().map(|(_, _, since)| *since));
            since.is_some_and(|since| now_ms.saturating_sub(since) >= RECALL_MS)
        };
        let needed: BTreeSet<u64> = state.waiters.values().flat_map(|waiter| waiter.needs.keys().copied()).collect();
        let mut silent: BTreeSet<u64> = needed.into_iter().filter(is_silent).collect();
        silent.extend(state.untold_for_long(now_ms));
        silent.into_iter().collect()
    }
}

impl State {
    fn drop_leases(&mut self, session: u64) -> Mailbox {
        self.holders.retain(|_, holders| {
            holders.remove(&session);
            !holders.is_empty()
        });
        self.exclusive.gone(session);
        let mut mailbox = self.mailboxes.remove(&session).unwrap_or_default();
        if let Some((_, answer)) = mailbox.poll.take() {
            answer(Reply::failed(crate::error::Errno::Stale));
        }
        mailbox
    }

    fn holds(&self, session: u64, ino: u64) -> bool {
        self.holders.get(&ino).and_then(|it| it.get(&session)).is_some_and(|lease| lease.recall.is_none())
    }

    fn may_keep(&self, session: u64, seen: &[Seen]) -> bool {
        let is_same = |it: &Seen| {
            let lease = self.holders.get(&it.ino).and_then(|holders| holders.get(&session));
            lease.is_some_and(|lease| lease.recall.is_none() && it.number.is_none_or(|number| number == lease.number))
        };
        session != 0 && !seen.is_empty() && seen.iter().all(is_same)
    }

    fn may_hold(&self, session: u64) -> bool {
        self.mailboxes.get(&session).is_some_and(|mailbox| mailbox.is_kept && mailbox.leases < LEASES_PER_SESSION_MAX)
    }

    fn hold(&mut self, session: u64, ino: u64) {
        // There would be one for each inode that anybody looked at in any snapshot, and nothing to ask them back.
        if is_shown(ino) {
            return;
        }
        let may_hold = self.may_hold(session);
        let Some(mailbox) = self.mailboxes.get_mut(&session) else { return };
        self.last_use += 1;
        if let Some(lease) = self.holders.get_mut(&ino).and_then(|holders| holders.get_mut(&session)) {
            if mailbox.order.remove(&lease.used).is_some() {
                lease.used = self.last_use;
                mailbox.order.insert(lease.used, ino);
            }
            return;
        }
        if !may_hold {
            return;
        }
        self.last_lease += 1;
        let lease = Lease { number: self.last_lease, recall: None, used: self.last_use };
        mailbox.leases += 1;
        mailbox.order.insert(lease.used, ino);
        self.holders.entry(ino).or_default().insert(session, lease);
        self.ask_spare(session);
    }

    /// Asks a session that has many leases for those that it has not come for longest.
    fn ask_spare(&mut self, session: u64) {
        let Some(mailbox) = self.mailboxes.get_mut(&session) else { return };
        let has_room = mailbox.leases < LEASES_DUE || mailbox.events.len() + mailbox.taken.len() >= SPARED_EVENTS_MAX;
        if has_room || mailbox.everything.is_some() {
            return;
        }
        let now_ms = self.clock.now();
        for _ in 0..SPARED_MAX {
            let Some((_, ino)) = mailbox.order.pop_first() else { break };
            let lease = self.holders.get_mut(&ino).and_then(|holders| holders.get_mut(&session));
            let Some(lease) = lease.filter(|lease| lease.recall.is_none()) else { continue };
            let number = mailbox.push(ino, Told::Spare, now_ms);
            lease.recall = Some(number);
            self.exclusive.asked(ino, session, number, now_ms);
        }
        mailbox.serve();
    }

    fn is_running_for_others(&self, session: u64, ino: u64) -> bool {
        self.places.get(&ino).is_some_and(|place| place.running.values().any(|other| *other != session))
    }

    /// Whether a change of another session runs on the inode, or waits and has a number up to `last`.
    fn is_changed_by_others(&self, session: u64, ino: u64, last: u64) -> bool {
        let waits = |place: &Place| place.under_way.range(..=last).any(|(_, other)| *other != session);
        self.is_running_for_others(session, ino) || self.places.get(&ino).is_some_and(waits)
    }

    fn is_held_by_others(&self, session: u64, ino: u64) -> bool {
        self.holders.get(&ino).is_some_and(|holders| holders.keys().any(|holder| *holder != session))
    }

    fn comes_first(&self, session: u64, touch: &Touch, when: When) -> bool {
        match when {
            When::Now => false,
            When::Earlier => touch.inos.iter().any(|ino| self.is_asked(session, *ino)),
            When::Behind => true,
        }
    }

    /// Whether the session owes its lease.
    fn is_asked(&self, session: u64, ino: u64) -> bool {
        let lease = self.holders.get(&ino).and_then(|holders| holders.get(&session));
        lease.is_some_and(|lease| lease.recall.is_some())
            || self.mailboxes.get(&session).is_some_and(|mailbox| mailbox.everything.is_some())
    }

    /// Whether the session was asked for anything that it has not given back.
    fn owes(&self, session: u64) -> bool {
        self.mailboxes.get(&session).is_some_and(|mailbox| !mailbox.owed.is_empty())
    }

    /// Asks all others for their leases. Readers of theirs that wait for the only lease are answered without one: what
    /// is asked back now may wait for them. (Unless they wait for this change: see [`State::needs`].)
    fn recall(&mut self, session: u64, touch: &Touch, when: When, now_ms: u64) -> Woken {
        if let Some((ino, _)) = touch.grows {
            let open = self.open.get(&ino).into_iter().flat_map(BTreeMap::keys).copied();
            let others: Vec<u64> = open.filter(|other| *other != session).collect();
            others.into_iter().for_each(|other| self.hold(other, ino));
        }
        let mut asked: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for ino in &touch.inos {
            for holder in
                self.holders.get(ino).into_iter().flat_map(BTreeMap::keys).filter(|holder| **holder != session)
            {
                asked.entry(*holder).or_default().push(*ino);
            }
        }
        for (holder, inos) in asked {
            let mailbox = self.mailboxes.entry(holder).or_default();
            if mailbox.is_full(touch.names.len() + inos.len()) {
                let number = mailbox.ask_everything(now_ms);
                self.exclusive.asked_all(holder, number, now_ms);
                for ino in &inos {
                    if let Some(lease) = self.holders.get_mut(ino).and_then(|holders| holders.get_mut(&holder)) {
                        lease.recall = Some(number);
                    }
                    mailbox.owed.push_back((number, Some(*ino), now_ms));
                }
                continue;
            }
            for (parent, name) in &touch.names {
                mailbox.push(*parent, Told::Name(name.clone()), now_ms);
            }
            for ino in inos {
                let lease = self.holders.get_mut(&ino).and_then(|holders| holders.get_mut(&holder));
                if let Some(lease) = lease.filter(|lease| lease.recall.is_none()) {
                    let bytes = touch.grows.filter(|(grows, _)| *grows == ino).map(|(_, bytes)| bytes);
                    let number = mailbox.push(ino, Told::Inode { bytes }, now_ms);
                    lease.recall = Some(number);
                    self.exclusive.asked(ino, holder, number, now_ms);
                }
            }
            mailbox.serve();
        }
        let is_first = self.comes_first(session, touch, when);
        let readers = self.waiters.iter().filter(|(_, waiter)| {
            !is_first
                && waiter.wanted == Wanted::OnlyLease
                && waiter.touch.inos.iter().any(|ino| self.is_asked(waiter.session, *ino))
        });
        let numbers: Vec<u64> = readers.map(|(number, _)| *number).collect();
        let readers = numbers.iter().filter_map(|number| self.waiters.remove(number)).map(|waiter| waiter.resume);
        let mut woken: Woken = readers.map(|resume| (resume, Go::On)).collect();
        woken.extend(self.let_hasty_in());
        woken
    }

    /// Whom a change of these inodes must wait for, and up to which event.
    ///
    /// What was changed earlier, under a lease that is asked back, waits for none of those who want that lease: they
    /// wait for it.
    fn needs(&self, session: u64, touch: &Touch, when: When) -> HashMap<u64, u64> {
        let mut needs: HashMap<u64, u64> = HashMap::new();
        // Opening, closing and unlocking change nothing that anybody keeps.
        if touch.inos.is_empty() {
            return needs;
        }
        for ino in &touch.inos {
            for holder in
                self.holders.get(ino).into_iter().flat_map(BTreeMap::keys).filter(|holder| **holder != session)
            {
                // Names asked for at the same time have higher numbers than a recall that was already under way.
                let last = self.mailboxes.get(holder).map_or(0, |mailbox| mailbox.next_recall);
                needs.insert(*holder, last);
            }
        }
        // What a session had exclusively others cannot have, whatever else they may have.
        let others = self.mailboxes.iter().filter(|(holder, _)| **holder != session && when != When::Behind);
        for (holder, mailbox) in others {
            if let Some(everything) = mailbox.everything {
                let need = needs.entry(*holder).or_default();
                *need = everything.max(*need);
            }
        }
        if self.comes_first(session, touch, when) {
            let behind = self.waiters.values().filter(|waiter| !waiter.touch.inos.is_disjoint(&touch.inos));
            for waiter in behind {
                needs.remove(&waiter.session);
            }
            for reader in self.readers.iter().filter(|reader| touch.inos.contains(&reader.ino)) {
                needs.remove(&reader.session);
            }
        }
        needs
    }

    fn give_up(&mut self, session: u64, ino: u64, recall: u64) {
        let Some(holders) = self.holders.get_mut(&ino) else { return };
        if holders.get(&session).and_then(|lease| lease.recall) != Some(recall) {
            return;
        }
        let used = holders.remove(&session).map(|lease| lease.used);
        if holders.is_empty() {
            self.holders.remove(&ino);
        }
        if let Some(mailbox) = self.mailboxes.get_mut(&session) {
            mailbox.leases = mailbox.leases.saturating_sub(1);
            used.map(|used| mailbox.order.remove(&used));
        }
    }

    fn satisfied(&mut self, session: u64, recall: u64, now_ms: u64) -> Woken {
        for waiter in self.waiters.values_mut() {
            if waiter.needs.get(&session).is_some_and(|need| *need <= recall) {
                waiter.needs.remove(&session);
            }
        }
        self.ready(now_ms)
    }

    /// Lets those run for whom nobody has to be waited for any more, in the order in which they came.
    fn ready(&mut self, now_ms: u64) -> Woken {
        let free = self.waiters.iter().filter(|(_, waiter)| waiter.needs.is_empty());
        let numbers: Vec<u64> = free.map(|(number, _)| *number).collect();
        let mut woken = Vec::new();
        for number in numbers {
            let Some(mut waiter) = self.waiters.remove(&number) else { continue };
            // Others may hold by now what nobody held when this one began to wait: they are asked in their turn.
            if !self.needs(waiter.session, &waiter.touch, waiter.when).is_empty() {
                woken.extend(self.recall(waiter.session, &waiter.touch, waiter.when, now_ms));
                waiter.needs = self.needs(waiter.session, &waiter.touch, waiter.when);
            }
            if waiter.needs.is_empty() && self.start(number, &waiter) {
                woken.push((waiter.resume, Go::On));
            } else {
                self.waiters.insert(number, waiter);
            }
        }
        woken
    }

    /// Takes the inodes for somebody whom nobody's lease keeps from it; `false` while changes of others run there.
    fn start(&mut self, number: u64, waiter: &Waiter) -> bool {
        if waiter.touch.inos.iter().any(|ino| self.is_running_for_others(waiter.session, *ino)) {
            return false;
        }
        for ino in &waiter.touch.inos {
            match waiter.wanted {
                Wanted::OnlyLease => self.hold(waiter.session, *ino),
                Wanted::Change => {
                    self.places.entry(*ino).or_default().running.insert(number, waiter.session);
                }
            }
        }
        true
    }

    /// Whether the reader's turn is yet to come.
    fn must_wait(&self, reader: &Reader) -> bool {
        let Reader { session, ino, wish, behind, .. } = *reader;
        if self.is_taken(session, ino) {
            return true;
        }
        match wish {
            Wish::Attributes(Look::Told) => false,
            // As in [`Leases::read`]: it was parked for what another had exclusively.
            Wish::Bytes if self.is_asked(session, ino) => false,
            Wish::Attributes(Look::Hasty) if self.owes(session) => false,
            // While the session owes its lease, a change may begin that it is not told of once more.
            Wish::Attributes(Look::Patient) if self.is_asked(session, ino) => true,
            _ => self.is_changed_by_others(session, ino, behind),
        }
    }

    /// Readers for whom all changes that came before them are through.
    fn let_readers_in(&mut self) -> Woken {
        let readers = std::mem::take(&mut self.readers);
        let mut woken = Vec::new();
        for reader in readers {
            if self.must_wait(&reader) {
                self.readers.push(reader);
            } else {
                // Who waited for nothing else may come beside a change.
                let is_beside = reader.wish == Wish::Attributes(Look::Told) && self.places.contains_key(&reader.ino);
                if !is_beside && !self.is_asked(reader.session, reader.ino) {
                    self.hold(reader.session, reader.ino);
                }
                woken.push((reader.resume, Go::On));
            }
        }
        woken
    }

    /// Those who must not wait any longer because their sessions were asked for something; they get no lease.
    fn let_hasty_in(&mut self) -> Woken {
        let (hasty, others) = std::mem::take(&mut self.readers)
            .into_iter()
            .partition(|reader| reader.wish == Wish::Attributes(Look::Hasty) && !self.must_wait(reader));
        self.readers = others;
        let hasty: Vec<Reader> = hasty;
        hasty.into_iter().map(|reader| (reader.resume, Go::On)).collect()
    }
}

impl Mailbox {
    /// Whether so many events more are too many.
    fn is_full(&self, more: usize) -> bool {
        self.events.len() + self.taken.len() + more > EVENTS_MAX
    }

    fn push(&mut self, ino: u64, told: Told, now_ms: u64) -> u64 {
        self.next_recall += 1;
        let recalled = matches!(told, Told::Inode { .. } | Told::Spare).then_some(ino);
        self.events.push_back((self.next_recall, ino, told));
        self.owed.push_back((self.next_recall, recalled, now_ms));
        self.next_recall
    }

    fn ask_everything(&mut self, now_ms: u64) -> u64 {
        if self.everything.is_none() {
            self.untold = self.writes_behind.then_some((self.next_recall + 1, now_ms));
            self.events.clear();
            self.taken.clear();
            self.next_recall += 1;
            self.events.push_back((self.next_recall, EVERYTHING, Told::Inode { bytes: None }));
            self.owed.push_back((self.next_recall, None, now_ms));
            self.everything = Some(self.next_recall);
            self.serve();
        }
        self.next_recall
    }

    /// Answers the parked request with what there is.
    fn serve(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let Some((capacity, answer)) = self.poll.take() else { return };
        let mut data = Vec::new();
        let mut count = 0;
        while let Some(event) = self.events.front() {
            let (recall, ino, told) = event;
            let (kind, name) = match told {
                Told::Inode { bytes } => (INODE, bytes.map(|bytes| bytes.to_le_bytes().to_vec()).unwrap_or_default()),
                Told::Spare => (INODE, vec![SPARE]),
                Told::Name(name) => (ENTRY, name.clone()),
                Told::Tell => (TELL, Vec::new()),
            };
            let bytes = size_of::<Event>() + name.len().next_multiple_of(8);
            if data.len() + bytes > capacity && count > 0 {
                break;
            }
            let event = Event {
                recall: (*recall).into(),
                ino: (*ino).into(),
                kind: kind.into(),
                name_bytes: (name.len() as u32).into(),
            };
            data.extend_from_slice(event.as_bytes());
            data.extend_from_slice(&name);
            data.resize(data.len().next_multiple_of(8), 0);
            count += 1;
            self.taken.extend(self.events.pop_front());
        }
        answer(Reply::with_data([count, 0, 0, 0], data));
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;

    const FILE: u64 = 7;

    fn may_keep(leases: &Leases, session: u64, seen: Seen) -> bool {
        let mut told = false;
        leases.deliver(session, &[seen], |is_held| told = is_held);
        told
    }

    fn change(leases: &Leases, session: u64, meanwhile: impl FnOnce()) {
        let touch = Touch::inode(FILE);
        let blocked = leases.begin_change(session, &touch);
        let change = Change { session, touch: &touch, when: When::Now };
        let (waits, _) = leases.wait(blocked.number, change, 0, Box::new(|_| ()));
        meanwhile();
        if waits.is_ok() {
            assert!(leases.released(1, 1, 0).len() == 1);
        }
        drop(leases.end_change(blocked, 0));
    }

    #[test]
    fn what_was_read_without_a_lease_is_not_kept_by_one_that_came_meanwhile() {
        let leases = Leases::default();
        [1, 2].into_iter().for_each(|session| leases.admit(session));
        let mut early = None;
        change(&leases, 2, || early = Some(leases.register(1, FILE)));
        let late = leases.register(1, FILE);
        assert!(!may_keep(&leases, 1, early.unwrap()));
        assert!(may_keep(&leases, 1, late));
    }

    /// Takes the events of a session and gives back what they name. Answers the inodes.
    fn give_back(leases: &Leases, session: u64) -> Vec<u64> {
        let (sender, receiver) = std::sync::mpsc::channel();
        leases.poll(session, 1 << 20, Box::new(move |reply| _ = sender.send(reply.data)));
        let Ok(data) = receiver.try_recv() else {
            leases.drop_poll(session);
            return Vec::new();
        };
        let (mut rest, mut inos, mut last) = (data.as_slice(), Vec::new(), 0);
        while let Ok((event, more)) = Event::read_from_prefix(rest) {
            let (name, more) = more.split_at((event.name_bytes.get() as usize).next_multiple_of(8));
            assert_eq!((event.kind.get(), name.first()), (INODE, Some(&SPARE)), "nobody wants it");
            inos.push(event.ino.get());
            (rest, last) = (more, event.recall.get());
        }
        drop(leases.released(session, last, 0));
        inos
    }

    #[test]
    fn session_that_looks_at_more_than_it_may_hold_gives_back_what_it_used_least_and_keeps_the_rest() {
        const INODES: u64 = 5 * LEASES_PER_SESSION_MAX as u64;
        const OFTEN: u64 = 2;
        let leases = Leases::default();
        leases.admit(1);
        let (mut asked, mut requests) = (BTreeSet::new(), 0);
        for ino in 10..10 + INODES {
            if ino % 1000 == 10 {
                assert!(may_keep(&leases, 1, leases.register(1, OFTEN)));
            }
            let seen = leases.register(1, ino);
            assert!(may_keep(&leases, 1, seen), "inode {ino}");
            if ino % 100 == 0 {
                let given = give_back(&leases, 1);
                requests += usize::from(!given.is_empty());
                asked.extend(given);
            }
        }
        assert!(!asked.contains(&OFTEN) && leases.holds(1, OFTEN));
        let kept = INODES - asked.len() as u64;
        println!("{} of {INODES} asked back, by {requests} answers", asked.len());
        assert!(kept > LEASES_DUE as u64 - SPARED_EVENTS_MAX as u64, "{kept}");
        assert!(asked.iter().copied().eq(10..10 + asked.len() as u64), "in the order in which they came");
        assert!(requests <= asked.len() / SPARED_MAX + 1);
    }

    #[test]
    fn what_was_read_under_a_lease_that_went_is_not_kept_by_the_next_one() {
        let leases = Leases::default();
        [1, 2].into_iter().for_each(|session| leases.admit(session));
        let early = leases.register(1, FILE);
        assert!(may_keep(&leases, 1, early));
        change(&leases, 2, || ());
        let late = leases.register(1, FILE);
        assert!(!may_keep(&leases, 1, early));
        assert!(may_keep(&leases, 1, late));
    }
}
