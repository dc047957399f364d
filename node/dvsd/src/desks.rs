//! Desks: through which servers of this node's containers reach the cluster engine (`vos_api::desk`): the coordination
//! server, and disks that have copies.
//!
//! A desk is a socket and a thread. It confines every key to `/programs/DCID/` or `/disks/DCID/`, refuses what a
//! container has too much of, and asks the engine one thing after the other, so that no container asks more than one at
//! a time. News come from the daemon's follower: the desk remembers which keys are different and tells what they are
//! when the server listens, so that a slow server costs no memory.
//!
//! The keeper has the desk's end of the socket, too: the next daemon takes it from there, says so, and is asked again
//! what was not answered.
//!
//! What is leased hangs on one lease of the node for all containers. It outlives the daemon for [`LEASE`], so locks
//! stay when a daemon is replaced, and go when the node does.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cluster::follow::Change;
use cluster::lease::KeptLease;
use cluster::{Compare, Engine, EngineError, Entry, LeaseId, Lookup, Op, Outcome};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use vos_api::cs::{BYTES_MAX, KEYS_MAX};
use vos_api::desk::{
    DESK_KEY_BYTES_MAX, DESK_VALUE_BYTES_MAX, DeskQuestion, Edit, FromDesk, Given, Known, PACKET_BYTES_MAX, Stay,
    ToDesk, Unanswered,
};

use crate::context::Context;
use crate::numbered::Numbered;

/// Below it is what programs agree on, by container.
pub const PROGRAMS: &str = "/programs/";
/// Below it are the records of disks that have copies, likewise.
pub const DISKS: &str = "/disks/";

/// Whose desk it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeskOf {
    pub dc: u32,
    pub server: DeskServer,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DeskServer {
    Coordination,
    /// By the position of the disk.
    Disk(usize),
}

impl DeskOf {
    /// Of its keys in the engine.
    pub fn prefix(self) -> String {
        match self.server {
            DeskServer::Coordination => prefix(self.dc),
            DeskServer::Disk(_) => disks_prefix(self.dc),
        }
    }

    /// Under which the keeper has the daemon's end.
    pub fn kept_as(self) -> String {
        match self.server {
            DeskServer::Coordination => "desk".to_owned(),
            DeskServer::Disk(index) => format!("desk-disk-{index}"),
        }
    }
}
/// How long what is leased outlives the last sign of the node: a daemon is replaced in less, and who waits for a lock
/// of a lost node waits so long.
const LEASE: Duration = Duration::from_secs(10);
/// Between attempts to have a lease, and looks whether it is there.
const LEASE_CHECK: Duration = Duration::from_millis(500);
/// Values of members are so many at most; the rest of [`KEYS_MAX`] is for what they do not see.
const VALUES_MAX: usize = 1024;

#[derive(Default)]
pub struct Desks {
    open: Mutex<HashMap<DeskOf, Arc<Desk>>>,
    lease: Mutex<Option<Arc<KeptLease>>>,
    keeps_lease: AtomicBool,
}

struct Desk {
    of: DeskOf,
    prefix: String,
    bell: OwnedFd,
    news: Mutex<News>,
}

#[derive(Default)]
struct News {
    /// Keys, with the revision in which they became different.
    changed: BTreeMap<String, u64>,
    /// Everything is to be told.
    all: bool,
    is_over: bool,
}

/// Both ends of a desk's socket: for the server, and for the daemon.
pub fn socket() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

pub fn prefix(dc: u32) -> String {
    format!("{PROGRAMS}{dc}/")
}

pub fn disks_prefix(dc: u32) -> String {
    format!("{DISKS}{dc}/")
}

/// Of the record of a disk.
pub fn dc_of_disk(entry: &Entry) -> Option<u32> {
    entry.key.strip_prefix(DISKS)?.split('/').next()?.parse().ok()
}

impl Desks {
    /// Serves a container's server at this end, in place of any it had before.
    pub fn serve(&self, context: &Arc<Context>, of: DeskOf, socket: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let desk = Desk { of, prefix: of.prefix(), bell: sys::eventfd::create()?, news: Mutex::default() };
        let desk = Arc::new(desk);
        desk.news.lock().all = true;
        if !self.keeps_lease.swap(true, Ordering::SeqCst) {
            let also = Arc::downgrade(context);
            std::thread::Builder::new().name("desk-lease".to_owned()).spawn(move || keep_lease(&also))?;
        }
        let (also, context) = (Arc::clone(&desk), Arc::clone(context));
        std::thread::Builder::new().name(format!("desk-{}", of.dc)).spawn(move || also.run(&context, &socket))?;
        let before = self.open.lock().insert(of, desk);
        before.into_iter().for_each(|before| before.end());
        Ok(())
    }

