//! Far ends of jobs that begin on other nodes, and where programs ask for jobs (`docs/design/jobs.md`).
//!
//! The keeper holds the socket at which `on` asks: a call gate that comes and goes takes it over. And it starts far
//! ends, which the call gate asks for, a packet each: a number (`u64`) and a `StartOrder`. The answer is that number
//! and an errno (`u64` each, 0: it runs). Only one program is ever started so. The first packet of all has
//! `TAKES_ROOTS` for a number.
//!
//! A far end has no log and no record; nobody is told of its end but its deputy.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use mgmt_api::{RootFs, RunRequest};
use proc_core::start::{JobRoot, START_BYTES_MAX, StartOrder, TAKES_ROOTS};
use rustix::fs::{Mode, OFlags};
use vos_api::job_door::{FAR_END, FAR_END_VARIABLE, NAME, PROGRAM, PROGRAM_INSIDE, WITH_TERMINAL};

use crate::keeper::Keeper;
use crate::launch::{LaunchError, Plan, PorterStand, Stdio, Terminal};
use crate::poll::{Poll, Source, Watched};
use crate::program::Program;
use crate::protocol::KeeperOptions;
use crate::refusal::{BadRun, Refusal};

/// Processes that ask for a job and were not heard yet.
const BACKLOG: i32 = 256;
const PACKET_BYTES_MAX: usize = 8 + START_BYTES_MAX;
/// Packets of one turn of the loop.
const TURN_MAX: usize = 8;

/// What a program of a call gate's asking is to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobTicket(u64);

pub struct JobDoor {
    listener: OwnedFd,
    /// To the call gate of today.
    socket: Option<Watched>,
}

impl JobDoor {
    /// In the directory that programs see as `/run/dvs`.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn new(ipc_dir: &Path) -> io::Result<JobDoor> {
        let path = ipc_dir.join(NAME);
        let listener = sys::seqpacket::listen(&path, BACKLOG)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666))?;
        // Those that are accepted inherit it: from their first moment on, when a packet may lie there.
        sys::seqpacket::ask_for_sender(&listener)?;
        Ok(JobDoor { listener, socket: None })
    }

    /// For a call gate that begins: the socket at which programs ask, and the one over which it asks for far ends.
    pub fn begin(&mut self, poll: &Poll) -> io::Result<[OwnedFd; 2]> {
        let theirs = poll.open_door(&mut self.socket, Source::Jobs)?;
        self.answer(JobTicket(TAKES_ROOTS), 0);
        Ok([self.listener.try_clone()?, theirs])
    }

    fn answer(&mut self, ticket: JobTicket, errno: i32) {
        let Some(socket) = &self.socket else { return };
        let packet = [ticket.0, u64::from(errno.unsigned_abs())].map(u64::to_le_bytes).concat();
        // A call gate that does not read is none.
        if sys::seqpacket::send(socket, &packet, &[] as &[OwnedFd]).is_err() {
            self.socket = None;
        }
    }
}

/// Makes the places of `on`, and the library of `dvs run --spread`, in the directory that programs see as `/run/dvs`;
/// says what is to be seen at the first.
///
/// # Errors
/// The directory cannot be written.
pub fn prepare_on(ipc_dir: &Path) -> io::Result<PathBuf> {
    let place = ipc_dir.join(PROGRAM);
    if let Some(dir) = place.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o755).open(&place)?;
    // The same binary by its own name, which asks the daemon.
    match std::os::unix::fs::symlink("on", place.with_file_name("dvs")) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
        _ => {}
    }
    let library = ipc_dir.join(spread::LIBRARY_NAME);
    if let Some(dir) = library.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    std::fs::write(&library, spread::LIBRARY)?;
    std::fs::set_permissions(&library, PermissionsExt::from_mode(0o755))?;
    std::env::current_exe()
}

