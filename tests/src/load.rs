//! A program in a container that works on files and checks each effect (`load.py` says what it does).

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::Cluster;

const PROGRAM: &str = include_str!("load.py");

/// What the program said so far.
#[derive(Clone, Debug, Default)]
struct Said {
    operations: u64,
    /// Records of its log that were acknowledged.
    appended: u64,
    /// What the tree below its directory must be; when it ended well.
    summary: Option<Vec<String>>,
    /// Everything else: reasons why it did not.
    other: Vec<String>,
    has_ended: bool,
}

#[derive(Default)]
struct Heard {
    said: Mutex<Said>,
    more: Condvar,
}

impl Heard {
    /// Listens until the program has closed its output.
    fn listen(&self, output: impl Read) {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let mut said = self.said.lock();
            match (line.split(' ').collect::<Vec<_>>().as_slice(), &mut said.summary) {
                (_, Some(summary)) => summary.push(line),
                (["summary"], none) => *none = Some(Vec::new()),
                (["ops", operations, "appended", appended], _) => {
                    said.operations = operations.parse().expect("a number");
                    said.appended = appended.parse().expect("a number");
                }
                _ => said.other.push(line),
            }
            self.more.notify_all();
        }
        self.said.lock().has_ended = true;
        self.more.notify_all();
    }
}

/// The program while it runs; killed when dropped.
pub struct Load {
    dc: String,
    directory: String,
    seed: u64,
    child: Child,
    /// Closed: the program ends.
    stdin: Option<ChildStdin>,
    heard: Arc<Heard>,
    listener: Option<JoinHandle<()>>,
}

impl Load {
    /// Starts it on a node. It makes `directory`.
    pub fn start(cluster: &Cluster, dc: &str, node: &str, directory: &str, seed: u64) -> Load {
        let seed_text = seed.to_string();
        let mut command = cluster.command_without_limit(&[
            "run", dc, "--node", node, "-i", "--", "python3", "-c", PROGRAM, "run", directory, &seed_text,
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("dvs starts");
        let stdin = child.stdin.take();
        let (stdout, stderr) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        let heard = Arc::new(Heard::default());
        let listener = std::thread::spawn({
            let heard = Arc::clone(&heard);
            move || {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                            heard.said.lock().other.push(line);
                        }
                    });
                    heard.listen(stdout);
                });
            }
        });
        let load = Load {
            dc: dc.to_owned(),
            directory: directory.to_owned(),
            seed,
            child,
            stdin,
            heard,
            listener: Some(listener),
        };
        load.await_more(cluster, 2, Duration::from_secs(60));
        load
    }

    pub fn operations(&self) -> u64 {
        self.heard.said.lock().operations
    }

    /// Waits until it said `lines` more times that it went on. Panics when it ended, or when `limit` passes.
    pub fn await_more(&self, cluster: &Cluster, lines: u64, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut said = self.heard.said.lock();
        let mut last = said.operations;
        let mut left = lines;
        while left > 0 {
            let now = Instant::now();
            if said.has_ended || now >= deadline {
                let what = if said.has_ended { "the load ended" } else { "the load does not go on" };
                let seen = said.clone();
                drop(said);
                panic!("{what} on {} (seed {}): {seen:?}{}", self.directory, self.seed, cluster.logs());
            }
            self.heard.more.wait_for(&mut said, deadline - now);
            if said.operations > last {
                last = said.operations;
                left -= 1;
            }
        }
    }

    /// Lets it end, and compares what it remembers with what the nodes see.
    pub fn finish(mut self, cluster: &Cluster, nodes: &[&str]) -> Checked {
        drop(self.stdin.take());
        let said = self.join();
        let Some(wanted) = said.summary.clone() else {
            panic!("the load on {} (seed {}) ended: {said:?}{}", self.directory, self.seed, cluster.logs());
        };
        let checked =
            Checked { dc: self.dc.clone(), directory: self.directory.clone(), operations: said.operations, wanted };
        for node in nodes {
            checked.verify(cluster, node);
        }
        checked
    }

    /// After its keeper was killed: the program ends, its client says so, and nothing it was told is missing.
    pub fn lost(mut self, cluster: &Cluster, node: &str) {
        let said = self.join();
        let status = self.child.wait().expect("dvs ends");
        assert!(!status.success() && said.summary.is_none(), "{status}: {said:?}");
        let seed = self.seed.to_string();
        let arguments =
            ["run", &self.dc, "--node", node, "--", "python3", "-c", PROGRAM, "records", &self.directory, &seed];
        let found: u64 = cluster.ok(&arguments).trim().parse().expect("a number");
        assert!(found >= said.appended, "{found} of {} acknowledged records are left", said.appended);
    }

    fn join(&mut self) -> Said {
        if let Some(listener) = self.listener.take() {
            listener.join().expect("the listener does not panic");
        }
        self.heard.said.lock().clone()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.join();
    }
}

/// What a load left.
pub struct Checked {
    dc: String,
    directory: String,
    pub operations: u64,
    wanted: Vec<String>,
}

impl Checked {
    /// Compares what a node sees with what the program remembered.
    pub fn verify(&self, cluster: &Cluster, node: &str) {
        let arguments =
            ["run", &self.dc, "--node", node, "--", "python3", "-c", PROGRAM, "summary", &self.directory, "0"];
        let text = cluster.ok(&arguments);
        let seen: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(seen, self.wanted, "{} seen from {node}", self.directory);
    }
}
