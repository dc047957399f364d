//! What `run`, `exec` and `attach` have in common: a program's streams on ours until one of them ends.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Client, Session, Stream};
use mgmt_api::stream::session::RESUME_LIMIT;
use mgmt_api::{ErrorKind, TerminalSize};
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::{Outcome, say};
use crate::errors::{self, Failure};
use crate::output::printable;
use crate::pump::{self, DetachKeys, Ended, Ends, Event, Output, Post, PumpError, SIGPIPE};
use crate::terminal;

/// How our side takes part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Manner {
    /// The program has a terminal: ours becomes raw, keys and sizes go to it.
    Terminal,
    /// The program is given input.
    Interactive(Input),
    /// We listen; signals that somebody sends to us are for the program.
    Output,
    /// We look on: nothing goes to the program, signals are our own.
    Spectator,
}

/// Where the program's input comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    Standard,
    Bytes(Vec<u8>),
}

/// Signals that somebody sends to us and means for the program.
const FORWARDED: [SignalKind; 6] = [
    SignalKind::interrupt(),
    SignalKind::terminate(),
    SignalKind::hangup(),
    SignalKind::quit(),
    SignalKind::user_defined1(),
    SignalKind::user_defined2(),
];

/// So many requests to end within a while, and we go without the program. As docker has it.
const ENDING_SIGNALS_MAX: usize = 3;
/// The while: somebody who wants to leave; a program that heeds an occasional Ctrl-C in its own way is another matter.
const ENDING_SIGNALS_WITHIN: Duration = Duration::from_secs(10);

/// A break that is mended within this is not worth a word.
const QUIET: Duration = Duration::from_millis(1500);
/// Nor is a start that takes so long: whether a node can be reached is known within three seconds.
const QUIET_START: Duration = Duration::from_secs(4);
/// Between two tries to find a daemon.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The name of the stream to come.
pub fn new_session() -> Result<Session, Failure> {
    Session::new().map_err(|cause| local("cannot read random numbers", &cause))
}

/// Waits for a program's stream. What keeps it waiting is said meanwhile, once: a program that begins in the tree
/// begins when the tree is there.
pub async fn opened(
    daemon: &Client,
    dc: &str,
    opening: impl Future<Output = Result<Stream, client::Error>>,
) -> Result<Stream, client::Error> {
    let mut opening = pin!(opening);
    if let Ok(opened) = tokio::time::timeout(QUIET_START, &mut opening).await {
        return opened;
    }
    let notes = tokio::select! {
        opened = &mut opening => return opened,
        listed = daemon.processes(dc) => listed.map(|listed| listed.notes).unwrap_or_default(),
    };
    say_notes(&notes);
    let mut stream = opening.await?;
    stream.notes.retain(|note| !notes.contains(note));
    Ok(stream)
}

fn say_notes(notes: &[String]) {
    notes.iter().for_each(|note| say(&format!("dvs: {}", printable(note))));
}

