//! One program started by `run`: its life, its output and input, who watches it.
//!
//! `Launching` (process exists, not executed) → `Running` → `Ended` (status known, output may still come) → settled
//! (all output delivered, clients told). Only the loop moves it, on events of its descriptors. A launch that failed is
//! `Refused` until its process has ended; then its clients are told and it is forgotten. One that takes too long
//! becomes `Abandoned`: its clients were told, it was killed, and it is forgotten when the kernel lets it end.
//!
//! Output is read only while there is room in the queue of a foreground client ([`Audience`]); it goes to the log
//! first.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use mgmt_api::TerminalSize;
use mgmt_api::stream::Kind;
use rustix::io::Errno;
use rustix::termios::{Winsize, tcsetwinsize};

use crate::jobs::JobTicket;
use crate::log::{Log, now_ms};
use crate::poll::{Interest, Watched};
use crate::stream::{Audience, Client, Gone, QUEUE_BYTES_MAX, Return, Said, Token, log_stream};

/// Clients of one program.
pub const CLIENTS_MAX: usize = 16;
const READ_BYTES: usize = 32 * 1024;
/// Reads per readiness, so that one busy program does not keep the loop.
const READS_MAX: usize = 8;
/// What a terminal takes for the end of input.
const END_OF_TRANSMISSION: u8 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    Launching,
    /// It said that it will not be executed, and is about to end.
    Refused,
    /// Killed before it was executed; nobody waits for it any more.
    Abandoned,
    Running,
    /// Exit status as a shell shows it.
    Ended(u8),
    /// Its keeper ended before it did, and the next one knows only that it was there.
    Lost,
}

impl Life {
    /// It ran, and does so no more.
    pub fn is_over(self) -> bool {
        matches!(self, Life::Ended(_) | Life::Lost)
    }
}

/// Whether the other end of a client's socket is closed in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HungUp {
    Yes,
    No,
}

#[derive(Debug)]
pub struct Output {
    pub fd: Watched,
    pub kind: Kind,
    pub open: bool,
}

/// The program's standard input.
#[derive(Debug)]
pub struct Input {
    pub fd: Watched,
    queue: VecDeque<u8>,
    ending: bool,
}

impl Input {
    pub fn new(fd: Watched) -> Input {
        Input { fd, queue: VecDeque::new(), ending: false }
    }
}

pub struct Program {
    pub id: u32,
    /// In the container; 0 until reported.
    pub pid: u32,
    pub pidfd: Option<Watched>,
    pub command: Vec<String>,
    pub uid: u32,
    pub start_ms: u64,
    /// By when it must have been executed.
    pub launch_limit: Instant,
    pub life: Life,
    pub report: Option<(Watched, Vec<u8>)>,
    /// Where its listener lies, until it is executed.
    pub trapped: Option<OwnedFd>,
    /// Why it was not executed, until those who wait are told.
    pub refusal: Option<crate::refusal::Refusal>,
    /// The connection that waits to hear the PID.
    pub asker: Option<u32>,
    /// It is the far end of a job.
    pub job: Option<JobTicket>,
    /// Of a service: it is a run of it.
    pub instance: Option<String>,
    /// Nobody looks for it later.
    pub is_check: bool,
    pub outputs: Vec<Output>,
    pub input: Option<Input>,
    /// The keeper's end of its terminal: output 0 reads it, this is for input and size.
    pub terminal: Option<OwnedFd>,
    pub log: Option<Log>,
    pub clients: Vec<Client>,
    pub settled: bool,
    /// Why it ended, where its status alone does not say.
    pub cause: Option<String>,
    /// The last signal that people had sent to it, and who.
    pub asked_to: Option<(i32, String)>,
    /// Kills for want of memory before it began.
    pub oom_before: u64,
    pub request: mgmt_api::RunRequest,
}

impl Program {
    /// Delivers what can be delivered, reads what may be read, says the last word when all was said.
    pub fn pump(&mut self) {
        self.flush_clients();
        for at in 0..self.outputs.len() {
            self.read_output(at);
        }
        self.flush_clients();
        self.watch_outputs();
        self.write_input();
        self.try_settle();
    }

    /// Whether its output and its end are kept: not of what only serves somebody else.
    pub fn is_recorded(&self) -> bool {
        self.job.is_none() && !self.is_check
    }

    /// Takes a client that was accepted; it hears the PID and what comes from now on.
    pub fn add_client(&mut self, mut client: Client) {
        client.push(Kind::Started, &self.pid.to_le_bytes());
        self.clients.push(client);
        self.hear_all();
        self.pump();
    }

    /// Takes what a client said. `hung_up`: it will not take anything any more either.
    pub fn hear(&mut self, number: u32, hung_up: HungUp) {
        let Some(at) = self.clients.iter().position(|client| client.number == number) else { return };
        match self.clients.get_mut(at).map(Client::listen) {
            Some(Ok(said)) => self.obey_all(number, said),
            Some(Err(gone)) => self.part_client(at, gone),
            None => (),
        }
        let over = |client: &Client| client.number == number && client.is_silent() && hung_up == HungUp::Yes;
        if let Some(at) = self.clients.iter().position(over) {
            self.lose_client(at);
        }
        self.pump();
    }

