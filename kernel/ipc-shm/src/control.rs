//! Control pages: what the broker says of one endpoint. Written by the broker only, mapped read-only by everybody else.
//!
//! The writer changes a field, then bumps `EVENT` with Release and wakes all. A reader loads `EVENT` with Acquire
//! first, then the field: what it sees is at least as new as the event it sleeps on.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use abi::layout::{control, life};
use abi::{Epoch, IpcError};
use ipc_core::grants::Incarnation;
use sys::futex::Expected;

use crate::mapping::{Access, Mapping};

/// How an endpoint is, by its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    Alive,
    /// Died or unbound.
    Dead,
    /// On a node that cannot be reached.
    Unreachable,
    /// Another owner was promoted.
    Fenced,
    /// Handed over to another owner. Nothing that was taken is unanswered.
    Moved,
}

impl Life {
    #[inline]
    fn of(word: u32) -> Life {
        match word {
            life::ALIVE => Life::Alive,
            life::UNREACHABLE => Life::Unreachable,
            life::FENCED => Life::Fenced,
            life::MOVED => Life::Moved,
            _ => Life::Dead,
        }
    }

    fn word(self) -> u32 {
        match self {
            Life::Alive => life::ALIVE,
            Life::Dead => life::DEAD,
            Life::Unreachable => life::UNREACHABLE,
            Life::Fenced => life::FENCED,
            Life::Moved => life::MOVED,
        }
    }
}

/// A page as endpoints see it.
#[derive(Debug)]
pub struct ControlPage {
    page: Mapping,
}

impl ControlPage {
    pub fn of(file: impl AsFd) -> io::Result<ControlPage> {
        Ok(ControlPage { page: Mapping::of(file, control::PAGE_BYTES, Access::Read)? })
    }

    /// Loaded before looking at anything else, and slept on.
    #[inline]
    pub fn event(&self) -> u32 {
        self.page.load(control::EVENT, Ordering::Acquire)
    }

    #[inline]
    pub fn life(&self) -> Life {
        Life::of(self.page.load(control::LIFE, Ordering::Acquire))
    }

    #[inline]
    pub fn is_held(&self) -> bool {
        self.hold() != 0
    }

    /// The number of the hold; 0 for none.
    #[inline]
    pub fn hold(&self) -> u32 {
        self.page.load(control::HOLD, Ordering::Acquire)
    }

    #[inline]
    pub fn wakeups(&self) -> u32 {
        self.page.load(control::WAKEUPS, Ordering::Acquire)
    }

    pub fn epoch(&self) -> Epoch {
        Epoch(self.page.load_u64(control::EPOCH, Ordering::Acquire))
    }

    /// Which process that ever had the endpoint has it.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation { page: self.page.load_u64(control::SERIAL, Ordering::Acquire), home: home_serial(&self.page) }
    }

    pub(crate) fn expect(&self, event: u32) -> Expected {
        Expected { word: self.page.address_u32(control::EVENT), value: event }
    }

    /// What a call answers whose peer has this page; `None` while the peer lives.
    #[inline]
    pub fn ended(&self, died: IpcError) -> Option<IpcError> {
        match self.life() {
            Life::Alive => None,
            Life::Dead => Some(died),
            Life::Unreachable => Some(IpcError::NoLink),
            Life::Fenced => Some(IpcError::Fenced),
            Life::Moved => Some(IpcError::Moved),
        }
    }
}

fn home_serial(page: &Mapping) -> Option<NonZeroU64> {
    NonZeroU64::new(page.load_u64(control::HOME_SERIAL, Ordering::Acquire))
}

/// The time since boot, or one more than the last: no restarted broker gives a number again.
fn next_serial() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let nanos = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let last = LAST.fetch_max(nanos, Ordering::Relaxed);
    if last < nanos { nanos } else { LAST.fetch_add(1, Ordering::Relaxed) + 1 }
}

/// A page as its broker holds it.
#[derive(Debug)]
pub struct ControlWriter {
    page: Mapping,
    file: OwnedFd,
}

impl ControlWriter {
    /// Of an endpoint of this node.
    pub fn create(epoch: Epoch) -> io::Result<ControlWriter> {
        let serial = next_serial();
        ControlWriter::with(epoch, serial, NonZeroU64::new(serial))
    }

    /// Of an endpoint of another node, of which that node has not said yet which process has it.
    pub fn stand_in(epoch: Epoch) -> io::Result<ControlWriter> {
        ControlWriter::with(epoch, next_serial(), None)
    }

    fn with(epoch: Epoch, serial: u64, home: Option<NonZeroU64>) -> io::Result<ControlWriter> {
        let file = sys::memfd::create_sealed("dvs-control", control::PAGE_BYTES as u64)?;
        let page = Mapping::of(&file, control::PAGE_BYTES, Access::ReadWrite)?;
        page.store_u64(control::EPOCH, epoch.0, Ordering::Relaxed);
        page.store_u64(control::SERIAL, serial, Ordering::Relaxed);
        page.store_u64(control::HOME_SERIAL, home.map_or(0, NonZeroU64::get), Ordering::Relaxed);
        page.store(control::LIFE, life::ALIVE, Ordering::Release);
        Ok(ControlWriter { page, file })
    }

    /// A page that an earlier broker made.
    pub fn adopt(file: OwnedFd) -> io::Result<ControlWriter> {
        let page = Mapping::of(&file, control::PAGE_BYTES, Access::ReadWrite)?;
        Ok(ControlWriter { page, file })
    }

    /// The writable descriptor: for whoever keeps it over the broker's restart, for nobody else.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// A descriptor for an endpoint; it cannot write.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        sys::memfd::reopen_read_only(self.file.as_fd())
    }

    pub fn home_serial(&self) -> Option<NonZeroU64> {
        home_serial(&self.page)
    }

    pub fn set_home_serial(&self, home: NonZeroU64) {
        self.page.store_u64(control::HOME_SERIAL, home.get(), Ordering::Release);
    }

    pub fn life(&self) -> Life {
        Life::of(self.page.load(control::LIFE, Ordering::Acquire))
    }

    pub fn set_life(&self, life: Life) {
        self.page.store(control::LIFE, life.word(), Ordering::Release);
        self.announce();
    }

    /// From now on the endpoint takes no message, or takes them again when `hold` is 0.
    pub fn set_hold(&self, hold: u32) {
        self.page.store(control::HOLD, hold, Ordering::Release);
        self.announce();
    }

    /// Ends a wait of the endpoint with `WokenUp`.
    pub fn wake_up(&self) {
        self.page.fetch_add(control::WAKEUPS, 1, Ordering::Release);
        self.announce();
    }

    /// Makes everybody who sleeps on the page look again.
    pub fn announce(&self) {
        self.page.fetch_add(control::EVENT, 1, Ordering::Release);
        sys::futex::wake_all(self.page.address_u32(control::EVENT));
    }
}
