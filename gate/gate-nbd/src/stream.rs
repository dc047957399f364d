//! Where clients connect, and what is said over a connection in either direction, encrypted or not.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};

use crate::store::{ReadData, WriteRoom};
use crate::tls::{TlsReader, TlsWriter};

/// Read ahead of a client.
const INPUT_BYTES: usize = 256 << 10;

pub(crate) fn read_array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn strange(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Where clients connect.
pub enum NbdListener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl NbdListener {
    /// # Errors
    /// The address is taken, or none of this machine's.
    pub fn tcp(address: SocketAddr) -> io::Result<NbdListener> {
        Ok(NbdListener::Tcp(TcpListener::bind(address)?))
    }

    /// The socket is removed in the end.
    ///
    /// # Errors
    /// There is something of this name, or nothing can be made there.
    pub fn unix(path: &Path) -> io::Result<NbdListener> {
        Ok(NbdListener::Unix(UnixListener::bind(path)?, path.to_owned()))
    }

    /// As clients are told it; `is_sealed`: they encrypt.
    ///
    /// # Errors
    /// The kernel does not say where it listens.
    pub fn uri(&self, export: &str, is_sealed: bool) -> io::Result<String> {
        let scheme = if is_sealed { "nbds" } else { "nbd" };
        Ok(match self {
            NbdListener::Tcp(listener) => format!("{scheme}://{}/{export}", listener.local_addr()?),
            NbdListener::Unix(_, path) => format!("{scheme}+unix:///{export}?socket={}", path.display()),
        })
    }

    pub(crate) fn accept(&self) -> io::Result<NbdStream> {
        Ok(match self {
            NbdListener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                // A client that is gone without a word is not waited for for ever.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                NbdStream::Tcp(stream)
            }
            NbdListener::Unix(listener, _) => NbdStream::Unix(listener.accept()?.0),
        })
    }
}

impl AsFd for NbdListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            NbdListener::Tcp(listener) => listener.as_fd(),
            NbdListener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for NbdListener {
    fn drop(&mut self) {
        if let NbdListener::Unix(_, path) = self {
            // Somebody may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// One client's connection.
pub(crate) enum NbdStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl NbdStream {
    pub(crate) fn try_clone(&self) -> io::Result<NbdStream> {
        Ok(match self {
            NbdStream::Tcp(stream) => NbdStream::Tcp(stream.try_clone()?),
            NbdStream::Unix(stream) => NbdStream::Unix(stream.try_clone()?),
        })
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        // It may be closed already.
        let _ = match self {
            NbdStream::Tcp(stream) => stream.shutdown(how),
            NbdStream::Unix(stream) => stream.shutdown(how),
        };
    }

    pub(crate) fn limit(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            NbdStream::Tcp(stream) => stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)),
            NbdStream::Unix(stream) => stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            NbdStream::Tcp(stream) => stream.as_fd(),
            NbdStream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for NbdStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            NbdStream::Tcp(stream) => stream.read(into),
            NbdStream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for NbdStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            NbdStream::Tcp(stream) => stream.write(from),
            NbdStream::Unix(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a client says.
pub(crate) enum Input {
    Plain(NbdStream),
    Sealed(TlsReader),
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Input::Plain(stream) => stream.read(into),
            Input::Sealed(reader) => reader.read(into),
        }
    }
}

impl Input {
    /// What has come and can be had without waiting; nothing, too, when that is not known.
    fn read_now(&self, into: &mut [u8]) -> usize {
        match self {
            Input::Plain(stream) => rustix::net::recv(stream.fd(), into, RecvFlags::DONTWAIT).map_or(0, |(got, _)| got),
            Input::Sealed(_) => 0,
        }
    }

    /// Whether there is something that came over the socket before.
    fn has_more(&self) -> bool {
        match self {
            Input::Plain(_) => false,
            Input::Sealed(reader) => reader.has_more(),
        }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Input::Plain(stream) => stream.fd(),
            Input::Sealed(reader) => reader.socket().fd(),
        }
    }
}

/// What becomes of it in this time; `None`: nothing. Everything when nobody can tell: then it is looked at.
fn await_ready(socket: BorrowedFd<'_>, flags: PollFlags, limit: Duration) -> Option<PollFlags> {
    let limit = Timespec::try_from(limit).unwrap_or_default();
    let mut sockets = [PollFd::from_borrowed_fd(socket, flags)];
    match poll(&mut sockets, Some(&limit)) {
        Ok(0) => None,
        Ok(_) => sockets.first().map(PollFd::revents),
        Err(_) => Some(flags),
    }
}

/// What a client says, read ahead.
pub(crate) struct ClientInput {
    input: Input,
    /// What was read and not taken: `at..end`.
    bytes: Box<[u8]>,
    at: usize,
    end: usize,
}

impl ClientInput {
    pub(crate) fn new(input: Input) -> ClientInput {
        ClientInput { input, bytes: vec![0; INPUT_BYTES].into_boxed_slice(), at: 0, end: 0 }
    }

    /// What was read and not taken.
    pub(crate) fn ahead(&self) -> &[u8] {
        self.bytes.get(self.at..self.end).unwrap_or_default()
    }

    /// Whether so many bytes can be had without waiting; not known of more than are read ahead.
    pub(crate) fn has(&mut self, bytes: usize) -> bool {
        if self.ahead().len() >= bytes {
            return true;
        }
        if bytes > self.bytes.len() {
            return false;
        }
        self.bytes.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        self.end += self.bytes.get_mut(self.end..).map_or(0, |free| self.input.read_now(free));
        self.ahead().len() >= bytes
    }

    /// Whether what the client says is its own bytes, as they come over the socket.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.input, Input::Plain(_))
    }

    /// Into `room` from the byte `at` on, up to `end`, what can be had without waiting; 0: nothing at the moment. Of
    /// plain input.
    pub(crate) fn receive_now<'a>(
        &mut self,
        room: &mut (impl WriteRoom<'a> + ?Sized),
        at: usize,
        end: usize,
    ) -> io::Result<usize> {
        let ahead = self.ahead();
        let ahead = ahead.get(..ahead.len().min(end - at)).unwrap_or_default();
        if !ahead.is_empty() {
            let bytes = ahead.len();
            room.put(at, ahead)?;
            self.at += bytes;
            return Ok(bytes);
        }
        match room.receive_now(self.input.socket(), at) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            received => received,
        }
    }

    /// Until something comes; `false`: nothing did for so long.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        await_ready(self.input.socket(), PollFlags::IN, limit).is_some()
    }

    /// Waits so long at most; whether nothing came.
    pub(crate) fn is_quiet_for(&self, limit: Duration) -> bool {
        self.ahead().is_empty() && !self.input.has_more() && !self.wait(limit)
    }
}