    /// Nobody is served there any more.
    pub fn end(&self, of: DeskOf) {
        if let Some(desk) = self.open.lock().remove(&of) {
            desk.end();
        }
    }

    /// The daemon ends; what is leased stays for its successor.
    pub fn stop(&self) {
        self.keeps_lease.store(false, Ordering::SeqCst);
        self.open.lock().drain().for_each(|(_, desk)| desk.end());
        self.lease.lock().take();
    }

    /// The follower was told this, and the mirror has it.
    pub fn news(&self, change: &Change) {
        match change {
            Change::All(_) => {
                for desk in self.open.lock().values() {
                    desk.news.lock().all = true;
                    sys::eventfd::signal(&desk.bell);
                }
            }
            Change::One(event) => {
                if !event.key.starts_with(PROGRAMS) && !event.key.starts_with(DISKS) {
                    return;
                }
                for desk in self.open.lock().values() {
                    let Some(key) = event.key.strip_prefix(&desk.prefix) else { continue };
                    desk.news.lock().changed.insert(key.to_owned(), event.revision.0);
                    sys::eventfd::signal(&desk.bell);
                }
            }
            Change::Unknown(_) => (),
        }
    }

    fn lease(&self) -> Option<LeaseId> {
        self.lease.lock().as_ref().filter(|lease| lease.is_running()).map(|lease| lease.id())
    }

    /// The lease of the node for this, that of the daemon before if it goes on.
    fn renew_lease(&self, engine: &Arc<dyn Engine>, file: &PathBuf) -> Result<(), EngineError> {
        let saved = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).map(LeaseId);
        let kept = match saved.map(|lease| KeptLease::adopt(engine, lease, LEASE)) {
            Some(Ok(kept)) => kept,
            Some(Err(EngineError::LeaseGone(_))) | None => KeptLease::adopt(engine, engine.grant(LEASE)?, LEASE)?,
            Some(Err(error)) => return Err(error),
        };
        if let Err(error) = crate::state::write(file, &kept.id().0) {
            tracing::warn!(%error, "the next daemon will not know this node's lease for programs");
        }
        *self.lease.lock() = Some(kept);
        Ok(())
    }
}

/// As long as the daemon runs.
fn keep_lease(context: &Weak<Context>) {
    loop {
        let Some(context) = context.upgrade().filter(|one| one.desks.keeps_lease.load(Ordering::SeqCst)) else {
            return;
        };
        let kept = context.desks.lease.lock().clone();
        if kept.is_none_or(|kept| kept.wait_lost(LEASE_CHECK)) {
            let file = context.config.run_dir.join("programs-lease.json");
            if let Err(error) = context.desks.renew_lease(&context.engine, &file) {
                tracing::warn!(%error, "no lease for what programs lock");
                drop(context);
                std::thread::sleep(LEASE_CHECK);
            }
        }
    }
}

impl Desk {
    fn end(&self) {
        self.news.lock().is_over = true;
        sys::eventfd::signal(&self.bell);
    }

    fn run(&self, context: &Context, socket: &OwnedFd) {
        let (sizes, buffer, number) = (HashMap::new(), vec![0; PACKET_BYTES_MAX], Numbered::new(self.of.dc));
        let mut clerk = Clerk { desk: self, context, socket, sizes, buffer, number };
        if let Err(why) = clerk.serve() {
            tracing::debug!(dc = self.of.dc, ?why, "a desk is closed");
        }
    }
}

#[derive(Debug)]
enum Closed {
    Over,
    ServerGone,
}

/// The thread of a desk.
struct Clerk<'a> {
    desk: &'a Desk,
    context: &'a Context,
    socket: &'a OwnedFd,
    /// Bytes under each key that the server was told of.
    sizes: HashMap<String, usize>,
    buffer: Vec<u8>,
    number: Numbered,
}

