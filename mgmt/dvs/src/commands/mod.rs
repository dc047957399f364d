//! One file per command. Each has its options, its help with examples, and `execute`.

pub mod access;
pub mod alone;
pub mod apply;
pub mod attach;
pub mod audit;
pub mod cluster;
pub mod completion;
pub mod context;
pub mod cp;
pub mod daemon;
pub mod dc;
pub mod dev;
pub mod disk;
pub mod doctor;
pub mod ds;
pub mod events;
pub mod exec;
mod follow;
pub mod fs;
pub mod import;
pub mod info;
pub mod inspect;
pub mod internal;
mod kept;
pub mod kill;
pub mod logs;
pub mod man;
pub mod metrics;
pub mod names;
pub mod node;
pub mod pause;
pub mod port;
pub mod ps;
pub mod retire;
pub mod run;
pub mod server;
pub mod service;
pub mod session;
mod several;
pub mod stats;
pub mod stop;
pub mod tree;
pub mod variables;
pub mod version;
pub mod wait;
pub mod watch;

use std::io::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use client::Client;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Command, Global};
use crate::errors::Failure;
use crate::output::{self, Format, Row};

/// What a command returns: the exit status when it did what it was asked to.
pub type Outcome = Result<ExitCode, Failure>;

pub fn execute(global: &Global, command: Command) -> Outcome {
    refuse_elsewhere(global, &command)?;
    match command {
        Command::Run(options) => run::execute(global, options),
        Command::Exec(options) => exec::execute(global, options),
        Command::Attach(options) => attach::execute(global, &options),
        Command::Ps(options) => ps::execute(global, &options),
        Command::Logs(options) => logs::execute(global, &options),
        Command::Kill(options) => kill::execute(global, &options),
        Command::Import(options) => import::execute(global, &options),
        Command::Cp(options) => cp::execute(global, &options),
        Command::Diff(options) => fs::execute_diff(global, options),
        Command::Start(options) => dc::start_each(global, &options),
        Command::Stop(options) => stop::execute(global, options),
        Command::Restart(options) => stop::execute_restart(global, &options),
        Command::Pause(options) => pause::execute(global, &options),
        Command::Unpause(options) => pause::execute_unpause(global, &options),
        Command::Rm(options) => dc::delete(global, &options),
        Command::Rename(options) => dc::rename(global, &options),
        Command::Wait(options) => wait::execute(global, &options),
        Command::Info(options) => info::execute(global, &options),
        Command::Inspect(options) => inspect::execute(global, options),
        Command::Stats(options) => stats::execute_stats(global, &options),
        Command::Top(options) => stats::execute_top(global, &options),
        Command::Plan(options) => apply::execute_plan(global, &options),
        Command::Apply(options) => apply::execute_apply(global, &options),
        Command::Dc(command) => dc::execute(global, command),
        Command::Disk(command) => disk::execute(global, &command),
        Command::Fs(command) => fs::execute(global, command),
        Command::Server(command) => server::execute(global, &command),
        Command::Service(command) => service::execute(global, command),
        Command::Port(command) => port::execute(global, command),
        Command::Ds(command) => ds::execute(global, command),
        Command::Node(command) => node::execute(global, &command),
        Command::Cluster(command) => cluster::execute(global, &command),
        Command::Access(command) => access::execute(global, &command),
        Command::Context(command) => context::execute(global, &command),
        Command::Events(options) => events::execute(global, &options),
        Command::Audit(options) => audit::execute(global, &options),
        Command::Alone(command) => alone::execute(global, &command),
        Command::Dev(command) => dev::execute(global, command),
        Command::Metrics(options) => metrics::execute(global, &options),
        Command::Doctor(options) => doctor::execute(global, &options),
        Command::Version(options) => version::execute(global, &options),
        Command::Completion(options) => completion::execute(&options),
        Command::Daemon(options) => daemon::execute(options),
        Command::Internal(command) => internal::execute(global, command),
        Command::Gate(gate) => Ok(internal::gate(gate)),
        Command::Proxy => Ok(internal::proxy()),
        Command::Shelf => Ok(internal::shelf()),
        Command::Etcd => Ok(internal::etcd()),
        Command::Keeper => Ok(internal::keeper()),
    }
}

/// The daemon that the global options name, or a cluster elsewhere.
pub fn daemon(global: &Global) -> Result<Client, Failure> {
    match global.context_name() {
        Some(name) => context::client(&name),
        None => local_daemon(global),
    }
}

/// The same, for who has no time: a cluster elsewhere is not asked how it is reached now.
pub fn daemon_as_known(global: &Global) -> Result<Client, Failure> {
    match global.context_name() {
        Some(name) => context::client_as_known(&name),
        None => local_daemon(global),
    }
}

/// The daemon of this machine that the global options name.
pub fn local_daemon(global: &Global) -> Result<Client, Failure> {
    Ok(Client::new(client::locate(&global.places(), &global.wanted())?))
}

/// What works on this machine alone does not do so silently when a cluster elsewhere was named.
fn refuse_elsewhere(global: &Global, command: &Command) -> Result<(), Failure> {
    let why = match command {
        Command::Alone(_) => "the server would be of this machine",
        Command::Dev(_) => "development clusters are of this machine",
        Command::Daemon(_) => "a daemon runs on this machine",
        Command::Cluster(command) if command.is_local() => "it is about this machine, as a node",
        Command::Node(command) if command.is_local() => "it is about this machine, or about files here",
        Command::Doctor(options) if options.is_local() => "it is about this machine",
        _ => return Ok(()),
    };
    match &global.context {
        Some(name) if name != client::contexts::LOCAL => {
            let what = format!("this cannot be done in context '{name}'");
            Err(Failure::usage(what).because_text(why).hint("the same without --context, on the machine that is meant"))
        }
        _ => Ok(()),
    }
}

/// Runs one asynchronous conversation. A single thread is enough: a command talks to one daemon.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| Failure::new("cannot start").because(&cause).hint("dvs doctor"))?;
    let result = runtime.block_on(future);
    // A thread that still reads standard input must not keep us here.
    runtime.shutdown_background();
    Ok(result)
}

/// Standard output, flushed at the end, so that a full disk is noticed.
pub fn print(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> Outcome {
    let mut printed = Vec::new();
    write(&mut printed)?;
    if !watch::takes(&printed) {
        let mut out = std::io::stdout().lock();
        out.write_all(&printed)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What was done, for programs; people were told by a message.
pub fn done(format: Format, item: &impl Row) -> Outcome {
    print(|out| output::one(out, format, item, |_, _| Ok(())))
}

/// A message for a person, beside the data.
pub fn say(text: &str) {
    // Standard error may be closed; then nobody wants to know.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Somebody wants us to end; `hint`: what there is to know then.
pub async fn interruption(hint: &str) -> Failure {
    let heeded = |kind| async move {
        match signal(kind) {
            Ok(mut arrivals) => _ = arrivals.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = heeded(SignalKind::interrupt()) => (),
        () = heeded(SignalKind::terminate()) => (),
        () = heeded(SignalKind::hangup()) => (),
    }
    Failure::new("interrupted").hint(hint)
}

/// What there was, by its name.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Gone {
    pub name: String,
    pub state: &'static str,
}

impl Gone {
    pub fn new(name: &str) -> Gone {
        Gone { name: name.to_owned(), state: "gone" }
    }
}

impl Row for Gone {
    const HEADINGS: &'static [&'static str] = &["NAME", "STATE"];

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), self.state.to_owned()]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
