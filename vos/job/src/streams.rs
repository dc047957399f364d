//! The deputy's streams: a thread each, which reads or writes what the far end asks for.
//!
//! Nothing is read before it is asked for. What was read last is kept until the next piece is wanted, and what is
//! written is counted, so that a request which comes again over another ring takes and gives the same bytes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use vos_api::jobs::PIECE_BYTES_MAX;
use vos_rt::Request;

use crate::terminal::OwnTerminal;

/// Requests of a stream that wait for its thread: the far end has one under way, and asks again over each new ring.
const WAITING_MAX: usize = 16;

/// How often a terminal is looked at that others have, or may take.
const TERMINAL_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

enum Asked {
    Read(Request, u64),
    Write(Request, u64, Vec<u8>),
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

    pub fn read(&self, request: Request, at: u64) {
        self.ask(Asked::Read(request, at));
    }

    pub fn write(&self, request: Request, at: u64) {
        let data = request.data();
        self.ask(Asked::Write(request, at, data));
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
    let (served, mut reader) =
        (line.clone(), Reader { file: Some(file), terminal, at: 0, last: Vec::new(), asked: None });
    let run = move || while reader.turn(&served).is_ok() {};
    std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(line)
}

/// A stream that the deputy writes.
pub fn writing(name: &str, file: OwnedFd) -> io::Result<Line> {
    let line = Line::new()?;
    let (served, mut writer) = (line.clone(), Writer { file: Some(file), at: 0 });
    let run = move || while writer.turn(&served).is_ok() {};
    std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(line)
}

struct Reader {
    file: Option<OwnedFd>,
    /// If it is one.
    terminal: Option<Arc<OwnTerminal>>,
    /// Bytes that were read, with those of `last`.
    at: u64,
    last: Vec<u8>,
    asked: Option<Request>,
}

impl Reader {
    fn turn(&mut self, line: &Line) -> io::Result<()> {
        while let Some(asked) = line.next() {
            match asked {
                Asked::Read(request, at) if at == self.at => self.asked = Some(request),
                Asked::Read(request, at) if at.checked_add(self.last.len() as u64) == Some(self.at) => {
                    give(request, &self.last);
                }
                Asked::Read(request, _) | Asked::Write(request, ..) => request.fail(Errno::INVAL),
                // Whoever writes into it is told.
                Asked::Over => self.file = None,
            }
        }
        match (&self.file, self.asked.take()) {
            (Some(file), Some(request)) => {
                if self.terminal.as_ref().is_some_and(|terminal| !terminal.take()) {
                    // The kernel says nothing when the shell gives it this process, or a pager gives it back.
                    self.asked = Some(request);
                    return line.wait_for(None, Some(TERMINAL_LOOK));
                }
                if !has_something(file)? {
                    self.asked = Some(request);
                    return line.wait(Some(file));
                }
                let room = request.in_capacity().min(PIECE_BYTES_MAX) as usize;
                let mut bytes = vec![0; room];
                match read(file, bytes.as_mut_slice()) {
                    Ok(got) => {
                        bytes.truncate(got);
                        self.at += got as u64;
                        give(request, &bytes);
                        if got > 0 {
                            self.last = bytes;
                        }
                    }
                    Err(Errno::INTR | Errno::AGAIN) => self.asked = Some(request),
                    // Somebody else is in the foreground by now.
                    Err(Errno::IO) if self.terminal.as_ref().is_some_and(|terminal| !terminal.take()) => {
                        self.asked = Some(request);
                    }
                    Err(cause) => request.fail(cause),
                }
                Ok(())
            }
            (None, Some(request)) => {
                request.reply([0; 4], 0);
                Ok(())
            }
            (_, None) => line.wait(None),
        }
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
}

impl Writer {
    fn turn(&mut self, line: &Line) -> io::Result<()> {
        while let Some(asked) = line.next() {
            match asked {
                Asked::Write(request, at, data) => match self.write(at, &data) {
                    Ok(()) => request.reply([0; 4], 0),
                    Err(cause) => request.fail(cause),
                },
                Asked::Read(request, _) => request.fail(Errno::INVAL),
                Asked::Over => self.file = None,
            }
        }
        line.wait(None)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Errno> {
        let gone_before = self.at.checked_sub(at).ok_or(Errno::INVAL)?;
        let mut rest = data.get(usize::try_from(gone_before).unwrap_or(usize::MAX)..).unwrap_or_default();
        while !rest.is_empty() {
            let file = self.file.as_ref().ok_or(Errno::PIPE)?;
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
