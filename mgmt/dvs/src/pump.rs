//! Connects a program in a container with our own input, output and signals.
//!
//! Two loops run side by side, one per direction of the stream, and outputs have a thread each. So a reader that is
//! slow on our standard output stops the program's output and nothing else: a co-process that writes everything before
//! it reads anything does not hang. Every queue between them is bounded.
//!
//! ```text
//! stdin thread ──▶ input queue ──▶ writer loop ──▶ socket ──▶ keeper
//! signals, size ─▶ event queue ─┘
//! stdout thread ◀── queue ◀── reader loop ◀── socket ◀── keeper
//! ```
//!
//! Signals overtake input: once input is under way the socket may be full of it, so they go through the REST API (`Post`).
//!
//! Not here: raw terminals (`terminal.rs`), what a frame is (`mgmt_api::stream`).

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::pin::pin;
use std::thread::JoinHandle;

use client::{Frame, FrameReader, FrameWriter, Stream};
use mgmt_api::stream::PAYLOAD_BYTES_MAX;
use mgmt_api::{ErrorBody, TerminalSize};
use tokio::sync::mpsc;

/// Chunks that may wait for the socket or an output: half a megabyte in flight, enough to keep both sides busy.
const CHUNKS_MAX: usize = 16;
/// Signals and sizes that may wait. More than that are repetitions of a person hammering a key.
const EVENTS_MAX: usize = 64;
pub const SIGPIPE: u8 = 13;
const CTRL_P: u8 = 0x10;
const CTRL_Q: u8 = 0x11;

/// Something that happens beside the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Resize(TerminalSize),
    Signal(u8),
    /// Leave the program alone and go.
    Detach,
    /// The program does not heed signals: go without it.
    GiveUp,
}

/// How it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    Exit(u8),
    Refused(ErrorBody),
    /// The program goes on.
    Detached,
    /// So it does, and somebody wanted it to end.
    GivenUp,
}

/// Whether the keys Ctrl-P Ctrl-Q leave the program. They do on a raw terminal, and nowhere else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DetachKeys {
    Heeded,
    Passed,
}

