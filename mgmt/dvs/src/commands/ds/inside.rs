//! A client of the key-value store, inside its container: one request, or those of standard input, over one session.
//!
//! The session outlives the server (`libvos`): while there is none, requests wait, and each happens once.

use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use abi::Endpoint;
use ipc::Port;
use libvos::{BlockingSession, DsClient, DsEvent, EventKind, Identity, PortConnect, SharedPort, Size};
use rustix::io::Errno;
use serde::Serialize;
use vos_api::ds::{ANY, KEY_BYTES_MAX, VALUE_BYTES_MAX};

use super::BROKER;
use super::request::{Bytes, Changed, Entry, Event, Failed, Listed, NoHex, Published, Request, shown};
use crate::commands::{Outcome, print, say};
use crate::errors::Failure;
use crate::output::{self, Format};

/// A list for people, or for one transfer of a larger one.
const SIZE: Size = Size { entries: 16, arena_bytes: 4 << 20 };
/// Entries of one listing; a larger one goes on with `--after`.
const ENTRIES_MAX: usize = 10_000;
/// A value, each byte of it as an escape, and the rest of a request.
const LINE_BYTES_MAX: u64 = 8 * VALUE_BYTES_MAX as u64;
/// How long a watch waits at a time.
const WATCH: Duration = Duration::from_secs(60);
/// A server that was killed is back by then; a person wants to know why nothing happens.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn execute(format: Format, request: Option<Request>) -> Outcome {
    let store = connect()?;
    let done = match request {
        None => answer_lines(&store),
        Some(Request::Watch { prefix, after }) => watch(&store, format, &prefix, after.unwrap_or(0)),
        Some(request) => {
            let patience = Reminder::begin();
            let answer = carry_out(&store, &request);
            drop(patience);
            answer.map_err(|refused| refused.failure(&request)).and_then(|answer| show(format, answer))
        }
    };
    // Without it the server would keep what it remembers for us until it needs the room.
    let _ = store.goodbye();
    done
}

/// The container's name, for what people may try.
fn dc() -> String {
    std::env::var(super::DC_VARIABLE).unwrap_or_else(|_| "DC".to_owned())
}

fn connect() -> Result<DsClient, Failure> {
    let failed = |cause: &dyn std::error::Error| {
        Failure::new("the container's key-value server cannot be reached")
            .because(cause)
            .hint(format!("dvs dc inspect {}: does the server 'ds' run?", dc()))
    };
    let port = Port::connect(Path::new(BROKER), None).map_err(|cause| failed(&cause))?;
    let connect = PortConnect::new(SharedPort::new(port), Endpoint::DS, SIZE);
    let session = BlockingSession::open(Box::new(connect), SIZE, Identity::default());
    Ok(DsClient::new(session.map_err(|cause| failed(&cause))?))
}

