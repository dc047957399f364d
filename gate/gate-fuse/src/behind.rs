//! Changes that programs were answered before the server was told: *promises*.
//!
//! Of a file that the session has exclusively ([`vos_api::fs::EXCLUSIVE`]) writes and changes of attributes are
//! promised, of such a directory ([`vos_api::fs::EXCLUSIVE_NAMES`]) names ([`names`]). The promises of an inode are a
//! chain: what is in front is being told, the rest waits, and what adjoins is told as one. Chains of different inodes
//! are told beside one another; that of an inode which was made begins when its name was told. Directories between
//! which a name moves are in one chain until that is told ([`Behind::chain_for`]).
//!
//! Pure. Promises lie in the state object as well, from before the kernel has its answer until the server has them
//! ([`crate::state`]), where the next gate finds them.

pub mod names;

use std::collections::{BTreeSet, HashMap, VecDeque};

use file_locks::Held;
use vos_api::fs::{self, Attr, BEHIND_BYTES_MAX, BEHIND_COUNT_MAX, FILE_BYTES_MAX, SetAttr, valid};

use crate::extents::BLOCK;
use names::{Batch, Goal, Naming};

/// Set-user-id and set-group-id, which a write or a change of owner may have to take away.
const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;
/// Longer writes are told at once: there is little to win.
const WRITE_BYTES_MAX: usize = 256 << 10;
/// What is told in one piece.
const TELL_BYTES_MAX: usize = abi::limits::TRANSFER_BYTES_MAX as usize;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    Set(SetAttr),
    /// A lock that was kept here ([`crate::kept`]).
    Lock(Held),
    /// Of a directory.
    Name(Naming),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Promise {
    /// Rises with each promise of a mount.
    pub id: u64,
    /// Number of the request that was answered.
    pub key: u64,
    pub ino: u64,
    /// Which chain it is in: by the inode with which that began.
    pub chain: u64,
    pub time_ns: u64,
    /// The inode's change time before: by it is seen whether another session changed it meanwhile.
    pub before_ns: u64,
    pub change: Change,
}

impl Change {
    /// Bytes that it brings.
    pub fn len(&self) -> usize {
        match self {
            Change::Write { bytes, .. } => bytes.len(),
            Change::Set(_) | Change::Lock(_) => 0,
            Change::Name(naming) => naming.len(),
        }
    }

    /// What the inode is afterwards. `None`: this is not to be promised.
    pub fn applied_to(&self, attr: &Attr, time_ns: u64) -> Option<Attr> {
        let mut attr = *attr;
        match self {
            Change::Write { offset, bytes } => {
                let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_BYTES_MAX)?;
                let size = attr.bytes.get();
                // How many blocks a hole leaves the server says.
                if *offset > size.next_multiple_of(BLOCK) || bytes.is_empty() || bytes.len() > WRITE_BYTES_MAX {
                    return None;
                }
                let more = end.div_ceil(BLOCK).saturating_sub(size.div_ceil(BLOCK));
                attr.blocks = (attr.blocks.get() + more * (BLOCK / 512)).into();
                attr.bytes = size.max(end).into();
                attr.mtime_ns = time_ns.into();
                attr.ctime_ns = time_ns.into();
            }
            Change::Lock(_) | Change::Name(_) => return None,
            Change::Set(wanted) => {
                let has = |bit| wanted.valid.get() & bit != 0;
                if has(valid::BYTES) || has(valid::CTIME) {
                    return None;
                }
                let loses_ids = has(valid::UID) || has(valid::GID) || has(valid::KILL_SUID);
                if loses_ids && attr.mode.get() & SET_IDS != 0 {
                    return None;
                }
                let set = |bit, to, from| if has(bit) { from } else { to };
                let mode = attr.mode.get() & libc::S_IFMT | wanted.mode.get() & 0o7777;
                attr.mode = set(valid::MODE, attr.mode, mode.into());
                attr.uid = set(valid::UID, attr.uid, wanted.uid);
                attr.gid = set(valid::GID, attr.gid, wanted.gid);
                attr.atime_ns = if has(valid::ATIME) { wanted.atime_ns } else { attr.atime_ns };
                attr.mtime_ns = if has(valid::MTIME) { wanted.mtime_ns } else { attr.mtime_ns };
                attr.ctime_ns = time_ns.into();
            }
        }
        Some(attr)
    }

    pub fn is_lock(&self) -> bool {
        matches!(self, Change::Lock(_))
    }

    /// Adds what follows, if both can be told as one.
    fn join(&mut self, next: &Change) -> bool {
        match (self, next) {
            (Change::Write { offset, bytes }, Change::Write { offset: at, bytes: more }) => {
                let adjoins = *offset + bytes.len() as u64 == *at && bytes.len() + more.len() <= TELL_BYTES_MAX;
                if adjoins {
                    bytes.extend_from_slice(more);
                }
                adjoins
            }
            (Change::Set(wanted), Change::Set(more)) => {
                let has = |bit| more.valid.get() & bit != 0;
                wanted.mode = if has(valid::MODE) { more.mode } else { wanted.mode };
                wanted.uid = if has(valid::UID) { more.uid } else { wanted.uid };
                wanted.gid = if has(valid::GID) { more.gid } else { wanted.gid };
                wanted.atime_ns = if has(valid::ATIME) { more.atime_ns } else { wanted.atime_ns };
                wanted.mtime_ns = if has(valid::MTIME) { more.mtime_ns } else { wanted.mtime_ns };
                wanted.valid = (wanted.valid.get() | more.valid.get()).into();
                true
            }
            _ => false,
        }
    }
}

