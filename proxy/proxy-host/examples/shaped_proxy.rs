//! A proxy of one's own: a transport that shapes, and an inspector that logs and filters.
//!
//! The daemon starts it as it starts `dvs proxy`, with a spawn record (`proxy_host::ProxyConfig`); two options are its
//! own:
//!
//! - `rate`: bytes per second that leave over one connection;
//! - `deny_kind`: messages of this kind do not pass; their channel ends with `Denied`.
//!
//! Every message that passes is a line of standard error. `tests/own_proxy.rs` runs it. On a node:
//!
//! ```text
//! dvsd.toml: proxy_program = "/opt/shaped_proxy"
//!            [proxy_options]
//!            rate = 1000000
//! ```

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::IpcError;
use parking_lot::Mutex;
use proxy_host::inspect::{Inspector, Passing};
use proxy_host::transport::{Stream, Target, Tcp, Transport};
use proxy_host::{Parts, ProxyError};
use proxy_link::Ends;
use sys::eventfd::{Poller, Trigger, WriteInterest};
use sys::spawn::{Spawn, SpawnError};

fn main() -> ExitCode {
    proxy_host::main_with(parts)
}

fn parts(spawn: &mut Spawn) -> Result<Parts, ProxyError> {
    let rate = spawn.option_u64("rate")?.ok_or(SpawnError::Missing("rate"))?;
    let deny_kind = spawn.option_u64("deny_kind")?.and_then(|kind| i32::try_from(kind).ok());
    let listener = proxy_host::tcp_listener(spawn)?.ok_or(SpawnError::Missing("listen"))?;
    let shaped = Tcp::new(listener).and_then(|tcp| Shaped::new(tcp, rate)).map_err(ProxyError::Poll)?;
    Ok(Parts { transports: vec![Box::new(shaped)], inspector: Some(Arc::new(Log { deny_kind })) })
}

// ---- Shaping.

/// TCP of which each stream sends at most so many bytes a second.
///
/// A stream that may not send yet must not be watched for room, or the proxy would be told of it all the time. So its
/// streams have no descriptor of their own: one epoll tells what came for any of them, and `due` when the next may
/// send.
struct Shaped {
    tcp: Tcp,
    rate: u64,
    poller: Arc<Poller>,
    waiting: Arc<Mutex<Waiting>>,
}

/// When the first of the streams that were refused may send again.
#[derive(Default)]
struct Waiting {
    until: Option<Instant>,
}

/// What a stream may save up while it sends nothing.
const BURST: Duration = Duration::from_millis(20);

impl Shaped {
    fn new(tcp: Tcp, rate: u64) -> io::Result<Shaped> {
        let poller = Arc::new(Poller::new()?);
        poller.add(tcp.descriptor(), 0, Trigger::Level)?;
        Ok(Shaped { tcp, rate: rate.max(1), poller, waiting: Arc::default() })
    }

    fn shape(&self, stream: Box<dyn Stream>, interest: WriteInterest) -> io::Result<Box<dyn Stream>> {
        if let Some(descriptor) = stream.descriptor() {
            self.poller.add(descriptor, 1, Trigger::Level)?;
            self.poller.set_writable_interest(descriptor, 1, interest)?;
        }
        Ok(Box::new(ShapedStream {
            stream,
            rate: self.rate,
            free_at: Instant::now(),
            waiting: Arc::clone(&self.waiting),
            poller: Arc::clone(&self.poller),
        }))
    }
}

impl Transport for Shaped {
    fn name(&self) -> &'static str {
        "shaped"
    }

    fn check(&self, address: &str) -> Result<(), String> {
        self.tcp.check(address)
    }

    fn local_address(&self) -> String {
        self.tcp.local_address()
    }

    fn dial(&mut self, target: Target<'_>) -> io::Result<Box<dyn Stream>> {
        let stream = self.tcp.dial(target)?;
        // It stands when it takes bytes.
        self.shape(stream, WriteInterest::Waiting)
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let stream = self.tcp.accept()?;
        self.shape(stream, WriteInterest::None)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn turn(&mut self) -> io::Result<()> {
        // Streams are asked after this; who still may not send says so again.
        self.waiting.lock().until = None;
        Ok(())
    }

    fn due(&self) -> Option<Instant> {
        self.waiting.lock().until
    }

    fn system_calls(&self) -> &'static [i64] {
        self.tcp.system_calls()
    }
}

struct ShapedStream {
    stream: Box<dyn Stream>,
    rate: u64,
    /// When everything that was sent so far has been paid for.
    free_at: Instant,
    waiting: Arc<Mutex<Waiting>>,
    poller: Arc<Poller>,
}

impl Read for ShapedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl Write for ShapedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let now = Instant::now();
        if self.free_at > now + BURST {
            let mut waiting = self.waiting.lock();
            waiting.until = Some(waiting.until.map_or(self.free_at, |until| until.min(self.free_at)));
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = self.stream.write(bytes)?;
        let cost = Duration::from_nanos(count as u64 * 1_000_000_000 / self.rate);
        self.free_at = self.free_at.max(now) + cost;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Stream for ShapedStream {
    fn established(&mut self) -> Option<io::Result<()>> {
        let established = self.stream.established()?;
        if let Some(descriptor) = self.stream.descriptor() {
            self.poller.set_writable_interest(descriptor, 1, WriteInterest::None).ok()?;
        }
        Some(established)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

// ---- Logging and filtering.

struct Log {
    deny_kind: Option<i32>,
}

impl Log {
    fn pass(&self, way: &str, ends: &Ends, what: Passing<'_>) -> Result<(), IpcError> {
        let Passing::Message(message) = what else { return Ok(()) };
        let is_denied = self.deny_kind == Some(message.kind);
        let verdict = if is_denied { "denied" } else { "passes" };
        eprintln!("{way} endpoints {} and {}: kind {} {verdict}", ends.from, ends.to, message.kind);
        if is_denied { Err(IpcError::Denied) } else { Ok(()) }
    }
}

impl Inspector for Log {
    fn get_to_remote(&self, ends: &Ends, what: Passing<'_>) -> Result<(), IpcError> {
        self.pass("out", ends, what)
    }

    fn put_to_local(&self, ends: &Ends, what: Passing<'_>) -> Result<(), IpcError> {
        self.pass("in", ends, what)
    }
}
