//! `/proc` over all nodes (`gate_proc`): what the kernel asks of this node's mount, what other nodes are asked for it,
//! and what they ask of this one.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use gate_proc::ask::{ANSWER_BYTES_MAX, ASK_BYTES, Ask};
use gate_proc::{Look, NativeProc, Others, ProcGate, ProcSetting, SilentNode};
use libvos::{SharedPort, Size};
use proc_core::caller::Uids;
use proc_core::range::{Seat, Seats};
use rustix::io::Errno;
use vos_api::calls::{Show, Shown};
use vos_rt::{Failure, Request, WorkerPool};

use crate::peers::{NoAnswer, PeerSessions};

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
