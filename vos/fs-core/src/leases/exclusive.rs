//! Inodes that one session has for itself, so that it may change them before it tells.
//!
//! ```text
//!            a change of S, alone                      T looks or changes
//!   shared ───────────────────────▶ exclusive of S ───────────────────────▶ asked
//!     ▲                                                                       │
//!     └────────────── S has told, or given its lease back, or is gone ────────┘
//! ```
//!
//! It is granted with the answer to a change of a regular file, to a session that said that it writes behind, while
//! nobody else holds a lease on it, has it open, waits for it or changes it. From then on the server does not know what
//! the file is: whoever looks waits until S has told ([`Leases::told`]), which S does on an event of its own
//! ([`vos_api::fs::TELL`]), without dropping anything, or on the one that asks its lease back. To tell, S needs nobody:
//! its changes of before wait for none of those who wait for them ([`super::When::Behind`]), and for nothing that
//! others may have of other inodes.
//!
//! Who has told nothing of it for a minute is asked to tell without anybody waiting: so the next one who looks need not
//! ask. (A change of the session then costs a round trip, and has it back.)
//!
//! A restarted server does not know who has what: of every session of before that writes behind it is taken that it has
//! everything, until that has told.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vos_api::fs::{BEHIND_COUNT_MAX, RECALL_MS};

use crate::core::Fs;

use super::{Go, LEASES_PER_SESSION_MAX, Leases, Mailbox, Resume, Seen, State, Told, Woken};

#[derive(Default)]
pub(super) struct Exclusive {
    by_ino: HashMap<u64, Owner>,
    /// Who waits until sessions have told of everything.
    parked: Vec<Parked>,
    /// When it was looked for what is idle.
    looked_ms: u64,
}

/// While there is one, nobody gets anything exclusively.
pub struct Still {
    fs: Arc<Fs>,
}

impl Still {
    pub fn new(fs: &Arc<Fs>) -> Still {
        fs.leases.stills.now.fetch_add(1, Ordering::SeqCst);
        fs.leases.stills.ever.fetch_add(1, Ordering::SeqCst);
        // Whoever looked before has been granted what he is granted.
        drop(fs.leases.state.lock());
        Still { fs: fs.clone() }
    }

    pub fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }
}

impl Drop for Still {
    /// Also while an answer is given, under the lock of all leases. Who looked meanwhile is granted nothing.
    fn drop(&mut self) {
        self.fs.leases.stills.ever.fetch_add(1, Ordering::SeqCst);
        self.fs.leases.stills.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// [`Still`]s that there are, and how often one began or ended.
#[derive(Default)]
pub(super) struct Stills {
    now: AtomicU64,
    ever: AtomicU64,
}

struct Owner {
    session: u64,
    /// The event that asks for it, and since when.
    asked: Option<(u64, u64)>,
    /// When a change of it was told last; `None`: since it was looked at the time.
    told_ms: Option<u64>,
}

impl Owner {
    fn new(session: u64) -> Owner {
        Owner { session, asked: None, told_ms: None }
    }
}

/// What was told for so long of nothing is no session's any more.
const IDLE_MS: u64 = 60_000;
/// That is looked at so often.
const IDLE_LOOK_MS: u64 = 5_000;
/// Of so many a session is asked to tell at a time.
const IDLE_COUNT_MAX: usize = 512;

struct Parked {
    session: u64,
    /// Sessions, and the recall up to which they must tell.
    needs: HashMap<u64, u64>,
    resume: Resume,
}

impl Exclusive {
    pub fn removed(&mut self, ino: u64) {
        self.by_ino.remove(&ino);
    }

    /// The lease of `ino` is asked back from `session`.
    pub fn asked(&mut self, ino: u64, session: u64, recall: u64, now_ms: u64) {
        if let Some(owner) = self.by_ino.get_mut(&ino).filter(|owner| owner.session == session) {
            owner.asked.get_or_insert((recall, now_ms));
        }
    }

    /// All leases of `session` are.
    pub fn asked_all(&mut self, session: u64, recall: u64, now_ms: u64) {
        for owner in self.by_ino.values_mut().filter(|owner| owner.session == session) {
            owner.asked = Some((recall, now_ms));
        }
    }

    pub fn gone(&mut self, session: u64) {
        self.by_ino.retain(|_, owner| owner.session != session);
    }

    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    pub fn abandon(&mut self) -> Vec<Resume> {
        std::mem::take(&mut self.parked).into_iter().map(|parked| parked.resume).collect()
    }

    /// What a session that is gone waits for.
    pub fn end_parked(&mut self, session: u64) -> Vec<Resume> {
        self.parked.extract_if(.., |parked| parked.session == session).map(|parked| parked.resume).collect()
    }
}

/// What an answer is given under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    pub is_held: bool,
    pub is_exclusive: bool,
    /// The directories whose names were changed are.
    pub has_names: bool,
}

impl Leases {
    /// The session writes behind, for good.
    pub fn writes_behind(&self, session: u64) {
        self.state.lock().mailboxes.entry(session).or_default().writes_behind = true;
    }

