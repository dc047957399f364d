//! The key-value server's process: from its spawn record to a service and back.
//!
//! Spawn record: options `keys` and `bytes` (what the store may hold); descriptor `image`, or, where the store is on a
//! disk of the container, options `disk` (its endpoint number) and `disk_epoch` (of its placement).

use std::process::ExitCode;

use abi::Endpoint;
use libvos::{BlockingSession, DiskClient, Epochs, Identity, PortConnect, Size};
use vos_rt::{Boot, Failure, Kind, SpawnError, run};

use crate::backend::FileStore;
use crate::disk::{DiskFile, StoreDisk};
use crate::service::{Ds, StoreHold};
use crate::store::{Limits, Store};

const KIND: Kind = Kind {
    name: "ds",
    system_calls: &[
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_fdatasync,
        libc::SYS_ftruncate,
        libc::SYS_fallocate,
    ],
};

/// As much as is synced together, and what readers ask for meanwhile.
const DISK_RING: Size = Size { entries: 64, arena_bytes: 24 << 20 };

/// Runs `dvs server ds`.
pub fn main_from_spawn() -> ExitCode {
    run(&KIND, open, |ds| {
        ds.close();
        Ok(())
    })
}

fn open(boot: &mut Boot) -> Result<Ds, Failure> {
    let most = Limits::default();
    let limits = Limits {
        keys: boot.spawn.option_u64("keys")?.map_or(most.keys, |keys| keys.min(most.keys)),
        bytes: boot.spawn.option_u64("bytes")?.unwrap_or(most.bytes),
    };
    let Some(disk) = boot.spawn.option_as("disk", Endpoint::from_u64)? else {
        let file = boot.spawn.take_fd("image").ok_or(SpawnError::Missing("fds.image"))?;
        return Ok(Ds::new(Store::open(FileStore::new(file), limits)?)?);
    };
    let connect = PortConnect::new(boot.port.clone(), disk, DISK_RING);
    let epochs = Epochs { server: boot.spawn.option_epoch("disk_epoch")?, own: boot.spawn.placement_epoch };
    let session = BlockingSession::open(Box::new(connect), DISK_RING, Identity { epochs, ..Identity::default() })?;
    let disk = StoreDisk::open(DiskClient::new(session), boot.handle.clone())?;
    let store = DiskFile::open(disk.clone())?;
    Ok(Ds::holding(Store::open(store, limits)?, StoreHold::of(disk))?)
}
