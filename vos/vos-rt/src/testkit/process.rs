//! Servers as processes of their own, which can really be killed.
//!
//! The program is the test binary itself, built without the usual harness (`harness = false`) so that the server has
//! the main thread, as in the product: signals and capabilities belong to threads. [`main`] decides which of both it
//! is.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::{Endpoint, Epoch};
use broker::ServerIdentity;
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use serde_json::{Value, json};
use sys::launch::{Launch, PidNamespace, WhenCallerEnds, launch};

use super::World;

/// The `main` of a test binary whose tests start servers as processes: a server when there is a spawn record, the tests
/// otherwise. Arguments that are no options choose tests by a part of their names, as usual.
pub fn main(server: fn() -> ExitCode, tests: &[(&str, fn())]) -> ExitCode {
    if std::env::var_os(sys::spawn::VARIABLE).is_some() {
        return server();
    }
    let filters: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let is_listing = std::env::args().any(|argument| argument == "--list");
    let chosen = tests.iter().filter(|(name, _)| filters.is_empty() || filters.iter().any(|part| name.contains(part)));
    let mut failures = 0;
    for (name, test) in chosen {
        if is_listing {
            println!("{name}: test");
            continue;
        }
        let passed = std::panic::catch_unwind(test).is_ok();
        failures += u32::from(!passed);
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    }
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What to start.
pub struct Program {
    pub endpoint: Endpoint,
    pub fds: Vec<(&'static str, OwnedFd)>,
    pub options: Value,
    /// Epoch of its placement.
    pub epoch: u32,
}

/// A server process. Killed when dropped.
pub struct Process {
    pidfd: OwnedFd,
    is_over: AtomicBool,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    Exit(i32),
    Signal(i32),
}

impl World {
    /// Starts a server process; returns when it said that it is ready.
    pub fn start(&self, program: Program) -> Process {
        let epoch = self.next_epoch();
        let identity = ServerIdentity::new(program.endpoint, Epoch(epoch));
        let broker = self.broker().server_socket(self.dc(), identity).expect("a socket of the broker");
        let (ready, say_ready) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
        let fds = program.fds.iter().map(|(role, fd)| ((*role).to_owned(), json!(fd.as_raw_fd())));
        let fds: serde_json::Map<String, Value> = fds.collect();
        let spawn = json!({
            "dc": self.dc().0, "dc_name": "test", "endpoint": program.endpoint.number(), "epoch": epoch,
            "broker_fd": broker.as_raw_fd(), "ready_fd": say_ready.as_raw_fd(), "fds": fds, "options": program.options,
            "placement_epoch": program.epoch,
        });
        let mut inherit = vec![broker.as_fd(), say_ready.as_fd()];
        inherit.extend(program.fds.iter().map(|(_, fd)| fd.as_fd()));
        let process = start(&spawn, &inherit);
        drop((broker, say_ready));
        let mut byte = [0_u8; 1];
        let got = rustix::io::retry_on_intr(|| rustix::io::read(&ready, &mut byte)).expect("the ready pipe");
        assert_eq!((got, byte), (1, [sys::spawn::READY_BYTE]), "the server did not become ready");
        process
    }
}

fn start(spawn: &Value, inherit: &[std::os::fd::BorrowedFd<'_>]) -> Process {
    let null = File::open("/dev/null").expect("/dev/null");
    let log = rustix::io::dup(rustix::stdio::stderr()).expect("stderr");
    let text = |text: String| CString::new(text).expect("no NUL");
    let arguments = [text("server".to_owned())];
    let level = std::env::var("DVS_LOG").unwrap_or_else(|_| "warn".to_owned());
    let environment = [text(format!("{}={spawn}", sys::spawn::VARIABLE)), text(format!("DVS_LOG={level}"))];
    let launched = launch(
        &Launch {
            program: c"/proc/self/exe",
            arguments: &arguments,
            environment: &environment,
            input: null.as_fd(),
            log: log.as_fd(),
            inherit,
            pid_namespace: PidNamespace::Shared,
            when_caller_ends: WhenCallerEnds::GoOn,
        },
        |_| Ok(()),
    )
    .expect("the test binary starts again");
    Process { pidfd: launched.pidfd, is_over: AtomicBool::new(false) }
}

impl Process {
    /// Kills it without warning and waits until it is gone.
    pub fn kill(self) {
        assert_eq!(self.end(Signal::KILL), Ended::Signal(Signal::KILL.as_raw()));
    }

    /// Asks it to end and waits until it did.
    pub fn terminate(self) -> Ended {
        self.end(Signal::TERM)
    }

    /// Nothing of it runs until [`Process::go_on`].
    pub fn stand_still(&self) {
        sys::pidfd::signal(&self.pidfd, Signal::STOP).expect("it runs");
    }

    pub fn go_on(&self) {
        sys::pidfd::signal(&self.pidfd, Signal::CONT).expect("it is there");
    }

    /// Whether it ended by itself.
    pub fn has_ended(&self) -> bool {
        sys::pidfd::has_ended(&self.pidfd)
    }

    /// Waits until it ends by itself.
    pub fn wait(self) -> Ended {
        self.reap()
    }

    fn end(&self, signal: Signal) -> Ended {
        // It may have ended by itself, which its status tells.
        let _ = sys::pidfd::signal(&self.pidfd, signal);
        self.reap()
    }

    fn reap(&self) -> Ended {
        self.is_over.store(true, Ordering::Relaxed);
        let wait = || waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        let status = rustix::io::retry_on_intr(wait).expect("our child").expect("it ended");
        match status.terminating_signal() {
            Some(signal) => Ended::Signal(signal),
            None => Ended::Exit(status.exit_status().unwrap_or(-1)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_over.load(Ordering::Relaxed) {
            self.end(Signal::KILL);
        }
    }
}
