//! Transfers of whole blocks that the store begins and finishes later: the connection's own thread has many under way.
//! It begins them as requests come, and answers as they are done, several at a time. Long ones go between socket and
//! store without a copy. What is under way holds memory that all clients of the store share. So before this thread
//! waits for its client, or for another thread that does, it takes all of it out of there; or it has a share of what
//! may be held so ([`ByteStore::patience`]), and waits [`PATIENCE`] at most.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::answer_bytes::AnswerBytes;
use crate::bytes::{ByteStore, Patience, WholeRoom, WholeWrite};
use crate::line::{Line, write};
use crate::store::{BegunRead, ReadData, STORE_BLOCK_BYTES};
use crate::stream::{ClientInput, Output};
use crate::wire::{self, TransmissionRequest, flag};

/// Transfers of one connection that are under way, and their bytes.
const BEGUN_MAX: usize = 64;
const BEGUN_BYTES_MAX: u64 = 4 << 20;
/// A shorter read is copied, and answered together with others.
const DIRECT_FROM: u32 = 64 << 10;
/// For a client that says or takes nothing, in the midst of a request or an answer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// Of whole blocks, under way.
enum Transfer<'a> {
    Read(Box<dyn BegunRead>),
    Write(WholeWrite<'a>),
}

impl Transfer<'_> {
    fn is_done(&self) -> bool {
        match self {
            Transfer::Read(read) => read.is_done(),
            Transfer::Write(write) => write.is_done(),
        }
    }
}

/// Transfers that were begun and are not answered, in their order.
#[derive(Default)]
pub(crate) struct Begun<'a> {
    transfers: VecDeque<(TransmissionRequest, Transfer<'a>)>,
    bytes: u64,
}

impl<'a> Begun<'a> {
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    fn has_room(&self, bytes: u32) -> bool {
        self.is_empty() || self.transfers.len() < BEGUN_MAX && self.bytes + u64::from(bytes) <= BEGUN_BYTES_MAX
    }

    pub fn is_oldest_done(&self) -> bool {
        self.transfers.front().is_some_and(|(_, transfer)| transfer.is_done())
    }

    fn push(&mut self, request: TransmissionRequest, transfer: Transfer<'a>) {
        self.bytes += u64::from(request.bytes);
        self.transfers.push_back((request, transfer));
    }

    fn pop(&mut self) -> Option<(TransmissionRequest, Transfer<'a>)> {
        let oldest = self.transfers.pop_front()?;
        self.bytes -= u64::from(oldest.0.bytes);
        Some(oldest)
    }
}

/// What was read, which belongs behind what is to be said.
struct Tail {
    data: Box<dyn ReadData>,
    bytes: usize,
}

fn put_tail(tail: Option<Tail>, out: &mut AnswerBytes) {
    let Some(Tail { data, bytes }) = tail else { return };
    let room = out.room(bytes);
    if data.copy_to(room).is_err() {
        // It has as many bytes: what it says is checked when it is finished.
        room.fill(0);
    }
}

impl<'a> Line<'a> {
    /// Whether it is a transfer that the store begins and finishes later.
    pub(crate) fn may_begin(&self, request: &TransmissionRequest) -> bool {
        let is_whole = || {
            u64::from(request.bytes).is_multiple_of(STORE_BLOCK_BYTES)
                && request.offset.is_multiple_of(STORE_BLOCK_BYTES)
        };
        (1..=self.store.begun_bytes_max()).contains(&request.bytes) && is_whole() && self.check(request).is_ok()
    }

    /// Begins a read. `false`: it is to be carried out as others are.
    pub(crate) fn begin(&self, request: &TransmissionRequest, begun: &mut Begun<'a>, out: &mut AnswerBytes) -> bool {
        let begin = |store: &'a ByteStore| store.begin_read(request.offset, request.bytes);
        let read = self.once_there_is_room(request, begun, out, begin);
        let is_begun = read.is_some();
        read.into_iter().for_each(|read| begun.push(*request, Transfer::Read(read)));
        is_begun
    }

