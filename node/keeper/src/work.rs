//! What each request of the daemon does.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use mgmt_api::stream::Kind;
use mgmt_api::{ErrorBody, ErrorKind, LogForm, Process, RunRequest, TerminalSize};
use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::jobs::JobTicket;
use crate::keeper::{Keeper, PROGRAMS_MAX, Phase};
use crate::launch::{LaunchError, Launched, Plan, Stdio, Surroundings, Terminal, Trap};
use crate::list::{self, Known};
use crate::log::{self, Part, now_ms};
use crate::packet;
use crate::poll::{Interest, Source, Watched};
use crate::program::{CLIENTS_MAX, Input, Life, Output, Program, unblock};
use crate::protocol::{Answer, Follow, KEY_BYTES_MAX, OF_A_KEEPER, Request, STORED_MAX, Status, Versions};
use crate::refusal::{Refusal, Task};
use crate::stream::{Audience, Client, Encoding, Token};

type Answered = Result<(Answer, Vec<OwnedFd>), Refusal>;

/// The socket of a client, with what was read from it already.
struct Stream {
    socket: OwnedFd,
    pending: Vec<u8>,
    session: Option<Token>,
}

impl Stream {
    fn first(fds: Vec<OwnedFd>, pending: Vec<u8>, session: Option<u64>) -> Option<Stream> {
        let socket = fds.into_iter().next()?;
        Some(Stream { socket, pending, session: session.map(Token) })
    }
}

/// To a daemon of version 1, in the only form that it understands.
fn not_greeted() -> ErrorBody {
    ErrorBody::new(ErrorKind::Conflict, format!("the container's keeper speaks {OF_A_KEEPER} of its protocol"))
        .because("this daemon is older and speaks version 1")
        .hint("the daemon of the version that started the container")
}

impl Keeper {
    /// Carries out one request and answers it, now or by a later event.
    pub fn work(&mut self, asker: u32, request: Request, fds: Vec<OwnedFd>) {
        let greeted = self.connections.get(&asker).is_some_and(|connection| connection.version.is_some());
        if !greeted && !matches!(request, Request::Hello(_)) {
            return self.answer(asker, &Answer::Failed(not_greeted()), &[]);
        }
        let answered = match request {
            Request::Hello(versions) => Ok((self.greet(asker, versions), Vec::new())),
            Request::Status => self.status(),
            Request::List => return self.list(asker),
            Request::Stop { grace_ms } => return self.stop(Duration::from_millis(grace_ms), Some(asker)),
            Request::Run { run, pending, session } => {
                return self.run(asker, run, None, Stream::first(fds, pending, session));
            }
            Request::Exec { exec, pending, session } => {
                return self.run(asker, exec.run, Some(exec.pid), Stream::first(fds, pending, session));
            }
            Request::Attach { pid, pending, session } => self.attach(pid, Stream::first(fds, pending, session)),
            Request::Resume { pid, pending, session, heard } => {
                self.resume(pid, heard, Stream::first(fds, pending, Some(session)))
            }
            Request::Signal { pid, signal, by } => self.signal(pid, signal, by),
            Request::Logs { pid, tail_lines, follow, since_ms, form } => {
                self.logs(pid, Part { tail_lines, since_ms }, follow, form)
            }
            Request::Store { key } => self.store(key, fds),
            Request::Fetch { key } => self.fetch(&key),
            Request::Drop { key } => {
                self.stored.remove(&key);
                Ok((Answer::Done, Vec::new()))
            }
            Request::Namespaces => match self.namespaces() {
                Ok(fds) => Ok((Answer::Namespaces, fds)),
                Err(error) => Err(Task::OpenNamespaces.failed()(error)),
            },
            Request::BeginCallGate => match self.begin_call_gate() {
                Ok(Some(fds)) => Ok((Answer::CallGate, fds)),
                Ok(None) => Ok((Answer::NotStored, Vec::new())),
                Err(error) => Err(Task::PrepareCallGate.failed()(error)),
            },
            Request::BeginRun { instance, run, until_ns, is_check, request } => {
                return self.begin_run(asker, &instance, (run, until_ns), is_check, request);
            }
            Request::HoldRuns { permits, until_ns, presence } => {
                Ok((self.hold_runs(&permits, until_ns, presence), Vec::new()))
            }
            Request::CloseRun { instance, epoch } => {
                self.close_run(&instance, epoch).map(|()| (Answer::Done, Vec::new()))
            }
            Request::SignalRun { instance, run, signal } => {
                self.signal_run(&instance, run, signal).map(|()| (Answer::Done, Vec::new()))
            }
            Request::MountFuse(options) => self.mount_fuse(&options).map(|fd| (Answer::Descriptor, vec![fd])),
            Request::UnmountFuse => self.unmount_fuse().map(|()| (Answer::Done, Vec::new())),
        };
        let (answer, fds) = answered.unwrap_or_else(|refusal| (Answer::Refused(refusal), Vec::new()));
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.answer(asker, &answer, &fds);
    }

