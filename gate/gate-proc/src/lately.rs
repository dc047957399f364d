//! What open files said when they were opened, for those who read on. What is not here any more is asked for again, so
//! who opens and never reads takes nothing from others.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

const FILES_MAX: usize = 256;
const BYTES_MAX: usize = 8 << 20;

#[derive(Debug, Default)]
pub struct Lately(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    /// The oldest first.
    files: VecDeque<(u64, Arc<Vec<u8>>)>,
    bytes: usize,
}

impl Lately {
    pub fn keep(&self, handle: u64, said: Arc<Vec<u8>>) {
        let mut held = self.0.lock();
        held.bytes += said.len();
        held.files.push_back((handle, said));
        while held.files.len() > FILES_MAX || held.bytes > BYTES_MAX {
            let Some((_, oldest)) = held.files.pop_front() else { break };
            held.bytes -= oldest.len();
        }
    }

    pub fn find(&self, handle: u64) -> Option<Arc<Vec<u8>>> {
        let held = self.0.lock();
        held.files.iter().rev().find(|(known, _)| *known == handle).map(|(_, said)| Arc::clone(said))
    }

    pub fn forget(&self, handle: u64) {
        let mut held = self.0.lock();
        if let Some(at) = held.files.iter().position(|(known, _)| *known == handle)
            && let Some((_, said)) = held.files.remove(at)
        {
            held.bytes -= said.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_goes_when_there_is_no_room() {
        let lately = Lately::default();
        for handle in 0..FILES_MAX as u64 + 1 {
            lately.keep(handle, Arc::new(vec![1]));
        }
        assert_eq!((lately.find(0), lately.find(1).is_some()), (None, true));
        lately.keep(999, Arc::new(vec![0; BYTES_MAX]));
        assert_eq!((lately.find(1), lately.find(999).map(|said| said.len())), (None, Some(BYTES_MAX)));
        lately.forget(999);
        lately.forget(999);
        assert_eq!((lately.find(999), lately.0.lock().bytes), (None, 0));
    }
}
