//! `dvs stop` and `dvs restart`: containers, or programs of one.

use std::time::{Duration, Instant};

use clap::Args;
use client::Client;
use mgmt_api::{ErrorKind, ProcessState};

use super::several::{self, Containers};
use super::{Outcome, block_on, daemon, dc, names, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::units::{parse_pid, parse_signal};

const TERM: i32 = 15;
const KILL: i32 = 9;
/// Between looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What SIGKILL takes at most.
const DEATH_LIMIT: Duration = Duration::from_secs(10);

/// Stop a container, or end programs of it
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs stop shop                  all its programs end, on all nodes; its files stay: dvs dc stop
  dvs stop shop store            two containers
  dvs stop shop 65600            TERM for one program, after ten seconds KILL
  dvs stop -t 1 -s INT shop 65600")]
pub struct StopOptions {
    /// Seconds between TERM and KILL [default: 10].
    #[arg(short, long, alias = "timeout", value_name = "SECONDS")]
    time: Option<u32>,
    /// Signal that asks programs to end, in place of TERM; of a service: dvs service add --signal.
    #[arg(short, long, value_name = "SIGNAL", value_parser = parse_signal)]
    signal: Option<i32>,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Processes, from `dvs ps`; without them the container is stopped, and others that are named.
    #[arg(value_name = "PID", add = names::pids())]
    what: Vec<String>,
}

/// Stop a container and start it again
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs restart shop
  dvs service restart shop web      one service of it, while the container goes on")]
pub struct RestartOptions {
    /// Seconds between TERM and KILL [default: 10].
    #[arg(short, long, alias = "timeout", value_name = "SECONDS")]
    time: Option<u32>,
    #[command(flatten)]
    dcs: Containers,
}

pub fn execute(global: &Global, options: StopOptions) -> Outcome {
    let StopOptions { time, signal, dc, what } = options;
    // A name is no number, so what is meant is plain.
    let pids: Result<Vec<u32>, String> = what.iter().map(|word| parse_pid(word)).collect();
    let pids = match pids {
        Ok(pids) if !pids.is_empty() => pids,
        Err(why) if !what.iter().all(|word| mgmt_api::valid_name(word)) => {
            return Err(Failure::usage(format!("'{}' are not all processes: {why}", what.join(" ")))
                .hint("dvs stop DC PID PID, or dvs stop DC DC"));
        }
        _ if signal.is_some() => {
            return Err(Failure::usage("a signal is for programs: the whole container gets TERM, and then KILL")
                .hint(format!("dvs stop -s SIGNAL {dc} PID; of services: dvs service add --signal")));
        }
        _ => return several::each(global, &dc, &what, |dc| dc::stop(global, time, dc)),
    };
    let daemon = daemon(global)?;
    let grace = Duration::from_secs(time.unwrap_or(10).into());
    block_on(async {
        for pid in &pids {
            daemon.signal(&dc, *pid, signal.unwrap_or(TERM)).await?;
        }
        let until = Instant::now() + grace;
        for pid in pids {
            if !has_ended(&daemon, &dc, pid, until).await? {
                daemon.signal(&dc, pid, KILL).await?;
                if !has_ended(&daemon, &dc, pid, Instant::now() + DEATH_LIMIT).await? {
                    let what = format!("process {pid} does not end");
                    return Err(Failure::new(what).hint(format!("what it waits for: dvs ps {dc}")));
                }
            }
            say(&format!("process {pid} has ended"));
        }
        Ok(0.into())
    })?
}

async fn has_ended(daemon: &Client, dc: &str, pid: u32, until: Instant) -> Result<bool, Failure> {
    loop {
        match daemon.process(dc, pid).await {
            Ok(process) if matches!(process.state, ProcessState::Exited | ProcessState::Zombie) => return Ok(true),
            Ok(_) if Instant::now() >= until => return Ok(false),
            Ok(_) => (),
            Err(client::Error::Refused(body)) if body.kind == ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

pub fn execute_restart(global: &Global, options: &RestartOptions) -> Outcome {
    let daemon = daemon(global)?;
    options.dcs.each(global, |dc| {
        block_on(daemon.stop_dc(dc, options.time.map(|seconds| u64::from(seconds) * 1000)))??;
        dc::start(global, dc)
    })
}