/// Why there is no end to tell.
#[derive(Debug, thiserror::Error)]
pub enum PumpError {
    #[error(transparent)]
    Stream(#[from] client::Error),
    /// The program's output is in its log all the same.
    #[error("{output} cannot be written")]
    Output {
        output: &'static str,
        #[source]
        source: io::Error,
    },
}

/// A way to send signals that does not queue behind input.
pub trait Post {
    /// False: try the stream instead.
    fn signal(&self, pid: u32, signal: u8) -> impl Future<Output = bool>;
}

/// Everything on our side.
pub struct Ends {
    /// Closed: end of input. None: the program gets no input from us.
    pub input: Option<mpsc::Receiver<Vec<u8>>>,
    pub events: mpsc::Receiver<Event>,
    /// Lets the reader loop tell the writer loop of a closed output.
    pub events_in: mpsc::Sender<Event>,
    /// What it means when nobody reads our output any more.
    pub closed_output: Event,
    pub stdout: Output,
    pub stderr: Output,
    pub detach_keys: DetachKeys,
}

pub fn event_queue() -> (mpsc::Sender<Event>, mpsc::Receiver<Event>) {
    mpsc::channel(EVENTS_MAX)
}

/// Runs until the program ends, the stream breaks or somebody detaches. `pid` is filled in when the program has one.
pub async fn run(
    stream: Stream,
    mut ends: Ends,
    pid: &Cell<Option<u32>>,
    post: &impl Post,
) -> Result<Ended, PumpError> {
    let Stream { mut reader, mut writer, .. } = stream;
    let ended = {
        let reading = read_frames(&mut reader, &ends.stdout, &ends.stderr, (&ends.events_in, ends.closed_output), pid);
        let writing = write_frames(&mut writer, ends.input, &mut ends.events, ends.detach_keys, pid, post);
        let mut reading = pin!(reading);
        tokio::select! {
            biased;
            ended = &mut reading => ended,
            left = writing => Ok(left),
        }
    };
    if matches!(ended, Ok(Ended::Detached | Ended::GivenUp)) {
        writer.forget();
    }
    // What arrived is written even when the stream broke.
    let written = [("standard output", ends.stdout.finish()), ("standard error", ends.stderr.finish())];
    let ended = ended?;
    for (output, written) in written {
        written.map_err(|source| PumpError::Output { output, source })?;
    }
    Ok(ended)
}

async fn read_frames(
    reader: &mut FrameReader,
    stdout: &Output,
    stderr: &Output,
    (events, closed_output): (&mpsc::Sender<Event>, Event),
    pid: &Cell<Option<u32>>,
) -> Result<Ended, client::Error> {
    let mut told = false;
    loop {
        let taken = match reader.next().await? {
            Frame::Started(number) => {
                pid.set(Some(number));
                true
            }
            Frame::Stdout(bytes) => stdout.put(bytes).await,
            Frame::Stderr(bytes) => stderr.put(bytes).await,
            Frame::Exit(status) => return Ok(Ended::Exit(status)),
            Frame::Error(body) => return Ok(Ended::Refused(body)),
        };
        if !taken && !told {
            // Nobody reads our output any more. A program of ours learns it as it would on this machine; its
            // further output is dropped here and goes on to its log.
            told = events.try_send(closed_output).is_ok();
        }
    }
}

/// Returns only to leave the program; a broken socket is for the reader loop to report, which may still find the exit status in it.
async fn write_frames(
    writer: &mut FrameWriter,
    mut input: Option<mpsc::Receiver<Vec<u8>>>,
    events: &mut mpsc::Receiver<Event>,
    detach_keys: DetachKeys,
    pid: &Cell<Option<u32>>,
    post: &impl Post,
) -> Ended {
    let mut keys = KeyFilter { detach_keys, held: false };
    let mut queue = Queue::Clean;
    loop {
        let step = tokio::select! {
            biased;
            event = events.recv() => match event {
                Some(event) => Step::Event(event),
                None => std::future::pending().await,
            },
            chunk = next_chunk(&mut input) => Step::Input(chunk),
        };
        let sent = match step {
            Step::Event(Event::Detach) => return Ended::Detached,
            Step::Event(Event::GiveUp) => return Ended::GivenUp,
            Step::Event(event) => deliver(writer, event, queue, pid, post).await,
            // A raw terminal has no key that ends the input: this one was hung up, and the program keeps its own.
            Step::Input(None) if detach_keys == DetachKeys::Heeded => return Ended::Detached,
            Step::Input(None) => {
                input = None;
                writer.end_of_input().await
            }
            Step::Input(Some(chunk)) => {
                let (bytes, keys) = keys.pass(chunk);
                queue = Queue::MayBeFull;
                let sent = send_input(writer, &bytes, events, pid, post).await;
                match (keys, sent) {
                    (Keys::Detach, _) => return Ended::Detached,
                    (_, Ok(Flow::Leave(ended))) => return ended,
                    (Keys::Nothing, sent) => sent.map(drop),
                }
            }
        };
        if sent.is_err() {
            return std::future::pending().await;
        }
    }
}

enum Step {
    Event(Event),
    Input(Option<Vec<u8>>),
}

/// What lies before a new frame in the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Clean,
    /// Input that the program may never read.
    MayBeFull,
}

enum Flow {
    On,
    Leave(Ended),
}

/// Sends input, and looks after signals while the program does not take it.
async fn send_input(
    writer: &mut FrameWriter,
    bytes: &[u8],
    events: &mut mpsc::Receiver<Event>,
    pid: &Cell<Option<u32>>,
    post: &impl Post,
) -> Result<Flow, client::Error> {
    let mut size = None;
    {
        let mut sending = pin!(writer.stdin(bytes));
        loop {
            let event = tokio::select! {
                sent = &mut sending => {
                    sent?;
                    break;
                }
                event = events.recv() => event,
            };
            match (event, pid.get()) {
                (Some(Event::Detach), _) => return Ok(Flow::Leave(Ended::Detached)),
                (Some(Event::GiveUp), _) => return Ok(Flow::Leave(Ended::GivenUp)),
                (Some(Event::Resize(new)), _) => size = Some(new),
                (Some(Event::Signal(signal)), Some(pid)) => {
                    post.signal(pid, signal).await;
                }
                // Input flows, but the program has no number yet: there is nobody to signal.
                (Some(Event::Signal(_)), None) => {}
                (None, _) => {
                    sending.as_mut().await?;
                    break;
                }
            }
        }
    }
    if let Some(size) = size {
        writer.resize(size).await?;
    }
    Ok(Flow::On)
}

