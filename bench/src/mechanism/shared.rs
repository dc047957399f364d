//! Bare shared memory: one line each way. What two CPUs can do at all.
//!
//! A line is 56 bytes and a word that counts. No checks, no sleeping, no peers that lie: nobody could use it like this.

use std::sync::atomic::Ordering;

use ipc_shm::{Access, Mapping};

use super::{Caller, Echo, Handed, STOP, standard};
use crate::Outcome;
use crate::places::Side;

const BYTES: usize = 4096;
const WORDS: usize = 7;
/// Far enough apart that no processor fetches both at once.
const LINES: [usize; 2] = [0, 512];
/// Looks before a yielding side begins to yield: a side on another CPU answers sooner.
const LOOKS: u32 = 200;

/// What a side does until the other's line has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    Spinning,
    /// Also gives the CPU away, so that both may be on one.
    Yielding,
}

pub struct Line {
    memory: Mapping,
    own: usize,
    peer: usize,
    count: u32,
    waiting: Waiting,
}

pub fn hand() -> Outcome<Handed> {
    let memory = sys::memfd::create_sealed("line", BYTES as u64)?;
    Ok(Handed { client: [Some(memory.try_clone()?), None], server: [Some(memory), None] })
}

impl Line {
    pub fn inherited(side: Side, waiting: Waiting) -> Outcome<Line> {
        let [memory, _] = standard()?;
        let memory = Mapping::of(memory, BYTES, Access::ReadWrite)?;
        let [client, server] = LINES;
        let (own, peer) = if side == Side::Client { (client, server) } else { (server, client) };
        Ok(Line { memory, own, peer, count: 0, waiting })
    }

    /// The next line of this side.
    #[inline]
    fn put(&mut self, words: &[u64; WORDS]) {
        let mut data = [0; WORDS * 8];
        for (bytes, word) in data.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        // Inside the mapping.
        let _ = self.memory.copy_in(self.own + 8, &data);
        self.memory.store(self.own, self.count, Ordering::Release);
    }

    /// The next line of the other side.
    #[inline]
    fn take(&mut self) -> [u64; WORDS] {
        let mut looks = 0;
        while self.memory.load(self.peer, Ordering::Acquire) != self.count {
            if self.waiting == Waiting::Yielding && looks >= LOOKS {
                rustix::thread::sched_yield();
            } else {
                looks += 1;
                std::hint::spin_loop();
            }
        }
        let mut data = [0; WORDS * 8];
        let _ = self.memory.copy_out(self.peer + 8, &mut data);
        let mut words = [0; WORDS];
        for (bytes, word) in data.as_chunks().0.iter().zip(&mut words) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    #[inline]
    pub fn ask(&mut self, words: &[u64; WORDS]) -> [u64; WORDS] {
        self.count = self.count.wrapping_add(1);
        self.put(words);
        self.take()
    }

    /// Answers each line with what `answer` makes of it, until the first word is [`STOP`].
    pub fn serve_with(&mut self, mut answer: impl FnMut(&[u64; WORDS]) -> Outcome<[u64; WORDS]>) -> Outcome<()> {
        loop {
            self.count = self.count.wrapping_add(1);
            let words = self.take();
            let answer = answer(&words)?;
            self.put(&answer);
            if words[0] == STOP {
                return Ok(());
            }
        }
    }
}

impl Caller for Line {
    fn call(&mut self, number: u64) -> Outcome<u64> {
        Ok(self.ask(&[number, 0, 0, 0, 0, 0, 0])[0])
    }
}

impl Echo for Line {
    fn serve(&mut self) -> Outcome<()> {
        self.serve_with(|words| Ok(*words))
    }
}
