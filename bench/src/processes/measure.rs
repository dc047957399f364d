//! Each section's measurements: what is compared is measured in turn, within a round.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Arguments, Section};
use crate::Outcome;
use crate::containers::program::Basics;
use crate::containers::results::{Manner, Results, Subject};
use crate::containers::testbed::{DC, NODES, Testbed, eventually, native};
use crate::containers::{median, read};
use crate::mechanism::Mechanism;
use crate::run::Streams;

/// The same container with the kernel's own `/proc`.
const PLAIN: &str = "plain";
/// How long is looked at what does nothing.
const IDLE: Duration = Duration::from_secs(20);
/// Before that, for what a start leaves behind.
const SETTLE: Duration = Duration::from_secs(5);
const SLEEPERS: &str = "500";
const SLEEPERS_OF_ANOTHER: &str = "250";
/// `ps` in a round.
const LISTINGS: &str = "7";
/// Signals in a round.
const SIGNALS: &str = "200";
/// Jobs in a round.
const JOBS: &str = "40";
/// Bytes in a round.
const POURED: &str = "500000000";
const SSH_PORT: &str = "2222";
const SSHD: &str = "/usr/sbin/sshd";
const SERVICE: &str = "one";
const SERVICE_PORT: &str = "8080";
/// What others confirm has to be so for a while, before a node is lost.
const STANDS: Duration = Duration::from_secs(3);

struct Run<'a> {
    arguments: &'a Arguments,
    dvs: &'a Path,
    results: Results,
}

pub fn all(arguments: &Arguments, dvs: &Path) -> Outcome<Results> {
    let mut run = Run { arguments, dvs, results: Results::new() };
    let wants = |sections: &[Section]| arguments.section.iter().any(|one| sections.contains(one));
    if wants(&[Section::Idle, Section::Basics, Section::Table, Section::Signals, Section::Jobs]) {
        run.on_one_testbed()?;
    }
    if wants(&[Section::Bytes]) {
        run.bytes(Subject::BytesPlain, Manner::Tcp, Mechanism::TcpBulk, "false")?;
        run.bytes(Subject::BytesTls, Manner::Rustls, Mechanism::RustlsBulk, "true")?;
    }
    if wants(&[Section::Services]) {
        run.services()?;
    }
    Ok(run.results)
}

