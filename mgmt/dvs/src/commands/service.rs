//! `dvs service`: programs of a container that are kept running.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use mgmt_api::{
    Bytes, HealthSpec, MoveRequest, PlacePolicy, RestartPolicy, ServiceInfo, ServiceInstance, ServiceSpec,
    ServiceState, StopSpec,
};
use serde::Deserialize;

use super::variables::Variables;
use super::{Gone, Outcome, block_on, daemon, done, logs, names, now_ms, print, say};
use crate::cli::Global;
use crate::described;
use crate::errors::Failure;
use crate::output::{self, Row, duration};
use crate::units::{parse_path_in_tree, parse_seconds};

/// One that was added a moment ago is started in a moment.
const STARTS_WITHIN: Duration = Duration::from_secs(2);
/// Between looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const HELP: &str = "dvs service add --help";

/// Keep programs of a container running, on whichever of its nodes
#[derive(Subcommand, Debug)]
#[command(
    visible_alias = "services",
    after_help = "\
A service is a command with one or more instances. Each runs at most once, on a node that its description names or that is \
chosen; when it ends it is started again, and when its node is lost it is started on another one. Services can be \
described in dc.toml, too: see dvs dc create --help.

Examples:
  dvs service add shop web --instances 2 --health-http 8080/ -- python3 -m http.server 8080
  dvs service ls shop
  dvs service logs -f shop web/0
  dvs service move shop web/0 --to n3
  dvs service stop shop web && dvs service start shop web
  dvs service rm shop web"
)]
pub enum Command {
    Add(Box<AddOptions>),
    /// List services with their instances: state, node and why it is that one, restarts.
    #[command(visible_alias = "list")]
    Ls {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
    },
    /// Start a service that was stopped, and instances that ended for good.
    Start(Named),
    /// Stop a service on all nodes, and wait until nothing of it runs. It stays stopped until it is started.
    Stop(Named),
    /// End each instance and begin it again where it stands.
    Restart(Named),
    Logs(LogsOptions),
    Move(MoveOptions),
    /// Stop a service and forget it.
    #[command(visible_alias = "remove")]
    Rm(Named),
}

#[derive(Args, Debug)]
pub struct Named {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Service, from `dvs service ls`.
    #[arg(add = names::services())]
    service: String,
}

/// Describe a program that is to be kept running
#[derive(Args, Debug)]
#[command(after_help = "\
It is started at once if the container runs, else with it. Without --node, --place and --near its instances spread over \
the container's nodes. A program that ends is started again after 100 ms, and after twice as long each time, up to a \
minute; a minute of running forgets that. Until a health check was well once it has --health-start seconds.

Examples:
  dvs service add shop web -- python3 -m http.server 8080
  dvs service add shop db --node n2 --user 999 --workdir /dc/db --signal INT --grace 60 -- postgres -D .
  dvs service add shop app --after db --health-tcp 9000 --instances 3 -- app --port 9000
  dvs service add shop job --restart on-failure -- /dc/bin/import
  dvs service add shop -f services.toml

