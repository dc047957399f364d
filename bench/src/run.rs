//! The orchestrator: starts pairs, one measurement after the other, and collects what they report.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use broker::{Broker, BrokerConfig, DcOptions, Privileges};
use clap::ValueEnum;
use ipc::DcId;

use crate::death::{self, Load};
use crate::ending::{Registered, clean_up_by};
use crate::figures::{Account, Figures, Group, Others, Sample};
use crate::mechanism::{Family, Handed, Mechanism, Site, iceoryx};
use crate::nodes::{Lan, Nodes};
use crate::places::{Placement, Side, cpu_of, cpus};
use crate::role::{Report, Used};
use crate::{Common, IpcArguments, Outcome, Section};

/// Beyond what is measured, for a process to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// A measurement during which the host or others took more than this is made again,
const DISTURBED_PERCENT: f64 = 10.0;
/// so often; then it counts as it is, and its table says so.
const ATTEMPTS: u32 = 3;

/// What one measurement is of.
#[derive(Clone, Copy)]
struct Case {
    mechanism: Mechanism,
    group: Group,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Group { clients, pairs, placement, .. } = self.group;
        write!(f, "{}, clients {clients}, pairs {pairs}, {placement}", self.mechanism)
    }
}

/// What the processes of one machine do.
pub fn one_machine(arguments: &IpcArguments) -> Outcome<Figures> {
    let families = |family| match family {
        Family::Messages => arguments.section.contains(&Section::Messages),
        Family::Copies => arguments.section.contains(&Section::Copies),
        Family::Streams => false,
    };
    let cases = cases(&arguments.common, 1, &arguments.pairs, families);
    let is_death_wanted = arguments.section.contains(&Section::Death);
    let bench = Bench::start(arguments.common.seconds, World::one)?;
    let mut figures = bench.measure_all(&cases, arguments.common.rounds)?;
    if is_death_wanted {
        for load in [Load::Idle, Load::Busy] {
            figures.deaths.push(death::measure(&bench.site(Side::Client), &bench.cpus, load)?);
        }
    }
    Ok(figures)
}

/// What processes on two nodes do.
pub fn two_nodes(arguments: &Common) -> Outcome<Figures> {
    let cases = cases(arguments, 2, &[1], |family| family != Family::Copies);
    Bench::start(arguments.seconds, World::two)?.measure_all(&cases, arguments.rounds)
}

/// Streams between two nodes without a container: MB/s, measured anew each time.
pub struct Streams(Bench);

impl Streams {
    pub fn new(seconds: f64) -> Outcome<Streams> {
        Bench::start(seconds, World::two).map(Streams)
    }

    pub fn measure(&self, mechanism: Mechanism, round: u32) -> Outcome<f64> {
        let group = Group { nodes: 2, clients: 1, pairs: 1, placement: Placement::Free };
        let sample = self.0.measure_undisturbed(Case { mechanism, group }, round)?;
        Ok(sample.trips_per_second * sample.size as f64 / 1e6)
    }
}

/// Grouped by what is compared with each other: neighbours in time.
fn cases(arguments: &Common, nodes: u32, pairs: &[u32], is_wanted: impl Fn(Family) -> bool) -> Vec<Case> {
    let mut groups = Vec::new();
    for &clients in &arguments.clients {
        for &pairs in pairs {
            groups.extend(arguments.placement.iter().map(|&placement| Group { nodes, clients, pairs, placement }));
        }
    }
    let mechanisms = Mechanism::value_variants().iter().copied().filter(|mechanism| is_wanted(mechanism.family()));
    let is_named = |mechanism: &Mechanism| arguments.only.is_empty() || arguments.only.contains(mechanism);
    let mechanisms = Vec::from_iter(mechanisms.filter(is_named));
    let cases = groups.iter().flat_map(|&group| mechanisms.iter().map(move |&mechanism| Case { mechanism, group }));
    cases.filter(|case| case.makes_sense()).collect()
}

impl Case {
    fn makes_sense(self) -> bool {
        let Case { mechanism, group: Group { nodes, clients, pairs, placement } } = self;
        let is_free = placement == Placement::Free;
        let is_sensible = match (clients, pairs, mechanism.family()) {
            (1, 1, Family::Streams) => is_free,
            (1, 1, _) if nodes == 2 && placement == Placement::Two => false,
            (1, 1, _) => !(mechanism.needs_two_cpus() && placement == Placement::Same),
            (1, _, Family::Messages) => is_free && !mechanism.needs_two_cpus(),
            (_, 1, Family::Messages) => is_free && mechanism.serves_many(nodes),
            _ => false,
        };
        is_sensible && mechanism.belongs_to(nodes)
    }
}

