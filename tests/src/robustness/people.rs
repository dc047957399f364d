//! Commands, through the daemons of all nodes: each of these people sits at one node.
//!
//! What came of a command that failed is unknown, unless it said in so many words that there is, or is not, what it was
//! about. No command may last longer than [`COMMAND_SECONDS`].

use std::process::Output;
use std::time::Duration;

use histories::models::register::{Answer, Ask, Given};
use histories::{Rng, Ticket};

use crate::robustness::Notes;
use crate::robustness::faults::{NODES, Node};
use crate::robustness::site::{COMMAND_SECONDS, Site};
use crate::robustness::watch::TAG;

const KEYS: u64 = 4;
/// Containers that come and go.
const OTHERS: u64 = 3;
/// What services have there, before a number.
pub const SERVICE: &str = "service-";
/// Where programs that are started once write that they were.
pub const RAN: &str = "/dc/ran";
/// `timeout` ended it.
const TOO_LONG: i32 = 124;

/// A program that was started.
#[derive(Clone)]
pub struct Started {
    pid: String,
    node: Node,
    /// Of the node, before it was started.
    kills: u64,
}

pub struct Person<'a> {
    pub site: &'a Site,
    pub notes: &'a Notes,
    pub dc: &'a str,
    pub node: Node,
    pub number: u32,
    pub rng: Rng,
    pub started: Vec<Started>,
    pub steps: u64,
}