impl Run<'_> {
    fn is_wanted(&self, section: Section) -> bool {
        self.arguments.section.contains(&section)
    }

    fn on_one_testbed(&mut self) -> Outcome<()> {
        let testbed = Testbed::up(self.dvs, &[])?;
        if self.is_wanted(Section::Idle) {
            self.results.add(Subject::Idle, Manner::ClusterAlone, 0, idle_percent(&testbed)?);
        }
        testbed.container(DC, &[])?;
        if self.is_wanted(Section::Idle) {
            let alone = self.results.value(Subject::Idle, Manner::ClusterAlone);
            self.results.add(Subject::Idle, Manner::Container, 0, (idle_percent(&testbed)? - alone).max(0.0));
        }
        if self.is_wanted(Section::Basics) {
            self.basics(&testbed)?;
        }
        if self.is_wanted(Section::Signals) {
            self.signals(&testbed)?;
        }
        if self.is_wanted(Section::Jobs) {
            self.jobs(&testbed)?;
        }
        if self.is_wanted(Section::Table) {
            self.table(&testbed)?;
        }
        Ok(())
    }

    fn basics(&mut self, testbed: &Testbed) -> Outcome<()> {
        let seconds = self.arguments.seconds.to_string();
        let program = ["basics", "--seconds", &seconds];
        for round in 0..self.arguments.common.rounds {
            let native: Basics = read(&native(&program)?)?;
            let inside: Basics = read(&testbed.program(DC, NODES[0], &program)?)?;
            self.results.add(Subject::Kill, Manner::NativeUnderAFilter, round, native.kill_under_a_filter);
            for (manner, basics) in [(Manner::Native, native), (Manner::Container, inside)] {
                let Basics { fork, exec, pipe, open, kill, .. } = basics;
                let rates = [fork, exec, pipe, open, kill];
                let subjects = [Subject::Fork, Subject::Exec, Subject::Pipe, Subject::Open, Subject::Kill];
                for (subject, rate) in subjects.into_iter().zip(rates) {
                    self.results.add(subject, manner, round, rate);
                }
            }
        }
        Ok(())
    }

    /// From the call of one node until a program of another one has read the signal, and M3-IPC between the two.
    fn signals(&mut self, testbed: &Testbed) -> Outcome<()> {
        let seconds = self.arguments.seconds.to_string();
        for round in 0..self.arguments.common.rounds {
            let trip = testbed.far_trip(DC, &seconds)?;
            let mut hears = testbed.begin(DC, NODES[1], &["hear", SIGNALS])?;
            let told: Vec<u64> = read(&testbed.program(DC, NODES[0], &["tell", hears.first(), SIGNALS])?)?;
            let heard: Vec<u64> = read(&hears.line()?)?;
            if told.len() != heard.len() {
                return Err(format!("{} signals were sent, {} heard", told.len(), heard.len()).into());
            }
            let took = told.iter().zip(&heard).map(|(told, heard)| heard.saturating_sub(*told) as f64 / 1e3);
            self.results.add(Subject::FarSendrec, Manner::Container, round, trip);
            self.results.add(Subject::FarKill, Manner::Container, round, median(took.collect())?);
            self.results.add(Subject::FarKill, Manner::Allowed, round, 2.0 * trip + 100.0);
        }
        Ok(())
    }

    fn jobs(&mut self, testbed: &Testbed) -> Outcome<()> {
        let ssh = Ssh::start(testbed)?;
        let true_by = |how: &[&str]| -> Outcome<f64> {
            let program = [&["times", JOBS, "--"], how, &["/bin/true"]].concat();
            median(read(&testbed.program(DC, NODES[0], &program)?)?)
        };
        for round in 0..self.arguments.common.rounds {
            self.results.add(Subject::Job, Manner::Here, round, true_by(&[])?);
            self.results.add(Subject::Job, Manner::Container, round, true_by(&["on", NODES[1], "--"])?);
            if let Some(ssh) = &ssh {
                self.results.add(Subject::Job, Manner::Ssh, round, true_by(&ssh.prefix())?);
            }
        }
        Ok(())
    }

    fn table(&mut self, testbed: &Testbed) -> Outcome<()> {
        testbed.container(PLAIN, &["--proc", "node"])?;
        let list = |dc: &str| -> Outcome<f64> {
            median(read(&testbed.program(dc, NODES[0], &["times", LISTINGS, "--", "/usr/bin/ps", "-ef"])?)?)
        };
        let asleep = [DC, PLAIN].map(|dc| testbed.begin(dc, NODES[0], &["sleepers", SLEEPERS]));
        let _asleep = asleep.into_iter().collect::<Outcome<Vec<_>>>()?;
        for round in 0..self.arguments.common.rounds {
            self.results.add(Subject::PsOwn, Manner::Native, round, list(PLAIN)?);
            self.results.add(Subject::PsOwn, Manner::Container, round, list(DC)?);
        }
        let elsewhere = [1, 2].map(|at| testbed.begin(DC, NODES[at], &["sleepers", SLEEPERS_OF_ANOTHER]));
        let _elsewhere = elsewhere.into_iter().collect::<Outcome<Vec<_>>>()?;
        for round in 0..self.arguments.common.rounds {
            self.results.add(Subject::PsAll, Manner::Container, round, list(DC)?);
        }
        Ok(())
    }

    fn bytes(&mut self, subject: Subject, peer: Manner, mechanism: Mechanism, tls: &str) -> Outcome<()> {
        let testbed = Testbed::up(self.dvs, &["--link-tls", tls])?;
        testbed.container(DC, &[])?;
        let streams = Streams::new(self.arguments.seconds)?;
        let far = ["pour", POURED, "--", "on", NODES[1], "--", "/dc/dvs-bench", "program", "swallow"];
        for round in 0..self.arguments.common.rounds {
            self.results.add(subject, peer, round, streams.measure(mechanism, round)?);
            self.results.add(subject, Manner::Container, round, read(&testbed.program(DC, NODES[0], &far)?)?);
        }
        Ok(())
    }

    /// On etcd, as a cluster of several machines has it. The first node has the tree, and stays.
    fn services(&mut self) -> Outcome<()> {
        let testbed = Testbed::up(self.dvs, &["--engine", "etcd"])?;
        testbed.container(DC, &["--fs-node", NODES[0], "--disk-node", NODES[0]])?;
        let health = format!("{SERVICE_PORT}/");
        let command = ["/dc/dvs-bench", "program", "serve", "--port", SERVICE_PORT, "--after-ms", "100"];
        testbed.say(&[&["service", "add", "--health-http", &health, DC, SERVICE, "--"], &command[..]].concat())?;
        for round in 0..self.arguments.losses {
            self.results.add(Subject::LostNode, Manner::Container, round, lose_node(&testbed, round)?);
        }
        Ok(())
    }
}

/// From the moment in which a node's cable is pulled until its service is healthy on another one, in milliseconds.
fn lose_node(testbed: &Testbed, round: u32) -> Outcome<f64> {
    let healthy = |look: &Testbed| {
        let services = look.json(&["service", "ls", DC]).ok()?;
        let instance = &services[0]["instances"][0];
        (instance["state"] == "healthy").then(|| instance["node"].as_str().unwrap_or_default().to_owned())
    };
    let node = if round % 2 == 0 { NODES[1] } else { NODES[2] };
    eventually("the container runs on all nodes", || {
        (testbed.json(&["dc", "inspect", DC]).ok()?["phase"] == "running").then_some(())
    })?;
    if healthy(testbed).as_deref() != Some(node) {
        let instance = format!("{SERVICE}/0");
        eventually("the service moves", || {
            testbed.say(&["service", "move", DC, &instance, "--to", node]).ok().map(drop)
        })?;
    }
    eventually("the service stands on the node", || healthy(testbed).filter(|at| at == node))?;
    std::thread::sleep(STANDS);
    let begun = Instant::now();
    testbed.say(&["dev", "wire", node, "down"])?;
    eventually("it is healthy elsewhere", || healthy(testbed).filter(|at| at != node))?;
    let took = begun.elapsed().as_secs_f64() * 1e3;
    testbed.say(&["dev", "wire", node, "up"])?;
    eventually("the node is back", || {
        let nodes: Value = testbed.json(&["node", "ls"]).ok()?;
        nodes.as_array()?.iter().all(|one| one["state"] == "ready").then_some(())
    })?;
    Ok(took)
}

