//! One line of `dvs doctor`, of this machine or of the cluster.

use mgmt_api::{Gravity, Trouble};
use sandbox::doctor::Check;
use serde::Serialize;

use crate::output::Row;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "ExaminedState"))]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    Degraded,
    /// The machine has not what is needed.
    Missing,
    /// Something of the cluster does not work.
    Broken,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Examined {
    pub name: String,
    pub state: State,
    pub why_needed: String,
    /// Which node it is about; absent: this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What was seen, when it was not what it should be.
    pub found: String,
    /// Empty when nothing needs doing.
    pub what_to_do: String,
}

impl Examined {
    pub fn well(name: &str, why_needed: &str) -> Examined {
        Examined {
            name: name.to_owned(),
            state: State::Ok,
            why_needed: why_needed.to_owned(),
            node: None,
            found: String::new(),
            what_to_do: String::new(),
        }
    }
}

impl From<Check> for Examined {
    fn from(check: Check) -> Examined {
        let state = match check.state {
            sandbox::doctor::State::Ok => State::Ok,
            sandbox::doctor::State::Degraded => State::Degraded,
            sandbox::doctor::State::Missing => State::Missing,
        };
        let (found, what_to_do) = (check.found, check.what_to_do.to_owned());
        Examined { state, found, what_to_do, ..Examined::well(check.name, check.why_needed) }
    }
}

impl From<Trouble> for Examined {
    fn from(trouble: Trouble) -> Examined {
        let Trouble { node, subject, gravity, found, what_to_do } = trouble;
        let state = match gravity {
            Gravity::Degraded => State::Degraded,
            Gravity::Broken => State::Broken,
        };
        let name = format!("{node}: {subject}");
        Examined { state, node: Some(node), found, what_to_do, ..Examined::well(&name, needed_for(&subject)) }
    }
}

fn needed_for(subject: &str) -> &'static str {
    match subject {
        "clock" => "times in logs and lists of different nodes can be compared",
        "certificate" => "nodes let in only who has a certificate of their cluster's authority",
        "disk space" => "images, logs and records of the node",
        "engine" | "lease" | "etcd" => "what the cluster decides",
        "version" => "nodes understand each other",
        _ => "containers that span the node",
    }
}

impl Row for Examined {
    const HEADINGS: &'static [&'static str] = &["CHECK", "STATE", "NEEDED FOR"];

    fn cells(&self) -> Vec<String> {
        let state = match self.state {
            State::Ok => "ok",
            State::Degraded => "degraded",
            State::Missing => "missing",
            State::Broken => "broken",
        };
        vec![self.name.clone(), state.to_owned(), self.why_needed.clone()]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
