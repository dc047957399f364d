//! What outlives a gate process: the negotiation, the journal of changing requests, the table of open handles, and
//! which inodes the kernel may have in its caches.
//!
//! It lives in a memfd that the daemon hands to every gate of one mount, written with `pwrite`: once that returned, the
//! record survives SIGKILL. The layout is drawn in `docs/design/gate-fuse.md`. Each record carries a check value, so
//! that whatever else is found there counts as empty; nothing in here panics on any contents.
//!
//! A journal slot is *in use* from [`State::note`] until [`State::answered`], or from the moment a new gate is
//! sent its request again ([`State::claim`]). Other slots are history and may be overwritten.

mod locks;
mod promises;

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use file_locks::Held;
use rustix::io::Errno;
use vos_api::gates::{FIGURES_AT, GateFigures};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::behind::Promise;
use crate::opens::Opens;

pub const JOURNAL_SLOTS: usize = 1024;
pub const HANDLES_MAX: usize = 65_536;
const MAGIC: u64 = u64::from_le_bytes(*b"DVSGATE\x01");
const VERSION: u32 = versions::GATE_STATE.speaks.newest as u32;
const JOURNAL_AT: u64 = 4096;
const RECORD_BYTES: usize = 32;
const HANDLES_AT: u64 = JOURNAL_AT + (JOURNAL_SLOTS * RECORD_BYTES) as u64;
const CACHED_AT: u64 = HANDLES_AT + (HANDLES_MAX * RECORD_BYTES) as u64;
/// Inodes that may be cached under a lease: those with smaller numbers. The others are asked for each time.
const CACHED_INOS_MAX: u64 = 1 << 24;
const TAKEN_AT: u64 = CACHED_AT + CACHED_INOS_MAX / 8;
/// Requests that one gate may have taken from the kernel; more than it does.
const TAKEN_SLOTS: usize = JOURNAL_SLOTS;
const TAKEN_END: u64 = TAKEN_AT + (TAKEN_SLOTS * size_of::<u64>()) as u64;
pub const STATE_BYTES: u64 = locks::END;

const _: () = assert!(size_of::<Head>() as u64 == FIGURES_AT);
const _: () = assert!(FIGURES_AT + size_of::<GateFigures>() as u64 <= JOURNAL_AT);
const _: () = assert!(size_of::<Note>() == RECORD_BYTES);
const _: () = assert!(size_of::<Entry>() == RECORD_BYTES);
// No more requests in flight than the server remembers replies, and than the journal has slots.
const _: () = assert!(JOURNAL_SLOTS <= vos_api::session::IN_FLIGHT_MAX as usize);

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("the state object of the mount cannot be {verb}")]
    Access {
        verb: &'static str,
        #[source]
        cause: Errno,
    },
    #[error("the state object has version {found}, this gate writes version {VERSION}")]
    Version { found: u32 },
    #[error("the journal has no free slot")]
    JournalFull,
    #[error("the table of open files is full ({HANDLES_MAX})")]
    TooManyHandles,
}

/// What INIT agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    pub minor: u32,
    pub flags: u64,
    pub max_write: u32,
}

/// No request has this key.
const NOBODY: u64 = 0;

/// Of [`Handle::fs_handle`]: the file was opened under a lease, and the rest is the number of the request that did it.
const DELEGATED: u64 = 1 << 63;
/// Of [`Handle::flags`], where open(2) has nothing: an open file that stands for those the server was not told of.
const STANDING: u32 = 1 << 31;

/// One open file, as the server knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    pub ino: u64,
    pub fs_handle: u64,
    pub flags: u32,
}

impl Handle {
    /// One that the server is not told of; `key` of the request that opens it.
    pub fn delegated(ino: u64, key: u64, flags: u32) -> Handle {
        Handle { ino, fs_handle: DELEGATED | key, flags }
    }

    pub fn is_delegated(&self) -> bool {
        self.fs_handle & DELEGATED != 0
    }

    /// What the server knows it by; 0: it does not.
    pub fn known_as(&self) -> u64 {
        if self.is_delegated() { 0 } else { self.fs_handle }
    }

    fn is_standing(&self) -> bool {
        self.flags & STANDING != 0
    }

    /// Mapping a file for writing takes a handle that can do both.
    pub fn is_writable_mapping(&self) -> bool {
        self.flags & libc::O_ACCMODE as u32 == libc::O_RDWR as u32
    }
}

