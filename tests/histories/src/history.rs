//! What was asked, when, and what came of it.
//!
//! An operation is *open* until it is closed with what came of it: an answer; nothing, when it is certain that it did
//! not happen; or unknown, when an answer never came. One that is never closed is unknown, so a client that dies needs
//! no care.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Operations that one recorder keeps: a run of many minutes. What is asked beyond is refused, not forgotten.
pub const OPERATIONS_MAX: usize = 1 << 20;

/// `output` and `returned`: `None` when nobody knows whether it happened, or will yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation<I, O> {
    pub client: u32,
    /// Of one monotonic clock, in any unit.
    pub invoked: u64,
    pub returned: Option<u64>,
    pub input: I,
    pub output: Option<O>,
}

/// In the order in which they were asked.
pub type History<I, O> = Vec<Operation<I, O>>;

/// An operation that is open.
#[derive(Debug)]
#[must_use = "an operation that is not closed counts as unknown"]
pub struct Ticket(usize);

/// `K`: what is checked by itself, a key or a name.
pub struct Recorder<K, I, O> {
    kept: Mutex<Vec<Slot<K, I, O>>>,
}

struct Slot<K, I, O> {
    key: K,
    operation: Operation<I, O>,
    has_happened: Happened,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Happened {
    Perhaps,
    Never,
}

/// The recorder is full: the run was meant to end long ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl<K, I, O> Default for Recorder<K, I, O> {
    fn default() -> Recorder<K, I, O> {
        Recorder { kept: Mutex::default() }
    }
}

impl<K: Ord + Clone, I: Clone, O: Clone> Recorder<K, I, O> {
    /// Before it is asked.
    pub fn invoke(&self, client: u32, key: K, input: I, now: u64) -> Result<Ticket, Full> {
        let mut kept = self.kept();
        if kept.len() >= OPERATIONS_MAX {
            return Err(Full);
        }
        let operation = Operation { client, invoked: now, returned: None, input, output: None };
        kept.push(Slot { key, operation, has_happened: Happened::Perhaps });
        Ok(Ticket(kept.len() - 1))
    }

    /// After it was answered.
    pub fn answered(&self, ticket: Ticket, output: O, now: u64) {
        if let Some(slot) = self.kept().get_mut(ticket.0) {
            slot.operation.returned = Some(now.max(slot.operation.invoked));
            slot.operation.output = Some(output);
        }
    }

    /// It certainly did not happen, and will not.
    pub fn did_not_happen(&self, ticket: Ticket) {
        if let Some(slot) = self.kept().get_mut(ticket.0) {
            slot.has_happened = Happened::Never;
        }
    }

    /// Everything until now, by key; what did not happen is left out.
    pub fn histories(&self) -> std::collections::BTreeMap<K, History<I, O>> {
        let mut histories = std::collections::BTreeMap::<K, History<I, O>>::new();
        for slot in self.kept().iter().filter(|slot| slot.has_happened == Happened::Perhaps) {
            histories.entry(slot.key.clone()).or_default().push(slot.operation.clone());
        }
        histories
    }

    pub fn len(&self) -> usize {
        self.kept().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A client that panicked wrote whole slots or none.
    fn kept(&self) -> MutexGuard<'_, Vec<Slot<K, I, O>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_closed_is_unknown_and_what_did_not_happen_is_left_out() {
        let recorder = Recorder::<&str, u8, u8>::default();
        let first = recorder.invoke(1, "a", 10, 100).unwrap();
        let _lost = recorder.invoke(2, "a", 11, 110).unwrap();
        let withdrawn = recorder.invoke(3, "b", 12, 120).unwrap();
        recorder.answered(first, 77, 130);
        recorder.did_not_happen(withdrawn);
        let histories = recorder.histories();
        assert_eq!(histories.keys().collect::<Vec<_>>(), [&"a"]);
        let seen: Vec<_> = histories["a"].iter().map(|one| (one.invoked, one.returned, one.output)).collect();
        assert_eq!(seen, [(100, Some(130), Some(77)), (110, None, None)]);
    }
}