/// Stays with the program and gives back its exit status. `known_pid` when the stream will not say it.
pub async fn converse(
    daemon: &Client,
    dc: &str,
    (stream, session): (Stream, Session),
    manner: Manner,
    known_pid: Option<u32>,
) -> Outcome {
    say_notes(&stream.notes);
    let (events_in, events) = pump::event_queue();
    watch_signals(&manner, &events_in).map_err(|cause| local("cannot watch signals", &cause))?;
    let raw = match manner {
        Manner::Terminal => terminal::make_raw().map_err(|cause| local("cannot set up the terminal", &cause))?,
        Manner::Interactive(_) | Manner::Output | Manner::Spectator => None,
    };
    if manner == Manner::Terminal && known_pid.is_some() {
        // The size may be another one than when it was left; it also makes full-screen programs draw again.
        let _ = events_in.try_send(Event::Resize(terminal::size()));
    }
    let closed_output = match manner {
        Manner::Spectator => Event::Detach,
        Manner::Terminal | Manner::Interactive(_) | Manner::Output => Event::Signal(SIGPIPE),
    };
    let input = match manner {
        Manner::Terminal | Manner::Interactive(Input::Standard) => Some(pump::input_from(io::stdin())),
        Manner::Interactive(Input::Bytes(bytes)) => Some(pump::input_from(io::Cursor::new(bytes))),
        Manner::Output | Manner::Spectator => None,
    };
    let ends = Ends {
        input,
        events,
        events_in,
        closed_output,
        stdout: Output::to(io::stdout()),
        stderr: Output::to(io::stderr()),
        detach_keys: if raw.is_some() { DetachKeys::Heeded } else { DetachKeys::Passed },
    };
    let pid = Cell::new(known_pid);
    let post = ByRequest { daemon, dc, session, line_end: if raw.is_some() { "\r" } else { "" } };
    let ended = pump::run(stream, ends, &pid, &post).await;
    drop(raw);
    match ended {
        Ok(Ended::Exit(status)) => Ok(ExitCode::from(status)),
        Ok(Ended::Refused(body)) => {
            let status = errors::run_status(body.kind);
            Err(Failure::from(body).status(status))
        }
        Ok(Ended::Detached) => {
            let pid = pid.get().map_or("PID".to_owned(), |pid| pid.to_string());
            say(&format!("detached; the program goes on: dvs attach {dc} {pid}"));
            Ok(ExitCode::SUCCESS)
        }
        Ok(Ended::GivenUp) => {
            let pid = pid.get().map_or("PID".to_owned(), |pid| pid.to_string());
            let failure = Failure::new(format!("the program goes on after {ENDING_SIGNALS_MAX} signals"));
            Err(failure.hint(format!("dvs kill -s KILL {dc} {pid}")).status(errors::RUN_FAILED))
        }
        Err(PumpError::Stream(error)) => Err(lost(error, dc, pid.get())),
        Err(error @ PumpError::Output { .. }) => {
            let pid = pid.get().map_or("PID".to_owned(), |pid| pid.to_string());
            let failure = Failure::from(error).hint(format!("dvs logs {dc} {pid}: what it wrote is in its log"));
            Err(failure.status(errors::RUN_FAILED))
        }
    }
}

/// The stream broke, and nobody on the way lived to say more: the program may go on.
fn lost(error: client::Error, dc: &str, pid: Option<u32>) -> Failure {
    let is_lost = matches!(error, client::Error::StreamEnded | client::Error::Broken(_));
    let failure = errors::of_run(error);
    let Some(pid) = pid.filter(|_| is_lost) else { return failure };
    let cause = failure.what.clone();
    let failure = Failure { what: format!("the connection to program {pid} was lost"), ..failure };
    failure.because_text(cause).hint(format!("if it goes on: dvs attach {dc} {pid}"))
}

/// A program gets a terminal when there is one here: without, its keys would come from nowhere, and it would never end.
pub fn demand_terminal(manner: &Manner, instead: &str) -> Result<(), Failure> {
    if *manner != Manner::Terminal || terminal::is_terminal(&io::stdin()) {
        return Ok(());
    }
    let failure = Failure::new("the input device is not a TTY").because_text("standard input is no terminal here");
    Err(failure.hint(instead).status(errors::RUN_FAILED))
}

fn local(what: &str, cause: &io::Error) -> Failure {
    Failure::new(what).because(cause).hint("dvs doctor: what is wrong with this machine").status(errors::RUN_FAILED)
}

/// Must run before the program can end, so that no signal is lost between.
fn watch_signals(manner: &Manner, events: &mpsc::Sender<Event>) -> io::Result<()> {
    if *manner == Manner::Spectator {
        return Ok(());
    }
    let impatience = Arc::new(Mutex::new(Impatience::default()));
    let ignored = ignored_signals();
    for kind in FORWARDED.into_iter().filter(|kind| !ignored.contains(kind)) {
        let number = kind.as_raw_value() as u8;
        let event = match (manner, kind == SignalKind::hangup()) {
            // Our terminal is gone; the program keeps its own and can be attached to again.
            (&Manner::Terminal, true) => Event::Detach,
            _ => Event::Signal(number),
        };
        if kind != SignalKind::interrupt() && kind != SignalKind::terminate() {
            forward(kind, events.clone(), move || event)?;
            continue;
        }
        let impatience = Arc::clone(&impatience);
        forward(kind, events.clone(), move || {
            let mut impatience = impatience.lock();
            if impatience.is_enough(Instant::now()) { Event::GiveUp } else { event }
        })?;
    }
    if *manner == Manner::Terminal {
        forward(SignalKind::window_change(), events.clone(), || Event::Resize(terminal::size()))?;
    }
    Ok(())
}

/// Signals that whoever started us wants to have no effect: `nohup`, jobs in the background of a script.
fn ignored_signals() -> Vec<SignalKind> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let is_ignored = |kind: &SignalKind| mask.unwrap_or_default() >> (kind.as_raw_value() - 1) & 1 == 1;
    FORWARDED.into_iter().filter(is_ignored).collect()
}

