//! Connections. Each has a thread that reads requests; while one comes at a time it carries them out itself, and hands
//! them to workers of the connection's own as soon as the client does not wait for one before it asks the next. So a
//! client that reads no answers keeps nobody else waiting.
//!
//! Where the store begins reads and finishes them later, the connection's own thread has many under way: it asks as
//! requests come, and answers as reads are done, several at a time. What is under way holds memory that all clients of
//! the store share. So before this thread waits for its client, or for another thread that does, it takes all of it.
//!
//! Lock order: `Line::queue` and `Line::writer` are leaves, never held together.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::answer_bytes::AnswerBytes;
use crate::bytes::{ByteStore, Holes};
use crate::negotiation::{Export, Negotiation, NextStep, OPTION_BYTES_MAX, Security};
use crate::store::{BegunRead, BlockStore, STORE_BLOCK_BYTES};
use crate::stream::{ClientInput, Input, NbdListener, NbdStream, Output};
use crate::tls::{self, TlsSettings};
use crate::wire::{
    self, ALLOCATION_ID, Command, FIXED_NEWSTYLE, GREETING, NO_ZEROES, OPTION_MAGIC, REQUEST_BYTES, Reader, STATE_HOLE,
    STATE_ZERO, TRANSFER_BYTES_MAX, TransmissionRequest, chunk, flag,
};

const CONNECTIONS_MAX: usize = 64;
/// A client that has no export within this time goes; it may not know what it speaks with.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(10);
const OPTIONS_MAX: usize = 256;
/// Of one connection.
const WORKERS_MAX: usize = 8;
const QUEUED_MAX: usize = 128;
const QUEUED_BYTES_MAX: usize = 64 << 20;
/// A shorter read is not worth the question where there are holes.
const HOLES_FROM: u32 = 64 << 10;
/// Reads of one connection that are under way, and their bytes.
const BEGUN_MAX: usize = 64;
const BEGUN_BYTES_MAX: u64 = 4 << 20;
/// Of a connection, of writes that are over: their memory is used again.
const SPARE_MAX: usize = WORKERS_MAX + 1;
const SPARE_BYTES_MAX: usize = 1 << 20;
/// A thread that has nothing to do for so long gives memory back.
const IDLE: Duration = Duration::from_secs(1);
const PIECES_MAX: usize = 512;
/// For what is under way when the server ends, and clients that read no answers.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Exports, and those who are connected to them.
#[derive(Default)]
pub struct Exporter {
    exports: Vec<Export>,
    /// Of each.
    stores: Vec<ByteStore>,
    tls: Option<TlsSettings>,
    clients: Mutex<BTreeMap<u64, NbdStream>>,
    is_empty: Condvar,
    last: AtomicU64,
}

impl Exporter {
    /// The first is for clients that name none, too.
    pub fn export(&mut self, name: &str, description: &str, store: Box<dyn BlockStore>) {
        self.exports.push(Export {
            name: name.to_owned(),
            description: description.to_owned(),
            bytes: store.bytes(),
            is_read_only: store.is_read_only(),
        });
        self.stores.push(ByteStore::new(store));
    }

    /// Only who encrypts is told anything, and only whom these settings let in.
    pub fn demand_tls(&mut self, settings: TlsSettings) {
        self.tls = Some(settings);
    }

    /// Until `stop` is readable; what is under way then is answered, and flushed.
    ///
    /// # Errors
    /// Nobody can connect any more, or what was written is not on the medium.
    pub fn run(self: &Arc<Exporter>, listener: &NbdListener, stop: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(cause) => return Err(cause.into()),
            }
            let [connects, stops] = fds.map(|fd| !fd.revents().is_empty());
            if stops {
                break;
            }
            if connects {
                match listener.accept() {
                    Ok(stream) => self.welcome(stream),
                    // It is gone again, or there are no descriptors for now.
                    Err(error) => {
                        tracing::debug!(%error, "nobody connected");
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
            }
        }
        self.dismiss();
        Ok(self.stores.iter().try_for_each(ByteStore::flush)?)
    }

