//! The process that becomes the program. It is made before there are threads, and waits until it is told what to
//! become.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, pread, write};
use rustix::process::Signal;
use sys::child::{Forked, Parentage, exec, exit_now, fork};
use vos_api::jobs::{DESCRIPTION_BYTES_MAX, Description};

/// A shell's, for what it cannot run.
const NOT_RUN: i32 = 127;
const PATH: &[u8] = b"PATH=";
/// Where there is no `PATH`, as `execvp` has it.
const PATH_WITHOUT: &[u8] = b"/bin:/usr/bin";

pub struct Nursery {
    pub pid: u32,
    pub process: OwnedFd,
    socket: OwnedFd,
}

impl Nursery {
    /// This process must have one thread.
    ///
    /// # Errors
    /// The kernel makes no process, or there are threads.
    pub fn new() -> io::Result<Nursery> {
        let (parents, childs) = sys::seqpacket::pair()?;
        match fork(Parentage::Mine).map_err(io::Error::other)? {
            Forked::Parent { pid, pidfd } => Ok(Nursery { pid, process: pidfd, socket: parents }),
            Forked::Child => {
                drop(parents);
                let childs = aside(childs);
                // Numbers that the program may have.
                let _ = sys::child::close_all_but(&[childs.as_fd()]);
                let errno = wait_and_become(&childs);
                let _ = sys::seqpacket::send(&childs, &errno.raw_os_error().to_le_bytes(), &[] as &[OwnedFd]);
                exit_now(NOT_RUN)
            }
        }
    }

    /// `files`: of the description's streams, in their order.
    ///
    /// # Errors
    /// Why the program does not run.
    pub fn become_program(self, description: &[u8], files: &[OwnedFd]) -> Result<(u32, OwnedFd), Errno> {
        let text = memfd_create("job", MemfdFlags::CLOEXEC)?;
        let mut rest = description;
        while !rest.is_empty() {
            let written = write(&text, rest)?;
            rest = rest.get(written..).unwrap_or_default();
        }
        let all: Vec<_> = std::iter::once(text.as_fd()).chain(files.iter().map(AsFd::as_fd)).collect();
        sys::seqpacket::send(&self.socket, &(description.len() as u64).to_le_bytes(), &all).map_err(errno)?;
        let mut answer = [0; 4];
        wait(&self.socket)?;
        match sys::seqpacket::receive(&self.socket, &mut answer) {
            Ok(received) if received.bytes == answer.len() => Err(Errno::from_raw_os_error(i32::from_le_bytes(answer))),
            // Its end of the socket closed when it became the program.
            _ => Ok((self.pid, self.process)),
        }
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn wait(socket: &OwnedFd) -> Result<(), Errno> {
    loop {
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            done => return done.map(drop),
        }
    }
}

/// Numbers of the program's own are below: a shell's begin at 63.
const ASIDE: RawFd = 256;

fn aside(file: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&file, ASIDE).unwrap_or(file)
}

/// Returns only what went wrong.
fn wait_and_become(socket: &OwnedFd) -> Errno {
    match become_what_is_said(socket) {
        Ok(never) => match never {},
        Err(cause) => cause,
    }
}

fn become_what_is_said(socket: &OwnedFd) -> Result<std::convert::Infallible, Errno> {
    wait(socket)?;
    let mut bytes = [0; 8];
    let received = sys::seqpacket::receive(socket, &mut bytes).map_err(errno)?;
    let mut files = received.descriptors.into_iter().map(aside);
    let (true, Some(text)) = (received.bytes == bytes.len(), files.next()) else {
        // The far end is gone.
        exit_now(NOT_RUN)
    };
    let length = usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX).min(DESCRIPTION_BYTES_MAX);
    let mut description = vec![0; length];
    let mut at = 0;
    while at < length {
        match pread(&text, description.get_mut(at..).unwrap_or_default(), at as u64)? {
            0 => return Err(Errno::PROTO),
            got => at += got,
        }
    }
    drop(text);
    let what = Description::decode(&description).map_err(|_| Errno::PROTO)?;

    // It was made by the far end's first thread, which is there to the end.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // A group of its own in the far end's session, whose other groups it can be seen to stop from.
    rustix::process::setpgid(None, None)?;
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(what.umask));
    rustix::process::chdir(&*what.directory)?;
    for (resource, soft, hard) in &what.limits {
        // One that it may not raise stays as it is here.
        let _ = sys::child::set_limit(*resource, *soft, *hard);
    }
    // As long as the program is not there.
    let mut kept = Vec::new();
    for (stream, file) in what.streams.iter().zip(files) {
        match stream.descriptor {
            0 => rustix::stdio::dup2_stdin(&file)?,
            1 => rustix::stdio::dup2_stdout(&file)?,
            2 => rustix::stdio::dup2_stderr(&file)?,
            // Ours are out of the way.
            further => {
                let placed = rustix::io::fcntl_dupfd_cloexec(&file, further as RawFd)?;
                if placed.as_raw_fd() != further as RawFd {
                    return Err(Errno::BADF);
                }
                rustix::io::fcntl_setfd(&placed, rustix::io::FdFlags::empty())?;
                kept.push(placed);
            }
        }
    }
    if what.terminal.is_some() {
        // The kernel stops who does this from the background, unless he does not mind.
        sys::child::inherit_signals(1 << (libc::SIGTTOU - 1), 0);
        let terminal = what.streams.iter().find(|stream| stream.kind.is_terminal()).map(|stream| stream.descriptor);
        let own = rustix::process::getpgrp();
        match terminal {
            Some(0) => rustix::termios::tcsetpgrp(rustix::stdio::stdin(), own)?,
            Some(1) => rustix::termios::tcsetpgrp(rustix::stdio::stdout(), own)?,
            _ => rustix::termios::tcsetpgrp(rustix::stdio::stderr(), own)?,
        }
    }
    sys::child::inherit_signals(what.ignored, what.blocked);
    Err(exec_as_a_shell_does(&what))
}

/// Becomes the program in this process, which has its descriptors, directory and limits already: for a job that runs
/// where it was asked for. Returns only what went wrong.
pub fn run_here(what: &Description) -> Errno {
    sys::child::inherit_signals(what.ignored, what.blocked);
    exec_as_a_shell_does(what)
}

/// A name with a slash is a path; others are looked for in the directories of `PATH`.
fn exec_as_a_shell_does(what: &Description) -> Errno {
    let strings = |all: &[Vec<u8>]| all.iter().map(|one| CString::new(one.as_slice())).collect::<Result<Vec<_>, _>>();
    let (Ok(arguments), Ok(environment)) = (strings(&what.arguments), strings(&what.environment)) else {
        return Errno::INVAL;
    };
    let Some(name) = what.arguments.first().filter(|name| !name.is_empty()) else { return Errno::NOENT };
    let run = |path: Vec<u8>| match CString::new(path) {
        Ok(path) => errno(exec(&path, &arguments, &environment)),
        Err(_) => Errno::INVAL,
    };
    if name.contains(&b'/') {
        return run(name.clone());
    }
    let path = what.environment.iter().find_map(|pair| pair.strip_prefix(PATH)).unwrap_or(PATH_WITHOUT);
    let mut why = Errno::NOENT;
    for directory in path.split(|byte| *byte == b':') {
        let directory = if directory.is_empty() { b"." } else { directory };
        match run([directory, b"/", name].concat()) {
            Errno::NOENT | Errno::NOTDIR => {}
            // Perhaps another one may be run.
            Errno::ACCESS => why = Errno::ACCESS,
            other => return other,
        }
    }
    why
}
