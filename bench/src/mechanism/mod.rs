//! What is compared: each mechanism has a caller and an echo, which exchange frames of 64 bytes.
//!
//! How the two find each other: by descriptors that the orchestrator hands both (as standard input and output), or by an address that the
//! echo reports once it can be reached.

mod crowd;
mod m3ipc;
mod queue;
mod shared;
mod stream;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use ipc::WaitMode;
use serde::Serialize;

use crate::Outcome;
use crate::places::Side;

pub const FRAME_BYTES: usize = 64;
/// A frame begins with its number, little-endian.
pub type Frame = [u8; FRAME_BYTES];
/// The number of the last frame of a caller.
pub const STOP: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Two pipes.
    Pipe,
    /// A pair of Unix stream sockets.
    UnixStream,
    /// A pair of Unix SEQPACKET sockets.
    UnixSeqpacket,
    /// Two POSIX message queues.
    PosixQueue,
    /// Two System V message queues.
    SysvQueue,
    /// TCP over loopback, TCP_NODELAY.
    Tcp,
    /// One 64-byte line each way, both sides spinning: the limit.
    SharedMemory,
    /// `sendrec`, sleeping at once.
    M3ipcPark,
    /// `sendrec` as by default.
    M3ipcAdaptive,
    /// `sendrec`, spinning.
    M3ipcSpin,
}

pub const ALL: [Mechanism; 10] = [
    Mechanism::Pipe,
    Mechanism::UnixStream,
    Mechanism::UnixSeqpacket,
    Mechanism::PosixQueue,
    Mechanism::SysvQueue,
    Mechanism::Tcp,
    Mechanism::SharedMemory,
    Mechanism::M3ipcPark,
    Mechanism::M3ipcAdaptive,
    Mechanism::M3ipcSpin,
];

impl std::fmt::Display for Mechanism {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use clap::ValueEnum;
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

/// The client's side: sends a frame with this number and returns the number of the answer.
pub trait Caller {
    fn call(&mut self, number: u64) -> Outcome<u64>;
}

/// The server's side: answers every frame with itself until [`STOP`], which it answers too.
pub trait Echo {
    fn serve(&mut self) -> Outcome<()>;
}

/// What is done with a caller, for whichever type it has: nothing indirect is on the path that is measured.
pub trait Use {
    type Given;
    fn on<C: Caller>(self, caller: C) -> Outcome<Self::Given>;
}

/// Standard input and output of the two processes of a pair; `None` for nothing.
#[derive(Default)]
pub struct Handed {
    pub client: [Option<OwnedFd>; 2],
    pub server: [Option<OwnedFd>; 2],
}

impl Mechanism {
    fn mode(self) -> Option<WaitMode> {
        match self {
            Mechanism::M3ipcPark => Some(WaitMode::Park),
            Mechanism::M3ipcAdaptive => Some(WaitMode::Adaptive),
            Mechanism::M3ipcSpin => Some(WaitMode::Spin),
            _ => None,
        }
    }

    /// Spinning sides that share a CPU wait for the scheduler at every message: that measures nothing.
    pub fn needs_two_cpus(self) -> bool {
        matches!(self, Mechanism::SharedMemory | Mechanism::M3ipcSpin)
    }

    /// What the orchestrator makes for a pair.
    pub fn hand(self) -> Outcome<Handed> {
        match self {
            Mechanism::Pipe => stream::pipes(),
            Mechanism::UnixStream => stream::sockets(rustix::net::SocketType::STREAM),
            Mechanism::UnixSeqpacket => stream::sockets(rustix::net::SocketType::SEQPACKET),
            Mechanism::SharedMemory => shared::hand(),
            _ => Ok(Handed::default()),
        }
    }

    /// Serves one caller; `ready` is told the address before the first frame is awaited. `broker` is the socket of the container's broker.
    pub fn serve(self, broker: &Path, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        match self {
            Mechanism::Pipe | Mechanism::UnixStream | Mechanism::UnixSeqpacket => {
                ready("-")?;
                stream::inherited()?.serve()
            }
            Mechanism::Tcp => stream::serve_tcp(ready),
            Mechanism::PosixQueue => queue::posix::serve(ready),
            Mechanism::SysvQueue => queue::sysv::serve(ready),
            Mechanism::SharedMemory => {
                let mut line = shared::Line::inherited(Side::Server)?;
                ready("-")?;
                line.serve()
            }
            Mechanism::M3ipcPark | Mechanism::M3ipcAdaptive | Mechanism::M3ipcSpin => {
                m3ipc::serve(broker, self.mode().unwrap_or_default(), 1, ready)
            }
        }
    }

    /// Whether it can serve several clients with one server here.
    pub fn serves_many(self) -> bool {
        matches!(self, Mechanism::UnixSeqpacket | Mechanism::M3ipcPark | Mechanism::M3ipcAdaptive)
    }

    /// As [`Mechanism::serve`], until so many clients have stopped.
    pub fn serve_many(self, broker: &Path, clients: u32, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        match self.mode() {
            Some(mode) => m3ipc::serve(broker, mode, clients, ready),
            None => crowd::serve(&broker.with_extension("crowd"), clients, ready),
        }
    }

    pub fn call_among_many<U: Use>(self, broker: &Path, address: &str, user: U) -> Outcome<U::Given> {
        match self.mode() {
            Some(mode) => user.on(m3ipc::connect(broker, address, mode)?),
            None => user.on(crowd::connect(Path::new(address))?),
        }
    }

    /// Takes away what an echo at `address` made that outlives processes.
    pub fn clean(self, address: &str) {
        match self {
            Mechanism::PosixQueue => queue::posix::clean(address),
            Mechanism::SysvQueue => queue::sysv::clean(address),
            _ => {}
        }
    }

    /// Reaches the echo at `address` and hands the caller to `user`.
    pub fn call<U: Use>(self, broker: &Path, address: &str, user: U) -> Outcome<U::Given> {
        match self {
            Mechanism::Pipe | Mechanism::UnixStream | Mechanism::UnixSeqpacket => user.on(stream::inherited()?),
            Mechanism::Tcp => user.on(stream::connect_tcp(address)?),
            Mechanism::PosixQueue => user.on(queue::posix::connect(address)?),
            Mechanism::SysvQueue => user.on(queue::sysv::connect(address)?),
            Mechanism::SharedMemory => user.on(shared::Line::inherited(Side::Client)?),
            Mechanism::M3ipcPark | Mechanism::M3ipcAdaptive | Mechanism::M3ipcSpin => {
                user.on(m3ipc::connect(broker, address, self.mode().unwrap_or_default())?)
            }
        }
    }
}

fn frame(number: u64) -> Frame {
    let mut frame = [0; FRAME_BYTES];
    frame[..8].copy_from_slice(&number.to_le_bytes());
    frame
}

fn number_of(frame: &Frame) -> u64 {
    frame.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// What was handed as standard input and output.
fn standard() -> Outcome<[OwnedFd; 2]> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    Ok([input.as_fd().try_clone_to_owned()?, output.as_fd().try_clone_to_owned()?])
}