impl Read for ClientInput {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.ahead().is_empty() {
            // Long data goes where it belongs.
            if into.len() >= self.bytes.len() {
                return self.input.read(into);
            }
            (self.at, self.end) = (0, 0);
            self.end = self.input.read(&mut self.bytes)?;
        }
        let (from, bytes) = (self.ahead(), self.ahead().len().min(into.len()));
        into.get_mut(..bytes).unwrap_or_default().copy_from_slice(from.get(..bytes).unwrap_or_default());
        self.at += bytes;
        Ok(bytes)
    }
}

/// What it is told.
pub(crate) enum Output {
    Plain(NbdStream),
    Sealed(TlsWriter),
}

impl Output {
    pub(crate) fn with_socket<T>(&self, use_it: impl FnOnce(&NbdStream) -> T) -> T {
        match self {
            Output::Plain(stream) => use_it(stream),
            Output::Sealed(writer) => writer.with_socket(use_it),
        }
    }

    /// As much as the client's side takes without waiting. What goes wrong shows with the rest. `goes_on`: there will
    /// be more at once.
    pub(crate) fn write_now(&self, from: &[u8], goes_on: bool) -> usize {
        let more = if goes_on { SendFlags::MORE } else { SendFlags::empty() };
        match self {
            Output::Plain(stream) => {
                rustix::net::send(stream.fd(), from, SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more).unwrap_or(0)
            }
            Output::Sealed(_) => 0,
        }
    }

    /// The same of what was read, from the byte `from` on.
    pub(crate) fn send_now(&self, data: &dyn ReadData, from: usize) -> usize {
        match self {
            Output::Plain(stream) => data.send_now(stream.fd(), from).unwrap_or(0),
            Output::Sealed(_) => 0,
        }
    }

    /// Until it takes something; `false`: it did not for so long, or it is gone.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        match self {
            Output::Plain(stream) => {
                let ready = await_ready(stream.fd(), PollFlags::OUT, limit);
                ready.is_some_and(|ready| !ready.intersects(PollFlags::ERR | PollFlags::HUP))
            }
            Output::Sealed(_) => false,
        }
    }
}

impl Write for Output {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Output::Plain(stream) => stream.write(from),
            Output::Sealed(writer) => writer.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
