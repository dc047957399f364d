//! 64 KiB from one process to another: the client rewrites its memory, the server reads all of it, every round. The
//! answer is a sum over what was read, so nobody gets away with less.
//!
//! Peers of the copy and of the shared buffer say by a bare line of shared memory that it is the other's turn
//! ([`Line`]): the fastest that two processes have, so that it is the moving of the bytes that is compared.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use ipc::{Arena, Completion, Direction, Endpoint, Event, GrantId, Message, Place, Port, RingClient, RingSpec};
use ipc::{Submission, Wait, WaitMode};
use rustix::mm::{MapFlags, ProtFlags};

use super::shared::{Line, Waiting};
use super::{Caller, Handed, STOP, Site, standard, stream};
use crate::Outcome;
use crate::places::Side;

pub const BYTES: usize = 64 * 1024;
/// What is built or read at a time where memory is reached by copies only.
const PART: usize = 4096;
const _: () = assert!(BYTES.is_multiple_of(PART));

/// Writes words that count from `first`.
#[inline]
fn rewrite(memory: &mut [u8], first: u64) {
    for (index, bytes) in memory.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&first.wrapping_add(index as u64).to_le_bytes());
    }
}

#[inline]
fn sum(memory: &[u8]) -> u64 {
    memory.as_chunks().0.iter().fold(0, |sum, bytes| sum.wrapping_add(u64::from_le_bytes(*bytes)))
}

/// The number of the round, when the sum is that of its words.
fn confirmed(number: u64, sum: u64) -> u64 {
    const WORDS: u64 = (BYTES / 8) as u64;
    let expected = number.wrapping_mul(WORDS).wrapping_add(WORDS * (WORDS - 1) / 2);
    if sum == expected { number } else { !number }
}

/// Writes words that count from `first` to memory that others may change, a part at a time.
fn build(arena: &Arena, first: u64) -> Outcome<()> {
    let mut part = [0; PART];
    for offset in (0..BYTES).step_by(PART) {
        rewrite(&mut part, first.wrapping_add((offset / 8) as u64));
        arena.copy_in(offset, &part)?;
    }
    Ok(())
}

/// The same in private memory, where it lies, as a program does that lends what it has.
fn build_in_place(memory: &Arena, first: u64) {
    let words = memory.address().cast::<u64>();
    for index in 0..memory.len() / 8 {
        // SAFETY: 1. So many words are mapped while `memory` lives, and aligned. 2. Nobody else writes there.
        unsafe { words.add(index).write(first.wrapping_add(index as u64).to_le()) };
    }
}

fn sum_of(arena: &Arena, offset: usize) -> Outcome<u64> {
    let (mut part, mut all) = ([0; PART], 0u64);
    for at in (0..BYTES).step_by(PART) {
        arena.copy_out(offset + at, &mut part)?;
        all = all.wrapping_add(sum(&part));
    }
    Ok(all)
}

fn port(site: &Site) -> Outcome<Port> {
    let mut port = Port::connect(&site.broker(), None)?;
    port.set_wait_mode(WaitMode::Adaptive);
    Ok(port)
}

/// `vcopy`: the client lends its memory, the server copies it to its own.
pub mod vcopy {
    use super::*;

    pub struct Lender {
        port: Port,
        server: Endpoint,
        memory: Arena,
        grant: GrantId,
    }

    pub fn connect(site: &Site, address: &str) -> Outcome<Lender> {
        let server = Endpoint::new(address.parse()?).ok_or("no such endpoint")?;
        let mut port = port(site)?;
        let memory = Arena::private(BYTES)?;
        let grant = port.grant(server, &memory, Direction::Read)?;
        Ok(Lender { port, server, memory, grant })
    }

    impl Caller for Lender {
        fn call(&mut self, number: u64) -> Outcome<u64> {
            if number != STOP {
                build_in_place(&self.memory, number);
            }
            let request = Message::new(1).with_word(0, number).with_word(1, self.grant.number());
            let answer = self.port.sendrec(self.server, &request, Wait::Forever)?.word(0);
            Ok(if number == STOP { number } else { confirmed(number, answer) })
        }
    }