impl Promise {
    /// What its program is answered.
    pub fn answer(&self) -> Answer {
        match &self.change {
            Change::Write { bytes, .. } => Answer::Bytes(bytes.len() as u32),
            Change::Set(_) | Change::Lock(_) => Answer::Attributes,
            Change::Name(naming) => naming.entry(self.time_ns).map_or(Answer::Nothing, Answer::Entry),
        }
    }

    /// Inodes that are others once it is told; of a lock none.
    pub fn subjects(&self) -> impl Iterator<Item = u64> {
        let (own, others) = match &self.change {
            Change::Lock(_) => (None, [None; 2]),
            Change::Name(naming) => (Some(self.ino), naming.subjects()),
            _ => (Some(self.ino), [None; 2]),
        };
        let goal = self.goal().map(|goal| goal.directory);
        own.into_iter().chain(others.into_iter().flatten()).chain(goal)
    }

    fn goal(&self) -> Option<Goal> {
        match &self.change {
            Change::Name(naming) => naming.goal(),
            _ => None,
        }
    }

    /// Inodes whose order it has to keep.
    pub fn directories(&self) -> impl Iterator<Item = u64> + use<> {
        self.abouts().map(|(ino, _)| ino)
    }

    /// The same, with their change times before.
    fn abouts(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let goal = self.goal().map(|goal| (goal.directory, goal.before_ns));
        [(self.ino, self.before_ns)].into_iter().chain(goal)
    }

    fn makes(&self, ino: u64) -> bool {
        matches!(&self.change, Change::Name(naming) if naming.makes(ino))
    }
}

/// One operation that tells promises.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Telling {
    /// Of the first.
    pub id: u64,
    /// The inode that it is of; of names the first one's directory.
    pub ino: u64,
    pub count: usize,
    pub time_ns: u64,
    pub change: Told,
    /// The session has the inode for itself.
    pub is_exclusive: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    One(Change),
    Names(Batch),
}

/// Whether the promises of an inode still say what they did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trust {
    /// Nobody else has had it.
    Exclusive,
    /// The session was fenced, or a gate before this one promised it: others may have changed it.
    Suspect,
    /// Nobody has, and others may have it now.
    Looked,
}

struct Chain {
    promises: VecDeque<Promise>,
    /// How many of them are being told.
    telling: usize,
    trust: Trust,
    /// Inodes of which it is being found out whether others changed them.
    looks: HashMap<u64, Found>,
    /// What was found of several did not agree.
    looks_again: bool,
}

/// What whoever looks at an inode learns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// There is no answer yet.
    Nothing,
    Inode {
        /// `None`: there is no such inode.
        changed_ns: Option<u64>,
        /// Nobody else can have it.
        is_exclusive: bool,
    },
}

/// Where an inode has, or had, its name.
struct Home {
    chain: u64,
    /// Promises of that chain that are about the inode.
    count: usize,
    /// The server does not know that there is such an inode.
    is_unborn: bool,
}