    /// Whether the session's client understands [`vos_api::fs::TELL`].
    pub fn understands(&self, session: u64, tell: bool) {
        self.state.lock().mailboxes.entry(session).or_default().is_of_before = !tell;
    }

    /// Whether a client is of an earlier release, as its node may be.
    pub fn has_of_before(&self) -> bool {
        self.state.lock().mailboxes.values().any(|mailbox| mailbox.is_of_before)
    }

    /// Whether the session has the inode for itself, or may have had it so when the server before this one ended.
    pub fn is_own(&self, session: u64, ino: u64) -> bool {
        let state = self.state.lock();
        let is_owner = state.exclusive.by_ino.get(&ino).is_some_and(|owner| owner.session == session);
        is_owner || state.mailboxes.get(&session).is_some_and(|mailbox| mailbox.untold.is_some())
    }

    /// Time passes.
    pub fn tick(&self, now_ms: u64) {
        self.state.lock().ask_idle(now_ms);
    }

    /// Whether anybody has anything exclusively, which may become idle.
    pub fn has_owners(&self) -> bool {
        !self.state.lock().exclusive.by_ino.is_empty()
    }

    /// How often a [`Still`] began or ended.
    pub fn stills(&self) -> u64 {
        self.stills.ever.load(Ordering::SeqCst)
    }

    /// How many sessions do.
    pub fn behind_count(&self) -> u64 {
        self.state.lock().mailboxes.values().filter(|mailbox| mailbox.writes_behind).count() as u64
    }

    pub fn is_behind(&self, session: u64) -> bool {
        self.state.lock().mailboxes.get(&session).is_some_and(|mailbox| mailbox.writes_behind)
    }

    /// Whether another session has the inode exclusively, or may have.
    pub fn is_taken(&self, session: u64, ino: u64) -> bool {
        session != 0 && self.state.lock().is_taken(session, ino)
    }

    /// As [`Leases::deliver`], of a change of a regular file, one of those seen, and of names of directories: the
    /// session has them exclusively from now on if nobody else has anything of them, and since `stills` was asked for
    /// there was no [`Still`]. What is not had so of several directories stays as it is: the session may be asked to
    /// tell what it has not promised.
    pub fn deliver_change(
        &self,
        session: u64,
        seen: &[Seen],
        (file, directories): (Option<u64>, &[u64]),
        stills: u64,
        answer: impl FnOnce(Terms),
    ) {
        let mut state = self.state.lock();
        let is_held = state.may_keep(session, seen);
        let may_grant = self.stills.now.load(Ordering::SeqCst) == 0 && self.stills() == stills;
        let is_exclusive = is_held && may_grant && file.is_some_and(|ino| state.grant(session, ino));
        // What is made there comes with a lease.
        let may_make =
            state.mailboxes.get(&session).is_some_and(|it| it.leases + 2 * BEHIND_COUNT_MAX < LEASES_PER_SESSION_MAX);
        let may_have = |ino: &u64| state.holds(session, *ino) && state.grant(session, *ino);
        let may_name = session != 0 && may_grant && may_make && !directories.is_empty();
        let has_names = may_name && directories.iter().all(may_have);
        answer(Terms { is_held, is_exclusive, has_names });
    }

