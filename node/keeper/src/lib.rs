//! The keeper: one small process per container and node that is the parent of the container's programs there and holds
//! what must outlive the daemon: terminals, logs, exit statuses, the FUSE descriptor, descriptors the daemon stores.
//!
//! ```text
//! keeper            host root, one thread, one epoll loop
//! ├─ init           PID 1 of the container's pid namespace: holds the namespaces, keeps PIDs inside the node's range
//! └─ programs       in the same pid namespace, children of the keeper (their parent is 0 inside)
//! ```
//!
//! Life: `Building` (namespaces, mount tree, init) → `Serving` → `Stopping` (SIGTERM sent, grace running) → gone. When
//! the keeper ends, however it ends, init is killed by the kernel and with it every process of the namespace.
//!
//! Everything here is single-threaded: the process forks without exec (entering namespaces needs that), and a forked
//! child may only go on when no other thread existed. So there are no locks; the order of events is the order of the
//! loop.
//!
//! Not here: what namespaces, mounts and cgroups are made of (`sandbox`), who decides that a container should run
//! (`dvsd`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod callgate;
mod client;
mod deaths;
mod init;
mod jobs;
mod keeper;
pub mod kept;
mod launch;
mod list;
mod log;
mod looks;
mod memory;
mod orders;
mod packet;
mod placeholders;
mod poll;
mod program;
mod protocol;
mod refusal;
mod restraints;
mod runs;
mod seccomp;
mod stream;
mod users;
mod work;

pub use client::{CallGateFds, JobFds, KeeperClient, KeeperError, NamespaceFds, ProcFds, StreamEnd};
pub use deaths::DEATHS_KEY;
pub use keeper::FUSE_KEY;
pub use log::Part as LogPart;
pub use packet::{PacketError, read_packet};
pub use protocol::{FuseOptions, KeeperOptions, Permit, PresenceWatch, RunStanding, Status, VERSIONS, Versions};
pub use refusal::{BadRun, Refusal, Stage, Task};

use std::process::ExitCode;

use keeper::{Asked, Keeper};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use sandbox::helper::chain;
use sys::spawn::Spawn;

/// Entry of `dvs keeper`: everything comes from `DVS_SPAWN`, whose `options` are [`KeeperOptions`].
pub fn main_from_spawn() -> ExitCode {
    // A second initialisation is refused, which is fine: then the binary has done it.
    let log = tracing_subscriber::fmt().with_writer(sys::log::stderr).with_ansi(false);
    let _ = log.log_internal_errors(false).try_init();
    sys::log::end_on_panic();
    match run() {
        Ok(Asked::Yes) => ExitCode::SUCCESS,
        Ok(Asked::No) => ExitCode::FAILURE,
        Err(error) => {
            tracing::error!("the keeper did not start: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Asked, Box<dyn std::error::Error>> {
    let mut spawn = Spawn::from_env()?;
    let options: KeeperOptions = serde_json::from_value(serde_json::Value::Object(spawn.options.clone()))?;
    // Children inherit it: nobody inside a container can trace what is not yet a program of it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let keeper = Keeper::build(options, spawn.dc_name.clone())?;
    spawn.ready();
    Ok(keeper.serve()?)
}
