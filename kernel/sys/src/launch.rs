//! Starting a program of ours from a process with many threads, so that it survives us, and so that we can find it
//! again.
//!
//! The child is made with clone3 (own pid namespace if wished, pidfd at once) and waits at a gate until the caller has
//! recorded its number: a caller that dies in between closes the gate and the child ends. There is no moment in which a
//! process runs that no record names. Then it leaves our session and becomes the program, which inherits exactly the
//! descriptors listed, under the numbers they have here.
//!
//! Not here: what the program is told (`spawn`), how it gives up privileges (`harden`).

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::child;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PidNamespace {
    /// The caller's.
    Shared,
    /// A new one, of which the program is the first process: nobody inside can name a process outside.
    Own,
}

/// What becomes of the program when its caller ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenCallerEnds {
    GoOn,
    /// With the thread that started it: it is killed.
    Die,
}

/// What to start.
#[derive(Debug)]
pub struct Launch<'a> {
    pub program: &'a CStr,
    /// The first is the name it shows.
    pub arguments: &'a [CString],
    /// `K=V`; nothing else is inherited.
    pub environment: &'a [CString],
    /// Becomes standard input.
    pub input: BorrowedFd<'a>,
    /// Becomes standard output and error.
    pub log: BorrowedFd<'a>,
    /// Stay open with their numbers; all others close.
    pub inherit: &'a [BorrowedFd<'a>],
    pub pid_namespace: PidNamespace,
    pub when_caller_ends: WhenCallerEnds,
}

/// A started program. Its number is the caller's to reap.
#[derive(Debug)]
pub struct Launched {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("the kernel made no process")]
    Clone(#[source] io::Error),
    #[error("the new process could not be recorded")]
    Record(#[source] io::Error),
    #[error("the new process could not become the program")]
    Exec(#[source] io::Error),
}

/// Two children that wait at the same time would hold each other's gates open.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Starts it. `record` is called with its number (also the one under which `/proc` knows it) before it becomes the
/// program.
pub fn launch(what: &Launch<'_>, record: impl FnOnce(i32) -> io::Result<()>) -> Result<Launched, LaunchError> {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (gate_out, gate_in) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| LaunchError::Clone(error.into()))?;
    let (fault_out, fault_in) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| LaunchError::Clone(error.into()))?;
    let arguments = pointers(what.arguments);
    let environment = pointers(what.environment);
    let inherit: Vec<RawFd> = what.inherit.iter().map(AsRawFd::as_raw_fd).collect();
    let plan = ChildPlan {
        program: what.program.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        input: what.input.as_raw_fd(),
        log: what.log.as_raw_fd(),
        inherit: &inherit,
        gate: gate_out.as_raw_fd(),
        caller_gate: gate_in.as_raw_fd(),
        fault: fault_in.as_raw_fd(),
        is_killed_with_caller: what.when_caller_ends == WhenCallerEnds::Die,
    };
    let (pid, pidfd) = clone(what.pid_namespace, &plan).map_err(LaunchError::Clone)?;
    drop((gate_out, fault_in));
    if let Err(error) = record(pid) {
        drop(gate_in);
        reap(&pidfd);
        return Err(LaunchError::Record(error));
    }
    // A child that is gone already shows in the fault pipe.
    let _ = rustix::io::write(&gate_in, b"g");
    let mut fault = [0_u8; 4];
    match rustix::io::retry_on_intr(|| rustix::io::read(&fault_out, &mut fault)) {
        Ok(0) => Ok(Launched { pid, pidfd }),
        Ok(_) => {
            reap(&pidfd);
            Err(LaunchError::Exec(io::Error::from_raw_os_error(i32::from_ne_bytes(fault))))
        }
        Err(error) => Err(LaunchError::Exec(error.into())),
    }
}

/// Plain numbers and pointers: a child of a process with threads may not allocate.
struct ChildPlan<'a> {
    program: *const libc::c_char,
    arguments: *const *const libc::c_char,
    environment: *const *const libc::c_char,
    input: RawFd,
    log: RawFd,
    inherit: &'a [RawFd],
    gate: RawFd,
    caller_gate: RawFd,
    fault: RawFd,
    is_killed_with_caller: bool,
}

