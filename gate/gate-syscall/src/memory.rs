//! The journal in memory that the keeper holds.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ipc_shm::{Access, Mapping};
use proc_core::journal::{Journal, JournalMemory, SlotIndex, WORDS};
use proc_core::order::LifeNumber;

/// Of the sealed memfd.
pub const JOURNAL_BYTES: usize = WORDS * 8;

/// Clones are the same memory. Each slot has one writer at a time: the receiving thread while the slot is free, the
/// thread of calls from then on until it is free again.
#[derive(Clone, Debug)]
pub struct KeptMemory(Arc<Mapping>);

impl KeptMemory {
    /// # Errors
    /// The file is none of [`JOURNAL_BYTES`] that stays so.
    pub fn map(file: impl AsFd) -> io::Result<KeptMemory> {
        Ok(KeptMemory(Arc::new(Mapping::of(file, JOURNAL_BYTES, Access::ReadWrite)?)))
    }

    /// The journal that lies there, or a new one of this life where there is none.
    pub fn journal(&self, life: LifeNumber) -> Journal<KeptMemory> {
        Journal::open(self.clone()).unwrap_or_else(|_| Journal::make(self.clone(), life))
    }

    /// Has the kernel write a call into a slot that was prepared.
    ///
    /// # Errors
    /// The call is over already, and the slot is free as before.
    pub(crate) fn receive(&self, slot: SlotIndex, listener: impl AsFd) -> io::Result<()> {
        self.0.receive_call(slot.first_word() * 8, listener)
    }
}

impl JournalMemory for KeptMemory {
    fn load(&self, at: usize) -> u64 {
        if at < WORDS { self.0.load_u64(at * 8, Ordering::Acquire) } else { 0 }
    }

    fn store(&mut self, at: usize, value: u64) {
        if at < WORDS {
            self.0.store_u64(at * 8, value, Ordering::Release);
        }
    }
}
