//! The key-value server's process: from its spawn record to a service and back.
//!
//! Spawn record: descriptor `image`; options `keys` and `bytes` (what the store may hold).

use std::process::ExitCode;

use vos_rt::{Boot, Failure, Kind, SpawnError, run};

use crate::backend::FileStore;
use crate::service::Ds;
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

/// Runs `dvs server ds`.
pub fn main_from_spawn() -> ExitCode {
    run(&KIND, open, |ds| {
        ds.close();
        Ok(())
    })
}

fn open(boot: &mut Boot) -> Result<Ds, Failure> {
    let file = boot.spawn.take_fd("image").ok_or(SpawnError::Missing("fds.image"))?;
    let most = Limits::default();
    let limits = Limits {
        keys: boot.spawn.option_u64("keys")?.map_or(most.keys, |keys| keys.min(most.keys)),
        bytes: boot.spawn.option_u64("bytes")?.unwrap_or(most.bytes),
    };
    Ok(Ds::new(Store::open(FileStore::new(file), limits)?)?)
}
