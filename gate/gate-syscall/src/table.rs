//! `/proc` over all nodes (`gate_proc`): what the kernel asks of this node's mount, what other nodes are asked for it,
//! and what they ask of this one.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use gate_proc::ask::{ANSWER_BYTES_MAX, ASK_BYTES, Ask, ProcAnswer, ProcFacts, ProcQuestion};
use gate_proc::glance::GlanceDepth;
use gate_proc::number::Entry;
use gate_proc::visible::Asker;
use gate_proc::{Look, NativeProc, Others, ProcGate, ProcSetting, SilentNode};
use libvos::{SharedPort, Size};
use proc_core::caller::Uids;
use proc_core::range::{Seat, Seats};
use rustix::io::Errno;
use vos_api::calls::{Show, Shown};
use vos_rt::{Failure, Request, WorkerPool};

use crate::peers::{NoAnswer, PeerSessions};
use crate::placeholders::Lives;

/// Where the kernel's procfs is, from `/proc` (`sandbox::rootfs::NATIVE_PROC`).
const BEHIND: &str = "../.proc";
/// Questions of other nodes that are answered at a time; those beyond wait.
const ANSWERERS: usize = 4;
const SIZE: Size = Size { entries: 4, arena_bytes: 4 << 20 };
const _: () = assert!(ANSWER_BYTES_MAX <= abi::limits::TRANSFER_BYTES_MAX as usize);

struct Peers(PeerSessions);

impl Others for Peers {
    fn ask(&self, node: Seat, ask: &[u8; ASK_BYTES], limit: Duration) -> Result<Vec<u8>, SilentNode> {
        let answer = self.0.ask(node, Show { ask }, ANSWER_BYTES_MAX as u32, limit);
        answer.map(|(_, bytes)| bytes).map_err(|why| match why {
            NoAnswer::Unreachable | NoAnswer::Failed(_) => SilentNode,
        })
    }
}

/// Whether processes have ended is seen as everybody may see it: by their `stat`.
impl Lives for Peers {
    fn ended(&self, node: Seat, processes: &[u32]) -> BTreeSet<u32> {
        let mut alive = BTreeSet::new();
        let mut from = processes.first().copied();
        while let Some(first) = from {
            let question = ProcQuestion::Glances(first, GlanceDepth::Outside);
            let Ok(ProcFacts::Glances(glances)) = self.facts(node, question) else { return BTreeSet::new() };
            alive.extend(glances.iter().filter(|glance| !has_ended(&glance.stat)).map(|glance| glance.pid));
            let last = glances.last().map(|glance| glance.pid);
            from = last.and_then(|last| processes.iter().copied().find(|process| *process > last));
        }
        // Whoever is missing there may have been passed over.
        let unseen = processes.iter().copied().filter(|process| !alive.contains(process));
        let is_gone = |process: &u32| match self.facts(node, ProcQuestion::File(*process, Entry::Stat)) {
            Ok(ProcFacts::Bytes(stat)) => has_ended(&stat),
            Ok(_) => false,
            Err(cause) => matches!(cause, Some(libc::ENOENT | libc::ESRCH)),
        };
        unseen.filter(is_gone).collect()
    }
}

/// proc_pid_stat(5): the state comes behind the name.
fn has_ended(stat: &[u8]) -> bool {
    let state = stat.rsplit(|byte| *byte == b')').next().and_then(|rest| rest.get(1));
    matches!(state, Some(b'Z' | b'X'))
}

impl Peers {
    /// # Errors
    /// What the node said; `None`: nothing, or nothing that can be understood.
    fn facts(&self, node: Seat, question: ProcQuestion) -> Result<ProcFacts, Option<i32>> {
        let ask = Ask { question, asker: Asker { uid: 0, gid: 0, effective: 0 } };
        let bytes = self.ask(node, &ask.encode(), gate_proc::PATIENCE).map_err(|_| None)?;
        ProcAnswer::decode(&bytes, question, node).map_err(|_| None)?.said.map_err(Some)
    }
}

/// Asks other nodes what of their processes became.
pub fn lives(port: &SharedPort) -> Box<dyn Lives> {
    Box::new(Peers(PeerSessions::new(port.clone(), SIZE, gate_proc::PATIENCE)))
}

/// Answers other nodes.
pub struct Answerer {
    native: Arc<NativeProc>,
    pool: WorkerPool,
}

impl Answerer {
    pub fn answer(&self, request: Request) {
        let Ok(ask) = Ask::decode(&request.data()) else { return request.fail(Errno::PROTO) };
        let native = Arc::clone(&self.native);
        // The pool has room for everything that rings hold; a request that is dropped fails.
        let _ = self.pool.run(move || {
            let bytes = native.answer(&ask).encode();
            match request.put(0, &bytes) {
                Ok(()) => request.reply(Shown { bytes: bytes.len() as u64 }, bytes.len() as u32),
                Err(cause) => request.fail(cause),
            }
        });
    }
}

/// What is known of the container.
pub struct Whose {
    pub own: Seat,
    pub others: Seats,
    pub uids: Uids,
}

/// Serves the mount on threads of its own, as long as the process lives. `looker` looks into processes.
///
/// # Errors
/// No threads or descriptors.
pub fn serve(
    fuse: OwnedFd,
    native: OwnedFd,
    looker: Arc<dyn Look>,
    whose: &Whose,
    port: &SharedPort,
) -> Result<Answerer, Failure> {
    let here = NativeProc::new(native.try_clone()?, whose.own, whose.uids, Arc::clone(&looker));
    let peers = Peers(PeerSessions::new(port.clone(), SIZE, gate_proc::PATIENCE));
    let setting = ProcSetting { behind: BEHIND.to_owned(), others: whose.others };
    let gate = ProcGate::new(fuse, here, peers, setting)?;
    // Nobody signals it: the process ends.
    let never = sys::eventfd::create()?;
    std::thread::Builder::new().name("serve".to_owned()).spawn(move || match gate.run(&never) {
        Ok(why) => tracing::info!(?why, "/proc is served no more"),
        Err(cause) => tracing::error!(%cause, "/proc is served no more"),
    })?;
    let native = Arc::new(NativeProc::new(native, whose.own, whose.uids, looker));
    Ok(Answerer { native, pool: WorkerPool::new("show", ANSWERERS)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_read_behind_the_name_whatever_that_is() {
        assert!(has_ended(b"131072 (sleep) Z 1 131072"));
        assert!(!has_ended(b"131072 (a) Z 1) S 1 131072"));
        assert!(!has_ended(b"131072 (sleep) R 1") && !has_ended(b""));
    }
}
