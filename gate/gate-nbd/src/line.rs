//! A client that has an export. Its thread reads requests; while one comes at a time it carries them out itself, and
//! hands them to workers of the connection's own as soon as the client does not wait for one before it asks the next.
//! So a client that reads no answers keeps nobody else waiting. Transfers that the store begins and finishes later are
//! in `transfers`.
//!
//! Lock order: `Line::queue` and `Line::writer` are leaves, never held together.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::Shutdown;
use std::thread::Scope;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::answer_bytes::AnswerBytes;
use crate::bytes::{ByteStore, Holes};
use crate::negotiation::Export;
use crate::stream::{ClientInput, Output, read_array, strange};
use crate::transfers::Begun;
use crate::wire::{
    self, ALLOCATION_ID, Command, REQUEST_BYTES, STATE_HOLE, STATE_ZERO, TRANSFER_BYTES_MAX, TransmissionRequest,
    chunk, flag,
};

/// Of one connection.
const WORKERS_MAX: usize = 8;
const QUEUED_MAX: usize = 128;
const QUEUED_BYTES_MAX: usize = 64 << 20;
/// A shorter read is not worth the question where there are holes.
const HOLES_FROM: u32 = 64 << 10;
/// Of a connection, of writes that are over: their memory is used again.
const SPARE_MAX: usize = WORKERS_MAX + 1;
const SPARE_BYTES_MAX: usize = 1 << 20;
/// A thread that has nothing to do for so long gives memory back.
const IDLE: Duration = Duration::from_secs(1);
const PIECES_MAX: usize = 512;

/// Who has an export.
pub(crate) struct Agreed<'a> {
    pub export: &'a Export,
    pub store: &'a ByteStore,
    pub form: Form,
    pub input: ClientInput,
    pub output: Output,
}

/// Of answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub is_structured: bool,
    pub tells_allocation: bool,
}

/// A client that has an export.
pub(crate) struct Line<'a> {
    export: &'a Export,
    pub store: &'a ByteStore,
    agreed: Form,
    pub writer: Mutex<Output>,
    pub queue: Mutex<Queue>,
    more: Condvar,
    room: Condvar,
}

#[derive(Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Job>,
    /// Memory of earlier writes.
    pub spare: Vec<Vec<u8>>,
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

    pub fn keep(&mut self, data: Vec<u8>) {
        if (1..=SPARE_BYTES_MAX).contains(&data.capacity()) && self.spare.len() < SPARE_MAX {
            self.spare.push(data);
        }
    }
}

pub(crate) fn write(writer: &mut Output, bytes: &[u8]) {
    if writer.write_all(bytes).is_err() {
        // Whoever reads learns it.
        writer.with_socket(|socket| socket.shutdown(Shutdown::Both));
    }
}

/// Of a chunk with data of a range.
fn put_data_head(request: &TransmissionRequest, done: u16, (at, bytes): (u64, u64), answer: &mut AnswerBytes) {
    answer.put(&wire::chunk_head(request.cookie, (done, chunk::OFFSET_DATA), 8 + bytes as u32));
    answer.put(&at.to_be_bytes());
}

impl<'a> Line<'a> {
    /// One client, until it goes.
    pub(crate) fn serve(agreed: Agreed<'a>) -> io::Result<()> {
        let Agreed { export, store, form, mut input, output } = agreed;
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
        begun: &mut Begun<'a>,
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
            if request.command == Command::Read && self.may_begin(&request) && self.begin(&request, begun, out) {
                continue;
            }
            // However much else it asks.
            if begun.is_oldest_done() {
                self.answer_some(begun, out);
            }
            let data = match request.command {
                Command::Disconnect => return Ok(()),
                Command::Write if request.bytes > TRANSFER_BYTES_MAX => {
                    return Err(strange("a write that is too long"));
                }
                Command::Write => match self.hear_write(&request, input, begun, out)? {
                    Some(data) => data,
                    None => continue,
                },
                _ => Vec::new(),
            };
            let job = Job { request, data };
            if begun.is_empty() && input.ahead().is_empty() && self.is_idle() {
                self.carry_out(&job, out);
                self.queue.lock().keep(job.data);
            } else {
                self.queue(scope, job, begun, out);
            }
        }
    }

    fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.busy == 0 && queue.waiting.is_empty()
    }

    fn queue<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        job: Job,
        begun: &mut Begun<'a>,
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
        self.answer(job, out);
        self.say(out);
    }

    pub(crate) fn say(&self, out: &mut AnswerBytes) {
        write(&mut self.writer.lock(), out.bytes());
        out.clear();
    }

    /// Behind what is there.
    fn answer(&self, job: &Job, answer: &mut AnswerBytes) {
        let request = job.request;
        let before = answer.len();
        let done = self.check(&request).and_then(|()| match request.command {
            Command::Read if self.agreed.is_structured => self.read_chunks(&request, answer),
            Command::Read => {
                self.put_read_head(&request, answer);
                self.store.read(request.offset, answer.room(request.bytes as usize))
            }
            Command::BlockStatus => self.block_status(&request, answer),
            _ => self.change(job).map(|()| answer.put(&wire::simple_reply(request.cookie, 0))),
        });
        if let Err(errno) = done {
            self.refuse(&request, errno, answer, before);
        }
    }

    /// `before`: where its answer begins.
    pub(crate) fn refuse(&self, request: &TransmissionRequest, errno: Errno, answer: &mut AnswerBytes, before: usize) {
        let is_in_chunks = match request.command {
            Command::Read => self.agreed.is_structured,
            Command::BlockStatus => self.agreed.tells_allocation,
            _ => false,
        };
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

    /// Of a read that is answered as a whole.
    pub(crate) fn put_read_head(&self, request: &TransmissionRequest, answer: &mut AnswerBytes) {
        if self.agreed.is_structured {
            put_data_head(request, chunk::DONE, (request.offset, request.bytes.into()), answer);
        } else {
            answer.put(&wire::simple_reply(request.cookie, 0));
        }
    }

    pub(crate) fn check(&self, request: &TransmissionRequest) -> Result<(), Errno> {
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

    fn read_chunks(&self, request: &TransmissionRequest, answer: &mut AnswerBytes) -> Result<(), Errno> {
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
                put_data_head(request, done, (at, bytes), answer);
                let done = self.store.read(at, answer.room(bytes as usize));
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
