//! What is compared: each mechanism has a caller and an echo. Messages are frames of 64 bytes; copies and streams are
//! larger.
//!
//! How the two find each other: by descriptors that the orchestrator hands both (as standard input and output), or by
//! an address that the echo reports once it can be reached.

mod bulk;
mod copies;
mod crowd;
mod grpc;
pub mod iceoryx;
pub mod m3ipc;
mod queue;
mod shared;
mod stream;
mod zeromq;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use ipc::WaitMode;
use proxy_host::transport::Encryption;
use serde::Serialize;

use crate::Outcome;
use crate::places::Side;
use crate::role::Latencies;
use iceoryx::WakeUp;
use shared::{Line, Waiting};

pub const FRAME_BYTES: usize = 64;
/// A frame begins with its number, little-endian.
pub type Frame = [u8; FRAME_BYTES];
/// The number of the last frame of a caller.
pub const STOP: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize)]
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
    /// TCP with TCP_NODELAY, over loopback or between nodes.
    Tcp,
    /// The same between nodes, both sides looking without pause.
    TcpSpin,
    /// One 64-byte line each way, both sides spinning: the limit.
    SharedMemory,
    /// iceoryx2 request-response, both sides polling.
    Iceoryx2,
    /// iceoryx2 request-response, woken by its events.
    Iceoryx2Event,
    /// ZeroMQ REQ/REP over a Unix socket, or over TCP between nodes.
    Zeromq,
    /// gRPC (tonic), unary, over a Unix socket, or over TCP between nodes.
    Grpc,
    /// `sendrec`, sleeping at once.
    M3ipcPark,
    /// `sendrec` as by default.
    M3ipcAdaptive,
    /// `sendrec`, spinning.
    M3ipcSpin,
    /// 64 KiB by process_vm_readv.
    ProcessVmReadv,
    /// 64 KiB through a pipe.
    #[value(name = "pipe-64k")]
    #[serde(rename = "pipe-64k")]
    Pipe64k,
    /// 64 KiB by `vcopy`, from private memory to private memory.
    M3ipcVcopy,
    /// 64 KiB built and read in a buffer that both map.
    BareInPlace,
    /// 64 KiB built and read in the arena of a ring.
    M3ipcInPlace,
    /// 1 MiB at a time between nodes: plain TCP.
    TcpBulk,
    /// 1 MiB at a time between nodes: rustls over TCP.
    RustlsBulk,
    /// 1 MiB at a time between nodes by `vcopy`, TLS off.
    M3ipcStreamPlain,
    /// 1 MiB at a time between nodes by `vcopy`, TLS on.
    M3ipcStream,
    /// The same, each MiB asked for while the one before comes, TLS off.
    M3ipcAheadPlain,
    /// The same, TLS on.
    M3ipcAhead,
}

/// What is done in one trip.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Family {
    /// 64 bytes there, 64 bytes back.
    Messages,
    /// 64 KiB written by the client and read by the server.
    Copies,
    /// 1 MiB from the server to the client.
    Streams,
}

impl std::fmt::Display for Mechanism {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

/// The client's side: sends a frame with this number and returns the number of the answer.
pub trait Caller {
    fn call(&mut self, number: u64) -> Outcome<u64>;
}

/// Many callers in one process.
pub trait Crowd {
    /// All of them call until the time is over; what each call took.
    fn all_call(&mut self, for_how_long: Duration) -> Outcome<Latencies>;
    fn stop(&mut self) -> Outcome<()>;
}

/// The server's side: answers every frame with itself until [`STOP`], which it answers too.
pub trait Echo {
    fn serve(&mut self) -> Outcome<()>;
}

/// What is done with a caller, for whichever type it has: nothing indirect is on the path that is measured.
pub trait Use: Sized {
    type Given;
    fn on<C: Caller>(self, caller: C) -> Outcome<Self::Given>;
    fn on_crowd<C: Crowd>(self, crowd: C) -> Outcome<Self::Given>;
}

/// Standard input and output of the two processes of a pair; `None` for nothing.
#[derive(Default)]
pub struct Handed {
    pub client: [Option<OwnedFd>; 2],
    pub server: [Option<OwnedFd>; 2],
}

/// The node a party is on, and where what belongs to it lies.
#[derive(Clone, clap::Args)]
pub struct Site {
    /// Of this run.
    #[arg(long)]
    pub directory: PathBuf,
    /// 1 or 2.
    #[arg(long)]
    pub node: usize,
    /// Its address, when the other side is on another node.
    #[arg(long)]
    pub host: Option<IpAddr>,
}

impl Site {
    /// Where programs of this node connect.
    pub fn broker(&self) -> PathBuf {
        self.directory.join(format!("m3ipc-{}", self.node))
    }

    /// A path that no other process has.
    pub fn own_path(&self, kind: &str) -> PathBuf {
        self.directory.join(format!("{kind}-{}", std::process::id()))
    }

    pub fn certificates(&self) -> PathBuf {
        self.directory.join(format!("n{}", self.node))
    }