impl Clerk<'_> {
    fn serve(&mut self) -> Result<(), Closed> {
        loop {
            self.tell()?;
            let mut fds = [
                PollFd::new(self.socket, PollFlags::IN),
                PollFd::from_borrowed_fd(self.desk.bell.as_fd(), PollFlags::IN),
            ];
            let _ = poll(&mut fds, None);
            let is_asked = !fds.first().is_none_or(|fd| fd.revents().is_empty());
            sys::eventfd::drain(&self.desk.bell);
            if self.desk.news.lock().is_over {
                return Err(Closed::Over);
            }
            if is_asked && let Some(asked) = self.read()? {
                let said = self.answer(&asked);
                self.say(&said)?;
            }
        }
    }

    fn read(&mut self) -> Result<Option<ToDesk>, Closed> {
        let received = match recv(self.socket, &mut self.buffer[..], RecvFlags::empty()) {
            Ok((_, 0)) => return Err(Closed::ServerGone),
            Ok((_, received)) => received,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(_) => return Err(Closed::ServerGone),
        };
        let asked = self.buffer.get(..received).and_then(ToDesk::decode);
        if asked.is_none() {
            tracing::warn!(dc = self.desk.of.dc, received, "a coordination server asked what makes no sense");
        }
        Ok(asked)
    }

    /// Waits until the server has room for it, or nobody wants it served any more.
    fn say(&self, said: &FromDesk) -> Result<(), Closed> {
        let packet = said.encode();
        loop {
            match send(self.socket, &packet, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => (),
                Err(rustix::io::Errno::AGAIN) => {
                    let mut fds = [
                        PollFd::new(self.socket, PollFlags::OUT),
                        PollFd::from_borrowed_fd(self.desk.bell.as_fd(), PollFlags::IN),
                    ];
                    let _ = poll(&mut fds, None);
                    sys::eventfd::drain(&self.desk.bell);
                    if self.desk.news.lock().is_over {
                        return Err(Closed::Over);
                    }
                }
                Err(_) => return Err(Closed::ServerGone),
            }
        }
    }

    fn tell(&mut self) -> Result<(), Closed> {
        let (all, changed) = {
            let mut news = self.desk.news.lock();
            let all = news.all;
            if all && self.context.answers.mirror.list(&self.desk.prefix).is_err() {
                // The follower has heard of nothing yet; it rings when it has.
                return Ok(());
            }
            news.all = false;
            (all, std::mem::take(&mut news.changed))
        };
        if all {
            return self.tell_all();
        }
        let mut changed: Vec<(u64, String)> = changed.into_iter().map(|(key, revision)| (revision, key)).collect();
        changed.sort_unstable();
        for (revision, key) in changed {
            match self.context.answers.mirror.read(&format!("{}{key}", self.desk.prefix)) {
                Ok(Some(entry)) => {
                    self.sizes.insert(key, entry.value.len());
                    self.say(&FromDesk::Put(self.known(entry)))?;
                }
                _ => {
                    self.sizes.remove(&key);
                    self.say(&FromDesk::Gone { key, revision })?;
                }
            }
        }
        Ok(())
    }

    fn tell_all(&mut self) -> Result<(), Closed> {
        let Ok(listing) = self.context.answers.mirror.list(&self.desk.prefix) else { return Ok(()) };
        self.sizes.clear();
        self.say(&FromDesk::Hello(versions::DESK.speaks))?;
        for entry in listing.entries {
            let known = self.known(entry);
            self.sizes.insert(known.key.clone(), known.value.len());
            self.say(&FromDesk::Put(known))?;
        }
        self.say(&FromDesk::Listed { revision: listing.revision.0 })
    }

    fn known(&self, entry: Entry) -> Known {
        let key = entry.key.strip_prefix(&self.desk.prefix).unwrap_or_default().to_owned();
        Known { key, value: entry.value, created: entry.created.0, modified: entry.modified.0 }
    }

    fn answer(&mut self, asked: &ToDesk) -> FromDesk {
        let id = asked.id;
        let why = match &asked.question {
            DeskQuestion::Read { key } => match self.place(key).map(|place| self.context.engine.read(&place)) {
                Some(Ok(entry)) => return FromDesk::Found { id, known: entry.map(|entry| self.known(entry)) },
                Some(Err(error)) => why(&error),
                None => Unanswered::Refused,
            },
            DeskQuestion::Transact { givens, edits } => match self.transact(givens, edits) {
                Ok(Outcome::Done(revision)) => return FromDesk::Done { id, revision: revision.0 },
                Ok(Outcome::Conflict(conflict)) => {
                    let current = conflict.current.into_iter().map(|entry| entry.map(|entry| self.known(entry)));
                    return FromDesk::Conflict { id, current: current.collect() };
                }
                Err(why) => why,
            },
        };
        FromDesk::Failed { id, why }
    }

    fn transact(&mut self, givens: &[Given], edits: &[Edit]) -> Result<Outcome, Unanswered> {
        let compares = givens.iter().map(|given| self.compare(given)).collect::<Option<Vec<Compare>>>();
        let compares = compares.ok_or(Unanswered::Refused)?;
        if !self.has_room(edits) {
            return Err(Unanswered::Full);
        }
        let ops = edits.iter().map(|edit| self.op(edit)).collect::<Result<Vec<Op>, Unanswered>>()?;
        match self.number.transact(&*self.context.engine, &compares, &ops) {
            // Its server is about to be ended.
            Ok(outcome) => outcome.ok_or(Unanswered::Away),
            Err(error) => {
                if !error.is_absence() {
                    tracing::warn!(dc = self.desk.of.dc, %error, "the engine does not take what programs agree on");
                }
                Err(why(&error))
            }
        }
    }

    /// The key in the engine; `None` for what is none.
    fn place(&self, key: &str) -> Option<String> {
        let is_key = !key.is_empty() && key.len() <= DESK_KEY_BYTES_MAX && !key.ends_with('/');
        let place = format!("{}{key}", self.desk.prefix);
        (is_key && cluster::check_key(&place).is_ok()).then_some(place)
    }

    fn compare(&self, given: &Given) -> Option<Compare> {
        let key = self.place(given.key())?;
        Some(match given {
            Given::Absent(_) => Compare::Absent { key },
            Given::Present(_) => Compare::Present { key },
            Given::Modified(_, at) => Compare::Modified { key, at: cluster::Revision(*at) },
            Given::Created(_, at) => Compare::Created { key, at: cluster::Revision(*at) },
        })
    }

    fn op(&self, edit: &Edit) -> Result<Op, Unanswered> {
        let key = self.place(edit.key()).ok_or(Unanswered::Refused)?;
        Ok(match edit {
            Edit::Delete { .. } => Op::delete(key),
            Edit::Put { value, .. } if value.len() > DESK_VALUE_BYTES_MAX => return Err(Unanswered::Refused),
            Edit::Put { value, stay: Stay::Kept, .. } => Op::put(key, value.clone()),
            Edit::Put { value, stay: Stay::Leased, .. } => {
                Op::put_leased(key, value.clone(), self.context.desks.lease().ok_or(Unanswered::Away)?)
            }
        })
    }

    /// By what this node knows: nodes that write at the same time may pass the bound by what they write then.
    fn has_room(&self, edits: &[Edit]) -> bool {
        let (mut keys, mut values, mut bytes) = (0, 0, 0);
        for edit in edits {
            let Edit::Put { key, value, .. } = edit else { continue };
            let before = self.sizes.get(key);
            bytes += value.len().saturating_sub(before.copied().unwrap_or(0));
            keys += usize::from(before.is_none());
            values += usize::from(before.is_none() && key.starts_with("k/"));
        }
        let has = |added: usize, most: usize, count: &dyn Fn() -> usize| added == 0 || count() + added <= most;
        has(keys, KEYS_MAX, &|| self.sizes.len())
            && has(values, VALUES_MAX, &|| self.sizes.keys().filter(|key| key.starts_with("k/")).count())
            && has(bytes, BYTES_MAX, &|| self.sizes.values().sum())
    }
}

fn why(error: &EngineError) -> Unanswered {
    match error {
        EngineError::Unknown(_) => Unanswered::Unknown,
        EngineError::Full(_) => Unanswered::Full,
        EngineError::BadKey(_) | EngineError::KeyNamedTwice(_) | EngineError::TooMany { .. } => Unanswered::Refused,
        // Nothing happened, and it may be asked again: also when the lease has just ended and another one comes.
        _ => Unanswered::Away,
    }
}