    fn greet(&mut self, asker: u32, theirs: Versions) -> Answer {
        let common = OF_A_KEEPER.common(theirs);
        if let Some(connection) = self.connections.get_mut(&asker) {
            connection.version = common;
        }
        common.map_or(Answer::OtherVersion(OF_A_KEEPER), |version| Answer::Hello { version })
    }

    fn status(&self) -> Answered {
        let status = Status {
            dc_name: self.dc_name.clone(),
            keeper_pid: std::process::id(),
            init_pid: self.init.pid,
            uid_base: self.options.uid_base,
            pid_base: self.options.pid_base,
            running: self.running(),
            stored: self.stored.len(),
            fuse_mounted: self.fuse.is_some(),
            times_logs: true,
            names_users: true,
            restrains: true,
            degraded: self.degraded.clone(),
        };
        Ok((Answer::Status(status), Vec::new()))
    }

    /// Starts a program; the answer comes when it was executed, or was not. What a client of a refused program hears,
    /// the daemon says.
    fn run(&mut self, asker: u32, run: RunRequest, beside: Option<u32>, stream: Option<Stream>) {
        let id = self.next_id();
        let patience = if run.detach { Audience::Spectator } else { Audience::Foreground };
        let client = stream.and_then(|stream| self.client(id, stream, patience).ok());
        match self.try_run(id, run, beside) {
            Ok(mut program) => {
                program.asker = Some(asker);
                program.clients.extend(client);
                self.programs.insert(id, program);
                self.set_busy(asker);
            }
            Err(refusal) => self.answer(asker, &Answer::Refused(refusal), &[]),
        }
    }

    fn client(&mut self, program: u32, stream: Stream, patience: Audience) -> Result<Client, Refusal> {
        let number = self.next_id() & 0xff_ffff;
        let watched = self.watch_client(program, number, stream.socket)?;
        let client = Client::new(number, watched, Encoding::Frames, patience, &stream.pending);
        Ok(client.with_session(stream.session))
    }

    fn watch_client(&self, program: u32, number: u32, socket: OwnedFd) -> Result<Watched, Refusal> {
        let watched = self.poll.watch(socket, Source::Client(program, number), Interest::Nothing);
        watched.map_err(Task::WatchStream.failed())
    }

    fn try_run(&mut self, id: u32, run: RunRequest, beside: Option<u32>) -> Result<Program, Refusal> {
        self.check_room()?;
        let mut run = run;
        if beside.is_some() {
            // The root is that of the process beside; its mount namespace has it already.
            run.root = mgmt_api::RootFs::Host;
            run.workdir = run.workdir.or_else(|| Some("/".into()));
        }
        let plan = Plan::check(&run, &self.options.hostname, &self.options.env)?;
        let beside = beside.map(|pid| self.process(pid)).transpose()?;
        let process = beside.as_ref().map_or(self.init.pidfd.as_fd(), |process| process.as_fd());
        let (program, stdio) = self.prepare(id, run, None)?;
        self.refresh_views();
        let launched = plan.launch(&self.surroundings(process), stdio);
        self.take_up(program, launched)
    }

    /// Whether there may be one more program.
    pub fn check_room(&self) -> Result<(), Refusal> {
        if !matches!(self.phase, Phase::Serving) {
            return Err(Refusal::Stopping);
        }
        if self.running() >= PROGRAMS_MAX || self.is_full_of_listeners() {
            return Err(Refusal::ProgramsFull);
        }
        Ok(())
    }

    pub fn surroundings<'a>(&'a self, process: BorrowedFd<'a>) -> Surroundings<'a> {
        Surroundings {
            process,
            members: &self.members,
            filter: &self.filter,
            trap: if self.call_gate.is_some() { Trap::Calls } else { Trap::Nothing },
            open_files: self.options.open_files.unwrap_or(mgmt_api::Limits::OPEN_FILES),
            volumes: &self.options.volumes,
        }
    }