services.toml:
  [[services]]
  name = \"web\"
  command = [\"/usr/bin/python3\", \"-m\", \"http.server\", \"8080\"]
  instances = 2
  place = \"spread\"                     # or pack, least-loaded; or node = \"n1\"; or near = \"db\"
  after = [\"db\"]
  restart = \"always\"                   # or on-failure, never
  health = { http = \"8080/\" }          # or tcp = 8080, or command = [\"/dc/bin/check\"]
  stop = { signal = \"INT\", grace_ms = 5000 }")]
pub struct AddOptions {
    /// Programs in a TOML file with [[services]]; - is standard input.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["name", "command"])]
    file: Option<PathBuf>,
    /// How many of it run at a time.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    instances: u32,
    /// Node on which all of them stand.
    #[arg(long, value_name = "NODE", conflicts_with_all = ["place", "near"], add = names::nodes())]
    node: Option<String>,
    /// How nodes are chosen: spread, pack or least-loaded [default: spread].
    #[arg(long, value_name = "HOW", value_parser = parse_place, conflicts_with = "near")]
    place: Option<PlacePolicy>,
    /// Service on whose nodes it stands.
    #[arg(long, value_name = "SERVICE")]
    near: Option<String>,
    /// Services that are up before it is started.
    #[arg(long, value_name = "SERVICE,…", value_delimiter = ',')]
    after: Vec<String>,
    /// When it is started again after it ended: always, on-failure or never.
    #[arg(long, value_name = "WHEN", value_parser = parse_restart, default_value = "always")]
    restart: RestartPolicy,
    /// User and group inside, by number or by a name of its /etc/passwd [default: root].
    #[arg(short, long, value_name = "USER[:GROUP]")]
    user: Option<String>,
    /// Directory of the tree that is its root directory, such as an unpacked Debian.
    #[arg(long, value_name = "DIR", value_parser = parse_path_in_tree())]
    root: Option<String>,
    #[command(flatten)]
    variables: Variables,
    /// Directory in which it is started [default: /].
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// Well when somebody listens on this port of its node.
    #[arg(long, value_name = "PORT", group = "health")]
    health_tcp: Option<u16>,
    /// Well when this answers with 200 to 399.
    #[arg(long, value_name = "PORT/PATH", group = "health")]
    health_http: Option<String>,
    /// Well when this command of the shell ends with status 0.
    #[arg(long, alias = "health-cmd", value_name = "COMMAND", group = "health")]
    health_command: Option<String>,
    /// Seconds between checks.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "5", requires = "health")]
    health_interval: u64,
    /// Seconds after which a check has failed.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "2", requires = "health")]
    health_timeout: u64,
    /// So many failures in a row, and it is unhealthy.
    #[arg(long, value_name = "COUNT", default_value_t = 3, requires = "health")]
    health_retries: u32,
    /// Seconds until failed checks count, unless it was well before.
    #[arg(long, alias = "health-start-period", value_name = "SECONDS", value_parser = parse_seconds, default_value = "10", requires = "health")]
    health_start: u64,
    /// Signal that asks it to end.
    #[arg(long, alias = "stop-signal", value_name = "SIGNAL", default_value = "TERM")]
    signal: String,
    /// Seconds between that and KILL.
    #[arg(long, alias = "stop-timeout", value_name = "SECONDS", value_parser = parse_seconds, default_value = "10")]
    grace: u64,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Name: a-z, 0-9 and -, beginning with a letter, at most 32.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// Program and arguments.
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "file")]
    command: Vec<String>,
}

/// Show what an instance wrote, since its last start
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs service logs shop web          of its only instance, or of web/0
  dvs service logs -f --tail 20 shop web/1")]
pub struct LogsOptions {
    #[command(flatten)]
    look: logs::Look,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Service, or one of its instances: web, web/1.
    #[arg(value_name = "SERVICE[/INSTANCE]", add = names::instances())]
    service: String,
}

/// Let instances stand on another node
#[derive(Args, Debug)]
#[command(after_help = "\
An instance ends where it stands, and begins elsewhere when it has ended there. Nothing of what it knows goes along but \
what lies in the container's files.

Examples:
  dvs service move shop web/0 --to n3
  dvs service move shop web              each of its instances away from where it is")]
pub struct MoveOptions {
    /// Node [default: another one, by its policy].
    #[arg(long, value_name = "NODE", add = names::nodes())]
    to: Option<String>,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Service, or one of its instances: web, web/1.
    #[arg(value_name = "SERVICE[/INSTANCE]", add = names::instances())]
    service: String,
}

fn parse_place(text: &str) -> Result<PlacePolicy, String> {
    match text {
        "spread" => Ok(PlacePolicy::Spread),
        "pack" => Ok(PlacePolicy::Pack),
        "least-loaded" => Ok(PlacePolicy::LeastLoaded),
        _ => Err("spread, pack or least-loaded".to_owned()),
    }
}

fn parse_restart(text: &str) -> Result<RestartPolicy, String> {
    match text {
        // What was stopped stays stopped, whatever else happens.
        "always" | "unless-stopped" => Ok(RestartPolicy::Always),
        "on-failure" => Ok(RestartPolicy::OnFailure),
        "never" | "no" => Ok(RestartPolicy::Never),
        _ if text.starts_with("on-failure:") => {
            Err("'on-failure' tries as often as it fails, at longer and longer intervals".to_owned())
        }
        _ => Err("always, on-failure or never".to_owned()),
    }
}

