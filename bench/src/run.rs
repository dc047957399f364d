//! The orchestrator: starts pairs, one measurement after the other, and collects what they report.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use broker::{Broker, BrokerConfig, DcOptions, Privileges};
use clap::ValueEnum;
use ipc::DcId;

use crate::figures::{Figures, Group, Sample, Steal};
use crate::mechanism::{ALL, Handed, Mechanism};
use crate::places::{Placement, Side, cpu_of, cpus};
use crate::role::{Report, Used};
use crate::{IpcArguments, Outcome};

/// Beyond what is measured, for a process to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What one measurement is of.
#[derive(Clone, Copy)]
struct Case {
    mechanism: Mechanism,
    group: Group,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Group { clients, pairs, placement } = self.group;
        write!(f, "{}, clients {clients}, pairs {pairs}, {placement}", self.mechanism)
    }
}

pub fn all(arguments: &IpcArguments) -> Outcome<Figures> {
    let bench = Bench::start(arguments.seconds)?;
    let cases = cases(arguments);
    if cases.is_empty() {
        return Err("nothing to measure: spinning mechanisms need two CPUs, several pairs the placement 'free'".into());
    }
    let mut figures = Figures::new(bench.cpus.len());
    let (total, began) = (arguments.rounds as usize * cases.len(), Instant::now());
    for round in 0..arguments.rounds {
        for (index, case) in cases.iter().enumerate() {
            let done = round as usize * cases.len() + index;
            progress(done, total, began, case);
            figures.add(bench.measure(*case, round).map_err(|error| format!("{case}: {error}"))?);
        }
    }
    progress_over();
    Ok(figures)
}

/// Grouped by what is compared with each other: neighbours in time.
fn cases(arguments: &IpcArguments) -> Vec<Case> {
    let mut groups = Vec::new();
    for &clients in &arguments.clients {
        for &pairs in &arguments.pairs {
            groups.extend(arguments.placement.iter().map(|&placement| Group { clients, pairs, placement }));
        }
    }
    let is_wanted = |mechanism| arguments.only.is_empty() || arguments.only.contains(&mechanism);
    let cases = groups.into_iter().flat_map(|group| ALL.map(|mechanism| Case { mechanism, group }));
    cases.filter(|case| is_wanted(case.mechanism) && case.makes_sense()).collect()
}

impl Case {
    fn makes_sense(self) -> bool {
        let Case { mechanism, group: Group { clients, pairs, placement } } = self;
        let is_free = placement == Placement::Free;
        match (clients, pairs) {
            (1, 1) => !(mechanism.needs_two_cpus() && placement == Placement::Same),
            (1, _) => is_free && !mechanism.needs_two_cpus(),
            (_, 1) => is_free && mechanism.serves_many(),
            _ => false,
        }
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

/// A broker of its own, and a place where the processes report.
struct Bench {
    directory: tempfile::TempDir,
    control: UnixListener,
    cpus: Vec<usize>,
    seconds: f64,
    _broker: Broker,
}

impl Bench {
    fn start(seconds: f64) -> Outcome<Bench> {
        let directory = tempfile::Builder::new().prefix("dvs-bench-").tempdir()?;
        let broker = Broker::start(BrokerConfig::local())?;
        let programs = Privileges::server();
        let listen = Some(directory.path().join("m3ipc"));
        broker.add_dc(DcId(1), DcOptions { listen, program_privileges: programs, ..DcOptions::default() })?;
        let control = UnixListener::bind(directory.path().join("control"))?;
        Ok(Bench { directory, control, cpus: cpus()?, seconds, _broker: broker })
    }

    fn measure(&self, case: Case, round: u32) -> Outcome<Sample> {
        let services = (0..case.group.pairs).map(|_| Service::start(self, case)).collect::<Outcome<Vec<_>>>()?;
        let before = Steal::now();
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
        Ok(Sample::of(case.mechanism, case.group, round, (&clients, &servers), before.until_now()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
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
        for _ in 0..group.clients {
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
        command.arg("--control").arg(bench.path("control")).arg("--broker").arg(bench.path("m3ipc"));
        command.arg("--clients").arg(case.group.clients.to_string());
        command.arg("--address").arg(address).arg("--seconds").arg(bench.seconds.to_string());
        if let Some(cpu) = cpu_of(case.group.placement, side, &bench.cpus)? {
            command.arg("--cpu").arg(cpu.to_string());
        }
        command.stdin(input.map_or_else(Stdio::null, Stdio::from));
        command.stdout(output.map_or_else(Stdio::null, Stdio::from));
        let mut child = command.spawn()?;
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
