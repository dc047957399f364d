//! Processes by PID and start time, so that nobody else is ever killed by mistake.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use client::ProcessId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

/// The process `pid` as it is now; None when there is none, or only its remains.
pub fn identify(pid: u32) -> Option<ProcessId> {
    let start_ticks = sys::pidfd::start_ticks(i32::try_from(pid).ok()?)?;
    (!is_zombie(pid)).then_some(ProcessId { pid, start_ticks })
}

pub fn is_alive(process: ProcessId) -> bool {
    identify(process.pid) == Some(process)
}

/// A descriptor of exactly this process; None when it is gone.
pub fn open(process: ProcessId) -> Option<OwnedFd> {
    let pidfd = sys::pidfd::open(i32::try_from(process.pid).ok()?).ok()?;
    // Looked up after the descriptor was opened: from here on the number cannot mean somebody else.
    is_alive(process).then_some(pidfd)
}

/// Sends a signal and waits for the end. True: it is gone (or was already).
pub fn end(process: ProcessId, signal: Signal, patience: Duration) -> io::Result<bool> {
    let Some(pidfd) = open(process) else { return Ok(true) };
    match sys::pidfd::signal(&pidfd, signal) {
        Err(cause) if cause.raw_os_error() != Some(rustix::io::Errno::SRCH.raw_os_error()) => Err(cause),
        _ => await_end(&pidfd, Instant::now() + patience),
    }
}

/// True when the process ended before the deadline.
pub fn await_end(pidfd: &OwnedFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut watched = [PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut watched, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
    }
}

/// All that descend of a process, whatever is left of them.
pub fn below(process: ProcessId) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![process.pid];
    let mut at = 0;
    while let Some(of) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(pid, parent)| *parent == of && *pid != of).map(|(pid, _)| *pid));
        at += 1;
    }
    found
}

fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// The number by which we know the process that calls itself `inner` in the pid namespace of `machine`.
pub fn seen_from_here(machine: ProcessId, inner: i32) -> Option<ProcessId> {
    let namespace = |pid: &str| std::fs::read_link(Path::new("/proc").join(pid).join("ns/pid")).ok();
    let wanted = namespace(&machine.pid.to_string())?;
    std::fs::read_dir("/proc").ok()?.find_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let pid: i32 = name.parse().ok()?;
        let matches = namespace(&name)? == wanted && sys::pidfd::innermost_pid(pid) == Some(inner);
        if matches { identify(pid as u32) } else { None }
    })
}

/// Of this boot; everything that a record of another boot names is gone.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rfind(')').and_then(|end| stat.get(end + 1..)).and_then(|rest| rest.split_whitespace().next());
    matches!(state, Some("Z" | "X"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn process_with_the_same_number_but_another_start_is_left_alone() {
        let own = identify(std::process::id()).unwrap();
        let stranger = ProcessId { start_ticks: own.start_ticks + 1, ..own };
        assert!(!is_alive(stranger));
        assert!(end(stranger, Signal::KILL, Duration::ZERO).unwrap());
    }

    #[test]
    fn remains_that_nobody_waited_for_are_not_alive() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = identify(child.id()).unwrap();
        assert!(is_alive(process));
        assert!(end(process, Signal::KILL, Duration::from_secs(10)).unwrap());
        assert!(!is_alive(process));
        child.wait().unwrap();
    }
}
