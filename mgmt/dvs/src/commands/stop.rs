//! `dvs stop` and `dvs restart`: containers, or programs of one.

use std::time::{Duration, Instant};

use clap::Args;
use client::Client;
use mgmt_api::{ErrorKind, ProcessState};

use super::{Outcome, block_on, daemon, dc, names, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::units::parse_pid;

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
  dvs stop shop 65600            TERM for one program, after ten seconds KILL
  dvs stop -t 1 shop 65600")]
pub struct StopOptions {
    /// Seconds between TERM and KILL [default: 10].
    #[arg(short, long, value_name = "SECONDS")]
    time: Option<u32>,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Processes, from `dvs ps`; without them the container is stopped.
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pids: Vec<u32>,
}

/// Stop a container and start it again
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs restart shop
  dvs service restart shop web      one service of it, while the container goes on")]
pub struct RestartOptions {
    /// Seconds between TERM and KILL [default: 10].
    #[arg(short, long, value_name = "SECONDS")]
    time: Option<u32>,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
}

pub fn execute(global: &Global, options: StopOptions) -> Outcome {
    let StopOptions { time, dc, pids } = options;
    if pids.is_empty() {
        return dc::stop(global, time, &dc);
    }
    let daemon = daemon(global)?;
    let grace = Duration::from_secs(time.unwrap_or(10).into());
    block_on(async {
        for pid in &pids {
            daemon.signal(&dc, *pid, TERM).await?;
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
    block_on(daemon.stop_dc(&options.dc, options.time.map(|seconds| u64::from(seconds) * 1000)))??;
    dc::start(global, &options.dc)
}