    /// The session made the inode before it told of it, so nobody else can have anything of it. While the change runs.
    pub fn made_behind(&self, session: u64, ino: u64) {
        let mut state = self.state.lock();
        if session != 0 {
            state.hold(session, ino);
            state.exclusive.by_ino.insert(ino, Owner::new(session));
        }
    }

    /// The session told of what it had changed, as far as events up to `recall` ask. Answers what can go on.
    #[must_use]
    pub fn told(&self, session: u64, recall: u64) -> Woken {
        let mut state = self.state.lock();
        let mut woken = state.told(session, recall);
        woken.extend(state.let_readers_in());
        woken
    }

    /// Waits, if need be, until all others have told of what they changed before, of everything or of `inos`; `resume`
    /// is called then. `Err`: nothing has to be waited for, `resume` comes back.
    pub fn settle(&self, session: u64, inos: Option<&[u64]>, now_ms: u64, resume: Resume) -> Result<(), Resume> {
        let mut state = self.state.lock();
        let all = || state.exclusive.by_ino.keys().copied().collect();
        let inos: Vec<u64> = inos.map_or_else(all, <[u64]>::to_vec);
        for ino in &inos {
            state.ask_to_tell(session, *ino, now_ms);
        }
        let mut needs: HashMap<u64, u64> = HashMap::new();
        let owners = inos.iter().filter_map(|ino| state.exclusive.by_ino.get(ino));
        let asked = owners.filter_map(|owner| Some((owner.session, owner.asked?.0)));
        let untold = state.mailboxes.iter().filter_map(|(session, mailbox)| Some((*session, mailbox.untold?.0)));
        for (other, recall) in asked.chain(untold).filter(|(other, _)| *other != session) {
            let need = needs.entry(other).or_default();
            *need = recall.max(*need);
        }
        if needs.is_empty() {
            return Err(resume);
        }
        state.exclusive.parked.push(Parked { session, needs, resume });
        Ok(())
    }
}

impl State {
    pub(super) fn is_taken(&self, session: u64, ino: u64) -> bool {
        self.exclusive.by_ino.get(&ino).is_some_and(|owner| owner.session != session)
            || self.mailboxes.iter().any(|(other, mailbox)| *other != session && mailbox.untold.is_some())
    }

    /// Whether the inode is taken; then who has it is asked to tell.
    pub(super) fn ask_to_tell(&mut self, session: u64, ino: u64, now_ms: u64) -> bool {
        if let Some(owner) = self.exclusive.by_ino.get_mut(&ino)
            && owner.session != session
            && owner.asked.is_none()
        {
            let (holder, mailbox) = (owner.session, self.mailboxes.entry(owner.session).or_default());
            if mailbox.is_full(1) || mailbox.is_of_before {
                let number = mailbox.ask_everything(now_ms);
                self.exclusive.asked_all(holder, number, now_ms);
            } else {
                owner.asked = Some((mailbox.push(ino, Told::Tell, now_ms), now_ms));
                mailbox.serve();
            }
        }
        self.is_taken(session, ino)
    }

