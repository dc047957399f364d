//! Copying the stream of a program between its client and where the program is.
//!
//! The two directions end on their own, in any order. The program may close its input, or end, while its client still
//! sends: what nobody wants any more is read and thrown away, because a connection that is closed with something unread
//! is reset, and a reset destroys what is under way in the other direction: the last output, and the exit status. So
//! output is read to its end whatever becomes of the input, and the client is heard until it closes, or
//! [`FAREWELL_LIMIT`] is over.
//!
//! A stream whose last word is missing (a node that is gone, a daemon that was killed) gets one here: only whole frames
//! are passed on, so that it can follow them. In a session (`mgmt_api::stream::session`) that word says that the
//! connection broke, and the client comes again; and a client that dies under our eyes gets its farewell said, so that
//! nobody waits for it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mgmt_api::stream::{Decoder, HEADER_BYTES, Kind, PAYLOAD_BYTES_MAX, header};
use mgmt_api::{ErrorBody, ErrorKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;

/// A client that was told everything closes at once; one that does not is left.
const FAREWELL_LIMIT: Duration = Duration::from_secs(10);

/// The client's side of a relay.
pub struct Client<S> {
    stream: S,
    /// What was read from it already.
    early: Vec<u8>,
    /// A copy of a client of this node: it shows whether a client that says nothing more does not listen either. One of
    /// another node has its connection dropped then.
    witness: Option<OwnedFd>,
    words: Option<Words>,
}

/// What becomes of an error on its way to the client.
pub type Words = fn(ErrorBody) -> ErrorBody;

impl Client<UnixStream> {
    pub fn of_this_node(stream: UnixStream, early: &[u8]) -> Client<UnixStream> {
        let witness = stream.as_fd().try_clone_to_owned().ok();
        Client { stream, early: early.to_vec(), witness, words: None }
    }
}

impl<S: AsyncRead + AsyncWrite> Client<S> {
    pub fn of_another_node(stream: S) -> Client<S> {
        Client { stream, early: Vec::new(), witness: None, words: None }
    }

    /// It hears the errors of the program's side as these say them.
    pub fn hearing(self, words: Option<Words>) -> Client<S> {
        Client { words, ..self }
    }
}

/// Who is at the other end of the program's side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Far {
    /// The keeper: with it the program is gone.
    Keeper,
    /// The daemon of the program's node.
    Daemon,
}

/// Copies until both sides are done. `explain` gives the last word of a stream that ended without one. It gets the
/// program's PID, if the stream has said it, and the cause.
pub async fn relay<S: AsyncRead + AsyncWrite>(
    client: Client<S>,
    program: impl AsyncRead + AsyncWrite,
    far: Far,
    explain: impl FnOnce(Option<u32>, &str) -> ErrorBody,
) {
    let session = AtomicBool::new(false);
    let Client { stream, early, witness, words } = client;
    let (mut from_client, mut to_client) = tokio::io::split(stream);
    let (mut from_program, mut to_program) = tokio::io::split(program);
    let mut input = pin!(pass_input(&mut from_client, &early, witness.as_ref(), &mut to_program, &session));
    let mut output = Box::pin(pass_output(&mut from_program, &mut to_client, (&session, far, words), explain));
    tokio::select! {
        told = &mut output => match told {
            // Whatever it says to that.
            Told::Everything => _ = tokio::time::timeout(FAREWELL_LIMIT, input).await,
            Told::Nobody => (),
        },
        ended = &mut input => match ended {
            // It listens on, perhaps.
            InputEnd::Closed => _ = output.await,
            InputEnd::Broken => (),
            InputEnd::Left => {
                drop(output);
                let _ = tokio::time::timeout(FAREWELL_LIMIT, throw_away(&mut from_program)).await;
            }
        },
    }
}

/// Reads to the end, so that nothing unread resets the connection and destroys what was said last.
async fn throw_away(from: &mut (impl AsyncRead + Unpin)) {
    let mut chunk = vec![0; PAYLOAD_BYTES_MAX];
    while matches!(from.read(&mut chunk).await, Ok(got) if got > 0) {}
}

enum InputEnd {
    /// The client said all it had to say.
    Closed,
    /// The client is gone, or the connection to it. Whoever is next on the way learns it by a connection that is
    /// dropped, not ended in order.
    Broken,
    /// The client of a session is gone, and whoever is next on the way was told.
    Left,
}

