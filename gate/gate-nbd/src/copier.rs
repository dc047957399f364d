//! The process `dvs gate disk`: one disk of a container, read for a backup or filled from one, for one client.
//!
//! Descriptors: `client` (a socket that speaks `mgmt_api::stream`), and `early`, what was read from it already.
//! Options: `disk` (its endpoint) and `fill` (1: what the client sends goes onto the disk). The content has the form of
//! `mgmt_api::content`.
//!
//! A disk is read as it is at one moment (`libvos::DiskClient::freeze`): extents that somebody wants to change are read
//! first, and lie in a file (`spill`) until it is their turn to go to the client, which may be slow.
//!
//! The session with the disk waits as long as the disk is away. So a thread looks after the client, and with it the
//! process ends at once, whatever it waits for.

use std::collections::{HashSet, VecDeque};
use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abi::Endpoint;
use ipc::Port;
use libvos::{BlockingSession, DiskClient, Durability, Epochs, Identity, PortConnect, SharedPort, Size};
use mgmt_api::content::{self, EXTENT_BYTES, Item, runs};
use mgmt_api::stream::{self, Kind, PAYLOAD_BYTES_MAX};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use sys::harden::{give_up_privileges, restrict_system_calls};
use sys::spawn::{Spawn, SpawnError};

const NAME: &str = "disk copier";
/// Transfers of 1 MiB, each with room for the next one.
const SIZE: Size = Size { entries: 64, arena_bytes: 24 << 20 };
/// Extents that are read at a time.
const EXTENTS_AT_A_TIME: usize = 8;
/// How long the disk is asked who waits; as long it may take to notice that all is read.
const LISTEN: Duration = Duration::from_millis(200);
const INPUT_BYTES: usize = 256 << 10;
/// Extents that may lie on the node until the client takes them: 4 GiB.
const SPILLED_MAX: u64 = 4096;
/// Of the node's file system this is left to others.
const RESERVE_BYTES: u64 = 1 << 30;
/// Extents between two looks at what is free.
const LOOK_AFTER: u64 = 64;

/// Runs a copier to its end. How it went the client hears.
pub fn main_from_spawn() -> ExitCode {
    crate::spawn::to_its_end(NAME, run)
}

type Problem = Box<dyn Error + Send + Sync>;

fn run() -> Result<(), Problem> {
    let mut spawn = Spawn::from_env()?;
    let number = spawn.endpoint.ok_or(SpawnError::Missing("endpoint"))?;
    let endpoint = Endpoint::new(number).ok_or_else(|| SpawnError::BadOption("endpoint".to_owned()))?;
    let disk = spawn.option_as("disk", Endpoint::from_u64)?.ok_or(SpawnError::Missing("disk"))?;
    let fills = spawn.option_u64("fill")? == Some(1);
    let client: UnixStream = spawn.take_fd("client").ok_or(SpawnError::Missing("client"))?.into();
    client.set_nonblocking(false)?;
    let mut early = Vec::new();
    spawn.take_fd("early").map(File::from).map_or(Ok(0), |mut file| file.read_to_end(&mut early))?;
    let spill = spawn.take_fd("spill").map(File::from);
    let broker = spawn.take_broker()?;
    give_up_privileges(sys::harden::Identity { uid: spawn.uid, gid: spawn.gid })?;
    let port = SharedPort::new(Port::from_socket(broker, Some(endpoint))?);
    end_with(client.try_clone()?)?;
    let mut client = Client { socket: client };
    client.say(Kind::Started, &0_u32.to_le_bytes())?;
    let epochs = Epochs { server: 0, own: spawn.placement_epoch };
    let connect = PortConnect::new(port, disk, SIZE);
    let session = BlockingSession::open(Box::new(connect), SIZE, Identity { epochs, ..Identity::default() })?;
    let disk = DiskClient::new(session);
    spawn.ready();
    restrict_system_calls(&[libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_fstatfs])?;
    let done = match fills {
        true => fill(&disk, io::Cursor::new(early).chain(client.socket.try_clone()?)),
        false => read(&disk, &mut client, spill.ok_or(SpawnError::Missing("spill"))?),
    };
    match done {
        Ok(()) => client.say(Kind::Exit, &[0])?,
        Err(CopyError::Client(error)) => return Err(error.into()),
        Err(error) => {
            client.say(Kind::Stderr, format!("{error}\n").as_bytes())?;
            client.say(Kind::Exit, &[1])?;
            return Err(error.into());
        }
    }
    Ok(())
}

/// Ends the process when its client is gone.
fn end_with(client: UnixStream) -> io::Result<()> {
    let watch = move || loop {
        let mut gone = [PollFd::new(&client, PollFlags::empty())];
        match poll(&mut gone, None) {
            Ok(_) => std::process::exit(1),
            Err(Errno::INTR) => (),
            Err(_) => return,
        }
    };
    std::thread::Builder::new().name("client".to_owned()).spawn(watch).map(drop)
}

