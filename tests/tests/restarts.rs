//! Whatever of ours is killed, applications do not notice, and nothing stays behind.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use end_to_end::load::Load;
use end_to_end::{Cluster, dvs_binary, eventually, is_long_run};

const SOON: Duration = Duration::from_secs(30);

/// Appends 300 numbered lines and says how many there are, and how many different ones.
const WRITER: &str = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i >> /dc/log || exit 9; sleep 0.005; done
    echo $(wc -l < /dc/log) $(sort -u /dc/log | wc -l)";

/// Processes of a node whose command line matches, as the node numbers them.
fn pids(cluster: &Cluster, node: &str, pattern: &str) -> Vec<String> {
    let found = cluster.output(&["dev", "exec", node, "--", "pgrep", "-f", pattern]);
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

fn kill(cluster: &Cluster, node: &str, pid: &str) {
    cluster.ok(&["dev", "exec", node, "--", "kill", "-9", pid]);
}

fn write_on(cluster: &Cluster, node: &str) -> Child {
    let writer = cluster.spawn(&["run", "shop", "--node", node, "--", "sh", "-c", WRITER]);
    eventually("the program writes", SOON, || {
        let seen = cluster.output(&["run", "shop", "--node", "n1", "--", "sh", "-c", "wc -l < /dc/log"]);
        String::from_utf8_lossy(&seen.stdout).trim().parse::<usize>().ok().filter(|lines| *lines > 5)
    });
    writer
}

fn assert_complete(cluster: &Cluster, writer: Child) {
    let output = writer.wait_with_output().expect("the program ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.trim() == "300 300", "{output:?}{}", cluster.logs());
}

fn await_running(cluster: &Cluster) {
    eventually("the container runs whole again", SOON, || {
        (cluster.json(&["dc", "inspect", "shop", "-o", "json"])["phase"] == "running").then_some(())
    });
}

#[test]
fn program_does_not_notice_the_death_of_any_server_gate_or_proxy() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let writer = write_on(&cluster, "n2");
    for (node, pattern) in [
        ("n1", "^dvs server fs"),
        ("n1", "^dvs server disk"),
        ("n1", "^dvs proxy"),
        ("n2", "^dvs gate fuse"),
        ("n2", "^dvs gate calls"),
        ("n2", "^dvs proxy"),
    ] {
        let found = pids(&cluster, node, pattern);
        assert_eq!(found.len(), 1, "{pattern} on {node}");
        kill(&cluster, node, &found[0]);
        eventually("it is started again", SOON, || {
            pids(&cluster, node, pattern).first().filter(|pid| **pid != found[0]).cloned()
        });
    }
    await_running(&cluster);
    assert_complete(&cluster, writer);
}

/// A directory that nodes have not contended for, so that their kernels trust names in it.
fn know_a_directory(cluster: &Cluster, directory: &str) {
    cluster.sh("shop", "n1", &format!("mkdir {directory}"));
    for node in ["n2", "n3"] {
        cluster.sh("shop", node, &format!("ls {directory}; ls {directory}/mine {directory}/other || true"));
    }
}

/// Two programs on n1 and n2 that change one directory, while the gate of n3 stands still, which has to be asked before
/// anything there changes. `None`: the gate of n2 does not wait for its directory's lock.
fn change_at_once(cluster: &Cluster, directory: &str, third: &str, waits: impl Fn() -> bool) -> Option<(Child, Child)> {
    know_a_directory(cluster, directory);
    let (of_mine, of_other) = (format!("{directory}/mine"), format!("{directory}/other"));
    cluster.ok(&["dev", "exec", "n3", "--", "kill", "-STOP", third]);
    let mine = cluster.spawn(&["run", "shop", "--node", "n2", "--", "touch", &of_mine]);
    eventually("its directory is locked, or it is done", SOON, || {
        let shown = cluster.json(&["ps", "-a", "shop", "-o", "json"]);
        let shown = shown.as_array().expect("a list");
        let mut of_it = shown.iter().filter(|process| process.to_string().contains(&of_mine));
        of_it.next_back().filter(|process| process["waits_for_tree"] == true || process["state"] != "running").map(drop)
    });
    let other = cluster.spawn(&["run", "shop", "--node", "n1", "--", "touch", &of_other]);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        if waits() {
            return Some((mine, other));
        }
    }
    cluster.ok(&["dev", "exec", "n3", "--", "kill", "-CONT", third]);
    for program in [mine, other] {
        program.wait_with_output().expect("the program ends");
    }
    None
}

