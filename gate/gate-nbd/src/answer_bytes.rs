//! Bytes for a client, in memory that is used again.
//!
//! Memory that was just got is cleared, page by page, before anything is put there: for long reads that costs as much
//! as a copy. So what has its length keeps it, with what it had before, until something else is put over it. What is
//! used for one connection is used for no other.

/// More than this is not kept.
const KEPT_BYTES_MAX: usize = 5 << 20;
/// So much is nothing to speak of.
const SMALL_BYTES: usize = 64 << 10;

#[derive(Default)]
pub struct AnswerBytes {
    /// Its length is the most that was in use.
    memory: Vec<u8>,
    used: usize,
}

impl AnswerBytes {
    pub fn bytes(&self) -> &[u8] {
        self.memory.get(..self.used).unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// So many bytes more, for who fills all of them, or cuts them off again.
    pub fn room(&mut self, bytes: usize) -> &mut [u8] {
        let from = self.used;
        self.used += bytes;
        if self.memory.len() < self.used {
            self.memory.resize(self.used, 0);
        }
        self.memory.get_mut(from..self.used).unwrap_or_default()
    }

    /// What is behind the first `bytes` goes.
    pub fn cut(&mut self, bytes: usize) {
        self.used = self.used.min(bytes);
    }

    pub fn clear(&mut self) {
        self.used = 0;
        if self.memory.len() > KEPT_BYTES_MAX {
            self.memory = Vec::new();
        }
    }

    /// Whether there is memory that somebody else could use.
    pub fn is_large(&self) -> bool {
        self.memory.len() > SMALL_BYTES
    }

    /// Nobody needs it for a while.
    pub fn give_back(&mut self) {
        *self = AnswerBytes::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_is_never_among_what_was_put() {
        let mut answer = AnswerBytes::default();
        answer.put(&[1; 100]);
        answer.clear();
        answer.put(&[2; 10]);
        answer.room(5).fill(3);
        answer.cut(12);
        answer.put(&[4]);
        assert_eq!(answer.bytes(), [&[2; 10][..], &[3, 3, 4]].concat());
        assert_eq!(answer.len(), 13);
    }

    #[test]
    fn memory_is_kept_up_to_a_bound() {
        let mut answer = AnswerBytes::default();
        answer.room(KEPT_BYTES_MAX);
        answer.clear();
        assert!(answer.is_large());
        answer.room(KEPT_BYTES_MAX + 1);
        answer.clear();
        assert!(!answer.is_large());
    }
}
