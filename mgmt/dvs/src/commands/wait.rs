//! `dvs wait`: until programs have ended.

use std::time::Duration;

use clap::Args;
use client::Client;
use mgmt_api::ProcessState;

use super::{Outcome, block_on, daemon, names, print};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::{self, Row};
use crate::units::parse_pid;
use serde::Serialize;

/// Between looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Wait until programs have ended, and print their exit status
#[derive(Args, Debug)]
#[command(after_help = "\
Programs are what dvs run, exec and services started. One that ended before is told at once, as long as dvs ps --all knows it. \
Exit status 0, whatever theirs is.

Examples:
  dvs wait shop $(dvs run -d shop -- make)
  dvs wait shop 65600 131080")]
pub struct Options {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Processes, from `dvs ps`.
    #[arg(required = true, value_name = "PID", value_parser = parse_pid, add = names::programs())]
    pids: Vec<u32>,
}

/// How a program ended.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Ended {
    pid: u32,
    /// As a shell shows it; nothing when nobody knows.
    exit: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
}

impl Row for Ended {
    const HEADINGS: &'static [&'static str] = &["PID", "STATUS", "WHY"];

    fn cells(&self) -> Vec<String> {
        let status = self.exit.map_or("-".to_owned(), |exit| exit.to_string());
        vec![self.pid.to_string(), status, self.cause.clone().unwrap_or_default()]
    }

    fn name(&self) -> String {
        self.exit.map_or("-".to_owned(), |exit| exit.to_string())
    }
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global)?;
    let ended = block_on(async {
        let mut ended = Vec::new();
        for pid in &options.pids {
            ended.push(end_of(&daemon, &options.dc, *pid).await?);
        }
        Ok::<_, Failure>(ended)
    })??;
    print(|out| output::list(out, global.output, &ended))
}

async fn end_of(daemon: &Client, dc: &str, pid: u32) -> Result<Ended, Failure> {
    let mut was_there = false;
    loop {
        match daemon.process(dc, pid).await {
            Ok(process) if process.state == ProcessState::Exited => {
                return Ok(Ended { pid, exit: process.exit, cause: process.cause });
            }
            Ok(_) => was_there = true,
            // No program, but a process that one of them had made: nobody keeps how that ended.
            Err(client::Error::Refused(body)) if was_there && body.kind == mgmt_api::ErrorKind::NotFound => {
                return Ok(Ended { pid, exit: None, cause: Some("no program of dvs run".to_owned()) });
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
