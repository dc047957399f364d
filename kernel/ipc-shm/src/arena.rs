//! The bulk memory of a ring, to which both parties write a range at a time, or private memory that is lent.
//!
//! Every access copies, and is checked against the bounds. Bytes that will be parsed are copied out first: the peer may
//! change them while they lie here.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use abi::IpcError;

use crate::mapping::{Access, Mapping};

/// The least that any machine has.
const PAGE: usize = 4096;

/// A range that is not inside the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfArena;

impl std::fmt::Display for OutOfArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a range lies outside the arena")
    }
}

impl std::error::Error for OutOfArena {}

impl From<OutOfArena> for IpcError {
    fn from(_: OutOfArena) -> IpcError {
        IpcError::OutOfGrant
    }
}

impl From<OutOfArena> for io::Error {
    fn from(error: OutOfArena) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Shared bulk memory. Clones refer to the same memory, which stays mapped until the last of them is gone.
#[derive(Clone, Debug)]
pub struct Arena {
    object: Arc<Mapping>,
    first: usize,
    bytes: usize,
}

impl Arena {
    /// The part of `object` from `first` to its end.
    pub fn of(object: Arc<Mapping>, first: usize) -> Arena {
        let bytes = object.bytes().saturating_sub(first);
        Arena { object, first, bytes }
    }

    /// Memory of this process alone, zeroed: what it lends from when nobody maps it.
    pub fn private(bytes: usize) -> io::Result<Arena> {
        Ok(Arena { object: Arc::new(Mapping::private(bytes)?), first: 0, bytes })
    }

    /// Memory of the program itself, for programs that cannot be asked to keep their data in an arena. Only a read or a
    /// write that `access` allows touches it.
    ///
    /// # Safety
    /// As for [`Mapping::lent`], as long as a clone of this value lives.
    pub unsafe fn lent(base: NonNull<u8>, bytes: usize, access: Access) -> Arena {
        // SAFETY: as our caller promised.
        let memory = unsafe { Mapping::lent(base, bytes, access) };
        Arena { object: Arc::new(memory), first: 0, bytes }
    }

    /// Where it lies, for programs that read and write it in place; the peer may do so at the same time. Valid as long
    /// as a clone of this value lives.
    pub fn address(&self) -> *mut u8 {
        self.object.range(self.first, self.bytes).unwrap_or(std::ptr::null_mut())
    }

    /// A part of the same memory.
    pub fn part(&self, offset: usize, bytes: usize) -> Result<Arena, OutOfArena> {
        let first = self.place(offset, bytes)?;
        Ok(Arena { object: self.object.clone(), first, bytes })
    }

