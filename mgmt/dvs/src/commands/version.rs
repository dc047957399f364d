//! `dvs version`: of this command, and of the daemon when one answers.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::{Outcome, block_on, daemon, print};
use crate::cli::Global;
use crate::output::{self, Row, Table};

/// Show the version of this command and of the daemon
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs version
  dvs version -o json")]
pub struct Options {}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "VersionsOfBoth"))]
pub struct Versions {
    client: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    follows: String,
    /// By the names in `versions`.
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::versions_by_name"))]
    speaks: BTreeMap<&'static str, versions::Versions>,
    /// Absent: no daemon answers.
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::version_or_null"))]
    daemon: Option<mgmt_api::Version>,
}

pub fn execute(global: &Global, _: &Options) -> Outcome {
    let answer = daemon(global).and_then(|daemon| block_on(daemon.version())?.map_err(Into::into));
    let versions = Versions {
        client: versions::Release::NAME,
        follows: versions::Release::own().follows,
        speaks: versions::PROTOCOLS.iter().map(|protocol| (protocol.name, protocol.speaks)).collect(),
        daemon: answer.ok(),
    };
    print(|out| output::one(out, global.output, &versions, view))
}

impl Row for Versions {
    const HEADINGS: &'static [&'static str] = &["CLIENT", "DAEMON"];

    fn cells(&self) -> Vec<String> {
        vec![self.client.to_owned(), self.daemon.as_ref().map_or("-".to_owned(), |daemon| daemon.version.clone())]
    }

    fn name(&self) -> String {
        self.client.to_owned()
    }
}

fn view(versions: &Versions, out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new(&["dvs", versions.client]);
    match &versions.daemon {
        Some(daemon) => {
            // A container is not told of its cluster.
            let cluster =
                Some(&daemon.cluster).filter(|name| !name.is_empty()).map(|name| format!(" of cluster {name}"));
            let place = format!("{} (node {}{})", daemon.version, daemon.node, cluster.unwrap_or_default());
            table.push(vec!["daemon".to_owned(), place]);
        }
        None => table.push(vec!["daemon".to_owned(), "none answers".to_owned()]),
    }
    table.print(out)
}