    /// The client of a session whose connection broke, or is about to.
    pub fn client_of(&mut self, token: Token) -> Option<&mut Client> {
        self.clients.iter_mut().find(|client| client.has_session(token))
    }

    /// Until when the first of its clients that are away is waited for.
    pub fn awaits_client_until(&self) -> Option<Instant> {
        self.clients.iter().filter_map(Client::away_until).min()
    }

    /// Clients that did not come back in time have left.
    pub fn lose_late_clients(&mut self, now: Instant) {
        let is_late = |client: &Client| client.away_until().is_some_and(|limit| now >= limit);
        while let Some(at) = self.clients.iter().position(is_late) {
            self.lose_client(at);
        }
        self.pump();
    }

    /// Whether somebody waits to hear what becomes of it.
    pub fn is_awaited(&self) -> bool {
        matches!(self.life, Life::Launching | Life::Refused)
    }

    /// One that an earlier keeper started. Its status is unknown when nobody saw its end.
    pub fn earlier(id: u32, process: mgmt_api::Process, log: Log) -> Program {
        let terminal = process.terminal.then_some(TerminalSize { rows: 0, columns: 0 });
        Program {
            id,
            pid: process.pid,
            pidfd: None,
            uid: process.uid,
            start_ms: process.start_ms,
            launch_limit: Instant::now(),
            life: process.exit.map_or(Life::Lost, Life::Ended),
            report: None,
            trapped: None,
            refusal: None,
            asker: None,
            job: None,
            instance: None,
            is_check: false,
            outputs: Vec::new(),
            input: None,
            terminal: None,
            log: Some(log),
            clients: Vec::new(),
            settled: true,
            cause: process.cause,
            asked_to: None,
            oom_before: 0,
            request: mgmt_api::RunRequest {
                argv: process.command.iter().cloned().map(mgmt_api::Bytes::from).collect(),
                node: None,
                env: Vec::new(),
                workdir: None,
                root: mgmt_api::RootFs::Host,
                uid: process.uid,
                gid: process.uid,
                terminal,
                interactive: false,
                detach: true,
                unlogged: false,
                user: None,
                ulimits: Vec::new(),
                cap_drop: Vec::new(),
            },
            command: process.command,
        }
    }

    /// Says why it ended, to who watches and in its log.
    pub fn explain(&mut self, cause: &str) {
        let line =
            format!("dvs: the program {} was killed: {cause} (the limit of its container, or of the node)\n", self.pid);
        self.deliver(Kind::Stderr, line.as_bytes());
        self.cause = Some(cause.to_owned());
    }

    /// Sends a signal; one that does not exist or comes too late is nobody's fault.
    pub fn signal(&self, number: i32) {
        if let (Life::Running, Some(pidfd)) = (self.life, &self.pidfd) {
            let _ = sys::child::send_signal(pidfd, number);
        }
    }

