//! The process `dvs gate disk`: one disk of a container, read for a backup or filled from one, for one client.
//!
//! Descriptors: `client` (a socket that speaks `mgmt_api::stream`), and `early`, what was read from it already. Options:
//! `disk` (its endpoint) and `fill` (1: what the client sends goes onto the disk). The content has the form of
//! `mgmt_api::content`.
//!
//! The session with the disk waits as long as the disk is away. So a thread looks after the client, and with it the
//! process ends at once, whatever it waits for.

use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use abi::Endpoint;
use ipc::Port;
use libvos::{BlockingSession, DiskClient, Durability, Epochs, Identity, PortConnect, SharedPort, Size};
use mgmt_api::content::{self, EXTENT_BYTES, Item, runs};
use mgmt_api::stream::{self, Kind, PAYLOAD_BYTES_MAX};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use sys::harden::{give_up_privileges, restrict_system_calls};
use sys::spawn::{Spawn, SpawnError};

const NAME: &str = "disk copier";
/// Transfers of 1 MiB, each with room for the next one.
const SIZE: Size = Size { entries: 64, arena_bytes: 24 << 20 };
/// Extents that are read at a time.
const EXTENTS_AT_A_TIME: u64 = 8;
const INPUT_BYTES: usize = 256 << 10;

/// Runs a copier to its end. How it went the client hears.
pub fn main_from_spawn() -> ExitCode {
    vos_rt::log::begin(NAME);
    sys::log::end_on_panic();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            vos_rt::log::failure(NAME, &*error);
            ExitCode::FAILURE
        }
    }
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
    spawn.take_fd("early").map(|early| File::from(early)).map_or(Ok(0), |mut file| file.read_to_end(&mut early))?;
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
    restrict_system_calls(&[])?;
    let done = match fills {
        true => fill(&disk, io::Cursor::new(early).chain(client.socket.try_clone()?)),
        false => read(&disk, &mut client),
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

fn read(disk: &DiskClient, client: &mut Client) -> Result<(), CopyError> {
    let bytes = disk.info().map_err(CopyError::Read)?.bytes;
    disk.flush().map_err(CopyError::Read)?;
    client.put(&content::head(bytes, false))?;
    let mut offset = 0;
    while offset < bytes {
        let end = bytes.min(offset + EXTENTS_AT_A_TIME * EXTENT_BYTES);
        let lengths = (offset..end).step_by(EXTENT_BYTES as usize).map(|at| (at, (end - at).min(EXTENT_BYTES)));
        let mut reads: Vec<(u64, Vec<u8>)> = lengths.map(|(at, length)| (at, vec![0; length as usize])).collect();
        disk.read_each(&mut reads).into_iter().collect::<Result<(), Errno>>().map_err(CopyError::Read)?;
        for (at, data) in &reads {
            tell(client, *at, data)?;
        }
        offset = end;
    }
    client.put(&content::end())
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
