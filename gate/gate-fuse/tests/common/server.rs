//! The model behind a Unix stream socket: a thread per connection, and the gate's backend that speaks to it.
//!
//! A frame is a 64-byte submission or completion and the bytes that go with it. The first submission is HELLO.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi::ring::{Completion, ENTRY_BYTES, Submission};
use gate_fuse::backend::{Backend, BackendError, Done, Event, Loss, Op, Refused, Start, Token};
use parking_lot::Mutex;
use vos_api::session::{Epochs, Hello, Progress};
use vos_api::{Encoded, Operation, fs, session};

use super::model::{Model, Outcome, Reply, Session, failed};

pub struct Server {
    shared: Arc<Mutex<Shared>>,
    path: PathBuf,
}

type Recalling = (u64, Submission, Reply, Vec<(Session, u64)>);

#[derive(Default)]
struct Shared {
    model: Model,
    links: Vec<Link>,
    next_link: u64,
    /// Completed operations whose recalls are under way.
    recalling: Vec<Recalling>,
    /// Locks that wait.
    waiting: Vec<(u64, Submission, Vec<u8>)>,
    stopped: bool,
    /// Operations that came while the server is away.
    away: Option<Vec<(u64, Submission, Vec<u8>)>>,
}

struct Link {
    id: u64,
    session: Session,
    stream: UnixStream,
    events: Option<Submission>,
}

impl Server {
    pub fn start(path: &Path) -> Server {
        let listener = UnixListener::bind(path).expect("model server binds its socket");
        let shared = Arc::new(Mutex::new(Shared::default()));
        let for_links = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if for_links.lock().stopped {
                    return;
                }
                let shared = Arc::clone(&for_links);
                std::thread::spawn(move || serve(&shared, stream));
            }
        });
        Server { shared, path: path.to_owned() }
    }

    pub fn with_model<R>(&self, look: impl FnOnce(&mut Model) -> R) -> R {
        look(&mut self.shared.lock().model)
    }

    pub fn waiting_locks(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// From now on operations wait, as for a server whose disk is lost.
    pub fn go_away(&self) {
        self.shared.lock().away = Some(Vec::new());
    }

    /// Operations that wait for the server to come back, by their codes.
    pub fn unanswered(&self) -> Vec<u16> {
        self.shared.lock().away.iter().flatten().map(|(_, submission, _)| submission.op).collect()
    }

    /// Executes what waited, in order.
    pub fn come_back(&self) {
        let mut shared = self.shared.lock();
        for (link, submission, data) in shared.away.take().unwrap_or_default() {
            shared.take(link, submission, data);
        }
    }

    /// Fences all sessions and cuts nothing: the gates learn it from the next answer.
    pub fn fence_all(&self) {
        self.end_all(Model::fence);
    }

    /// Forgets all sessions, likewise.
    pub fn forget_all(&self) {
        self.end_all(Model::forget);
    }

    fn end_all(&self, end: fn(&mut Model, u64)) {
        let mut shared = self.shared.lock();
        for session in shared.model.sessions() {
            end(&mut shared.model, session);
        }
        shared.settle();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        let _ = UnixStream::connect(&self.path);
    }
}

fn serve(shared: &Mutex<Shared>, stream: UnixStream) {
    let mut reader = stream.try_clone().expect("clone of a socket");
    let mut link = 0;
    while let Ok((submission, data)) = receive(&mut reader) {
        let mut shared = shared.lock();
        if submission.op == session::HELLO {
            let hello = Hello::decode(submission.flags, submission.args, &[]).expect("a greeting");
            let session = hello.session;
            let known = shared.model.hello(session, hello.progress);
            shared.next_link += 1;
            link = shared.next_link;
            let stream = stream.try_clone().expect("clone of a socket");
            shared.links.push(Link { id: link, session, stream, events: None });
            let reply = if known { Reply::default() } else { failed(libc::ESTALE) };
            shared.complete(link, &submission, &reply);
        } else if let Some(away) = &mut shared.away {
            away.push((link, submission, data));
        } else {
            shared.take(link, submission, data);
        }
    }
    let mut shared = shared.lock();
    shared.links.retain(|other| other.id != link);
    shared.waiting.retain(|(other, ..)| *other != link);
}

