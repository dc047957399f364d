//! `dvs node token`: lets a machine in.

use std::time::Duration;

use clap::{Args, Subcommand};
use mgmt_api::{NewToken, TokenInfo, TokenRequest};

use crate::cli::Global;
use crate::commands::{Gone, Outcome, block_on, daemon, done, now_ms, print, say};
use crate::errors::Failure;
use crate::output::{self, Row};
use crate::units::parse_duration;

/// Make a token that lets a machine join the cluster
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A token lets one machine in, once, and ends by itself. Who has it and reaches a node of the cluster becomes a node: treat \
it like a password.

Examples:
  dvs node token                       good for an hour; prints the command for the new machine
  dvs node token --ttl 10m --node n2   only for a machine that will be n2
  dvs node token ls                    those that have not ended, and who came with them
  dvs node token rm 4f2a9c01"
)]
pub struct Options {
    /// How long it is good: 10m, 1h, 7d.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    ttl: Duration,
    /// Only for a machine of this name.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List the tokens that have not ended.
    #[command(visible_alias = "list")]
    Ls,
    /// Take a token back.
    #[command(visible_alias = "remove")]
    Rm {
        /// Its number, from `dvs node token ls`.
        id: String,
    },
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    match &options.command {
        None => create(global, options),
        Some(Command::Ls) => {
            let tokens = block_on(daemon(global)?.tokens())??;
            print(|out| output::list(out, global.output, &tokens))
        }
        Some(Command::Rm { id }) => {
            block_on(daemon(global)?.remove_token(id))??;
            done(global.output, &Gone::new(id))
        }
    }
}

fn create(global: &Global, options: &Options) -> Outcome {
    let asked = TokenRequest { ttl_s: options.ttl.as_secs(), node: options.node.clone() };
    let token = block_on(daemon(global)?.create_token(&asked))??;
    if global.output.is_for_people() {
        let whom =
            token.node.as_ref().map_or("the new machine".to_owned(), |node| format!("the machine that will be {node}"));
        say(&format!("on {whom}, as root, within {}:", left(token.ends_s)));
        let name = token.node.as_ref().map(|node| format!(" --node {node}")).unwrap_or_default();
        let printed = print(|out| {
            use std::io::Write;
            writeln!(out, "dvs node join {}@{}{name}", token.token, token.address)
        });
        return printed.map_err(|failure| taken_back(global, &token, failure));
    }
    let printed = print(|out| output::one(out, global.output, &token, |_, _| Ok(())));
    printed.map_err(|failure| taken_back(global, &token, failure))
}

/// A token that nobody has seen lets nobody in whom somebody meant.
fn taken_back(global: &Global, token: &NewToken, failure: Failure) -> Failure {
    let id = token.token.split('.').next().unwrap_or_default();
    let gone = daemon(global).and_then(|daemon| block_on(daemon.remove_token(id))?.map_err(Failure::from));
    match gone {
        Ok(()) => failure.because_text("the token was taken back").hint("another place for the output, with room"),
        Err(_) => failure.hint(format!("dvs node token rm {id}; then another place for the output, with room")),
    }
}

/// Until a second since 1970, as people say it.
fn left(ends_s: u64) -> String {
    output::duration(ends_s.saturating_sub(now_ms() / 1000))
}

impl Row for NewToken {
    const HEADINGS: &'static [&'static str] = &["TOKEN", "ADDRESS", "NODE", "ENDS IN"];

    fn cells(&self) -> Vec<String> {
        let node = self.node.clone().unwrap_or_else(|| "any".to_owned());
        vec![self.token.clone(), self.address.clone(), node, left(self.ends_s)]
    }

    fn name(&self) -> String {
        self.token.clone()
    }
}

impl Row for TokenInfo {
    const HEADINGS: &'static [&'static str] = &["ID", "FOR", "ENDS IN", "USED BY"];

    fn cells(&self) -> Vec<String> {
        let node = self.node.clone().unwrap_or_else(|| "any".to_owned());
        let used = self.used_by.clone().unwrap_or_else(|| "-".to_owned());
        vec![self.id.clone(), node, left(self.ends_s), used]
    }

    fn name(&self) -> String {
        self.id.clone()
    }
}
