//! PID 1 of a container's pid namespace on one node: it holds the namespaces, buries orphans, and keeps PIDs inside the
//! node's range.
//!
//! PIDs of a container are unique over its nodes because every node allocates from a range of its own. The kernel
//! counts upwards and wraps to 300 at `pid_max`, not to the start of the range; so init looks at `ns_last_pid` and sets
//! it back to the start when three quarters are used. It looks the more often the less is left ([`pause`]): no machine
//! forks fast enough to get to the end between two looks. That enough numbers are free from the start on follows from
//! the limit of half a range of processes per container and node (`sandbox::cgroup::PIDS_MAX`).
//!
//! States: `Waiting` (namespaces exist, mount tree does not) → `Serving`. It ends when its keeper ends: the kernel's
//! parent death signal, and the end of their socket. With it ends everything in the namespace. So it is also who
//! carries out what other nodes ask of these processes (`orders.rs`): what it remembers of that lasts as long as they
//! do.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Gid, Signal, Uid, WaitId, WaitIdOptions, set_parent_process_death_signal, waitid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use sandbox::helper::chain;
use serde::{Deserialize, Serialize};
use sys::child::{ForkError, Forked, Parentage, exit_now, fork};
use sys::ns::Kinds;
use sys::without::Feature;

use crate::orders::{self, Orders};
use crate::packet::{self, PacketError};