/// Of a CPU, by everything in the nodes' machines.
fn idle_percent(testbed: &Testbed) -> Outcome<f64> {
    let machines = testbed.machines()?;
    std::thread::sleep(SETTLE);
    let (begun, before) = (Instant::now(), cpu_seconds_below(&machines));
    std::thread::sleep(IDLE);
    Ok((cpu_seconds_below(&machines) - before) / begun.elapsed().as_secs_f64() * 100.0)
}

/// Of processes and of all that descend from them. The kernel counts what a child used as its parent's, once it is
/// waited for.
fn cpu_seconds_below(roots: &[u32]) -> f64 {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let processes: Vec<Stat> = numbers.filter_map(Stat::of).collect();
    let mut below: Vec<u32> = roots.to_vec();
    let mut at = 0;
    while let Some(parent) = below.get(at).copied() {
        below.extend(processes.iter().filter(|one| one.parent == parent).map(|one| one.pid));
        at += 1;
    }
    let ticks: u64 = processes.iter().filter(|one| below.contains(&one.pid)).map(|one| one.ticks).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

struct Stat {
    pid: u32,
    parent: u32,
    /// Its own, and of its children that ended.
    ticks: u64,
}

impl Stat {
    /// proc_pid_stat(5): behind the name, field 3 comes first.
    fn of(pid: u32) -> Option<Stat> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = (14..=17).map(field).sum::<Option<u64>>()?;
        Some(Stat { pid, parent: u32::try_from(field(4)?).ok()?, ticks })
    }
}

/// A server in the container, and a connection to it from another node that is kept.
struct Ssh<'a> {
    testbed: &'a Testbed,
    pid: String,
}

const CONTROL: &str = "ControlPath=/tmp/dvs-bench-ssh";
const TO: &str = "root@n2";

impl Ssh<'_> {
    /// `None`: this machine has no server.
    fn start(testbed: &Testbed) -> Outcome<Option<Ssh<'_>>> {
        if !Path::new(SSHD).exists() {
            eprintln!("dvs-bench: no {SSHD}, so jobs are not compared with ssh (scripts/setup.sh bench installs it)");
            return Ok(None);
        }
        for key in ["host", "user"] {
            let file = testbed.path().join(key);
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&file).status()?;
            if !made.success() {
                return Err(format!("ssh-keygen: {made}").into());
            }
            for name in [key.to_owned(), format!("{key}.pub")] {
                let from = testbed.path().join(&name).to_string_lossy().into_owned();
                testbed.say(&["cp", &from, &format!("{DC}:/dc/{name}")])?;
            }
        }
        let prepare = "chown 0:0 /dc/host* /dc/user*; chmod 600 /dc/host /dc/user; mkdir -p /run/sshd";
        for node in [NODES[0], NODES[1]] {
            testbed.say(&["run", DC, "--node", node, "--", "sh", "-c", prepare])?;
        }
        let options = ["UsePAM=yes", "StrictModes=no", "AuthorizedKeysFile=/dc/user.pub", "PermitRootLogin=yes"];
        let options = options.iter().flat_map(|option| ["-o", option]);
        let server = ["run", "-d", DC, "--node", NODES[1], "--", SSHD, "-D", "-e", "-p", SSH_PORT, "-h", "/dc/host"];
        let pid = testbed.say(&server.into_iter().chain(options).collect::<Vec<_>>())?.trim().to_owned();
        let ssh = Ssh { testbed, pid };
        let master = ["ControlMaster=yes", "ControlPersist=yes", CONTROL, "StrictHostKeyChecking=no"];
        let master = master.into_iter().chain(["UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]);
        let master = master.flat_map(|option| ["-o", option]);
        let connect = ["run", DC, "--node", NODES[0], "--", "ssh", "-f", "-N", "-i", "/dc/user", "-p", SSH_PORT];
        let connect: Vec<&str> = connect.into_iter().chain(master).chain([TO]).collect();
        let mut why = String::new();
        let connected =
            eventually("ssh connects", || testbed.say(&connect).map_err(|error| why = error.to_string()).ok());
        connected.map_err(|error| format!("{error}: {why}"))?;
        Ok(Some(ssh))
    }

    fn prefix(&self) -> [&'static str; 4] {
        ["ssh", "-o", CONTROL, TO]
    }
}

impl Drop for Ssh<'_> {
    fn drop(&mut self) {
        let leave = ["run", DC, "--node", NODES[0], "--", "ssh", "-o", CONTROL, "-O", "exit", TO];
        let _ = self.testbed.say(&leave);
        let _ = self.testbed.say(&["kill", DC, &self.pid]);
    }
}
