//! Bytes between two connected streams, both ways, until both ways are over.
//!
//! Nothing is kept of a connection on which nothing waits: what one side sends goes through a buffer of the gate's, and
//! only what the other side does not take at once is put aside, with nothing further read meanwhile. So the slower side
//! holds up the faster one as over one connection. The end of one way is passed on as such, the other goes on; a
//! connection that is reset resets the other.
//!
//! A way on which much comes is not copied: the kernel moves its pages through a pipe (`splice(2)`), which costs a
//! pipe, and two calls where a small message takes two as well. So a way has a pipe from its first whole buffer until
//! nothing comes any more, if there is one to be had ([`Pipes`]).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::names::Sieve;

/// Of what is read at once, and so the most that is put aside for a way. Whoever makes many connections and takes
/// nothing from them fills so much of each.
pub const CHUNK_BYTES: usize = 16 << 10;
/// Read for one way in a row; then others have their turn.
const CHUNKS_IN_A_ROW: usize = 16;
/// Of a pipe. An unprivileged user has 64 MiB of pipes before further ones are small.
const PIPE_BYTES: usize = 512 << 10;
/// At a time: further ways are copied.
const PIPES_MAX: usize = 64;

/// Pipes that ways have had and do not need now; of those that there are, the rest.
#[derive(Debug, Default)]
pub struct Pipes {
    idle: Vec<Pipe>,
    made: usize,
}

#[derive(Debug)]
struct Pipe {
    takes: OwnedFd,
    gives: OwnedFd,
}

impl Pipes {
    fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.idle.pop() {
            return Some(pipe);
        }
        if self.made >= PIPES_MAX {
            return None;
        }
        let (gives, takes) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // One that is small does it as well.
        let _ = fcntl_setpipe_size(&takes, PIPE_BYTES);
        self.made += 1;
        Some(Pipe { takes, gives })
    }

    /// Empty ones only.
    fn give_back(&mut self, pipe: Pipe) {
        self.idle.push(pipe);
    }

    /// One that ended with something in it.
    fn lose(&mut self, pipe: Option<Pipe>) {
        self.made -= usize::from(pipe.is_some());
    }
}

/// What all relays of a gate use, one after the other.
#[derive(Debug)]
pub struct Means {
    pub chunk: Box<[u8; CHUNK_BYTES]>,
    pub pipes: Pipes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Client,
    Node,
}

/// How far it got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The kernel says when there is more to do.
    Waits,
    /// There is more, after others had their turn.
    GoesOn,
    /// Both ways are over.
    Over,
}

/// What the kernel says of a side; each change once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Readiness {
    pub comes: bool,
    /// It says nothing more after what came.
    pub ends: bool,
    pub takes: bool,
}

impl Readiness {
    pub fn and(self, other: Readiness) -> Readiness {
        Readiness { comes: self.comes | other.comes, ends: self.ends | other.ends, takes: self.takes | other.takes }
    }
}

#[derive(Debug)]
struct Way {
    /// What was read and not taken yet, from `sent` on.
    rest: Vec<u8>,
    sent: usize,
    /// In place of the buffer.
    pipe: Option<Pipe>,
    in_pipe: usize,
    state: WayState,
    /// As far as is known; the kernel says when it is so again.
    comes: bool,
    takes: bool,
    /// The end lies behind what came, so a short read does not say that there is nothing more.
    ends: bool,
    /// What comes are messages to or from a name server.
    sieve: Option<Sieve>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WayState {
    Open,
    /// Nothing more comes; what is put aside is still to go.
    Ending,
    Over,
}

#[derive(Debug)]
pub struct Relay {
    client: OwnedFd,
    node: OwnedFd,
    to_node: Way,
    to_client: Way,
}

impl Relay {
    /// `first` goes to the node before anything that the client says.
    pub fn new(client: OwnedFd, node: OwnedFd, first: Vec<u8>) -> Relay {
        for socket in [&client, &node] {
            // Small answers must not wait for more; a side that vanished without a word must not stay for ever.
            let _ = sockopt::set_tcp_nodelay(socket, true);
            let _ = sockopt::set_socket_keepalive(socket, true);
        }
        Relay { client, node, to_node: Way::new(first), to_client: Way::new(Vec::new()) }
    }

    /// To the node's name server, of which nothing of the cluster is learnt.
    pub fn with_sieves(mut self) -> Relay {
        for way in [&mut self.to_node, &mut self.to_client] {
            way.sieve = Some(Sieve::default());
        }
        self
    }

    /// The kernel says so of a side.
    pub fn hear(&mut self, side: Side, readiness: Readiness) {
        let (from, to) = match side {
            Side::Client => (&mut self.to_node, &mut self.to_client),
            Side::Node => (&mut self.to_client, &mut self.to_node),
        };
        from.comes |= readiness.comes | readiness.ends;
        from.ends |= readiness.ends;
        to.takes |= readiness.takes;
    }

    /// Carries what there is.
    ///
    /// # Errors
    /// One side was reset or gave up: [`Relay::end`].
    pub fn pump(&mut self, means: &mut Means) -> io::Result<Progress> {
        let there = self.to_node.pump(&self.client, &self.node, means)?;
        let back = self.to_client.pump(&self.node, &self.client, means)?;
        Ok(match (there, back) {
            (Progress::Over, Progress::Over) => Progress::Over,
            (Progress::GoesOn, _) | (_, Progress::GoesOn) => Progress::GoesOn,
            _ => Progress::Waits,
        })
    }