    fn welcome(self: &Arc<Exporter>, stream: NbdStream) {
        let mut clients = self.clients.lock();
        if clients.len() >= CONNECTIONS_MAX {
            return tracing::warn!("refused a client: {CONNECTIONS_MAX} are connected");
        }
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let Ok(also) = stream.try_clone() else { return };
        clients.insert(number, also);
        drop(clients);
        let exporter = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("nbd".to_owned()).spawn(move || {
            if let Err(error) = exporter.converse(stream) {
                tracing::info!(client = number, %error, "a connection ended");
            }
            exporter.leave(number);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for a client");
            self.leave(number);
        }
    }

    fn leave(&self, number: u64) {
        let mut clients = self.clients.lock();
        clients.remove(&number);
        if clients.is_empty() {
            self.is_empty.notify_all();
        }
    }

    /// What was asked is answered; who does not read that is left.
    fn dismiss(&self) {
        let until = Instant::now() + END_PATIENCE;
        let mut clients = self.clients.lock();
        clients.values().for_each(|client| client.shutdown(Shutdown::Read));
        while !clients.is_empty() {
            if self.is_empty.wait_until(&mut clients, until).timed_out() {
                clients.values().for_each(|client| client.shutdown(Shutdown::Both));
                return;
            }
        }
    }

    /// One client, until it goes.
    pub fn converse_over(&self, stream: UnixStream) -> io::Result<()> {
        self.converse(NbdStream::Unix(stream))
    }

    fn converse(&self, stream: NbdStream) -> io::Result<()> {
        stream.limit(Some(NEGOTIATION_LIMIT))?;
        let Some(Agreed { export, store, form, mut input, output }) = self.negotiate(stream)? else { return Ok(()) };
        output.with_socket(|socket| socket.limit(None))?;
        let line = Line {
            export,
            store,
            agreed: form,
            writer: Mutex::new(output),
            queue: Mutex::default(),
            more: Condvar::new(),
            room: Condvar::new(),
        };
        std::thread::scope(|scope| {
            let done = line.read_requests(scope, &mut input);
            line.queue.lock().is_over = true;
            line.more.notify_all();
            done
        })
    }

    /// `None`: the client wants no export.
    fn negotiate(&self, stream: NbdStream) -> io::Result<Option<Agreed<'_>>> {
        let mut input = ClientInput::new(Input::Plain(stream.try_clone()?));
        let mut output = Output::Plain(stream);
        output.write_all(&[&GREETING[..], &(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes()].concat())?;
        let until = Instant::now() + NEGOTIATION_LIMIT;
        let flags = u32::from_be_bytes(read_array(&mut input)?);
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Err(strange("flags that the server did not offer"));
        }
        let security = if self.tls.is_some() { Security::Demanded } else { Security::Plain };
        let mut negotiation = Negotiation::new(&self.exports, flags, security);
        for _ in 0..OPTIONS_MAX {
            if Instant::now() > until {
                break;
            }
            let head: [u8; 16] = read_array(&mut input)?;
            let mut head = Reader(&head);
            let (Some(OPTION_MAGIC), Some(number), Some(bytes)) = (head.u64(), head.u32(), head.u32()) else {
                return Err(strange("no option where one is due"));
            };
            let data = if bytes > OPTION_BYTES_MAX {
                if io::copy(&mut input.by_ref().take(bytes.into()), &mut io::sink())? < u64::from(bytes) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                None
            } else {
                let mut data = vec![0; bytes as usize];
                input.read_exact(&mut data)?;
                Some(data)
            };
            let mut replies = Vec::new();
            let next = negotiation.hear(number, data.as_deref(), &mut replies);
            output.write_all(&replies)?;
            match (next, &self.tls) {
                (NextStep::Option, _) => {}
                (NextStep::StartTls, Some(settings)) => {
                    let Output::Plain(stream) = output else { return Err(strange("encryption inside of encryption")) };
                    // Somebody on the way could have put it there, to be taken for what the client says encrypted.
                    if !input.ahead().is_empty() {
                        return Err(strange("something behind STARTTLS that is not encrypted"));
                    }
                    let (reader, writer) = tls::seal(settings, stream)?;
                    input = ClientInput::new(Input::Sealed(reader));
                    output = Output::Sealed(writer);
                    negotiation = Negotiation::new(&self.exports, flags, Security::Sealed);
                }
                (NextStep::End | NextStep::StartTls, _) => return Ok(None),
                (NextStep::Transmission, _) => {
                    let Some((place, tells_allocation)) = negotiation.chosen() else { break };
                    let (Some(export), Some(store)) = (self.exports.get(place), self.stores.get(place)) else { break };
                    let form = Form { is_structured: negotiation.is_structured, tells_allocation };
                    return Ok(Some(Agreed { export, store, form, input, output }));
                }
            }
        }
        Err(strange("it chose no export"))
    }
}

fn strange(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn write(writer: &mut Output, bytes: &[u8]) {
    if writer.write_all(bytes).is_err() {
        // Whoever reads learns it.
        writer.with_socket(|socket| socket.shutdown(Shutdown::Both));
    }
}

fn read_array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Who has an export.
struct Agreed<'a> {
    export: &'a Export,
    store: &'a ByteStore,
    form: Form,
    input: ClientInput,
    output: Output,
}

/// Of answers.
#[derive(Clone, Copy, Debug)]
struct Form {
    is_structured: bool,
    tells_allocation: bool,
}

/// A client that has an export.
struct Line<'a> {
    export: &'a Export,
    store: &'a ByteStore,
    agreed: Form,
    writer: Mutex<Output>,
    queue: Mutex<Queue>,
    more: Condvar,
    room: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// Memory of earlier writes.
    spare: Vec<Vec<u8>>,
    /// Of those that wait or are carried out.
    bytes: usize,
    busy: usize,
    workers: usize,
    is_over: bool,
}