    pub fn refresh_views(&self) {
        for view in &self.views {
            if let Err(cause) = view.refresh() {
                tracing::warn!(%cause, "what the node installed since is perhaps not seen in the container");
            }
        }
    }

    pub fn take_up(&mut self, program: Program, launched: Result<Launched, LaunchError>) -> Result<Program, Refusal> {
        match launched {
            Ok(launched) => self.watch(program, launched),
            Err(LaunchError::Early(failure)) => Err(failure.into()),
            Err(LaunchError::Stuck(porter)) => {
                self.abandon(program, porter);
                Err(Task::StartProgram.failed()(std::io::Error::from(std::io::ErrorKind::TimedOut)))
            }
            Err(error) => Err(Task::StartProgram.failed()(error)),
        }
    }

    /// Keeps the record of a launch that everybody gave up until its process can be buried.
    fn abandon(&mut self, mut program: Program, process: OwnedFd) {
        let id = program.id;
        program.life = Life::Abandoned;
        program.pidfd = self.poll.watch(process, Source::End(id), Interest::Read).ok();
        if program.pidfd.is_some() {
            self.programs.insert(id, program);
        }
    }

    fn watch(&self, mut program: Program, launched: Launched) -> Result<Program, Refusal> {
        let fail = |error: std::io::Error| Task::WatchProgram.failed()(error);
        unblock(&launched.report).map_err(fail)?;
        let id = program.id;
        program.pidfd = Some(self.poll.watch(launched.pidfd, Source::End(id), Interest::Read).map_err(fail)?);
        let report = self.poll.watch(launched.report, Source::Report(id), Interest::Read).map_err(fail)?;
        program.report = Some((report, Vec::new()));
        program.trapped = launched.trapped;
        Ok(program)
    }

    /// A pidfd of any process of the container here, by its PID inside.
    fn process(&self, pid: u32) -> Result<OwnedFd, Refusal> {
        let known = self.programs.values().find(|program| program.pid == pid && program.life == Life::Running);
        if let Some(pidfd) = known.and_then(|program| program.pidfd.as_ref()) {
            return pidfd.as_fd().try_clone_to_owned().map_err(Task::UseProgram.failed());
        }
        let hosts = self.options.cgroup.as_ref().and_then(|group| group.members().ok()).unwrap_or_default();
        let found = hosts.into_iter().find_map(|host| open_inside(host as i32, pid, sys::pidfd::innermost_pid));
        found.ok_or(Refusal::NoSuchProcess { pid })
    }

    /// The record and the descriptors of both sides.
    pub fn prepare(&self, id: u32, run: RunRequest, job: Option<JobTicket>) -> Result<(Program, Stdio), Refusal> {
        let fail = |error: std::io::Error| Task::MakeStreams.failed()(error);
        let mut program = Program {
            id,
            pid: 0,
            pidfd: None,
            command: run.argv.iter().map(mgmt_api::Bytes::lossy).collect(),
            uid: run.uid,
            start_ms: now_ms(),
            launch_limit: Instant::now() + self.options.launch_limit(),
            life: Life::Launching,
            report: None,
            trapped: None,
            refusal: None,
            asker: None,
            job,
            instance: None,
            is_check: false,
            outputs: Vec::new(),
            input: None,
            terminal: None,
            log: None,
            clients: Vec::new(),
            settled: false,
            cause: None,
            asked_to: None,
            oom_before: self.options.cgroup.as_ref().and_then(sandbox::cgroup::Cgroup::oom_kills).unwrap_or(0),
            request: run,
        };
        let stdio = match program.request.terminal {
            Some(size) => self.prepare_terminal(&mut program, size),
            None if job.is_some() => crate::jobs::no_streams(),
            None => self.prepare_pipes(&mut program),
        };
        stdio.map(|stdio| (program, stdio)).map_err(fail)
    }