    pub fn address(&self) -> IpAddr {
        self.host.unwrap_or(Ipv4Addr::LOCALHOST.into())
    }
}

impl Mechanism {
    pub fn family(self) -> Family {
        use Mechanism::{
            BareInPlace, M3ipcAhead, M3ipcAheadPlain, M3ipcInPlace, M3ipcStream, M3ipcStreamPlain, M3ipcVcopy, Pipe64k,
            ProcessVmReadv,
        };
        match self {
            ProcessVmReadv | Pipe64k | M3ipcVcopy | BareInPlace | M3ipcInPlace => Family::Copies,
            Mechanism::TcpBulk
            | Mechanism::RustlsBulk
            | M3ipcStream
            | M3ipcStreamPlain
            | M3ipcAhead
            | M3ipcAheadPlain => Family::Streams,
            _ => Family::Messages,
        }
    }

    /// How it waits, or what wakes it.
    pub fn mode(self) -> &'static str {
        match self {
            Mechanism::M3ipcPark => "park",
            Mechanism::SharedMemory | Mechanism::Iceoryx2 | Mechanism::TcpSpin | Mechanism::M3ipcSpin => "spin",
            Mechanism::Iceoryx2Event => "event",
            Mechanism::ProcessVmReadv | Mechanism::BareInPlace => "spin and yield",
            Mechanism::M3ipcAdaptive
            | Mechanism::M3ipcVcopy
            | Mechanism::M3ipcInPlace
            | Mechanism::M3ipcStream
            | Mechanism::M3ipcStreamPlain
            | Mechanism::M3ipcAhead
            | Mechanism::M3ipcAheadPlain => "adaptive",
            _ => "blocking",
        }
    }

    fn wait_mode(self) -> Option<WaitMode> {
        match self {
            Mechanism::M3ipcPark => Some(WaitMode::Park),
            Mechanism::M3ipcAdaptive => Some(WaitMode::Adaptive),
            Mechanism::M3ipcSpin => Some(WaitMode::Spin),
            _ => None,
        }
    }

    /// Of the link, where it goes over one.
    pub fn encryption(self) -> Encryption {
        match self {
            Mechanism::M3ipcStreamPlain | Mechanism::M3ipcAheadPlain => Encryption::Plain,
            _ => Encryption::Tls,
        }
    }

    /// Whether it goes over the link between two nodes.
    pub fn needs_link(self) -> bool {
        matches!(self.family(), Family::Messages | Family::Streams) && self.to_string().starts_with("m3ipc")
    }

    /// Spinning sides that share a CPU wait for the scheduler at every message: that measures nothing.
    pub fn needs_two_cpus(self) -> bool {
        self.mode() == "spin"
    }

    /// Whether one server can have several clients here, on one node and between two.
    pub fn serves_many(self, nodes: u32) -> bool {
        match self {
            Mechanism::UnixSeqpacket | Mechanism::M3ipcPark => nodes == 1,
            Mechanism::M3ipcAdaptive => true,
            Mechanism::Grpc => nodes == 2,
            _ => false,
        }
    }

    /// Whether it is compared on one node, or between two.
    pub fn belongs_to(self, nodes: u32) -> bool {
        match self {
            Mechanism::Tcp | Mechanism::Zeromq | Mechanism::Grpc => true,
            Mechanism::M3ipcAdaptive | Mechanism::M3ipcSpin => true,
            Mechanism::TcpSpin => nodes == 2,
            _ => (self.family() == Family::Streams) == (nodes == 2),
        }
    }

    /// Into how many processes so many clients go.
    pub fn client_processes(self, clients: u32) -> u32 {
        if self == Mechanism::Grpc { 1 } else { clients }
    }

    /// What the orchestrator makes for a pair.
    pub fn hand(self) -> Outcome<Handed> {
        match self {
            Mechanism::Pipe | Mechanism::Pipe64k => stream::pipes(),
            Mechanism::UnixStream => stream::sockets(rustix::net::SocketType::STREAM),
            Mechanism::UnixSeqpacket => stream::sockets(rustix::net::SocketType::SEQPACKET),
            Mechanism::SharedMemory | Mechanism::ProcessVmReadv => shared::hand(),
            Mechanism::BareInPlace => copies::bare::hand(),
            _ => Ok(Handed::default()),
        }
    }

