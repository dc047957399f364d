//! `dvs run`, `attach` and `logs` as people use them: on a terminal, in pipes, with signals. Each on a node of its own
//! and on another one, because the second is a stream between two daemons.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use end_to_end::terminal::Terminal;
use end_to_end::{Cluster, eventually};
use rustix::process::{Pid, Signal, kill_process};

const NODES: [&str; 2] = ["n1", "n2"];
const PROMPT: &str = "ready> ";

fn cluster() -> Cluster {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    cluster
}

/// A shell that says when it waits for a command.
fn shell(cluster: &Cluster, node: &str) -> Terminal {
    let prompt = format!("PS1={PROMPT}");
    let arguments = ["run", "-it", "shop", "--node", node, "--env", &prompt, "--", "bash", "--norc", "--noediting"];
    let mut terminal = Terminal::start(&cluster.command_without_limit(&arguments));
    terminal.shows(PROMPT);
    terminal
}

/// The shell's PID, which it is asked for.
fn pid_of(shell: &mut Terminal) -> String {
    shell.press("echo pid=$$=\n");
    shell.shows("\npid=");
    let pid = shell.shows("=").trim_end_matches('=').to_owned();
    shell.shows(PROMPT);
    pid
}

fn is_listed(cluster: &Cluster, pid: &str) -> bool {
    cluster.ok(&["ps", "shop", "-o", "name"]).lines().any(|line| line == pid)
}

#[test]
fn shell_on_a_terminal_has_job_control_and_follows_the_window() {
    let cluster = cluster();
    for node in NODES {
        let mut shell = shell(&cluster, node);
        assert!(shell.is_raw());
        shell.press("tty; stty size\n");
        shell.shows("/dev/pts/");
        shell.shows("24 80");
        shell.shows(PROMPT);
        // A job of its own: the window's signal goes to what is in the foreground. Quotes keep the typed line from
        // looking like the answer.
        let job = r#"bash -c 'trap "stty size" WINCH; trap "echo con\"\"tinued" CONT; echo ar""med; while :; do sleep 0.05; done'"#;
        shell.press(&format!("{job}\n"));
        shell.shows("armed");
        shell.resize(40, 132);
        shell.shows("40 132");
        shell.press("\x1a");
        shell.shows("Stopped");
        shell.shows(PROMPT);
        shell.press("fg\n");
        shell.shows("continued");
        shell.press("\x03");
        shell.shows(PROMPT);
        shell.press("exit 7\n");
        assert_eq!(shell.status(), 7);
        assert!(!shell.is_raw(), "the terminal was not restored");
    }
}

#[test]
fn terminal_is_restored_and_the_status_right_however_the_program_ends() {
    let cluster = cluster();
    let ends = [(&["bash", "-c", "exit 3"][..], 3), (&["bash", "-c", "kill -9 $$"], 137), (&["no-such-program"], 127)];
    for (program, status) in ends {
        let arguments = [&["run", "-t", "shop", "--"], program].concat();
        let mut terminal = Terminal::start(&cluster.command_without_limit(&arguments));
        assert_eq!(terminal.status(), status, "{}", terminal.screen());
        assert!(!terminal.is_raw());
    }
}

#[test]
fn shell_that_was_left_or_hung_up_goes_on_and_is_found_again() {
    let cluster = cluster();
    for node in NODES {
        let mut first = shell(&cluster, node);
        let pid = pid_of(&mut first);
        first.press("kept=value\n");
        first.shows(PROMPT);
        first.press("\x10\x11");
        assert_eq!(first.status(), 0);
        assert!(first.screen().contains(&format!("dvs attach shop {pid}")), "{}", first.screen());
        assert!(!first.is_raw());

        let attach = ["attach", "shop", &pid];
        let mut second = Terminal::start(&cluster.command_without_limit(&attach));
        second.press("echo $kept\n");
        second.shows("value");
        second.shows(PROMPT);
        second.hang_up();

        let mut third = Terminal::start(&cluster.command_without_limit(&attach));
        third.press("echo still $kept\n");
        third.shows("still value");
        third.shows(PROMPT);
        third.press("exit 5\n");
        assert_eq!(third.status(), 5);
        eventually("the shell is gone", Duration::from_secs(10), || (!is_listed(&cluster, &pid)).then_some(()));
    }
}