    fn prepare_terminal(&self, program: &mut Program, size: TerminalSize) -> std::io::Result<Stdio> {
        use std::os::fd::AsRawFd;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let path = format!("/proc/self/fd/{}", self.ptmx.as_raw_fd());
        let master = open(path, flags, Mode::empty())?;
        unlockpt(&master)?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        let owner = Uid::from_raw(self.options.uid_base + program.request.uid);
        fchown(&slave, Some(owner), None::<Gid>)?;
        tcsetwinsize(&slave, Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 })?;
        let output = self.poll.watch(master.try_clone()?, Source::Output(program.id, 0), Interest::Nothing)?;
        program.outputs.push(Output { fd: output, kind: Kind::Stdout, open: true });
        let input = self.poll.watch(master.try_clone()?, Source::Input(program.id), Interest::Nothing)?;
        program.input = Some(Input::new(input));
        program.terminal = Some(master);
        let (output, error) = (slave.try_clone()?, slave.try_clone()?);
        Ok(Stdio { input: slave, output, error, terminal: Terminal::Controlling })
    }

    fn prepare_pipes(&self, program: &mut Program) -> std::io::Result<Stdio> {
        let mut output = |at: u8, kind: Kind| -> std::io::Result<OwnedFd> {
            let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
            unblock(&ours)?;
            let fd = self.poll.watch(ours, Source::Output(program.id, at), Interest::Nothing)?;
            program.outputs.push(Output { fd, kind, open: true });
            Ok(theirs)
        };
        let (output, error) = (output(0, Kind::Stdout)?, output(1, Kind::Stderr)?);
        let input = if program.request.interactive {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
            unblock(&ours)?;
            program.input = Some(Input::new(self.poll.watch(ours, Source::Input(program.id), Interest::Nothing)?));
            theirs
        } else {
            open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?
        };
        Ok(Stdio { input, output, error, terminal: Terminal::None })
    }

    fn attach(&mut self, pid: u32, stream: Option<Stream>) -> Answered {
        let stream = stream.ok_or(Refusal::NoDescriptor)?;
        let program = self.find_running(pid)?;
        let id = program.id;
        if program.clients.len() >= CLIENTS_MAX {
            return Err(Refusal::ClientsFull { pid });
        }
        let client = self.client(id, stream, Audience::Spectator)?;
        if let Some(program) = self.programs.get_mut(&id) {
            program.add_client(client);
        }
        Ok((Answer::Done, Vec::new()))
    }

    /// Gives the client of a session that comes back its new connection.
    fn resume(&mut self, pid: u32, heard: u64, stream: Option<Stream>) -> Answered {
        let stream = stream.ok_or(Refusal::NoDescriptor)?;
        let Some((id, number)) = stream.session.and_then(|token| self.place_of(pid, token)) else {
            self.find_running(pid)?;
            return Err(Refusal::SessionOver { pid });
        };
        let watched = self.watch_client(id, number, stream.socket)?;
        let program = self.programs.get_mut(&id).ok_or(Refusal::NoProgram { pid })?;
        if let Some(client) = program.clients.iter_mut().find(|client| client.number == number) {
            client.resume(watched, heard, &stream.pending)?;
        }
        program.hear_all();
        program.pump();
        Ok((Answer::Done, Vec::new()))
    }

    /// Program and number of the client with this session.
    fn place_of(&mut self, pid: u32, token: Token) -> Option<(u32, u32)> {
        let mut programs = self.programs.values_mut().filter(|program| program.pid == pid && pid != 0);
        programs.find_map(|program| Some((program.id, program.client_of(token)?.number)))
    }

    fn find_running(&self, pid: u32) -> Result<&Program, Refusal> {
        let program = self.find(pid)?;
        if program.life == Life::Running { Ok(program) } else { Err(Refusal::HasEnded { pid }) }
    }

    /// A program started by `run`.
    fn find(&self, pid: u32) -> Result<&Program, Refusal> {
        let found = self.programs.values().rfind(|program| program.pid == pid && pid != 0);
        found.ok_or(Refusal::NoProgram { pid })
    }

    fn signal(&mut self, pid: u32, signal: i32, by: Option<String>) -> Answered {
        if !(0..=64).contains(&signal) {
            return Err(Refusal::NoSignal { signal });
        }
        if pid <= 1 {
            return Err(Refusal::IsInit);
        }
        let process = list::open(self.proc_dir.as_fd(), pid).map_err(|_| Refusal::NoSuchProcess { pid })?;
        // Before it ends of it.
        if let Some(program) = self.programs.values_mut().find(|program| program.pid == pid && !program.life.is_over())
        {
            program.asked_to = by.map(|by| (signal, by));
        }
        match sys::child::send_signal(&process, signal) {
            Ok(()) => Ok((Answer::Done, Vec::new())),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(Refusal::NoSuchProcess { pid }),
            Err(error) => Err(Task::SendSignal.failed()(error)),
        }
    }

    fn logs(&mut self, pid: u32, part: Part, follow: Follow, form: LogForm) -> Answered {
        let program = self.find(pid)?;
        let (id, watchers, settled) = (program.id, program.clients.len(), program.settled);
        let pieces = match &program.log {
            Some(log) => log.read(part).map_err(Task::ReadLog.failed())?,
            None => Vec::new(),
        };
        let so_far = log::encode(pieces, form);
        if follow == Follow::No {
            let file = packet::memory_file(&so_far).map_err(Task::ReadLog.failed())?;
            return Ok((Answer::Descriptor, vec![file]));
        }
        if watchers >= CLIENTS_MAX {
            return Err(Refusal::ClientsFull { pid });
        }
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(Task::ReadLog.failed())?;
        let number = self.next_id() & 0xff_ffff;
        let watched = self.watch_client(id, number, ours)?;
        let mut client = Client::new(number, watched, Encoding::Log(form), Audience::Spectator, &[]);
        client.say(&so_far);
        if settled {
            // Its last word was said; this client hears what it wrote, and the end.
            client.close();
        }
        if let Some(program) = self.programs.get_mut(&id) {
            program.add_client(client);
        }
        Ok((Answer::Descriptor, vec![theirs]))
    }

    fn store(&mut self, key: String, fds: Vec<OwnedFd>) -> Answered {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Refusal::BadKey);
        }
        if self.stored.len() >= STORED_MAX && !self.stored.contains_key(&key) {
            return Err(Refusal::StoreFull);
        }
        let fd = fds.into_iter().next().ok_or(Refusal::NoDescriptor)?;
        self.stored.insert(key, fd);
        Ok((Answer::Done, Vec::new()))
    }

    fn fetch(&self, key: &str) -> Answered {
        match self.stored.get(key).map(OwnedFd::try_clone) {
            None => Ok((Answer::NotStored, Vec::new())),
            Some(Ok(fd)) => Ok((Answer::Descriptor, vec![fd])),
            Some(Err(error)) => Err(Task::CopyStored.failed()(error)),
        }
    }

    pub(crate) fn ended_programs(&self) -> Vec<Process> {
        let ended = self.programs.values().filter(|program| program.life.is_over());
        ended.map(|program| program.process(&self.options.node)).collect()
    }

    pub(crate) fn known_programs(&self) -> BTreeMap<u32, Known> {
        let running = self.programs.values().filter(|program| program.life == Life::Running);
        running
            .map(|program| {
                (program.pid, Known { start_ms: program.start_ms, terminal: program.request.terminal.is_some() })
            })
            .collect()
    }
}

