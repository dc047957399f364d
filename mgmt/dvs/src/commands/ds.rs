//! `dvs ds`: the container's key-value server, for people, scripts and programs.
//!
//! The store is spoken to by a process of the container (`inside.rs`), as any of its programs may do over M3-IPC: no
//! daemon is between, and the session outlives the server. Outside, this command starts that process, which is our own
//! binary, and passes on what it says; inside the container it does the work itself. So `dvs ds` is also the way for
//! programs that are not linked with `libvos`: `dvs ds pipe` as a co-process answers a line of JSON (`request.rs`) with
//! a line of JSON, all in one session.

#[cfg(feature = "machinery")]
pub mod inside;
pub mod request;
pub mod whole;

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use clap::{Args, Subcommand};
use mgmt_api::{RootFs, RunRequest};

use super::session::{Input, Manner, converse, new_session};
use super::{Outcome, block_on, daemon, names};
use crate::cli::Global;
use crate::errors::{self, Failure};
use crate::inside::{DC_VARIABLE, own_container};
use crate::output::Format;
use request::{Bytes, Request};

/// What a program of a container is before it becomes itself: the keeper, which is this binary.
const OURSELVES: &str = "/proc/self/exe";
/// Where programs of a container reach the broker.
pub const BROKER: &str = "/run/dvs/broker";
/// A condition that only a key which does not exist meets.
const ABSENT: u64 = 0;
/// As the store has it (`vos_api::ds::VALUE_BYTES_MAX`), which a binary without the machinery does not know.
const VALUE_BYTES_MAX: usize = 64 << 10;
#[cfg(feature = "machinery")]
const _: () = assert!(VALUE_BYTES_MAX == vos_api::ds::VALUE_BYTES_MAX);

/// Read, write and watch a container's key-value store
#[derive(Subcommand, Debug)]
#[command(after_help = "\
Every container has one store, durable and the same on all nodes. Each change has a revision, one \
count for the whole store. Keys have 1 to 255 bytes, values up to 64 KiB.

Examples:
  dvs ds put shop leader n1                 prints the new revision
  dvs ds get shop leader
  dvs ds cas shop leader 7 n2               only if revision 7 wrote it; 0: only if there is none
  dvs ds ls shop config/                    keys that begin with config/
  dvs ds watch shop config/ -o json         changes as they happen
  echo '{\"op\":\"get\",\"key\":\"leader\"}' | dvs ds pipe shop