    pub fn serve(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        let mut port = port(site)?;
        ready(&port.endpoint().number().to_string())?;
        let mut memory = vec![0; BYTES];
        loop {
            let request = port.rcvrqst(Wait::Forever)?;
            let caller = request.source.ok_or("a request of nobody")?;
            if request.word(0) == STOP {
                return Ok(port.reply(caller, &request)?);
            }
            let grant = GrantId::from_number(request.word(1));
            port.copy_from(Place { owner: caller, grant, offset: 0 }, &mut memory, Wait::Forever)?;
            port.reply(caller, &Message::new(1).with_word(0, sum(&memory)))?;
        }
    }
}

/// Built in the arena of a ring, read there.
pub mod in_place {
    use super::*;

    /// The operation that ends the server.
    const END: u16 = 2;

    pub struct Builder {
        ring: RingClient,
        _port: Port,
    }

    pub fn connect(site: &Site, address: &str) -> Outcome<Builder> {
        let server = Endpoint::new(address.parse()?).ok_or("no such endpoint")?;
        let mut port = port(site)?;
        let ring = port.open_ring(server, RingSpec { entries: 1, arena_bytes: BYTES as u32 }, Wait::Forever)?;
        ring.set_wait_mode(WaitMode::Adaptive);
        Ok(Builder { ring, _port: port })
    }

    impl Caller for Builder {
        fn call(&mut self, number: u64) -> Outcome<u64> {
            if number != STOP {
                build(self.ring.arena(), number)?;
            }
            let op = if number == STOP { END } else { 1 };
            self.ring.submit(&Submission { op, out_bytes: BYTES as u32, ..Submission::default() })?;
            self.ring.publish();
            loop {
                if let Some(answer) = self.ring.poll()? {
                    return Ok(if number == STOP { number } else { confirmed(number, answer.results[0]) });
                }
                self.ring.wait(Wait::Forever)?;
            }
        }
    }

    pub fn serve(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        let mut port = port(site)?;
        ready(&port.endpoint().number().to_string())?;
        let mut ring = None;
        loop {
            match port.wait_event(Wait::Forever)? {
                Event::RingOpened(opened) => ring = Some(opened),
                Event::RingClosed(..) => return Ok(()),
                _ => {}
            }
            let Some(ring) = &ring else { continue };
            while let Some(request) = ring.next()? {
                let sum = if request.op == END { 0 } else { sum_of(&ring.arena(), request.arena_offset as usize)? };
                ring.complete(&Completion { tag: request.tag, results: [sum, 0, 0, 0], ..Completion::default() })?;
            }
            ring.publish();
        }
    }
}

/// `process_vm_readv` by the server, which was told pid and address.
pub mod readv {
    use super::*;

    pub struct Owner {
        line: Line,
        memory: Vec<u8>,
    }

    pub fn inherited() -> Outcome<Owner> {
        Ok(Owner { line: Line::inherited(Side::Client, Waiting::Yielding)?, memory: vec![0; BYTES] })
    }

    impl Caller for Owner {
        fn call(&mut self, number: u64) -> Outcome<u64> {
            rewrite(&mut self.memory, number);
            let (pid, address) = (u64::from(std::process::id()), self.memory.as_ptr() as u64);
            let answer = self.line.ask(&[number, pid, address, 0, 0, 0, 0])[0];
            Ok(if number == STOP { number } else { confirmed(number, answer) })
        }
    }

    pub fn serve(ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        let mut line = Line::inherited(Side::Server, Waiting::Yielding)?;
        ready("-")?;
        let mut memory = vec![0; BYTES];
        line.serve_with(|&[_, pid, address, ..]| {
            read(pid, address, &mut memory)?;
            Ok([sum(&memory), 0, 0, 0, 0, 0, 0])
        })
    }

    fn read(pid: u64, address: u64, into: &mut [u8]) -> Outcome<()> {
        let own = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let theirs = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: 1. The kernel writes at most `into.len()` bytes to `into`. 2. The other address is the other
        // process's.
        let count = unsafe { libc::process_vm_readv(pid as libc::pid_t, &raw const own, 1, &raw const theirs, 1, 0) };
        match usize::try_from(count) {
            Ok(count) if count == into.len() => Ok(()),
            Ok(count) => Err(format!("process_vm_readv copied {count} bytes").into()),
            Err(_) => Err(std::io::Error::last_os_error().into()),
        }
    }
}

