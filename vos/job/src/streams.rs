//! The deputy's streams: a thread each, which reads or writes what the far end asks for.
//!
//! Nothing is read before it is asked for. The last pieces that were read are kept, and what is written is counted, so
//! that a request which comes again over another ring takes and gives the same bytes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use vos_api::jobs::{AHEAD, PIECE_BYTES_MAX};
use vos_rt::Request;

use crate::terminal::OwnTerminal;

/// Requests of a stream that wait for its thread: the far end has some under way, and asks again over each new ring.
const WAITING_MAX: usize = 16 * AHEAD;

/// How often a terminal is looked at that others have, or may take.
const TERMINAL_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A piece of this many bytes is one of many.
const BULK_BYTES: usize = 16 << 10;

/// Whether many bytes pass.
#[derive(Default)]
pub struct Bulk {
    pub is_bulk: bool,
}

impl Bulk {
    /// Pieces of a stream of many bytes are under way before the earlier ones are answered, and its pipe has room for
    /// the largest one. Others keep theirs: a user may have so many bytes in pipes.
    pub fn heed(&mut self, bytes: usize, file: &OwnedFd) {
        if bytes >= BULK_BYTES && !self.is_bulk {
            self.is_bulk = true;
            // What is none, or has more room already, stays as it is.
            if rustix::pipe::fcntl_getpipe_size(file).is_ok_and(|room| room < PIECE_BYTES_MAX as usize) {
                let _ = rustix::pipe::fcntl_setpipe_size(file, PIECE_BYTES_MAX as usize);
            }
        }
    }
}

enum Asked {
    Read(Request, u64),
    Write(Request, u64),
    Over,
}

/// Hands requests to a stream's thread.
#[derive(Clone)]
pub struct Line {
    waiting: Arc<Mutex<VecDeque<Asked>>>,
    bell: Arc<OwnedFd>,
}

impl Line {
    fn new() -> io::Result<Line> {
        Ok(Line { waiting: Arc::default(), bell: Arc::new(sys::eventfd::create()?) })
    }

    fn ask(&self, asked: Asked) {
        let mut waiting = self.waiting.lock();
        // The oldest is of a ring that is gone.
        if waiting.len() >= WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(asked);
        sys::eventfd::signal(&*self.bell);
    }

    pub fn read(&self, request: Request, piece: u64) {
        self.ask(Asked::Read(request, piece));
    }

    pub fn write(&self, request: Request, at: u64) {
        self.ask(Asked::Write(request, at));
    }

    pub fn end(&self) {
        self.ask(Asked::Over);
    }

    fn next(&self) -> Option<Asked> {
        self.waiting.lock().pop_front()
    }

    fn wait(&self, file: Option<&OwnedFd>) -> io::Result<()> {
        self.wait_for(file, None)
    }

    fn wait_for(&self, file: Option<&OwnedFd>, limit: Option<Timespec>) -> io::Result<()> {
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        fds.extend(file.map(|file| PollFd::new(file, PollFlags::IN)));
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
        sys::eventfd::drain(&*self.bell);
        Ok(())
    }
}

/// A stream that the deputy reads.
pub fn reading(name: &str, file: OwnedFd, terminal: Option<Arc<OwnTerminal>>) -> io::Result<Line> {
    let line = Line::new()?;
    let (served, mut reader) = (line.clone(), Reader { file: Some(file), terminal, pieces: Pieces::default() });
    let run = move || while reader.turn(&served).is_ok() {};
    std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(line)
}

/// A stream that the deputy writes.
pub fn writing(name: &str, file: OwnedFd) -> io::Result<Line> {
    let line = Line::new()?;
    let (served, mut writer) =
        (line.clone(), Writer { file: Some(file), at: 0, bytes: Vec::new(), bulk: Bulk::default() });
    let run = move || while writer.turn(&served).is_ok() {};
    std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(line)
}

struct Reader {
    /// Until there is nothing more to read.
    file: Option<OwnedFd>,
    /// If it is one.
    terminal: Option<Arc<OwnTerminal>>,
    pieces: Pieces,
}

/// What is asked for, and what was read last.
#[derive(Default)]
struct Pieces {
    asked: BTreeMap<u64, Request>,
    /// Number of the piece that is read next.
    next: u64,
    /// Those before it; each has room for the largest.
    kept: VecDeque<Piece>,
    bulk: Bulk,
}

struct Piece {
    room: Vec<u8>,
    bytes: usize,
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        self.room.get(..self.bytes).unwrap_or_default()
    }
}

