//! The disk server's process: from its spawn record to a service and back.
//!
//! Spawn record: descriptors `image`, or `volume` (a connection to an NBD server, and options that say what it offers:
//! `nbd_client::Offer`), and `fence` (a file beside it, without which the fence lives in memory); options
//! `bytes` (size the volume must have), `may_be_longer` (1: the image may), `read_only` (1), `owner` (the one
//! endpoint that may change the volume; without it everybody may) and `owner_epoch` (in which that was placed: who says
//! an earlier one is refused), `io_uring` (0: reads wait in threads, also where the kernel has it). Of a replicated
//! disk: options `set`, `own` (number of the copy beside it), `copies` and `lost` (all, and those on nodes that were
//! given up: a bit for each number), and descriptor `desk`; `image` is for reading alone then.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Instant;

use abi::Endpoint;
use abi::limits::COPIES_PER_DC;
use disk_core::{Access, Image, ImageFile, Volume};
use nbd_client::{NbdConnection, NbdVolume, Offer};
use replica_core::Replica;
use vos_api::desk::disk_key;
use vos_rt::{Boot, ClientId, Failure, Hello, HelloReply, Kind, ReadBy, Request, Service, SpawnError, run};

use crate::entrance::Entrance;
use crate::fence::KeptFence;
use crate::replica::primary::{MirroredDisk, SetOptions};
use crate::service::Disk;

const KIND: Kind = Kind {
    name: "disk",
    system_calls: &[
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_fdatasync,
        libc::SYS_fallocate,
        libc::SYS_fstatfs,
        // Of the one ring that was made before, and can but read (`ipc::ReadRing`).
        libc::SYS_io_uring_enter,
    ],
};

/// Runs `dvs server disk`.
pub fn main_from_spawn() -> ExitCode {
    run(&KIND, open, |disk| match disk {
        AnyDisk::Plain(disk) => disk.close().map_err(Failure::from),
        AnyDisk::Mirrored(disk) => disk.close(),
    })
}

enum AnyDisk {
    Plain(Box<Disk>),
    Mirrored(Box<MirroredDisk>),
}

impl AnyDisk {
    fn service(&mut self) -> &mut dyn Service {
        match self {
            AnyDisk::Plain(disk) => &mut **disk,
            AnyDisk::Mirrored(disk) => &mut **disk,
        }
    }
}

impl Service for AnyDisk {
    fn opened(&mut self, client: ClientId, from: Endpoint, hello: &Hello) -> HelloReply {
        self.service().opened(client, from, hello)
    }

    fn submit(&mut self, request: Request) {
        self.service().submit(request);
    }

    fn closed(&mut self, client: ClientId) {
        self.service().closed(client);
    }

    fn deadline(&self) -> Option<Instant> {
        match self {
            AnyDisk::Plain(disk) => disk.deadline(),
            AnyDisk::Mirrored(disk) => disk.deadline(),
        }
    }

    fn tick(&mut self, now: Instant) {
        self.service().tick(now);
    }
}

fn open(boot: &mut Boot) -> Result<AnyDisk, Failure> {
    let set = set_options(boot)?;
    let access = match boot.spawn.option_u64("read_only")? {
        None | Some(0) if set.is_none() => Access::ReadWrite,
        _ => Access::ReadOnly,
    };
    let volume = match boot.spawn.take_fd("volume") {
        Some(socket) => Volume::new(open_nbd(boot, socket, access)?),
        None => Volume::new(open_image(boot, access)?),
    };
    tracing::info!(bytes = volume.bytes(), access = ?volume.access(), "volume opened");
    let fence = boot.spawn.take_fd("fence").map(KeptFence::open).transpose()?.unwrap_or_default();
    let fence = fence.at_least(u32::try_from(boot.spawn.option_u64("owner_epoch")?.unwrap_or(0))?);
    let owner = boot.spawn.option_as("owner", Endpoint::from_u64)?;
    let entrance = owner.map_or_else(Entrance::open, |owner| Entrance::of_owner(owner, fence));
    let Some(set) = set else {
        let disk = Disk::new(volume, entrance, boot.spawn.epoch, read_by(boot)?, &boot.handle)?;
        return Ok(AnyDisk::Plain(Box::new(disk)));
    };
    let desk = boot.spawn.take_fd("desk").ok_or(SpawnError::Missing("fds.desk"))?;
    let disk = MirroredDisk::open(volume, entrance, &set, desk, &boot.port, boot.spawn.epoch, &boot.handle)?;
    Ok(AnyDisk::Mirrored(Box::new(disk)))
}

fn open_image(boot: &mut Boot, access: Access) -> Result<ImageFile, Failure> {
    let file = boot.spawn.take_fd("image").ok_or(SpawnError::Missing("fds.image"))?;
    let bytes = boot.spawn.option_u64("bytes")?;
    let may_be_longer = boot.spawn.option_u64("may_be_longer")? == Some(1);
    Ok(ImageFile::open(Image { file, bytes, may_be_longer, access })?)
}

/// Without its connection this server is nothing: it ends, and whoever began it decides what that means.
fn open_nbd(boot: &Boot, socket: OwnedFd, access: Access) -> Result<NbdVolume, Failure> {
    let word = |name: &str| boot.spawn.option_u64(name).ok().flatten();
    let offer = Offer::from_words(word).ok_or(SpawnError::Missing("options of the NBD server"))?;
    let handle = boot.handle.clone();
    Ok(NbdVolume::new(NbdConnection { socket, offer }, access == Access::ReadOnly, move || handle.stop())?)
}

fn read_by(boot: &Boot) -> Result<ReadBy, SpawnError> {
    Ok(if boot.spawn.option_u64("io_uring")? == Some(0) { ReadBy::Threads } else { ReadBy::Ring })
}

/// `None`: it is not replicated.
fn set_options(boot: &Boot) -> Result<Option<SetOptions>, Failure> {
    let Some(set) = boot.spawn.option_u64("set")? else { return Ok(None) };
    let own = boot.spawn.option_u64("own")?.ok_or(SpawnError::Missing("options.own"))?;
    let copies = boot.spawn.option_u64("copies")?.ok_or(SpawnError::Missing("options.copies"))?;
    let own = Replica(u8::try_from(own)?);
    let others = replicas(copies).filter(|other| *other != own).collect();
    let lost = replicas(boot.spawn.option_u64("lost")?.unwrap_or(0)).collect();
    let key = disk_key(boot.endpoint.number().saturating_sub(Endpoint::DISK.number()));
    Ok(Some(SetOptions { set, own, others, lost, key, read_by: read_by(boot)? }))
}

/// Of numbers that have a bit each.
fn replicas(bits: u64) -> impl Iterator<Item = Replica> {
    (0..COPIES_PER_DC as u8).filter(move |number| bits >> number & 1 == 1).map(Replica)
}