Programs of a container use the same commands where the node has dvs installed.")]
pub enum Command {
    /// Print the value of a key.
    Get {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
        /// Key: 1 to 255 bytes.
        key: String,
    },
    /// Set a key.
    Put {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
        /// Key: 1 to 255 bytes.
        key: String,
        /// The value; - takes it from standard input.
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Set a key if nobody changed it: compare and set.
    Cas {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
        /// Key: 1 to 255 bytes.
        key: String,
        /// The revision that wrote the present value; 0 when there must be none.
        revision: u64,
        /// The value; - takes it from standard input.
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    #[command(visible_alias = "rm")]
    Delete(DeleteOptions),
    #[command(visible_alias = "list")]
    Ls(ListOptions),
    Watch(WatchOptions),
    /// Send a message to those who watch a topic; nothing is stored.
    Publish {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
        /// Topic: 1 to 255 bytes, as a key; it need not exist.
        topic: String,
        /// The message; - takes it from standard input.
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    Pipe(PipeOptions),
}

/// Remove a key
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs ds delete shop leader
  dvs ds delete --revision 7 shop leader      only if revision 7 wrote it")]
pub struct DeleteOptions {
    /// Only if this revision wrote the present value.
    #[arg(long)]
    revision: Option<u64>,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Key: 1 to 255 bytes.
    key: String,
}

/// List keys
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs ds ls shop
  dvs ds ls shop config/ -o name              the keys alone
  dvs ds ls shop --after config/z             what comes after it")]
pub struct ListOptions {
    /// Begin after this key.
    #[arg(long, value_name = "KEY")]
    after: Option<String>,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Only keys that begin with this.
    #[arg(default_value = "")]
    prefix: String,
}

/// Print changes and messages as they happen
#[derive(Args, Debug)]
#[command(after_help = "\
Goes on until it is interrupted, also while the server is away. A line has the revision, what happened, the key and the \
value. 'lost' says that older events were dropped: list again.

Examples:
  dvs ds watch shop
  dvs ds watch shop config/ -o json           one JSON object in a line
  dvs ds watch shop --after 120               also what happened since revision 120")]
pub struct WatchOptions {
    /// Begin after this revision [default: now].
    #[arg(long, value_name = "REVISION")]
    after: Option<u64>,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Only keys and topics that begin with this.
    #[arg(default_value = "")]
    prefix: String,
}

/// Answer requests from standard input, in one session
#[derive(Args, Debug)]
#[command(after_help = "\
One JSON object in a line, one answer in a line, in order:
  {\"op\":\"get\",\"key\":K}                             {\"key\":K,\"value\":V,\"revision\":N}
  {\"op\":\"put\",\"key\":K,\"value\":V,\"revision\":N}      {\"key\":K,\"revision\":N}
  {\"op\":\"delete\",\"key\":K,\"revision\":N}
  {\"op\":\"list\",\"prefix\":P,\"after\":K}               {\"entries\":[...],\"more\":true}
  {\"op\":\"publish\",\"topic\":T,\"value\":V}             {\"subscribers\":N}
A revision in a request is a condition and may be left out. What fails is answered with {\"error\":…}. \
Bytes that are no text are written {\"hex\":\"00ff\"}.

Examples:
  dvs ds pipe shop < requests.jsonl")]
pub struct PipeOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
}

/// What a command asks for, and of which container.
struct Asked {
    dc: String,
    /// None: what standard input says.
    request: Option<Request>,
}

pub fn execute(global: &Global, command: Command) -> Outcome {
    let wants_raw = matches!(command, Command::Get { .. }) && global.output.is_for_people();
    let asked = asked(command)?;
    if is_inside(&asked.dc) {
        return inside(global.output, asked.request);
    }
    let request = speaker(global.output, asked.request.as_ref());
    let input = match asked.request {
        // Not among the arguments: a value with its escapes is longer than an argument may be.
        Some(request) => Input::Bytes(written_down(&request)?),
        None => Input::Standard,
    };
    let daemon = daemon(global)?;
    let ended = block_on(async {
        let session = new_session()?;
        let stream = daemon.run(&asked.dc, &request, session).await?;
        converse(&daemon, &asked.dc, (stream, session), Manner::Interactive(input), None).await
    })?;
    if wants_raw && io::stdout().is_terminal() {
        // Values are printed as they are; a prompt should not stand after one.
        writeln!(io::stdout())?;
    }
    ended.map_err(|failure| failure.status(errors::GENERAL))
}

fn asked(command: Command) -> Result<Asked, Failure> {
    let put =
        |key: String, value: &str, revision| Ok(Request::Put { key: key.into(), value: value_of(value)?, revision });
    let (dc, request): (String, Result<Request, Failure>) = match command {
        Command::Get { dc, key } => (dc, Ok(Request::Get { key: key.into() })),
        Command::Put { dc, key, value } => (dc, put(key, &value, None)),
        Command::Cas { dc, key, revision, value } => (dc, put(key, &value, Some(revision))),
        Command::Delete(DeleteOptions { revision: Some(ABSENT), dc, .. }) => {
            return Err(Failure::usage("no value was written by revision 0").hint(format!("dvs ds ls {dc}")));
        }
        Command::Delete(DeleteOptions { dc, key, revision }) => (dc, Ok(Request::Delete { key: key.into(), revision })),
        Command::Ls(ListOptions { after, dc, prefix }) => {
            (dc, Ok(Request::List { prefix: prefix.into(), after: after.map(Bytes::from) }))
        }
        Command::Watch(WatchOptions { after, dc, prefix }) => (dc, Ok(Request::Watch { prefix: prefix.into(), after })),
        Command::Publish { dc, topic, value } => {
            (dc, value_of(&value).map(|value| Request::Publish { topic: topic.into(), value }))
        }
        Command::Pipe(PipeOptions { dc }) => return Ok(Asked { dc, request: None }),
    };
    Ok(Asked { dc, request: Some(request?) })
}

/// As it stands, or from standard input.
fn value_of(text: &str) -> Result<Bytes, Failure> {
    let mut value = Vec::new();
    if text == "-" {
        let read = io::stdin().take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut value);
        read.map_err(|cause| {
            let failure = Failure::new("cannot read the value from standard input").because(&cause);
            failure.hint("the value as an argument, or a file as standard input")
        })?;
    } else {
        value.extend_from_slice(text.as_bytes());
    }
    if value.len() > VALUE_BYTES_MAX {
        let failure = Failure::new(format!("the value has more than {VALUE_BYTES_MAX} bytes"));
        return Err(failure.hint("a file of the container, and its path as the value"));
    }
    Ok(value.into())
}

/// One line, as for `dvs ds pipe`.
fn written_down(request: &Request) -> Result<Vec<u8>, Failure> {
    let mut line =
        serde_json::to_vec(request).map_err(|cause| Failure::new("cannot write the request down").because(&cause))?;
    line.push(b'\n');
    Ok(line)
}

/// Whether this is a program of the container.
pub fn is_inside(dc: &str) -> bool {
    let own = std::env::var(DC_VARIABLE).ok().or_else(own_container);
    own.is_some_and(|own| own == dc) && Path::new(BROKER).exists()
}

/// The process of the container that speaks to the store.
fn speaker(format: Format, request: Option<&Request>) -> RunRequest {
    let one = request.map(|_| "--one");
    let argv = ["internal", "ds"].into_iter().chain(format.words()).chain(one);
    RunRequest { interactive: true, ..ourselves(argv) }
}

/// Our own binary, in the container and not in its file tree.
pub fn ourselves<'a>(words: impl Iterator<Item = &'a str>) -> RunRequest {
    RunRequest {
        argv: std::iter::once(OURSELVES).chain(words).map(mgmt_api::Bytes::from).collect(),
        node: None,
        env: Vec::new(),
        workdir: Some("/".into()),
        root: RootFs::Host,
        uid: 0,
        gid: 0,
        terminal: None,
        interactive: false,
        detach: false,
        unlogged: false,
        user: None,
        ulimits: Vec::new(),
        cap_drop: Vec::new(),
    }
}

/// The process of the container: requests are lines of standard input.
pub fn speak(format: Format, lines: Lines) -> Outcome {
    // Who reads the output of `dvs ds` may go: SIGPIPE comes from there, and has to end this process, which may write
    // nothing for days.
    sys::child::default_signals();
    match lines {
        Lines::All => inside(format, None),
        Lines::One => {
            let request = serde_json::from_reader(io::stdin().lock());
            inside(format, Some(request.map_err(|cause| Failure::usage("the request makes no sense").because(&cause))?))
        }
    }
}

/// How many requests there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lines {
    One,
    All,
}

#[cfg(feature = "machinery")]
fn inside(format: Format, request: Option<Request>) -> Outcome {
    inside::execute(format, request)
}

#[cfg(not(feature = "machinery"))]
fn inside(_: Format, _: Option<Request>) -> Outcome {
    Err(Failure::new("this binary was built without the machinery of a node"))
}
