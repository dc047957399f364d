//! What `run`, `exec` and `attach` have in common: a program's streams on ours until one of them ends.

use std::cell::Cell;
use std::io;
use std::process::ExitCode;

use client::{Client, Stream};
use mgmt_api::TerminalSize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::{Outcome, say};
use crate::errors::{self, Failure};
use crate::pump::{self, DetachKeys, Ended, Ends, Event, Output, Post};
use crate::terminal;

/// How our side takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// The program has a terminal: ours becomes raw, keys and sizes go to it.
    Terminal,
    /// Our standard input goes to the program.
    Interactive,
    /// We listen.
    Output,
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

/// Stays with the program and gives back its exit status. `known_pid` when the stream will not say it.
pub async fn converse(daemon: &Client, dc: &str, stream: Stream, manner: Manner, known_pid: Option<u32>) -> Outcome {
    let (events_in, events) = pump::event_queue();
    watch_signals(manner, &events_in).map_err(|cause| local("cannot watch signals", &cause))?;
    let raw = match manner {
        Manner::Terminal => terminal::make_raw().map_err(|cause| local("cannot set up the terminal", &cause))?,
        Manner::Interactive | Manner::Output => None,
    };
    let ends = Ends {
        input: (manner != Manner::Output).then(|| pump::input_from(io::stdin())),
        events,
        events_in,
        stdout: Output::to(io::stdout()),
        stderr: Output::to(io::stderr()),
        detach_keys: if raw.is_some() { DetachKeys::Heeded } else { DetachKeys::Passed },
    };
    let pid = Cell::new(known_pid);
    let post = ByRequest { daemon, dc };
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
        Err(error) => Err(errors::of_run(error)),
    }
}

fn local(what: &str, cause: &io::Error) -> Failure {
    Failure::new(what).because(cause).status(errors::RUN_FAILED)
}

/// Must run before the program can end, so that no signal is lost between.
fn watch_signals(manner: Manner, events: &mpsc::Sender<Event>) -> io::Result<()> {
    for kind in FORWARDED {
        let number = kind.as_raw_value() as u8;
        let event = match (manner, kind == SignalKind::hangup()) {
            // Our terminal is gone; the program keeps its own and can be attached to again.
            (Manner::Terminal, true) => Event::Detach,
            _ => Event::Signal(number),
        };
        forward(kind, events.clone(), move || event)?;
    }
    if manner == Manner::Terminal {
        forward(SignalKind::window_change(), events.clone(), || Event::Resize(terminal::size()))?;
    }
    Ok(())
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

/// Signals as requests of their own.
struct ByRequest<'a> {
    daemon: &'a Client,
    dc: &'a str,
}

impl Post for ByRequest<'_> {
    async fn signal(&self, pid: u32, signal: u8) -> bool {
        self.daemon.signal(self.dc, pid, i32::from(signal)).await.is_ok()
    }
}

pub fn terminal_size(manner: Manner) -> Option<TerminalSize> {
    (manner == Manner::Terminal).then(terminal::size)
}