/// What the store answered.
enum Found {
    Value(Entry),
    Changed(Changed),
    Listed(Listed),
    Published(Published),
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum Refused {
    #[error("there is no such key")]
    NoKey,
    #[error("there is such a key already")]
    Exists,
    #[error("another revision wrote it")]
    Changed,
    #[error("keys have 1 to {KEY_BYTES_MAX} bytes, values at most {VALUE_BYTES_MAX}")]
    Invalid,
    #[error("the store is full")]
    Full,
    #[error("watching is a command of its own")]
    Watch,
    #[error(transparent)]
    NoHex(#[from] NoHex),
    #[error("the store failed: {0}")]
    Store(Errno),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        match errno {
            Errno::NOENT => Refused::NoKey,
            Errno::EXIST => Refused::Exists,
            Errno::STALE => Refused::Changed,
            Errno::INVAL => Refused::Invalid,
            Errno::NOSPC => Refused::Full,
            other => Refused::Store(other),
        }
    }
}

impl Refused {
    fn failure(self, request: &Request) -> Failure {
        let what = match request {
            Request::Get { key } => format!("key '{}' was not read", shown(key)),
            Request::Put { key, .. } => format!("key '{}' was not written", shown(key)),
            Request::Delete { key, .. } => format!("key '{}' was not removed", shown(key)),
            Request::List { .. } => "the keys were not listed".to_owned(),
            Request::Publish { topic, .. } => format!("nothing was published on '{}'", shown(topic)),
            Request::Watch { .. } => "nothing is watched".to_owned(),
        };
        let failure = Failure::new(what).because(&self);
        match self {
            Refused::NoKey => failure.hint(format!("dvs ds ls {}", dc())),
            Refused::Exists | Refused::Changed => {
                let key = request.key().map(shown).unwrap_or_default();
                failure.hint(format!("look again, dvs ds get -o json {} {key}, and decide anew", dc()))
            }
            Refused::Invalid => failure.hint("a key such as config/leader"),
            Refused::Full => failure.hint(format!("remove what is not needed: dvs ds ls {}", dc())),
            _ => failure.hint(format!("dvs dc inspect {} shows the store", dc())),
        }
    }
}

fn carry_out(store: &DsClient, request: &Request) -> Result<Found, Refused> {
    match request {
        Request::Get { key } => {
            let (value, revision) = store.get(&key.bytes()?)?;
            Ok(Found::Value(Entry { key: key.clone(), value: value.into(), revision }))
        }
        Request::Put { key, value, revision } => {
            let revision = store.put(&key.bytes()?, &value.bytes()?, revision.unwrap_or(ANY))?;
            Ok(Found::Changed(Changed { key: key.clone(), revision }))
        }
        Request::Delete { key, revision } => {
            let revision = store.delete(&key.bytes()?, revision.unwrap_or(ANY))?;
            Ok(Found::Changed(Changed { key: key.clone(), revision }))
        }
        Request::List { prefix, after } => {
            let after = after.as_ref().map(Bytes::bytes).transpose()?.unwrap_or_default();
            Ok(Found::Listed(list(store, &prefix.bytes()?, after.into_owned())?))
        }
        Request::Publish { topic, value } => {
            let subscribers = store.publish(&topic.bytes()?, &value.bytes()?)?;
            Ok(Found::Published(Published { subscribers }))
        }
        Request::Watch { .. } => Err(Refused::Watch),
    }
}

fn list(store: &DsClient, prefix: &[u8], mut after: Vec<u8>) -> Result<Listed, Refused> {
    let mut entries = Vec::new();
    loop {
        let page = store.list(prefix, &after)?;
        let Some(last) = page.entries.last() else { return Ok(Listed { entries, more: false }) };
        after = last.key.clone();
        entries.extend(page.entries.into_iter().map(|entry| Entry {
            key: entry.key.into(),
            value: entry.value.into(),
            revision: entry.revision,
        }));
        if !page.has_more || entries.len() >= ENTRIES_MAX {
            return Ok(Listed { entries, more: page.has_more });
        }
    }
}

fn show(format: Format, answer: Found) -> Outcome {
    match answer {
        Found::Value(entry) => print(|out| {
            output::one(out, format, &entry, |entry, out| {
                let value = entry.value.bytes().map_err(io::Error::other)?;
                out.write_all(&value)
            })
        }),
        Found::Changed(changed) => {
            print(|out| output::one(out, format, &changed, |changed, out| writeln!(out, "{}", changed.revision)))
        }
        Found::Listed(listed) => {
            let printed = print(|out| output::list(out, format, &listed.entries));
            if let (true, Some(last)) = (listed.more, listed.entries.last()) {
                say(&format!("there are more keys: --after '{}'", shown(&last.key)));
            }
            printed
        }
        Found::Published(published) => print(|out| match format {
            Format::Json => line(out, &published),
            _ => writeln!(out, "{}", published.subscribers),
        }),
    }
}

fn line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

// ---- requests from standard input

fn answer_lines(store: &DsClient) -> Outcome {
    let mut input = io::stdin().lock();
    let mut text = Vec::new();
    loop {
        text.clear();
        let read = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
        if read.map_err(|cause| {
            Failure::new("cannot read standard input").because(&cause).hint("a file as standard input")
        })? == 0
        {
            return Ok(ExitCode::SUCCESS);
        }
        if text.len() as u64 == LINE_BYTES_MAX && text.last() != Some(&b'\n') {
            return Err(
                Failure::new(format!("a request has more than {LINE_BYTES_MAX} bytes")).hint("one request in a line")
            );
        }
        print(|out| answer_line(store, &text, out))?;
    }
}

fn answer_line(store: &DsClient, text: &[u8], out: &mut impl Write) -> io::Result<()> {
    let request = match serde_json::from_slice::<Request>(text) {
        Ok(request) => request,
        Err(error) => return line(out, &Failed { error: format!("the request makes no sense: {error}") }),
    };
    match carry_out(store, &request) {
        Ok(Found::Value(entry)) => line(out, &entry),
        Ok(Found::Changed(changed)) => line(out, &changed),
        Ok(Found::Listed(listed)) => line(out, &listed),
        Ok(Found::Published(published)) => line(out, &published),
        Err(refused) => line(out, &Failed { error: refused.to_string() }),
    }
}

// ---- watching

fn watch(store: &DsClient, format: Format, prefix: &Bytes, after: u64) -> Outcome {
    let failed = |cause: &dyn std::error::Error| {
        Failure::new("the store cannot be watched").because(cause).hint(format!("dvs dc inspect {} shows it", dc()))
    };
    let prefix = prefix.bytes().map_err(|cause| failed(&cause))?;
    let (_, begin) = store.subscribe(&prefix, after).map_err(|errno| failed(&Refused::from(errno)))?;
    let mut seen = begin;
    loop {
        let events = store.next(seen, WATCH).map_err(|errno| failed(&Refused::from(errno)))?;
        for event in events {
            seen = seen.max(event.revision);
            print(|out| show_event(out, format, event))?;
        }
    }
}

fn show_event(out: &mut impl Write, format: Format, event: DsEvent) -> io::Result<()> {
    let kind = match event.kind {
        EventKind::Put => "put",
        EventKind::Delete => "delete",
        EventKind::Message => "message",
        EventKind::Lost => "lost",
    };
    let event = Event { revision: event.revision, kind, key: event.key.into(), value: event.value.into() };
    match format {
        Format::Json => line(out, &event),
        Format::Name => writeln!(out, "{}", shown(&event.key)),
        _ => {
            writeln!(out, "{} {} {} {}", event.revision, event.kind, shown(&event.key), shown(&event.value))
        }
    }
}

/// Says why nothing happens, when nothing happens for long.
struct Reminder {
    _over: Sender<()>,
}

impl Reminder {
    fn begin() -> Reminder {
        let (over, is_over) = channel::<()>();
        std::thread::spawn(move || {
            if is_over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                say(&format!("waiting for the key-value server: dvs dc inspect {}", dc()));
            }
        });
        Reminder { _over: over }
    }
}
