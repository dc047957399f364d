//! `dvs dc export`: a container as a file that describes it.

use mgmt_api::{Dc, DcSpec};

use super::super::{Outcome, block_on, daemon, print};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::{self, Row};

pub fn execute(global: &Global, dc: &str) -> Outcome {
    let found = block_on(daemon(global)?.dc(dc))??;
    if !global.output.is_for_people() {
        return print(|out| output::one(out, global.output, &found.spec, |_, _| Ok(())));
    }
    let text = described(&found)
        .map_err(|cause| Failure::new(format!("container '{dc}' cannot be written as TOML")).because(&cause))?;
    print(|out| std::io::Write::write_all(out, text.as_bytes()))
}

fn described(dc: &Dc) -> Result<String, toml::ser::Error> {
    let generation = dc.generation;
    let body = toml::to_string_pretty(&dc.spec)?;
    Ok(format!(
        "# dvs apply -f makes a container like this. With the next line, only while nobody else has changed it:\n\
         # generation = {generation}\n{body}"
    ))
}

impl Row for DcSpec {
    const HEADINGS: &'static [&'static str] = &[];

    fn cells(&self) -> Vec<String> {
        Vec::new()
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let spec = json!({
            "name": "shop", "nodes": ["n1", "n2"], "limits": { "cpu_max": 0.5, "pids": 100 },
            "env": ["A=1", { "hex": "423dff" }], "egress": { "allow": ["192.0.2.0/24"] },
            "disks": [{ "name": "root", "bytes": 1 << 30 }], "servers": [{ "kind": "fs", "node": "n1" }],
            "services": [{ "name": "web", "command": ["/bin/sh", "-c", "exit \"$1\"\n"], "health": { "tcp": 80 } }],
            "ports": [{ "published": 80, "port": 8080 }],
            "volumes": [{ "host": "/srv/data", "path": "/data", "nodes": ["n1"] }, { "host": "/a", "path": "/b", "read_only": true }],
        });
        let dc: Dc = serde_json::from_value(json!({
            "id": 1, "spec": spec, "phase": "running", "shares": [], "generation": 7, "created_s": 0,
        }))
        .unwrap();
        let text = described(&dc).unwrap();
        assert_eq!(toml::from_str::<DcSpec>(&text).unwrap(), dc.spec, "{text}");
        let guarded = text.replace("# generation", "generation");
        assert_eq!(toml::from_str::<toml::Table>(&guarded).unwrap()["generation"].as_integer(), Some(7));
    }
}