#[derive(Default)]
pub struct Behind {
    chains: HashMap<u64, Chain>,
    /// Directories of which something is promised in the chain of another one.
    led: HashMap<u64, u64>,
    /// Chains that are over, and of which nobody was told.
    ended: Vec<u64>,
    last_id: u64,
    bytes: usize,
    count: usize,
    /// Inodes that are others once everything is told, and by how many promises.
    marked: HashMap<u64, usize>,
    /// Inodes that names are about that were changed.
    homes: HashMap<u64, Home>,
    /// What is told with a directory's names: files, and how many of their promises.
    folded: HashMap<u64, Vec<(u64, usize)>>,
    /// Inodes of which something can be told, or asked.
    ready: VecDeque<u64>,
    /// Requests that a dead gate had promised and perhaps not answered.
    inherited: HashMap<u64, Answer>,
    /// Promises that were not kept, until whoever syncs or closes the file hears of it.
    failed: HashMap<u64, i32>,
}

/// What a request is answered that was promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// So many bytes were written.
    Bytes(u32),
    Attributes,
    /// What the new name leads to.
    Entry(Attr),
    Nothing,
}

/// What is to be done next for an inode.
pub enum Next {
    Tell(Telling),
    /// Ask what this inode is: others may have changed it.
    Look(u64),
}

impl Behind {
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Inodes of which something is promised that changes them.
    pub fn changed_count(&self) -> usize {
        self.marked.len()
    }

    pub fn is_marked(&self, ino: u64) -> bool {
        self.marked.contains_key(&ino)
    }

    /// Whether the server does not know yet that there is such an inode.
    pub fn is_unborn(&self, ino: u64) -> bool {
        self.homes.get(&ino).is_some_and(|home| home.is_unborn)
    }

    /// The chain that has promises of the inode, or would.
    pub fn chain(&self, ino: u64) -> u64 {
        self.led.get(&ino).copied().unwrap_or(ino)
    }

    /// Whether promises of the directory are in a chain together with those of others.
    fn is_led(&self, ino: u64) -> bool {
        self.led.contains_key(&ino)
    }

    /// The chain whose promises are about the inode as what a name leads to.
    pub fn home(&self, ino: u64) -> Option<u64> {
        self.homes.get(&ino).map(|home| home.chain)
    }

    /// The chain that has to be told before the server knows all of an inode. There may be another one then.
    pub fn waits_on(&self, ino: u64) -> Option<u64> {
        Some(self.chain(ino)).filter(|chain| self.chains.contains_key(chain)).or_else(|| self.home(ino))
    }

    /// The chain in which a change of names keeps all its orders: that of its directories, and of whatever else is
    /// promised of the names of its inodes. `None`: something has to be told first.
    ///
    /// A chain of several directories is never one that comes after another ([`Behind::is_held`]): so no two wait for
    /// each other.
    pub fn chain_for(&self, directory: u64, naming: &Naming) -> Option<u64> {
        let goal = naming.goal().map(|goal| goal.directory);
        let directories = || [directory].into_iter().chain(goal);
        let of_names = naming.subjects().into_iter().flatten().filter_map(|ino| self.home(ino));
        let mut chains: BTreeSet<u64> =
            directories().map(|ino| self.chain(ino)).filter(|chain| self.chains.contains_key(chain)).collect();
        chains.extend(of_names);
        let own = self.chain(directory);
        if goal.is_some() || chains.iter().any(|chain| *chain != own) {
            for home in directories().filter_map(|ino| self.homes.get(&ino)) {
                // What became of it since it was made has other change times than those of its own promises.
                if !home.is_unborn || home.count != 1 {
                    return None;
                }
                chains.insert(home.chain);
            }
        }
        (chains.len() <= 1).then(|| chains.first().copied().unwrap_or(directory))
    }

    /// Whether an inode's chain comes after one of its directory.
    fn is_held(&self, ino: u64) -> bool {
        let is_suspect = || self.chains.get(&ino).is_some_and(|chain| chain.trust == Trust::Suspect);
        self.homes.get(&ino).is_some_and(|home| home.chain != ino && (home.is_unborn || is_suspect()))
    }