/// What the journal says of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noted {
    pub sequence: u64,
    pub step: u32,
    pub op: u16,
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Head {
    magic: u64,
    version: u32,
    phase: u32,
    session: u64,
    flags: u64,
    minor: u32,
    max_write: u32,
    reserved: [u64; 2],
    check: u64,
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Note {
    key: u64,
    sequence: u64,
    step: u32,
    op: u32,
    check: u64,
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Entry {
    ino: u64,
    fs_handle: u64,
    flags: u32,
    generation: u32,
    check: u64,
}

#[derive(Clone, Copy)]
struct LiveRequest {
    slot: usize,
    noted: Noted,
}

pub struct State {
    fd: OwnedFd,
    head: Head,
    /// Requests whose slot is in use.
    live: HashMap<u64, LiveRequest>,
    /// Found at start: what a dead gate was doing, until the resent requests are known.
    inherited: HashMap<u64, LiveRequest>,
    free: Vec<usize>,
    next_sequence: u64,
    entries: Vec<Entry>,
    free_entries: Vec<usize>,
    by_fs_handle: HashMap<u64, usize>,
    opens: Opens,
    /// Handles through which an inode can be read and written, so mapped for writing.
    writable: HashMap<u64, usize>,
    /// Handles by inode.
    open: HashMap<u64, usize>,
    /// A bit per inode.
    cached: Vec<u8>,
    /// Requests that wait for our answer, and their slots; only where the kernel would not send them to the next gate.
    taken: HashMap<u64, usize>,
    free_taken: Vec<usize>,
    shelf: promises::Shelf,
    /// What gates before this one had promised.
    inherited_promises: Vec<Promise>,
    locks: locks::Shelf,
    inherited_locks: Vec<(u64, Held)>,
}

impl State {
    /// Reads what a predecessor left; an empty object becomes a new one.
    pub fn open(fd: OwnedFd) -> Result<State, StateError> {
        let access = |verb| move |cause| StateError::Access { verb, cause };
        let bytes = rustix::fs::fstat(&fd).map_err(access("examined"))?.st_size;
        if (bytes as u64) < STATE_BYTES {
            rustix::fs::ftruncate(&fd, STATE_BYTES).map_err(access("sized"))?;
        }
        let mut state = State {
            fd,
            head: Head::default(),
            live: HashMap::new(),
            inherited: HashMap::new(),
            free: Vec::new(),
            next_sequence: 1,
            entries: Vec::new(),
            free_entries: Vec::new(),
            by_fs_handle: HashMap::new(),
            opens: Opens::default(),
            writable: HashMap::new(),
            open: HashMap::new(),
            cached: vec![0; (CACHED_INOS_MAX / 8) as usize],
            taken: HashMap::new(),
            free_taken: Vec::new(),
            shelf: promises::Shelf::default(),
            inherited_promises: Vec::new(),
            locks: locks::Shelf::default(),
            inherited_locks: Vec::new(),
        };
        state.load_head()?;
        state.load_journal()?;
        state.load_handles()?;
        let mut cached = std::mem::take(&mut state.cached);
        state.read(&mut cached, CACHED_AT)?;
        state.cached = cached;
        state.load_taken()?;
        state.load_promises()?;
        state.load_locks()?;
        Ok(state)
    }

    /// What was agreed with the kernel, `None` before INIT.
    pub fn negotiated(&self) -> Option<Negotiated> {
        let head = &self.head;
        (head.phase == 1).then_some(Negotiated { minor: head.minor, flags: head.flags, max_write: head.max_write })
    }

    pub fn set_negotiated(&mut self, agreed: Negotiated) -> Result<(), StateError> {
        self.head.phase = 1;
        (self.head.minor, self.head.flags, self.head.max_write) = (agreed.minor, agreed.flags, agreed.max_write);
        self.store_head()
    }

    /// The session number, 0 when none was begun.
    pub fn session(&self) -> u64 {
        self.head.session
    }

    /// A new session: nothing of the old one's journal means anything any more. Handles stay, to be opened again.
    pub fn begin_session(&mut self, session: u64) -> Result<(), StateError> {
        let empty = vec![0; JOURNAL_SLOTS * RECORD_BYTES];
        self.write(&empty, JOURNAL_AT)?;
        self.live.clear();
        self.inherited.clear();
        self.free = (0..JOURNAL_SLOTS).rev().collect();
        self.next_sequence = 1;
        self.head.session = session;
        self.store_head()
    }

    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    // ---- journal

    /// A resent request: its slot is in use again. Answers what the dead gate had noted for it.
    pub fn claim(&mut self, key: u64) -> Option<Noted> {
        if let Some(slot) = self.inherited.remove(&key) {
            self.live.insert(key, slot);
        }
        self.noted(key)
    }

    /// As if this gate were the next one: what is in use was noted by another, until its request comes again.
    pub fn disown(&mut self) {
        self.inherited.extend(self.live.drain());
    }

    /// All resent requests are known: what was not claimed was answered, its slots are free.
    pub fn forget_unclaimed(&mut self) {
        for (_, slot) in self.inherited.drain() {
            self.free.push(slot.slot);
        }
    }

    /// What is noted for a request in flight.
    pub fn noted(&self, key: u64) -> Option<Noted> {
        self.live.get(&key).map(|slot| slot.noted)
    }

    /// Gives step `step` of the request a number of the session and writes both down. A step that has a number keeps
    /// it.
    pub fn note(&mut self, key: u64, step: u32, op: u16) -> Result<u64, StateError> {
        let slot = match self.live.get(&key) {
            // What a gate before this one had asked in its place is another operation, and over.
            Some(found) if (found.noted.step, found.noted.op) == (step, op) => return Ok(found.noted.sequence),
            Some(found) => found.slot,
            None => *self.free.last().ok_or(StateError::JournalFull)?,
        };
        let sequence = self.next_sequence;
        let noted = Noted { sequence, step, op };
        self.write_note(slot, key, noted)?;
        if self.live.insert(key, LiveRequest { slot, noted }).is_none() {
            self.free.pop();
        }
        self.next_sequence += 1;
        Ok(sequence)
    }

    /// The kernel has the answer: the request will not come again.
    pub fn answered(&mut self, key: u64) {
        if let Some(slot) = self.live.remove(&key) {
            self.free.push(slot.slot);
        }
    }

    /// The same, of a request whose key is used again: a gate that follows must not take the one for the other. Its
    /// number stays, as the highest perhaps.
    pub fn answered_once(&mut self, key: u64) -> Result<(), StateError> {
        let Some(found) = self.live.remove(&key) else { return Ok(()) };
        self.free.push(found.slot);
        let Noted { sequence, step, op } = found.noted;
        self.write_note(found.slot, NOBODY, Noted { sequence, step, op })
    }

    /// Every number up to this one belongs to an operation that has been answered.
    pub fn acknowledged(&self) -> u64 {
        let open = self.live.values().chain(self.inherited.values()).map(|slot| slot.noted.sequence).min();
        open.unwrap_or(self.next_sequence) - 1
    }

    /// What gates before this one promised and did not tell.
    pub fn inherited_promises(&mut self) -> Vec<Promise> {
        std::mem::take(&mut self.inherited_promises)
    }

    /// What the gate says of itself.
    pub fn say(&self, figures: GateFigures) -> Result<(), StateError> {
        self.write(figures.checked().as_bytes(), FIGURES_AT)
    }

    // ---- requests that are not sent again

    /// A request was taken from a kernel that will not send it to the next gate.
    pub fn take(&mut self, unique: u64) -> Result<(), StateError> {
        // Without a slot only the death of this gate would lose it.
        let Some(slot) = self.free_taken.pop() else { return Ok(()) };
        self.taken.insert(unique, slot);
        self.write(&unique.to_ne_bytes(), TAKEN_AT + (slot * size_of::<u64>()) as u64)
    }

    /// The kernel has its answer.
    pub fn give_back(&mut self, unique: u64) -> Result<(), StateError> {
        let Some(slot) = self.taken.remove(&unique) else { return Ok(()) };
        self.free_taken.push(slot);
        self.write(&0_u64.to_ne_bytes(), TAKEN_AT + (slot * size_of::<u64>()) as u64)
    }

    /// Requests that are taken and not given back; at start, those that a dead gate left.
    pub fn taken(&self) -> Vec<u64> {
        self.taken.keys().copied().collect()
    }

    // ---- handles

    /// Enters an open file and answers the number the kernel gets. The same fs handle keeps its place.
    pub fn enter(&mut self, handle: Handle) -> Result<u64, StateError> {
        if let Some(&slot) = self.by_fs_handle.get(&handle.fs_handle)
            && let Some(entry) = self.entries.get(slot)
            && entry.ino == handle.ino
        {
            return Ok(number(slot, entry.generation));
        }
        let slot = match self.free_entries.pop() {
            Some(slot) => slot,
            None if self.entries.len() < HANDLES_MAX => {
                self.entries.push(Entry { generation: 1, ..Entry::default() });
                self.entries.len() - 1
            }
            None => return Err(StateError::TooManyHandles),
        };
        let generation = self.entries.get(slot).map_or(1, |entry| entry.generation);
        self.store_entry(slot, handle, generation)?;
        self.by_fs_handle.insert(handle.fs_handle, slot);
        self.count(handle);
        Ok(number(slot, generation))
    }

    /// The file that the request of this key opened under a lease.
    pub fn delegated(&self, ino: u64, key: u64) -> Option<u64> {
        let slot = *self.by_fs_handle.get(&(DELEGATED | key))?;
        let entry = self.entries.get(slot).filter(|entry| entry.ino == ino)?;
        Some(number(slot, entry.generation))
    }

    /// Enters what the server has open for those that it was not told of.
    pub fn stand(&mut self, ino: u64, fs_handle: u64) -> Result<(), StateError> {
        let fh = self.enter(Handle { ino, fs_handle, flags: STANDING })?;
        self.opens.stands(ino, fh);
        Ok(())
    }

    /// Which files are open without the server's knowledge.
    pub fn opens(&mut self) -> &mut Opens {
        &mut self.opens
    }

    pub fn is_untold(&self, ino: u64) -> bool {
        self.opens.is_untold(ino)
    }

    pub fn has_untold(&self) -> bool {
        self.opens.has_untold()
    }

    /// The server knows no open file of this session any more.
    pub fn forget_standing(&mut self) -> Result<(), StateError> {
        self.opens.fall().into_iter().try_for_each(|fh| self.leave(fh))
    }

    fn count(&mut self, handle: Handle) {
        *self.open.entry(handle.ino).or_default() += 1;
        self.count_writable(handle);
        if handle.is_delegated() {
            self.opens.opened(handle.ino);
        }
    }

    fn count_writable(&mut self, handle: Handle) {
        if handle.is_writable_mapping() {
            *self.writable.entry(handle.ino).or_default() += 1;
        }
    }

    /// Whether `ino` is open so that a program can map it for writing.
    pub fn is_writable(&self, ino: u64) -> bool {
        self.writable.contains_key(&ino)
    }

    pub fn handle(&self, fh: u64) -> Option<Handle> {
        let entry = self.entries.get((fh & 0xffff_ffff) as usize)?;
        let known = entry.ino != 0 && u64::from(entry.generation) == fh >> 32;
        known.then_some(Handle { ino: entry.ino, fs_handle: entry.fs_handle, flags: entry.flags })
    }

    /// The file is closed: its number is not valid any more.
    pub fn leave(&mut self, fh: u64) -> Result<(), StateError> {
        let Some(handle) = self.handle(fh) else { return Ok(()) };
        let slot = (fh & 0xffff_ffff) as usize;
        let generation = ((fh >> 32) as u32).wrapping_add(1).max(1);
        self.store_entry(slot, Handle { ino: 0, fs_handle: 0, flags: 0 }, generation)?;
        self.by_fs_handle.remove(&handle.fs_handle);
        self.free_entries.push(slot);
        if handle.is_delegated() {
            self.opens.closed(handle.ino);
        }
        uncount(&mut self.open, handle.ino);
        if handle.is_writable_mapping() {
            uncount(&mut self.writable, handle.ino);
        }
        Ok(())
    }

    /// The file has another handle at the server, or one at all.
    pub fn replace(&mut self, fh: u64, fs_handle: u64) -> Result<(), StateError> {
        let Some(handle) = self.handle(fh) else { return Ok(()) };
        let slot = (fh & 0xffff_ffff) as usize;
        self.store_entry(slot, Handle { fs_handle, ..handle }, (fh >> 32) as u32)?;
        self.by_fs_handle.remove(&handle.fs_handle);
        self.by_fs_handle.insert(fs_handle, slot);
        if handle.is_delegated() {
            self.opens.closed(handle.ino);
        }
        Ok(())
    }

    /// Whether the file is open for writing.
    pub fn may_write(&self, fh: u64) -> bool {
        let is_read_only = |flags: u32| flags & libc::O_ACCMODE as u32 == libc::O_RDONLY as u32;
        self.handle(fh).is_some_and(|handle| !is_read_only(handle.flags))
    }

    /// Whether any program has the inode open.
    pub fn is_open(&self, ino: u64) -> bool {
        self.open.contains_key(&ino)
    }

    pub fn open_files(&self) -> usize {
        self.entries.len() - self.free_entries.len()
    }

    /// All open files.
    pub fn handles(&self) -> impl Iterator<Item = (u64, Handle)> {
        let open = self.entries.iter().enumerate().filter(|(_, entry)| entry.ino != 0);
        open.map(|(slot, entry)| {
            let handle = Handle { ino: entry.ino, fs_handle: entry.fs_handle, flags: entry.flags };
            (number(slot, entry.generation), handle)
        })
    }

    // ---- caches of the kernel

    /// The kernel will be told that it may keep something of `ino`. `false`: it must not, there is no place to remember
    /// it.
    pub fn remember_cached(&mut self, ino: u64) -> Result<bool, StateError> {
        let at = (ino / 8) as usize;
        let Some(&byte) = self.cached.get(at) else { return Ok(false) };
        let with = byte | 1 << (ino % 8);
        if with != byte {
            self.write(&[with], CACHED_AT + at as u64)?;
            if let Some(place) = self.cached.get_mut(at) {
                *place = with;
            }
        }
        Ok(true)
    }

    /// Every inode the kernel was ever told to keep, by this gate or those before it.
    pub fn cached(&self) -> Vec<u64> {
        let bytes = self.cached.iter().enumerate().filter(|(_, byte)| **byte != 0);
        bytes
            .flat_map(|(at, byte)| (0..8).filter(move |bit| byte >> bit & 1 != 0).map(move |bit| at as u64 * 8 + bit))
            .collect()
    }

    // ---- the object

    fn load_head(&mut self) -> Result<(), StateError> {
        let mut bytes = [0; size_of::<Head>()];
        self.read(&mut bytes, 0)?;
        let head = Head::read_from_bytes(&bytes).unwrap_or_default();
        if head.magic != MAGIC || head.check != check_of(&head) {
            self.head = Head { magic: MAGIC, version: VERSION, ..Head::default() };
            return Ok(());
        }
        if head.version != VERSION {
            return Err(StateError::Version { found: head.version });
        }
        self.head = head;
        Ok(())
    }

    fn load_journal(&mut self) -> Result<(), StateError> {
        let mut bytes = vec![0; JOURNAL_SLOTS * RECORD_BYTES];
        self.read(&mut bytes, JOURNAL_AT)?;
        for (slot, record) in bytes.chunks_exact(RECORD_BYTES).enumerate().rev() {
            let note = Note::read_from_bytes(record).unwrap_or_default();
            let check = mix(&[note.key, note.sequence, u64::from(note.step) << 32 | u64::from(note.op)]);
            if note.sequence == 0 || note.sequence == u64::MAX || note.check != check {
                self.free.push(slot);
                continue;
            }
            self.next_sequence = self.next_sequence.max(note.sequence + 1);
            let noted = Noted { sequence: note.sequence, step: note.step, op: note.op as u16 };
            let found = LiveRequest { slot, noted };
            // A slot that was freed and taken again within one request's life leaves an older record of it behind.
            match self.inherited.get(&note.key).copied() {
                Some(other) if other.noted.sequence > note.sequence => self.free.push(slot),
                Some(other) => {
                    self.free.push(other.slot);
                    self.inherited.insert(note.key, found);
                }
                None => {
                    self.inherited.insert(note.key, found);
                }
            }
        }
        Ok(())
    }

    fn load_taken(&mut self) -> Result<(), StateError> {
        let mut bytes = vec![0; TAKEN_SLOTS * size_of::<u64>()];
        self.read(&mut bytes, TAKEN_AT)?;
        for (slot, record) in bytes.as_chunks().0.iter().enumerate() {
            let unique = u64::from_ne_bytes(*record);
            if unique == 0 || self.taken.insert(unique, slot).is_some() {
                self.free_taken.push(slot);
            }
        }
        Ok(())
    }

    fn load_handles(&mut self) -> Result<(), StateError> {
        let mut bytes = vec![0; HANDLES_MAX * RECORD_BYTES];
        self.read(&mut bytes, HANDLES_AT)?;
        for record in bytes.chunks_exact(RECORD_BYTES) {
            let entry = Entry::read_from_bytes(record).unwrap_or_default();
            if entry.check != check_of_entry(&entry) || entry.generation == 0 {
                // Slots are taken in order: the first one that was never written ends the table.
                break;
            }
            self.entries.push(entry);
        }
        for (slot, entry) in self.entries.iter().enumerate().rev() {
            if entry.ino == 0 {
                self.free_entries.push(slot);
            } else {
                self.by_fs_handle.insert(entry.fs_handle, slot);
            }
        }
        let handles: Vec<_> = self.handles().collect();
        handles.iter().for_each(|(_, handle)| self.count(*handle));
        let standing = handles.iter().filter(|(_, handle)| handle.is_standing());
        standing.for_each(|(fh, handle)| self.opens.stands(handle.ino, *fh));
        Ok(())
    }

    fn write_note(&self, slot: usize, key: u64, noted: Noted) -> Result<(), StateError> {
        let Noted { sequence, step, op } = noted;
        let mut note = Note { key, sequence, step, op: u32::from(op), check: 0 };
        note.check = mix(&[note.key, note.sequence, u64::from(note.step) << 32 | u64::from(note.op)]);
        self.write(note.as_bytes(), JOURNAL_AT + (slot * RECORD_BYTES) as u64)
    }

    fn store_head(&mut self) -> Result<(), StateError> {
        self.head.check = check_of(&self.head);
        let head = self.head;
        self.write(head.as_bytes(), 0)
    }

    fn store_entry(&mut self, slot: usize, handle: Handle, generation: u32) -> Result<(), StateError> {
        let Handle { ino, fs_handle, flags } = handle;
        let mut entry = Entry { ino, fs_handle, flags, generation, check: 0 };
        entry.check = check_of_entry(&entry);
        self.write(entry.as_bytes(), HANDLES_AT + (slot * RECORD_BYTES) as u64)?;
        if let Some(place) = self.entries.get_mut(slot) {
            *place = entry;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<(), StateError> {
        let access = |cause| StateError::Access { verb: "written", cause };
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(&self.fd, rest, at + done as u64) {
                Ok(0) => return Err(access(Errno::NOSPC)),
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(access(errno)),
            }
        }
        Ok(())
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> Result<(), StateError> {
        let access = |cause| StateError::Access { verb: "read", cause };
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.fd, rest, at + done as u64) {
                Ok(0) => return Err(access(Errno::NODATA)),
                Ok(got) => done += got,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(access(errno)),
            }
        }
        Ok(())
    }
}

fn uncount(counts: &mut HashMap<u64, usize>, ino: u64) {
    if let Some(count) = counts.get_mut(&ino) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&ino);
        }
    }
}

