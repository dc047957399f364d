//! The process that stays: it keeps number, parent, group and terminal, and ends as the program did.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use abi::{Endpoint, IpcError};
use ipc::Port;
use libvos::SharedPort;
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use vos_api::job_door::{DoorRequest, JobPlace};
use vos_api::jobs::{Description, JobFile, News};
use vos_rt::{Handle, Tenure, serve};

use crate::absence::Absence;
use crate::desk::{Desk, Event, Lines, Orders, SharedFile, Whom};
use crate::door::{BROKER, OtherNode};
use crate::inherit::{InheritError, Inherited};
use crate::streams::{reading, writing};
use crate::terminal::OwnTerminal;

/// How long a far end may take to come.
const COMES_WITHIN: Duration = Duration::from_secs(15);
/// Between two looks whether a far end without a ring is there.
const LOOK: Duration = Duration::from_millis(50);

/// Signals that are passed on. The others are about this process alone, or cannot be caught.
const PASSED_ON: [i32; 17] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGURG,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGWINCH,
    libc::SIGIO,
    libc::SIGPWR,
];

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobEnd {
    Exited(u8),
    Killed(i32),
    /// It did not begin.
    Refused(Errno),
    /// Its node, or its far end, is gone: what became of the program is not known, but it does not run any more.
    Lost,
}