/// `web`, or `web/1`.
fn parse_instance(text: &str) -> Result<(&str, Option<u32>), Failure> {
    let Some((service, index)) = text.split_once('/') else { return Ok((text, None)) };
    match index.parse() {
        Ok(index) => Ok((service, Some(index))),
        Err(_) => {
            Err(Failure::usage(format!("'{text}' is no instance of a service"))
                .hint("NAME or NAME/NUMBER, as in web/0"))
        }
    }
}

pub fn execute(global: &Global, command: Command) -> Outcome {
    match command {
        Command::Add(options) => add(global, *options),
        Command::Ls { dc } => {
            let services = block_on(daemon(global)?.services(&dc))??;
            match global.output {
                output::Format::Table | output::Format::Wide | output::Format::Name | output::Format::Template(_) => {
                    let rows: Vec<ServiceInstance> = services.into_iter().flat_map(|it| it.instances).collect();
                    print(|out| output::list(out, global.output, &rows))
                }
                format => print(|out| output::list(out, format, &services)),
            }
        }
        Command::Start(Named { dc, service }) => {
            let now = block_on(daemon(global)?.start_service(&dc, &service))??;
            say(&format!("service '{service}' is to run: dvs service ls {dc}"));
            done(global.output, &now)
        }
        Command::Stop(Named { dc, service }) => {
            let now = block_on(daemon(global)?.stop_service(&dc, &service))??;
            say(&format!("service '{service}' is stopped"));
            done(global.output, &now)
        }
        Command::Restart(Named { dc, service }) => {
            let now = block_on(daemon(global)?.restart_service(&dc, &service))??;
            say(&format!("service '{service}' begins anew: dvs service ls {dc}"));
            done(global.output, &now)
        }
        Command::Rm(Named { dc, service }) => {
            block_on(daemon(global)?.remove_service(&dc, &service, client::AfterRemoval::Gone))??;
            say(&format!("service '{service}' is gone"));
            done(global.output, &Gone::new(&service))
        }
        Command::Move(MoveOptions { to, dc, service }) => {
            let (name, instance) = parse_instance(&service)?;
            let request = MoveRequest { instance, node: to };
            let now = block_on(daemon(global)?.move_service(&dc, name, &request))??;
            say(&format!("'{service}' moves: dvs service ls {dc}"));
            done(global.output, &now)
        }
        Command::Logs(LogsOptions { look, dc, service }) => show_log(global, &dc, &service, &look),
    }
}

fn add(global: &Global, options: AddOptions) -> Outcome {
    let daemon = daemon(global)?;
    let dc = options.dc.clone();
    let specs = match &options.file {
        Some(path) => described::read::<File>(path, HELP)?.services,
        None => vec![describe(options)],
    };
    let mut last = None;
    for spec in &specs {
        let added = block_on(daemon.add_service(&dc, spec))??;
        say(&format!("service '{}' is to run: dvs service ls {dc}", spec.name));
        last = Some(added);
    }
    match last {
        Some(service) => done(global.output, &service),
        None => Err(Failure::new("the file describes no service").hint(HELP)),
    }
}

