//! Who connects to exports, until they have one (`line`).

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::bytes::ByteStore;
use crate::line::{Agreed, Form, Line};
use crate::negotiation::{Export, Negotiation, NextStep, OPTION_BYTES_MAX, Security};
use crate::store::BlockStore;
use crate::stream::{ClientInput, Input, NbdListener, NbdStream, Output, read_array, strange};
use crate::tls::{self, TlsSettings};
use crate::wire::{FIXED_NEWSTYLE, GREETING, NO_ZEROES, OPTION_MAGIC, Reader};

const CONNECTIONS_MAX: usize = 64;
/// A client that has no export within this time goes; it may not know what it speaks with.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(10);
const OPTIONS_MAX: usize = 256;
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
        match self.negotiate(stream)? {
            Some(agreed) => Line::serve(agreed),
            None => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    use super::*;
    use crate::store::{BegunRead, BegunWrite, ReadData, WriteRoom};
    use crate::testing::MemoryStore;
    use crate::transfers::PATIENCE;
    use crate::wire::{REQUEST_BYTES, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, TRANSFER_BYTES_MAX, flag, option};

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

        fn finish(self: Box<Self>) -> Result<Box<dyn ReadData>, Errno> {
            Ok(Box::new(NarrowData { data: self.read.finish()?, _place: self._place }))
        }
    }

    struct NarrowData {
        data: Box<dyn ReadData>,
        _place: Place,
    }

    impl ReadData for NarrowData {
        fn copy_to(&self, into: &mut [u8]) -> Result<(), Errno> {
            self.data.copy_to(into)
        }

        fn send_now(&self, socket: BorrowedFd<'_>, from: usize) -> io::Result<usize> {
            self.data.send_now(socket, from)
        }
    }

    struct NarrowRoom<'a> {
        room: Box<dyn WriteRoom<'a> + 'a>,
        place: Place,
    }

    impl<'a> WriteRoom<'a> for NarrowRoom<'a> {
        fn put(&mut self, at: usize, data: &[u8]) -> Result<(), Errno> {
            self.room.put(at, data)
        }

        fn receive_now(&mut self, socket: BorrowedFd<'_>, at: usize) -> io::Result<usize> {
            self.room.receive_now(socket, at)
        }

        fn copy_to(&self, into: &mut [u8]) -> Result<(), Errno> {
            self.room.copy_to(into)
        }

        fn begin(self: Box<Self>, offset: u64) -> Result<Box<dyn BegunWrite + 'a>, Errno> {
            Ok(Box::new(NarrowWrite { write: self.room.begin(offset)?, _place: self.place }))
        }
    }

    struct NarrowWrite<'a> {
        write: Box<dyn BegunWrite + 'a>,
        _place: Place,
    }

    impl BegunWrite for NarrowWrite<'_> {
        fn is_done(&self) -> bool {
            self.write.is_done()
        }

        fn finish(self: Box<Self>) -> Result<(), Errno> {
            self.write.finish()
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

        fn free_place(&self) -> Option<Place> {
            let mut free = self.free.0.lock();
            *free = free.checked_sub(1)?;
            Some(Place(Arc::clone(&self.free)))
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
            let Some(_place) = self.free_place() else { return Ok(None) };
            let begun = self.blocks.begin_read(offset, bytes)?;
            Ok(begun.map(|read| Box::new(NarrowRead { read, _place }) as Box<dyn BegunRead>))
        }

        fn write_room(&self, bytes: u32) -> Result<Option<Box<dyn WriteRoom<'_> + '_>>, Errno> {
            let Some(place) = self.free_place() else { return Ok(None) };
            let room = self.blocks.write_room(bytes)?;
            Ok(room.map(|room| Box::new(NarrowRoom { room, place }) as Box<dyn WriteRoom<'_> + '_>))
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
    fn long_transfers_are_whole_however_slowly_a_client_says_and_takes_them() {
        const BYTES: u32 = 1 << 20;
        let served = serve();
        let pattern = |cookie: u64, round: u8| -> Vec<u8> {
            (0..BYTES as usize).map(|at| (at / 4096) as u8 ^ at as u8 ^ cookie as u8 ^ round).collect()
        };
        // What the client takes, or says, at a time, before it pauses: longer than it is waited for.
        let paces = [(usize::MAX, Duration::ZERO), (300_000, PATIENCE * 2), (2_500_000, PATIENCE / 2)];
        for (round, (pace, pause)) in (0..).zip(paces) {
            let mut client = served.client();
            let mut says = Client(client.0.try_clone().unwrap());
            let writes = (0..8).flat_map(|cookie| {
                let at = cookie * u64::from(BYTES);
                // A short one in between goes another way.
                let part = [head((1, 0), 100 + cookie, at + 10, 3), vec![9; 3]].concat();
                [part, head((1, 0), cookie, at, BYTES), pattern(cookie, round)].concat()
            });
            let reads = (0..8).flat_map(|cookie| head((0, 0), 50 + cookie, cookie * u64::from(BYTES), BYTES));
            let (writes, reads): (Vec<u8>, Vec<u8>) = (writes.collect(), reads.collect());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for part in writes.chunks(pace.min(writes.len())) {
                        says.0.write_all(part).unwrap();
                        std::thread::sleep(pause);
                    }
                });
                let mut answered: Vec<u64> = (0..16)
                    .map(|_| {
                        let (error, cookie) = client.answer().unwrap();
                        assert_eq!(error, 0);
                        cookie
                    })
                    .collect();
                answered.sort_unstable();
                assert!(answered.into_iter().eq((0..8).chain(100..108)));
            });
            // Nobody said which of two writes of a range is the later one; now it is known.
            for cookie in 0..8 {
                assert_eq!(client.write(cookie * u64::from(BYTES), &pattern(cookie, round)), 0);
            }
            client.0.write_all(&reads).unwrap();
            for _ in 0..8 {
                let (error, cookie) = client.answer().unwrap();
                assert_eq!(error, 0);
                let mut seen = vec![0; BYTES as usize];
                for part in seen.chunks_mut(pace.min(BYTES as usize)) {
                    client.0.read_exact(part).unwrap();
                    std::thread::sleep(pause / 8);
                }
                std::thread::sleep(pause);
                assert!(seen == pattern(cookie - 50, round), "{cookie} at pace {pace}");
            }
        }
    }

    #[test]
    fn who_changes_parts_of_blocks_waits_for_no_client() {
        let served = serve();
        let mut slow = served.client();
        slow.0.write_all(&head((1, 0), 1, 0, 1 << 20)).unwrap();
        slow.0.write_all(&[1; 5000]).unwrap();
        let mut other = served.client();
        let began = Instant::now();
        for _ in 0..20 {
            assert_eq!(other.write(4 << 20 | 7, &[2; 50]), 0);
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        slow.0.write_all(&vec![1; (1 << 20) - 5000]).unwrap();
        assert_eq!(slow.answer().unwrap(), (0, 1));
        assert_eq!(other.read(0, 1 << 20).unwrap(), vec![1; 1 << 20]);
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
