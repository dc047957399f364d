//! How a process of ours gives up what it does not need, once its descriptors are in hand.
//!
//! Order matters: identity first (it needs the capabilities), then capabilities, then `no_new_privs`, which permits the
//! seccomp filter; `PR_SET_DUMPABLE` last of the identity steps, because a change of uid resets it. Call
//! [`give_up_privileges`] before the first thread is made: capabilities belong to threads. The filter is applied to all
//! threads, so it may come when the process is ready.
//!
//! A call outside the list answers `EPERM` instead of killing: a library that probes for a newer call falls back, and
//! a server that meets an unforeseen one reports an error instead of vanishing.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

#[derive(Debug, thiserror::Error)]
pub enum HardenError {
    #[error("could not {step}")]
    Step {
        step: &'static str,
        #[source]
        cause: io::Error,
    },
    #[error("the system call filter could not be built")]
    Filter(#[source] seccompiler::BackendError),
    #[error("the kernel refused the system call filter")]
    Install(#[source] seccompiler::Error),
}

/// Whom the process becomes. `None` keeps what it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// Switches identity, drops all capabilities, forbids new ones and makes the process untraceable by its own uid.
pub fn give_up_privileges(identity: Identity) -> Result<(), HardenError> {
    switch_identity(identity)?;
    drop_capabilities()?;
    // SAFETY: (1) these options take plain numbers.
    check("forbid new privileges", unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: (1) as above.
    check("become undumpable", unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })
}

fn switch_identity(identity: Identity) -> Result<(), HardenError> {
    // SAFETY: (1) geteuid takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if is_root && (identity.uid.is_some() || identity.gid.is_some()) {
        // SAFETY: (1) a count of 0 reads no memory.
        check("drop supplementary groups", unsafe { libc::setgroups(0, std::ptr::null()) })?;
    }
    if let Some(gid) = identity.gid {
        // SAFETY: (1) plain numbers.
        check("switch the group", unsafe { libc::setresgid(gid, gid, gid) })?;
    }
    if let Some(uid) = identity.uid {
        // SAFETY: (1) plain numbers.
        check("switch the user", unsafe { libc::setresuid(uid, uid, uid) })?;
    }
    Ok(())
}

fn drop_capabilities() -> Result<(), HardenError> {
    use rustix::thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities};
    let step = "drop capabilities";
    let fail = |cause: rustix::io::Errno| HardenError::Step { step, cause: cause.into() };
    clear_ambient_capability_set().map_err(fail)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).map_err(fail)
}

/// Installs an allow list for every thread of the process: [`BASE_CALLS`] and `more`.
pub fn restrict_system_calls(more: &[libc::c_long]) -> Result<(), HardenError> {
    let rules: BTreeMap<i64, Vec<seccompiler::SeccompRule>> =
        BASE_CALLS.iter().chain(more).map(|&call| (call, Vec::new())).collect();
    let arch = if cfg!(target_arch = "aarch64") { TargetArch::aarch64 } else { TargetArch::x86_64 };
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch).map_err(HardenError::Filter)?;
    let program: BpfProgram = filter.try_into().map_err(HardenError::Filter)?;
    seccompiler::apply_filter_all_threads(&program).map_err(HardenError::Install)
}

/// What every process of ours needs: memory, threads, waiting, descriptors it holds, time, its own end.
pub const BASE_CALLS: &[libc::c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    // Threads and their ends. `clone3` without arguments checked: a new process inherits the filter anyway.
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_prctl,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    // Waiting.
    libc::SYS_futex,
    SYS_FUTEX_WAITV,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    // Descriptors it holds.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_getsockopt,
    libc::SYS_shutdown,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_lseek,
    // Signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_tgkill,
];

/// The same number on every architecture; younger than some C libraries.
const SYS_FUTEX_WAITV: libc::c_long = 449;

fn check(step: &'static str, result: libc::c_int) -> Result<(), HardenError> {
    if result < 0 {
        return Err(HardenError::Step { step, cause: io::Error::last_os_error() });
    }
    Ok(())
}
