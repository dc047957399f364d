//! How long after a peer was killed its caller has the typed error.
//!
//! One process, the mourner, calls a victim that takes the request and never answers, kills it from another thread, and
//! looks at the clock before the kill and when the call returned. Under load, one process per CPU computes without
//! pause.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ipc::{Endpoint, IpcError, Message, Port, Wait};
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::figures::Account;
use crate::mechanism::Site;
use crate::places::keep_to;
use crate::role::{Latencies, new_latencies};

/// A caller that was told of nothing for so long was not told at all.
const PATIENCE: Duration = Duration::from_secs(10);
/// The caller sleeps by then.
const BEFORE_KILL: Duration = Duration::from_millis(3);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    Idle,
    /// As many computing processes as there are CPUs.
    Busy,
}

impl Load {
    fn kills(self) -> u32 {
        match self {
            Load::Idle => 300,
            Load::Busy => 150,
        }
    }
}

/// From the kill to the error.
#[derive(Clone, Debug, Serialize)]
pub struct Deaths {
    pub load: Load,
    pub kills: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub most_ms: f64,
    pub steal_percent: f64,
}

/// What the mourner reports.
#[derive(Serialize, Deserialize)]
struct Told {
    after_ns: Vec<u64>,
}

pub fn measure(site: &Site, cpus: &[usize], load: Load) -> Outcome<Deaths> {
    let busy = if load == Load::Busy { cpus } else { &[] };
    let _busy =
        busy.iter().map(|cpu| Held::start("busy", &["--cpu", &cpu.to_string()])).collect::<Outcome<Vec<_>>>()?;
    let directory = site.directory.to_str().ok_or("a path that is no text")?;
    let before = Account::now();
    let kills = load.kills().to_string();
    let mut mourner = Held::start("mourn", &["--directory", directory, "--node", "1", "--kills", &kills])?;
    let told: Told = serde_json::from_str(&mourner.line()?)?;
    let mut latencies = new_latencies()?;
    told.after_ns.iter().for_each(|after| latencies.saturating_record(*after));
    Ok(deaths(load, &latencies, before.until_now().steal_percent))
}

fn deaths(load: Load, latencies: &Latencies, steal_percent: f64) -> Deaths {
    let ms = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e6;
    Deaths { load, kills: latencies.len(), p50_ms: ms(0.5), p99_ms: ms(0.99), most_ms: ms(1.0), steal_percent }
}

/// A process of this program that ends with its standard input.
struct Held {
    child: Child,
    says: BufReader<std::process::ChildStdout>,
}

impl Held {
    fn start(command: &str, arguments: &[&str]) -> Outcome<Held> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(command)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let says = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Held { child, says })
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.says.read_line(&mut line)? {
            0 => Err(format!("the process ended ({})", self.child.wait()?).into()),
            _ => Ok(line),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn end_with_input() {
    std::thread::spawn(|| {
        let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
        std::process::exit(1);
    });
}

#[derive(clap::Args)]
pub struct MournArguments {
    #[command(flatten)]
    site: Site,
    #[arg(long)]
    kills: u32,
}

pub fn mourn(arguments: &MournArguments) -> Outcome<()> {
    end_with_input();
    let mut port = Port::connect(&arguments.site.broker(), None)?;
    let after_ns = (0..arguments.kills).map(|_| one_death(&mut port, &arguments.site)).collect::<Outcome<Vec<_>>>()?;
    println!("{}", serde_json::to_string(&Told { after_ns })?);
    Ok(())
}

fn one_death(port: &mut Port, site: &Site) -> Outcome<u64> {
    let directory = site.directory.to_str().ok_or("a path that is no text")?;
    let mut victim = Held::start("victim", &["--directory", directory, "--node", "1"])?;
    let endpoint = Endpoint::new(victim.line()?.trim_end().parse()?).ok_or("no such endpoint")?;
    let killer = std::thread::spawn(move || {
        // The request was taken, and its sender sleeps.
        victim.line().map_err(|error| error.to_string())?;
        std::thread::sleep(BEFORE_KILL);
        let began = Instant::now();
        victim.child.kill().map_err(|error| error.to_string())?;
        Ok::<Instant, String>(began)
    });
    let answer = port.sendrec(endpoint, &Message::new(1), Wait::For(PATIENCE));
    let told = Instant::now();
    let killed = killer.join().map_err(|_| "the killer panicked")??;
    match answer {
        Err(IpcError::SourceDied | IpcError::DestinationDied) => Ok(told.duration_since(killed).as_nanos() as u64),
        other => Err(format!("the caller of a dead server got {other:?}").into()),
    }
}

pub fn be_victim(site: &Site) -> Outcome<()> {
    end_with_input();
    let mut port = Port::connect(&site.broker(), None)?;
    say(&port.endpoint().number().to_string())?;
    port.rcvrqst(Wait::For(PATIENCE))?;
    say("taken")?;
    loop {
        std::thread::park();
    }
}

fn say(line: &str) -> Outcome<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

pub fn be_busy(cpu: usize) -> Outcome<()> {
    end_with_input();
    keep_to(cpu)?;
    let mut number = 1u64;
    loop {
        number = std::hint::black_box(number.wrapping_mul(6364136223846793005).wrapping_add(1));
    }
}