fn describe(options: AddOptions) -> ServiceSpec {
    let AddOptions { health_tcp, health_http, health_command, health_interval, health_start, .. } = options;
    let (health_timeout, retries) = (options.health_timeout, options.health_retries);
    let asked = health_tcp.is_some() || health_http.is_some() || health_command.is_some();
    let by_shell = |command: String| ["/bin/sh".to_owned(), "-c".to_owned(), command].map(Bytes::from).to_vec();
    let health = asked.then(|| HealthSpec {
        command: health_command.map(by_shell),
        tcp: health_tcp,
        http: health_http,
        interval_ms: health_interval.saturating_mul(1000),
        timeout_ms: health_timeout.saturating_mul(1000),
        retries,
        start_ms: health_start.saturating_mul(1000),
    });
    ServiceSpec {
        name: options.name.unwrap_or_default(),
        command: options.command.into_iter().map(Bytes::from).collect(),
        env: options.variables.of_request(),
        workdir: options.workdir.map(Bytes::from),
        user: options.user,
        root: options.root,
        node: options.node,
        place: options.place,
        near: options.near,
        instances: options.instances,
        after: options.after,
        restart: options.restart,
        health,
        stop: StopSpec { signal: options.signal, grace_ms: options.grace.saturating_mul(1000) },
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    services: Vec<ServiceSpec>,
}

/// What an instance of a service wrote.
pub fn show_log(global: &Global, dc: &str, service: &str, look: &logs::Look) -> Outcome {
    let (name, instance) = parse_instance(service)?;
    let index = instance.unwrap_or(0) as usize;
    let missing = |what: String| Failure::new(what).hint(format!("dvs service ls {dc}"));
    let (daemon, until) = (daemon(global)?, Instant::now() + STARTS_WITHIN);
    let pid = block_on(async {
        loop {
            let service = daemon.service(dc, name).await?;
            let none = || missing(format!("service '{name}' has no instance {index}"));
            let of = service.instances.get(index).ok_or_else(none)?;
            let rests = matches!(of.state, ServiceState::Stopped | ServiceState::Failed);
            match of.pid {
                Some(pid) => return Ok::<_, Failure>(pid),
                None if !rests && Instant::now() < until => tokio::time::sleep(LOOK_AGAIN).await,
                None => return Err(missing(format!("'{}' was not started yet where it stands", of.name))),
            }
        }
    })??;
    logs::show(global, dc, pid, look)
}

impl Row for ServiceInstance {
    const HEADINGS: &'static [&'static str] = &["INSTANCE", "STATE", "NODE", "PID", "RESTARTS", "SINCE", "WHY"];

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let exit = self.exit.map(|exit| format!(" ({exit})")).unwrap_or_default();
        let ended = matches!(self.state, ServiceState::Stopped | ServiceState::Failed | ServiceState::BackingOff);
        let since = self.since_s.map(|since| duration((now_ms() / 1000).saturating_sub(since)));
        let said = [Some(self.why.clone()).filter(|why| !why.is_empty()), self.problem.clone()];
        let said: Vec<String> = said.into_iter().flatten().collect();
        vec![
            self.name.clone(),
            format!("{}{}", in_words(self.state), if ended { exit } else { String::new() }),
            or_dash(self.node.clone()),
            or_dash(self.pid.map(|pid| pid.to_string())),
            self.restarts.to_string(),
            or_dash(since),
            if said.is_empty() { "-".to_owned() } else { said.join("; ") },
        ]
    }

    const MORE_HEADINGS: &'static [&'static str] = &["EPOCH", "LAST STATUS"];

    fn more_cells(&self) -> Vec<String> {
        vec![self.epoch.to_string(), self.exit.map_or("-".to_owned(), |exit| exit.to_string())]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// As in JSON.
fn in_words(state: ServiceState) -> String {
    serde_json::to_value(state).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// What was done, for programs.
/// How people see one.
pub fn view(service: &ServiceInfo, out: &mut impl std::io::Write) -> std::io::Result<()> {
    let command: Vec<String> = service.spec.command.iter().map(Bytes::lossy).collect();
    let mut facts = output::Table::new(&["SERVICE", &service.spec.name]);
    facts.push(vec!["command".to_owned(), command.join(" ")]);
    facts.push(vec!["wanted".to_owned(), if service.is_wanted { "yes" } else { "no" }.to_owned()]);
    facts.print(out)?;
    writeln!(out)?;
    let mut instances = output::Table::new(ServiceInstance::HEADINGS);
    service.instances.iter().for_each(|instance| instances.push(instance.cells()));
    instances.print(out)
}

impl Row for ServiceInfo {
    const HEADINGS: &'static [&'static str] = &["SERVICE", "INSTANCES"];

    fn cells(&self) -> Vec<String> {
        vec![self.spec.name.clone(), self.instances.len().to_string()]
    }

    fn name(&self) -> String {
        self.spec.name.clone()
    }
}
