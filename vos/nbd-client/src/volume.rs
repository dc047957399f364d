//! The medium over a connection.
//!
//! Each caller sends its request and waits for its answer; one thread hears the answers of all. Lock order: `sending`,
//! then `waiting`, then a request's own state.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use disk_core::{Access, Bulk, Medium, Need};
use nbd::{
    CHUNK_MAGIC, Command, REQUEST_BYTES, Reader, SIMPLE_REPLY_MAGIC, STATE_ZERO, TransmissionRequest, chunk, errno_of,
    transmission,
};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::connect::{NbdConnection, Offer};

/// Of one request: a longer transfer is several, so that no other one waits for all of it.
const PIECE_BYTES: u32 = 1 << 20;
/// Of what a piece of an answer has besides the data of a read.
const CHUNK_BYTES_MAX: u32 = 64 << 10;
/// A question about holes is about so much.
const LOOK_BYTES: u32 = 64 << 20;
/// In the answer to it: each block may be one, and some servers say of more than was asked.
const EXTENTS_MAX: usize = 1 << 15;
/// One request for zeros.
const ZEROS_BYTES: u32 = 1 << 30;
const BLOCK_BYTES: u64 = 4096;

pub struct NbdVolume {
    offer: Offer,
    access: Access,
    sending: Mutex<File>,
    cookie: AtomicU64,
    line: Arc<Line>,
}

/// Requests without an answer yet.
struct Line {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    requests: HashMap<u64, Arc<Pending>>,
    is_lost: bool,
    /// The end is this side's own wish.
    is_left: bool,
}

struct Pending {
    offset: u64,
    state: Mutex<State>,
    over: Condvar,
}

struct State {
    /// What a read has to be filled with.
    data: Vec<u8>,
    /// Of it, so much came.
    came: u64,
    /// Where extents end, and whether they read as zeros.
    extents: Vec<(u64, bool)>,
    error: Option<Errno>,
    is_over: bool,
}

impl NbdVolume {
    /// `lost` is called when the connection has ended before the volume is dropped; from then on everything answers
    /// `EIO`.
    ///
    /// # Errors
    /// There is no thread for what comes.
    pub fn new(
        connection: NbdConnection,
        read_only: bool,
        lost: impl FnOnce() + Send + 'static,
    ) -> io::Result<NbdVolume> {
        let NbdConnection { socket, offer } = connection;
        let line = Arc::new(Line { waiting: Mutex::default() });
        let (hearing, heard) = (File::from(socket.try_clone()?), Arc::clone(&line));
        std::thread::Builder::new().name("nbd".to_owned()).spawn(move || {
            let why = hear(hearing, &heard);
            if heard.lose() {
                tracing::error!(error = %why, "the connection to the NBD server is lost, and with it the volume");
                lost();
            }
        })?;
        let access = if read_only || offer.is_read_only() { Access::ReadOnly } else { Access::ReadWrite };
        Ok(NbdVolume { offer, access, sending: Mutex::new(File::from(socket)), cookie: AtomicU64::new(1), line })
    }