/// A thread of the killed gate waits in the kernel for the lock of a directory, which a program holds until the next
/// gate answers it.
#[test]
fn gate_that_cannot_die_before_its_successor_has_answered_has_one() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["--fs-node", "n1", "--disk-node", "n1"]);
    let gate = |node: &str| pids(&cluster, node, "^dvs gate fuse").pop();
    let signal = |node: &str, signal: &str, pid: &str| cluster.ok(&["dev", "exec", node, "--", "kill", signal, pid]);
    let (second, third) = (gate("n2").expect("a gate"), gate("n3").expect("a gate"));
    let threads = |letter: &str| {
        let script = format!("awk '$2 == \"(notifier)\" {{ print $3 }}' /proc/{second}/task/*/stat | grep -c {letter}");
        cluster.output(&["dev", "exec", "n2", "--", "sh", "-c", &script]).stdout
    };
    // On a busy machine the gate that stands still is fenced before both programs have asked: then once more.
    let directory = |attempt| format!("/dc/d{attempt}");
    let attempt = |number| change_at_once(&cluster, &directory(number), &third, || threads("D") != b"0\n");
    let (number, (mine, other)) = (0..5).find_map(|number| Some((number, attempt(number)?))).expect("in time");
    signal("n2", "-KILL", &second);
    eventually("there is another one", SOON, || gate("n2").filter(|pid| *pid != second));
    signal("n3", "-CONT", &third);
    for program in [mine, other] {
        let output = program.wait_with_output().expect("the program ends");
        assert!(output.status.success(), "{output:?}{}", cluster.logs());
    }
    assert_eq!(cluster.sh("shop", "n2", &format!("ls {}", directory(number))), "mine\nother\n");
    await_running(&cluster);
}

#[test]
fn program_and_its_client_go_on_without_the_daemon_which_then_adopts_them() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let writer = write_on(&cluster, "n1");
    let keepers = pids(&cluster, "n1", "^dvs keeper");
    let daemon = pids(&cluster, "n1", "daemon --config");
    assert_eq!(daemon.len(), 1, "{daemon:?}");
    kill(&cluster, "n1", &daemon[0]);
    cluster.ok(&["dev", "restart", "n1"]);
    await_running(&cluster);
    assert_complete(&cluster, writer);
    assert_eq!(pids(&cluster, "n1", "^dvs keeper"), keepers);
}

#[test]
fn node_that_returns_removes_what_was_deleted_while_it_was_away() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    kill(&cluster, "n2", &pids(&cluster, "n2", "daemon --config")[0]);
    // Its lease must end before the others stop waiting for it.
    eventually("n2 is down", SOON, || {
        let nodes = cluster.json(&["node", "ls", "-o", "json"]);
        nodes.as_array()?.iter().find(|node| node["name"] == "n2" && node["state"] == "down").cloned()
    });
    cluster.ok(&["dc", "delete", "--force", "shop"]);
    assert!(!pids(&cluster, "n2", "^dvs keeper").is_empty(), "nobody told it yet");
    cluster.ok(&["dev", "restart", "n2"]);
    eventually("n2 has cleaned up", SOON, || {
        let left: usize =
            ["^dvs gate", "^dvs keeper", "^dvs server"].iter().map(|role| pids(&cluster, "n2", role).len()).sum();
        (left == 0).then_some(())
    });
}

/// A program of ours and the lines that it prints. Killed when dropped.
struct Told {
    child: Child,
    lines: Receiver<String>,
}

