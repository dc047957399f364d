//! The coordination server's process: from its spawn record to a service.
//!
//! Spawn record: descriptor `desk`; option `node_index`.

use std::process::ExitCode;
use std::time::Duration;

use cs_core::{Host, LIVES_BITS};
use vos_rt::{Boot, DeskSocket, Failure, Kind, SpawnError, run};

use crate::service::Cs;

const KIND: Kind = Kind { name: "cs", system_calls: &[libc::SYS_pread64] };
/// How long the daemon may take to tell what is in the engine.
const PREPARATION: Duration = Duration::from_secs(100);

/// Runs `dvs server cs`.
pub fn main_from_spawn() -> ExitCode {
    run(&KIND, open, |cs| {
        drop(cs);
        Ok(())
    })
}

fn open(boot: &mut Boot) -> Result<Cs, Failure> {
    let desk = boot.spawn.take_fd("desk").ok_or(SpawnError::Missing("fds.desk"))?;
    let node = boot.spawn.option_u64("node_index")?.ok_or(SpawnError::Missing("options.node_index"))?;
    let own = Host { node: u8::try_from(node)?, incarnation: boot.spawn.epoch << LIVES_BITS };
    let socket = DeskSocket::open(desk, boot.handle.clone())?;
    let mut cs = Cs::new(own, socket, boot.port.clone(), boot.handle.clone());
    if !cs.prepare(PREPARATION) {
        return Err("the daemon did not tell what is in the cluster engine".into());
    }
    Ok(cs)
}
