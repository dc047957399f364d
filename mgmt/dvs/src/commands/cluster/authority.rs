//! `dvs cluster authority`, `dvs cluster rotate-ca`: who signs certificates.

use std::time::{Duration, Instant};

use clap::Args;
use mgmt_api::{AuthorityStage, AuthorityState};

use crate::cli::Global;
use crate::commands::{Outcome, block_on, daemon, print, say};
use crate::errors::Failure;
use crate::output::{self, Row};
use crate::units::parse_duration;

/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(500);

/// Replace the cluster's authority, while everything goes on
#[derive(Args, Debug)]
#[command(after_help = "\
For a time nodes believe both authorities; then each gets a certificate of the new one, and the old one is forgotten. Members \
of etcd are started again for it, one after the other. All nodes have to be there: bring those back that are down, or take \
them out (dvs node remove --lost). Asked again meanwhile, it goes on with the one that is under way. Tokens that were made before let nobody in any more.

Do it after a machine was in wrong hands, once it is taken out.

Examples:
  dvs cluster rotate-ca
  dvs cluster rotate-ca --wait 0s && dvs cluster authority")]
pub struct RotateOptions {
    /// How long to wait until it is over; it goes on by itself.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    wait: Duration,
}

pub fn show(global: &Global) -> Outcome {
    let state = block_on(daemon(global)?.authority())??;
    print(|out| output::list(out, global.output, std::slice::from_ref(&state)))
}

pub fn rotate(global: &Global, options: &RotateOptions) -> Outcome {
    let daemon = daemon(global)?;
    let state = block_on(async {
        let until = Instant::now() + options.wait;
        let mut state = daemon.rotate_authority().await?;
        let mut told = None;
        while state.stage != AuthorityStage::Settled && Instant::now() < until {
            if told.as_ref() != Some(&(state.stage, state.waits_for.clone())) {
                say(&format!("{}; waiting for {}", words(state.stage), waits_for(&state)));
                told = Some((state.stage, state.waits_for.clone()));
            }
            tokio::time::sleep(LOOK).await;
            // A daemon that is asked while its member of the engine is replaced may not know for a moment.
            if let Ok(now) = daemon.authority().await {
                state = now;
            }
        }
        Ok::<AuthorityState, client::Error>(state)
    })??;
    if state.stage != AuthorityStage::Settled && !options.wait.is_zero() {
        return Err(Failure::new("the new authority has not taken the old one's place yet")
            .because_text(format!("{}; {} not done", words(state.stage), waits_for(&state)))
            .hint("dvs cluster authority; it goes on by itself once all nodes are there"));
    }
    if state.stage == AuthorityStage::Settled {
        say("the cluster has a new authority");
    }
    print(|out| output::list(out, global.output, std::slice::from_ref(&state)))
}

fn words(stage: AuthorityStage) -> &'static str {
    match stage {
        AuthorityStage::Settled => "settled",
        AuthorityStage::Announced => "announced: nodes learn to believe both",
        AuthorityStage::Switched => "switched: nodes get certificates of the new one",
    }
}

fn waits_for(state: &AuthorityState) -> String {
    if state.waits_for.is_empty() { "the next step".to_owned() } else { state.waits_for.join(", ") }
}

impl Row for AuthorityState {
    const HEADINGS: &'static [&'static str] = &["STAGE", "ROOTS", "CERTIFICATES LAST", "REVOKED", "WAITS FOR"];

    fn cells(&self) -> Vec<String> {
        let short = |root: &String| root.chars().take(16).collect::<String>();
        vec![
            match self.stage {
                AuthorityStage::Settled => "settled",
                AuthorityStage::Announced => "announced",
                AuthorityStage::Switched => "switched",
            }
            .to_owned(),
            self.roots.iter().map(short).collect::<Vec<_>>().join(","),
            output::duration(self.certificate_lifetime_s),
            self.revoked.to_string(),
            if self.waits_for.is_empty() { "-".to_owned() } else { self.waits_for.join(",") },
        ]
    }

    fn name(&self) -> String {
        self.roots.first().cloned().unwrap_or_default()
    }
}