#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("the disk cannot be read: {0}")]
    Read(Errno),
    #[error("the disk could not be kept as it was: its server was too slow for those who write, or began anew")]
    Moment,
    #[error("what was read ahead cannot be kept on the node")]
    Spill(#[source] io::Error),
    #[error(
        "the disk could not be kept as it was: {extents} MiB were written before who reads it had them, and the node has \
         no room for more; again, when less is written or to somewhere that takes it faster"
    )]
    Full { extents: u64 },
    #[error("the disk cannot be written: {0}")]
    Write(Errno),
    #[error("what came is no content of this disk: {0}")]
    Content(#[from] content::BadContent),
    #[error("what came has no end")]
    Cut,
    #[error("the disk has {has} bytes, and not {told}")]
    OtherLength { told: u64, has: u64 },
    #[error("the client is gone")]
    Client(#[source] io::Error),
}

impl CopyError {
    fn of_read(errno: Errno) -> CopyError {
        if errno == Errno::TIMEDOUT { CopyError::Moment } else { CopyError::Read(errno) }
    }
}

/// Speaks as the keeper of a program does.
struct Client {
    socket: UnixStream,
}

impl Client {
    fn say(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        self.socket.write_all(&stream::header(kind, payload.len()))?;
        self.socket.write_all(payload)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), CopyError> {
        bytes.chunks(PAYLOAD_BYTES_MAX).try_for_each(|part| self.say(Kind::Stdout, part)).map_err(CopyError::Client)
    }
}

fn read(disk: &DiskClient, client: &mut Client, spill: File) -> Result<(), CopyError> {
    let bytes = disk.info().map_err(CopyError::Read)?.bytes;
    disk.flush().map_err(CopyError::Read)?;
    let is_of_one_moment = match disk.freeze() {
        Ok(()) => true,
        // A disk of an earlier release.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => false,
        Err(errno) => return Err(CopyError::Read(errno)),
    };
    let rings = disk.session().restarts();
    client.put(&content::head(bytes, is_of_one_moment))?;
    let extents = Extents { bytes, taken: Mutex::new(HashSet::new()), spilled: Mutex::default(), spill };
    let is_over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let first = is_of_one_moment.then(|| scope.spawn(|| extents.read_wanted(disk, &is_over)));
        let done = extents.read_all(disk, client);
        is_over.store(true, Ordering::Release);
        // Whoever changes something from here on waits for nobody.
        let first = first.map_or(Ok(()), |first| first.join().unwrap_or(Err(CopyError::Read(Errno::IO))));
        done.and(first)
    });
    done?;
    extents.put_spilled(client)?;
    if is_of_one_moment && disk.session().restarts() != rings {
        return Err(CopyError::Moment);
    }
    client.put(&content::end())
}

/// Those of a disk, each of which is read once.
struct Extents {
    bytes: u64,
    /// Being read, or read.
    taken: Mutex<HashSet<u64>>,
    spilled: Mutex<Spilled>,
    spill: File,
}

/// Extents that were read before their turn, and their places in the file.
#[derive(Default)]
struct Spilled {
    /// Number and place.
    waiting: VecDeque<(u64, u64)>,
    /// Places whose extents were taken.
    free: Vec<u64>,
    /// Places that the file has.
    places: u64,
}

impl Spilled {
    /// Where one more goes. `has_room`: on the file system.
    fn place(&mut self, has_room: impl Fn() -> io::Result<bool>) -> Result<u64, CopyError> {
        if let Some(place) = self.free.pop() {
            return Ok(place);
        }
        let is_looked_at = self.places.is_multiple_of(LOOK_AFTER);
        if self.places == SPILLED_MAX || is_looked_at && !has_room().map_err(CopyError::Spill)? {
            return Err(CopyError::Full { extents: self.places });
        }
        self.places += 1;
        Ok(self.places - 1)
    }
}

fn has_room(spill: &File) -> io::Result<bool> {
    let host = rustix::fs::fstatvfs(spill)?;
    Ok(host.f_bavail.saturating_mul(host.f_frsize) >= RESERVE_BYTES)
}

impl Extents {
    fn length(&self, extent: u64) -> usize {
        self.bytes.saturating_sub(extent.saturating_mul(EXTENT_BYTES)).min(EXTENT_BYTES) as usize
    }