fn number(slot: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | slot as u64
}

fn check_of(head: &Head) -> u64 {
    let versions = u64::from(head.version) << 32 | u64::from(head.phase);
    let sizes = u64::from(head.minor) << 32 | u64::from(head.max_write);
    mix(&[head.magic, versions, head.session, head.flags, sizes])
}

fn check_of_entry(entry: &Entry) -> u64 {
    mix(&[entry.ino, entry.fs_handle, u64::from(entry.flags) << 32 | u64::from(entry.generation)])
}

/// Tells our records from anything else; not a defence against anybody.
fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |hash: u64, word| {
        let mixed = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ mixed >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> OwnedFd {
        rustix::fs::memfd_create("gate-state", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd")
    }

    fn again(state: &State) -> State {
        State::open(state.fd.try_clone().expect("clone")).expect("open")
    }

    #[test]
    fn new_object_is_empty_and_negotiation_survives() {
        let mut state = State::open(object()).expect("open");
        assert_eq!((state.negotiated(), state.session(), state.next_sequence()), (None, 0, 1));
        let agreed = Negotiated { minor: 45, flags: 7, max_write: 1 << 20 };
        state.begin_session(99).expect("begin");
        state.set_negotiated(agreed).expect("store");
        let state = again(&state);
        assert_eq!((state.negotiated(), state.session()), (Some(agreed), 99));
    }

    #[test]
    fn request_of_a_dead_gate_keeps_its_sequence_and_step() {
        let mut state = State::open(object()).expect("open");
        state.begin_session(1).expect("begin");
        assert_eq!(state.note(10, 0, 31).expect("note"), 1);
        assert_eq!(state.note(12, 0, 44).expect("note"), 2);
        assert_eq!(state.note(12, 1, 29).expect("note"), 3);
        assert_eq!(state.note(12, 1, 29).expect("note"), 3);
        let mut state = again(&state);
        assert_eq!(state.acknowledged(), 0);
        assert_eq!(state.claim(12), Some(Noted { sequence: 3, step: 1, op: 29 }));
        assert_eq!(state.claim(14), None);
        state.forget_unclaimed();
        assert_eq!(state.acknowledged(), 2);
        assert_eq!(state.note(14, 0, 31).expect("note"), 4);
        assert_eq!(state.note(12, 1, 29).expect("note"), 3);
    }

    #[test]
    fn key_that_is_used_again_is_another_request_and_another_operation_another_number() {
        let mut state = State::open(object()).expect("open");
        state.begin_session(1).expect("begin");
        assert_eq!(state.note(7, 0, 28).expect("note"), 1);
        state.answered_once(7).expect("written");
        assert_eq!(state.note(10, 0, 28).expect("note"), 2);
        let mut state = again(&state);
        assert_eq!((state.claim(7), state.claim(10).map(|noted| noted.sequence)), (None, Some(2)));
        assert_eq!(state.note(10, 0, 42).expect("note"), 3, "a lock where the file was opened");
        let mut state = State::open(object()).expect("open");
        state.begin_session(1).expect("begin");
        assert_eq!(state.note(7, 0, 28).expect("note"), 1);
        state.answered_once(7).expect("written");
        assert_eq!(again(&state).next_sequence(), 2, "the highest number is not lost");
    }

    #[test]
    fn highest_sequence_survives_any_number_of_answered_requests() {
        let mut state = State::open(object()).expect("open");
        state.begin_session(1).expect("begin");
        for key in 0..5 * JOURNAL_SLOTS as u64 {
            state.note(key * 2, 0, 31).expect("note");
            state.answered(key * 2);
        }
        assert_eq!(again(&state).next_sequence(), 5 * JOURNAL_SLOTS as u64 + 1);
    }

    #[test]
    fn journal_refuses_more_requests_than_it_has_slots() {
        let mut state = State::open(object()).expect("open");
        state.begin_session(1).expect("begin");
        for key in 0..JOURNAL_SLOTS as u64 {
            state.note(key, 0, 31).expect("note");
        }
        assert!(matches!(state.note(u64::MAX >> 1, 0, 31), Err(StateError::JournalFull)));
        state.answered(5);
        assert!(state.note(u64::MAX >> 1, 0, 31).is_ok());
    }

    #[test]
    fn handle_number_is_stale_after_close_also_for_the_next_gate() {
        let mut state = State::open(object()).expect("open");
        let handle = Handle { ino: 5, fs_handle: 77, flags: 2 };
        let fh = state.enter(handle).expect("enter");
        assert_eq!(state.enter(handle).expect("enter"), fh);
        let mut state = again(&state);
        assert_eq!(state.handle(fh), Some(handle));
        assert_eq!(state.enter(handle).expect("enter"), fh);
        state.leave(fh).expect("leave");
        let mut state = again(&state);
        assert_eq!(state.handle(fh), None);
        let next = state.enter(Handle { ino: 6, fs_handle: 78, flags: 0 }).expect("enter");
        assert_ne!(next, fh);
        assert_eq!(state.handle(fh), None);
    }

    #[test]
    fn next_gate_knows_what_the_kernel_was_told_to_keep() {
        let mut state = State::open(object()).expect("open");
        for ino in [1, 9, 8, CACHED_INOS_MAX - 1, 9] {
            assert!(state.remember_cached(ino).expect("remember"));
        }
        assert!(!state.remember_cached(CACHED_INOS_MAX).expect("refuse"));
        assert_eq!(again(&state).cached(), [1, 8, 9, CACHED_INOS_MAX - 1]);
    }

    #[test]
    fn garbage_counts_as_empty() {
        let fd = object();
        let mut seed = 7_u64;
        let garbage: Vec<u8> = (0..STATE_BYTES)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        rustix::io::pwrite(&fd, &garbage, 0).expect("write");
        let state = State::open(fd).expect("open");
        assert_eq!((state.negotiated(), state.next_sequence(), state.handles().count()), (None, 1, 0));
    }
}
