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
//! Signals overtake input: once input is under way the socket may be full of it, so they go through the REST API
//! (`Post`).
//!
//! In a session (`mgmt_api::stream::session`) a connection may break. What was said and heard is remembered in
//! [`Talk`], a new connection is asked for (`Post::resume`), and both loops go on with it where they were.
//!
//! Not here: raw terminals (`terminal.rs`), what a frame is (`mgmt_api::stream`).

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::pin::pin;
use std::thread::JoinHandle;
use std::time::Duration;

use client::{Frame, FrameReader, FrameWriter, Stream};
use mgmt_api::stream::session::{Incoming, Keeping, Outgoing, WINDOW_BYTES};
use mgmt_api::stream::{Kind, PAYLOAD_BYTES_MAX};
use mgmt_api::{ErrorBody, TerminalSize};
use tokio::sync::{Notify, mpsc};

/// Chunks that may wait for the socket or an output: half a megabyte in flight, enough to keep both sides busy.
const CHUNKS_MAX: usize = 16;
/// Signals and sizes that may wait. More than that are repetitions of a person hammering a key.
const EVENTS_MAX: usize = 64;
/// For our last words: a keeper that does not take them learns of our end in another way.
const FAREWELL_LIMIT: Duration = Duration::from_secs(1);
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

/// What goes beside the stream.
pub trait Post {
    /// Sends a signal that does not queue behind input. False: try the stream instead.
    fn signal(&self, pid: u32, signal: u8) -> impl Future<Output = bool>;

    /// A new connection for a session that `broke`, of which so many frames were heard; or why there is none.
    fn resume(
        &self,
        _pid: u32,
        _heard: u64,
        broke: client::Error,
    ) -> impl Future<Output = Result<Stream, client::Error>> {
        std::future::ready(Err(broke))
    }
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

/// Whether the keeper remembers the stream. Its first frame says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Unknown,
    Session,
    NoSession,
    /// A new connection of a session: the keeper has not said yet what it heard.
    Returning,
}

/// What was said and heard, over all connections.
struct Talk {
    outgoing: RefCell<Outgoing>,
    incoming: Cell<Incoming>,
    standing: Cell<Standing>,
    /// There is something to say, or room for input.
    news: Notify,
}

impl Talk {
    fn new() -> Talk {
        Talk {
            outgoing: RefCell::new(Outgoing::new(Keeping::UntilConfirmed)),
            incoming: Cell::default(),
            standing: Cell::new(Standing::Unknown),
            news: Notify::new(),
        }
    }

    fn say(&self, kind: Kind, payload: &[u8]) {
        self.outgoing.borrow_mut().say(kind, payload);
        self.news.notify_one();
    }

    fn has_something_to_send(&self) -> bool {
        self.standing.get() != Standing::Returning && !self.outgoing.borrow().is_sent()
    }

    fn has_room(&self) -> bool {
        let outgoing = self.outgoing.borrow();
        match self.standing.get() {
            Standing::NoSession => outgoing.is_sent(),
            Standing::Unknown | Standing::Session | Standing::Returning => outgoing.kept_bytes() < WINDOW_BYTES,
        }
    }

    /// Takes a frame about the session itself. Gives any other one back.
    fn hear(&self, frame: Frame) -> Result<Option<Frame>, client::Error> {
        let foreign = |cause| client::Error::Foreign(format!("the stream's count: {cause}"));
        match (self.standing.get(), frame) {
            (Standing::Unknown, Frame::Session(_)) => self.standing.set(Standing::Session),
            (Standing::Returning, Frame::Session(heard)) => {
                self.outgoing.borrow_mut().resume(heard, None).map_err(foreign)?;
                self.standing.set(Standing::Session);
            }
            (Standing::Unknown, frame) => {
                self.standing.set(Standing::NoSession);
                self.outgoing.borrow_mut().forget_sent();
                // What was sent need not be kept any more: there is room.
                self.news.notify_one();
                return Ok(Some(frame));
            }
            (_, Frame::Heard(heard)) => self.outgoing.borrow_mut().confirm(heard).map_err(foreign)?,
            (_, frame) => return Ok(Some(frame)),
        }
        self.news.notify_one();
        Ok(None)
    }

    /// One more frame was dealt with.
    fn count(&self, payload_bytes: usize) {
        let mut incoming = self.incoming.get();
        incoming.count(payload_bytes);
        self.incoming.set(incoming);
        if incoming.is_due() {
            self.confirm();
        }
    }

    fn confirm(&self) {
        let mut incoming = self.incoming.get();
        if self.standing.get() == Standing::Session {
            self.say(Kind::Heard, &incoming.confirm());
        }
        self.incoming.set(incoming);
    }

