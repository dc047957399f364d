//! One memory object in this process's address space, and the only ways to touch it.
//!
//! Somebody else may write to the memory at any time. So nothing here ever makes a reference into it: words are read
//! and written atomically through raw pointers, bytes are copied. A copy that races with a writer yields any mixture of
//! bytes; whoever copies checks afterwards.
//!
//! The object is sealed against shrinking before it is mapped, so an access inside the mapping never faults.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// What this process may do with an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    ReadWrite,
}

/// A mapped object, unmapped when dropped; or memory of the program.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    access: Access,
    owner: Owner,
}

/// Whose the address space is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Us,
    /// The program's: not ours to unmap.
    Program,
}

// SAFETY: 1. The mapping belongs to this value alone and stays where it is. 2. All access is atomic or a racy copy of
// plain bytes through raw pointers, on which no other code relies.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of a sealed object. An object of another size, or one that could shrink, is refused.
    pub fn of(file: impl AsFd, bytes: usize, access: Access) -> io::Result<Mapping> {
        if bytes == 0 || !sys::memfd::is_sealed_at(&file, bytes as u64)? {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: 1. The kernel chooses a place that is free. 2. Nothing else refers to the new mapping.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { base, bytes, access, owner: Owner::Us })
    }

    /// Zeroed memory that no other process maps.
    pub fn private(bytes: usize) -> io::Result<Mapping> {
        if bytes == 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: 1. The kernel chooses a place that is free. 2. Nothing else refers to the new mapping.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { base, bytes, access: Access::ReadWrite, owner: Owner::Us })
    }

    /// Memory of the program itself, wherever that has it.
    ///
    /// # Safety
    /// From `base`, `bytes` bytes are mapped with `access` as long as this value lives, and nobody holds a Rust
    /// reference into them meanwhile.
    pub unsafe fn lent(base: NonNull<u8>, bytes: usize, access: Access) -> Mapping {
        Mapping { base, bytes, access, owner: Owner::Program }
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The word's address, for a futex.
    #[inline]
    pub fn address_u32(&self, at: usize) -> *const u32 {
        self.word(at)
    }

    #[inline]
    pub fn load(&self, at: usize, order: Ordering) -> u32 {
        // SAFETY: `word` gives an aligned address inside the mapping, which is readable.
        unsafe { AtomicU32::from_ptr(self.word(at)) }.load(order)
    }

    #[inline]
    pub fn store(&self, at: usize, value: u32, order: Ordering) {
        self.check_writable();
        // SAFETY: aligned, inside, and the mapping is writable.
        unsafe { AtomicU32::from_ptr(self.word(at)) }.store(value, order);
    }

    #[inline]
    pub fn fetch_add(&self, at: usize, value: u32, order: Ordering) -> u32 {
        self.check_writable();
        // SAFETY: aligned, inside, and the mapping is writable.
        unsafe { AtomicU32::from_ptr(self.word(at)) }.fetch_add(value, order)
    }

    /// Replaces `current` by `new`; the value found otherwise.
    #[inline]
    pub fn compare_exchange(&self, at: usize, current: u32, new: u32) -> Result<(), u32> {
        self.check_writable();
        // SAFETY: aligned, inside, and the mapping is writable.
        let word = unsafe { AtomicU32::from_ptr(self.word(at)) };
        word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    #[inline]
    pub fn load_u64(&self, at: usize, order: Ordering) -> u64 {
        // SAFETY: aligned and inside the mapping, which is readable.
        unsafe { AtomicU64::from_ptr(self.long_word(at)) }.load(order)
    }

    #[inline]
    pub fn store_u64(&self, at: usize, value: u64, order: Ordering) {
        self.check_writable();
        // SAFETY: aligned, inside, and the mapping is writable.
        unsafe { AtomicU64::from_ptr(self.long_word(at)) }.store(value, order);
    }

    #[inline]
    pub fn fetch_or_u64(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.check_writable();
        // SAFETY: aligned, inside, and the mapping is writable.
        unsafe { AtomicU64::from_ptr(self.long_word(at)) }.fetch_or(bits, order)
    }

    #[inline]
    pub fn fetch_and_u64(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.check_writable();
        // SAFETY: aligned, inside, and the mapping is writable.
        unsafe { AtomicU64::from_ptr(self.long_word(at)) }.fetch_and(bits, order)
    }

    #[inline]
    pub fn swap_u64(&self, at: usize, value: u64, order: Ordering) -> u64 {
        self.check_writable();
        // SAFETY: aligned, inside, and the mapping is writable.
        unsafe { AtomicU64::from_ptr(self.long_word(at)) }.swap(value, order)
    }

    /// Copies out of the object. `None` when the range is not inside.
    #[inline]
    pub fn copy_out(&self, at: usize, data: &mut [u8]) -> Option<()> {
        let from = self.range(at, data.len())?;
        // SAFETY: 1. The source lies inside the mapping. 2. `data` is ours and does not overlap it, as nobody can hold
        // a reference into the mapping. 3. A racing writer changes which bytes are copied, nothing else.
        unsafe { std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), data.len()) };
        Some(())
    }

    /// Appends a range to `data`, whose memory is written once. `None` when the range is not inside.
    pub fn append_to(&self, at: usize, bytes: usize, data: &mut Vec<u8>) -> Option<()> {
        let from = self.range(at, bytes)?;
        data.reserve(bytes);
        // SAFETY: 1. As in `copy_out`, into memory that `data` has behind its length: `reserve`. 2. All of it is
        // written before it belongs to the length.
        unsafe {
            std::ptr::copy_nonoverlapping(from, data.as_mut_ptr().add(data.len()), bytes);
            data.set_len(data.len() + bytes);
        }
        Some(())
    }

    /// Copies into the object. `None` when the range is not inside or the object is read-only.
    #[inline]
    pub fn copy_in(&self, at: usize, data: &[u8]) -> Option<()> {
        let to = self.writable_range(at, data.len())?;
        // SAFETY: as in `copy_out`, with the destination in a writable mapping.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Some(())
    }

    /// Copies between two objects, or inside one; ranges may overlap.
    pub fn copy_from(&self, at: usize, source: &Mapping, source_at: usize, bytes: usize) -> Option<()> {
        let from = source.range(source_at, bytes)?;
        let to = self.writable_range(at, bytes)?;
        // SAFETY: both ranges lie inside live mappings; `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, bytes) };
        Some(())
    }

    /// Fills with zeroes.
    pub fn zero(&self, at: usize, bytes: usize) -> Option<()> {
        let to = self.writable_range(at, bytes)?;
        // SAFETY: the range lies inside a writable mapping.
        unsafe { std::ptr::write_bytes(to, 0, bytes) };
        Some(())
    }

    /// Receives a trapped system call of another process (`sys::notify`) into the object, where it must be 0.
    ///
    /// # Errors
    /// As of `sys::notify::receive`. `InvalidInput`: not inside a writable object.
    pub fn receive_call(&self, at: usize, listener: impl AsFd) -> io::Result<()> {
        let into = self.writable_range(at, sys::notify::NOTIFICATION_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: 1. The range lies inside a writable mapping. 2. Nobody can hold a reference into it.
        unsafe { sys::notify::receive(listener, into) }
    }

    /// The address of a range for a system call that reads or writes it. Whoever uses it keeps the mapping alive.
    #[inline]
    pub(crate) fn range(&self, at: usize, bytes: usize) -> Option<*mut u8> {
        let end = at.checked_add(bytes)?;
        if end > self.bytes {
            return None;
        }
        // SAFETY: `at` is inside the mapping, or one past its end for an empty range.
        Some(unsafe { self.base.as_ptr().add(at) })
    }

    #[inline]
    pub(crate) fn writable_range(&self, at: usize, bytes: usize) -> Option<*mut u8> {
        if self.access == Access::ReadWrite { self.range(at, bytes) } else { None }
    }

    /// Offsets of words come from the layout or were checked against it: a wrong one is an error of this crate.
    #[inline]
    fn word(&self, at: usize) -> *mut u32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes, "word outside the mapping");
        // SAFETY: inside the mapping by the assertion.
        unsafe { self.base.as_ptr().add(at).cast() }
    }

    #[inline]
    fn long_word(&self, at: usize) -> *mut u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes, "word outside the mapping");
        // SAFETY: inside the mapping by the assertion.
        unsafe { self.base.as_ptr().add(at).cast() }
    }

    #[inline]
    fn check_writable(&self) {
        assert!(self.access == Access::ReadWrite, "write to a read-only mapping");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.owner == Owner::Program {
            return;
        }
        // SAFETY: the mapping is ours, and no pointer into it outlives this value.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
