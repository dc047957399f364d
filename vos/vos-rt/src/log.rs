//! Logging to stderr, which the daemon points at a file of bounded size. `DVS_LOG` chooses the level.

use std::error::Error;

use tracing_subscriber::EnvFilter;

/// Begins logging; a second call in the same process changes nothing.
pub fn begin(kind: &str) {
    let filter = EnvFilter::try_from_env("DVS_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let writer = std::io::stderr;
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false).try_init();
    tracing::debug!(kind, "started");
}

/// Says why a process ends, with all causes.
pub fn failure(kind: &str, error: &(dyn Error + 'static)) {
    eprintln!("dvs: server {kind} ended: {error}");
    let mut cause = error.source();
    // Chains are short; the bound keeps a cyclic one from filling the log.
    for _ in 0..16 {
        let Some(next) = cause else { break };
        eprintln!("  because: {next}");
        cause = next.source();
    }
}
