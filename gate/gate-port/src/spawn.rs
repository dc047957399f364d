//! How a port gate begins: `dvs gate ports`, started by the node daemon.
//!
//! Descriptors: `net` (the container's network namespace on this node), `control` (over it come listening sockets and
//! who the nodes are). It enters the namespace first, and gives up its privileges then: what it can reach is what a
//! program of the container can, and what it listens at was given to it.

use std::process::ExitCode;

use sys::harden::{Identity, give_up_privileges, restrict_system_calls};
use sys::ns::Kinds;
use vos_rt::{Failure, Spawn, SpawnError};

use crate::gate::{PortGate, PortGateEnd};

const NAME: &str = "ports";
const CALLS: &[libc::c_long] = &[
    libc::SYS_accept4,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_ioctl,
    libc::SYS_pipe2,
    libc::SYS_splice,
];

/// Runs `dvs gate ports`.
pub fn main_from_spawn() -> ExitCode {
    vos_rt::log::begin(NAME);
    match serve() {
        Ok(end) => {
            tracing::info!(?end, "ended");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            vos_rt::log::failure(NAME, &*failure);
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<PortGateEnd, Failure> {
    let mut spawn = Spawn::from_env()?;
    let mut take = |name: &'static str| spawn.take_fd(name).ok_or(SpawnError::Missing(name));
    let (net, control) = (take("net")?, take("control")?);
    let stop = sys::signals::open(&[libc::SIGTERM, libc::SIGINT])?;
    sys::ns::join(net, Kinds::NET)?;
    give_up_privileges(Identity { uid: spawn.uid, gid: spawn.gid })?;
    let gate = PortGate::new(control, stop)?;
    restrict_system_calls(CALLS)?;
    spawn.ready();
    tracing::info!(dc = spawn.dc, dc_name = spawn.dc_name, "serving");
    Ok(gate.run()?)
}