    /// By which somebody else ends the connection: who waits for a server that says nothing waits no more.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn ender(&self) -> io::Result<NbdEnder> {
        Ok(NbdEnder(self.sending.lock().try_clone()?))
    }

    /// Sends a request and waits until it is answered.
    fn ask(&self, command: Command, flags: u16, (offset, bytes): (u64, u32), data: &[u8]) -> Result<State, Errno> {
        let room = if command == Command::Read { bytes as usize } else { 0 };
        let cookie = self.cookie.fetch_add(1, Ordering::Relaxed);
        let pending = Arc::new(Pending {
            offset,
            state: Mutex::new(State { data: vec![0; room], came: 0, extents: Vec::new(), error: None, is_over: false }),
            over: Condvar::new(),
        });
        {
            let mut waiting = self.line.waiting.lock();
            if waiting.is_lost {
                return Err(Errno::IO);
            }
            waiting.requests.insert(cookie, Arc::clone(&pending));
        }
        let mut request = Vec::with_capacity(REQUEST_BYTES);
        TransmissionRequest { flags, command, cookie, offset, bytes }.put(&mut request);
        let sent = send(&mut self.sending.lock(), &request, data);
        if let Err(error) = sent {
            // Who hears sees the end as well, and answers all.
            tracing::error!(%error, "the NBD server takes nothing");
            self.end();
        }
        let mut state = pending.state.lock();
        while !state.is_over {
            pending.over.wait(&mut state);
        }
        let done = std::mem::replace(&mut *state, State::over(Some(Errno::IO)));
        match done.error {
            Some(errno) => Err(errno),
            None if done.came < room as u64 => Err(Errno::IO),
            None => Ok(done),
        }
    }

    fn end(&self) {
        let _ = rustix::net::shutdown(&*self.sending.lock(), rustix::net::Shutdown::Both);
    }

    fn each_piece(
        &self,
        offset: u64,
        bytes: u64,
        mut work: impl FnMut(u64, u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let most = u64::from(PIECE_BYTES.min(self.offer.bytes_max));
        let mut done = 0;
        while done < bytes {
            let piece = most.min(bytes - done);
            work(offset + done, piece as u32)?;
            done += piece;
        }
        Ok(())
    }

    fn write_zeros(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let zeros = vec![0; PIECE_BYTES as usize];
        self.each_piece(offset, bytes, |at, bytes| {
            let data = zeros.get(..bytes as usize).unwrap_or_default();
            self.ask(Command::Write, 0, (at, bytes), data).map(drop)
        })
    }

    /// Extents from there on, whether they read as zeros; at least one.
    fn extents(&self, offset: u64) -> Option<Vec<(u64, bool)>> {
        self.offer.allocation?;
        let bytes = (self.bytes() - offset).min(u64::from(LOOK_BYTES)) as u32;
        let state = self.ask(Command::BlockStatus, 0, (offset, bytes), &[]).ok()?;
        (!state.extents.is_empty()).then_some(state.extents)
    }
}

/// Of a connection.
pub struct NbdEnder(File);

impl NbdEnder {
    pub fn end(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

impl Drop for NbdVolume {
    fn drop(&mut self) {
        self.line.waiting.lock().is_left = true;
        let mut request = Vec::with_capacity(REQUEST_BYTES);
        let leave = TransmissionRequest { flags: 0, command: Command::Disconnect, cookie: 0, offset: 0, bytes: 0 };
        leave.put(&mut request);
        let _ = send(&mut self.sending.lock(), &request, &[]);
        self.end();
    }
}

impl Medium for NbdVolume {
    fn bytes(&self) -> u64 {
        self.offer.bytes
    }

    fn access(&self) -> Access {
        self.access
    }

    fn read(&self, offset: u64, bytes: u32, into: &dyn Bulk, at: u32) -> Result<(), Errno> {
        let mut place = at;
        self.each_piece(offset, u64::from(bytes), |from, bytes| {
            let read = self.ask(Command::Read, 0, (from, bytes), &[])?;
            into.put(place, &read.data)?;
            place += bytes;
            Ok(())
        })
    }

    fn read_cached(&self, _: u64, _: u32, _: &dyn Bulk) -> bool {
        false
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn write(&self, offset: u64, bytes: u32, from: &dyn Bulk) -> Result<(), Errno> {
        let mut data = vec![0; PIECE_BYTES.min(bytes) as usize];
        self.each_piece(offset, u64::from(bytes), |to, bytes| {
            let piece = data.get_mut(..bytes as usize).ok_or(Errno::RANGE)?;
            from.take((to - offset) as u32, piece)?;
            self.ask(Command::Write, 0, (to, bytes), piece).map(drop)
        })
    }

    fn flush(&self) -> Result<(), Errno> {
        // Who does not take it keeps nothing back.
        if !self.offer.has(transmission::SEND_FLUSH) {
            return if self.line.waiting.lock().is_lost { Err(Errno::IO) } else { Ok(()) };
        }
        self.ask(Command::Flush, 0, (0, 0), &[]).map(drop)
    }

    fn data_from(&self, offset: u64) -> Option<(u64, u64)> {
        let (mut at, mut first) = (offset, None);
        while at < self.bytes() {
            // Who cannot tell may have data everywhere.
            let Some(extents) = self.extents(at) else { return Some((first.unwrap_or(at), self.bytes())) };
            for (end, is_zero) in extents {
                match (first, is_zero) {
                    (None, false) => first = Some(at),
                    (Some(first), true) => return Some((first, at)),
                    _ => {}
                }
                at = end;
            }
        }
        first.map(|first| (first, self.bytes()))
    }

    fn forget(&self, _: u64, _: u64) {}

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        // TRIM would not say what is read afterwards.
        if !self.offer.has(transmission::SEND_WRITE_ZEROES) {
            return self.write_zeros(offset, bytes);
        }
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let piece = (end - at).min(u64::from(ZEROS_BYTES)) as u32;
            match self.ask(Command::WriteZeroes, 0, (at, piece), &[]) {
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::OVERFLOW) => return self.write_zeros(at, end - at),
                done => done?,
            };
            at += u64::from(piece);
        }
        Ok(())
    }