/// When we were last asked to end.
#[derive(Default)]
struct Impatience {
    at: Vec<Instant>,
}

impl Impatience {
    fn is_enough(&mut self, now: Instant) -> bool {
        self.at.retain(|at| now.duration_since(*at) < ENDING_SIGNALS_WITHIN);
        self.at.push(now);
        self.at.len() >= ENDING_SIGNALS_MAX
    }
}

fn forward(
    kind: SignalKind,
    events: mpsc::Sender<Event>,
    event: impl Fn() -> Event + Send + 'static,
) -> io::Result<()> {
    let mut arrivals = signal(kind)?;
    tokio::spawn(async move {
        while arrivals.recv().await.is_some() {
            if events.send(event()).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Signals and new connections as requests of their own.
struct ByRequest<'a> {
    daemon: &'a Client,
    dc: &'a str,
    session: Session,
    /// What a raw terminal wants before a new line.
    line_end: &'static str,
}

impl Post for ByRequest<'_> {
    async fn signal(&self, pid: u32, signal: u8) -> bool {
        self.daemon.signal(self.dc, pid, i32::from(signal)).await.is_ok()
    }

    async fn resume(&self, pid: u32, heard: u64, broke: client::Error) -> Result<Stream, client::Error> {
        let last = RefCell::new(None);
        let mut trying = pin!(self.try_to_resume(pid, heard, &last));
        if let Ok(stream) = tokio::time::timeout(QUIET, &mut trying).await {
            return stream;
        }
        let cause = last.borrow().as_ref().map(cause_of).unwrap_or_else(|| cause_of(&broke));
        let seconds = RESUME_LIMIT.as_secs();
        let end = self.line_end;
        say(&format!("dvs: {}; waiting up to {seconds} s for program {pid}{end}", printable(&cause)));
        match tokio::time::timeout(RESUME_LIMIT - QUIET, trying).await {
            Ok(stream) => stream,
            Err(_) => Err(broke),
        }
    }
}

impl ByRequest<'_> {
    async fn try_to_resume(
        &self,
        pid: u32,
        heard: u64,
        last: &RefCell<Option<client::Error>>,
    ) -> Result<Stream, client::Error> {
        loop {
            tokio::time::sleep(RETRY_PAUSE).await;
            match self.daemon.resume(self.dc, pid, self.session, heard).await {
                Err(error) if is_passing(&error) => _ = last.replace(Some(error)),
                outcome => return outcome,
            }
        }
    }
}

/// Whether a daemon that is started again, or found again, would answer in another way.
fn is_passing(error: &client::Error) -> bool {
    use client::Error::{Broken, NoDaemon, Refused, StreamEnded, TimedOut, Unreachable};
    match error {
        NoDaemon { .. } | Unreachable { .. } | Broken(_) | TimedOut { .. } | StreamEnded => true,
        Refused(body) => matches!(body.kind, ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::TooMany),
        _ => false,
    }
}

/// What is away, in few words.
fn cause_of(error: &client::Error) -> String {
    match error {
        client::Error::NoDaemon { .. } => "the daemon of this node is away".to_owned(),
        client::Error::Refused(body) => body.what.clone(),
        error => error.to_string(),
    }
}

pub fn terminal_size(manner: &Manner) -> Option<TerminalSize> {
    (*manner == Manner::Terminal).then(terminal::size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_loses_a_program_hears_which_and_how_to_find_it() {
        let failure = lost(client::Error::StreamEnded, "shop", Some(65_600));
        assert_eq!(failure.what, "the connection to program 65600 was lost");
        assert_eq!(failure.hint.as_deref(), Some("if it goes on: dvs attach shop 65600"));
        assert_eq!(failure.status, errors::RUN_FAILED);
        let hint = lost(client::Error::StreamEnded, "shop", None).hint.unwrap();
        assert!(hint.starts_with("look whether it was done"), "{hint}");
    }

    #[test]
    fn third_request_to_end_within_a_while_is_enough_and_an_occasional_one_is_not() {
        let begin = Instant::now();
        let asked = |seconds: &[u64]| {
            let mut impatience = Impatience::default();
            seconds.iter().fold(false, |_, at| impatience.is_enough(begin + Duration::from_secs(*at)))
        };
        assert!(asked(&[0, 1, 2]));
        assert!(!asked(&[0, 1]));
        assert!(!asked(&[0, 9, 18, 27, 36]));
    }
}