impl Pieces {
    /// Of a piece that is asked for twice the later one counts: the earlier one's ring is gone.
    fn ask(&mut self, request: Request, piece: u64) {
        match piece.checked_sub(self.next) {
            Some(ahead) if ahead < AHEAD as u64 => drop(self.asked.insert(piece, request)),
            Some(_) => request.fail(Errno::INVAL),
            None => {
                let back = usize::try_from(self.next - piece).unwrap_or(usize::MAX);
                match self.kept.len().checked_sub(back).and_then(|at| self.kept.get(at)) {
                    Some(piece) => give(request, piece.bytes()),
                    None => request.fail(Errno::INVAL),
                }
            }
        }
    }

    /// For the next piece: whoever asks for that one has all that came [`AHEAD`] before it.
    fn room(&mut self) -> Vec<u8> {
        let oldest = if self.kept.len() < AHEAD { None } else { self.kept.pop_front() };
        oldest.map_or_else(|| vec![0; PIECE_BYTES_MAX as usize], |piece| piece.room)
    }

    fn answer(&mut self, request: Request, room: Vec<u8>, bytes: usize) {
        let piece = Piece { room, bytes };
        give(request, piece.bytes());
        self.next += 1;
        self.kept.push_back(piece);
    }
}

impl Reader {
    fn turn(&mut self, line: &Line) -> io::Result<()> {
        while let Some(asked) = line.next() {
            match asked {
                Asked::Read(request, piece) => self.pieces.ask(request, piece),
                Asked::Write(request, ..) => request.fail(Errno::INVAL),
                // Whoever writes into it is told.
                Asked::Over => self.file = None,
            }
        }
        let Some(file) = &self.file else {
            for (_, request) in std::mem::take(&mut self.pieces.asked) {
                request.reply([0; 4], 0);
            }
            return line.wait(None);
        };
        let Some(request) = self.pieces.asked.remove(&self.pieces.next) else { return line.wait(None) };
        let is_mine = || self.terminal.as_ref().is_none_or(|terminal| terminal.take());
        if !is_mine() {
            // The kernel says nothing when the shell gives it this process, or a pager gives it back.
            self.pieces.asked.insert(self.pieces.next, request);
            return line.wait_for(None, Some(TERMINAL_LOOK));
        }
        if !has_something(file)? {
            self.pieces.asked.insert(self.pieces.next, request);
            return line.wait(Some(file));
        }
        let mut room = self.pieces.room();
        let most = room.len().min(request.in_capacity() as usize);
        match read(file, room.get_mut(..most).unwrap_or_default()) {
            Ok(0) => {
                request.reply([0; 4], 0);
                self.file = None;
            }
            Ok(got) => {
                self.pieces.bulk.heed(got, file);
                self.pieces.answer(request, room, got);
            }
            Err(Errno::INTR | Errno::AGAIN) => drop(self.pieces.asked.insert(self.pieces.next, request)),
            // Somebody else is in the foreground by now.
            Err(Errno::IO) if !is_mine() => drop(self.pieces.asked.insert(self.pieces.next, request)),
            Err(cause) => request.fail(cause),
        }
        Ok(())
    }
}

fn has_something(file: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(cause) => Err(cause.into()),
    }
}

fn give(request: Request, bytes: &[u8]) {
    match request.put(0, bytes) {
        Ok(()) => request.reply([0; 4], bytes.len() as u32),
        Err(cause) => request.fail(cause),
    }
}

struct Writer {
    file: Option<OwnedFd>,
    at: u64,
    /// Of the request that is carried out.
    bytes: Vec<u8>,
    bulk: Bulk,
}

impl Writer {
    fn turn(&mut self, line: &Line) -> io::Result<()> {
        while let Some(asked) = line.next() {
            match asked {
                Asked::Write(request, at) => match self.write(&request, at) {
                    Ok(()) => request.reply([0; 4], 0),
                    Err(cause) => request.fail(cause),
                },
                Asked::Read(request, _) => request.fail(Errno::INVAL),
                Asked::Over => self.file = None,
            }
        }
        line.wait(None)
    }

    fn write(&mut self, request: &Request, at: u64) -> Result<(), Errno> {
        let gone_before = self.at.checked_sub(at).ok_or(Errno::INVAL)?;
        self.bytes.resize(request.out_bytes().min(PIECE_BYTES_MAX) as usize, 0);
        request.data_into(0, &mut self.bytes)?;
        let mut rest = self.bytes.get(usize::try_from(gone_before).unwrap_or(usize::MAX)..).unwrap_or_default();
        while !rest.is_empty() {
            let file = self.file.as_ref().ok_or(Errno::PIPE)?;
            self.bulk.heed(rest.len(), file);
            match write(file, rest) {
                Ok(written) => {
                    self.at += written as u64;
                    rest = rest.get(written..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                // Somebody else made it so; it is theirs, too.
                Err(Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(file, PollFlags::OUT)], None);
                }
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }
}