fn receive(stream: &mut UnixStream) -> io::Result<(Submission, Vec<u8>)> {
    let mut head = [0; ENTRY_BYTES];
    stream.read_exact(&mut head)?;
    let submission = Submission::from_bytes(&head);
    let mut data = vec![0; submission.out_bytes as usize];
    stream.read_exact(&mut data)?;
    Ok((submission, data))
}

impl Shared {
    fn session(&self, link: u64) -> Session {
        self.links.iter().find(|other| other.id == link).map_or(0, |link| link.session)
    }

    fn take(&mut self, link: u64, submission: Submission, data: Vec<u8>) {
        let session = self.session(link);
        match submission.op {
            fs::EVENTS => {
                if let Some(link) = self.links.iter_mut().find(|other| other.id == link) {
                    link.events = Some(submission);
                }
            }
            fs::RELEASED => {
                self.model.released(session, submission.args[0]);
                self.complete(link, &submission, &Reply::default());
            }
            fs::CANCEL => {
                let sequence = submission.args[0];
                let session_of = |link| self.session(link);
                let at = self
                    .waiting
                    .iter()
                    .position(|(other, waiting, _)| session_of(*other) == session && waiting.sequence == sequence);
                if let Some(at) = at {
                    let (link, waiting, _) = self.waiting.remove(at);
                    let reply = failed(libc::EINTR);
                    self.model.record(session, sequence, &reply);
                    self.complete(link, &waiting, &reply);
                }
                self.complete(link, &submission, &Reply::default());
            }
            _ => self.execute(link, submission, data),
        }
        self.settle();
    }

    fn execute(&mut self, link: u64, submission: Submission, data: Vec<u8>) {
        let session = self.session(link);
        match self.model.execute(session, &submission, &data) {
            Outcome::Done(reply) => self.complete(link, &submission, &reply),
            Outcome::Recalling(reply, recalls) => self.recalling.push((link, submission, reply, recalls)),
            Outcome::Waiting => self.waiting.push((link, submission, data)),
        }
    }

    /// Delivers events, and completes what they or unlocks made ready.
    fn settle(&mut self) {
        for (link, submission, data) in std::mem::take(&mut self.waiting) {
            self.execute(link, submission, data);
        }
        for at in 0..self.links.len() {
            let Some(poll) = self.links[at].events else { continue };
            let session = self.links[at].session;
            if let Some(reply) = self.model.events(session) {
                self.links[at].events = None;
                let link = self.links[at].id;
                self.complete(link, &poll, &reply);
            }
        }
        for (link, submission, reply, recalls) in std::mem::take(&mut self.recalling) {
            if recalls.iter().any(|recall| self.model.is_open(*recall)) {
                self.recalling.push((link, submission, reply, recalls));
            } else {
                self.complete(link, &submission, &reply);
            }
        }
    }

    fn complete(&mut self, link: u64, submission: &Submission, reply: &Reply) {
        let Some(link) = self.links.iter_mut().find(|other| other.id == link) else { return };
        let completion = Completion {
            tag: submission.tag,
            status: reply.status,
            sequence: submission.sequence,
            in_bytes: reply.data.len() as u32,
            results: reply.results,
            ..Completion::default()
        };
        // A gate that was killed takes no answers.
        let _ = link.stream.write_all(&[&completion.to_bytes()[..], &reply.data].concat());
    }
}

/// The gate's end of the socket.
pub struct SocketBackend {
    /// The session was begun as one that was fenced before.
    revives: bool,
    path: PathBuf,
    stream: Option<UnixStream>,
    next: u32,
    out: Vec<u8>,
    incoming: Vec<u8>,
    ready: VecDeque<Event<Vec<u8>>>,
}

