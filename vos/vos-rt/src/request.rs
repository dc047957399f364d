//! One request of a client, which is at the same time the promise to answer it.
//!
//! A [`Request`] may be sent to any thread. It is answered once, by [`Request::reply`], [`Request::answer`],
//! [`Request::fail`] or [`Request::refuse`]; one that is dropped unanswered answers `EIO`, so that a bug leaves no
//! client waiting for ever. Only a server that is ending drops requests silently: its successor is asked again. Answers
//! go straight into the ring: the answering thread needs neither the loop nor a wake-up of it.
//!
//! The request's bytes lie in memory that the client may change at any time: [`Request::data`] copies them out once,
//! and only the copy may be parsed. Bulk data goes between a file and the arena without a copy here.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use abi::Endpoint;
use abi::ring::{Completion, Submission};
use ipc::{Arena, RingServer};
use rustix::io::Errno;
use sessions::{Mark, Reply};
use vos_api::Unreadable;

/// Names one ring of one client within one life of the server. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u64);

/// The server's end of one ring, shared by the loop and by the requests that are not answered yet.
pub(crate) struct RingCell {
    pub(crate) ring: RingServer,
    pub(crate) arena: Arena,
    pub(crate) from: Endpoint,
    /// The server's incarnation, told in every completion.
    pub(crate) epoch: u64,
    pub(crate) life: Arc<Life>,
}

/// How far the server has come with its own end.
#[derive(Debug, Default)]
pub(crate) struct Life(AtomicU8);

impl Life {
    /// Answers are given, dropped requests are left to the successor.
    pub(crate) fn end(&self) {
        self.0.fetch_max(1, Ordering::AcqRel);
    }

    /// As if the process had been killed: nothing is answered any more.
    pub(crate) fn cut(&self) {
        self.0.fetch_max(2, Ordering::AcqRel);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.0.load(Ordering::Acquire) > 1
    }
}

impl RingCell {
    pub(crate) fn complete(&self, completion: &Completion) {
        if self.life.is_cut() {
            return;
        }
        // A ring that is gone takes no answer: the client asks again over a new one.
        let _ = self.ring.complete(completion);
        self.ring.publish();
    }
}

/// A validated submission and the duty to answer it.
pub struct Request {
    submission: Submission,
    client: ClientId,
    session: u64,
    ring: Arc<RingCell>,
    is_answered: bool,
}

impl Request {
    pub(crate) fn new(submission: Submission, client: ClientId, session: u64, ring: Arc<RingCell>) -> Request {
        Request { submission, client, session, ring, is_answered: false }
    }

    pub fn submission(&self) -> &Submission {
        &self.submission
    }

    pub fn op(&self) -> u16 {
        self.submission.op
    }

    pub fn flags(&self) -> u16 {
        self.submission.flags
    }

    pub fn args(&self) -> [u64; 3] {
        self.submission.args
    }

    /// Position in the session, 0 for an operation that may be repeated freely.
    pub fn sequence(&self) -> u64 {
        self.submission.sequence
    }

    pub fn client(&self) -> ClientId {
        self.client
    }

    /// The session number the client said HELLO with.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Which operation of which session it is, if it is part of one.
    pub fn mark(&self) -> Option<Mark> {
        (self.sequence() != 0).then(|| Mark { session: self.session, sequence: self.sequence() })
    }

    /// Who sent it, as the broker says.
    pub fn from(&self) -> Endpoint {
        self.ring.from
    }

    /// Bytes the client sent along.
    pub fn out_bytes(&self) -> u32 {
        self.submission.out_bytes
    }

    /// Bytes the client has room for.
    pub fn in_capacity(&self) -> u32 {
        self.submission.in_capacity
    }

    /// A copy of the request's bytes: what is parsed must not change any more.
    pub fn data(&self) -> Vec<u8> {
        let bytes = self.submission.out_bytes;
        let place = self.place(0, bytes as usize, bytes).ok();
        place.and_then(|place| self.ring.arena.to_vec(place, bytes as usize).ok()).unwrap_or_default()
    }

    /// Copies the request's bytes from `at` on. `EINVAL` when they end before `into` is full.
    pub fn data_into(&self, at: u32, into: &mut [u8]) -> Result<(), Errno> {
        let place = self.place(at, into.len(), self.submission.out_bytes)?;
        self.ring.arena.copy_out(place, into).map_err(|_| Errno::INVAL)
    }

    /// Puts reply data `at` bytes after the beginning. `ERANGE` when the client has no room for it.
    pub fn put(&self, at: u32, data: &[u8]) -> Result<(), Errno> {
        let place = self.place(at, data.len(), self.submission.in_capacity).map_err(|_| Errno::RANGE)?;
        self.ring.arena.copy_in(place, data).map_err(|_| Errno::RANGE)
    }

