//! Tells a forked child from the process that bound an endpoint, at the cost of one load.
//!
//! A page that the kernel wipes in a child holds the generation of this process. What was made in another generation
//! was inherited, and must not be used: two processes would write into one side of a channel.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Made by a process; holds in that process only.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    page: NonNull<AtomicU32>,
    generation: u32,
}

// SAFETY: the page is never unmapped and only accessed atomically.
unsafe impl Send for ForkGuard {}
// SAFETY: as for Send.
unsafe impl Sync for ForkGuard {}

struct Page(NonNull<AtomicU32>);
// SAFETY: as for ForkGuard.
unsafe impl Send for Page {}
// SAFETY: as for ForkGuard.
unsafe impl Sync for Page {}

impl ForkGuard {
    pub fn new() -> std::io::Result<ForkGuard> {
        static PAGE: OnceLock<Page> = OnceLock::new();
        static GENERATIONS: AtomicU32 = AtomicU32::new(0);
        let page = match PAGE.get() {
            Some(page) => page.0,
            None => {
                let fresh = map_wiped_on_fork()?;
                // A second thread that came first wins; the page of the loser stays unused.
                PAGE.get_or_init(|| Page(fresh)).0
            }
        };
        // SAFETY: the page is mapped for the life of the process.
        let word = unsafe { page.as_ref() };
        let wanted = GENERATIONS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let generation = match word.compare_exchange(0, wanted, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => wanted,
            Err(present) => present,
        };
        Ok(ForkGuard { page, generation })
    }

    /// Whether this is the process that made the guard.
    #[inline]
    pub fn holds(&self) -> bool {
        // SAFETY: the page is mapped for the life of the process.
        unsafe { self.page.as_ref() }.load(Ordering::Relaxed) == self.generation
    }
}

fn map_wiped_on_fork() -> std::io::Result<NonNull<AtomicU32>> {
    // SAFETY: 1. A new private mapping at a place the kernel chooses. 2. It stays for ever. 3. Zero bytes are an
    // AtomicU32.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let base = rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4096, protection, MapFlags::PRIVATE)?;
        rustix::mm::madvise(base, 4096, Advice::LinuxWipeOnFork)?;
        NonNull::new(base.cast()).ok_or_else(|| std::io::ErrorKind::AddrNotAvailable.into())
    }
}