    fn allocate(&self, _: u64, _: u64, _: Need) -> Result<(), Errno> {
        // Nobody can tell what the server has.
        Err(Errno::OPNOTSUPP)
    }
}

fn send(socket: &mut File, head: &[u8], data: &[u8]) -> io::Result<()> {
    let sent = loop {
        match socket.write_vectored(&[io::IoSlice::new(head), io::IoSlice::new(data)]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => break done?,
        }
    };
    if sent < head.len() {
        socket.write_all(head.get(sent..).unwrap_or_default())?;
        return socket.write_all(data);
    }
    socket.write_all(data.get(sent - head.len()..).unwrap_or_default())
}

impl Line {
    fn of(&self, cookie: u64) -> Result<Arc<Pending>, Why> {
        self.waiting.lock().requests.get(&cookie).cloned().ok_or(Why::Nonsense("an answer that nobody waits for"))
    }

    fn end(&self, cookie: u64, error: Option<Errno>) {
        if let Some(pending) = self.waiting.lock().requests.remove(&cookie) {
            pending.end(error);
        }
    }

    /// All answers are in vain from now on. Whether that is news to who has the volume.
    fn lose(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.is_lost = true;
        for (_, pending) in waiting.requests.drain() {
            pending.end(Some(Errno::IO));
        }
        !waiting.is_left
    }
}

impl Pending {
    /// The first error counts.
    fn end(&self, error: Option<Errno>) {
        let mut state = self.state.lock();
        state.error = state.error.or(error);
        state.is_over = true;
        self.over.notify_all();
    }
}

impl State {
    fn over(error: Option<Errno>) -> State {
        State { data: Vec::new(), came: 0, extents: Vec::new(), error, is_over: true }
    }
}