fn progress(done: usize, total: usize, began: Instant, case: &Case) {
    if std::io::stderr().is_terminal() {
        let left = began.elapsed().as_secs_f64() / done.max(1) as f64 * (total - done) as f64;
        let left = if done == 0 { String::new() } else { format!(", {left:.0} s left") };
        eprint!("\r\x1b[K{done} of {total}{left}: {case}");
    }
}

fn progress_over() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// What the processes talk over.
enum World {
    /// One machine with its broker.
    One {
        _broker: Broker,
    },
    Two(Lan),
}

impl World {
    fn one(directory: &Path) -> Outcome<World> {
        let broker = Broker::start(BrokerConfig::local())?;
        let programs = Privileges::server();
        let listen = Some(Site { directory: directory.to_owned(), node: 1, host: None }.broker());
        broker.add_dc(DcId(1), DcOptions { listen, program_privileges: programs, ..DcOptions::default() })?;
        Ok(World::One { _broker: broker })
    }

    fn two(directory: &Path) -> Outcome<World> {
        Ok(World::Two(Lan::new(directory)?))
    }
}

/// What a run needs, and a place where the processes report.
struct Bench {
    // Before the directory, which it has files in.
    world: World,
    control: UnixListener,
    cpus: Vec<usize>,
    seconds: f64,
    directory: Directory,
}

/// Of this run alone; taken away at its end, and when a signal ends it.
struct Directory {
    files: tempfile::TempDir,
    _at_signal: Registered,
}

impl Directory {
    fn new() -> Outcome<Directory> {
        let files = tempfile::Builder::new().prefix("dvs-bench-").tempdir()?;
        let path = files.path().to_owned();
        let at_signal = clean_up_by(move || {
            // The processes end when they miss their orchestrator, and take their own away.
            iceoryx::clean(&path);
            let _ = std::fs::remove_dir_all(&path);
        })?;
        Ok(Directory { files, _at_signal: at_signal })
    }

    fn path(&self) -> &Path {
        self.files.path()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        iceoryx::clean(self.path());
    }
}

impl Bench {
    fn start(seconds: f64, world: fn(&Path) -> Outcome<World>) -> Outcome<Bench> {
        let directory = Directory::new()?;
        let world = world(directory.path())?;
        let control = UnixListener::bind(directory.path().join("control"))?;
        Ok(Bench { world, control, cpus: cpus()?, seconds, directory })
    }

    fn measure_all(&self, cases: &[Case], rounds: u32) -> Outcome<Figures> {
        let mut figures = Figures::new();
        let (total, began) = (rounds as usize * cases.len(), Instant::now());
        for round in 0..rounds {
            for (index, case) in cases.iter().enumerate() {
                progress(round as usize * cases.len() + index, total, began, case);
                figures.add(self.measure_undisturbed(*case, round).map_err(|error| format!("{case}: {error}"))?);
            }
        }
        progress_over();
        Ok(figures)
    }

    fn measure_undisturbed(&self, case: Case, round: u32) -> Outcome<Sample> {
        let mut sample = self.measure(case, round)?;
        for _ in 1..ATTEMPTS {
            if sample.steal_percent.max(sample.foreign_percent) <= DISTURBED_PERCENT {
                break;
            }
            sample = self.measure(case, round)?;
        }
        Ok(sample)
    }

    fn measure(&self, case: Case, round: u32) -> Outcome<Sample> {
        let nodes = self.link_for(case)?;
        let services = (0..case.group.pairs).map(|_| Service::start(self, case)).collect::<Outcome<Vec<_>>>()?;
        let (before, proxies_before) = (Account::now(), nodes.as_ref().map_or(0.0, Nodes::cpu_seconds));
        for client in services.iter().flat_map(|service| &service.clients) {
            writeln!(client.control.get_ref(), "go")?;
        }
        let (mut clients, mut servers) = (Vec::<Report>::new(), Vec::<Used>::new());
        for mut service in services {
            for client in &mut service.clients {
                clients.push(client.report()?);
            }
            servers.push(service.server.report()?);
        }
        let cpu_seconds = nodes.as_ref().map_or(0.0, Nodes::cpu_seconds) - proxies_before;
        let others = Others { cpu_seconds, machine: before.until_now() };
        Ok(Sample::of(case.mechanism, case.group, round, (&clients, &servers), others))
    }

