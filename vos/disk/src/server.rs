//! The disk server's process: from its spawn record to a service and back.
//!
//! Spawn record: descriptors `image` and `fence` (a file beside it, without which the fence lives in memory); options
//! `bytes` (size the volume must have), `read_only` (1) and `owner` (the one endpoint that may change the volume;
//! without it everybody may).

use std::process::ExitCode;

use abi::Endpoint;
use disk_core::{Access, Image, ImageFile, Volume};
use vos_rt::{Boot, Failure, Kind, SpawnError, run};

use crate::fence::KeptFence;
use crate::service::Disk;

const KIND: Kind = Kind {
    name: "disk",
    system_calls: &[libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_fdatasync, libc::SYS_fallocate, libc::SYS_fstatfs],
};

/// Runs `dvs server disk`.
pub fn main_from_spawn() -> ExitCode {
    run(&KIND, open, |disk| disk.close().map_err(Failure::from))
}

fn open(boot: &mut Boot) -> Result<Disk, Failure> {
    let file = boot.spawn.take_fd("image").ok_or(SpawnError::Missing("fds.image"))?;
    let bytes = boot.spawn.option_u64("bytes")?;
    let access = match boot.spawn.option_u64("read_only")? {
        None | Some(0) => Access::ReadWrite,
        Some(_) => Access::ReadOnly,
    };
    let volume = Volume::new(ImageFile::open(Image { file, bytes, access })?);
    tracing::info!(bytes = volume.bytes(), access = ?volume.access(), "volume opened");
    let disk = Disk::new(volume, boot.spawn.epoch)?;
    let fence = boot.spawn.take_fd("fence").map(KeptFence::open).transpose()?.unwrap_or_default();
    Ok(match boot.spawn.option_as("owner", Endpoint::from_u64)? {
        Some(owner) => disk.owned_by(owner, fence),
        None => disk,
    })
}