    /// Whether both are the same part of the same memory.
    pub fn is(&self, other: &Arena) -> bool {
        Arc::ptr_eq(&self.object, &other.object) && (self.first, self.bytes) == (other.first, other.bytes)
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub fn copy_in(&self, offset: usize, data: &[u8]) -> Result<(), OutOfArena> {
        let at = self.place(offset, data.len())?;
        self.object.copy_in(at, data).ok_or(OutOfArena)
    }

    pub fn copy_out(&self, offset: usize, data: &mut [u8]) -> Result<(), OutOfArena> {
        let at = self.place(offset, data.len())?;
        self.object.copy_out(at, data).ok_or(OutOfArena)
    }

    /// Copies a range into memory of our own. `bytes` must have been bounded by the caller.
    pub fn to_vec(&self, offset: usize, bytes: usize) -> Result<Vec<u8>, OutOfArena> {
        let mut data = Vec::new();
        self.append_to(offset, bytes, &mut data)?;
        Ok(data)
    }

    /// Appends a range to `data`: what a proxy does with the bytes of a frame.
    pub fn append_to(&self, offset: usize, bytes: usize, data: &mut Vec<u8>) -> Result<(), OutOfArena> {
        let at = self.place(offset, bytes)?;
        self.object.append_to(at, bytes, data).ok_or(OutOfArena)
    }

    pub fn zero(&self, offset: usize, bytes: usize) -> Result<(), OutOfArena> {
        let at = self.place(offset, bytes)?;
        self.object.zero(at, bytes).ok_or(OutOfArena)
    }

    /// Copies from another arena (or this one).
    pub fn copy_from(
        &self,
        offset: usize,
        source: &Arena,
        source_offset: usize,
        bytes: usize,
    ) -> Result<(), OutOfArena> {
        let at = self.place(offset, bytes)?;
        let source_at = source.place(source_offset, bytes)?;
        self.object.copy_from(at, &source.object, source_at, bytes).ok_or(OutOfArena)
    }

    /// One `pread` straight into the arena. Returns the bytes read, which may be fewer; 0 at the end of the file.
    pub fn read_from_fd(&self, fd: impl AsFd, file_offset: u64, offset: usize, bytes: usize) -> io::Result<usize> {
        let to = self.writable(offset, bytes)?;
        // SAFETY: the kernel writes at most `bytes` into a writable range that stays mapped while `self` lives.
        counted(unsafe { libc::pread(fd.as_fd().as_raw_fd(), to.cast(), bytes, signed(file_offset)?) })
    }

    /// Like [`Arena::read_from_fd`], but only what is in the page cache: never waits for the medium. Fewer bytes, or
    /// `WouldBlock`, when the rest would.
    pub fn read_cached_from_fd(
        &self,
        fd: impl AsFd,
        file_offset: u64,
        offset: usize,
        bytes: usize,
    ) -> io::Result<usize> {
        let to = self.writable(offset, bytes)?;
        let part = libc::iovec { iov_base: to.cast(), iov_len: bytes };
        let from = signed(file_offset)?;
        // SAFETY: the kernel writes at most `bytes` into a writable range that stays mapped while `self` lives.
        counted(unsafe { libc::preadv2(fd.as_fd().as_raw_fd(), &raw const part, 1, from, libc::RWF_NOWAIT) })
    }

    /// One `pwrite` straight from the arena. Returns the bytes written, which may be fewer.
    pub fn write_to_fd(&self, fd: impl AsFd, file_offset: u64, offset: usize, bytes: usize) -> io::Result<usize> {
        let at = self.place(offset, bytes)?;
        let from = self.object.range(at, bytes).ok_or(OutOfArena)?;
        // SAFETY: the kernel reads at most `bytes` from a range that stays mapped while `self` lives.
        counted(unsafe { libc::pwrite(fd.as_fd().as_raw_fd(), from.cast_const().cast(), bytes, signed(file_offset)?) })
    }

    /// One `writev` of a header and a range: how a gate answers FUSE without a copy. Partial writes are returned as
    /// such.
    ///
    /// A page that is not mapped when FUSE takes it is brought in there, and in a process that is being killed it is
    /// not: the program that asked gets `EIO`, although another gate would have answered. So they are mapped before.
    pub fn writev_with_header(&self, fd: impl AsFd, header: &[u8], offset: usize, bytes: usize) -> io::Result<usize> {
        let at = self.place(offset, bytes)?;
        let from = self.object.range(at, bytes).ok_or(OutOfArena)?;
        for byte in (0..bytes).step_by(PAGE).chain(bytes.checked_sub(1)) {
            // SAFETY: within a readable range that stays mapped while `self` lives. What is read is not looked at.
            unsafe { from.add(byte).read_volatile() };
        }
        let parts = [
            libc::iovec { iov_base: header.as_ptr() as *mut libc::c_void, iov_len: header.len() },
            libc::iovec { iov_base: from.cast(), iov_len: bytes },
        ];
        // SAFETY: both parts are readable for their length and outlive the call.
        counted(unsafe { libc::writev(fd.as_fd().as_raw_fd(), parts.as_ptr(), 2) })
    }

    /// One `recv` straight into the arena, of what has come over a socket: `WouldBlock` when nothing has, 0 at the end.
    pub fn receive_now(&self, socket: impl AsFd, offset: usize, bytes: usize) -> io::Result<usize> {
        let to = self.writable(offset, bytes)?;
        // SAFETY: the kernel writes at most `bytes` into a writable range that stays mapped while `self` lives.
        counted(unsafe { libc::recv(socket.as_fd().as_raw_fd(), to.cast(), bytes, libc::MSG_DONTWAIT) })
    }

    /// One `send` straight from the arena, of as much as a socket takes: `WouldBlock` when it takes nothing.
    pub fn send_now(&self, socket: impl AsFd, offset: usize, bytes: usize) -> io::Result<usize> {
        let at = self.place(offset, bytes)?;
        let from = self.object.range(at, bytes).ok_or(OutOfArena)?;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads at most `bytes` from a range that stays mapped while `self` lives.
        counted(unsafe { libc::send(socket.as_fd().as_raw_fd(), from.cast_const().cast(), bytes, flags) })
    }

    /// One `readv` of a range and, after it, of `rest`: how a proxy takes what comes over a socket without a copy.
    /// The range is filled first.
    pub fn readv_with_rest(&self, fd: impl AsFd, offset: usize, bytes: usize, rest: &mut [u8]) -> io::Result<usize> {
        let to = self.writable(offset, bytes)?;
        let parts = [
            libc::iovec { iov_base: to.cast(), iov_len: bytes },
            libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
        ];
        // SAFETY: both parts are writable for their length and outlive the call.
        counted(unsafe { libc::readv(fd.as_fd().as_raw_fd(), parts.as_ptr(), 2) })
    }

    /// Where a range lies that the kernel may write to as long as a clone of this value lives.
    pub(crate) fn writable(&self, offset: usize, bytes: usize) -> Result<*mut u8, OutOfArena> {
        let at = self.place(offset, bytes)?;
        self.object.writable_range(at, bytes).ok_or(OutOfArena)
    }

    fn place(&self, offset: usize, bytes: usize) -> Result<usize, OutOfArena> {
        let end = offset.checked_add(bytes).ok_or(OutOfArena)?;
        if end > self.bytes { Err(OutOfArena) } else { Ok(self.first + offset) }
    }
}

/// A part of what goes over a socket at once.
#[derive(Clone, Copy, Debug)]
pub enum SentPart<'a> {
    Bytes(&'a [u8]),
    /// As it lies there while the kernel takes it.
    Range {
        arena: &'a Arena,
        offset: usize,
        bytes: usize,
    },
}

/// Parts of one [`send_parts`]: what is beyond waits for the next.
pub const SENT_PARTS_MAX: usize = 64;

/// One `sendmsg` over a stream socket, which may be non-blocking. Returns the bytes that were taken, which may be
/// fewer.
pub fn send_parts<'a>(socket: impl AsFd, parts: impl Iterator<Item = SentPart<'a>>) -> io::Result<usize> {
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; SENT_PARTS_MAX];
    let mut count = 0;
    for (vector, part) in vectors.iter_mut().zip(parts) {
        *vector = match part {
            SentPart::Bytes(bytes) => {
                libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() }
            }
            SentPart::Range { arena, offset, bytes } => {
                let at = arena.place(offset, bytes)?;
                let from = arena.object.range(at, bytes).ok_or(OutOfArena)?;
                libc::iovec { iov_base: from.cast(), iov_len: bytes }
            }
        };
        count += 1;
    }
    // SAFETY: a message of zeros has no address and no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = count;
    // SAFETY: 1. The first `count` vectors are readable for their length and outlive the call: `'a`. 2. Nothing is
    // written through them.
    counted(unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
}