    /// The brokers and proxies that a measurement between nodes needs.
    fn link_for(&self, case: Case) -> Outcome<Option<Nodes>> {
        match &self.world {
            World::Two(lan) if case.mechanism.needs_link() => {
                let cpu = cpu_of(case.group.placement, Side::Server, &self.cpus)?;
                Ok(Some(Nodes::start(lan, self.directory.path(), case.mechanism.encryption(), cpu)?))
            }
            _ => Ok(None),
        }
    }

    fn site(&self, side: Side) -> Site {
        let directory = self.directory.path();
        match &self.world {
            World::One { .. } => Site { directory: directory.to_owned(), node: 1, host: None },
            World::Two(lan) => lan.site(directory, node_of(side)),
        }
    }

    fn spawn(&self, side: Side, command: &mut Command) -> Outcome<Child> {
        match &self.world {
            World::One { .. } => Ok(command.spawn()?),
            World::Two(lan) => lan.spawn(node_of(side), None, command),
        }
    }
}

fn node_of(side: Side) -> usize {
    match side {
        Side::Client => 1,
        Side::Server => 2,
    }
}

/// A server and its clients.
struct Service {
    clients: Vec<Process>,
    server: Process,
    mechanism: Mechanism,
    address: String,
}

impl Service {
    fn start(bench: &Bench, case: Case) -> Outcome<Service> {
        let Case { mechanism, group } = case;
        let mut handed = if group.clients == 1 { mechanism.hand()? } else { Handed::default() };
        let (server, address) = Process::start(bench, case, Side::Server, "-", handed.server)?;
        let mut service = Service { clients: Vec::new(), server, mechanism, address };
        for _ in 0..mechanism.client_processes(group.clients) {
            let ends = std::mem::take(&mut handed.client);
            let (client, _) = Process::start(bench, case, Side::Client, &service.address, ends)?;
            service.clients.push(client);
        }
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.mechanism.clean(&self.address);
    }
}

/// Killed when dropped.
struct Process {
    child: Child,
    control: BufReader<UnixStream>,
}

impl Process {
    /// Returns when it is ready, with what it says of its address.
    fn start(
        bench: &Bench,
        case: Case,
        side: Side,
        address: &str,
        [input, output]: [Option<OwnedFd>; 2],
    ) -> Outcome<(Process, String)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("role").arg("--side").arg(name_of(side)).arg("--mechanism").arg(case.mechanism.to_string());
        let site = bench.site(side);
        command.arg("--control").arg(site.directory.join("control"));
        command.arg("--directory").arg(&site.directory).arg("--node").arg(site.node.to_string());
        if let Some(host) = site.host {
            command.arg("--host").arg(host.to_string());
        }
        command.arg("--clients").arg(case.group.clients.to_string());
        command.arg("--address").arg(address).arg("--seconds").arg(bench.seconds.to_string());
        if let Some(cpu) = cpu_of(case.group.placement, side, &bench.cpus)? {
            command.arg("--cpu").arg(cpu.to_string());
        }
        command.stdin(input.map_or_else(Stdio::null, Stdio::from));
        command.stdout(output.map_or_else(Stdio::null, Stdio::from));
        let mut child = bench.spawn(side, &mut command)?;
        let control = accept(&bench.control, &mut child)?;
        control.set_read_timeout(Some(PATIENCE + Duration::from_secs_f64(2.0 * bench.seconds)))?;
        let mut process = Process { child, control: BufReader::new(control) };
        let line = process.line()?;
        let address = line.strip_prefix("ready ").ok_or_else(|| format!("instead of being ready it said '{line}'"))?;
        Ok((process, address.to_owned()))
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.control.read_line(&mut line) {
            Ok(0) => Err(format!("the process ended ({})", self.child.wait()?).into()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(format!("the process does not answer: {error}").into()),
        }
    }

    fn report<T: serde::de::DeserializeOwned>(&mut self) -> Outcome<T> {
        let line = self.line()?;
        self.child.wait()?;
        Ok(serde_json::from_str(&line).map_err(|error| format!("a report that makes no sense ({error}): {line}"))?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The connection of a child; an error when it ends before it has one.
fn accept(listener: &UnixListener, child: &mut Child) -> Outcome<UnixStream> {
    listener.set_nonblocking(true)?;
    let limit = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = child.try_wait()? {
            return Err(format!("the process ended ({status})").into());
        }
        if Instant::now() > limit {
            let _ = child.kill();
            let _ = child.wait();
            return Err("the process does not start".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn name_of(side: Side) -> String {
    side.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