#[derive(Debug, thiserror::Error)]
enum Why {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it says what makes no sense: {0}")]
    Nonsense(&'static str),
}

const SHORT: Why = Why::Nonsense("a piece that is too short");

/// Until the connection ends, or what comes makes no sense.
fn hear(mut stream: File, line: &Line) -> Why {
    loop {
        if let Err(why) = hear_one(&mut stream, line) {
            let _ = rustix::net::shutdown(&stream, rustix::net::Shutdown::Both);
            return why;
        }
    }
}

fn hear_one(stream: &mut impl Read, line: &Line) -> Result<(), Why> {
    let mut magic = [0; 4];
    stream.read_exact(&mut magic)?;
    match u32::from_be_bytes(magic) {
        SIMPLE_REPLY_MAGIC => hear_simple(stream, line),
        CHUNK_MAGIC => hear_chunk(stream, line),
        _ => Err(Why::Nonsense("neither an answer nor a piece of one")),
    }
}

fn hear_simple(stream: &mut impl Read, line: &Line) -> Result<(), Why> {
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    let mut head = Reader(&head);
    let (error, cookie) = head.u32().zip(head.u64()).ok_or(SHORT)?;
    let pending = line.of(cookie)?;
    if error != 0 {
        line.end(cookie, Some(errno_of(error)));
        return Ok(());
    }
    {
        let mut state = pending.state.lock();
        let state = &mut *state;
        stream.read_exact(&mut state.data)?;
        state.came = state.data.len() as u64;
    }
    line.end(cookie, None);
    Ok(())
}

fn hear_chunk(stream: &mut impl Read, line: &Line) -> Result<(), Why> {
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    let mut head = Reader(&head);
    let (flags, kind) = head.u16().zip(head.u16()).ok_or(SHORT)?;
    let (cookie, bytes) = head.u64().zip(head.u32()).ok_or(SHORT)?;
    let pending = line.of(cookie)?;
    match kind {
        chunk::OFFSET_DATA => {
            let mut offset = [0; 8];
            stream.read_exact(&mut offset)?;
            let bytes = bytes.checked_sub(8).ok_or(SHORT)?;
            let mut state = pending.state.lock();
            let place = pending.place(&mut state, u64::from_be_bytes(offset), bytes)?;
            stream.read_exact(place)?;
        }
        _ if bytes > chunk_bytes_max(kind) => return Err(Why::Nonsense("a piece that is too long")),
        _ => {
            let mut data = vec![0; bytes as usize];
            stream.read_exact(&mut data)?;
            heed(&pending, kind, Reader(&data))?;
        }
    }
    if flags & chunk::DONE != 0 {
        line.end(cookie, None);
    }
    Ok(())
}

fn chunk_bytes_max(kind: u16) -> u32 {
    if kind == chunk::BLOCK_STATUS { 4 + 8 * EXTENTS_MAX as u32 } else { CHUNK_BYTES_MAX }
}

fn heed(pending: &Pending, kind: u16, mut data: Reader<'_>) -> Result<(), Why> {
    let mut state = pending.state.lock();
    match kind {
        chunk::NONE => {}
        chunk::OFFSET_HOLE => {
            let (offset, bytes) = data.u64().zip(data.u32()).ok_or(SHORT)?;
            pending.place(&mut state, offset, bytes)?.fill(0);
        }
        chunk::BLOCK_STATUS => {
            data.u32().ok_or(SHORT)?;
            let mut at = state.extents.last().map_or(pending.offset, |(end, _)| *end);
            while let Some((bytes, flags)) = data.u32().zip(data.u32()) {
                if bytes == 0 || u64::from(bytes) % BLOCK_BYTES != 0 {
                    // Of a part of a block nothing is said.
                    break;
                }
                if state.extents.len() == EXTENTS_MAX {
                    return Err(Why::Nonsense("more extents than were asked for"));
                }
                at = at.saturating_add(u64::from(bytes));
                state.extents.push((at, flags & STATE_ZERO != 0));
            }
        }
        _ if kind >> 15 == 1 => state.error = Some(errno_of(data.u32().ok_or(SHORT)?)),
        _ => return Err(Why::Nonsense("a piece of a kind that nobody asked for")),
    }
    Ok(())
}

impl Pending {
    /// Where a piece of the data of a read belongs, which has come then.
    fn place<'a>(&self, state: &'a mut State, offset: u64, bytes: u32) -> Result<&'a mut [u8], Why> {
        let at = offset.checked_sub(self.offset).and_then(|at| usize::try_from(at).ok());
        state.came += u64::from(bytes);
        let place = at.and_then(|at| state.data.get_mut(at..)).and_then(|rest| rest.get_mut(..bytes as usize));
        place.ok_or(Why::Nonsense("data that nobody asked for"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn line(room: usize) -> (Line, Arc<Pending>) {
        let state = State { data: vec![1; room], came: 0, extents: Vec::new(), error: None, is_over: false };
        let pending = Arc::new(Pending { offset: 8192, state: Mutex::new(state), over: Condvar::new() });
        let waiting = Waiting { requests: HashMap::from([(7, Arc::clone(&pending))]), ..Waiting::default() };
        (Line { waiting: Mutex::new(waiting) }, pending)
    }

    fn piece(kind: u16, flags: u16, data: &[u8]) -> Vec<u8> {
        [&nbd::chunk_head(7, (flags, kind), data.len() as u32)[..], data].concat()
    }

    fn heard(line: &Line, pieces: &[Vec<u8>]) -> Result<(), Why> {
        pieces.iter().try_for_each(|piece| hear_one(&mut Cursor::new(piece), line))
    }

    #[test]
    fn pieces_come_in_any_order_and_holes_are_zeros() {
        let (line, pending) = line(8192);
        let data = [&12288_u64.to_be_bytes()[..], &[5; 4096]].concat();
        let hole = [&8192_u64.to_be_bytes()[..], &4096_u32.to_be_bytes()].concat();
        heard(&line, &[piece(chunk::OFFSET_DATA, 0, &data), piece(chunk::OFFSET_HOLE, chunk::DONE, &hole)]).unwrap();
        let state = pending.state.lock();
        assert!(state.is_over && state.error.is_none() && state.came == 8192);
        assert_eq!((state.data[0], state.data[4096]), (0, 5));
    }

    #[test]
    fn extents_and_errors_are_heard() {
        let (asked, pending) = line(0);
        let words: Vec<u8> = [1_u32, 4096, STATE_ZERO, 8192, 0].iter().flat_map(|word| word.to_be_bytes()).collect();
        heard(&asked, &[piece(chunk::BLOCK_STATUS, chunk::DONE, &words)]).unwrap();
        assert_eq!(pending.state.lock().extents, [(12288, true), (20480, false)]);
        let (asked, pending) = line(4096);
        let error = [&28_u32.to_be_bytes()[..], &[0, 2], b"no"].concat();
        heard(&asked, &[piece(chunk::ERROR, chunk::DONE, &error)]).unwrap();
        assert_eq!(pending.state.lock().error, Some(Errno::NOSPC));
    }

    #[test]
    fn a_server_that_lies_ends_the_connection_and_nothing_else() {
        let beside = [&4096_u64.to_be_bytes()[..], &[5; 4096]].concat();
        let beyond = [&12288_u64.to_be_bytes()[..], &[5; 4096]].concat();
        let long = vec![0; CHUNK_BYTES_MAX as usize + 1];
        let lies = [
            piece(chunk::OFFSET_DATA, 0, &beside),
            piece(chunk::OFFSET_DATA, 0, &beyond),
            piece(chunk::OFFSET_DATA, 0, &[1; 7]),
            piece(chunk::OFFSET_HOLE, 0, &[0xff; 12]),
            piece(chunk::NONE, 0, &long),
            piece(99, 0, &[]),
            b"HTTP/1.1".to_vec(),
        ];
        for lie in lies {
            assert!(heard(&line(4096).0, &[lie]).is_err());
        }
        let (other, _) = line(0);
        assert!(heard(&other, &[nbd::simple_reply(8, 0).to_vec()]).is_err(), "nobody asked");
    }

    #[test]
    fn whatever_comes_nothing_panics() {
        let mut state = 99_u64;
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..64)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .collect();
            // Mostly what looks like an answer.
            if state & 7 != 0 {
                bytes[..4]
                    .copy_from_slice(&if state & 8 == 0 { CHUNK_MAGIC } else { SIMPLE_REPLY_MAGIC }.to_be_bytes());
                bytes[6..8].copy_from_slice(&[0, [0, 1, 2, 5][(state >> 8) as usize & 3]]);
                bytes[8..16].copy_from_slice(&7_u64.to_be_bytes());
                bytes[16..20].copy_from_slice(&((state >> 16) as u32 & 63).to_be_bytes());
            }
            let _ = hear_one(&mut Cursor::new(bytes), &line(4096).0);
        }
    }
}
