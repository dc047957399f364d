//! Long reads past the fs server: it says where the bytes lie, and the gate fetches them from the disk itself. So they
//! cross one link instead of two, and nobody between copies them.
//!
//! What was told holds as long as the answer's lease. A read is asked of the fs server again, in the ordinary way, when
//! that lease ends before the bytes are here, when a block has not its checksum, when the disk refuses, or when its
//! ring is lost. So the worst that can happen is what happened without this. Reads only: the disk takes changes from
//! the fs server alone.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;

use libvos::{Armed, Connect, Data, Done, Epochs, Identity, Session, Size, SubmitError, Token};
use vos_api::disk::{BLOCK_BYTES, Readv, SPANS_MAX, Span};
use vos_api::fs::{LEASE, PLACES, Read, ReadReply};
use vos_api::{Class, Operation};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

const BLOCK: usize = BLOCK_BYTES as usize;
/// What a checksum is made of at a time.
const PIECE: usize = 16 * BLOCK;

/// A read as the fs server was asked for it.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub token: Token,
    pub read: Read,
    pub in_capacity: u32,
}

/// Where a read's bytes lie.
#[derive(Debug, PartialEq, Eq)]
struct Places {
    /// Of the file; the blocks may hold more.
    bytes: usize,
    spans: Vec<u8>,
    crcs: Vec<u32>,
}

struct Reading {
    asked: Asked,
    places: Places,
}

/// What became of a read.
pub enum Outcome {
    Read(Token, Data, [u64; 4]),
    Again(Asked),
}

pub struct Volume {
    session: Session,
    reading: HashMap<Token, Reading>,
    /// For which the ring has no room at the moment.
    waiting: VecDeque<Reading>,
    again: VecDeque<Asked>,
}

impl Volume {
    pub fn open(connect: Box<dyn Connect>, size: Size, epochs: Epochs) -> io::Result<Volume> {
        let session = Session::open(connect, size, Identity { epochs, ..Identity::default() })?;
        Ok(Volume { session, reading: HashMap::new(), waiting: VecDeque::new(), again: VecDeque::new() })
    }

    pub fn is_up(&self) -> bool {
        self.session.is_up()
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.session.fd()
    }

    /// Fetches what the fs server told of.
    pub fn read(&mut self, asked: Asked, told: &Done) {
        let places = Some(&told.results).filter(|results| results[3] & LEASE != 0 && self.session.is_up());
        match places.and_then(|results| Places::parse(results, asked.in_capacity, &told.data.to_vec())) {
            Some(places) => {
                self.waiting.push_back(Reading { asked, places });
                self.submit();
            }
            None => self.again.push_back(asked),
        }
    }

    /// As far as the ring takes more, in order.
    fn submit(&mut self) {
        while let Some(reading) = self.waiting.pop_front() {
            let room = (reading.places.crcs.len() * BLOCK) as u32;
            let asked = Readv {}.encode();
            let op = libvos::Op::of(&asked, Class::Repeatable, room).out(&reading.places.spans);
            match self.session.submit(op) {
                Ok(token) => drop(self.reading.insert(token, reading)),
                Err(SubmitError::TooLong) => self.again.push_back(reading.asked),
                Err(SubmitError::Full) => return self.waiting.push_front(reading),
            }
        }
    }

    /// What came to an end.
    pub fn poll(&mut self) -> Option<Outcome> {
        while let Some(done) = self.session.complete() {
            // Given up meanwhile, if it is none of ours.
            if let Some(reading) = self.reading.remove(&done.token) {
                return Some(finish(reading, done));
            }
        }
        // What was completed left room, in the ring and in the arena.
        self.submit();
        self.session.flush();
        if !self.session.is_up() {
            // The fs server may have another way to the disk; if not, it waits as it always did.
            self.give_up(|_| true);
        }
        self.again.pop_front().map(Outcome::Again)
    }

    /// What is under way of this inode, or of all, is to be read again.
    pub fn recalled(&mut self, ino: Option<u64>) {
        self.give_up(|asked| ino.is_none_or(|ino| asked.read.ino == ino));
    }

    fn give_up(&mut self, is_meant: impl Fn(&Asked) -> bool) {
        let given_up = self.reading.extract_if(|_, reading| is_meant(&reading.asked)).map(|(_, reading)| reading.asked);
        self.again.extend(given_up);
        let (given_up, waiting): (VecDeque<_>, _) =
            self.waiting.drain(..).partition(|reading| is_meant(&reading.asked));
        self.waiting = waiting;
        self.again.extend(given_up.into_iter().map(|reading| reading.asked));
    }

    /// Nobody waits for anything any more.
    pub fn forget(&mut self) {
        self.reading.clear();
        self.waiting.clear();
        self.again.clear();
    }

