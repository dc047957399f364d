//! Reads of one file into arenas, many at a time, without a thread for each: an `io_uring` that can do nothing else.
//!
//! The ring is told so before its first read (`IORING_REGISTER_RESTRICTIONS`), and no other call of `io_uring` changes
//! it any more. So a process whose system calls are restricted afterwards needs `io_uring_enter` alone, and can do with
//! it only what `pread` does.
//!
//! The file is none of the ring's own ones (`IORING_REGISTER_FILES`): those are closed some time after the process has
//! ended, and whoever is next would find the file locked.
//!
//! A read is *under way* from [`ReadRing::begin`] until [`ReadRing::take`] hands its owner back. As long keeps the ring
//! a clone of the arena: the kernel writes to memory that is mapped, whatever becomes of the channel.
//!
//! Lock order: `taking`, then `under_way`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use io_uring::register::Restriction;
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};

use crate::arena::Arena;

/// The most that a ring may have under way.
pub const READS_MAX: usize = 1024;
/// What a completion is of: a read's number, or nothing but a reason to look.
const WAKE: u64 = u64::MAX;

/// Reads that are under way, each with who waits for it.
pub struct ReadRing<T> {
    uring: IoUring,
    file: OwnedFd,
    under_way: Mutex<UnderWay<T>>,
    taking: Mutex<()>,
}

struct UnderWay<T> {
    reads: Vec<Option<Read<T>>>,
    free: Vec<usize>,
}

struct Read<T> {
    owner: T,
    bytes: usize,
    _arena: Arena,
}

/// Why a read was not begun; who waits for it is given back.
#[derive(Debug)]
pub enum NotBegun<T> {
    /// As many are under way as may be.
    Full(T),
    OutOfArena(T),
}

impl<T> ReadRing<T> {
    /// Of which up to `most` reads of `file` may be under way. Fails where the kernel has no `io_uring`, or keeps it
    /// from this process.
    pub fn new(file: impl AsFd, most: usize) -> io::Result<ReadRing<T>> {
        let most = most.clamp(1, READS_MAX);
        // One more, to wake who waits.
        let uring =
            IoUring::builder().setup_r_disabled().setup_submit_all().setup_coop_taskrun().build(most as u32 + 1)?;
        let submitter = uring.submitter();
        let allowed = [opcode::Read::CODE, opcode::Nop::CODE];
        submitter.register_restrictions(&mut allowed.map(Restriction::sqe_op))?;
        submitter.register_enable_rings()?;
        let reads = UnderWay { reads: (0..most).map(|_| None).collect(), free: (0..most).rev().collect() };
        let file = file.as_fd().try_clone_to_owned()?;
        Ok(ReadRing { uring, file, under_way: Mutex::new(reads), taking: Mutex::new(()) })
    }

    /// Takes a read of `bytes` bytes at `file_offset` of the file to `offset` of the arena. It begins with the next
    /// [`ReadRing::submit`].
    pub fn begin(
        &self,
        arena: &Arena,
        offset: usize,
        bytes: usize,
        file_offset: u64,
        owner: T,
    ) -> Result<(), NotBegun<T>> {
        let (Ok(to), Ok(length)) = (arena.writable(offset, bytes), u32::try_from(bytes)) else {
            return Err(NotBegun::OutOfArena(owner));
        };
        let mut under_way = self.lock();
        let Some(number) = under_way.free.pop() else { return Err(NotBegun::Full(owner)) };
        let file = types::Fd(self.file.as_raw_fd());
        let read = opcode::Read::new(file, to, length).offset(file_offset).build().user_data(number as u64);
        if let Some(place) = under_way.reads.get_mut(number) {
            *place = Some(Read { owner, bytes, _arena: arena.clone() });
        }
        // There is room: an entry for each read that may be under way.
        self.push(&under_way, &read);
        Ok(())
    }