    /// Reads from a file straight into the reply data, without a copy. Returns the bytes read, fewer at the file's end.
    pub fn put_from_file(&self, at: u32, file: impl AsFd, offset: u64, bytes: u32) -> Result<u32, Errno> {
        let place = self.place(at, bytes as usize, self.submission.in_capacity).map_err(|_| Errno::RANGE)?;
        let mut done = 0;
        while done < bytes {
            let (to, rest) = (place + done as usize, (bytes - done) as usize);
            match self.ring.arena.read_from_fd(file.as_fd(), offset + u64::from(done), to, rest) {
                Ok(0) => break,
                Ok(got) => done += got as u32,
                Err(error) => retry_interrupted(error)?,
            }
        }
        Ok(done)
    }

    /// Where `bytes` of reply data go, `at` bytes after the beginning. `ERANGE` when the client has no room for them.
    pub fn room(&self, at: u32, bytes: u32) -> Result<Room, Errno> {
        let place = self.place(at, bytes as usize, self.submission.in_capacity).map_err(|_| Errno::RANGE)?;
        Ok(Room { arena: self.ring.arena.clone(), at: place, bytes })
    }

    /// As [`Request::put_from_file`], but only if all of it is in the page cache, so that a loop may call it. False
    /// when somebody who may wait must do it.
    pub fn put_cached_from_file(&self, at: u32, file: impl AsFd, offset: u64, bytes: u32) -> Result<bool, Errno> {
        let place = self.place(at, bytes as usize, self.submission.in_capacity).map_err(|_| Errno::RANGE)?;
        let got = self.ring.arena.read_cached_from_fd(file, offset, place, bytes as usize);
        Ok(got.is_ok_and(|got| got == bytes as usize))
    }

    /// Writes the request's bytes straight to a file.
    pub fn data_to_file(&self, at: u32, file: impl AsFd, offset: u64, bytes: u32) -> Result<(), Errno> {
        let place = self.place(at, bytes as usize, self.submission.out_bytes)?;
        let mut done = 0;
        while done < bytes {
            let (from, rest) = (place + done as usize, (bytes - done) as usize);
            match self.ring.arena.write_to_fd(file.as_fd(), offset + u64::from(done), from, rest) {
                Ok(0) => return Err(Errno::IO),
                Ok(got) => done += got as u32,
                Err(error) => retry_interrupted(error)?,
            }
        }
        Ok(())
    }

    /// Success: `in_bytes` of reply data were put.
    pub fn reply(mut self, words: impl Into<[u64; 4]>, in_bytes: u32) {
        self.complete(0, words.into(), in_bytes);
    }

    /// It is no operation of this server.
    pub fn refuse(self, why: Unreadable) {
        self.fail(Errno::from_raw_os_error(vos_api::Errno::from(why).number() as i32));
    }

    /// Failure with a Linux errno.
    pub fn fail(mut self, errno: Errno) {
        self.complete(errno.raw_os_error() as u32, [0; 4], 0);
    }

    /// Success or failure as `reply` says, data included.
    pub fn answer(mut self, reply: &Reply) {
        match self.put(0, &reply.data) {
            Ok(()) => self.complete(reply.status, reply.results, reply.data.len() as u32),
            // A repetition with less room than the first time gets the outcome without the data.
            Err(_) => self.complete(reply.status, reply.results, 0),
        }
    }

    fn complete(&mut self, status: u32, results: [u64; 4], in_bytes: u32) {
        if std::mem::replace(&mut self.is_answered, true) {
            return;
        }
        self.ring.complete(&Completion {
            tag: self.submission.tag,
            status,
            sequence: self.submission.sequence,
            in_bytes: in_bytes.min(self.submission.in_capacity),
            reserved: 0,
            epoch: self.ring.epoch,
            results,
        });
    }

    /// Arena offset of `at`, when `bytes` from there on lie within `limit`.
    fn place(&self, at: u32, bytes: usize, limit: u32) -> Result<usize, Errno> {
        let end = (at as usize).checked_add(bytes).ok_or(Errno::INVAL)?;
        if end > limit as usize {
            return Err(Errno::INVAL);
        }
        Ok(self.submission.arena_offset as usize + at as usize)
    }
}

/// A part of a client's memory, for reply data. It stays mapped as long as this value lives.
#[derive(Debug)]
pub struct Room {
    pub(crate) arena: Arena,
    pub(crate) at: usize,
    pub(crate) bytes: u32,
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.ring.life.is_ending() {
            return;
        }
        self.complete(Errno::IO.raw_os_error() as u32, [0; 4], 0);
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("client", &self.client).field("submission", &self.submission).finish()
    }
}

/// Answers `request` and everything in `others` with the same reply.
pub fn answer_all(request: Request, others: Vec<Request>, reply: &Reply) {
    others.into_iter().chain([request]).for_each(|request| request.answer(reply));
}

fn retry_interrupted(error: std::io::Error) -> Result<(), Errno> {
    match Errno::from_io_error(&error) {
        Some(Errno::INTR) => Ok(()),
        Some(errno) => Err(errno),
        None => Err(Errno::IO),
    }
}