#[test]
fn signal_to_the_command_reaches_the_program_and_comes_back_as_its_status() {
    let cluster = cluster();
    for node in NODES {
        for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::USR1, 138)] {
            let arguments = ["run", "shop", "--node", node, "--", "bash", "-c", "echo started; exec sleep 1000"];
            let mut child = cluster.command_without_limit(&arguments).stdout(Stdio::piped()).spawn().expect("dvs");
            let mut line = [0; 8];
            std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut line).expect("it started");
            kill_process(Pid::from_child(&child), signal).expect("the command is there");
            assert_eq!(child.wait().expect("it ends").code(), Some(status), "{signal:?} on {node}");
        }
    }
}

#[test]
fn input_is_empty_unless_it_was_asked_for() {
    let cluster = cluster();
    for node in NODES {
        for (option, expected) in [(None, ""), (Some("-i"), "data\n")] {
            let mut arguments = vec!["run", "shop", "--node", node];
            arguments.extend(option);
            arguments.extend(["--", "cat"]);
            let mut child = cluster.command(&arguments);
            let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs");
            // Nobody may have wanted it.
            let _ = child.stdin.take().expect("a pipe").write_all(b"data\n");
            let done = child.wait_with_output().expect("it ends");
            assert_eq!((done.status.code(), String::from_utf8_lossy(&done.stdout).as_ref()), (Some(0), expected));
        }
    }
}

#[test]
fn program_whose_reader_goes_away_ends_as_it_would_in_a_pipe() {
    let cluster = cluster();
    for node in NODES {
        let arguments = ["run", "shop", "--node", node, "--", "yes"];
        let mut child = cluster.command(&arguments).stdout(Stdio::piped()).spawn().expect("dvs");
        let mut some = [0; 1000];
        std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut some).expect("it writes");
        drop(child.stdout.take());
        assert_eq!(child.wait().expect("it ends").code(), Some(141));
        assert!(!cluster.ok(&["ps", "shop"]).contains(" yes"), "it goes on");
    }
}

#[test]
fn log_is_followed_until_a_detached_program_ends() {
    let cluster = cluster();
    for node in NODES {
        let script = "echo first; until [ -e /dc/go ]; do sleep 0.02; done; echo last >&2; exit 6";
        let pid = cluster.ok(&["run", "-d", "shop", "--node", node, "--", "bash", "-c", script]);
        let pid = pid.trim();
        let mut log = cluster.spawn(&["logs", "-f", "shop", pid]);
        let mut line = [0; 6];
        std::io::Read::read_exact(log.stdout.as_mut().expect("a pipe"), &mut line).expect("the first line");
        assert_eq!(&line, b"first\n");
        cluster.sh("shop", "n1", "touch /dc/go");
        let rest = log.wait_with_output().expect("it ends with the program");
        assert_eq!(
            (rest.status.code(), rest.stdout.as_slice(), rest.stderr.as_slice()),
            (Some(0), &b""[..], &b"last\n"[..])
        );
        let tail = cluster.output(&["logs", "--tail", "1", "shop", pid]);
        assert_eq!((tail.stdout.as_slice(), tail.stderr.as_slice()), (&b""[..], &b"last\n"[..]));
        let listed = cluster.json(&["ps", "--all", "shop", "-o", "json"]);
        let ended =
            listed.as_array().and_then(|all| all.iter().find(|one| one["pid"].as_u64() == pid.parse().ok()).cloned());
        assert_eq!(ended.expect("it is remembered")["exit"], 6);
        cluster.sh("shop", "n1", "rm /dc/go");
    }
}

#[test]
fn command_that_is_killed_leaves_its_program_running() {
    let cluster = cluster();
    let arguments = ["run", "-i", "shop", "--node", "n2", "--", "bash", "-c", "echo $$; cat; exec sleep 1000"];
    let mut command = cluster.command_without_limit(&arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs");
    let mut pid = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut pid).expect("a PID");
    child.kill().and_then(|()| child.wait()).expect("killed");
    let pid = String::from_utf8_lossy(&pid).into_owned();
    eventually("its input has ended and it goes on", Duration::from_secs(10), || {
        cluster.ok(&["ps", "shop"]).lines().any(|line| line.starts_with(&pid) && line.contains("sleep")).then_some(())
    });
    cluster.ok(&["kill", "shop", &pid]);
}