async fn pass_input(
    client: &mut (impl AsyncRead + Unpin),
    early: &[u8],
    witness: Option<&OwnedFd>,
    program: &mut (impl AsyncWrite + Unpin),
    session: &AtomicBool,
) -> InputEnd {
    let mut frames = Frames::default();
    let mut wanted = true;
    let mut chunk = early.to_vec();
    chunk.resize(PAYLOAD_BYTES_MAX.max(early.len()), 0);
    let mut got = early.len();
    loop {
        match frames.take(chunk.get(..got).unwrap_or_default()) {
            Ok(whole) => wanted = wanted && send(program, &whole).await.is_ok(),
            // The program's side is told by a connection that is dropped.
            Err(_) => return InputEnd::Broken,
        }
        match client.read(&mut chunk).await {
            Ok(0) if witness.is_some_and(is_hung_up) => {
                if !session.load(Ordering::Relaxed) {
                    return InputEnd::Broken;
                }
                let _ = send(program, &header(Kind::Leave, 0)).await;
                let _ = program.shutdown().await;
                return InputEnd::Left;
            }
            Ok(0) => break,
            Ok(read) => got = read,
            Err(_) => return InputEnd::Broken,
        }
    }
    // Who does not want input does not want to hear of its end either.
    let _ = program.shutdown().await;
    InputEnd::Closed
}

/// Whether the other end is closed in both directions.
fn is_hung_up(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut polled, Some(&now)), Ok(1)) && polled.iter().any(|one| one.revents().contains(PollFlags::HUP))
}

enum Told {
    /// The last word is on its way to the client.
    Everything,
    /// The client does not listen.
    Nobody,
}

async fn pass_output(
    program: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    (session, far, words): (&AtomicBool, Far, Option<Words>),
    explain: impl FnOnce(Option<u32>, &str) -> ErrorBody,
) -> Told {
    let mut frames = Frames { words, ..Frames::default() };
    let mut chunk = vec![0; PAYLOAD_BYTES_MAX + HEADER_BYTES];
    let cause = loop {
        match program.read(&mut chunk).await {
            Ok(0) => break "the connection was closed".to_owned(),
            Ok(got) => match frames.take(chunk.get(..got).unwrap_or_default()) {
                Ok(whole) => {
                    session.store(frames.session, Ordering::Relaxed);
                    if send(client, &whole).await.is_err() {
                        return Told::Nobody;
                    }
                }
                Err(error) => break error.to_string(),
            },
            // TLS has a long story to tell about a daemon that was killed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break "its daemon ended".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    let kind = if frames.session && far == Far::Daemon { Kind::Broken } else { Kind::Error };
    let is_told = frames.ended;
    if !is_told && send(client, &last_word(kind, &explain(frames.pid, &cause))).await.is_err() {
        return Told::Nobody;
    }
    match client.shutdown().await {
        Ok(()) => Told::Everything,
        Err(_) => Told::Nobody,
    }
}

async fn send(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    // TLS keeps what it could not send at once.
    to.flush().await
}

/// What was seen of one direction on its way.
#[derive(Default)]
struct Frames {
    decoder: Decoder,
    pid: Option<u32>,
    /// It began with a session.
    session: bool,
    /// The last word went by.
    ended: bool,
    words: Option<Words>,
}

impl Frames {
    /// The whole frames that `bytes` complete, as they came; errors in other words, if there are any.
    fn take(&mut self, bytes: &[u8]) -> Result<Vec<u8>, mgmt_api::stream::BadFrame> {
        self.decoder.push(bytes);
        let mut whole = Vec::with_capacity(bytes.len());
        while let Some((kind, payload)) = self.decoder.pop()? {
            match (kind, payload) {
                (Kind::Started, &[a, b, c, d]) => self.pid = Some(u32::from_le_bytes([a, b, c, d])),
                (Kind::Session, _) => self.session = true,
                (Kind::Exit | Kind::Error | Kind::Broken, _) => self.ended = true,
                _ => {}
            }
            match self.words.filter(|_| matches!(kind, Kind::Error | Kind::Broken)) {
                // What is no error that one could read is none to pass on either.
                Some(words) => {
                    let said = serde_json::from_slice(payload).unwrap_or_else(|_| unreadable());
                    whole.extend(last_word(kind, &words(said)));
                }
                None => {
                    whole.extend_from_slice(&header(kind, payload.len()));
                    whole.extend_from_slice(payload);
                }
            }
        }
        Ok(whole)
    }
}

fn unreadable() -> ErrorBody {
    ErrorBody::new(ErrorKind::Internal, "the program's node said what cannot be read")
}

/// The last frame of a stream that nobody else ends.
pub fn last_word(kind: Kind, body: &ErrorBody) -> Vec<u8> {
    let mut text = serde_json::to_vec(body).unwrap_or_default();
    text.truncate(PAYLOAD_BYTES_MAX);
    let mut frame = header(kind, text.len()).to_vec();
    frame.extend(text);
    frame
}

#[cfg(test)]
mod tests;