/// A descriptor of the process `host` if that is `pid` inside. Between a look and the descriptor the process may end
/// and its number go to another one: so the look counts that was made with the descriptor open, of a process that had
/// not ended then.
fn open_inside(host: i32, pid: u32, number_inside: impl Fn(i32) -> Option<i32>) -> Option<OwnedFd> {
    let is_it = || number_inside(host) == Some(pid as i32);
    // Most are another one: they need no descriptor.
    let process = if is_it() { sys::pidfd::open(host).ok()? } else { return None };
    (is_it() && !sys::pidfd::has_ended(&process)).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_ended_before_it_was_held_is_not_found_by_its_number() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let host = child.id() as i32;
        assert!(open_inside(host, 7, |_| Some(7)).is_some());
        assert!(open_inside(host, 7, |_| Some(8)).is_none());
        // Its number goes to another process, that has the number inside too, between the first look and the
        // descriptor.
        let looks = std::cell::Cell::new(0);
        let ended = open_inside(host, 7, |_| {
            looks.set(looks.get() + 1);
            if looks.get() == 2 {
                rustix::process::kill_process(
                    rustix::process::Pid::from_raw(host).unwrap(),
                    rustix::process::Signal::KILL,
                )
                .unwrap();
                let process = sys::pidfd::open(host).unwrap();
                let mut polled = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut polled, None).unwrap();
            }
            Some(7)
        });
        assert!(ended.is_none());
        child.wait().unwrap();
    }
}
