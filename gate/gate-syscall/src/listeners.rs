//! The descriptors by which calls come: one for each program that the keeper started, by the keeper's numbers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

/// Clones are the same table. Numbers are never given twice.
#[derive(Clone, Debug, Default)]
pub struct Listeners(Arc<Mutex<BTreeMap<u64, Arc<OwnedFd>>>>);

impl Listeners {
    pub fn insert(&self, number: u64, listener: OwnedFd) {
        self.0.lock().insert(number, Arc::new(listener));
    }

    /// `None`: its programs are gone.
    pub fn get(&self, number: u64) -> Option<Arc<OwnedFd>> {
        self.0.lock().get(&number).cloned()
    }

    pub fn remove(&self, number: u64) {
        self.0.lock().remove(&number);
    }

    /// Those with larger numbers.
    pub(crate) fn after(&self, number: u64) -> Vec<(u64, Arc<OwnedFd>)> {
        let table = self.0.lock();
        let later = table.range(number.saturating_add(1)..);
        later.map(|(number, listener)| (*number, Arc::clone(listener))).collect()
    }
}
