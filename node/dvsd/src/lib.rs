//! The node daemon.
//!
//! ```text
//! people ── Unix socket ──┐                       ┌── /dcs /members /nodes /eps (cluster engine)
//! other nodes ── TLS ─────┴── api ── changes ─────┤
//!                                                 └── follower (news) ──┬── reconcile: one worker per container
//!                                                                       ├── directory: remote endpoints, to the broker
//!                                                                       └── proxyctl: remote addresses, to the proxy
//! ```
//!
//! People change what should be (`/dcs/NAME` in the engine); every daemon brings its own share of it about and reports
//! what is (`/dcs/NAME/shares/NODE`, gone with the node's lease). Nothing of a container depends on the daemon staying
//! alive: children live in sessions of their own and are adopted by the next daemon (`state`, `supervise`).
//!
//! Threads: a small tokio runtime serves the API and copies forwarded streams; everything that waits for the kernel, a
//! child or the engine runs on plain threads (one per container, one that follows the engine, one for the proxy, one
//! that reports endpoints).
//!
//! Lock order: no function takes two of the daemon's mutexes at a time.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod anew;
mod api;
mod aside;
mod claim;
mod config;
mod context;
mod daemon;
mod descriptors;
mod desks;
mod diagnosis;
mod directory;
mod duties;
mod engine;
mod farewell;
mod hatches;
mod identity;
mod joining;
mod judging;
mod kinds;
mod ledger;
mod level;
mod member;
mod metrics;
mod names;
mod news;
mod numbered;
mod observed;
mod people;
mod placer;
mod presence;
mod proxyctl;
mod quorum;
mod reconcile;
mod records;
pub mod recovery;
mod registry;
mod renewal;
mod service_manager;
mod services;
mod shelf;
mod space;
mod spawn;
mod spec;
mod state;
mod succession;
mod supervise;
mod transports;
mod uids;
mod volumes;
mod waiting;

pub use config::{API_PORT, Config, ConfigError, LogFormat, NoSettings, PROXY_PORT, Settings, VXLAN_PORT};
pub use daemon::{DaemonError, run};
pub use kinds::server_arguments;

use std::path::Path;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

/// `dvs daemon`: runs until SIGTERM or SIGINT; containers go on running.
pub fn main(file: Option<&Path>, flags: Settings) -> ExitCode {
    let config = match Config::load(file, flags) {
        Ok(config) => config,
        Err(error) => return failed(&error),
    };
    begin_log(&config);
    anew::binary();
    anew::begin_anew_on_panic();
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(DaemonError::Fenced | DaemonError::Replaced) => failed(&anew::begin_anew()),
        Err(DaemonError::Upgraded) => failed(&anew::begin_replaced()),
        Err(error) => failed(&error),
    }
}

fn begin_log(config: &Config) {
    let filter = EnvFilter::try_new(&config.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(sys::log::stderr).with_ansi(false);
    let log = log.log_internal_errors(false);
    // A second initialisation is a test's; the first one stays.
    let _ = match config.log_format {
        LogFormat::Text => log.try_init(),
        // Fields beside message, level and time, as those who collect logs expect them.
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

/// `dvs shelf`: holds descriptors for the daemon, until it is killed.
pub fn shelf_main_from_spawn() -> ExitCode {
    sys::log::end_on_panic();
    match shelf::serve_from_spawn() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            sys::log::say_causes(format_args!("dvs: the shelf ended"), &*error);
            ExitCode::FAILURE
        }
    }
}

/// `dvs etcd`: the node's member of the cluster engine.
pub fn etcd_main_from_spawn() -> ExitCode {
    match member::become_from_spawn() {
        Ok(never) => match never {},
        Err(error) => {
            sys::log::say_causes(format_args!("dvs: the member of etcd did not start"), &*error);
            ExitCode::FAILURE
        }
    }
}

fn failed(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    let mut said = "dvs: the daemon did not start".to_owned();
    let mut cause = Some(error);
    let mut hint = "dvs doctor, and dvs daemon --help for its settings";
    while let Some(error) = cause {
        said.push_str(&format!("\n  because: {error}"));
        let certificates = error.downcast_ref().map(pki::PkiError::hint);
        let identity = error.downcast_ref().and_then(identity::IdentityError::hint);
        let identity = identity.or(error.downcast_ref().and_then(about_the_engine));
        hint = error.downcast_ref().and_then(what_to_try).or(certificates).or(identity).unwrap_or(hint);
        cause = error.source();
    }
    sys::log::say(format_args!("{said}\n  try: {hint}"));
    ExitCode::FAILURE
}

fn about_the_engine(error: &engine::OpenError) -> Option<&'static str> {
    match error {
        engine::OpenError::Engine(cluster::EngineError::Untrusted(_)) => Some(
            "the clocks of the machines; when the certificates of all nodes have expired: dvs cluster recover, on one of them",
        ),
        _ => None,
    }
}

/// What people can do about the system errors that a daemon meets at its start.
fn what_to_try(error: &std::io::Error) -> Option<&'static str> {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::AddrInUse => Some("end the program that has the port (ss -ltnp shows it), or set another port"),
        ErrorKind::AddrNotAvailable => Some("an address of this machine (ip addr) for --listen and --advertise"),
        ErrorKind::PermissionDenied => Some("run it as root"),
        ErrorKind::StorageFull => Some("make room in the state directory"),
        _ => None,
    }
}