    /// Begins what was taken. May be repeated after an error: nothing is begun twice.
    pub fn submit(&self) -> io::Result<()> {
        loop {
            match self.uring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                done => return done.map(drop),
            }
        }
    }

    /// Waits until a read has ended, or [`ReadRing::wake`] was called; also for no reason.
    pub fn wait(&self) -> io::Result<()> {
        match self.uring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            done => done.map(drop),
        }
    }

    /// Has whoever waits look.
    pub fn wake(&self) -> io::Result<()> {
        let under_way = self.lock();
        self.push(&under_way, &opcode::Nop::new().build().user_data(WAKE));
        drop(under_way);
        self.submit()
    }

    /// Hands over who waited for reads that have ended, and whether all that was asked for was read. If not, nothing
    /// is said of why: who reads it in another way hears that.
    pub fn take(&self, ended: &mut Vec<(T, bool)>) {
        let _one = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: whoever takes completions holds `taking`.
        let completions = unsafe { self.uring.completion_shared() };
        for completion in completions {
            let mut under_way = self.lock();
            let number = completion.user_data() as usize;
            let Some(read) = under_way.reads.get_mut(number).and_then(Option::take) else { continue };
            under_way.free.push(number);
            drop(under_way);
            let is_whole = usize::try_from(completion.result()).is_ok_and(|got| got == read.bytes);
            ended.push((read.owner, is_whole));
        }
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        let under_way = self.lock();
        under_way.reads.len() - under_way.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One that finds no room is no read: there is an entry for each of those.
    fn push(&self, _locked: &MutexGuard<'_, UnderWay<T>>, entry: &Entry) {
        // SAFETY: whoever adds entries holds `under_way`. What an entry points to stays mapped as long as the read is
        // under way, because the arena is kept; `writable` has checked its bounds.
        let _ = unsafe { self.uring.submission_shared().push(entry) };
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay<T>> {
        // Nothing panics while it is held.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for ReadRing<T> {
    /// The kernel writes to arenas until it has ended what is under way.
    fn drop(&mut self) {
        let mut ended = Vec::new();
        while !self.is_empty() {
            if self.wait().is_err() {
                // Rather memory that stays than a write to what lies there later.
                std::mem::take(&mut self.lock().reads).into_iter().for_each(std::mem::forget);
                return;
            }
            self.take(&mut ended);
        }
    }
}

impl<T> std::fmt::Debug for ReadRing<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadRing").field("under_way", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn ring<T>(file: impl AsFd, most: usize) -> Option<ReadRing<T>> {
        match ReadRing::new(file, most) {
            Ok(ring) => Some(ring),
            Err(error) => {
                eprintln!("SKIPPED: no io_uring here: {error}");
                None
            }
        }
    }

    fn file(bytes: usize) -> (File, Vec<u8>) {
        let content: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 256) as u8).collect();
        let file = File::from(sys::memfd::create_sealed("file", bytes as u64).unwrap());
        file.write_all_at(&content, 0).unwrap();
        (file, content)
    }

    fn ended<T>(ring: &ReadRing<T>, count: usize) -> Vec<(T, bool)> {
        let mut ended = Vec::new();
        ring.submit().unwrap();
        while ended.len() < count {
            ring.wait().unwrap();
            ring.take(&mut ended);
        }
        ended
    }

    #[test]
    fn each_read_ends_once_and_says_whether_it_is_whole() {
        const BLOCK: usize = 4096;
        let (file, content) = file(8 * BLOCK);
        let (arena, Some(ring)) = (Arena::private(8 * BLOCK).unwrap(), ring(&file, 4)) else { return };
        for round in 0..100 {
            for at in 0..4 {
                let from = (round + at) % 8 * BLOCK;
                ring.begin(&arena, at * BLOCK, BLOCK, from as u64, (at, from)).unwrap();
            }
            assert_eq!(ring.len(), 4);
            assert!(matches!(ring.begin(&arena, 0, BLOCK, 0, (9, 9)), Err(NotBegun::Full((9, 9)))));
            let mut seen: Vec<usize> = Vec::new();
            for ((at, from), is_whole) in ended(&ring, 4) {
                assert!(is_whole && arena.to_vec(at * BLOCK, BLOCK).unwrap() == content[from..from + BLOCK]);
                seen.push(at);
            }
            seen.sort_unstable();
            assert_eq!((seen, ring.is_empty()), (vec![0, 1, 2, 3], true));
        }
        // Over the end, behind it, and where nothing may be written.
        ring.begin(&arena, 0, 2 * BLOCK, 7 * BLOCK as u64, (0, 0)).unwrap();
        ring.begin(&arena, 0, BLOCK, 8 * BLOCK as u64, (1, 0)).unwrap();
        assert!(ended(&ring, 2).iter().all(|(_, is_whole)| !is_whole));
        let outside = ring.begin(&arena, 8 * BLOCK - 1, 2, 0, (2, 0));
        assert!(matches!(outside, Err(NotBegun::OutOfArena((2, 0)))));
    }

    #[test]
    fn ring_does_nothing_but_read() {
        let (file, content) = file(4096);
        let memory = [1_u8; 64];
        let Some(ring) = ring::<()>(&file, 8) else { return };
        let fd = types::Fd(file.as_raw_fd());
        let write = opcode::Write::new(fd, memory.as_ptr(), 64).build();
        let cut = opcode::Fallocate::new(fd, 64).build();
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/dev/null".as_ptr()).build();
        for entry in [write, cut, open] {
            // SAFETY: nobody else adds entries, and what they point to lives until they have ended.
            unsafe { ring.uring.submission_shared().push(&entry).unwrap() };
            ring.wait().unwrap();
            // SAFETY: nobody else takes any.
            let results: Vec<i32> = unsafe { ring.uring.completion_shared() }.map(|ended| ended.result()).collect();
            assert_eq!(results, [-libc::EACCES]);
        }
        let registered = ring.uring.submitter().register_files(&[file.as_raw_fd()]);
        assert_eq!(registered.unwrap_err().raw_os_error(), Some(libc::EACCES));
        let mut now = vec![0; 4096];
        file.read_exact_at(&mut now, 0).unwrap();
        assert!(now == content);
    }

    /// A lock is let go with the last descriptor.
    #[test]
    fn ring_keeps_no_file_after_its_end() {
        let (named, arena) = (tempfile::NamedTempFile::new().unwrap(), Arena::private(4096).unwrap());
        named.as_file().set_len(4096).unwrap();
        for round in 0..100 {
            let file = named.reopen().unwrap();
            let locked = file.try_lock();
            assert!(locked.is_ok(), "round {round}: {locked:?}");
            let Some(ring) = ring(&file, 2) else { return };
            ring.begin(&arena, 0, 4096, 0, ()).unwrap();
            assert_eq!(ended(&ring, 1), [((), true)]);
        }
    }

    #[test]
    fn who_waits_is_woken_and_a_ring_ends_after_its_reads() {
        let (from, mut to) = std::io::pipe().unwrap();
        let (arena, Some(ring)) = (Arena::private(4096).unwrap(), ring(&from, 2)) else { return };
        ring.begin(&arena, 0, 5, 0, ()).unwrap();
        ring.submit().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| ring.wait());
            ring.wake().unwrap();
            waiting.join().unwrap().unwrap();
        });
        let mut ended = Vec::new();
        ring.take(&mut ended);
        assert!(ended.is_empty() && ring.len() == 1);
        let writer = std::thread::spawn(move || to.write_all(b"hello"));
        drop(ring);
        writer.join().unwrap().unwrap();
        assert_eq!(arena.to_vec(0, 5).unwrap(), b"hello");
    }
}
