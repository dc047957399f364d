//! Logging to stderr, which the daemon points at a file of bounded size. `DVS_LOG` chooses the level.

use std::error::Error;

use tracing_subscriber::EnvFilter;

/// Begins logging; a second call in the same process changes nothing.
pub fn begin(kind: &str) {
    let filter = EnvFilter::try_from_env("DVS_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(sys::log::stderr).with_ansi(false);
    let _ = log.log_internal_errors(false).try_init();
    // What must not go on after a panic says so itself (`AbortOnPanic`).
    sys::log::on_panic(|| ());
    tracing::debug!(kind, "started");
}

/// Says why a process ends, with all causes.
pub fn failure(kind: &str, error: &(dyn Error + 'static)) {
    sys::log::say_causes(format_args!("dvs: server {kind} ended"), error);
}
