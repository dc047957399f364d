//! Servers and gates of an earlier release give way to this one, one after the other.
//!
//! A daemon that begins in the binary of another release takes over what runs (`state`, `shelf`). Proxies are its own
//! from the start on; servers and gates go on in the binary they were started from, until somebody asks for this (`dvs
//! node upgrade`). Then each container's worker ends one of them, as soon as all of the container's parts are ready,
//! and starts it again in the daemon's binary: to programs it is a server that died and came back, which they do not
//! notice. The next one follows when all are ready again. Keepers stay: they parent programs.
//!
//! What is of an earlier release the kernel says: the file that a process executes is another one than the daemon's.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

use mgmt_api::{PendingServer, ServerState, ServerStatus, UpgradeState};
use parking_lot::Mutex;
use versions::Release;

use crate::context::Context;
use crate::records::{self, Desired};

/// Whether it was asked for.
#[derive(Default)]
pub struct Renewal {
    wanted: AtomicBool,
    /// Has every worker look.
    wake: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Renewal {
    pub fn wakes(&self, wake: impl Fn() + Send + 'static) {
        *self.wake.lock() = Some(Box::new(wake));
    }

    pub fn ask(&self) {
        self.wanted.store(true, Ordering::Release);
        if let Some(wake) = &*self.wake.lock() {
            wake();
        }
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }
}

/// Whether a process executes another file than this one does. One that cannot be seen, or has ended, does not.
pub fn is_of_another_binary(pid: u32) -> bool {
    // The links lead to the files also when those were replaced.
    let file = |process: &str| {
        let found = std::fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((found.dev(), found.ino()))
    };
    matches!((file("self"), file(&pid.to_string())), (Some(own), Some(theirs)) if own != theirs)
}

/// How far it is, for people: what of this node's running containers is not, or not yet, of this daemon's binary.
pub fn state(context: &Context) -> Result<UpgradeState, cluster::EngineError> {
    let node = &context.config.node;
    let views = records::dc_views(&context.answers)?;
    let running = views.iter().filter(|(_, view)| view.record.desired == Desired::Running);
    let pending = running
        .flat_map(|(name, view)| {
            let placed = view.record.placement.instances.iter().filter(|instance| instance.node == *node);
            let placed = placed.map(|instance| instance.name.as_str());
            let told = view.shares.get(node).map_or(&[][..], |share| &share.share.servers);
            pending(name, placed, told, is_of_another_binary)
        })
        .collect();
    Ok(UpgradeState { release: Release::NAME.to_owned(), pid: std::process::id(), epoch: context.node.epoch, pending })
}

/// Of one container. What was placed here and is told nothing of is pending too: a daemon that has just begun has not
/// told anything yet.
fn pending<'a>(
    dc: &str,
    placed: impl Iterator<Item = &'a str>,
    told: &[ServerStatus],
    is_of_another: impl Fn(u32) -> bool,
) -> Vec<PendingServer> {
    let one = |name: &str| {
        let server = told.iter().find(|server| server.name == name);
        let (pid, state) = server.map_or((None, ServerState::Unknown), |server| (server.pid, server.state));
        let is_earlier = pid.is_some_and(&is_of_another);
        let is_done = state == ServerState::Running && !is_earlier;
        (!is_done).then(|| PendingServer { dc: dc.to_owned(), name: name.to_owned(), pid, state, is_earlier })
    };
    placed.filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_of_another_file_is_told_from_one_of_the_same_and_from_none() {
        assert!(!is_of_another_binary(std::process::id()));
        let mut other = std::process::Command::new("/bin/cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = other.id();
        assert!(is_of_another_binary(pid));
        drop(other.stdin.take());
        other.wait().unwrap();
        assert!(!is_of_another_binary(pid), "it has ended");
    }

    #[test]
    fn what_nobody_has_told_anything_of_is_not_done() {
        let server = |name: &str, pid: u32, state: &str| -> ServerStatus {
            let status = serde_json::json!(
                { "name": name, "kind": "fs", "endpoint": 1, "state": state, "pid": pid, "restarts": 0 }
            );
            serde_json::from_value(status).unwrap()
        };
        let told = [server("fs", 7, "running"), server("gate", 8, "running"), server("cs", 9, "starting")];
        let is_earlier = |pid| pid == 7;
        let found = pending("shop", ["fs", "gate", "cs", "ds"].into_iter(), &told, is_earlier);
        let found: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.state, one.is_earlier)).collect();
        let (running, starting, unknown) = (ServerState::Running, ServerState::Starting, ServerState::Unknown);
        assert_eq!(found, [("fs", running, true), ("cs", starting, false), ("ds", unknown, false)]);
        assert_eq!(pending("shop", ["fs"].into_iter(), &[], is_earlier).len(), 1);
    }
}
