//! How a server process begins and ends.
//!
//! Order: log, spawn record, signals (before the first thread), privileges (before the first thread), port, service,
//! system call filter, READY, loop. The service is made before the loop runs and may take its time, recovery included;
//! clients that open a ring meanwhile wait in it.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use abi::Endpoint;
use ipc::Port;
use libvos::SharedPort;
use sessions::Tenure;
use sys::harden::{Identity, give_up_privileges, restrict_system_calls};
use sys::spawn::{Spawn, SpawnError};

use crate::frame::{endpoint_of, serve};
use crate::service::{Handle, Service};

/// Any reason why a server does not start; printed with its causes.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A server that is starting.
pub struct Boot {
    /// Options and descriptors of this server.
    pub spawn: Spawn,
    pub endpoint: Endpoint,
    /// For sessions of this server with others: `libvos::PortConnect`.
    pub port: SharedPort,
    /// For threads of the service that must wake or stop the loop.
    pub handle: Handle,
}

/// What is fixed for a kind of server.
pub struct Kind {
    /// `disk`, `fs`, `ds`.
    pub name: &'static str,
    /// System calls it needs beyond those of every process of ours.
    pub system_calls: &'static [libc::c_long],
}

/// Runs a server process from its spawn record to its end. `make` opens the store and returns the service;
/// `close` stores what the service holds when it was asked to end.
pub fn run<S: Service>(
    kind: &Kind,
    make: impl FnOnce(&mut Boot) -> Result<S, Failure>,
    close: impl FnOnce(S) -> Result<(), Failure>,
) -> ExitCode {
    crate::log::begin(kind.name);
    match try_run(kind, make, close) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            crate::log::failure(kind.name, &*failure);
            ExitCode::FAILURE
        }
    }
}

fn try_run<S: Service>(
    kind: &Kind,
    make: impl FnOnce(&mut Boot) -> Result<S, Failure>,
    close: impl FnOnce(S) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut spawn = Spawn::from_env()?;
    let number = spawn.endpoint.ok_or(SpawnError::Missing("endpoint"))?;
    let endpoint = endpoint_of(number).ok_or_else(|| SpawnError::BadOption("endpoint".to_owned()))?;
    let signals = sys::signals::open(&[libc::SIGTERM, libc::SIGINT])?;
    give_up_privileges(Identity { uid: spawn.uid, gid: spawn.gid })?;
    let port = SharedPort::new(Port::from_socket(spawn.take_broker()?, Some(endpoint))?);
    let handle = Handle::new(port.waker());
    stop_on_signal(signals, handle.clone())?;

    let (epoch, tenure) = (spawn.epoch, Tenure::new(spawn.placement_epoch));
    let mut boot = Boot { spawn, endpoint, port: port.clone(), handle: handle.clone() };
    let service = make(&mut boot)?;
    restrict_system_calls(kind.system_calls)?;
    boot.spawn.ready();
    let placement_epoch = tenure.epoch();
    tracing::info!(dc = boot.spawn.dc, dc_name = boot.spawn.dc_name, %endpoint, epoch, placement_epoch, "serving");
    let service = serve(&port, epoch, tenure, service, &handle)?;
    close(service)?;
    tracing::info!("ended");
    Ok(())
}

fn stop_on_signal(signals: OwnedFd, handle: Handle) -> std::io::Result<()> {
    let wait = move || {
        if let Ok(signal) = sys::signals::next(&signals) {
            tracing::info!(signal, "asked to end");
        }
        handle.stop();
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}