struct Job {
    request: TransmissionRequest,
    /// Of a write.
    data: Vec<u8>,
}

impl Job {
    fn bytes(&self) -> usize {
        match self.request.command {
            Command::Read | Command::Write => self.request.bytes as usize,
            _ => 0,
        }
    }
}

impl Queue {
    fn has_room(&self, job: &Job) -> bool {
        self.waiting.len() < QUEUED_MAX && (self.bytes == 0 || self.bytes + job.bytes() <= QUEUED_BYTES_MAX)
    }

    fn keep(&mut self, data: Vec<u8>) {
        if (1..=SPARE_BYTES_MAX).contains(&data.capacity()) && self.spare.len() < SPARE_MAX {
            self.spare.push(data);
        }
    }
}

/// Reads that were begun and are not answered, in their order.
#[derive(Default)]
struct Begun {
    reads: VecDeque<(TransmissionRequest, Box<dyn BegunRead>)>,
    bytes: u64,
}

impl Begun {
    fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    fn has_room(&self, bytes: u32) -> bool {
        self.is_empty() || self.reads.len() < BEGUN_MAX && self.bytes + u64::from(bytes) <= BEGUN_BYTES_MAX
    }

    fn is_oldest_done(&self) -> bool {
        self.reads.front().is_some_and(|(_, read)| read.is_done())
    }

    fn push(&mut self, request: TransmissionRequest, read: Box<dyn BegunRead>) {
        self.bytes += u64::from(request.bytes);
        self.reads.push_back((request, read));
    }

    fn pop(&mut self) -> Option<(TransmissionRequest, Box<dyn BegunRead>)> {
        let oldest = self.reads.pop_front()?;
        self.bytes -= u64::from(oldest.0.bytes);
        Some(oldest)
    }
}

/// Where the bytes of a read come from.
type Reading<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), Errno>;