    pub fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.terminal {
            let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
            let _ = tcsetwinsize(terminal, size);
        }
    }

    /// Everything that a running program holds is let go; log and record stay.
    fn settle(&mut self, status: u8) {
        self.settled = true;
        self.input = None;
        self.terminal = None;
        for client in &mut self.clients {
            client.push(Kind::Exit, &[status]);
            client.close();
        }
        self.flush_clients();
    }

    /// The last word comes when the process ended and its output so far was read. Output that a background child still
    /// writes goes to the log.
    fn try_settle(&mut self) {
        let Life::Ended(status) = self.life else { return };
        if !self.settled && !self.is_held_back() && !self.outputs.iter().any(|output| output.open && may_read(output)) {
            self.settle(status);
        }
    }

    fn is_held_back(&self) -> bool {
        self.clients.iter().any(|client| client.patience == Audience::Foreground && client.is_full())
    }

    fn read_output(&mut self, at: usize) {
        if matches!(self.life, Life::Launching | Life::Refused | Life::Abandoned) {
            return;
        }
        let mut buffer = vec![0; READ_BYTES];
        for _ in 0..READS_MAX {
            if self.is_held_back() {
                break;
            }
            let Some(output) = self.outputs.get_mut(at).filter(|output| output.open) else { return };
            let kind = output.kind;
            match rustix::io::read(output.fd.as_fd(), buffer.as_mut_slice()) {
                Ok(got) if got > 0 => self.deliver(kind, buffer.get(..got).unwrap_or_default()),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => (),
                // The end of a pipe; EIO is the end of a terminal.
                _ => {
                    output.open = false;
                    let _ = output.fd.set(Interest::Nothing);
                    return;
                }
            }
        }
    }

    /// An output is waited for unless a client holds it back. Decided after the last flush: one that just made room has
    /// sent everything, so nothing of the client's would wake us for what the output still has.
    fn watch_outputs(&mut self) {
        if matches!(self.life, Life::Launching | Life::Refused | Life::Abandoned) {
            return;
        }
        let interest = if self.is_held_back() { Interest::Nothing } else { Interest::Read };
        for output in self.outputs.iter_mut().filter(|output| output.open) {
            let _ = output.fd.set(interest);
        }
    }

    fn deliver(&mut self, kind: Kind, bytes: &[u8]) {
        if let (Some(log), Some(stream)) = (&mut self.log, log_stream(kind)) {
            log.append(stream, bytes, now_ms());
        }
        if self.settled {
            return;
        }
        self.clients.iter_mut().for_each(|client| client.push(kind, bytes));
        // Flushing here lets a quick client stay ahead of its limit.
        self.flush_clients();
        self.clients.retain(|client| client.patience == Audience::Foreground || !client.is_full());
    }

    fn flush_clients(&mut self) {
        let mut at = 0;
        while at < self.clients.len() {
            let before = self.clients.len();
            if let Some(Err(gone)) = self.clients.get_mut(at).map(Client::flush) {
                self.part_client(at, gone);
            }
            at += usize::from(self.clients.len() == before);
        }
    }

    /// A connection ended; a client that may come back keeps its place.
    fn part_client(&mut self, at: usize, gone: Gone) {
        if self.clients.get_mut(at).map(|client| client.part(gone)) == Some(Return::Excluded) {
            self.lose_client(at);
        }
    }

    fn lose_client(&mut self, at: usize) {
        let client = self.clients.remove(at);
        self.miss(client.patience);
    }

    /// A client left. Who ran the program in the foreground was its input; a terminal, and a program that was detached,
    /// stay for whoever attaches next.
    fn miss(&mut self, patience: Audience) {
        if patience == Audience::Foreground && self.terminal.is_none() {
            self.end_input();
        }
    }

    fn obey_all(&mut self, number: u32, said: Vec<Said>) {
        let patience = self.clients.iter().find(|client| client.number == number).map(|client| client.patience);
        for word in said {
            let at = self.clients.iter().position(|client| client.number == number);
            match (word, at) {
                (Said::Parted, Some(at)) => self.part_client(at, Gone::Broken),
                (Said::Farewell, Some(at)) => self.lose_client(at),
                (word, _) => self.obey(word, patience.unwrap_or(Audience::Spectator)),
            }
        }
    }

    /// Takes what came with the request, before the sockets are watched.
    pub fn hear_all(&mut self) {
        let numbers: Vec<u32> = self.clients.iter().map(|client| client.number).collect();
        for number in numbers {
            let Some(client) = self.clients.iter_mut().find(|client| client.number == number) else { continue };
            // What came with the request; the socket itself is heard when it is ready.
            match client.listen() {
                Ok(said) => self.obey_all(number, said),
                Err(gone) => {
                    if let Some(at) = self.clients.iter().position(|client| client.number == number) {
                        self.part_client(at, gone);
                    }
                }
            }
        }
    }

    fn obey(&mut self, word: Said, patience: Audience) {
        match word {
            Said::Left => self.miss(patience),
            Said::Signal(number) => self.signal(number),
            Said::Resize { rows, columns } => self.resize(TerminalSize { rows, columns }),
            Said::Input(bytes) => {
                if let Some(input) = self.input.as_mut().filter(|input| !input.ending) {
                    input.queue.extend(bytes);
                }
            }
            Said::EndOfInput => self.end_input(),
            // Of a client that is not there any more.
            Said::Parted | Said::Farewell => (),
        }
    }

    fn end_input(&mut self) {
        let is_terminal = self.terminal.is_some();
        let Some(input) = &mut self.input else { return };
        if is_terminal {
            // A terminal has no end; it is told one, and stays for who attaches later.
            input.queue.push_back(END_OF_TRANSMISSION);
        } else {
            input.ending = true;
        }
    }

    fn write_input(&mut self) {
        if matches!(self.life, Life::Launching | Life::Refused | Life::Abandoned) {
            return;
        }
        let Some(input) = &mut self.input else { return };
        let mut closed = false;
        while !input.queue.is_empty() {
            let (front, _) = input.queue.as_slices();
            match rustix::io::write(input.fd.as_fd(), front) {
                Ok(written) => drop(input.queue.drain(..written)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => (),
                // The program closed its input: what comes is thrown away, as a shell would be told by SIGPIPE.
                Err(_) => {
                    closed = true;
                    break;
                }
            }
        }
        let full = input.queue.len() >= QUEUE_BYTES_MAX;
        let waiting = !input.queue.is_empty();
        if closed || (input.ending && !waiting) {
            self.input = None;
        } else {
            let _ = input.fd.set(Interest::of(false, waiting));
        }
        for client in &mut self.clients {
            client.hold_input(full && !closed);
        }
        self.flush_clients();
    }
}

/// Whether a read would give something (data or the end) at once.
fn may_read(output: &Output) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(&output.fd, PollFlags::IN)], Some(&now)), Ok(1))
}

/// Makes a descriptor non-blocking.
pub fn unblock(fd: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}
