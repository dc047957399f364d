//! How a gate process begins: `dvs gate fuse`, started by the node daemon.
//!
//! Descriptors: `fuse` (a mounted connection), `state` (a memfd of this mount, empty the first time), `deaths` (over
//! which the keeper says who is about to die; an earlier release's gives none). Options: `fs`
//! (endpoint of the fs server, default [`Endpoint::FS`]), `disk` (endpoint of its disk; without it every read goes
//! through the fs server), `fs_epoch` and `disk_epoch` (of their placements), `entries` and `arena_bytes` of the ring
//! to the fs server.

use std::error::Error;
use std::process::ExitCode;

use abi::Endpoint;
use ipc::Port;
use libvos::{Epochs, PortConnect, SharedPort, Size};
use sys::harden::{Identity, give_up_privileges, restrict_system_calls};
use sys::spawn::{Spawn, SpawnError};
use tracing_subscriber::EnvFilter;

use crate::backend::session::{Connector, SessionBackend};
use crate::gate::{End, Gate};

/// Beyond those of every process of ours: the state object is read and written at offsets.
const SYSTEM_CALLS: &[libc::c_long] = &[libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_ftruncate];

/// As many in flight as the gate takes, room for 64 transfers of 1 MiB.
const SIZE: Size = Size { entries: 512, arena_bytes: 64 << 20 };

/// To the disk: as many long reads as the kernel has under way at a time.
const DISK_SIZE: Size = Size { entries: 64, arena_bytes: 32 << 20 };

/// Runs a gate process to its end: 0 when it was unmounted or asked to stop.
pub fn main_from_spawn() -> ExitCode {
    let filter = EnvFilter::try_from_env("DVS_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(sys::log::stderr).with_ansi(false);
    let _ = log.log_internal_errors(false).try_init();
    sys::log::end_on_panic();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            sys::log::say_causes(format_args!("dvs: the file gate ended"), &*error);
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut spawn = Spawn::from_env()?;
    let number = spawn.endpoint.ok_or(SpawnError::Missing("endpoint"))?;
    let endpoint = Endpoint::new(number).ok_or_else(|| SpawnError::BadOption("endpoint".to_owned()))?;
    let server = spawn.option_as("fs", Endpoint::from_u64)?.unwrap_or(Endpoint::FS);
    let disk = spawn.option_as("disk", Endpoint::from_u64)?;
    let told = |option| spawn.option_epoch(option).map(|server| Epochs { server, own: spawn.placement_epoch });
    let (fs_epochs, disk_epochs) = (told("fs_epoch")?, told("disk_epoch")?);
    let size = size_option(&spawn)?;
    let fuse = spawn.take_fd("fuse").ok_or(SpawnError::Missing("fuse"))?;
    let state = spawn.take_fd("state").ok_or(SpawnError::Missing("state"))?;
    let deaths = spawn.take_fd("deaths");
    let broker = spawn.take_broker()?;

    let stop = sys::signals::open(&[libc::SIGTERM, libc::SIGINT])?;
    give_up_privileges(Identity { uid: spawn.uid, gid: spawn.gid })?;
    let port = SharedPort::new(Port::from_socket(broker, Some(endpoint))?);
    let disk = disk.map(|disk| PortConnect::new(port.clone(), disk, DISK_SIZE));
    let connector: Connector = Box::new(move || Box::new(PortConnect::new(port.clone(), server, size)));
    let mut backend = SessionBackend::new(connector, size)?.told(fs_epochs);
    if let Some(disk) = disk {
        backend = backend.reading_from(Box::new(disk), DISK_SIZE, disk_epochs)?;
    }
    let mut gate = Gate::new(fuse, state, backend)?;
    if let Some(deaths) = deaths {
        gate = gate.told_of_deaths_by(deaths);
    }
    restrict_system_calls(SYSTEM_CALLS)?;
    tracing::info!(dc = spawn.dc, dc_name = spawn.dc_name, %endpoint, %server, "serving");
    // Not the first thread: with the end of this one the daemon starts the next gate (`ChildRecord::serving`).
    let end = std::thread::scope(|scope| {
        let serve = || {
            spawn.ready();
            gate.run(&stop)
        };
        let serving = std::thread::Builder::new().name("serve".to_owned()).spawn_scoped(scope, serve)?;
        let ended = serving.join().map_err(|_| "the thread that serves panicked")?;
        Ok::<_, Box<dyn Error + Send + Sync>>(ended?)
    })?;
    let counters = gate.counters();
    match end {
        End::Unmounted => tracing::info!(?counters, "ended: the file tree was unmounted"),
        End::Stopped => tracing::info!(?counters, "ended: asked to; the file tree waits for the next gate"),
    }
    Ok(())
}

fn size_option(spawn: &Spawn) -> Result<Size, SpawnError> {
    let option = |name| spawn.option_as(name, |number| u32::try_from(number).ok());
    Ok(Size {
        entries: option("entries")?.unwrap_or(SIZE.entries),
        arena_bytes: option("arena_bytes")?.unwrap_or(SIZE.arena_bytes),
    })
}