fn counted(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn signed(file_offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(file_offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(bytes: usize) -> Arena {
        let file = sys::memfd::create_sealed("arena", bytes as u64 + 4096).unwrap();
        Arena::of(Arc::new(Mapping::of(&file, bytes + 4096, Access::ReadWrite).unwrap()), 4096)
    }

    #[test]
    fn range_that_leaves_the_arena_is_refused() {
        let arena = arena(8192);
        assert_eq!(arena.copy_in(8190, b"abc"), Err(OutOfArena));
        assert_eq!(arena.copy_in(usize::MAX, b"abc"), Err(OutOfArena));
        assert_eq!(arena.copy_out(8192, &mut [0]), Err(OutOfArena));
        assert_eq!(arena.copy_in(8189, b"abc"), Ok(()));
        assert_eq!(arena.to_vec(8190, 3), Err(OutOfArena));
        let mut data = b"before ".to_vec();
        assert_eq!(arena.append_to(8189, 3, &mut data), Ok(()));
        assert_eq!(arena.append_to(8192, 1, &mut data), Err(OutOfArena));
        assert_eq!(data, b"before abc");
    }

    #[test]
    fn part_of_an_arena_ends_where_it_says() {
        let whole = arena(8192);
        let part = whole.part(100, 10).unwrap();
        part.copy_in(0, b"0123456789").unwrap();
        assert_eq!(whole.to_vec(100, 10).unwrap(), b"0123456789");
        assert_eq!(part.copy_in(1, b"0123456789"), Err(OutOfArena));
        assert!(part.part(5, 6).is_err());
    }

    #[test]
    fn memory_of_the_program_is_used_where_it_lies_and_left_to_it() {
        let mut buffer = [7u8; 16];
        let base = NonNull::from(&mut buffer).cast();
        // SAFETY: the buffer outlives both arenas and is not referred to meanwhile.
        let (whole, fixed) = unsafe { (Arena::lent(base, 16, Access::ReadWrite), Arena::lent(base, 16, Access::Read)) };
        whole.copy_in(3, b"abc").unwrap();
        assert_eq!(fixed.to_vec(2, 5).unwrap(), [7, b'a', b'b', b'c', 7]);
        assert_eq!(fixed.copy_in(0, b"x"), Err(OutOfArena));
        assert_eq!(whole.copy_in(14, b"abc"), Err(OutOfArena));
        assert_eq!(whole.part(3, 3).unwrap().address(), base.as_ptr().wrapping_add(3));
        drop((whole, fixed));
        assert_eq!(&buffer[3..6], b"abc");
    }

    #[test]
    fn bytes_travel_between_file_and_arena() {
        let arena = arena(8192);
        let file = sys::memfd::create_sealed("file", 4096).unwrap();
        arena.copy_in(100, b"hello").unwrap();
        assert_eq!(arena.write_to_fd(&file, 7, 100, 5).unwrap(), 5);
        assert_eq!(arena.read_from_fd(&file, 7, 200, 5).unwrap(), 5);
        assert_eq!(arena.to_vec(200, 5).unwrap(), b"hello");
        assert!(arena.read_from_fd(&file, 0, 8000, 4096).is_err());
    }

    #[test]
    fn ranges_go_over_a_socket_between_bytes_and_are_taken_from_it_where_they_belong() {
        let (from, to) = std::os::unix::net::UnixStream::pair().unwrap();
        let arena = arena(8192);
        arena.copy_in(100, b"hello").unwrap();
        let range = SentPart::Range { arena: &arena, offset: 100, bytes: 5 };
        let parts = [SentPart::Bytes(b"<"), range, SentPart::Bytes(b">"), range];
        assert_eq!(send_parts(&from, parts.into_iter()).unwrap(), 12);
        let outside = SentPart::Range { arena: &arena, offset: 8190, bytes: 5 };
        assert!(send_parts(&from, [outside].into_iter()).is_err());
        let mut rest = [0; 4];
        assert_eq!(arena.readv_with_rest(&to, 200, 7, &mut rest).unwrap(), 11);
        assert_eq!(arena.to_vec(200, 8).unwrap(), b"<hello>\0");
        assert_eq!(&rest, b"hell");
        assert!(arena.readv_with_rest(&to, 8190, 7, &mut rest).is_err());
        assert_eq!(arena.readv_with_rest(&to, 0, 0, &mut rest).unwrap(), 1);
    }

    #[test]
    fn what_a_socket_has_or_takes_is_had_without_waiting() {
        let (from, to) = std::os::unix::net::UnixStream::pair().unwrap();
        let arena = arena(1 << 20);
        arena.copy_in(100, b"hello").unwrap();
        let is_nothing = |got: io::Result<usize>| got.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        assert!(is_nothing(arena.receive_now(&to, 0, 10)));
        assert_eq!(arena.send_now(&from, 100, 5).unwrap(), 5);
        assert_eq!(arena.receive_now(&to, 200, 10).unwrap(), 5);
        assert_eq!(arena.to_vec(200, 5).unwrap(), b"hello");
        while arena.send_now(&from, 0, 1 << 20).is_ok() {}
        assert!(is_nothing(arena.send_now(&from, 0, 1 << 20)));
        assert!(arena.send_now(&from, 1 << 20, 1).is_err() && arena.receive_now(&to, 1 << 20, 1).is_err());
        drop(from);
        while arena.receive_now(&to, 0, 1 << 20).unwrap() > 0 {}
        assert!(arena.send_now(&to, 0, 1).is_err());
    }
}
