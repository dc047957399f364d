//! The process `dvs proxy`: links to the proxies of all other nodes, over any transport and TLS 1.3.
//!
//! One thread, one loop ([`proxy`]). It stands in for endpoints of other nodes at the local broker
//! (`ipc::stand_in`), moves what local parties publish to the peers, and what the peers send into local channels. What
//! to send, when a peer is dead and how to go on after a cut is decided by `proxy-link`; here are sockets, encryption
//! and the broker.
//!
//! - [`transport`]: what carries the bytes: TCP, Unix sockets, or what a program of yours brings.
//! - [`inspect`]: a look at everything that passes, to filter or log.
//! - [`secure`]: TLS or none over a stream, and who the peer is by its certificate.
//! - [`control`]: what the node daemon and the proxy say to each other.
//! - [`spawned`]: what the proxy is started with.
//!
//! **A proxy of your own** is a program that calls [`main_with`] with its transports, its inspector, or both; the rest
//! of the proxy, and the daemon that starts it, stay as they are.
//!
//! Of two nodes the one with the smaller number dials. A link whose connection breaks is dialled again; channels stay
//! until the peer was silent for the limit. When the proxy is killed, the next one is handed the same channels.
//!
//! Waiting: while there is something to do both sides are polled; then a few more rounds as long as that pays off; then
//! the loop sleeps in epoll. An idle proxy wakes for heartbeats only.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod attendance;
mod carriers;
mod connection;
pub mod control;
mod controller;
mod error;
pub mod inspect;
mod limits;
mod local;
mod lz4;
mod pace;
mod peers;
mod proxy;
mod refusals;
pub mod secure;
mod spawned;
mod standing;
mod tls;
mod traffic;
pub mod transport;

use std::process::ExitCode;

use sys::harden::{Identity, give_up_privileges, restrict_system_calls};
use sys::spawn::Spawn;

pub use attendance::RESTART_BITS;
pub use error::ProxyError;
pub use proxy::{Proxy, Stopped};
pub use proxy_link::presence;
pub use spawned::{Parts, ProxyConfig, tcp_listener};

/// `dvs proxy`: everything comes from the spawn record.
pub fn main_from_spawn() -> ExitCode {
    main_with(Parts::from_spawn)
}

/// The same with parts of your own. `make` may take further descriptors and options of the record; it runs before
/// privileges are given up.
pub fn main_with(make: impl FnOnce(&mut Spawn) -> Result<Parts, ProxyError>) -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("DVS_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(sys::log::stderr).with_ansi(false);
    let _ = log.log_internal_errors(false).try_init();
    sys::log::end_on_panic();
    match run(make) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error::tell(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(make: impl FnOnce(&mut Spawn) -> Result<Parts, ProxyError>) -> Result<(), ProxyError> {
    let stop = sys::signals::open(&[libc_signals::SIGTERM, libc_signals::SIGINT]).map_err(ProxyError::Signals)?;
    let mut spawn = Spawn::from_env()?;
    let identity = Identity { uid: spawn.uid, gid: spawn.gid };
    let parts = make(&mut spawn)?;
    let config = ProxyConfig::from_spawn(&mut spawn, parts)?;
    // Certificates are read by now or never: the key belongs to root.
    let mut proxy = Proxy::new(config)?;
    proxy.stop_on(stop)?;
    give_up_privileges(identity)?;
    restrict_system_calls(&proxy.system_calls())?;
    spawn.ready();
    match proxy.run()? {
        Stopped::Asked => Ok(()),
    }
}

/// Numbers of the signals that end the process.
mod libc_signals {
    pub const SIGTERM: i32 = rustix::process::Signal::TERM.as_raw();
    pub const SIGINT: i32 = rustix::process::Signal::INT.as_raw();
}