    /// `None`: it does not work, or nothing is under way here and others have all the room.
    fn once_there_is_room<T>(
        &self,
        request: &TransmissionRequest,
        begun: &mut Begun<'a>,
        out: &mut AnswerBytes,
        take: impl Fn(&'a ByteStore) -> Result<Option<T>, Errno>,
    ) -> Option<T> {
        while !begun.has_room(request.bytes) {
            self.answer_some(begun, out);
        }
        loop {
            match take(self.store) {
                Ok(None) if !begun.is_empty() => self.answer_some(begun, out),
                taken => return taken.ok().flatten(),
            }
        }
    }

    /// Takes what is to be written. `None`: it is under way. Otherwise it is to be carried out as others are.
    pub(crate) fn hear_write(
        &self,
        request: &TransmissionRequest,
        input: &mut ClientInput,
        begun: &mut Begun<'a>,
        out: &mut AnswerBytes,
    ) -> io::Result<Option<Vec<u8>>> {
        let bytes = request.bytes as usize;
        // One that is durable takes long, and others would be answered behind it. For one that comes encrypted this
        // thread would wait with nothing under way.
        let may_begin =
            request.flags & flag::FUA == 0 && self.may_begin(request) && (input.is_plain() || input.has(bytes));
        let mut data = Vec::new();
        if may_begin
            && input.is_plain()
            && let Some(mut whole) = self.room_for_write(request, begun, out)
        {
            let came = self.receive(&mut whole, bytes, input, begun)?;
            if came == bytes {
                self.begin_write(request, whole, begun, out);
                return Ok(None);
            }
            data.resize(came, 0);
            whole.room().copy_to(&mut data)?;
        }
        let came = data.len();
        if came == 0 {
            data = self.queue.lock().spare.pop().unwrap_or_default();
        }
        data.resize(bytes, 0);
        let rest = data.get_mut(came..).unwrap_or_default();
        if !begun.is_empty() && !input.has(rest.len()) {
            self.answer_all(begun, out);
        }
        input.read_exact(rest)?;
        if may_begin && let Some(mut whole) = self.room_for_write(request, begun, out) {
            whole.room().put(0, &data)?;
            self.queue.lock().keep(data);
            self.begin_write(request, whole, begun, out);
            return Ok(None);
        }
        Ok(Some(data))
    }

    fn room_for_write(
        &self,
        request: &TransmissionRequest,
        begun: &mut Begun<'a>,
        out: &mut AnswerBytes,
    ) -> Option<WholeRoom<'a>> {
        self.once_there_is_room(request, begun, out, |store: &'a ByteStore| store.write_room(request.bytes))
    }

    /// How much came: all of it, or the client has been waited for long enough.
    fn receive(
        &self,
        whole: &mut WholeRoom<'a>,
        bytes: usize,
        input: &mut ClientInput,
        begun: &Begun<'a>,
    ) -> io::Result<usize> {
        let (mut came, mut waits) = (0, None);
        while came < bytes {
            match input.receive_now(whole.room(), came, bytes)? {
                0 if !self.may_wait(&mut waits, begun.bytes + bytes as u64, |limit| input.wait(limit)) => break,
                some => came += some,
            }
        }
        Ok(came)
    }

    /// Waits for a client while memory is held that others want: whether it may be asked again. `waits`: since when it
    /// is waited for; nothing at first.
    fn may_wait(
        &self,
        waits: &mut Option<(Patience<'a>, Instant)>,
        held: u64,
        wait: impl FnOnce(Duration) -> bool,
    ) -> bool {
        if waits.is_none() {
            *waits = self.store.patience(held).map(|share| (share, Instant::now() + PATIENCE));
        }
        let Some((_, until)) = waits else { return false };
        until.checked_duration_since(Instant::now()).is_some_and(wait)
    }

    fn begin_write(
        &self,
        request: &TransmissionRequest,
        whole: WholeRoom<'a>,
        begun: &mut Begun<'a>,
        out: &mut AnswerBytes,
    ) {
        match whole.begin(request.offset) {
            Ok(write) => begun.push(*request, Transfer::Write(write)),
            Err(errno) => {
                self.answer_all(begun, out);
                out.put(&wire::simple_reply(request.cookie, wire::error_number(errno)));
                self.say(out);
            }
        }
    }

    /// The oldest transfer that is under way, and what was done meanwhile.
    pub(crate) fn answer_some(&self, begun: &mut Begun<'a>, out: &mut AnswerBytes) {
        let mut tail = self.finish_oldest(begun, out);
        while tail.is_none() && begun.is_oldest_done() {
            tail = self.finish_oldest(begun, out);
        }
        let mut writer = match self.writer.try_lock() {
            Some(writer) => writer,
            None => {
                put_tail(tail.take(), out);
                self.finish_all(begun, out);
                self.writer.lock()
            }
        };
        let said = self.say_soon(&writer, out, tail.as_ref(), begun);
        if said < out.len() + tail.as_ref().map_or(0, |tail| tail.bytes) {
            put_tail(tail, out);
            self.finish_all(begun, out);
            write(&mut writer, out.bytes().get(said..).unwrap_or_default());
        }
        out.clear();
    }

    /// How much of `out` and what is behind it the client took: all of it, or it has been waited for long enough.
    fn say_soon(&self, writer: &Output, out: &AnswerBytes, tail: Option<&Tail>, begun: &Begun<'a>) -> usize {
        let (mut said, mut waits) = (0, None);
        let tail_bytes = tail.map_or(0, |tail| tail.bytes);
        while said < out.len() + tail_bytes {
            let took = match (out.bytes().get(said..).filter(|rest| !rest.is_empty()), tail) {
                (Some(rest), _) => writer.write_now(rest, tail.is_some()),
                (None, Some(tail)) => writer.send_now(&*tail.data, said - out.len()),
                (None, None) => break,
            };
            let held = begun.bytes + tail_bytes as u64;
            if took == 0 && (held == 0 || !self.may_wait(&mut waits, held, |limit| writer.wait(limit))) {
                break;
            }
            said += took;
        }
        said
    }

    /// Whoever waits for others has nothing under way that they could wait for.
    pub(crate) fn answer_all(&self, begun: &mut Begun<'a>, out: &mut AnswerBytes) {
        if !begun.is_empty() {
            self.finish_all(begun, out);
            self.say(out);
        }
    }

    pub(crate) fn finish_all(&self, begun: &mut Begun<'a>, out: &mut AnswerBytes) {
        while !begun.is_empty() {
            put_tail(self.finish_oldest(begun, out), out);
        }
    }

    /// Its answer is in `out`, but for what is answered.
    fn finish_oldest(&self, begun: &mut Begun<'a>, out: &mut AnswerBytes) -> Option<Tail> {
        let (request, transfer) = begun.pop()?;
        let done = match transfer {
            Transfer::Read(read) => read.finish().map(Some),
            Transfer::Write(write) => write.finish().map(|()| None),
        };
        let before = out.len();
        match done {
            Ok(Some(data)) => {
                self.put_read_head(&request, out);
                let tail = Tail { data, bytes: request.bytes as usize };
                if request.bytes >= DIRECT_FROM {
                    return Some(tail);
                }
                put_tail(Some(tail), out);
            }
            Ok(None) => out.put(&wire::simple_reply(request.cookie, 0)),
            Err(errno) => self.refuse(&request, errno, out, before),
        }
        None
    }
}