impl SocketBackend {
    pub fn new(path: &Path) -> SocketBackend {
        let (out, incoming) = (Vec::new(), Vec::new());
        let (path, ready) = (path.to_owned(), VecDeque::new());
        SocketBackend { revives: false, path, stream: None, next: 1, out, incoming, ready }
    }

    fn flush(&mut self) {
        let mut rest = std::mem::take(&mut self.out);
        while !rest.is_empty() {
            let Some(stream) = &mut self.stream else { return };
            match stream.write(&rest) {
                Ok(written) => drop(rest.drain(..written)),
                // Both ends are full: take what comes, so that the other one can go on.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.pull(),
                Err(_) => return,
            }
        }
    }

    fn pull(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let mut buffer = [0; 65_536];
        while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
            self.incoming.extend_from_slice(&buffer[..bytes]);
        }
        let mut at = 0;
        while let Some(head) = self.incoming.get(at..at + ENTRY_BYTES).and_then(|head| head.try_into().ok()) {
            let completion = Completion::from_bytes(head);
            let first = at + ENTRY_BYTES;
            let Some(data) = self.incoming.get(first..first + completion.in_bytes as usize) else { break };
            at = first + data.len();
            if completion.tag == 0 {
                if completion.status != 0 {
                    let loss = if self.revives { Loss::Forgotten } else { Loss::Fenced };
                    self.ready.push_back(Event::SessionLost(loss));
                }
                continue;
            }
            if completion.status == libc::ESTALE as u32 {
                self.ready.push_back(Event::SessionLost(Loss::Fenced));
                continue;
            }
            let Completion { tag, status, results, .. } = completion;
            let data = data.to_vec();
            self.ready.push_back(Event::Done(Done { token: Token(u64::from(tag)), status, results, data }));
        }
        self.incoming.drain(..at);
    }
}

impl Backend for SocketBackend {
    type Data = Vec<u8>;

    fn begin(&mut self, start: Start) -> Result<(), BackendError> {
        let stream = UnixStream::connect(&self.path).map_err(|cause| BackendError::Begin(Box::new(cause)))?;
        stream.set_nonblocking(true).map_err(|cause| BackendError::Begin(Box::new(cause)))?;
        self.stream = Some(stream);
        self.out.clear();
        self.incoming.clear();
        self.ready.clear();
        self.revives = start.revives;
        let progress = Progress { acknowledged: start.acknowledged, revives: start.revives };
        let (epochs, speaks) = (Epochs::default(), versions::SERVERS.speaks);
        let Encoded { op, flags, args, .. } = Hello { session: start.session, progress, epochs, speaks }.encode();
        let hello = Submission { op, flags, args, ..Submission::default() };
        self.out.extend_from_slice(&hello.to_bytes());
        Ok(())
    }

    fn submit(&mut self, op: &Op<'_>) -> Result<Token, Refused> {
        let tag = self.next;
        self.next += 1;
        let submission = Submission {
            tag,
            op: op.op,
            flags: op.flags,
            sequence: op.sequence.unwrap_or(0),
            out_bytes: op.out.len() as u32,
            in_capacity: op.in_capacity,
            args: op.args,
            ..Submission::default()
        };
        self.out.extend_from_slice(&submission.to_bytes());
        self.out.extend_from_slice(op.out);
        Ok(Token(u64::from(tag)))
    }

    fn poll(&mut self) -> Option<Event<Vec<u8>>> {
        self.flush();
        if self.ready.is_empty() {
            self.pull();
        }
        self.ready.pop_front()
    }

    fn recalled(&mut self, _ino: Option<u64>) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_ref().expect("begun").as_fd()
    }

    fn may_sleep(&mut self) -> bool {
        self.flush();
        self.pull();
        self.ready.is_empty()
    }

    fn awake(&mut self) {}
}