impl Told {
    fn start(mut command: std::process::Command) -> Told {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = child.stdout.take().expect("a pipe");
        let (told, lines) = channel();
        std::thread::spawn(move || {
            let all = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
            all.map(|line| String::from_utf8_lossy(&line).trim().to_owned()).try_for_each(|line| told.send(line))
        });
        Told { child, lines }
    }

    fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("it listens");
    }

    /// The next line that `wanted` likes.
    fn hear<T>(&self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> T {
        loop {
            let line = self.lines.recv_timeout(SOON).unwrap_or_else(|error| panic!("{what}: {error}"));
            if let Some(found) = wanted(&line) {
                return found;
            }
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tick(line: &str) -> Option<u64> {
    line.strip_prefix("tick ")?.parse().ok()
}

#[test]
fn programs_terminals_and_logs_go_on_while_the_daemon_is_killed_and_obey_its_successor() {
    const TICKER: &str = "i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.02; done";
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n2"]);
    let load = Load::start(&cluster, "shop", "n1", "/dc/load", 7);
    let ticker = cluster.ok(&["run", "-d", "shop", "--node", "n1", "--", "sh", "-c", TICKER]);
    let ticker = ticker.trim();
    // `script` gives it a terminal; the shell in the container has one of its own behind it.
    let binary = dvs_binary();
    let command = format!("{} run -it shop --node n1 -- sh", binary.display());
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).env("DVS_STATE_DIR", cluster.state_dir()).env_remove("DVS_SOCKET");
    let mut terminal = Told::start(script);
    terminal.say("echo shell $((40 + 2)) is $$");
    let shell = terminal.hear("the shell answers", |line| Some(line.split_once("shell 42 is ")?.1.to_owned()));
    let mut heard = 0;
    for round in 0..if is_long_run() { 50 } else { 4 } {
        kill(&cluster, "n1", &pids(&cluster, "n1", "daemon --config")[0]);
        load.await_more(&cluster, 2, SOON);
        terminal.say(&format!("echo round $(({round} + 1000))"));
        terminal.hear("the terminal answers without a daemon", |line| {
            line.ends_with(&format!("round {}", round + 1000)).then_some(())
        });
        cluster.ok(&["dev", "restart", "n1"]);
        let listed = cluster.ok(&["ps", "shop", "-o", "name"]);
        assert!([ticker, &shell].iter().all(|pid| listed.lines().any(|line| line == *pid)), "{listed}");
        let beside = ["exec", "--beside", &shell, "shop", "--", "sh", "-c", "echo $$ on $(hostname)"];
        assert!(cluster.ok(&beside).trim().ends_with("on n1"));
        let follower = Told::start(cluster.command_without_limit(&["logs", "-f", "-n", "3", "shop", ticker]));
        let seen = follower.hear("the log goes on", tick);
        let attached = Told::start(cluster.command_without_limit(&["attach", "shop", ticker]));
        let last = attached.hear("it can be attached to", tick);
        assert!(last >= seen, "{last} after {seen}");
        heard = follower.hear("the log is followed", |line| tick(line).filter(|number| *number > last));
    }
    await_running(&cluster);
    cluster.ok(&["kill", "shop", ticker]);
    eventually("it was ended", SOON, || {
        let ended = cluster.json(&["ps", "--all", "shop", "-o", "json"]);
        let ended = ended.as_array()?.iter().find(|one| one["pid"].as_u64() == ticker.parse().ok())?.clone();
        (ended["state"] == "exited" && ended["exit"] == 143).then_some(())
    });
    let log = cluster.ok(&["logs", "shop", ticker]);
    let ticks: Vec<u64> = log.lines().filter_map(tick).collect();
    let is_whole = ticks.iter().copied().eq(1..=ticks.len() as u64);
    assert!(is_whole && ticks.len() as u64 >= heard, "{} ticks, {heard} heard: {ticks:?}", ticks.len());
    terminal.say("exit 5");
    let status = eventually("the terminal's client ends", SOON, || terminal.child.try_wait().ok()?);
    assert_eq!(status.code(), Some(5));
    load.finish(&cluster, &["n1", "n2"]);
}