/// Through a pipe; the sum comes back through another.
pub mod pipe {
    use super::*;

    pub struct Writer {
        pipes: stream::Stream<File, File>,
        memory: Vec<u8>,
    }

    pub fn inherited() -> Outcome<Writer> {
        Ok(Writer { pipes: stream::inherited()?, memory: vec![0; BYTES] })
    }

    impl Caller for Writer {
        fn call(&mut self, number: u64) -> Outcome<u64> {
            rewrite(&mut self.memory, number);
            self.pipes.to.write_all(&self.memory)?;
            let mut answer = [0; 8];
            self.pipes.from.read_exact(&mut answer)?;
            Ok(if number == STOP { number } else { confirmed(number, u64::from_le_bytes(answer)) })
        }
    }

    pub fn serve(ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        let mut pipes = stream::inherited()?;
        ready("-")?;
        let mut memory = vec![0; BYTES];
        loop {
            pipes.from.read_exact(&mut memory)?;
            pipes.to.write_all(&sum(&memory).to_le_bytes())?;
            if memory.first_chunk() == Some(&STOP.to_le_bytes()) {
                return Ok(());
            }
        }
    }
}

/// A buffer both map, and a line to say whose turn it is.
pub mod bare {
    use super::*;

    /// Mapped until the process ends.
    struct Buffer(*mut u8);

    impl Buffer {
        fn of(file: &OwnedFd) -> Outcome<Buffer> {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the kernel chooses a place that is free.
            let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, protection, MapFlags::SHARED, file, 0)? };
            Ok(Buffer(at.cast()))
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: 1. So many bytes are mapped, for good. 2. The other process leaves them alone until it is its
            // turn, which the line says with Release and Acquire.
            unsafe { std::slice::from_raw_parts_mut(self.0, BYTES) }
        }
    }

    pub fn hand() -> Outcome<Handed> {
        let mut handed = super::super::shared::hand()?;
        let buffer = sys::memfd::create_sealed("buffer", BYTES as u64)?;
        handed.client[1] = Some(buffer.try_clone()?);
        handed.server[1] = Some(buffer);
        Ok(handed)
    }

    pub struct Sharer {
        line: Line,
        buffer: Buffer,
    }

    pub fn inherited() -> Outcome<Sharer> {
        let [_, buffer] = standard()?;
        Ok(Sharer { line: Line::inherited(Side::Client, Waiting::Yielding)?, buffer: Buffer::of(&buffer)? })
    }

    impl Caller for Sharer {
        fn call(&mut self, number: u64) -> Outcome<u64> {
            rewrite(self.buffer.bytes(), number);
            let answer = self.line.ask(&[number, 0, 0, 0, 0, 0, 0])[0];
            Ok(if number == STOP { number } else { confirmed(number, answer) })
        }
    }

    pub fn serve(ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        let [_, buffer] = standard()?;
        let (mut line, mut buffer) = (Line::inherited(Side::Server, Waiting::Yielding)?, Buffer::of(&buffer)?);
        ready("-")?;
        line.serve_with(|_| Ok([sum(buffer.bytes()), 0, 0, 0, 0, 0, 0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_a_round_is_known_and_of_another_is_not() {
        let mut memory = vec![0; BYTES];
        rewrite(&mut memory, 7);
        assert_eq!(confirmed(7, sum(&memory)), 7);
        memory[100] ^= 1;
        assert_ne!(confirmed(7, sum(&memory)), 7);
    }

    #[test]
    fn memory_built_in_parts_is_the_same() {
        let arena = Arena::private(BYTES).unwrap();
        build(&arena, 9).unwrap();
        let mut whole = vec![0; BYTES];
        rewrite(&mut whole, 9);
        assert!(arena.to_vec(0, BYTES).unwrap() == whole);
        assert_eq!(sum_of(&arena, 0).unwrap(), sum(&whole));
    }
}