    pub fn may_sleep(&mut self) -> bool {
        let is_quiet = self.session.arm() == Armed::Sleep;
        // Arming may have found the ring lost: what is under way must be given up first, nothing else would wake us for
        // it.
        let is_idle = self.reading.is_empty() && self.waiting.is_empty();
        is_quiet && (is_idle || self.session.is_up()) && self.again.is_empty()
    }

    pub fn awake(&mut self) {
        self.session.on_ready();
    }
}

fn finish(reading: Reading, done: Done) -> Outcome {
    let Reading { asked, places } = reading;
    let mut data = done.data;
    if done.error.is_some() || !has_checksums(&data, &places.crcs) {
        return Outcome::Again(asked);
    }
    data.truncate(places.bytes);
    let reply = ReadReply { bytes: places.bytes as u64, keeps: LEASE, ..ReadReply::default() };
    Outcome::Read(asked.token, data, reply.into())
}

fn has_checksums(data: &Data, crcs: &[u32]) -> bool {
    if data.len() != crcs.len() * BLOCK {
        return false;
    }
    let mut buffer = [0; PIECE];
    (0..data.len()).step_by(PIECE).zip(crcs.chunks(PIECE / BLOCK)).all(|(at, crcs)| {
        buffer.get_mut(..crcs.len() * BLOCK).is_some_and(|piece| {
            let is_copied = data.copy_to(at, piece).is_ok();
            is_copied && piece.chunks_exact(BLOCK).zip(crcs).all(|(block, crc)| crc32fast::hash(block) == *crc)
        })
    })
}

impl Places {
    /// `None` when it makes no sense.
    fn parse(results: &[u64; 4], capacity: u32, data: &[u8]) -> Option<Places> {
        let ReadReply { bytes, spans: count, .. } = ReadReply::from(*results);
        let count = usize::try_from(count).ok().filter(|count| (1..=SPANS_MAX).contains(count))?;
        let (spans, crcs) = data.split_at_checked(count * size_of::<Span>())?;
        let crcs = <[U32]>::ref_from_bytes(crcs).ok()?;
        let mut lengths = <[Span]>::ref_from_bytes(spans).ok()?.iter().map(|span| span.bytes.get());
        let all = lengths.try_fold(0_u64, u64::checked_add)?;
        let fits = all == (crcs.len() * BLOCK) as u64 && all <= u64::from(capacity.next_multiple_of(BLOCK_BYTES));
        let is_last = bytes <= all.min(u64::from(capacity)) && all - bytes < BLOCK as u64;
        let crcs = crcs.iter().map(|crc| crc.get()).collect();
        (fits && is_last).then(|| Places { bytes: bytes as usize, spans: spans.to_vec(), crcs })
    }
}

/// Whether an answer says where the bytes lie.
pub fn is_told(done: &Done) -> bool {
    done.error.is_none() && ReadReply::from(done.results).keeps & PLACES != 0
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn told(spans: &[(u64, u64)], crcs: &[u32]) -> Vec<u8> {
        let spans: Vec<Span> =
            spans.iter().map(|(offset, bytes)| Span { offset: (*offset).into(), bytes: (*bytes).into() }).collect();
        let crcs: Vec<U32> = crcs.iter().map(|crc| U32::new(*crc)).collect();
        [spans.as_bytes(), crcs.as_bytes()].concat()
    }

    #[test]
    fn places_are_taken_when_spans_checksums_and_lengths_agree() {
        let data = told(&[(8192, 8192), (0, 4096)], &[1, 2, 3]);
        let places = Places::parse(&[12_000, 2, 0, PLACES], 1 << 20, &data).expect("agrees");
        assert_eq!((places.bytes, places.crcs, places.spans.len()), (12_000, vec![1, 2, 3], 32));
    }

    #[test]
    fn places_that_make_no_sense_are_refused() {
        let data = told(&[(8192, 8192), (0, 4096)], &[1, 2, 3]);
        let refused = |results: [u64; 4], capacity: u32, data: &[u8]| Places::parse(&results, capacity, data).is_none();
        assert!(refused([12_289, 2, 0, 0], 1 << 20, &data), "more than the blocks hold");
        assert!(refused([8192, 2, 0, 0], 1 << 20, &data), "a block too many");
        assert!(refused([12_000, 2, 0, 0], 8192, &data), "more than was asked for");
        assert!(refused([12_000, 3, 0, 0], 1 << 20, &data), "a span that is none");
        assert!(refused([12_000, u64::MAX, 0, 0], 1 << 20, &data));
        assert!(refused([0, 0, 0, 0], 1 << 20, &[]));
        assert!(refused([12_000, 2, 0, 0], 1 << 20, &data[..data.len() - 1]));
        let endless = told(&[(0, u64::MAX), (0, 4097)], &[1]);
        assert!(refused([4096, 2, 0, 0], 1 << 20, &endless), "a sum beyond all numbers");
    }
}
