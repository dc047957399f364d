//! The program's parent on its node.
//!
//! Streams have a thread each, which asks the deputy or tells it; so nothing is read of the deputy's before the program
//! has room, and the program waits as soon as whoever reads its output does.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use abi::{Endpoint, IpcError};
use ipc::{Port, RingClient, Wait};
use libvos::{BlockingSession, Connect, Identity, Op, SharedPort, Size, Started};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use vos_api::jobs::{
    AHEAD, DESCRIPTION_BYTES_MAX, Describe, Description, Half, News, Next, ORDER_RESIZE, ORDER_SIGNAL, PIECE_BYTES_MAX,
    Read,
};
use vos_api::jobs::{JobFile, STREAMS_MAX, Say, Seek, Shut, StreamKind, Write};
use vos_api::{Encoded, Operation};

use crate::absence::Absence;
use crate::door::{BROKER, FarEndOrder, OtherNode};
use crate::nursery::Nursery;
use crate::streams::Bulk;
use crate::terminal::{Likeness, resize};
use crate::tree::TreeFiles;

/// Room for the requests of each half of each stream that reads, for one of each that writes, and a few besides: who
/// has one under way needs no room for another.
const SIZE: Size = Size { entries: 128, arena_bytes: 16 << 20 };
const _: () = assert!(SIZE.arena_bytes as usize >= (STREAMS_MAX * (AHEAD + 1) + 4) * PIECE_BYTES_MAX as usize);
const _: () = assert!(SIZE.entries as usize >= STREAMS_MAX * 2 * AHEAD);
#[derive(Debug, thiserror::Error)]
pub enum FarError {
    #[error("the kernel made no process for the program")]
    Fork(#[source] io::Error),
    #[error("the container's broker gives no endpoint")]
    Port(#[source] IpcError),
    #[error("there can be no ring to the deputy")]
    Session(#[source] io::Error),
    #[error("the deputy says what no deputy says")]
    Deputy,
    #[error("this process cannot have what a far end needs")]
    System(#[from] io::Error),
}

/// A far end that has not heard yet what to run.
pub struct FarEnd {
    nursery: Nursery,
    likeness: Result<Option<Likeness>, Errno>,
    order: FarEndOrder,
}

impl FarEnd {
    /// Of this process, which has one thread.
    ///
    /// # Errors
    /// The kernel makes no process.
    pub fn new(order: FarEndOrder) -> Result<FarEnd, FarError> {
        // The kernel stops no program of a group that has no parent in its session. Who leads one already has it.
        let _ = rustix::process::setsid();
        // Only who is forked afterwards has it for its own.
        let likeness = order.with_terminal.then(Likeness::new).transpose();
        let nursery = Nursery::new().map_err(FarError::Fork)?;
        // It leads the terminal's session, and says its last word when that has hung up.
        sys::child::inherit_signals(1 << (libc::SIGHUP - 1) | 1 << (libc::SIGPIPE - 1), 0);
        Ok(FarEnd { nursery, likeness, order })
    }

    /// Until the program has ended, and the deputy knows how. Does not come back when the deputy ends first: then the
    /// program is killed, and this process ends.
    /// `dir`: `/run/dvs`, where the container's broker listens and its nodes are told.
    ///
    /// # Errors
    /// The program was not begun.
    pub fn run(self, dir: &Path) -> Result<(), FarError> {
        let FarEndOrder { deputy, token, origin, .. } = self.order;
        let child = Child { pid: Pid::from_raw(self.nursery.pid as i32), process: self.nursery.process.try_clone()? };
        let program = Arc::new(Mutex::new(Some(child)));
        let port = SharedPort::new(Port::connect(&dir.join(BROKER), None).map_err(FarError::Port)?);
        let node = OtherNode::new(dir, origin);
        let absence = Absence::new(node);
        let connect = Faithful { port, deputy, program: Arc::clone(&program), absence };
        let identity = Identity { session: Some(token), ..Identity::default() };
        let session = BlockingSession::open(Box::new(connect), SIZE, identity).map_err(FarError::Session)?;
        let deputy = Asker { session, program: Arc::clone(&program) };

        let description = deputy.describe()?;
        let what = Description::decode(&description).map_err(|_| FarError::Deputy)?;
        let mut streams = Vec::new();
        let mut likeness = None;
        let mut screen = None;
        if let Some(like) = &what.terminal {
            let begun = self.likeness.and_then(|likeness| likeness.ok_or(Errno::NOTTY));
            match begun.and_then(|likeness| likeness.be_like(like)) {
                Ok(Likeness { master, slave }) => {
                    screen = Some(Arc::new(master.try_clone()?));
                    likeness = Some((Some(master), slave));
                }
                Err(why) => {
                    news_of_refusal(&deputy, why);
                    return Ok(());
                }
            }
        }
        let mut files = TreeFiles::default();
        for (number, stream) in (0..).zip(&what.streams) {
            let same = match stream.file {
                JobFile::Same(of) => streams.get(of as usize).map(|of: &Pipes| of.theirs.try_clone()).transpose()?,
                _ => files.open(number, &stream.file),
            };
            streams.push(match (&mut likeness, same) {
                (Some((master, slave)), _) if stream.kind.is_terminal() => {
                    Pipes::of_terminal(stream.kind, master.take(), slave)?
                }
                (_, Some(theirs)) => Pipes { theirs, ours: Ours::default() },
                _ => Pipes::new(stream.kind)?,
            });
        }
        drop(likeness);
        let (theirs, ours): (Vec<_>, Vec<_>) = streams.into_iter().map(|pipes| (pipes.theirs, pipes.ours)).unzip();
        let mut news = Teller { deputy: deputy.clone(), said: 0 };
        let (pid, process) = match self.nursery.become_program(&description, &theirs) {
            Ok(begun) => begun,
            Err(why) => {
                news.say(News::Refused, why.raw_os_error() as u64);
                return Ok(());
            }
        };
        drop(theirs);
        let pid = Pid::from_raw(pid as i32).ok_or(FarError::Deputy)?;
        news.say(News::Began, pid.as_raw_nonzero().get() as u64);

        let (asked, held) = (deputy.clone(), process);
        thread("orders", move || asked.obey(pid, &held, screen.as_deref()))?;
        let over = Arc::new(sys::eventfd::create()?);
        let mut outputs = Vec::new();
        for (number, ours) in (0..).zip(ours) {
            if let Some(file) = ours.input {
                let asked = deputy.clone();
                thread(&format!("in-{number}"), move || asked.feed(number, file))?;
            }
            if let Some(file) = ours.output {
                let (asked, over) = (deputy.clone(), Arc::clone(&over));
                outputs.push(thread(&format!("out-{number}"), move || asked.drain(number, file, &over))?);
            }
        }
        let (last, value) = watch(pid, &mut news)?;
        // Its number may be another's from now on.
        program.lock().take();
        sys::eventfd::signal(&*over);
        for output in outputs {
            let _ = output.join();
        }
        files.tell_where_they_stand(&deputy);
        news.say(last, value);
        Ok(())
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// Says that it stopped and goes on, until it has ended.
fn watch(pid: Pid, news: &mut Teller) -> io::Result<(News, u64)> {
    loop {
        let status = match waitpid(Some(pid), WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
            Ok(Some((_, status))) => status,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(cause) => return Err(cause.into()),
        };
        let number = |signal: i32| u64::from(signal.unsigned_abs());
        if let Some(signal) = status.stopping_signal() {
            news.say(News::Stopped, number(signal));
        } else if status.continued() {
            news.say(News::Continued, 0);
        } else if let Some(code) = status.exit_status() {
            return Ok((News::Exited, number(code)));
        } else if let Some(signal) = status.terminating_signal() {
            return Ok((News::Killed, number(signal)));
        }
    }
}

/// Both ends of a stream on this node.
struct Pipes {
    theirs: OwnedFd,
    ours: Ours,
}

#[derive(Default)]
struct Ours {
    /// What is written here the program reads.
    input: Option<OwnedFd>,
    output: Option<OwnedFd>,
}

impl Pipes {
    fn new(kind: StreamKind) -> io::Result<Pipes> {
        let (theirs, input, output) = match kind {
            StreamKind::Input => {
                let (out, input) = pipe_with(PipeFlags::CLOEXEC)?;
                (out, Some(input), None)
            }
            StreamKind::Output => {
                let (output, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
                (theirs, None, Some(output))
            }
            StreamKind::Both => {
                use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
                let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
                (theirs, Some(ours.try_clone()?), Some(ours))
            }
            // Without a likeness, which a description does not say.
            StreamKind::Null | StreamKind::Terminal | StreamKind::Screen => {
                use rustix::fs::{Mode, OFlags, open};
                (open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?, None, None)
            }
        };
        Ok(Pipes { theirs, ours: Ours { input, output } })
    }

    /// The first one carries the bytes of all.
    fn of_terminal(kind: StreamKind, master: Option<OwnedFd>, slave: &OwnedFd) -> io::Result<Pipes> {
        let is_read = kind == StreamKind::Terminal;
        let input = master.as_ref().filter(|_| is_read).map(OwnedFd::try_clone).transpose()?;
        Ok(Pipes { theirs: slave.try_clone()?, ours: Ours { input, output: master } })
    }
}

/// The program, as long as it may be killed.
type Program = Arc<Mutex<Option<Child>>>;

struct Child {
    pid: Option<Pid>,
    process: OwnedFd,
}

/// Either end's death ends the other.
fn end_with_the_deputy(program: &Program) -> ! {
    if let Some(child) = &*program.lock() {
        // Before it leads a group of its own it is nothing but itself.
        let _ = child.pid.map(|pid| kill_process_group(pid, Signal::KILL));
        let _ = sys::pidfd::signal(&child.process, Signal::KILL);
    }
    sys::child::exit_now(1)
}

/// Opens rings to the deputy as long as there is one.
struct Faithful {
    port: SharedPort,
    deputy: Endpoint,
    program: Program,
    absence: Absence,
}

impl Connect for Faithful {
    fn connect(&mut self) -> Result<RingClient, IpcError> {
        let spec = ipc::RingSpec { entries: SIZE.entries, arena_bytes: SIZE.arena_bytes };
        let ring = self.port.with(|port| port.open_ring(self.deputy, spec, Wait::NoWait));
        match &ring {
            Ok(_) => self.absence.is_there(),
            Err(error) if self.absence.is_for_good(*error) => end_with_the_deputy(&self.program),
            Err(_) => {}
        }
        ring
    }
}

#[derive(Clone)]
pub struct Asker {
    session: BlockingSession,
    program: Program,
}

fn news_of_refusal(deputy: &Asker, why: Errno) {
    Teller { deputy: deputy.clone(), said: 0 }.say(News::Refused, why.raw_os_error() as u64);
}

struct Teller {
    deputy: Asker,
    said: u64,
}

impl Teller {
    fn say(&mut self, news: News, value: u64) {
        self.said += 1;
        let _ = self.deputy.ask(Say { news, number: self.said, value }, 0);
    }
}

impl Asker {
    fn ask<'a, O: Operation<'a>>(&self, operation: O, room: u32) -> Result<(O::Reply, Vec<u8>), Errno> {
        self.heed(self.session.ask(operation, room))
    }

    /// A deputy that does not know this far end is another one.
    fn heed<T>(&self, answer: Result<T, Errno>) -> Result<T, Errno> {
        if matches!(answer, Err(Errno::STALE)) {
            end_with_the_deputy(&self.program);
        }
        answer
    }

    /// Where a file of the tree stands.
    pub fn seek(&self, stream: u32, at: u64) {
        let _ = self.ask(Seek { stream, at }, 0);
    }

    fn describe(&self) -> Result<Vec<u8>, FarError> {
        let mut all = Vec::new();
        loop {
            let (whole, piece) =
                self.ask(Describe { at: all.len() as u64 }, PIECE_BYTES_MAX).map_err(|_| FarError::Deputy)?;
            all.extend_from_slice(&piece);
            if whole.bytes > DESCRIPTION_BYTES_MAX as u64 || (piece.is_empty() && whole.bytes > all.len() as u64) {
                return Err(FarError::Deputy);
            }
            if all.len() as u64 >= whole.bytes {
                return Ok(all);
            }
        }
    }

    fn obey(&self, pid: Pid, process: &OwnedFd, screen: Option<&OwnedFd>) {
        let mut after = 0;
        while let Ok((order, _)) = self.ask(Next { after }, 0) {
            after = order.number;
            if order.kind == ORDER_RESIZE {
                screen.into_iter().for_each(|screen| resize(screen, order.value));
                continue;
            }
            let number = i32::try_from(order.value).unwrap_or(0);
            let Some(signal) = Signal::from_named_raw(number) else { continue };
            // A program that ended keeps its number until this process has waited for it, and so does its group.
            let held = self.program.lock();
            if held.is_none() {
                return;
            }
            let _ = if order.kind == ORDER_SIGNAL {
                sys::pidfd::signal(process, signal)
            } else {
                kill_process_group(pid, signal).map_err(io::Error::from)
            };
        }
    }

    /// What the deputy reads is written for the program.
    fn feed(&self, stream: u32, file: OwnedFd) {
        let mut line = Window::new(self.clone());
        let (mut piece, mut bulk) = (0, Bulk::default());
        let mut room = vec![0; PIECE_BYTES_MAX as usize];
        loop {
            while line.under_way.len() < if bulk.is_bulk { AHEAD } else { 1 } {
                let asked = Read { stream, piece }.encode();
                match line.start(Op::of(&asked, <Read as Operation<'_>>::CLASS, PIECE_BYTES_MAX)) {
                    Ok(true) => piece += 1,
                    Ok(false) => break,
                    Err(_) => return shut_writing(&file),
                }
            }
            let bytes = line.next_into(&mut room).unwrap_or(0);
            if bytes == 0 {
                return shut_writing(&file);
            }
            bulk.heed(bytes, &file);
            let mut rest = room.get(..bytes).unwrap_or_default();
            while !rest.is_empty() {
                match write(&file, rest) {
                    Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                    Err(Errno::INTR) => {}
                    Err(_) => {
                        let _ = self.ask(Shut { half: Half::Reading, stream }, 0);
                        return;
                    }
                }
            }
        }
    }

    /// What the program writes goes to the deputy, also what lies there when it has ended.
    fn drain(&self, stream: u32, file: OwnedFd, over: &OwnedFd) {
        let mut line = Window::new(self.clone());
        let (mut at, mut bytes) = (0, vec![0; PIECE_BYTES_MAX as usize]);
        let mut bulk = Bulk::default();
        loop {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut fds = [PollFd::new(&file, PollFlags::IN), PollFd::new(over, PollFlags::IN)];
            match poll(&mut fds, (!line.under_way.is_empty()).then_some(&at_once)) {
                // Whoever writes next shall hear how it went.
                Ok(0) => match line.next() {
                    Ok(_) => continue,
                    Err(_) => return,
                },
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return,
            }
            if fds.first().is_none_or(|file| file.revents().is_empty()) {
                return line.settle();
            }
            match read(&file, bytes.as_mut_slice()) {
                Ok(0) => break,
                Ok(got) => {
                    let piece = bytes.get(..got).unwrap_or_default();
                    let sent = Encoded { data: piece.into(), ..Write { stream, at }.encode() };
                    if line.send(Op::of(&sent, <Write as Operation<'_>>::CLASS, 0)).is_err() {
                        // Whoever writes next is told so.
                        return;
                    }
                    at += got as u64;
                    bulk.heed(got, &file);
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => break,
            }
        }
        line.settle();
        let _ = self.ask(Shut { half: Half::Writing, stream }, 0);
    }
}

/// Requests of one half of a stream that are under way, in their order.
struct Window {
    deputy: Asker,
    under_way: VecDeque<Started>,
}

impl Window {
    fn new(deputy: Asker) -> Window {
        Window { deputy, under_way: VecDeque::new() }
    }

    /// False: there is no room besides those that are under way.
    fn start(&mut self, op: Op<'_>) -> Result<bool, Errno> {
        let session = &self.deputy.session;
        let started = if self.under_way.is_empty() { session.start(op).map(Some) } else { session.try_start(op) };
        let started = self.deputy.heed(started)?;
        let is_started = started.is_some();
        self.under_way.extend(started);
        Ok(is_started)
    }

    /// Waits for room, [`AHEAD`] are under way at most.
    fn send(&mut self, op: Op<'_>) -> Result<(), Errno> {
        while self.under_way.len() >= AHEAD || !self.start(op)? {
            self.next()?;
        }
        Ok(())
    }

    /// Until all are answered, or one of them with an error.
    fn settle(mut self) {
        while !self.under_way.is_empty() && self.next().is_ok() {}
    }

    /// Until the oldest one is answered.
    fn next(&mut self) -> Result<(), Errno> {
        self.next_into(&mut []).map(drop)
    }

    /// How many bytes of reply data came with the answer of the oldest one.
    fn next_into(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let oldest = self.under_way.pop_front().ok_or(Errno::INVAL)?;
        self.deputy.heed(oldest.wait_into(into)).map(|(_, bytes)| bytes)
    }
}

/// A socket's other half stays.
fn shut_writing(file: &OwnedFd) {
    let _ = rustix::net::shutdown(file, rustix::net::Shutdown::Write);
}
