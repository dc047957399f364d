//! Programs of the container that work on files and check each effect (`load.py`): they hear of no error, whatever
//! happens elsewhere.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::robustness::Notes;
use crate::robustness::faults::{NODES, Node};
use crate::robustness::site::Site;

const PROGRAM: &str = include_str!("../load.py");

/// What one program said.
#[derive(Default)]
struct Heard {
    operations: AtomicU64,
    lines: Mutex<Vec<String>>,
    errors: Mutex<Vec<String>>,
}

struct Running {
    child: Child,
    input: Option<ChildStdin>,
    heard: Arc<Heard>,
    listeners: Vec<JoinHandle<()>>,
    directory: String,
}

impl Running {
    fn start(site: &Site, dc: &str, node: Node, directory: &str, seed: u64) -> Option<Running> {
        let seed = seed.to_string();
        let run = ["run", dc, "--node", NODES[node], "-i", "--", "python3", "-c", PROGRAM, "run", directory, &seed];
        let mut command = site.command_without_limit(node, &run);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
        let (input, heard) = (child.stdin.take(), Arc::new(Heard::default()));
        let (stdout, stderr) = (child.stdout.take()?, child.stderr.take()?);
        let listeners = vec![
            listen(stdout, Arc::clone(&heard), |heard, line| match line.strip_prefix("ops ") {
                Some(rest) => {
                    let count = rest.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
                    heard.operations.store(count, Ordering::Relaxed);
                }
                None => heard.lines.lock().expect("nobody panics").push(line),
            }),
            listen(stderr, Arc::clone(&heard), |heard, line| heard.errors.lock().expect("nobody panics").push(line)),
        ];
        Some(Running { child, input, heard, listeners, directory: directory.to_owned() })
    }

    /// What it said, once it has ended.
    fn end(mut self) -> (Option<i32>, Vec<String>, Vec<String>) {
        drop(self.input.take());
        let status = self.child.wait().ok().and_then(|status| status.code());
        for listener in self.listeners.drain(..) {
            let _ = listener.join();
        }
        let take = |lines: &Mutex<Vec<String>>| std::mem::take(&mut *lines.lock().expect("nobody panics"));
        (status, take(&self.heard.lines), take(&self.heard.errors))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(
    output: impl Read + Send + 'static,
    heard: Arc<Heard>,
    take: impl Fn(&Heard, String) + Send + 'static,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            take(&heard, line);
        }
    })
}

/// One program on a node, and the next one when it was killed by a fault; until the traffic ends. Answers how many
/// operations there were.
pub fn work(site: &Site, notes: &Notes, dc: &str, node: Node, seed: u64) -> u64 {
    let (mut life, mut operations) = (0, 0);
    while !notes.has_ended() {
        life += 1;
        let kills = notes.kills(node);
        let directory = format!("/dc/files-{}-{life}", NODES[node]);
        let Some(mut running) = Running::start(site, dc, node, &directory, seed.wrapping_add(life)) else { break };
        let ended = loop {
            if notes.has_ended() {
                break None;
            }
            if let Ok(Some(status)) = running.child.try_wait() {
                break Some(status);
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        operations += running.heard.operations.load(Ordering::Relaxed);
        let (directory, was_killed) = (running.directory.clone(), notes.kills(node) != kills);
        let began = running.heard.operations.load(Ordering::Relaxed) > 0;
        let (status, lines, errors) = running.end();
        match ended {
            Some(_) if was_killed => (),
            // While a node is hurt nothing can be started on it, perhaps; it says so.
            Some(_) if !began && lines.is_empty() => {
                notes.heard(&format!("a file worker was not started: {}", errors.join(" ")));
                std::thread::sleep(Duration::from_millis(300));
            }
            Some(status) => {
                notes.is_wrong(format!("the file worker on {} ended ({status}): {errors:?}", NODES[node]));
                return operations;
            }
            None if was_killed => (),
            None => compare(site, notes, dc, node, &directory, status, &lines, &errors),
        }
    }
    operations
}

/// What the program remembers with what another node sees.
#[allow(clippy::too_many_arguments, reason = "two lists of lines")]
fn compare(
    site: &Site,
    notes: &Notes,
    dc: &str,
    node: Node,
    directory: &str,
    status: Option<i32>,
    lines: &[String],
    errors: &[String],
) {
    let wanted: Vec<&str> = lines.iter().skip_while(|line| *line != "summary").skip(1).map(String::as_str).collect();
    if status != Some(0) || !lines.iter().any(|line| line == "summary") {
        return notes.is_wrong(format!("the file worker on {} ended with {status:?}: {errors:?}", NODES[node]));
    }
    for (other, name) in NODES.iter().enumerate() {
        let see = ["run", dc, "--node", name, "--", "python3", "-c", PROGRAM, "summary", directory, "0"];
        let done = site.dvs(other, &see);
        let seen = String::from_utf8_lossy(&done.stdout).into_owned();
        if !done.status.success() || seen.lines().skip(1).ne(wanted.iter().copied()) {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            notes.is_wrong(format!("{directory} is not on {name} what its worker left: {said}"));
        }
    }
}