    fn grant(&mut self, session: u64, ino: u64) -> bool {
        if let Some(owner) = self.exclusive.by_ino.get_mut(&ino) {
            let is_own = owner.session == session && owner.asked.is_none();
            if is_own {
                owner.told_ms = None;
            }
            return is_own;
        }
        let may = |mailbox: &Mailbox| mailbox.writes_behind && !mailbox.is_of_before && mailbox.everything.is_none();
        let is_free = self.mailboxes.get(&session).is_some_and(may)
            && !self.is_taken(session, ino)
            // Who has not given back what the server before this one granted may have anything in caches.
            && self.mailboxes.iter().all(|(other, mailbox)| *other == session || mailbox.everything.is_none())
            && !self.is_held_by_others(session, ino)
            && self.open.get(&ino).is_none_or(|sessions| sessions.keys().all(|other| *other == session))
            && self.places.get(&ino).is_none_or(|place| place.under_way.values().all(|other| *other == session))
            && !self.readers.iter().any(|reader| reader.ino == ino);
        if is_free {
            self.exclusive.by_ino.insert(ino, Owner::new(session));
        }
        is_free
    }

    /// Asks to tell whoever has something exclusively, and has told nothing of it for long.
    pub(super) fn ask_idle(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.exclusive.looked_ms) < IDLE_LOOK_MS {
            return;
        }
        self.exclusive.looked_ms = now_ms;
        let mut idle: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (ino, owner) in self.exclusive.by_ino.iter_mut().filter(|(_, owner)| owner.asked.is_none()) {
            let told_ms = *owner.told_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(told_ms) >= IDLE_MS {
                idle.entry(owner.session).or_default().push(*ino);
            }
        }
        for (session, inos) in idle {
            let Some(mailbox) = self.mailboxes.get_mut(&session) else { continue };
            // What it was asked before comes first.
            if mailbox.everything.is_some() || mailbox.is_of_before || !mailbox.owed.is_empty() {
                continue;
            }
            for ino in inos.into_iter().take(IDLE_COUNT_MAX) {
                let number = mailbox.push(ino, Told::Tell, now_ms);
                self.exclusive.asked(ino, session, number, now_ms);
            }
            mailbox.serve();
        }
    }

    /// The session is gone, and with it what it did not tell.
    pub(super) fn gone(&mut self, session: u64, now_ms: u64) -> Woken {
        let mut woken = self.satisfied(session, u64::MAX, now_ms);
        woken.extend(self.told(session, u64::MAX));
        woken.extend(self.let_readers_in());
        woken
    }

    pub(super) fn told(&mut self, session: u64, recall: u64) -> Woken {
        let is_told = |owner: &Owner| owner.session == session && owner.asked.is_some_and(|(asked, _)| asked <= recall);
        self.exclusive.by_ino.retain(|_, owner| !is_told(owner));
        if let Some(mailbox) = self.mailboxes.get_mut(&session) {
            mailbox.untold = mailbox.untold.filter(|(asked, _)| *asked > recall);
        }
        for parked in &mut self.exclusive.parked {
            if parked.needs.get(&session).is_some_and(|need| *need <= recall) {
                parked.needs.remove(&session);
            }
        }
        let ready = self.exclusive.parked.extract_if(.., |parked| parked.needs.is_empty());
        ready.map(|parked| (parked.resume, Go::On)).collect()
    }

    /// Sessions that others wait for and that did not tell for too long.
    pub(super) fn untold_for_long(&self, now_ms: u64) -> Vec<u64> {
        let is_long = |since: u64| now_ms.saturating_sub(since) >= RECALL_MS;
        let waited_for: BTreeSet<u64> = self.readers.iter().map(|reader| reader.ino).collect();
        let needed: BTreeSet<u64> =
            self.exclusive.parked.iter().flat_map(|parked| parked.needs.keys().copied()).collect();
        let owners = self.exclusive.by_ino.iter().filter(|(ino, owner)| {
            owner.asked.is_some_and(|(_, since)| is_long(since))
                && (waited_for.contains(ino) || needed.contains(&owner.session))
        });
        let untold = self.mailboxes.iter().filter(|(session, mailbox)| {
            mailbox.untold.is_some_and(|(_, since)| is_long(since))
                && (!waited_for.is_empty() || needed.contains(session))
        });
        owners.map(|(_, owner)| owner.session).chain(untold.map(|(session, _)| *session)).collect()
    }
}
