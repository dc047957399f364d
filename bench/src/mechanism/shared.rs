//! Bare shared memory: one line each way, both sides look without pause. What two CPUs can do at all.
//!
//! A line is 56 bytes and a word that counts. No checks, no sleeping, no peers that lie: nobody could use it like this.

use std::sync::atomic::Ordering;

use ipc_shm::{Access, Mapping};

use super::{Caller, Echo, Handed, STOP, standard};
use crate::Outcome;
use crate::places::Side;

const BYTES: usize = 4096;
const DATA_BYTES: usize = 56;
/// Far enough apart that no processor fetches both at once.
const LINES: [usize; 2] = [0, 512];

pub struct Line {
    memory: Mapping,
    own: usize,
    peer: usize,
    count: u32,
}

pub fn hand() -> Outcome<Handed> {
    let memory = sys::memfd::create_sealed("line", BYTES as u64)?;
    Ok(Handed { client: [Some(memory.try_clone()?), None], server: [Some(memory), None] })
}

impl Line {
    pub fn inherited(side: Side) -> Outcome<Line> {
        let [memory, _] = standard()?;
        let memory = Mapping::of(memory, BYTES, Access::ReadWrite)?;
        let [client, server] = LINES;
        let (own, peer) = if side == Side::Client { (client, server) } else { (server, client) };
        Ok(Line { memory, own, peer, count: 0 })
    }

    fn put(&mut self, number: u64, count: u32) {
        let mut data = [0; DATA_BYTES];
        data[..8].copy_from_slice(&number.to_le_bytes());
        // Inside the mapping.
        let _ = self.memory.copy_in(self.own + 8, &data);
        self.memory.store(self.own, count, Ordering::Release);
    }

    fn take(&mut self, count: u32) -> u64 {
        while self.memory.load(self.peer, Ordering::Acquire) != count {
            std::hint::spin_loop();
        }
        let mut data = [0; DATA_BYTES];
        let _ = self.memory.copy_out(self.peer + 8, &mut data);
        data.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

impl Caller for Line {
    fn call(&mut self, number: u64) -> Outcome<u64> {
        self.count = self.count.wrapping_add(1);
        self.put(number, self.count);
        Ok(self.take(self.count))
    }
}

impl Echo for Line {
    fn serve(&mut self) -> Outcome<()> {
        loop {
            self.count = self.count.wrapping_add(1);
            let number = self.take(self.count);
            self.put(number, self.count);
            if number == STOP {
                return Ok(());
            }
        }
    }
}
