//! Copying the stream of a program between its client and where the program is.
//!
//! The two directions end on their own, in any order. The program may close its input, or end, while its client still sends: what
//! nobody wants any more is read and thrown away, because a connection that is closed with something unread is reset, and
//! a reset destroys what is under way in the other direction: the last output, and the exit status. So output is read to its end
//! whatever becomes of the input, and the client is heard until it closes, or [`FAREWELL_LIMIT`] is over.
//!
//! A stream whose last word is missing (a node that is gone, a daemon that was killed) gets one here: only whole frames are passed
//! on, so that it can follow them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::time::Duration;

use mgmt_api::ErrorBody;
use mgmt_api::stream::{Decoder, HEADER_BYTES, Kind, PAYLOAD_BYTES_MAX, header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;

/// A client that was told everything closes at once; one that does not is left.
const FAREWELL_LIMIT: Duration = Duration::from_secs(10);

/// The client's side of a relay.
pub struct Client<S> {
    stream: S,
    /// What was read from it already.
    early: Vec<u8>,
    /// A copy of a client of this node: it shows whether a client that says nothing more does not listen either. One of another
    /// node has its connection dropped then.
    witness: Option<OwnedFd>,
}

impl Client<UnixStream> {
    pub fn of_this_node(stream: UnixStream, early: &[u8]) -> Client<UnixStream> {
        let witness = stream.as_fd().try_clone_to_owned().ok();
        Client { stream, early: early.to_vec(), witness }
    }
}

impl<S: AsyncRead + AsyncWrite> Client<S> {
    pub fn of_another_node(stream: S) -> Client<S> {
        Client { stream, early: Vec::new(), witness: None }
    }
}

/// Copies until both sides are done. `explain` gives the last word of a stream that
/// ended without one, from the program's PID, if the stream has said it, and the cause.
pub async fn relay<S: AsyncRead + AsyncWrite>(
    client: Client<S>,
    program: impl AsyncRead + AsyncWrite,
    explain: impl FnOnce(Option<u32>, &str) -> ErrorBody,
) {
    let Client { stream, early, witness } = client;
    let (mut from_client, mut to_client) = tokio::io::split(stream);
    let (mut from_program, mut to_program) = tokio::io::split(program);
    let mut input = pin!(pass_input(&mut from_client, &early, witness.as_ref(), &mut to_program));
    let mut output = pin!(pass_output(&mut from_program, &mut to_client, explain));
    let farewell = tokio::select! {
        told = &mut output => match told {
            Told::Everything => true,
            Told::Nobody => return,
        },
        ended = &mut input => match ended {
            // It listens on, perhaps.
            InputEnd::Closed => {
                output.await;
                false
            }
            InputEnd::Broken => return,
        },
    };
    if farewell {
        // Whatever it says to that.
        let _ = tokio::time::timeout(FAREWELL_LIMIT, input).await;
    }
}

enum InputEnd {
    /// The client said all it had to say.
    Closed,
    /// The client is gone, or the connection to it. Whoever is next on the way learns it by a connection that is dropped, not
    /// ended in order.
    Broken,
}

async fn pass_input(
    client: &mut (impl AsyncRead + Unpin),
    early: &[u8],
    witness: Option<&OwnedFd>,
    program: &mut (impl AsyncWrite + Unpin),
) -> InputEnd {
    let mut wanted = send(program, early).await.is_ok();
    let mut chunk = vec![0; PAYLOAD_BYTES_MAX];
    loop {
        match client.read(&mut chunk).await {
            Ok(0) if witness.is_some_and(is_hung_up) => return InputEnd::Broken,
            Ok(0) => break,
            Ok(got) => wanted = wanted && send(program, chunk.get(..got).unwrap_or_default()).await.is_ok(),
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
    explain: impl FnOnce(Option<u32>, &str) -> ErrorBody,
) -> Told {
    let mut frames = Frames::default();
    let mut chunk = vec![0; PAYLOAD_BYTES_MAX + HEADER_BYTES];
    let cause = loop {
        match program.read(&mut chunk).await {
            Ok(0) => break "the connection was closed".to_owned(),
            Ok(got) => match frames.take(chunk.get(..got).unwrap_or_default()) {
                Ok(whole) if send(client, &whole).await.is_err() => return Told::Nobody,
                Ok(_) => {}
                Err(error) => break error.to_string(),
            },
            // TLS has a long story to tell about a daemon that was killed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break "its daemon ended".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    if !frames.ended && send(client, &last_word(&explain(frames.pid, &cause))).await.is_err() {
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

/// What was seen of a program's output on its way.
#[derive(Default)]
struct Frames {
    decoder: Decoder,
    pid: Option<u32>,
    /// The last word went by.
    ended: bool,
}

impl Frames {
    /// The whole frames that `bytes` complete, as they came.
    fn take(&mut self, bytes: &[u8]) -> Result<Vec<u8>, mgmt_api::stream::BadFrame> {
        self.decoder.push(bytes);
        let mut whole = Vec::with_capacity(bytes.len());
        while let Some((kind, payload)) = self.decoder.pop()? {
            match (kind, payload) {
                (Kind::Started, &[a, b, c, d]) => self.pid = Some(u32::from_le_bytes([a, b, c, d])),
                (Kind::Exit | Kind::Error, _) => self.ended = true,
                _ => {}
            }
            whole.extend_from_slice(&header(kind, payload.len()));
            whole.extend_from_slice(payload);
        }
        Ok(whole)
    }
}

/// The last frame of a stream that nobody else ends.
pub fn last_word(body: &ErrorBody) -> Vec<u8> {
    let mut text = serde_json::to_vec(body).unwrap_or_default();
    text.truncate(PAYLOAD_BYTES_MAX);
    let mut frame = header(Kind::Error, text.len()).to_vec();
    frame.extend(text);
    frame
}

#[cfg(test)]
mod tests;
