//! `dvs internal retire`: ends what a daemon leaves running on a node, before the node's software goes.
//!
//! A daemon that stops leaves its shelf, its proxies and its member of the cluster engine to the next one. Here there
//! will be no next one. Containers are nobody's to end but their owner's: as long as one lives on this node, nothing is
//! touched.

use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;

use super::{Outcome, say};
use crate::cli::Global;
use crate::dev::{clean, host, processes};
use crate::errors::Failure;

/// To close its files: what a member of the cluster engine gets from its daemon as well.
const GRACE: Duration = Duration::from_secs(5);
const KILL_LIMIT: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub struct Options {
    /// Only refuse or not; the daemon may still run.
    #[arg(long)]
    dry_run: bool,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let places = global.places();
    let living = host::living(&places);
    if !living.is_empty() {
        let what = format!("containers run on this node (numbers {})", living.join(", "));
        return Err(Failure::new(what).hint("dvs dc ls, then dvs dc stop for each, and again"));
    }
    if options.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if UnixStream::connect(places.system_socket()).is_ok() {
        return Err(Failure::new("the node's daemon runs").hint("end it: systemctl stop dvsd, or kill its process"));
    }
    for (role, process) in host::children_of_the_node(&places) {
        let failed = |cause| Failure::new(format!("cannot end {role} (process {})", process.pid)).because(&cause);
        let ended = processes::end(process, Signal::TERM, GRACE).map_err(failed)?
            || processes::end(process, Signal::KILL, KILL_LIMIT).map_err(failed)?;
        if !ended {
            return Err(Failure::new(format!("{role} (process {}) does not end", process.pid)).hint("again, later"));
        }
        say(&format!("ended {role}"));
    }
    for leftover in host::find(&places) {
        // What is left of a group, an interface or a mount goes with the machine's next start.
        if let Err(cause) = clean::remove(&places, &leftover) {
            say(&format!("{leftover} stays: {cause}"));
        }
    }
    host::remove_parent_groups();
    Ok(ExitCode::SUCCESS)
}