async fn deliver(
    writer: &mut FrameWriter,
    event: Event,
    queue: Queue,
    pid: &Cell<Option<u32>>,
    post: &impl Post,
) -> Result<(), client::Error> {
    match (event, pid.get()) {
        (Event::Resize(size), _) => writer.resize(size).await,
        (Event::Signal(signal), Some(pid)) if queue == Queue::MayBeFull && post.signal(pid, signal).await => Ok(()),
        (Event::Signal(signal), _) => writer.signal(signal).await,
        (Event::Detach | Event::GiveUp, _) => Ok(()),
    }
}

async fn next_chunk(input: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match input {
        Some(queue) => queue.recv().await,
        None => std::future::pending().await,
    }
}

/// Watches for Ctrl-P Ctrl-Q. A Ctrl-P waits for the key after it.
struct KeyFilter {
    detach_keys: DetachKeys,
    held: bool,
}

#[derive(PartialEq, Eq, Debug)]
enum Keys {
    Nothing,
    Detach,
}

impl KeyFilter {
    fn pass(&mut self, chunk: Vec<u8>) -> (Vec<u8>, Keys) {
        if self.detach_keys == DetachKeys::Passed {
            return (chunk, Keys::Nothing);
        }
        let mut out = Vec::with_capacity(chunk.len() + 1);
        for byte in chunk {
            match (std::mem::replace(&mut self.held, byte == CTRL_P), byte) {
                (true, CTRL_Q) => return (out, Keys::Detach),
                (true, CTRL_P) => out.push(CTRL_P),
                (true, other) => out.extend([CTRL_P, other]),
                (false, CTRL_P) => {}
                (false, other) => out.push(other),
            }
        }
        (out, Keys::Nothing)
    }
}

/// A thread that writes to one of our outputs.
pub struct Output {
    queue: mpsc::Sender<Vec<u8>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Output {
    pub fn to(mut sink: impl Write + Send + 'static) -> Output {
        let (queue, mut chunks) = mpsc::channel::<Vec<u8>>(CHUNKS_MAX);
        let thread = std::thread::spawn(move || {
            while let Some(chunk) = chunks.blocking_recv() {
                sink.write_all(&chunk)?;
                sink.flush()?;
            }
            Ok(())
        });
        Output { queue, thread }
    }

    /// False: whoever read it is gone.
    async fn put(&self, bytes: Vec<u8>) -> bool {
        self.queue.send(bytes).await.is_ok()
    }

    /// Waits until everything is written. A closed reader is no failure of ours.
    fn finish(self) -> io::Result<()> {
        drop(self.queue);
        match self.thread.join() {
            Ok(Err(cause)) if cause.kind() != io::ErrorKind::BrokenPipe => Err(cause),
            _ => Ok(()),
        }
    }
}

/// Reads an input on a thread of its own. The thread ends with the input, or with the process.
pub fn input_from(mut source: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (queue, chunks) = mpsc::channel(CHUNKS_MAX);
    std::thread::spawn(move || {
        let mut buffer = vec![0; PAYLOAD_BYTES_MAX];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    let chunk = buffer.get(..count).unwrap_or_default().to_vec();
                    if queue.blocking_send(chunk).is_err() {
                        return;
                    }
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                // A terminal that was hung up, a file that cannot be read: the input ends here.
                Err(_) => return,
            }
        }
    });
    chunks
}

#[cfg(test)]
mod tests;
