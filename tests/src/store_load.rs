//! A client of the key-value store that checks each answer, over one session (`dvs ds pipe`), and one that watches.
//!
//! Every change is made on condition of the revision that wrote the key before. A change that was acknowledged and
//! lost, or happened twice, breaks the chain of its key: the next condition fails.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{Cluster, eventually};

const KEYS: u64 = 20;
/// A store that is killed again and again answers within this, on a busy machine too.
const ANSWER: Duration = Duration::from_secs(60);

/// Key, what happened, revision.
type Seen = Vec<(String, String, u64)>;

/// Changes keys that begin with its prefix until it is told to stop.
pub struct StoreLoad {
    prefix: String,
    stop: Arc<AtomicBool>,
    changes: Arc<AtomicU64>,
    thread: Option<JoinHandle<Made>>,
    watcher: Watcher,
}

/// What a load was told.
#[derive(Default)]
struct Made {
    /// Value and revision of each key that is there.
    model: BTreeMap<String, (String, u64)>,
    /// In the order of their revisions.
    changes: Seen,
}

impl StoreLoad {
    pub fn start(cluster: &Cluster, dc: &str, prefix: &str) -> StoreLoad {
        let watcher = Watcher::start(cluster, dc, prefix);
        let mut pipe = Pipe::open(cluster, dc);
        let (stop, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = std::thread::spawn({
            let (stop, changes, prefix) = (Arc::clone(&stop), Arc::clone(&changes), prefix.to_owned());
            move || {
                let mut made = Made::default();
                for step in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    made.step(&mut pipe, &prefix, step);
                    changes.store(step + 1, Ordering::Relaxed);
                }
                made
            }
        });
        StoreLoad { prefix: prefix.to_owned(), stop, changes, thread: Some(thread), watcher }
    }

    pub fn operations(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Waits until it made some more changes.
    pub fn await_more(&self, limit: Duration) {
        let from = self.operations();
        eventually("the client of the store goes on", limit, || {
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!ended, "the client of the store ended after {from} operations");
            (self.operations() > from + 3).then_some(())
        });
    }

    /// Ends it, and compares what it was told with what the store has and what the watcher saw.
    pub fn finish(mut self, cluster: &Cluster, dc: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let made = self.thread.take().map(JoinHandle::join).expect("it runs").expect("every answer was right");
        let listed = cluster.json(&["ds", "ls", dc, &self.prefix, "-o", "json"]);
        let listed = listed.as_array().expect("a list").iter().map(|entry| {
            (text(&entry["key"]), (text(&entry["value"]), entry["revision"].as_u64().expect("a revision")))
        });
        assert_eq!(listed.collect::<BTreeMap<_, _>>(), made.model);
        self.watcher.expect(&made.changes);
    }
}

impl Drop for StoreLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Made {
    fn step(&mut self, pipe: &mut Pipe, prefix: &str, step: u64) {
        // Any order that visits all keys, and every key with each kind of operation.
        let key = format!("{prefix}{:02}", step.wrapping_mul(7) % KEYS);
        let old = self.model.get(&key).cloned();
        let revision = old.as_ref().map_or(0, |(_, revision)| *revision);
        match (step % 11, old) {
            (0..=1, Some(_)) => {
                let answer = pipe.ask(&json!({ "op": "delete", "key": key, "revision": revision }));
                self.changed(&key, "delete", &answer);
                self.model.remove(&key);
            }
            (2..=3, old) => {
                let answer = pipe.ask(&json!({ "op": "get", "key": key }));
                let wanted = match old {
                    Some((value, revision)) => json!({ "key": key, "value": value, "revision": revision }),
                    None => json!({ "error": "there is no such key" }),
                };
                assert_eq!(answer, wanted);
            }
            (4, _) => {
                // What was written by an earlier revision is not replaced.
                let wrong = revision + 1_000_000_000;
                let answer = pipe.ask(&json!({ "op": "put", "key": key, "value": "wrong", "revision": wrong }));
                assert!(answer["error"].is_string(), "{answer}");
            }
            _ => {
                let value = format!("{step}:{}", "x".repeat((step % 900) as usize));
                let answer = pipe.ask(&json!({ "op": "put", "key": key, "value": value, "revision": revision }));
                let revision = self.changed(&key, "put", &answer);
                self.model.insert(key, (value, revision));
            }
        }
    }

    fn changed(&mut self, key: &str, kind: &str, answer: &Value) -> u64 {
        let revision = answer["revision"].as_u64().unwrap_or_else(|| panic!("{kind} {key}: {answer}"));
        let last = self.changes.last().map_or(0, |(_, _, revision)| *revision);
        assert!(revision > last, "{kind} {key}: {answer} after {last}");
        self.changes.push((key.to_owned(), kind.to_owned(), revision));
        revision
    }
}

/// A session that answers one request after the other. Killed when dropped.
struct Pipe {
    child: Child,
    answers: Receiver<String>,
}

impl Pipe {
    fn open(cluster: &Cluster, dc: &str) -> Pipe {
        let (child, answers) = lines_of(cluster, &["ds", "pipe", dc]);
        Pipe { child, answers }
    }

    fn ask(&mut self, request: &Value) -> Value {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{request}").expect("it takes requests");
        let answer = self.answers.recv_timeout(ANSWER).unwrap_or_else(|error| panic!("{request}: {error}"));
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{request}: {answer} ({error})"))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Notes what happens to keys.
struct Watcher {
    child: Child,
    events: Receiver<String>,
    seen: Mutex<Seen>,
}

impl Watcher {
    /// Returns when it is subscribed.
    fn start(cluster: &Cluster, dc: &str, prefix: &str) -> Watcher {
        let (child, events) = lines_of(cluster, &["ds", "watch", dc, prefix, "-o", "json"]);
        let hello = format!("{prefix}hello");
        eventually("somebody watches", ANSWER, || {
            let subscribers = cluster.ok(&["ds", "publish", dc, &hello, "hello"]);
            (subscribers.trim() != "0").then_some(())
        });
        Watcher { child, events, seen: Mutex::default() }
    }

    /// It must have seen these, each once, in order, and nothing else.
    fn expect(&self, wanted: &Seen) {
        let mut seen = self.seen.lock();
        while seen.last().map(|(_, _, revision)| *revision) < wanted.last().map(|(_, _, revision)| *revision) {
            match self.events.recv_timeout(ANSWER) {
                Ok(line) => {
                    let event: Value = serde_json::from_str(&line).expect("an event is JSON");
                    if event["kind"] != "message" {
                        let revision = event["revision"].as_u64().expect("a revision");
                        seen.push((text(&event["key"]), text(&event["kind"]), revision));
                    }
                }
                Err(error @ (RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)) => {
                    panic!("{} of {} events: {error}", seen.len(), wanted.len())
                }
            }
        }
        let differs = seen.iter().zip(wanted).find(|(seen, wanted)| seen != wanted);
        assert!(differs.is_none() && seen.len() == wanted.len(), "{differs:?}: {} of {}", seen.len(), wanted.len());
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn lines_of(cluster: &Cluster, arguments: &[&str]) -> (Child, Receiver<String>) {
    let mut command = cluster.command_without_limit(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs starts");
    let stdout = child.stdout.take().expect("a pipe");
    let (lines, heard) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    (child, heard)
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
