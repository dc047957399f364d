//! `dvs events`: what becomes other, as it happens.

use std::process::ExitCode;

use clap::Args;
use mgmt_api::{EventInfo, EventSubject};

use super::follow::{Entries, Show};
use super::{Outcome, block_on, daemon, names};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::Row;

/// Of the columns.
const WIDTHS: [usize; 5] = [20, 9, 24, 12, 0];

/// Show what becomes other, as it happens
#[derive(Args, Debug)]
#[command(after_help = "\
Containers that come, start, change, end and go, and how each of their nodes does; services that run, are well or not, end, \
move; nodes that come, fall silent and go. From now on, until it is interrupted or the daemon that tells it ends; nothing of \
before. What comes and goes within a moment may not be told. Who asked for it: dvs audit. Programs: dvs wait, dvs ps --all.

Examples:
  dvs events
  dvs events shop -o json                                      each event as a line of JSON
  dvs events -o json | jq 'select(.what == \"unhealthy\")'")]
pub struct Options {
    /// Of one container alone.
    #[arg(add = names::containers())]
    dc: Option<String>,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global)?;
    block_on(async {
        let mut events = Entries::<EventInfo>::of(daemon.events(options.dc.as_deref()).await?);
        let mut show = Show::new(global.output, &WIDTHS);
        while let Some(event) = events.next().await? {
            show.one(&event)?;
        }
        Err::<ExitCode, _>(Failure::new("the daemon tells no more").hint("again, when it is back: dvs node ls"))
    })?
}

impl Row for EventInfo {
    const HEADINGS: &'static [&'static str] = &["TIME", "SUBJECT", "NAME", "WHAT", "MORE"];

    fn cells(&self) -> Vec<String> {
        let subject = match self.subject {
            EventSubject::Container | EventSubject::Share => "container",
            EventSubject::Service => "service",
            EventSubject::Node => "node",
        };
        let more = [
            self.was.as_ref().map(|was| format!("was {was}")),
            self.node.as_ref().map(|node| format!("on {node}")),
            self.pid.map(|pid| format!("PID {pid}")),
            self.exit.map(|exit| format!("ended with {exit}")),
            self.why.clone(),
        ];
        let more = more.into_iter().flatten().collect::<Vec<_>>().join(", ");
        vec![mgmt_api::utc(self.at_ms / 1000), subject.to_owned(), self.name.clone(), self.what.clone(), more]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