impl<'a> Line<'a> {
    /// Until the client ends the connection, or breaks the protocol; what it asked before is answered.
    fn read_requests<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        input: &mut ClientInput,
    ) -> io::Result<()> {
        let mut begun = Begun::default();
        let mut out = AnswerBytes::default();
        let done = self.hear(scope, input, &mut begun, &mut out);
        self.finish_all(&mut begun, &mut out);
        self.say(&mut out);
        done
    }

    fn hear<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        input: &mut ClientInput,
        begun: &mut Begun,
        out: &mut AnswerBytes,
    ) -> io::Result<()> {
        loop {
            while !begun.is_empty() && !input.has(REQUEST_BYTES) {
                self.answer_some(begun, out);
            }
            if out.is_large() && input.is_quiet_for(IDLE) {
                out.give_back();
            }
            let head: [u8; REQUEST_BYTES] = match read_array(input) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                head => head?,
            };
            let request = TransmissionRequest::parse(&head).ok_or_else(|| strange("no request where one is due"))?;
            if self.may_begin(&request) && self.begin(&request, begun, out) {
                continue;
            }
            // However much else it asks.
            if begun.is_oldest_done() {
                self.answer_some(begun, out);
            }
            let mut data = Vec::new();
            match request.command {
                Command::Disconnect => return Ok(()),
                Command::Write if request.bytes > TRANSFER_BYTES_MAX => {
                    return Err(strange("a write that is too long"));
                }
                Command::Write => {
                    data = self.queue.lock().spare.pop().unwrap_or_default();
                    data.resize(request.bytes as usize, 0);
                    if !begun.is_empty() && !input.has(data.len()) {
                        self.answer_all(begun, out);
                    }
                    input.read_exact(&mut data)?;
                }
                _ => {}
            }
            let job = Job { request, data };
            if begun.is_empty() && input.ahead().is_empty() && self.is_idle() {
                self.carry_out(&job, out);
                self.queue.lock().keep(job.data);
            } else {
                self.queue(scope, job, begun, out);
            }
        }
    }

    /// Whether it is a read that the store begins and finishes later.
    fn may_begin(&self, request: &TransmissionRequest) -> bool {
        let is_whole = || {
            u64::from(request.bytes).is_multiple_of(STORE_BLOCK_BYTES)
                && request.offset.is_multiple_of(STORE_BLOCK_BYTES)
        };
        request.command == Command::Read
            && (1..=self.store.begun_bytes_max()).contains(&request.bytes)
            && is_whole()
            && self.check(request).is_ok()
    }

    /// `false`: it is to be carried out as others are.
    fn begin(&self, request: &TransmissionRequest, begun: &mut Begun, out: &mut AnswerBytes) -> bool {
        while !begun.has_room(request.bytes) {
            self.answer_some(begun, out);
        }
        loop {
            match self.store.begin_read(request.offset, request.bytes) {
                Ok(Some(read)) => {
                    begun.push(*request, read);
                    return true;
                }
                // Others have the room.
                Ok(None) if !begun.is_empty() => self.answer_some(begun, out),
                Ok(None) | Err(_) => return false,
            }
        }
    }

    /// The oldest read that is under way, and what was done meanwhile.
    fn answer_some(&self, begun: &mut Begun, out: &mut AnswerBytes) {
        self.finish_oldest(begun, out);
        while begun.is_oldest_done() {
            self.finish_oldest(begun, out);
        }
        let mut writer = match self.writer.try_lock() {
            Some(writer) => writer,
            None => {
                self.finish_all(begun, out);
                self.writer.lock()
            }
        };
        let said = writer.write_now(out.bytes());
        if said < out.len() {
            self.finish_all(begun, out);
            write(&mut writer, out.bytes().get(said..).unwrap_or_default());
        }
        out.clear();
    }

    /// Whoever waits for others has nothing under way that they could wait for.
    fn answer_all(&self, begun: &mut Begun, out: &mut AnswerBytes) {
        if !begun.is_empty() {
            self.finish_all(begun, out);
            self.say(out);
        }
    }

    fn finish_all(&self, begun: &mut Begun, out: &mut AnswerBytes) {
        while !begun.is_empty() {
            self.finish_oldest(begun, out);
        }
    }

    fn finish_oldest(&self, begun: &mut Begun, out: &mut AnswerBytes) {
        let Some((request, read)) = begun.pop() else { return };
        let mut read = Some(read);
        // It is asked for once.
        self.answer(&Job { request, data: Vec::new() }, out, &mut |_, into| {
            read.take().ok_or(Errno::INVAL)?.finish(into)
        });
    }

    fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.busy == 0 && queue.waiting.is_empty()
    }

    fn queue<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        job: Job,
        begun: &mut Begun,
        out: &mut AnswerBytes,
    ) {
        let mut queue = self.queue.lock();
        if !queue.has_room(&job) && !begun.is_empty() {
            drop(queue);
            self.answer_all(begun, out);
            queue = self.queue.lock();
        }
        while !queue.has_room(&job) {
            self.room.wait(&mut queue);
        }
        queue.bytes += job.bytes();
        queue.waiting.push_back(job);
        if queue.waiting.len() + queue.busy > queue.workers && queue.workers < WORKERS_MAX {
            let spawned = std::thread::Builder::new().name("nbd-io".to_owned()).spawn_scoped(scope, || self.work());
            queue.workers += usize::from(spawned.is_ok());
        }
        if queue.workers > 0 {
            self.more.notify_one();
            return;
        }
        // There is no thread to be had: this one does it.
        let job = queue.waiting.pop_front();
        drop(queue);
        self.answer_all(begun, out);
        if let Some(job) = job {
            self.carry_out(&job, &mut AnswerBytes::default());
            self.queue.lock().bytes -= job.bytes();
        }
    }

    fn work(&self) {
        let mut out = AnswerBytes::default();
        let mut queue = self.queue.lock();
        loop {
            let Some(job) = queue.waiting.pop_front() else {
                if queue.is_over {
                    return;
                }
                if !out.is_large() && queue.spare.is_empty() {
                    self.more.wait(&mut queue);
                } else if self.more.wait_for(&mut queue, IDLE).timed_out() {
                    queue.spare = Vec::new();
                    out.give_back();
                }
                continue;
            };
            queue.busy += 1;
            drop(queue);
            self.carry_out(&job, &mut out);
            queue = self.queue.lock();
            queue.busy -= 1;
            queue.bytes -= job.bytes();
            queue.keep(job.data);
            self.room.notify_one();
        }
    }

    fn carry_out(&self, job: &Job, out: &mut AnswerBytes) {
        self.answer(job, out, &mut |offset, into| self.store.read(offset, into));
        self.say(out);
    }

    fn say(&self, out: &mut AnswerBytes) {
        write(&mut self.writer.lock(), out.bytes());
        out.clear();
    }

    /// Behind what is there.
    fn answer(&self, job: &Job, answer: &mut AnswerBytes, read: Reading<'_>) {
        let request = job.request;
        let is_in_chunks = match request.command {
            Command::Read => self.agreed.is_structured,
            Command::BlockStatus => self.agreed.tells_allocation,
            _ => false,
        };
        let before = answer.len();
        let done = self.check(&request).and_then(|()| match request.command {
            Command::Read if is_in_chunks => self.read_chunks(&request, answer, read),
            Command::Read => {
                answer.put(&wire::simple_reply(request.cookie, 0));
                read(request.offset, answer.room(request.bytes as usize))
            }
            Command::BlockStatus => self.block_status(&request, answer),
            _ => self.change(job).map(|()| answer.put(&wire::simple_reply(request.cookie, 0))),
        });
        if let Err(errno) = done {
            let number = wire::error_number(errno);
            // Chunks that were made are good; of a simple reply nothing is.
            if is_in_chunks {
                answer.put(&wire::chunk_head(request.cookie, (chunk::DONE, chunk::ERROR), 6));
                answer.put(&number.to_be_bytes());
                answer.put(&0_u16.to_be_bytes());
            } else {
                answer.cut(before);
                answer.put(&wire::simple_reply(request.cookie, number));
            }
        }
    }

    fn check(&self, request: &TransmissionRequest) -> Result<(), Errno> {
        let allowed = match request.command {
            Command::Read if self.agreed.is_structured => flag::DF,
            Command::Write | Command::Trim => flag::FUA,
            Command::WriteZeroes => flag::FUA | flag::NO_HOLE,
            Command::BlockStatus if self.agreed.tells_allocation => flag::REQ_ONE,
            Command::Read | Command::Flush => 0,
            Command::Disconnect | Command::BlockStatus | Command::Other(_) => return Err(Errno::INVAL),
        };
        // FUA is allowed with everything, and means nothing where nothing is written.
        if request.flags & !(allowed | flag::FUA) != 0 {
            return Err(Errno::INVAL);
        }
        let export = &self.export;
        let is_change = matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes);
        if is_change && export.is_read_only {
            return Err(Errno::PERM);
        }
        let is_inside = request.offset.checked_add(request.bytes.into()).is_some_and(|end| end <= export.bytes);
        match request.command {
            Command::Flush => Ok(()),
            Command::Read if request.bytes > TRANSFER_BYTES_MAX => Err(Errno::OVERFLOW),
            Command::BlockStatus if request.bytes == 0 => Err(Errno::INVAL),
            _ if is_inside => Ok(()),
            Command::Write | Command::WriteZeroes => Err(Errno::NOSPC),
            _ => Err(Errno::INVAL),
        }
    }

    fn read_chunks(
        &self,
        request: &TransmissionRequest,
        answer: &mut AnswerBytes,
        read: Reading<'_>,
    ) -> Result<(), Errno> {
        if request.bytes == 0 {
            answer.put(&wire::chunk_head(request.cookie, (chunk::DONE, chunk::NONE), 0));
            return Ok(());
        }
        let whole = || vec![(u64::from(request.bytes), true)];
        let is_begun = self.store.begun_bytes_max() > 0;
        let may_be_cut = request.flags & flag::DF == 0 && request.bytes >= HOLES_FROM && !is_begun;
        let pieces = match may_be_cut {
            true => self.store.pieces(request.offset, request.bytes.into(), PIECES_MAX),
            false => whole(),
        };
        // More than that is read as if it had none.
        let is_all = pieces.iter().map(|piece| piece.0).sum::<u64>() == u64::from(request.bytes);
        let pieces = if is_all { pieces } else { whole() };
        let (mut at, end) = (request.offset, request.offset + u64::from(request.bytes));
        for (bytes, is_data) in pieces {
            let done = if at + bytes == end { chunk::DONE } else { 0 };
            let before = answer.len();
            if is_data {
                answer.put(&wire::chunk_head(request.cookie, (done, chunk::OFFSET_DATA), 8 + bytes as u32));
                answer.put(&at.to_be_bytes());
                let done = read(at, answer.room(bytes as usize));
                done.inspect_err(|_| answer.cut(before))?;
            } else {
                answer.put(&wire::chunk_head(request.cookie, (done, chunk::OFFSET_HOLE), 12));
                answer.put(&at.to_be_bytes());
                answer.put(&(bytes as u32).to_be_bytes());
            }
            at += bytes;
        }
        Ok(())
    }

    fn block_status(&self, request: &TransmissionRequest, answer: &mut AnswerBytes) -> Result<(), Errno> {
        let most = if request.flags & flag::REQ_ONE == 0 { PIECES_MAX } else { 1 };
        let pieces = self.store.pieces(request.offset, request.bytes.into(), most);
        answer.put(&wire::chunk_head(request.cookie, (chunk::DONE, chunk::BLOCK_STATUS), 4 + 8 * pieces.len() as u32));
        answer.put(&ALLOCATION_ID.to_be_bytes());
        for (bytes, is_data) in pieces {
            let state = if is_data { 0 } else { STATE_HOLE | STATE_ZERO };
            answer.put(&(bytes as u32).to_be_bytes());
            answer.put(&state.to_be_bytes());
        }
        Ok(())
    }

    fn change(&self, job: &Job) -> Result<(), Errno> {
        let (request, store) = (&job.request, &self.store);
        let (offset, bytes) = (request.offset, u64::from(request.bytes));
        match request.command {
            Command::Flush => return store.flush(),
            Command::Write if request.flags & flag::FUA != 0 => return store.write_through(offset, &job.data),
            Command::Write => store.write(offset, &job.data)?,
            Command::Trim => store.trim(offset, bytes)?,
            Command::WriteZeroes => {
                let holes = if request.flags & flag::NO_HOLE == 0 { Holes::Allowed } else { Holes::Refused };
                store.zero(offset, bytes, holes)?;
            }
            _ => return Err(Errno::INVAL),
        }
        if request.flags & flag::FUA == 0 { Ok(()) } else { store.flush() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    use super::*;
    use crate::bytes::tests::MemoryStore;
    use crate::wire::{REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, option};

    const SIZE: u64 = 8 << 20;

    struct Served {
        _dir: tempfile::TempDir,
        path: PathBuf,
        stop: Option<OwnedFd>,
        thread: Option<JoinHandle<io::Result<()>>>,
    }

    fn serve() -> Served {
        serve_store(Box::new(MemoryStore::of_blocks(SIZE as usize / 4096)))
    }

    fn serve_store(store: Box<dyn BlockStore>) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = NbdListener::unix(&path).unwrap();
        // Its other end is readable once this one is closed.
        let (stopped, stop) = rustix::pipe::pipe().unwrap();
        let mut exporter = Exporter::default();
        exporter.export("disk", "", store);
        let exporter = Arc::new(exporter);
        let thread = std::thread::spawn(move || exporter.run(&listener, stopped.as_fd()));
        Served { _dir: dir, path, stop: Some(stop), thread: Some(thread) }
    }

    impl Served {
        fn connect(&self) -> UnixStream {
            let stream = UnixStream::connect(&self.path).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream
        }

        fn client(&self) -> Client {
            let mut stream = self.connect();
            let greeting: [u8; 18] = read_array(&mut stream).unwrap();
            assert_eq!(greeting[..16], GREETING);
            let go = [
                &3_u32.to_be_bytes()[..],
                b"IHAVEOPT",
                &option::EXPORT_NAME.to_be_bytes(),
                &4_u32.to_be_bytes(),
                b"disk",
            ];
            stream.write_all(&go.concat()).unwrap();
            let export: [u8; 10] = read_array(&mut stream).unwrap();
            assert_eq!(export[..8], SIZE.to_be_bytes());
            Client(stream)
        }

        fn end(&mut self) -> io::Result<()> {
            drop(self.stop.take());
            self.thread.take().unwrap().join().unwrap()
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            if self.thread.is_some() {
                let _ = self.end();
            }
        }
    }

    struct Client(UnixStream);

    fn head((command, flags): (u16, u16), cookie: u64, offset: u64, bytes: u32) -> Vec<u8> {
        let head = [
            &REQUEST_MAGIC.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &cookie.to_be_bytes(),
            &offset.to_be_bytes(),
            &bytes.to_be_bytes(),
        ];
        head.concat()
    }

    /// All its clients together have so many requests under way at most, and none that waits gives another's place
    /// back.
    struct NarrowStore {
        blocks: MemoryStore,
        free: Arc<(Mutex<usize>, Condvar)>,
        may_write: Arc<(Mutex<bool>, Condvar)>,
    }

    struct Place(Arc<(Mutex<usize>, Condvar)>);

    impl Drop for Place {
        fn drop(&mut self) {
            *self.0.0.lock() += 1;
            self.0.1.notify_one();
        }
    }

    struct NarrowRead {
        read: Box<dyn BegunRead>,
        _place: Place,
    }

    impl BegunRead for NarrowRead {
        fn is_done(&self) -> bool {
            self.read.is_done()
        }

        fn finish(self: Box<Self>, into: &mut [u8]) -> Result<(), Errno> {
            self.read.finish(into)
        }
    }

    impl NarrowStore {
        fn of_places(count: usize) -> NarrowStore {
            NarrowStore {
                blocks: MemoryStore::of_blocks(SIZE as usize / 4096),
                free: Arc::new((Mutex::new(count), Condvar::new())),
                may_write: Arc::new((Mutex::new(true), Condvar::new())),
            }
        }

        fn place(&self) -> Place {
            let mut free = self.free.0.lock();
            self.free.1.wait_while(&mut free, |free| *free == 0);
            *free -= 1;
            Place(Arc::clone(&self.free))
        }
    }

    impl BlockStore for NarrowStore {
        fn bytes(&self) -> u64 {
            self.blocks.bytes()
        }

        fn is_read_only(&self) -> bool {
            false
        }

        fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
            let _place = self.place();
            self.blocks.read(offset, into)
        }

        fn begun_bytes_max(&self) -> u32 {
            1 << 20
        }

        fn begin_read(&self, offset: u64, bytes: u32) -> Result<Option<Box<dyn BegunRead>>, Errno> {
            let mut free = self.free.0.lock();
            let Some(left) = free.checked_sub(1) else { return Ok(None) };
            *free = left;
            drop(free);
            let _place = Place(Arc::clone(&self.free));
            let begun = self.blocks.begin_read(offset, bytes)?;
            Ok(begun.map(|read| Box::new(NarrowRead { read, _place }) as Box<dyn BegunRead>))
        }

        fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
            self.may_write.1.wait_while(&mut self.may_write.0.lock(), |may_write| !*may_write);
            let _place = self.place();
            self.blocks.write(offset, data)
        }

        fn flush(&self) -> Result<(), Errno> {
            Ok(())
        }

        fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
            self.blocks.discard(offset, bytes)
        }

        fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
            self.blocks.allocate(offset, bytes)
        }

        fn data_from(&self, offset: u64) -> Option<(u64, u64)> {
            self.blocks.data_from(offset)
        }
    }

    impl Client {
        fn send(&mut self, command: (u16, u16), cookie: u64, offset: u64, bytes: u32, data: &[u8]) -> io::Result<()> {
            self.0.write_all(&[&head(command, cookie, offset, bytes)[..], data].concat())
        }

        /// Of a read of one block.
        fn block(&mut self) -> u64 {
            let (error, cookie) = self.answer().unwrap();
            assert_eq!(error, 0);
            let _: [u8; 4096] = read_array(&mut self.0).unwrap();
            cookie
        }

        /// The protocol's number of what went wrong, and whose answer it is.
        fn answer(&mut self) -> io::Result<(u32, u64)> {
            let head: [u8; 16] = read_array(&mut self.0)?;
            let mut head = Reader(&head);
            assert_eq!(head.u32(), Some(SIMPLE_REPLY_MAGIC));
            Ok((head.u32().unwrap(), head.u64().unwrap()))
        }

        fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
            self.send((1, 0), 7, offset, data.len() as u32, data).unwrap();
            self.answer().unwrap().0
        }

        fn read(&mut self, offset: u64, bytes: usize) -> Result<Vec<u8>, u32> {
            self.send((0, 0), 8, offset, bytes as u32, b"").unwrap();
            match self.answer().unwrap() {
                (0, 8) => {
                    let mut data = vec![0; bytes];
                    self.0.read_exact(&mut data).unwrap();
                    Ok(data)
                }
                (error, _) => Err(error),
            }
        }
    }

    #[test]
    fn clients_that_share_a_block_undo_nothing_of_each_other() {
        let served = serve();
        // Neither at the border of a block.
        let ranges = [(1000_u64, 5000_u64), (5000, 9100)];
        std::thread::scope(|scope| {
            for (number, (from, to)) in ranges.into_iter().enumerate() {
                let mut client = served.client();
                scope.spawn(move || {
                    for round in 0..300_u64 {
                        let at = from + round * 37 % (to - from);
                        let bytes = (to - at).min(1 + round % 700);
                        let fill = vec![(number as u8 + 1) * 100 + (round % 50) as u8; bytes as usize];
                        assert_eq!(client.write(at, &fill), 0);
                        assert_eq!(client.read(at, bytes as usize).unwrap(), fill, "round {round}");
                    }
                });
            }
        });
        let all = served.client().read(0, 12288).unwrap();
        assert!(all[..1000].iter().chain(&all[9100..]).all(|byte| *byte == 0));
        assert!(
            all[1000..5000].iter().all(|byte| *byte < 200)
                && all[5000..9100].iter().all(|byte| *byte == 0 || *byte >= 200)
        );
    }

    #[test]
    fn requests_that_cannot_be_are_refused_and_the_connection_goes_on() {
        let served = serve();
        let mut client = served.client();
        assert_eq!(client.write(SIZE - 10, &[1; 11]), 28, "no space behind the end");
        assert_eq!(client.read(SIZE, 1), Err(22));
        assert_eq!(client.read(u64::MAX, 2), Err(22));
        client.send((0, 0), 1, 0, TRANSFER_BYTES_MAX + 1, b"").unwrap();
        assert_eq!(client.answer().unwrap(), (75, 1));
        for (command, flags) in [(9, 0), (7, 0), (0, 1 << 9), (4, flag::NO_HOLE)] {
            client.send((command, flags), 2, 0, 4096, b"").unwrap();
            assert_eq!(client.answer().unwrap(), (22, 2), "{command} {flags}");
        }
        assert_eq!(client.write(3, b"still"), 0);
        client.send((1, flag::FUA), 3, 100, 2, b"ok").unwrap();
        assert_eq!(client.answer().unwrap(), (0, 3));
        assert_eq!(client.read(3, 5).unwrap(), b"still");
        assert_eq!(client.read(17, 0).unwrap(), b"");
    }

    #[test]
    fn who_says_nonsense_is_left_and_harms_nobody() {
        let served = serve();
        let option = |number: u32, bytes: u32| [&b"IHAVEOPT"[..], &number.to_be_bytes(), &bytes.to_be_bytes()].concat();
        let said: [Vec<u8>; 6] = [
            u32::MAX.to_be_bytes().to_vec(),
            [&3_u32.to_be_bytes()[..], b"IHAVENON00000000"].concat(),
            [&3_u32.to_be_bytes()[..], &option(option::GO, u32::MAX), &[0; 1000]].concat(),
            [&3_u32.to_be_bytes()[..], &option(option::EXPORT_NAME, 4), b"none"].concat(),
            [&3_u32.to_be_bytes()[..], &option(option::EXPORT_NAME, 4), b"disk", &[0; REQUEST_BYTES]].concat(),
            [&3_u32.to_be_bytes()[..], &option(option::ABORT, 0)].concat(),
        ];
        for said in said {
            let mut stream = served.connect();
            stream.write_all(&said).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut heard = Vec::new();
            // It ends, cut off or not.
            let _ = stream.read_to_end(&mut heard);
            assert!(heard.len() < 4096);
        }
        let mut client = served.client();
        client.send((1, 0), 1, 0, u32::MAX, b"").unwrap();
        assert!(client.answer().is_err(), "a write that nobody can take ends the connection");
        assert_eq!(served.client().write(0, b"well"), 0);
    }

    #[test]
    fn client_that_reads_no_answers_keeps_nobody_waiting_and_the_end_neither() {
        let mut served = serve();
        let mut deaf = served.client();
        deaf.0.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        for cookie in 0..2000 {
            if deaf.send((0, 0), cookie, 0, 1 << 20, b"").is_err() {
                break;
            }
        }
        let mut other = served.client();
        for round in 0..50 {
            assert_eq!(other.write(round * 4096, &[7; 4096]), 0);
        }
        let began = Instant::now();
        served.end().unwrap();
        assert!(began.elapsed() < END_PATIENCE + Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn who_says_half_a_write_holds_nothing_that_others_wait_for() {
        let served = serve_store(Box::new(NarrowStore::of_places(16)));
        let mut slow: Vec<Client> = (0..4).map(|_| served.client()).collect();
        for client in &mut slow {
            let reads = (0..16).flat_map(|cookie| head((0, 0), cookie, cookie * 4096, 4096));
            let said: Vec<u8> = reads.chain(head((1, 0), 99, 0, 4096)).collect();
            client.0.write_all(&said).unwrap();
        }
        assert_eq!(served.client().write(0, &[7; 4096]), 0);
        for client in &mut slow {
            // In any order: who finds no room is answered by a worker.
            let answered: std::collections::BTreeSet<u64> = (0..16).map(|_| client.block()).collect();
            assert!(answered.into_iter().eq(0..16));
            client.0.write_all(&[8; 4096]).unwrap();
            assert_eq!(client.answer().unwrap(), (0, 99));
        }
    }

    #[test]
    fn reads_are_answered_while_writes_behind_them_wait() {
        let store = NarrowStore::of_places(16);
        let may_write = Arc::clone(&store.may_write);
        *may_write.0.lock() = false;
        let served = serve_store(Box::new(store));
        let mut client = served.client();
        let writes = (1..=300).flat_map(|cookie| [head((1, 0), cookie, cookie * 8, 8), vec![9; 8]].concat());
        let said: Vec<u8> = head((0, 0), 0, 4 << 20, 4096).into_iter().chain(writes).collect();
        client.0.write_all(&said).unwrap();
        assert_eq!(client.block(), 0);
        *may_write.0.lock() = true;
        may_write.1.notify_all();
        let mut answered: Vec<u64> = (0..300).map(|_| client.answer().unwrap().1).collect();
        answered.sort_unstable();
        assert!(answered.into_iter().eq(1..=300));
    }

    #[test]
    fn clients_that_ask_much_at_a_time_never_wait_for_each_other_in_a_circle() {
        let served = serve_store(Box::new(NarrowStore::of_places(4)));
        std::thread::scope(|scope| {
            for number in 0..4_u64 {
                let mut client = served.client();
                let mut asks = Client(client.0.try_clone().unwrap());
                asks.0.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
                let request = move |cookie: u64| {
                    let offset = (number * 100 + cookie % 100) * 4096;
                    match cookie % 400 {
                        0..8 => head((0, 0), cookie, offset, 4096),
                        _ => [head((1, 0), cookie, offset, 4096), vec![number as u8; 4096]].concat(),
                    }
                };
                // There is always more of it.
                let said: Vec<u8> = (0..1600).flat_map(request).collect();
                scope.spawn(move || asks.0.write_all(&said).unwrap());
                scope.spawn(move || {
                    for _ in 0..1600 {
                        let (error, cookie) = client.answer().unwrap();
                        assert_eq!(error, 0);
                        if cookie % 400 < 8 {
                            let _: [u8; 4096] = read_array(&mut client.0).unwrap();
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn what_was_asked_is_answered_when_the_server_ends() {
        let mut served = serve();
        let mut client = served.client();
        for cookie in 0..64 {
            client.send((1, 0), cookie, cookie * 4096, 4096, &[cookie as u8; 4096]).unwrap();
        }
        // It has been heard.
        let mut answered = vec![client.answer().unwrap().1];
        served.end().unwrap();
        while let Ok((error, cookie)) = client.answer() {
            assert_eq!(error, 0);
            answered.push(cookie);
        }
        answered.sort_unstable();
        answered.dedup();
        assert!(!answered.is_empty());
        assert!(UnixStream::connect(&served.path).is_err(), "the socket is gone");
    }
}