    /// Sends what is left to send, if the other side takes it soon.
    async fn say_farewell(&self, writer: &mut FrameWriter) {
        let sending = async {
            while (self.has_something_to_send() || writer.is_unflushed())
                && writer.send_some(&self.outgoing).await.is_ok()
            {}
        };
        let _ = tokio::time::timeout(FAREWELL_LIMIT, sending).await;
    }
}

/// Runs until the program ends, the stream breaks for good or somebody detaches. `pid` is filled in when the program
/// has one.
pub async fn run(
    mut stream: Stream,
    ends: Ends,
    pid: &Cell<Option<u32>>,
    post: &impl Post,
) -> Result<Ended, PumpError> {
    let talk = Talk::new();
    let Ends { input, events, events_in, closed_output, stdout, stderr, detach_keys } = ends;
    let keys = KeyFilter { detach_keys, held: false };
    let mut speaker = Speaker { talk: &talk, input, events, keys, queue: Queue::Clean, pid, post };
    let mut listener =
        Listener { talk: &talk, stdout: &stdout, stderr: &stderr, events: &events_in, closed_output, pid, told: false };
    let ended = loop {
        let Stream { mut reader, mut writer, .. } = stream;
        let ended = {
            let mut reading = pin!(listener.read_frames(&mut reader));
            tokio::select! {
                biased;
                ended = &mut reading => ended,
                left = speaker.write_frames(&mut writer) => Ok(left),
            }
        };
        match (ended, pid.get()) {
            (Err(broke), Some(pid)) if talk.is_resumable(&broke) => match speaker.come_back(pid, broke).await {
                Ok(Back::Connected(again)) => stream = again,
                Ok(Back::Left(ended)) => break Ok(ended),
                Err(error) => break Err(error),
            },
            (Ok(ended @ (Ended::Detached | Ended::GivenUp)), _) => {
                // A daemon of this machine sees us go. To one elsewhere a connection that ends is one that broke.
                let is_far = writer.is_far() && talk.standing.get() == Standing::Session;
                if is_far {
                    talk.say(Kind::Leave, &[]);
                }
                talk.say_farewell(&mut writer).await;
                if is_far {
                    let _ = tokio::time::timeout(FAREWELL_LIMIT, reader.drain()).await;
                }
                writer.forget();
                break Ok(ended);
            }
            (Ok(ended), _) => {
                talk.confirm();
                talk.say_farewell(&mut writer).await;
                break Ok(ended);
            }
            (Err(error), _) => break Err(error),
        }
    };
    // What arrived is written even when the stream broke.
    let written = [("standard output", stdout.finish()), ("standard error", stderr.finish())];
    let ended = ended?;
    for (output, written) in written {
        written.map_err(|source| PumpError::Output { output, source })?;
    }
    Ok(ended)
}

impl Talk {
    /// Whether another connection may help.
    fn is_resumable(&self, broke: &client::Error) -> bool {
        let has_session = matches!(self.standing.get(), Standing::Session | Standing::Returning);
        // A refusal is a daemon's word about the connection to the next one.
        has_session
            && matches!(broke, client::Error::StreamEnded | client::Error::Broken(_) | client::Error::Refused(_))
    }
}

/// The reader loop.
struct Listener<'a> {
    talk: &'a Talk,
    stdout: &'a Output,
    stderr: &'a Output,
    events: &'a mpsc::Sender<Event>,
    closed_output: Event,
    pid: &'a Cell<Option<u32>>,
    /// The program was told that nobody reads its output.
    told: bool,
}

impl Listener<'_> {
    async fn read_frames(&mut self, reader: &mut FrameReader) -> Result<Ended, client::Error> {
        loop {
            let (frame, bytes) = reader.next().await?;
            let is_counted = !matches!(frame, Frame::Session(_));
            if let Some(frame) = self.talk.hear(frame)?
                && let Some(ended) = self.take(frame).await?
            {
                self.talk.count(bytes);
                return Ok(ended);
            }
            if is_counted {
                self.talk.count(bytes);
            }
        }
    }

    async fn take(&mut self, frame: Frame) -> Result<Option<Ended>, client::Error> {
        let taken = match frame {
            Frame::Started(number) => {
                self.pid.set(Some(number));
                true
            }
            Frame::Stdout(bytes) => self.stdout.put(bytes).await,
            Frame::Stderr(bytes) => self.stderr.put(bytes).await,
            Frame::Exit(status) => return Ok(Some(Ended::Exit(status))),
            Frame::Error(body) => return Ok(Some(Ended::Refused(body))),
            Frame::Broken(body) => return Err(client::Error::Refused(body)),
            frame @ (Frame::Session(_) | Frame::Heard(_)) => {
                return Err(client::Error::Foreign(format!("{frame:?} in the midst of a stream")));
            }
        };
        if !taken && !self.told {
            // Nobody reads our output any more. A program of ours learns it as it would on this machine; its
            // further output is dropped here and goes on to its log.
            self.told = self.events.try_send(self.closed_output).is_ok();
        }
        Ok(None)
    }
}