    /// Serves one caller; `ready` is told the address before the first frame is awaited.
    pub fn serve(self, site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        match self {
            Mechanism::Pipe | Mechanism::UnixStream | Mechanism::UnixSeqpacket => {
                ready("-")?;
                stream::inherited()?.serve()
            }
            Mechanism::Tcp => stream::serve_tcp(site, ready),
            Mechanism::TcpSpin => stream::serve_tcp_spinning(site, ready),
            Mechanism::PosixQueue => queue::posix::serve(ready),
            Mechanism::SysvQueue => queue::sysv::serve(ready),
            Mechanism::SharedMemory => {
                let mut line = Line::inherited(Side::Server, Waiting::Spinning)?;
                ready("-")?;
                line.serve()
            }
            Mechanism::Iceoryx2 => iceoryx::serve(site, WakeUp::Polling, ready),
            Mechanism::Iceoryx2Event => iceoryx::serve(site, WakeUp::Event, ready),
            Mechanism::Zeromq => zeromq::serve(site, ready),
            Mechanism::Grpc => grpc::serve(site, ready),
            Mechanism::M3ipcPark | Mechanism::M3ipcAdaptive | Mechanism::M3ipcSpin => {
                m3ipc::serve(&site.broker(), self.wait_mode().unwrap_or_default(), 1, ready)
            }
            Mechanism::ProcessVmReadv => copies::readv::serve(ready),
            Mechanism::Pipe64k => copies::pipe::serve(ready),
            Mechanism::M3ipcVcopy => copies::vcopy::serve(site, ready),
            Mechanism::BareInPlace => copies::bare::serve(ready),
            Mechanism::M3ipcInPlace => copies::in_place::serve(site, ready),
            Mechanism::TcpBulk => bulk::serve_tcp(site, ready),
            Mechanism::RustlsBulk => bulk::serve_rustls(site, ready),
            Mechanism::M3ipcStream
            | Mechanism::M3ipcStreamPlain
            | Mechanism::M3ipcAhead
            | Mechanism::M3ipcAheadPlain => bulk::vcopy::serve(site, ready),
        }
    }

    /// Reaches the echo at `address` and hands the caller to `user`.
    pub fn call<U: Use>(self, site: &Site, address: &str, user: U) -> Outcome<U::Given> {
        match self {
            Mechanism::Pipe | Mechanism::UnixStream | Mechanism::UnixSeqpacket => user.on(stream::inherited()?),
            Mechanism::Tcp => user.on(stream::connect_tcp(address)?),
            Mechanism::TcpSpin => user.on(stream::connect_tcp_spinning(address)?),
            Mechanism::PosixQueue => user.on(queue::posix::connect(address)?),
            Mechanism::SysvQueue => user.on(queue::sysv::connect(address)?),
            Mechanism::SharedMemory => user.on(Line::inherited(Side::Client, Waiting::Spinning)?),
            Mechanism::Iceoryx2 => user.on(iceoryx::connect(site, address, WakeUp::Polling)?),
            Mechanism::Iceoryx2Event => user.on(iceoryx::connect(site, address, WakeUp::Event)?),
            Mechanism::Zeromq => user.on(zeromq::connect(address)?),
            Mechanism::Grpc => user.on(grpc::connect(address, 1)?),
            Mechanism::M3ipcPark | Mechanism::M3ipcAdaptive | Mechanism::M3ipcSpin => {
                user.on(m3ipc::connect(&site.broker(), address, self.wait_mode().unwrap_or_default())?)
            }
            Mechanism::ProcessVmReadv => user.on(copies::readv::inherited()?),
            Mechanism::Pipe64k => user.on(copies::pipe::inherited()?),
            Mechanism::M3ipcVcopy => user.on(copies::vcopy::connect(site, address)?),
            Mechanism::BareInPlace => user.on(copies::bare::inherited()?),
            Mechanism::M3ipcInPlace => user.on(copies::in_place::connect(site, address)?),
            Mechanism::TcpBulk => user.on(bulk::connect_tcp(address)?),
            Mechanism::RustlsBulk => user.on(bulk::connect_rustls(site, address)?),
            Mechanism::M3ipcStream | Mechanism::M3ipcStreamPlain => {
                user.on(bulk::vcopy::connect(site, address, bulk::vcopy::Asking::After)?)
            }
            Mechanism::M3ipcAhead | Mechanism::M3ipcAheadPlain => {
                user.on(bulk::vcopy::connect(site, address, bulk::vcopy::Asking::Ahead)?)
            }
        }
    }

    /// As [`Mechanism::serve`], until so many clients have stopped.
    pub fn serve_many(self, site: &Site, clients: u32, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        match self {
            Mechanism::Grpc => grpc::serve(site, ready),
            Mechanism::UnixSeqpacket => crowd::serve(&site.own_path("crowd"), clients, ready),
            _ => m3ipc::serve(&site.broker(), self.wait_mode().unwrap_or_default(), clients, ready),
        }
    }

    pub fn call_among_many<U: Use>(self, site: &Site, clients: u32, address: &str, user: U) -> Outcome<U::Given> {
        match self {
            Mechanism::Grpc => user.on_crowd(grpc::connect(address, clients)?),
            Mechanism::UnixSeqpacket => user.on(crowd::connect(Path::new(address))?),
            _ => user.on(m3ipc::connect(&site.broker(), address, self.wait_mode().unwrap_or_default())?),
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
}

impl Family {
    pub fn bytes(self) -> usize {
        match self {
            Family::Messages => FRAME_BYTES,
            Family::Copies => copies::BYTES,
            Family::Streams => bulk::BYTES,
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