    fn is_over(&self) -> bool {
        [&self.to_node, &self.to_client].iter().all(|way| way.state == WayState::Over)
    }

    /// Closes both. What is not over ends as a connection that breaks: nobody must take what came for all there is.
    pub fn end(self, means: &mut Means) {
        let is_over = self.is_over();
        let Relay { client, node, to_node, to_client } = self;
        for way in [to_node, to_client] {
            means.pipes.lose(way.pipe);
        }
        if !is_over {
            reset(client);
            reset(node);
        }
    }
}

/// Closes a connection so that the other side sees it break.
pub fn reset(socket: OwnedFd) {
    let _ = sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO));
    drop(socket);
}

impl Way {
    /// Whether there is something to do is found out at first.
    fn new(rest: Vec<u8>) -> Way {
        Way {
            rest,
            sent: 0,
            pipe: None,
            in_pipe: 0,
            state: WayState::Open,
            comes: true,
            takes: true,
            ends: false,
            sieve: None,
        }
    }

    fn pump(&mut self, from: &OwnedFd, to: &OwnedFd, means: &mut Means) -> io::Result<Progress> {
        for _ in 0..CHUNKS_IN_A_ROW {
            if !self.flush(to)? {
                return Ok(Progress::Waits);
            }
            if (!self.comes || self.state != WayState::Open)
                && let Some(pipe) = self.pipe.take()
            {
                means.pipes.give_back(pipe);
            }
            match self.state {
                WayState::Open if !self.comes => return Ok(Progress::Waits),
                WayState::Open => (),
                WayState::Ending => {
                    // Who is gone already needs no end.
                    match shutdown(to, Shutdown::Write) {
                        Ok(()) | Err(Errno::NOTCONN) => self.state = WayState::Over,
                        Err(cause) => return Err(cause.into()),
                    }
                    return Ok(Progress::Over);
                }
                WayState::Over => return Ok(Progress::Over),
            }
            if self.pipe.is_some() {
                self.fill_pipe(from)?;
                continue;
            }
            match recv(from, &mut means.chunk[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.state = WayState::Ending,
                Ok((bytes, _)) => {
                    self.comes = bytes == CHUNK_BYTES || self.ends;
                    let came = means.chunk.get(..bytes).unwrap_or_default();
                    let Some(sieve) = &mut self.sieve else {
                        self.put(to, came)?;
                        if bytes == CHUNK_BYTES {
                            self.pipe = means.pipes.take();
                        }
                        continue;
                    };
                    let passes = sieve.take(came).map_err(|_| io::Error::from(io::ErrorKind::PermissionDenied))?;
                    self.put(to, &passes)?;
                }
                Err(Errno::AGAIN) => self.comes = false,
                Err(Errno::INTR) => (),
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(Progress::GoesOn)
    }

    /// Nothing is put aside when this is called.
    fn put(&mut self, to: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
        let taken = taken(to, bytes)?;
        let rest = bytes.get(taken..).unwrap_or_default();
        self.takes = rest.is_empty();
        self.rest.extend_from_slice(rest);
        Ok(())
    }

    /// Nothing is in it when this is called.
    fn fill_pipe(&mut self, from: &OwnedFd) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match splice(from, None, &pipe.takes, None, PIPE_BYTES, splice_flags()) {
            Ok(0) => self.state = WayState::Ending,
            Ok(bytes) => self.in_pipe = bytes,
            Err(Errno::AGAIN) => self.comes = false,
            Err(Errno::INTR) => (),
            Err(cause) => return Err(cause.into()),
        }
        Ok(())
    }

    /// True: the pipe is empty.
    fn flush_pipe(&mut self, to: &OwnedFd) -> io::Result<bool> {
        while self.in_pipe > 0 && self.takes {
            let Some(pipe) = &self.pipe else { return Err(io::ErrorKind::BrokenPipe.into()) };
            match splice(&pipe.gives, None, to, None, self.in_pipe, splice_flags()) {
                Ok(bytes) => self.in_pipe -= bytes.min(self.in_pipe),
                Err(Errno::AGAIN) => self.takes = false,
                Err(Errno::INTR) => (),
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(self.in_pipe == 0)
    }

    /// True: nothing is left.
    fn flush(&mut self, to: &OwnedFd) -> io::Result<bool> {
        while let Some(rest) = self.rest.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let taken = if self.takes { taken(to, rest)? } else { 0 };
            self.takes = taken == rest.len();
            self.sent += taken;
            if !self.takes {
                return Ok(false);
            }
        }
        if self.sent > 0 {
            // Connections that were full once are many and idle later.
            (self.rest, self.sent) = (Vec::new(), 0);
        }
        self.flush_pipe(to)
    }
}

fn splice_flags() -> SpliceFlags {
    SpliceFlags::MOVE | SpliceFlags::NONBLOCK
}

/// How many of the bytes the socket takes now.
fn taken(to: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match send(to, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => (),
            done => return Ok(done?),
        }
    }
}