    /// Inodes that a chain has promises of.
    pub fn directories(&self, chain: u64) -> Vec<u64> {
        let promises = self.chains.get(&chain).into_iter().flat_map(|chain| &chain.promises);
        promises.flat_map(Promise::directories).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Chains that are over since this was asked last.
    pub fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    /// Whether locks of the inode are being told.
    pub fn has_locks(&self, ino: u64) -> bool {
        self.chains.get(&ino).is_some_and(|chain| chain.promises.iter().any(|promise| promise.change.is_lock()))
    }

    pub fn has(&self, ino: u64) -> bool {
        self.chains.contains_key(&self.chain(ino))
    }

    /// Whether others wait until the promises of an inode are told. What others may have by now comes when it comes, as
    /// any change: it may wait for them.
    pub fn holds_back(&self, ino: u64) -> bool {
        self.chains.get(&self.chain(ino)).is_some_and(|chain| chain.trust != Trust::Looked)
    }

    /// Of all chains.
    pub fn inos(&self) -> impl Iterator<Item = u64> {
        self.chains.keys().copied()
    }

    /// Some inode that has promises.
    pub fn any(&self) -> Option<u64> {
        self.inos().next()
    }

    /// When the oldest promise was made that is not told.
    pub fn oldest_ns(&self) -> Option<u64> {
        let fronts = self.chains.values().filter_map(|chain| chain.promises.front());
        fronts.filter(|promise| !promise.change.is_lock()).map(|promise| promise.time_ns).min()
    }

    /// Bytes and changes that were not told.
    pub fn untold(&self) -> (usize, usize) {
        (self.bytes, self.count)
    }

    /// Whether a change fits beside what waits.
    pub fn fits(&self, change: &Change) -> bool {
        self.count < BEHIND_COUNT_MAX && self.bytes + change.len() <= BEHIND_BYTES_MAX
    }

    pub fn next_id(&self) -> u64 {
        self.last_id + 1
    }

    /// What a dead gate had promised. Who had the session since, and whether that was one that promises, nobody knows.
    pub fn inherit(&mut self, promises: Vec<Promise>) {
        for promise in promises {
            self.inherited.insert(promise.key, promise.answer());
            self.add(promise);
        }
        self.interrupted();
    }

    /// The answer to a request that a dead gate had promised, if the kernel sends it again.
    pub fn inherited(&self, key: u64) -> Option<Answer> {
        self.inherited.get(&key).copied()
    }

    pub fn add(&mut self, promise: Promise) {
        let chain = promise.chain;
        self.led.extend(promise.directories().filter(|ino| *ino != chain).map(|ino| (ino, chain)));
        if !promise.change.is_lock() {
            self.last_id = self.last_id.max(promise.id);
        }
        promise.subjects().for_each(|ino| *self.marked.entry(ino).or_default() += 1);
        if let Change::Name(naming) = &promise.change {
            for about in naming.subjects().into_iter().flatten() {
                let new = || Home { chain, count: 0, is_unborn: false };
                let home = self.homes.entry(about).or_insert_with(new);
                home.count += 1;
                home.is_unborn |= naming.makes(about);
            }
        }
        self.bytes += promise.change.len();
        self.count += 1;
        let (promises, looks) = (VecDeque::new(), HashMap::new());
        let new = Chain { promises, telling: 0, trust: Trust::Exclusive, looks, looks_again: false };
        let promises = &mut self.chains.entry(chain).or_insert(new).promises;
        promises.push_back(promise);
        if promises.len() == 1 {
            self.ready.push_back(chain);
        }
    }

    /// The next chain of which something is to be told. [`Behind::began`] follows, or [`Behind::again`].
    pub fn ready(&mut self) -> Option<u64> {
        while let Some(ino) = self.ready.pop_front() {
            // It comes when it is held no more.
            if !self.is_held(ino) {
                return Some(ino);
            }
        }
        None
    }

    pub fn again(&mut self, ino: u64) {
        self.ready.push_front(ino);
    }

    /// Number of the first promise of a chain.
    pub fn first(&self, ino: u64) -> Option<u64> {
        self.chains.get(&ino)?.promises.front().map(|promise| promise.id)
    }

    /// Promises under whose numbers a dead gate may have been telling.
    pub fn claims(&self) -> Vec<u64> {
        let of = |chain: &Chain| {
            let (locks, first) = (chain.promises.iter().filter(|it| it.change.is_lock()), chain.promises.front());
            locks.chain(first).map(|promise| promise.id).collect::<Vec<_>>()
        };
        self.chains.values().flat_map(of).collect()
    }

    /// What to do for a chain; `count`: so many are told together, if a gate before this one did so.
    pub fn next(&self, ino: u64, count: Option<usize>) -> Option<Next> {
        let chain = self.chains.get(&ino).filter(|chain| chain.telling == 0)?;
        // Of locks others say whether they are in the way.
        let is_lock = chain.promises.front().is_some_and(|promise| promise.change.is_lock());
        if chain.trust == Trust::Suspect && !is_lock {
            let mut inos = chain.promises.iter().flat_map(Promise::directories);
            return inos.find(|ino| !chain.looks.contains_key(ino)).map(Next::Look);
        }
        let mut promises = chain.promises.iter().take(count.unwrap_or(usize::MAX)).peekable();
        let is_exclusive = chain.trust == Trust::Exclusive;
        let first = promises.peek().copied()?;
        let (id, ino, mut time_ns) = (first.id, first.ino, first.time_ns);
        if let Change::Name(_) = first.change {
            let (count, batch) = self.batch(chain, count);
            let (time_ns, change) = (batch.time_ns, Told::Names(batch));
            return Some(Next::Tell(Telling { id, ino, count, time_ns, change, is_exclusive }));
        }
        let (mut change, mut count) = (first.change.clone(), 1);
        for promise in promises.skip(1) {
            if promise.ino != ino || !change.join(&promise.change) {
                break;
            }
            count += 1;
            time_ns = promise.time_ns;
        }
        Some(Next::Tell(Telling { id, ino, count, time_ns, change: Told::One(change), is_exclusive }))
    }

    pub fn began(&mut self, ino: u64, count: usize, folds: Vec<(u64, usize)>) {
        for (file, count) in &folds {
            if let Some(chain) = self.chains.get_mut(file) {
                chain.telling = *count;
            }
        }
        if !folds.is_empty() {
            self.folded.insert(ino, folds);
        }
        if let Some(chain) = self.chains.get_mut(&ino) {
            chain.telling = count;
        }
    }

    /// An inode is being looked at.
    pub fn looks(&mut self, ino: u64) {
        let key = self.chain(ino);
        if let Some(chain) = self.chains.get_mut(&key) {
            chain.looks.insert(ino, Found::Nothing);
            // There may be others.
            self.again(key);
        }
    }

    /// Whether an inode may be missing because its chain was not told.
    pub fn may_be_missing(&self, ino: u64) -> bool {
        let chain = self.chains.get(&self.chain(ino));
        chain.is_some_and(|chain| chain.promises.iter().any(|promise| promise.makes(ino)))
    }

    /// What was being told has a further step.
    pub fn goes_on(&mut self, ino: u64) {
        self.began(ino, 0, Vec::new());
        self.again(ino);
    }

    /// What was being told is through. Answers those promises; the chain is over when none is left.
    pub fn told(&mut self, ino: u64) -> Vec<Promise> {
        let folds = self.folded.remove(&ino).unwrap_or_default();
        let mut told = self.told_of(ino);
        folds.into_iter().for_each(|(file, _)| told.extend(self.told_of(file)));
        let gone = self.gone_with(&told);
        told.extend(gone);
        told
    }

    fn told_of(&mut self, ino: u64) -> Vec<Promise> {
        let Some(chain) = self.chains.get_mut(&ino) else { return Vec::new() };
        let told = std::mem::take(&mut chain.telling).min(chain.promises.len());
        self.take(ino, told)
    }

    /// Promises of a file that loses its name: nobody will see what they do. What is being told is told.
    pub fn drop_untold(&mut self, ino: u64) -> Vec<Promise> {
        let Some(chain) = self.chains.get(&ino) else { return Vec::new() };
        let to = chain.promises.len();
        self.take_range(ino, chain.telling.min(to)..to)
    }

    /// What a fenced session found: the inode's change time; `None`: there is none. Answers promises that are over:
    /// those that were carried out before, or all when others changed the inode ([`Behind::failed`]). `is_exclusive`:
    /// nobody else can have it.
    pub fn looked(&mut self, ino: u64, changed_ns: Option<u64>, is_exclusive: bool) -> (Vec<Promise>, bool) {
        let key = self.chain(ino);
        let Some(chain) = self.chains.get_mut(&key) else { return (Vec::new(), true) };
        // It was asked for twice, and is answered by now.
        if chain.trust != Trust::Suspect || chain.telling != 0 {
            return (Vec::new(), true);
        }
        chain.looks.insert(ino, Found::Inode { changed_ns, is_exclusive });
        let mut inos = chain.promises.iter().flat_map(Promise::directories);
        let is_found = |ino: u64| chain.looks.get(&ino).is_some_and(|found| *found != Found::Nothing);
        if !inos.all(is_found) {
            return (Vec::new(), true);
        }
        let is_own = |found: &Found| matches!(found, Found::Inode { is_exclusive: true, .. });
        let trust = if chain.looks.values().all(is_own) { Trust::Exclusive } else { Trust::Looked };
        let done = done(&chain.promises, &chain.looks);
        // What was told before may have been carried out between two looks: it is by the next ones. Only one thing of a
        // chain is told at a time.
        if done.is_none() && chain.looks.len() > 1 && !chain.looks_again {
            chain.looks.clear();
            chain.looks_again = true;
            self.ready.push_back(key);
            return (Vec::new(), true);
        }
        chain.looks.clear();
        chain.looks_again = false;
        match done {
            Some(0) => {
                chain.trust = trust;
                self.ready.push_back(key);
                (Vec::new(), true)
            }
            Some(done) => {
                chain.trust = trust;
                let mut over = self.take(key, done);
                let gone = self.gone_with(&over);
                over.extend(gone);
                (over, true)
            }
            None => (self.give_up(ino), false),
        }
    }

    /// All promises of an inode's chain.
    pub fn give_up(&mut self, ino: u64) -> Vec<Promise> {
        let key = self.chain(ino);
        let all = self.chains.get(&key).map_or(0, |chain| chain.promises.len());
        self.take(key, all)
    }

    fn take(&mut self, ino: u64, count: usize) -> Vec<Promise> {
        self.take_range(ino, 0..count)
    }

    fn take_range(&mut self, ino: u64, range: std::ops::Range<usize>) -> Vec<Promise> {
        let Some(chain) = self.chains.get_mut(&ino) else { return Vec::new() };
        let taken: Vec<Promise> = chain.promises.drain(range).collect();
        self.count -= taken.len();
        self.bytes -= taken.iter().map(|promise| promise.change.len()).sum::<usize>();
        if chain.promises.is_empty() {
            self.chains.remove(&ino);
            self.ended.push(ino);
        } else if !taken.is_empty() && chain.telling == 0 {
            self.ready.push_back(ino);
        }
        taken.iter().for_each(|promise| self.unmark(promise));
        if !self.led.is_empty() {
            let left = self.directories(ino);
            self.led.retain(|directory, chain| *chain != ino || left.contains(directory));
        }
        taken
    }

    fn unmark(&mut self, promise: &Promise) {
        for ino in promise.subjects() {
            if let Some(count) = self.marked.get_mut(&ino) {
                *count -= 1;
                if *count == 0 {
                    self.marked.remove(&ino);
                }
            }
        }
        let Change::Name(naming) = &promise.change else { return };
        for ino in naming.subjects().into_iter().flatten() {
            let Some(home) = self.homes.get_mut(&ino) else { continue };
            home.count -= 1;
            home.is_unborn &= !naming.makes(ino);
            if home.count == 0 {
                self.homes.remove(&ino);
            }
            // What of it was held is not any more, perhaps.
            if self.chains.get(&ino).is_some_and(|chain| chain.telling == 0) {
                self.ready.push_back(ino);
            }
        }
    }

    /// The session has lost its locks, and nothing is being told.
    pub fn lose_locks(&mut self) -> Vec<(u64, Held)> {
        let mut lost = Vec::new();
        for (ino, chain) in &mut self.chains {
            chain.promises.retain(|promise| {
                if let Change::Lock(held) = promise.change {
                    lost.push((*ino, held));
                }
                !promise.change.is_lock()
            });
        }
        self.chains.retain(|_, chain| !chain.promises.is_empty());
        self.count -= lost.len();
        lost
    }

    /// A promise was not kept.
    pub fn fails(&mut self, ino: u64, errno: i32) {
        // Bounded by forgetting: nobody may ever ask.
        if self.failed.len() >= 1024 {
            self.failed.clear();
        }
        self.failed.insert(ino, errno);
    }

    /// What whoever closes the file has to hear.
    pub fn failure(&self, ino: u64) -> Option<i32> {
        self.failed.get(&ino).copied()
    }

    /// The same of who syncs it, once.
    pub fn take_failure(&mut self, ino: u64) -> Option<i32> {
        self.failed.remove(&ino)
    }

    /// Nothing is being told any more, and others may have changed what was promised.
    pub fn interrupted(&mut self) {
        self.ready.clear();
        self.folded.clear();
        for (ino, chain) in &mut self.chains {
            (chain.telling, chain.trust, chain.looks_again) = (0, Trust::Suspect, false);
            chain.looks.clear();
            self.ready.push_back(*ino);
        }
    }
}

/// How many promises of a chain were carried out, by what its inodes are now. What is told is told of all of them, and
/// each promise has a change time of its own. `None`: others have changed one of them.
fn done(promises: &VecDeque<Promise>, looks: &HashMap<u64, Found>) -> Option<usize> {
    // By inode, how many of its own.
    let mut of_each: HashMap<u64, usize> = HashMap::new();
    for (ino, found) in looks {
        let Found::Inode { changed_ns, .. } = found else { return None };
        let own = || promises.iter().flat_map(|it| it.abouts().map(|about| (about, it.time_ns)));
        let own = || own().filter(|((about, _), _)| about == ino).map(|((_, before_ns), time_ns)| (before_ns, time_ns));
        let Some((before_ns, _)) = own().next() else { continue };
        let done = match changed_ns {
            None if promises.iter().any(|promise| promise.makes(*ino)) => 0,
            None => return None,
            Some(now_ns) if before_ns == *now_ns => 0,
            Some(now_ns) => 1 + own().collect::<Vec<_>>().iter().rposition(|(_, time_ns)| time_ns == now_ns)?,
        };
        of_each.insert(*ino, done);
    }
    let mut seen: HashMap<u64, usize> = HashMap::new();
    let (mut count, mut is_over) = (0, false);
    for promise in promises {
        let mut said = Vec::new();
        for ino in promise.directories() {
            let at = seen.entry(ino).or_default();
            said.push(*at < of_each.get(&ino).copied().unwrap_or(0));
            *at += 1;
        }
        // What it makes is there, if anything is promised of it in this chain.
        let made = looks.iter().find(|(ino, _)| promise.makes(**ino));
        said.extend(made.map(|(_, found)| matches!(found, Found::Inode { changed_ns: Some(_), .. })));
        let is_done = said.first() == Some(&true);
        if said.iter().any(|it| *it != is_done) || is_done && is_over {
            return None;
        }
        is_over = !is_done;
        count += usize::from(is_done);
    }
    Some(count)
}

/// Whether a write by this request takes set-id bits away that the file has.
pub fn kills_ids(marks: u16, attr: &Attr) -> bool {
    marks & fs::KILL_SUID != 0 && attr.mode.get() & SET_IDS != 0
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn attr(mode: u32, bytes: u64) -> Attr {
        let blocks = bytes.div_ceil(BLOCK) * 8;
        Attr { mode: mode.into(), bytes: bytes.into(), blocks: blocks.into(), ..Attr::new_zeroed() }
    }

    fn write(offset: u64, bytes: usize) -> Change {
        Change::Write { offset, bytes: vec![7; bytes] }
    }

    fn set(valid: u32, mode: u32, mtime: u64) -> Change {
        let wanted =
            SetAttr { valid: valid.into(), mode: mode.into(), mtime_ns: mtime.into(), ..SetAttr::new_zeroed() };
        Change::Set(wanted)
    }

    fn promise(id: u64, ino: u64, change: Change) -> Promise {
        Promise { id, key: 2 * id, ino, chain: ino, time_ns: 100 + id, before_ns: 99 + id, change }
    }

    #[test]
    fn what_a_file_is_after_a_change_is_known_or_the_change_is_not_promised() {
        let file = attr(0o100_644, 5000);
        let after = write(4000, 3000).applied_to(&file, 9).expect("promised");
        assert_eq!(
            (after.bytes.get(), after.blocks.get(), after.mtime_ns.get(), after.ctime_ns.get()),
            (7000, 16, 9, 9)
        );
        let after = write(8000, 1000).applied_to(&file, 9).expect("no block is left out");
        assert_eq!((after.bytes.get(), after.blocks.get()), (9000, 24));
        assert_eq!(write(8193, 1).applied_to(&file, 9), None, "a hole");
        assert_eq!(write(0, 0).applied_to(&file, 9), None);
        assert_eq!(write(0, WRITE_BYTES_MAX + 1).applied_to(&file, 9), None);
        assert_eq!(write(u64::MAX, 1).applied_to(&file, 9), None);
        let after = set(valid::MODE | valid::MTIME, 0o104_600, 5).applied_to(&file, 9).expect("promised");
        assert_eq!(
            (after.mode.get(), after.mtime_ns.get(), after.ctime_ns.get()),
            (0o104_600 & 0o7777 | 0o100_000, 5, 9)
        );
        assert_eq!(set(valid::UID, 0, 0).applied_to(&after, 9), None, "set-user-id goes");
        assert!(set(valid::UID, 0, 0).applied_to(&file, 9).is_some());
        assert_eq!(set(valid::BYTES, 0, 0).applied_to(&file, 9), None);
    }

    #[test]
    fn writes_that_adjoin_are_told_as_one_and_so_are_attributes() {
        let mut behind = Behind::default();
        for (id, change) in
            [write(0, 10), write(10, 10), write(30, 10), set(valid::MODE, 0o600, 0)].into_iter().enumerate()
        {
            behind.add(promise(1 + id as u64, 5, change));
        }
        behind.add(promise(5, 5, set(valid::MTIME, 0, 3)));
        behind.add(promise(6, 6, write(0, 1)));
        assert_eq!(behind.untold(), (31, 6));
        let mut told = Vec::new();
        while let Some(ino) = behind.ready() {
            let Some(Next::Tell(telling)) = behind.next(ino, None) else { panic!("something is told") };
            behind.began(ino, telling.count, Vec::new());
            assert!(behind.next(ino, None).is_none(), "one after the other");
            let Told::One(change) = telling.change else { panic!("no names") };
            told.push((ino, telling.count, telling.time_ns, change));
            behind.told(ino);
        }
        let Change::Set(both) = set(valid::MODE | valid::MTIME, 0o600, 3) else { unreachable!() };
        let expected = [
            (5, 2, 102, write(0, 20)),
            (6, 1, 106, write(0, 1)),
            (5, 1, 103, write(30, 10)),
            (5, 2, 105, Change::Set(both)),
        ];
        assert_eq!(told, expected);
        assert_eq!((behind.is_empty(), behind.untold()), (true, (0, 0)));
    }

    #[test]
    fn what_a_dead_gate_told_together_is_told_together_again() {
        let mut behind = Behind::default();
        (1..=3).for_each(|id| behind.add(promise(id, 5, write(10 * id, 10))));
        let Some(Next::Tell(telling)) = behind.next(5, Some(2)) else { panic!("something is told") };
        assert_eq!((telling.count, telling.change), (2, Told::One(write(10, 20))));
    }

    #[test]
    fn promises_are_bounded() {
        let mut behind = Behind::default();
        let mut id = 0;
        while behind.fits(&write(0, 1)) {
            id += 1;
            behind.add(promise(id, id, write(0, 1)));
        }
        assert_eq!(behind.untold().1, BEHIND_COUNT_MAX);
        let mut behind = Behind::default();
        behind.add(promise(1, 1, write(0, BEHIND_BYTES_MAX)));
        assert!(!behind.fits(&write(0, 1)) && behind.fits(&set(valid::MODE, 0, 0)));
    }

    #[test]
    fn fenced_session_goes_on_with_what_nobody_else_changed_and_says_so_when_somebody_did() {
        let three = || {
            let mut behind = Behind::default();
            (1..=3).for_each(|id| behind.add(promise(id, 5, write(100 * id, 10))));
            behind.ready();
            behind.began(5, 1, Vec::new());
            behind.interrupted();
            assert!(matches!(behind.next(5, None), Some(Next::Look(5))));
            behind
        };
        let mut behind = three();
        assert!(behind.holds_back(5));
        assert_eq!(behind.looked(5, Some(100), false), (Vec::new(), true));
        assert!(matches!(behind.next(5, None), Some(Next::Tell(telling)) if telling.id == 1 && !telling.is_exclusive));
        assert!(!behind.holds_back(5), "it may wait for others itself");
        let mut behind = three();
        assert_eq!(behind.looked(5, Some(100), true), (Vec::new(), true));
        assert!(matches!(behind.next(5, None), Some(Next::Tell(telling)) if telling.id == 1 && telling.is_exclusive));
        assert!(behind.holds_back(5));
        let mut behind = three();
        let (done, is_kept) = behind.looked(5, Some(102), false);
        assert_eq!((done.len(), is_kept), (2, true), "they had been carried out");
        assert!(matches!(behind.next(5, None), Some(Next::Tell(telling)) if telling.id == 3));
        let mut behind = three();
        let (lost, is_kept) = behind.looked(5, Some(777), false);
        assert_eq!((lost.len(), is_kept, behind.is_empty()), (3, false, true));
        behind.fails(5, 5);
        assert_eq!((behind.failure(5), behind.take_failure(5), behind.take_failure(5)), (Some(5), Some(5), None));
    }
}