impl Keeper {
    pub fn hear_jobs(&mut self) {
        for _ in 0..TURN_MAX {
            let Some(socket) = self.job_door.as_ref().and_then(|door| door.socket.as_ref()) else { return };
            let mut packet = [0; PACKET_BYTES_MAX];
            match sys::seqpacket::receive(socket.as_fd(), &mut packet) {
                Ok(received) if received.bytes > 0 => {
                    self.start_far_end(packet.get(..received.bytes).unwrap_or_default());
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                // Its end, or what no call gate says.
                _ => return self.close_job_socket(),
            }
        }
    }

    fn close_job_socket(&mut self) {
        if let Some(door) = &mut self.job_door {
            door.socket = None;
        }
    }

    fn start_far_end(&mut self, packet: &[u8]) {
        let Some((ticket, order)) = packet.split_first_chunk() else { return self.close_job_socket() };
        let ticket = JobTicket(u64::from_le_bytes(*ticket));
        let Ok(decoded) = StartOrder::decode(order) else { return self.answer_job(ticket, libc::EPROTO) };
        let id = self.next_id();
        match self.try_start(id, ticket, order, &decoded) {
            Ok(program) => {
                self.programs.insert(id, program);
                self.make_ready();
            }
            Err(refusal) => self.answer_job(ticket, errno_of(&refusal)),
        }
    }

    fn try_start(
        &mut self,
        id: u32,
        ticket: JobTicket,
        order: &[u8],
        decoded: &StartOrder,
    ) -> Result<Program, Refusal> {
        self.check_room()?;
        let (program, stdio) = self.prepare(id, far_end(decoded), Some(ticket))?;
        self.refresh_views();
        let around = self.surroundings(self.init.pidfd.as_fd());
        let trap = around.trap;
        let launched = match self.porters.as_mut().and_then(|porters| porters.launch(order, trap)) {
            Some(launched) => launched,
            None => {
                if let Some(gone) = self.porters.take() {
                    gone.dismiss();
                }
                let plan = plan_of(order, &self.options).ok_or(Refusal::BadRun(BadRun::NoProgram))?;
                plan.launch(&self.surroundings(self.init.pidfd.as_fd()), stdio)
            }
        };
        self.take_up(program, launched)
    }

    /// Whoever starts one job will often start another one.
    fn make_ready(&mut self) {
        if self.porters.is_some() {
            return;
        }
        let made = no_streams().map_err(LaunchError::Pipe).and_then(|stdio| {
            let around = self.surroundings(self.init.pidfd.as_fd());
            PorterStand::prepare(&around, &stdio, |order| plan_of(order, &self.options))
        });
        // Without one the next job takes a little longer.
        self.porters = made.ok();
    }

    pub fn dismiss_idle_porters(&mut self) {
        if self.porters.as_ref().is_some_and(|porters| Instant::now() >= porters.until())
            && let Some(porters) = self.porters.take()
        {
            porters.dismiss();
        }
    }

    /// What became of a far end.
    pub fn answer_job(&mut self, ticket: JobTicket, errno: i32) {
        if let Some(door) = &mut self.job_door {
            door.answer(ticket, errno);
        }
    }
}

fn far_end(order: &StartOrder) -> RunRequest {
    let terminal = if order.with_terminal { format!(" {WITH_TERMINAL}") } else { String::new() };
    let (deputy, token, origin) = (order.deputy, order.token, order.origin.index());
    let root = match &order.root {
        JobRoot::Own => RootFs::Host,
        JobRoot::Tree(path) => RootFs::Tree(path.clone()),
    };
    RunRequest {
        argv: vec![FAR_END.into()],
        node: None,
        env: vec![format!("{FAR_END_VARIABLE}={deputy} {token} {origin}{terminal}").into()],
        workdir: Some("/".into()),
        root,
        uid: order.owner.uid,
        gid: order.owner.gid,
        terminal: None,
        interactive: false,
        detach: true,
        unlogged: false,
        user: None,
        ulimits: Vec::new(),
        cap_drop: Vec::new(),
    }
}

fn plan_of(order: &[u8], options: &KeeperOptions) -> Option<Plan> {
    let order = StartOrder::decode(order).ok()?;
    let plan = Plan::check(&far_end(&order), &options.hostname, &options.env).ok()?;
    Some(plan.of_job(PROGRAM_INSIDE, order.owner))
}

/// A far end speaks over its ring alone.
pub fn no_streams() -> io::Result<Stdio> {
    let null = || rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    Ok(Stdio { input: null()?, output: null()?, error: null()?, terminal: Terminal::None })
}

pub fn errno_of(refusal: &Refusal) -> i32 {
    match refusal {
        Refusal::Launch { errno, .. } | Refusal::Failed { errno: Some(errno), .. } => *errno,
        Refusal::ProgramsFull => libc::EAGAIN,
        Refusal::Stopping => libc::ESHUTDOWN,
        Refusal::LaunchLate { .. } => libc::ETIMEDOUT,
        _ => libc::EIO,
    }
}
