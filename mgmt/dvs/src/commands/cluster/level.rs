//! `dvs cluster level`: in which format the cluster writes, and who holds it back.

use std::collections::BTreeMap;

use mgmt_api::ClusterLevel;

use crate::cli::Global;
use crate::commands::{Outcome, block_on, daemon, print};
use crate::output::{self, Row};

pub fn show(global: &Global) -> Outcome {
    let level = block_on(daemon(global)?.level())??;
    print(|out| output::list(out, global.output, std::slice::from_ref(&level)))
}

impl Row for ClusterLevel {
    const HEADINGS: &'static [&'static str] = &["LEVEL", "ALL READ", "NEWEST", "HELD BACK BY", "RELEASES"];

    fn cells(&self) -> Vec<String> {
        let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (node, release) in &self.releases {
            nodes.entry(&release.release).or_default().push(node);
        }
        let releases = nodes.iter().map(|(release, nodes)| format!("{release} ({})", nodes.join(",")));
        vec![
            self.level.to_string(),
            self.readable.to_string(),
            self.newest.to_string(),
            if self.held_back_by.is_empty() { "-".to_owned() } else { self.held_back_by.join(",") },
            releases.collect::<Vec<_>>().join(" "),
        ]
    }

    fn name(&self) -> String {
        self.level.to_string()
    }
}