#[derive(Debug, thiserror::Error)]
pub enum DeputyError {
    #[error(transparent)]
    Inherit(#[from] InheritError),
    #[error("the container's broker gives no endpoint")]
    Port(#[source] IpcError),
    #[error("this process cannot have what a deputy needs")]
    System(#[from] io::Error),
    #[error("nothing came of the job within {} s", COMES_WITHIN.as_secs())]
    NobodyCame,
}

pub struct Deputy {
    inherited: Inherited,
    signals: OwnedFd,
    port: SharedPort,
    endpoint: Endpoint,
    token: u64,
}

impl Deputy {
    /// Of this process, which has one thread.
    ///
    /// # Errors
    /// A stream that cannot go along; no broker.
    /// `dir`: `/run/dvs`.
    pub fn new(arguments: Vec<std::ffi::OsString>, dir: &Path) -> Result<Deputy, DeputyError> {
        let inherited = Inherited::of_this_process(arguments)?;
        let signals = sys::signals::open(&PASSED_ON)?;
        let mut token = [0; 8];
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty()).map_err(io::Error::from)?;
        let port = Port::connect(&dir.join(BROKER), None).map_err(DeputyError::Port)?;
        let endpoint = port.endpoint();
        // Zero would be no session.
        let token = u64::from_ne_bytes(token) | 1;
        Ok(Deputy { inherited, signals, port: SharedPort::new(port), endpoint, token })
    }

    /// What shall run.
    pub fn description(&self) -> &Description {
        &self.inherited.description
    }

    /// What is asked for: where the far end shall ask, and the secret that makes it welcome.
    pub fn request(&self, place: JobPlace) -> DoorRequest {
        let with_terminal = self.description().terminal.is_some();
        DoorRequest { place, deputy: self.endpoint, token: self.token, with_terminal }
    }

    /// From the far end's start, on that node, to the end.
    ///
    /// # Errors
    /// No far end came.
    pub fn run(self, node: OtherNode) -> Result<JobEnd, DeputyError> {
        let Deputy { inherited, signals, port, token, .. } = self;
        let (events, heard) = channel();
        let orders = Orders::default();
        let description = inherited.description.encode();
        let (mut lines, mut files) = (Vec::new(), Vec::new());
        let streams = inherited.description.streams;
        let terminal = inherited.terminal;
        for (number, (stream, carried)) in streams.iter().zip(inherited.files).enumerate() {
            let mut both = Lines::default();
            let file = carried.reading.as_ref().or(carried.writing.as_ref()).map(OwnedFd::try_clone).transpose()?;
            files.push(match (file, &stream.file) {
                (Some(file), JobFile::Named { offset, .. }) => Some(SharedFile { file, offset: *offset }),
                _ => None,
            });
            if let Some(file) = carried.writing {
                both.writing = Some(writing(&format!("out-{number}"), file)?);
            }
            if let Some(file) = carried.reading {
                let of = terminal.clone().filter(|_| rustix::termios::isatty(&file));
                both.reading = Some(reading(&format!("in-{number}"), file, of)?);
            }
            lines.push(both);
        }
        // What the program closes is closed: this process has it no more.
        let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
        let null = null.map_err(io::Error::from)?;
        rustix::stdio::dup2_stdin(&null).map_err(io::Error::from)?;
        rustix::stdio::dup2_stdout(&null).map_err(io::Error::from)?;

        let desk = Desk {
            token,
            description,
            lines,
            files,
            orders: orders.clone(),
            events: events.clone(),
            heard: 0,
            far: None,
            client: None,
        };
        let handle = Handle::new(port.waker());
        let (served, stop) = (port.clone(), handle.clone());
        thread("desk", move || {
            // Without a port nothing is heard any more, which the far end sees.
            let _ = serve(&served, 1, Tenure::new(1), desk, &stop);
        })?;
        thread("signals", move || pass_on(&signals, &events))?;
        let absence = Absence::new(node);
        let over = Watch { heard, orders, port, terminal: terminal.clone(), absence }.run();
        terminal.iter().for_each(|terminal| terminal.give_back());
        over
    }
}

fn pass_on(signals: &OwnedFd, events: &Sender<Event>) {
    while let Ok(signal) = sys::signals::next(signals) {
        if events.send(Event::Signal(signal)).is_err() {
            return;
        }
    }
}

struct Watch {
    heard: Receiver<Event>,
    orders: Orders,
    port: SharedPort,
    terminal: Option<Arc<OwnTerminal>>,
    absence: Absence,
}

impl Watch {
    fn run(mut self) -> Result<JobEnd, DeputyError> {
        let begun = Instant::now();
        let (mut far, mut is_up) = (None, false);
        loop {
            let event = if is_up {
                self.heard.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.heard.recv_timeout(LOOK)
            };
            match event {
                Ok(Event::Up(endpoint)) => {
                    (far, is_up) = (Some(endpoint), true);
                    self.absence.is_there();
                }
                Ok(Event::Down) => is_up = false,
                Ok(Event::Signal(libc::SIGWINCH)) if self.terminal.is_some() => {
                    self.terminal.iter().for_each(|terminal| self.orders.resize(terminal.size()));
                }
                Ok(Event::Signal(signal)) => {
                    if signal == libc::SIGCONT {
                        self.take_terminal();
                    }
                    self.orders.signal(whom(signal), signal);
                }
                Ok(Event::News(news, value)) => {
                    match news {
                        News::Began => self.take_terminal(),
                        News::Stopped => self.terminal.iter().for_each(|terminal| terminal.give_back()),
                        _ => {}
                    }
                    if let Some(over) = heed(news, value) {
                        return Ok(over);
                    }
                }
                Err(RecvTimeoutError::Timeout) => match far {
                    Some(far) if self.is_gone(far) => return Ok(JobEnd::Lost),
                    None if self.absence.is_lost() => return Ok(JobEnd::Lost),
                    None if begun.elapsed() > COMES_WITHIN => return Err(DeputyError::NobodyCame),
                    _ => {}
                },
                Err(RecvTimeoutError::Disconnected) => return Ok(JobEnd::Lost),
            }
        }
    }

    fn take_terminal(&self) {
        self.terminal.iter().for_each(|terminal| {
            terminal.want();
            // It may have changed while somebody else had it.
            self.orders.resize(terminal.size());
        });
    }

    /// A link that is cut comes back, or its node is lost, and then nobody is bound there.
    fn is_gone(&mut self, far: Endpoint) -> bool {
        match self.port.with(|port| port.notify(far, 1)) {
            Err(error) => self.absence.is_for_good(error),
            Ok(()) => {
                self.absence.is_there();
                false
            }
        }
    }
}

/// Whoever leads a group is what a shell, or a terminal, calls a job: what reaches it is meant for all of the job. The
/// others are meant themselves. Who stops and continues does so with groups.
fn whom(signal: i32) -> Whom {
    let is_of_jobs = matches!(signal, libc::SIGCONT | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
    if is_of_jobs || rustix::process::getpgrp() == getpid() { Whom::Group } else { Whom::Process }
}

/// What news mean for this process.
fn heed(news: News, value: u64) -> Option<JobEnd> {
    let number = i32::try_from(value).unwrap_or(i32::MAX);
    match news {
        News::Began | News::Continued => None,
        News::Stopped => {
            // Whoever waits for this process sees it stop. It goes on here, after SIGCONT.
            let _ = kill_process(getpid(), Signal::STOP);
            None
        }
        News::Refused => Some(JobEnd::Refused(Errno::from_raw_os_error(number))),
        News::Exited => Some(JobEnd::Exited(value as u8)),
        News::Killed => Some(JobEnd::Killed(number)),
    }
}

impl JobEnd {
    /// Ends this process the same way. 125: lost; 126, 127: as a shell says that nothing could be run.
    pub fn end(self) -> ! {
        let status = match self {
            JobEnd::Exited(status) => i32::from(status),
            JobEnd::Lost => 125,
            JobEnd::Refused(Errno::NOENT) => 127,
            JobEnd::Refused(_) => 126,
            JobEnd::Killed(signal) => {
                let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
                // The program's node keeps its core.
                let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
                sys::child::default_signals();
                if let Some(signal) = Signal::from_named_raw(signal) {
                    let _ = kill_process(getpid(), signal);
                }
                128 + signal
            }
        };
        sys::child::exit_now(status)
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
