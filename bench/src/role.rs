//! One process of a pair: keeps to its CPU, says when it is ready, measures when it is told to, reports.
//!
//! It speaks with the orchestrator over a Unix socket, a line at a time: `ready ADDRESS`; `go` to a client; then a
//! report as JSON. The client warms up first, so that what is measured does not contain where the scheduler happened to
//! put two new processes. When the orchestrator is gone, however that came, the process takes away what it made and
//! ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::mechanism::{Caller, Crowd, Mechanism, STOP, Site, Use};
use crate::places::{Side, keep_to};

/// Calls between two looks at the clock.
const CALLS_PER_LOOK: u64 = 64;
const WARM_UP: Duration = Duration::from_millis(100);
const LATENCY_MAX_NS: u64 = 10_000_000_000;

/// What calls took, in nanoseconds.
pub type Latencies = Histogram<u64>;

pub fn new_latencies() -> Outcome<Latencies> {
    Ok(Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)?)
}

#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long)]
    pub side: Side,
    #[arg(long)]
    pub mechanism: Mechanism,
    #[arg(long)]
    pub control: PathBuf,
    #[command(flatten)]
    pub site: Site,
    #[arg(long, default_value = "-")]
    pub address: String,
    #[arg(long)]
    pub cpu: Option<usize>,
    #[arg(long)]
    pub seconds: f64,
    /// How many clients a server has; it ends with the last of them.
    #[arg(long, default_value_t = 1)]
    pub clients: u32,
}

/// What a client saw.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Report {
    pub trips: u64,
    pub seconds: f64,
    /// With those of warming up and of the latencies.
    pub all_trips: u64,
    pub cpu_seconds: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
}

/// What a server used.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Used {
    pub cpu_seconds: f64,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    if let Some(cpu) = arguments.cpu {
        keep_to(cpu)?;
    }
    let mut control = UnixStream::connect(&arguments.control)?;
    let made = Arc::new(OnceLock::new());
    end_with_orchestrator(control.try_clone()?, arguments.mechanism, made.clone());
    let report = match arguments.side {
        Side::Server => {
            let before = cpu_seconds();
            let mut said = control.try_clone()?;
            let ready = |address: &str| {
                let _ = made.set(address.to_owned());
                Ok(writeln!(said, "ready {address}")?)
            };
            match arguments.clients {
                1 => arguments.mechanism.serve(&arguments.site, ready)?,
                clients => arguments.mechanism.serve_many(&arguments.site, clients, ready)?,
            }
            serde_json::to_string(&Used { cpu_seconds: cpu_seconds() - before })?
        }
        Side::Client => {
            let measuring = Measuring { control: control.try_clone()?, seconds: arguments.seconds };
            let Arguments { mechanism, site, address, clients, .. } = arguments;
            let report = match clients {
                1 => mechanism.call(site, address, measuring)?,
                _ => mechanism.call_among_many(site, *clients, address, measuring)?,
            };
            serde_json::to_string(&report)?
        }
    };
    writeln!(control, "{report}")?;
    Ok(())
}

/// Ends this process when the other end of the control socket is closed.
fn end_with_orchestrator(control: UnixStream, mechanism: Mechanism, made: Arc<OnceLock<String>>) {
    std::thread::spawn(move || {
        let mut watched = [PollFd::new(&control, PollFlags::empty())];
        while poll(&mut watched, None).is_err() {}
        if let Some(address) = made.get() {
            mechanism.clean(address);
        }
        std::process::exit(1);
    });
}

struct Measuring {
    control: UnixStream,
    seconds: f64,
}

impl Measuring {
    fn wait_for_go(&mut self) -> Outcome<()> {
        writeln!(self.control, "ready -")?;
        let mut told = String::new();
        BufReader::new(&self.control).read_line(&mut told)?;
        if told == "go\n" { Ok(()) } else { Err("the orchestrator is gone".into()) }
    }

    fn counting(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    fn timing(&self) -> Duration {
        Duration::from_secs_f64(self.seconds / 3.0)
    }
}

impl Use for Measuring {
    type Given = Report;

    fn on<C: Caller>(mut self, mut caller: C) -> Outcome<Report> {
        self.wait_for_go()?;
        let before = cpu_seconds();
        let (warm, _) = trips(&mut caller, WARM_UP)?;
        let (counted, elapsed) = trips(&mut caller, self.counting())?;
        let latencies = latencies(&mut caller, self.timing())?;
        let used = cpu_seconds() - before;
        call(&mut caller, STOP)?;
        Ok(Report::of((counted, elapsed), warm + counted + latencies.len(), used, &latencies))
    }

    fn on_crowd<C: Crowd>(mut self, mut crowd: C) -> Outcome<Report> {
        self.wait_for_go()?;
        let before = cpu_seconds();
        let warm = crowd.all_call(WARM_UP)?.len();
        let began = Instant::now();
        let latencies = crowd.all_call(self.counting())?;
        let elapsed = began.elapsed();
        let used = cpu_seconds() - before;
        crowd.stop()?;
        Ok(Report::of((latencies.len(), elapsed), warm + latencies.len(), used, &latencies))
    }
}

impl Report {
    fn of((trips, elapsed): (u64, Duration), all_trips: u64, cpu_seconds: f64, latencies: &Latencies) -> Report {
        Report {
            trips,
            seconds: elapsed.as_secs_f64(),
            all_trips,
            cpu_seconds,
            p50_ns: latencies.value_at_quantile(0.5),
            p99_ns: latencies.value_at_quantile(0.99),
            p999_ns: latencies.value_at_quantile(0.999),
        }
    }
}

fn call<C: Caller>(caller: &mut C, number: u64) -> Outcome<()> {
    match caller.call(number)? {
        answer if answer == number => Ok(()),
        answer => Err(format!("frame {number} was answered with {answer}").into()),
    }
}

fn trips<C: Caller>(caller: &mut C, for_how_long: Duration) -> Outcome<(u64, Duration)> {
    let (mut count, began) = (0, Instant::now());
    loop {
        for number in count..count + CALLS_PER_LOOK {
            call(caller, number)?;
        }
        count += CALLS_PER_LOOK;
        let elapsed = began.elapsed();
        if elapsed >= for_how_long {
            return Ok((count, elapsed));
        }
    }
}

/// Looks at the clock at every call: apart from the counting, which it would slow down.
fn latencies<C: Caller>(caller: &mut C, for_how_long: Duration) -> Outcome<Latencies> {
    let mut histogram = new_latencies()?;
    let began = Instant::now();
    let mut last = began;
    for number in 0.. {
        call(caller, number)?;
        let now = Instant::now();
        histogram.saturating_record(now.duration_since(last).as_nanos().max(1) as u64);
        if now.duration_since(began) >= for_how_long {
            break;
        }
        last = now;
    }
    Ok(histogram)
}

/// Of this process, since it began.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