impl Person<'_> {
    /// Until the traffic ends.
    pub fn run(mut self) {
        while !self.notes.has_ended() {
            self.step();
            std::thread::sleep(Duration::from_millis(20 + self.rng.below(150)));
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        match self.rng.below(35) {
            0..=9 => self.store(),
            10..=14 => self.container(),
            15..=16 => self.label(),
            17..=18 => self.program_once(),
            19 => self.kill(),
            20 => {
                let node = *self.rng.pick(&NODES);
                let word = format!("word{}", self.rng.below(1000));
                let done = self.dvs(&["run", self.dc, "--node", node, "--", "echo", &word]);
                if done.status.success() && String::from_utf8_lossy(&done.stdout).trim() != word {
                    self.notes.is_wrong(format!("'dvs run -- echo {word}' said {done:?}"));
                }
            }
            21 => self.import(),
            22 => {
                let node = *self.rng.pick(&NODES);
                self.dvs(&["node", "cordon", node]);
                self.dvs(&["node", "uncordon", node]);
            }
            23 => {
                let done = self.dvs(&["node", "token", "-o", "json"]);
                let token: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
                if let Some(id) = token["token"].as_str().and_then(|token| token.split('.').next()) {
                    self.dvs(&["node", "token", "rm", id]);
                }
            }
            24 => drop(self.dvs(&["ps", self.dc])),
            25 => drop(self.dvs(&["ps", "-a"])),
            26 => {
                let node = *self.rng.pick(&NODES);
                self.dvs(&["node", "inspect", node]);
            }
            27 => drop(self.dvs(&["dc", "inspect", self.dc])),
            28 => {
                if let Some(Started { pid, .. }) = self.started.last().cloned() {
                    self.dvs(&["logs", self.dc, &pid]);
                }
            }
            29 => drop(self.dvs(&["doctor"])),
            30..=32 => self.service(),
            33 => {
                let (from, to) = (*self.rng.pick(&NODES), *self.rng.pick(&NODES));
                let word = format!("word{}", self.rng.below(1000));
                let done = self.dvs(&["run", self.dc, "--node", from, "--", "on", to, "--", "echo", &word]);
                if done.status.success() && String::from_utf8_lossy(&done.stdout).trim() != word {
                    self.notes.is_wrong(format!("'on {to} -- echo {word}' from {from} said {done:?}"));
                }
            }
            _ if self.rng.one_in(3) => self.copies(),
            _ => drop(self.dvs(&["disk", "ls", self.dc])),
        }
    }

    /// The disk of the tree has one copy more or less, or stands elsewhere, and its file server.
    fn copies(&mut self) {
        let node = *self.rng.pick(&NODES);
        match self.rng.below(8) {
            0..=2 => self.dvs(&["disk", "replica", "add", self.dc, "root", node]),
            3..=4 => self.dvs(&["disk", "replica", "remove", self.dc, "root", node]),
            5..=6 => self.dvs(&["disk", "replica", "promote", self.dc, "root", node]),
            _ => self.dvs(&["server", "move", self.dc, "fs", node]),
        };
    }

    /// Services that come and go, of one instance each: it runs once at a time.
    fn service(&mut self) {
        let name = format!("s{}", self.rng.below(OTHERS));
        match self.rng.below(8) {
            0..=2 => {
                let tag = format!("{TAG}={SERVICE}{}.{}", self.number, self.steps);
                self.dvs(&["service", "add", "--env", &tag, self.dc, &name, "--", "sleep", "1000000"])
            }
            3 => self.dvs(&["service", "rm", self.dc, &name]),
            4 => self.dvs(&["service", "restart", self.dc, &name]),
            5 => {
                let (instance, node) = (format!("{name}/0"), *self.rng.pick(&NODES));
                self.dvs(&["service", "move", self.dc, &instance, "--to", node])
            }
            6 => {
                let what = *self.rng.pick(&["stop", "start"]);
                self.dvs(&["service", what, self.dc, &name])
            }
            _ => self.dvs(&["service", "ls", self.dc]),
        };
    }

    fn dvs(&self, arguments: &[&str]) -> Output {
        let done = self.site.dvs(self.node, arguments);
        if done.status.code() == Some(TOO_LONG) {
            self.notes.is_wrong(format!(
                "'dvs {}' on {} lasted {COMMAND_SECONDS} s",
                arguments.join(" "),
                NODES[self.node]
            ));
        } else if !done.status.success() && arguments[0] != "doctor" {
            let words: Vec<&str> = arguments.iter().copied().take(2).collect();
            self.notes.heard(&format!("{} on {}: {}", words.join(" "), NODES[self.node], said(&done)));
        }
        done
    }

    fn ask(&self, key: String, ask: Ask, arguments: &[&str], judge: impl Fn(&Output, &str) -> Option<Answer>) {
        let Some(ticket) = self.invoke(key, ask.clone()) else { return };
        let done = self.dvs(arguments);
        let words = said(&done);
        match judge(&done, &words) {
            Some(answer) => self.notes.values.answered(ticket, answer, self.notes.now()),
            // What nobody was told changes nothing; and what a node knew before is not what is.
            None if ask == Ask::Get => self.notes.values.did_not_happen(ticket),
            None => (),
        }
    }

    fn invoke(&self, key: String, ask: Ask) -> Option<Ticket> {
        self.notes.values.invoke(self.number, key, ask, self.notes.now()).ok()
    }

    /// The container's durable keys.
    fn store(&mut self) {
        let key = format!("key{}", self.rng.below(KEYS));
        let history = format!("ds/{key}");
        let value = self.rng.draw() >> 16;
        let text = value.to_string();
        let revision = |done: &Output| String::from_utf8_lossy(&done.stdout).trim().parse::<u64>().ok();
        let changed = |done: &Output, words: &str| match done.status.success() {
            true => Some(Answer::Done { revision: revision(done) }),
            false if words.contains("another revision wrote it") || words.contains("such a key already") => {
                Some(Answer::Refused)
            }
            false if words.contains("there is no such key") => Some(Answer::Refused),
            false => None,
        };
        match self.rng.below(8) {
            0..=2 => {
                let ask = ["ds", "get", self.dc, &key, "-o", "json"];
                self.ask(history, Ask::Get, &ask, |done, words| {
                    if words.contains("there is no such key") {
                        return Some(Answer::Missing);
                    }
                    let found: serde_json::Value = serde_json::from_slice(&done.stdout).ok()?;
                    let value = found["value"].as_str()?.parse().ok()?;
                    Some(Answer::Found { value, revision: found["revision"].as_u64() })
                });
            }
            3..=4 => {
                let ask = Ask::Put { value, given: Given::Anything };
                self.ask(history, ask, &["ds", "put", self.dc, &key, &text], changed);
            }
            5 => {
                let ask = Ask::Put { value, given: Given::Absent };
                self.ask(history, ask, &["ds", "cas", self.dc, &key, "0", &text], changed);
            }
            6 => {
                let ask = Ask::Delete { given: Given::Anything };
                self.ask(history, ask, &["ds", "rm", self.dc, &key], changed);
            }
            _ => {
                let done = self.dvs(&["ds", "get", self.dc, &key, "-o", "json"]);
                let found: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
                let Some(by) = found["revision"].as_u64() else { return };
                let ask = Ask::Put { value, given: Given::At(by) };
                self.ask(history, ask, &["ds", "cas", self.dc, &key, &by.to_string(), &text], changed);
            }
        }
    }

    /// Containers that come and go: whether they are there is a value.
    fn container(&mut self) {
        let name = format!("x{}", self.rng.below(OTHERS));
        let history = format!("dc/{name}");
        match self.rng.below(11) {
            0..=2 => {
                let nodes = ["n1,n2", "n2,n3", "n1,n2,n3", "n3", "n1"][self.rng.below(5) as usize];
                let ask = Ask::Put { value: 1, given: Given::Absent };
                let create = ["dc", "create", &name, "--nodes", nodes, "--disk", "32M"];
                self.ask(history, ask, &create, |done, words| match done.status.success() {
                    true => Some(Answer::Done { revision: None }),
                    false => words.contains("there is a container").then_some(Answer::Refused),
                });
            }
            3..=4 => {
                let ask = Ask::Delete { given: Given::Anything };
                self.ask(history, ask, &["dc", "rm", "--force", &name], |done, words| match done.status.success() {
                    true => Some(Answer::Gone),
                    false => words.contains("there is no container").then_some(Answer::Missing),
                });
            }
            5..=6 => {
                self.ask(history, Ask::Get, &["dc", "inspect", &name, "-o", "json"], |done, words| {
                    // From what the node knew when it last heard of the engine.
                    if words.contains("the cluster engine does not answer") {
                        return None;
                    }
                    match done.status.success() {
                        true => Some(Answer::Found { value: 1, revision: None }),
                        false => words.contains("there is no container").then_some(Answer::Missing),
                    }
                });
            }
            7 => drop(self.dvs(&["dc", "start", &name])),
            8 => drop(self.dvs(&["dc", "stop", &name])),
            9 => drop(self.dvs(&["pause", &name])),
            _ => drop(self.dvs(&["unpause", &name])),
        }
    }

    fn label(&mut self) {
        let node = *self.rng.pick(&NODES);
        let history = format!("label/{node}");
        if self.rng.one_in(2) {
            let value = self.rng.below(1 << 40);
            let ask = Ask::Put { value, given: Given::Anything };
            self.ask(history, ask, &["node", "label", node, &format!("color=c{value}")], |done, _| {
                done.status.success().then_some(Answer::Done { revision: None })
            });
        } else {
            self.ask(history, Ask::Get, &["node", "inspect", node, "-o", "json"], |done, words| {
                if words.contains("the cluster engine does not answer") {
                    return None;
                }
                let found: serde_json::Value = serde_json::from_slice(&done.stdout).ok()?;
                found["name"].as_str()?;
                match found["labels"]["color"].as_str() {
                    Some(color) => {
                        Some(Answer::Found { value: color.strip_prefix('c')?.parse().ok()?, revision: None })
                    }
                    None => Some(Answer::Missing),
                }
            });
        }
    }

    /// A program that says that it was started, perhaps as a job: nobody may read it twice.
    fn program_once(&mut self) {
        let node = self.rng.below(NODES.len() as u64) as usize;
        let kills = self.notes.kills(node);
        let tag = format!("p{}.{}", self.number, self.steps);
        let seconds = 1 + self.rng.below(20);
        let script = format!("echo ${TAG} >> {RAN}; exec sleep {seconds}");
        let variable = format!("{TAG}={tag}");
        let begin = ["run", "-d", self.dc, "--node", NODES[node]];
        let done = if self.rng.one_in(3) {
            // What is elsewhere has the variable, its deputy has not.
            let to = *self.rng.pick(&NODES);
            let job = ["--", "on", to, "--", "env", &variable, "sh", "-c", &script];
            self.dvs(&[&begin[..], &job].concat())
        } else {
            self.dvs(&[&begin[..], &["--env", &variable, "--", "sh", "-c", &script]].concat())
        };
        if done.status.success() {
            let pid = String::from_utf8_lossy(&done.stdout).trim().to_owned();
            self.started.push(Started { pid, node, kills });
        }
    }

    fn kill(&mut self) {
        let Some(Started { pid, node, kills }) = self.started.pop() else { return };
        // After those of a node died, their numbers are given to others.
        if self.notes.kills(node) == kills {
            let signal = *self.rng.pick(&["TERM", "KILL", "HUP"]);
            self.dvs(&["kill", "-s", signal, self.dc, &pid]);
        }
    }

    fn import(&mut self) {
        let place = tempfile::tempdir().expect("a directory");
        let text = format!("{}.{}", self.number, self.steps);
        std::fs::write(place.path().join("file"), &text).expect("a file");
        let to = format!("/imported{}", self.number);
        let node = *self.rng.pick(&NODES);
        let from = place.path().to_str().expect("a path of text");
        if self.dvs(&["import", self.dc, from, &to, "--node", node]).status.success() {
            let other = *self.rng.pick(&NODES);
            let read = self.dvs(&["run", self.dc, "--node", other, "--", "cat", &format!("/dc{to}/file")]);
            if read.status.success() && String::from_utf8_lossy(&read.stdout) != text {
                self.notes.is_wrong(format!("imported {text} by {node}, read on {other}: {read:?}"));
            }
        }
    }
}

pub fn said(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}