    /// In their order, but those that are wanted first.
    fn read_all(&self, disk: &DiskClient, client: &mut Client) -> Result<(), CopyError> {
        let mut next = 0;
        while next < self.bytes.div_ceil(EXTENT_BYTES) {
            let mut reads = Vec::new();
            while reads.len() < EXTENTS_AT_A_TIME && next < self.bytes.div_ceil(EXTENT_BYTES) {
                if self.taken.lock().insert(next) {
                    reads.push((next * EXTENT_BYTES, vec![0; self.length(next)]));
                }
                next += 1;
            }
            disk.read_each(&mut reads).into_iter().collect::<Result<(), Errno>>().map_err(CopyError::of_read)?;
            for (at, data) in &reads {
                tell(client, *at, data)?;
            }
            self.put_spilled(client)?;
        }
        Ok(())
    }

    /// Those that somebody waits for, until all are read.
    fn read_wanted(&self, disk: &DiskClient, is_over: &AtomicBool) -> Result<(), CopyError> {
        let mut data = vec![0; EXTENT_BYTES as usize];
        while !is_over.load(Ordering::Acquire) {
            for extent in disk.wanted(LISTEN).map_err(CopyError::of_read)? {
                let length = self.length(extent);
                if length == 0 || !self.taken.lock().insert(extent) {
                    continue;
                }
                let place = self.spilled.lock().place(|| has_room(&self.spill))?;
                let data = data.get_mut(..length).unwrap_or_default();
                disk.read_into(extent * EXTENT_BYTES, data).map_err(CopyError::of_read)?;
                self.spill.write_all_at(data, place * EXTENT_BYTES).map_err(CopyError::Spill)?;
                self.spilled.lock().waiting.push_back((extent, place));
            }
        }
        Ok(())
    }

    fn put_spilled(&self, client: &mut Client) -> Result<(), CopyError> {
        loop {
            let next = self.spilled.lock().waiting.pop_front();
            let Some((extent, place)) = next else { return Ok(()) };
            let mut data = vec![0; self.length(extent)];
            self.spill.read_exact_at(&mut data, place * EXTENT_BYTES).map_err(CopyError::Spill)?;
            self.spilled.lock().free.push(place);
            tell(client, extent * EXTENT_BYTES, &data)?;
        }
    }
}

/// What is not zeros of an extent.
fn tell(client: &mut Client, at: u64, data: &[u8]) -> Result<(), CopyError> {
    for run in runs(data) {
        let bytes = data.get(run.clone()).unwrap_or_default();
        client.put(&content::piece(at + run.start as u64, bytes.len()))?;
        client.put(bytes)?;
    }
    Ok(())
}

fn fill(disk: &DiskClient, mut input: impl Read) -> Result<(), CopyError> {
    let has = disk.info().map_err(CopyError::Write)?.bytes;
    let (mut frames, mut content) = (stream::Decoder::default(), content::Decoder::default());
    let mut buffer = vec![0; INPUT_BYTES];
    loop {
        let count = input.read(&mut buffer).map_err(CopyError::Client)?;
        if count == 0 {
            return Err(CopyError::Client(io::ErrorKind::UnexpectedEof.into()));
        }
        frames.push(buffer.get(..count).unwrap_or_default());
        while let Some((kind, payload)) = frames.pop().map_err(|bad| CopyError::Client(io::Error::other(bad)))? {
            match kind {
                Kind::Stdin if payload.is_empty() && !content.is_over() => return Err(CopyError::Cut),
                Kind::Stdin if payload.is_empty() => return disk.flush().map_err(CopyError::Write),
                Kind::Stdin => content.push(payload),
                _ => continue,
            }
            while let Some(item) = content.pop()? {
                put(disk, has, item)?;
            }
        }
    }
}

fn put(disk: &DiskClient, has: u64, item: Item<'_>) -> Result<(), CopyError> {
    match item {
        Item::Head { bytes: told, .. } if told != has => Err(CopyError::OtherLength { told, has }),
        Item::Piece { offset, data } => disk.write(offset, data, Durability::Server).map_err(CopyError::Write),
        Item::Zeros { offset, bytes } => disk.discard(offset, bytes).map_err(CopyError::Write),
        Item::Head { .. } | Item::End => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_have_a_bound() {
        let (plenty, none) = (|| Ok(true), || Ok(false));
        let mut spilled = Spilled::default();
        assert_eq!([spilled.place(plenty).unwrap(), spilled.place(plenty).unwrap()], [0, 1]);
        spilled.free.push(0);
        assert_eq!(spilled.place(none).unwrap(), 0, "it takes no more of the node");
        while spilled.places < SPILLED_MAX {
            spilled.place(plenty).unwrap();
        }
        assert!(matches!(spilled.place(plenty), Err(CopyError::Full { extents: SPILLED_MAX })));
        assert!(matches!(Spilled::default().place(none), Err(CopyError::Full { extents: 0 })));
    }
}