/// Building a mount tree takes milliseconds; a start that takes this long has a keeper that hangs.
const ORDER_LIMIT: Duration = Duration::from_secs(60);
/// Forks per second that no machine reaches.
const FORKS_PER_SECOND: u32 = 200_000;
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Also how late init notices that somebody inside wrote to `ns_last_pid`.
const PAUSE_MAX: Duration = Duration::from_millis(300);

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("could not make a process for the container's init")]
    Fork(#[from] ForkError),
    #[error("could not make a socket for the container's init")]
    Socket(#[source] io::Error),
    #[error("the container's namespaces could not be made")]
    Namespaces(#[source] PacketError),
    #[error("the container's init is gone")]
    Gone(#[source] io::Error),
    #[error("the container's init did not answer")]
    NoAnswer(#[source] PacketError),
    #[error("the container's init failed: {0}")]
    Failed(String),
}

/// The container's init, as its keeper sees it.
#[derive(Debug)]
pub struct Init {
    /// On the host.
    pub pid: u32,
    pub pidfd: OwnedFd,
    socket: OwnedFd,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub hostname: String,
    pub pid_base: u32,
    pub pid_span: u32,
}

#[derive(Debug, Serialize, Deserialize)]
enum Word {
    Born { pid: u32 },
    Settled { degraded: Vec<String> },
    Failed(String),
}

impl Init {
    /// Makes pid, network, IPC and host name namespaces that belong to `user_namespace`, and init in them. It waits for
    /// [`Init::settle`].
    pub fn start(user_namespace: &OwnedFd) -> Result<Init, InitError> {
        let (ours, theirs) = sys::seqpacket::pair().map_err(InitError::Socket)?;
        match fork(Parentage::Mine)? {
            Forked::Child => {
                drop(ours);
                midwife(user_namespace, theirs)
            }
            Forked::Parent { pidfd, .. } => {
                drop(theirs);
                let born = packet::receive_until::<Word>(ours.as_fd(), Instant::now() + ORDER_LIMIT);
                let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
                match born.map_err(InitError::Namespaces)?.0 {
                    Word::Born { pid } => {
                        let pidfd = sys::pidfd::open(pid as i32).map_err(InitError::Gone)?;
                        Ok(Init { pid, pidfd, socket: ours })
                    }
                    Word::Failed(text) => Err(InitError::Failed(text)),
                    Word::Settled { .. } => Err(InitError::Failed("it spoke out of turn".into())),
                }
            }
        }
    }

    /// Moves init into the finished mount tree and lets it take over the PID range. Gives what this kernel could not
    /// do. `orders`: over it come orders of other nodes, if any do.
    pub fn settle(
        &self,
        mount_namespace: &OwnedFd,
        orders: Option<OwnedFd>,
        order: &Order,
    ) -> Result<Vec<String>, InitError> {
        let until = Instant::now() + ORDER_LIMIT;
        let socket = self.socket.as_fd();
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(mount_namespace).chain(&orders).map(AsFd::as_fd).collect();
        packet::send(socket, order, &fds, until).map_err(InitError::NoAnswer)?;
        match packet::receive_until::<Word>(socket, until).map_err(InitError::NoAnswer)?.0 {
            Word::Settled { degraded } => Ok(degraded),
            Word::Failed(text) => Err(InitError::Failed(text)),
            Word::Born { .. } => Err(InitError::Failed("it spoke out of turn".into())),
        }
    }
}

/// Between keeper and init: only children are in a new pid namespace, so a process in between makes it and hands the
/// first child there to the keeper, as its own child.
fn midwife(user_namespace: &OwnedFd, socket: OwnedFd) -> ! {
    let made = sys::ns::join(user_namespace, Kinds::USER)
        .and_then(|()| sys::ns::unshare(Kinds::PID | Kinds::NET | Kinds::IPC | Kinds::UTS));
    let word = match made {
        Err(cause) => Word::Failed(format!("could not make the namespaces: {cause}")),
        Ok(()) => match fork(Parentage::Sibling) {
            Ok(Forked::Child) => init(socket),
            Ok(Forked::Parent { pid, .. }) => Word::Born { pid },
            Err(error) => Word::Failed(chain(&error)),
        },
    };
    let sent = packet::send_now(socket.as_fd(), &word, &[]);
    exit_now(i32::from(sent.is_err()))
}

fn init(socket: OwnedFd) -> ! {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    sys::child::ignore_child_deaths();
    let _ = rustix::thread::set_name(c"dvs-init");
    let (order, fds) = match packet::receive_until::<Order>(socket.as_fd(), Instant::now() + ORDER_LIMIT) {
        Ok(order) => order,
        Err(_) => exit_now(1),
    };
    let mut fds = fds.into_iter();
    let tree = fds.next().ok_or_else(|| "no mount tree came".into());
    let settled = tree.and_then(|tree| settle(&tree, &order)).and_then(|(range, degraded)| {
        let orders = fds.next().map(|socket| orders(&order, socket)).transpose()?;
        Ok((range, orders, degraded))
    });
    let (word, range, orders) = match settled {
        Ok((range, orders, degraded)) => (Word::Settled { degraded }, range, orders),
        Err(error) => (Word::Failed(chain(error.as_ref())), None, None),
    };
    if packet::send_now(socket.as_fd(), &word, &[]).is_err() || matches!(word, Word::Failed(_)) {
        exit_now(1);
    }
    serve(&socket, range, orders)
}

fn orders(order: &Order, socket: OwnedFd) -> Result<Orders, Box<dyn std::error::Error>> {
    let own = orders::seat_of(order.pid_base).ok_or("its numbers are those of no node")?;
    // In the finished mount tree, before there is any program.
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let proc_dir = rustix::fs::open("/proc", flags, Mode::empty())?;
    Ok(Orders::new(own, socket, proc_dir))
}

type Settled = Result<(Option<Range>, Vec<String>), Box<dyn std::error::Error>>;

fn settle(tree: &OwnedFd, order: &Order) -> Settled {
    sys::ns::join(tree, Kinds::MOUNT)?;
    rustix::system::sethostname(order.hostname.as_bytes())?;
    sandbox::links::Links::here()?.set_loopback_up()?;
    set_thread_groups(&[])?;
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    // A change of uid forgets it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let mut degraded = Vec::new();
    let end = order.pid_base.saturating_add(order.pid_span);
    if let Err(cause) = limit_pids(end) {
        degraded.push(format!(
            "this kernel has one limit of PIDs for all namespaces ({cause}; Linux 6.14 has one each): \
             PIDs stay in the node's range only as long as init is fast enough"
        ));
    }
    let range = match Range::take(order) {
        Ok(range) => Some(range),
        Err(cause) => {
            degraded
                .push(format!("the PIDs of this node cannot be set ({cause}): they may repeat those of another node"));
            None
        }
    };
    Ok((range, degraded))
}

fn limit_pids(end: u32) -> io::Result<()> {
    if sys::without(Feature::PidMaxOfNamespace) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    std::fs::write("/proc/sys/kernel/pid_max", end.to_string())
}

/// The node's range of PIDs.
struct Range {
    last: File,
    base: u32,
    span: u32,
}

impl Range {
    fn take(order: &Order) -> io::Result<Range> {
        let last = OpenOptions::new().read(true).write(true).open("/proc/sys/kernel/ns_last_pid")?;
        let mut range = Range { last, base: order.pid_base, span: order.pid_span };
        range.restart()?;
        Ok(range)
    }

    /// The next process gets the first free number from the start on.
    fn restart(&mut self) -> io::Result<()> {
        self.last.seek(SeekFrom::Start(0))?;
        self.last.write_all(self.base.saturating_sub(1).to_string().as_bytes())
    }

    fn last(&mut self) -> io::Result<u32> {
        let mut text = [0; 16];
        self.last.seek(SeekFrom::Start(0))?;
        let got = self.last.read(&mut text)?;
        let text = std::str::from_utf8(text.get(..got).unwrap_or_default()).unwrap_or_default();
        text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Goes back to the start when it is time; says when to look again.
    fn look(&mut self) -> io::Result<Duration> {
        let used = self.last()?.wrapping_sub(self.base).wrapping_add(1);
        if used < self.span / 4 * 3 {
            return Ok(pause(self.span - used));
        }
        self.restart()?;
        Ok(pause(self.span))
    }
}

/// How long `left` numbers last at least.
fn pause(left: u32) -> Duration {
    (Duration::from_secs(1) * left / FORKS_PER_SECOND).clamp(PAUSE_MIN, PAUSE_MAX)
}

/// Until the keeper is gone.
fn serve(socket: &OwnedFd, mut range: Option<Range>, mut orders: Option<Orders>) -> ! {
    loop {
        let pause = range.as_mut().map(|range| range.look().unwrap_or(PAUSE_MAX));
        let limit = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let mut ready = vec![PollFd::new(socket, PollFlags::IN)];
        ready.extend(orders.as_ref().map(|orders| PollFd::new(orders.socket(), orders.waits_for())));
        let heard = match poll(&mut ready, limit.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => false,
            // The keeper has nothing more to say: this is the end of it.
            Ok(_) if ready.first().is_none_or(|keeper| !keeper.revents().is_empty()) => exit_now(0),
            Ok(_) => true,
            Err(_) => exit_now(0),
        };
        if let Some(orders) = orders.as_mut().filter(|_| heard) {
            let mut due = pause.map(|pause| Instant::now() + pause);
            orders.work(&mut || {
                if let Some(range) = range.as_mut().filter(|_| due.is_some_and(|due| Instant::now() >= due)) {
                    due = Some(Instant::now() + range.look().unwrap_or(PAUSE_MAX));
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_more_often_the_less_is_left() {
        assert_eq!(pause(65_536), PAUSE_MAX);
        assert_eq!(pause(16_384), Duration::from_micros(81_920));
        assert_eq!(pause(1), PAUSE_MIN);
    }
}