/// The writer loop.
struct Speaker<'a, P> {
    talk: &'a Talk,
    input: Option<mpsc::Receiver<Vec<u8>>>,
    events: mpsc::Receiver<Event>,
    keys: KeyFilter,
    queue: Queue,
    pid: &'a Cell<Option<u32>>,
    post: &'a P,
}

/// What lies before a new frame in the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Clean,
    /// Input that the program may never read.
    MayBeFull,
}

enum Back {
    Connected(Stream),
    Left(Ended),
}

impl<P: Post> Speaker<'_, P> {
    /// Returns only to leave the program; a broken socket is for the reader loop to report, which may still find the
    /// exit status in it.
    async fn write_frames(&mut self, writer: &mut FrameWriter) -> Ended {
        loop {
            let has_something = self.talk.has_something_to_send() || writer.is_unflushed();
            let has_room = self.talk.has_room();
            let left = tokio::select! {
                biased;
                event = next_event(&mut self.events) => self.obey(event).await,
                sent = writer.send_some(&self.talk.outgoing), if has_something => match sent {
                    Ok(()) => None,
                    Err(_) => std::future::pending().await,
                },
                chunk = next_chunk(&mut self.input), if has_room => self.pass(chunk),
                () = self.talk.news.notified() => None,
            };
            if let Some(ended) = left {
                return ended;
            }
        }
    }

    /// Waits for a new connection, and looks after who wants to leave meanwhile.
    async fn come_back(&mut self, pid: u32, broke: client::Error) -> Result<Back, client::Error> {
        self.talk.standing.set(Standing::Returning);
        let mut resuming = pin!(self.post.resume(pid, self.talk.incoming.get().heard(), broke));
        loop {
            tokio::select! {
                stream = &mut resuming => return stream.map(Back::Connected),
                event = next_event(&mut self.events) => match event {
                    Event::Detach => return Ok(Back::Left(Ended::Detached)),
                    Event::GiveUp => return Ok(Back::Left(Ended::GivenUp)),
                    Event::Resize(size) => self.talk.say(Kind::Resize, &size_bytes(size)),
                    // It is said when there is somebody to say it to.
                    Event::Signal(signal) => self.talk.say(Kind::Signal, &[signal]),
                },
            }
        }
    }

    async fn obey(&mut self, event: Event) -> Option<Ended> {
        match (event, self.pid.get()) {
            (Event::Detach, _) => return Some(Ended::Detached),
            (Event::GiveUp, _) => return Some(Ended::GivenUp),
            (Event::Resize(size), _) => self.talk.say(Kind::Resize, &size_bytes(size)),
            (Event::Signal(signal), Some(pid))
                if self.queue == Queue::MayBeFull && self.post.signal(pid, signal).await => {}
            (Event::Signal(signal), _) => self.talk.say(Kind::Signal, &[signal]),
        }
        None
    }

    fn pass(&mut self, chunk: Option<Vec<u8>>) -> Option<Ended> {
        let Some(chunk) = chunk else {
            // A raw terminal has no key that ends the input: this one was hung up, and the program keeps its own.
            if self.keys.detach_keys == DetachKeys::Heeded {
                return Some(Ended::Detached);
            }
            self.input = None;
            self.talk.say(Kind::Stdin, &[]);
            return None;
        };
        let (bytes, keys) = self.keys.pass(chunk);
        self.queue = Queue::MayBeFull;
        bytes.chunks(PAYLOAD_BYTES_MAX).for_each(|part| self.talk.say(Kind::Stdin, part));
        (keys == Keys::Detach).then_some(Ended::Detached)
    }
}

fn size_bytes(size: TerminalSize) -> [u8; 4] {
    let ([r0, r1], [c0, c1]) = (size.rows.to_le_bytes(), size.columns.to_le_bytes());
    [r0, r1, c0, c1]
}

async fn next_event(events: &mut mpsc::Receiver<Event>) -> Event {
    match events.recv().await {
        Some(event) => event,
        None => std::future::pending().await,
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