fn clone(namespace: PidNamespace, plan: &ChildPlan<'_>) -> io::Result<(i32, OwnedFd)> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: (1) all-zero is a valid clone_args.
    let mut request: libc::clone_args = unsafe { std::mem::zeroed() };
    request.flags = libc::CLONE_PIDFD as u64;
    if namespace == PidNamespace::Own {
        request.flags |= libc::CLONE_NEWPID as u64;
    }
    request.pidfd = &raw mut pidfd as u64;
    request.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: (1) `request` and `pidfd` live across the call. (2) Without CLONE_VM the child has its own copy of this
    // memory and stack. (3) Other threads may hold locks that nobody in the child will release: `become_program` takes
    // none, it makes system calls only and never returns.
    unsafe {
        match libc::syscall(libc::SYS_clone3, &raw const request, size_of::<libc::clone_args>()) {
            -1 => Err(io::Error::last_os_error()),
            0 => become_program(plan),
            // The kernel just opened this descriptor for us.
            pid => Ok((pid as i32, OwnedFd::from_raw_fd(pidfd))),
        }
    }
}

/// # Safety
/// In a fresh child only. The plan's strings and arrays are NUL- and null-terminated; its descriptors are open.
unsafe fn become_program(plan: &ChildPlan<'_>) -> ! {
    // SAFETY: (1) system calls and signal dispositions only, no allocation, no lock. (2) Pointers are the plan's.
    unsafe {
        // A caller that is gone already shows in the gate.
        if plan.is_killed_with_caller {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        let mut go = 0_u8;
        // Ours too: while a copy of the writing end is open here, the caller's death would go unnoticed.
        libc::close(plan.caller_gate);
        if libc::read(plan.gate, (&raw mut go).cast(), 1) != 1 {
            child::exit_now(1);
        }
        child::default_signals();
        libc::setsid();
        let done = libc::dup2(plan.input, 0) >= 0
            && libc::dup2(plan.log, 1) >= 0
            && libc::dup2(plan.log, 2) >= 0
            && plan.inherit.iter().all(|fd| libc::fcntl(*fd, libc::F_SETFD, 0) >= 0);
        if done {
            libc::execve(plan.program, plan.arguments, plan.environment);
        }
        let fault = (*libc::__errno_location()).to_ne_bytes();
        libc::write(plan.fault, fault.as_ptr().cast(), fault.len());
        child::exit_now(127)
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

fn reap(pidfd: &OwnedFd) {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    // Somebody else may have reaped it; then there is nothing to do.
    let _ = rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED));
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    use std::fs::File;

    use super::*;

    fn run(
        script: &str,
        namespace: PidNamespace,
        record: impl FnOnce(i32) -> io::Result<()>,
    ) -> Result<String, LaunchError> {
        let null = File::open("/dev/null").unwrap();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (other, _kept) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let arguments = ["sh", "-c", script, &other.as_raw_fd().to_string()].map(|text| CString::new(text).unwrap());
        let what = Launch {
            program: c"/bin/sh",
            arguments: &arguments,
            environment: &[CString::new("A=b").unwrap()],
            input: null.as_fd(),
            log: writer.as_fd(),
            inherit: &[other.as_fd()],
            pid_namespace: namespace,
            when_caller_ends: WhenCallerEnds::GoOn,
        };
        let launched = launch(&what, record)?;
        drop(writer);
        let text = io::read_to_string(File::from(reader)).unwrap();
        waitid(WaitId::PidFd(launched.pidfd.as_fd()), WaitIdOptions::EXITED).unwrap();
        Ok(text)
    }

    #[test]
    fn program_gets_its_descriptors_its_environment_and_nothing_else() {
        let text =
            run("echo $A $HOME; test -e /proc/self/fd/$0 && echo kept", PidNamespace::Shared, |_| Ok(())).unwrap();
        assert_eq!(text, "b\nkept\n");
    }

    #[test]
    fn program_is_first_in_a_namespace_of_its_own_and_leads_a_session() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            return;
        }
        assert_eq!(run("echo $$", PidNamespace::Own, |_| Ok(())).unwrap(), "1\n");
    }

    #[test]
    fn child_that_could_not_be_recorded_never_runs() {
        let mut number = 0;
        let failed = run("echo ran", PidNamespace::Shared, |pid| {
            number = pid;
            Err(io::Error::other("disk full"))
        });
        assert!(matches!(failed, Err(LaunchError::Record(_))));
        assert!(!std::path::Path::new(&format!("/proc/{number}")).exists());
    }

    #[test]
    fn program_that_does_not_exist_is_reported() {
        let null = File::open("/dev/null").unwrap();
        let what = Launch {
            program: c"/does/not/exist",
            arguments: &[],
            environment: &[],
            input: null.as_fd(),
            log: null.as_fd(),
            inherit: &[],
            pid_namespace: PidNamespace::Shared,
            when_caller_ends: WhenCallerEnds::GoOn,
        };
        let LaunchError::Exec(error) = launch(&what, |_| Ok(())).unwrap_err() else { panic!("an error of exec") };
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
