//! Programs in a container's share of one node, with real namespaces.

mod support;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use keeper::{BadRun, KeeperError, LogPart, Refusal, Stage, StreamEnd, Task};
use mgmt_api::stream::Kind;
use mgmt_api::{LogForm, LogPiece, LogStream, ProcessState, TerminalSize};
use support::{Keeper, Watcher, is_root, request};

const ALL: LogPart = LogPart { tail_lines: None, since_ms: None };

fn last(lines: usize) -> LogPart {
    LogPart { tail_lines: Some(lines), since_ms: None }
}

const NO_DESCRIPTORS: &[std::os::fd::BorrowedFd<'static>] = &[];

#[test]
fn program_runs_as_root_of_its_own_system_with_a_pid_of_the_nodes_range() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let ended = keeper.shell("id -u; id -g; hostname; echo $FROM_KEEPER; cat /proc/1/comm; pwd; exit 3");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "0\n0\nshop\n1\ndvs-init\n/dc\n");
    assert_eq!(ended.exit, Some(3));
    assert!((131_072..131_072 + 100).contains(&ended.pid.expect("pid")), "{ended:?}");
    let degraded = keeper.client.status().expect("status").degraded;
    assert_eq!(degraded, Vec::<String>::new());
}

#[test]
fn programs_that_many_start_at_once_all_run() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let started = std::thread::scope(|scope| {
        // More than may talk with the keeper at a time.
        let start = |_| scope.spawn(|| keeper.connect().run(&request(&["true"]), None));
        let starters: Vec<_> = (0..200).map(start).collect();
        starters.into_iter().map(|starter| starter.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert!(started.iter().all(Result::is_ok), "{:?}", started.iter().find(|one| one.is_err()));
}

#[test]
fn process_table_is_shown_to_many_who_ask_at_once() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let shown = std::thread::scope(|scope| {
        // More than there are processes that read the table, and than may talk with the keeper at a time.
        let ask = |_| scope.spawn(|| keeper.connect().list());
        let askers: Vec<_> = (0..200).map(ask).collect();
        askers.into_iter().map(|asker| asker.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert!(shown.iter().all(Result::is_ok), "{:?}", shown.iter().find(|one| one.is_err()));
}

#[test]
fn no_program_is_missing_in_a_table_that_is_read_while_it_ends() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    for _ in 0..100 {
        let pid = keeper.client.run(&request(&["sh", "-c", "exit 7"]), None).expect("run");
        loop {
            let processes = keeper.client.list().expect("list");
            let found = processes.iter().find(|process| process.pid == pid).expect("it is there until it has ended");
            if found.state == ProcessState::Exited {
                assert_eq!(found.exit, Some(7));
                break;
            }
        }
    }
}

#[test]
fn keeper_that_can_log_nothing_serves_on_and_its_programs_live() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start_saying(Some(std::path::Path::new("/dev/full")), |_| ());
    let pid = keeper.client.run(&request(&["sleep", "1000"]), None).expect("run");
    // It has something to say of this, and of a log that cannot be made.
    let stranger = sys::seqpacket::connect(&keeper.options.control).expect("connect");
    sys::seqpacket::send(&stranger, b"\0nonsense", NO_DESCRIPTORS).expect("send");
    std::fs::remove_dir_all(&keeper.options.log_dir).expect("remove the logs");
    assert_eq!(keeper.shell("echo fine").text(), "fine");
    let processes = keeper.client.list().expect("list");
    assert!(processes.iter().any(|process| process.pid == pid && process.exit.is_none()), "{processes:?}");
}

#[test]
fn what_programs_wrote_and_how_they_ended_is_kept_when_the_keeper_is_gone() {
    if !is_root() {
        return;
    }
    let mut keeper = Keeper::start();
    let ended = keeper.shell("echo first; exit 3").pid.expect("pid");
    let stopped = keeper.client.run(&request(&["sh", "-c", "echo second; sleep 1000"]), None).expect("run");
    // It was executed, and has not written anything perhaps.
    while keeper.client.logs(stopped, ALL, LogForm::Text).expect("logs").is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    keeper.connect().stop(Duration::from_secs(60)).expect("stop");
    assert!(keeper.child.wait().expect("wait").success());
    let status = |processes: &[mgmt_api::Process], pid| {
        let found = processes.iter().find(|process| process.pid == pid).expect("kept").clone();
        assert_eq!(found.state, ProcessState::Exited);
        (found.exit, found.cause)
    };
    let left = keeper::kept::processes(&keeper.options.log_dir);
    assert_eq!((status(&left, ended), status(&left, stopped)), ((Some(3), None), (Some(143), None)));
    let log = |pid, part| keeper::kept::log(&keeper.options.log_dir, pid, part, LogForm::Text).expect("read");
    assert_eq!((log(ended, ALL), log(stopped, last(1))), (Some(b"first\n".to_vec()), Some(b"second\n".to_vec())));
    assert_eq!(log(99, ALL), None);

    // The next one takes it over, until a program of its own gets the PID.
    keeper.start_again();
    assert_eq!(status(&keeper.client.list().expect("list"), stopped), (Some(143), None));
    assert_eq!(keeper.client.logs(stopped, ALL, LogForm::Text).expect("logs"), b"second\n");
    while keeper.shell("echo third").pid != Some(stopped) {}
    assert_eq!(keeper.client.logs(stopped, ALL, LogForm::Text).expect("logs"), b"third\n");
    // It is killed this time.
    let lost = keeper.client.run(&request(&["sleep", "1000"]), None).expect("run");
    keeper.child.kill().expect("kill");
    keeper.child.wait().expect("wait");
    let left = keeper::kept::processes(&keeper.options.log_dir);
    assert_eq!(status(&left, lost), (None, Some("lost with its keeper".to_owned())));
}

#[test]
fn logs_of_all_programs_together_have_a_budget() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let mut first = None;
    for _ in 0..20 {
        first = first.or(keeper.shell("yes | head -c 3900000 >&2").pid);
    }
    let files = std::fs::read_dir(&keeper.options.log_dir).expect("list").flatten();
    let bytes: u64 = files.map(|file| file.metadata().map_or(0, |file| file.len())).sum();
    assert!((48 << 20..=66 << 20).contains(&bytes), "{bytes}");
    let log = keeper.client.logs(first.expect("pid"), ALL, LogForm::Text).expect("logs");
    assert_eq!(String::from_utf8_lossy(&log), "[dvs: 3900000 bytes of this log are gone; the newest of it is kept]\n");
}

#[test]
fn program_that_was_killed_for_memory_says_so() {
    if !is_root() {
        return;
    }
    let limits = mgmt_api::Limits { memory_bytes: Some(48 << 20), ..Default::default() };
    let keeper = Keeper::start_with(|options| {
        let name = options.cgroup.as_ref().expect("control group").name().to_owned();
        options.cgroup = Some(sandbox::cgroup::Cgroup::ensure(&name, &limits).expect("limit"));
    });
    let ended = keeper.shell("head -c 300000000 /dev/zero | tail");
    assert_eq!(ended.exit, Some(137));
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("was killed: out of memory"), "{said}");
    let processes = keeper.client.list().expect("list");
    let process = processes.iter().find(|process| Some(process.pid) == ended.pid).expect("kept");
    assert_eq!(process.cause.as_deref(), Some("out of memory"));
    let killed = keeper.shell("kill -9 $$").pid;
    let processes = keeper.client.list().expect("list");
    let process = processes.iter().find(|process| Some(process.pid) == killed).expect("kept");
    assert_eq!((process.exit, process.cause.as_deref()), (Some(137), None));
}

#[test]
fn logs_of_programs_are_for_root_alone() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    keeper.shell("echo secret");
    let mode = |path: &std::path::Path| std::fs::metadata(path).expect("metadata").permissions().mode() & 0o7777;
    assert_eq!(mode(&keeper.options.log_dir), 0o700);
    let logs: Vec<_> = std::fs::read_dir(&keeper.options.log_dir).expect("list").flatten().collect();
    assert_eq!(logs.len(), 3, "and its marks, and the record");
    assert!(logs.iter().all(|log| mode(&log.path()) == 0o600));
}

#[test]
fn exit_status_is_what_a_shell_shows() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    assert_eq!(keeper.shell("kill -9 $$").exit, Some(137));
    assert_eq!(keeper.shell("kill -TERM $$").exit, Some(143));
    assert_eq!(keeper.shell("exit 255").exit, Some(255));
}

#[test]
fn program_that_cannot_be_executed_is_told_apart_from_one_that_is_not_there() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let refused = |run: &mgmt_api::RunRequest| match keeper.client.run(run, None) {
        Err(KeeperError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let launch = |stage, errno| Refusal::Launch { stage, errno };
    assert_eq!(refused(&request(&["no-such-program"])), launch(Stage::Exec, libc::ENOENT));
    assert_eq!(refused(&request(&["/no/such"])), launch(Stage::Exec, libc::ENOENT));
    assert_eq!(refused(&request(&["/etc/passwd"])), launch(Stage::Exec, libc::EACCES));
    assert_eq!(refused(&request(&["/usr"])), launch(Stage::Exec, libc::EACCES));
    assert_eq!(refused(&request(&[])), Refusal::BadRun(BadRun::NoProgram));
    let mut run = request(&["true"]);
    run.workdir = Some("/no/such".into());
    assert_eq!(refused(&run), launch(Stage::Directory, libc::ENOENT));

    // Nothing is said to the client of a stream: the daemon does that, and has the socket.
    let (ours, theirs) = UnixStream::pair().expect("pair");
    assert!(keeper.client.run(&request(&["no-such-program"]), Some(&StreamEnd::of(theirs.as_fd()))).is_err());
    drop(theirs);
    let ended = Watcher::new(ours).into_end();
    assert!(ended.error.is_none() && ended.pid.is_none(), "{ended:?}");
}

#[test]
fn program_that_could_not_be_started_is_gone_when_its_caller_hears_of_it() {
    if !is_root() {
        return;
    }
    let mut keeper = Keeper::start();
    let mut nowhere = request(&["true"]);
    nowhere.workdir = Some("/no/such".into());
    let mut rootless = request(&["true"]);
    rootless.root = mgmt_api::RootFs::Tree("/no/such".into());
    for run in [request(&["/no/such"]), nowhere, rootless].iter().cycle().take(60) {
        assert!(matches!(keeper.client.run(run, None), Err(KeeperError::Refused(_))));
        // A zombie is no member of the control group any more, but counts against its limit.
        assert_eq!(keeper.client.list().expect("list"), []);
    }
    let begin = std::time::Instant::now();
    keeper.connect().stop(Duration::from_secs(60)).expect("stop");
    assert!(begin.elapsed() < support::LIMIT, "{:?}", begin.elapsed());
    assert!(keeper.child.wait().expect("wait").success());
}

#[test]
fn launch_that_a_frozen_group_holds_is_given_up_and_leaves_no_process_once_it_thaws() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let state = format!("/sys/fs/cgroup/freezer/dvs/{}/programs/freezer.state", keeper.cgroup.name());
    if std::fs::write(&state, "FROZEN").is_err() {
        eprintln!("SKIPPED: this test needs the freezer of control groups of version 1");
        return;
    }
    let refused = keeper.client.run(&request(&["true"]), None);
    let is_stuck = |refusal: &Refusal| matches!(refusal, Refusal::Failed { task: Task::StartProgram, .. });
    assert!(matches!(&refused, Err(KeeperError::Refused(refusal)) if is_stuck(refusal)), "{refused:?}");
    let held = keeper.cgroup.members().expect("members");
    let ends: Vec<_> = held.iter().map(|pid| sys::pidfd::open(*pid as i32).expect("pidfd")).collect();
    assert_eq!(ends.len(), 1);
    std::fs::write(&state, "THAWED").expect("thaw");
    support::wait_for(&ends.iter().collect::<Vec<_>>());
    // Long after the keeper heard of that end.
    assert_eq!(keeper.shell("echo fine").text(), "fine");
    assert!(!std::path::Path::new(&format!("/proc/{}", held[0])).exists(), "it is buried");
}

#[test]
fn user_and_group_are_those_asked_for() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let mut run = request(&["sh", "-c", "id -u; id -g; id -G; grep CapEff /proc/self/status"]);
    (run.uid, run.gid) = (1000, 1001);
    assert_eq!(keeper.run(&run).expect("run").text(), "1000\n1001\n1001\nCapEff:\t0000000000000000");
}

#[test]
fn program_may_have_less_than_its_container_and_so_has_all_that_it_starts() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let with = |ulimits: serde_json::Value, cap_drop: serde_json::Value, uid: u32, script: &str| {
        let run = serde_json::json!({
            "argv": ["sh", "-c", script], "ulimits": ulimits, "cap_drop": cap_drop, "uid": uid, "gid": uid,
        });
        keeper.run(&serde_json::from_value(run).expect("request"))
    };
    let limits = ["nofile=77:99", "core=0", "stack=1048576:unlimited"];
    let said = with(limits.into(), serde_json::json!([]), 0, "ulimit -Sn; ulimit -Hn; sh -c 'ulimit -Hc; ulimit -Ss'");
    assert_eq!(said.expect("it runs").text(), "77\n99\n0\n1024");
    // Bounding, permitted, effective and inheritable sets; root gets back nothing, nor does who becomes root.
    let sets = "grep -E 'Cap(Bnd|Prm|Eff|Inh)' /proc/self/status | cut -f 2 | sort -u";
    let said = with(serde_json::json!([]), ["all"].into(), 0, sets);
    assert_eq!(said.expect("it runs").text(), "0000000000000000");
    let raw = "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)' 2>&1 | tail -n 1";
    let said = with(serde_json::json!([]), ["CAP_NET_RAW", "mknod"].into(), 0, raw);
    assert!(said.expect("it runs").text().starts_with("PermissionError"));
    assert_eq!(keeper.shell(raw).text(), "");
    let said = with(serde_json::json!([]), ["net_raw"].into(), 33, "grep CapBnd /proc/self/status | cut -f 2");
    let bounding = u64::from_str_radix(&said.expect("it runs").text(), 16).expect("a set");
    assert!(bounding & 1 << 13 == 0 && bounding & 1 << 6 != 0, "{bounding:x}");
    // Nobody gets more than there is.
    let refused = with(["nofile=1000000000"].into(), serde_json::json!([]), 0, "true").expect_err("too many");
    assert!(format!("{refused:?}").contains("Limits"), "{refused:?}");
    assert_eq!(keeper.shell("echo well").text(), "well");
}

#[test]
fn io_uring_and_foreign_doors_are_closed() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let status = keeper.shell("grep -E 'Seccomp:|NoNewPrivs:' /proc/self/status").text();
    assert_eq!(status, "NoNewPrivs:\t1\nSeccomp:\t2");
}

#[test]
fn large_output_arrives_whole_through_a_slow_client() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let (ours, theirs) = UnixStream::pair().expect("pair");
    keeper
        .client
        .run(&request(&["sh", "-c", "head -c 20000000 /dev/zero; echo end >&2"]), Some(&StreamEnd::of(theirs.as_fd())))
        .expect("run");
    drop(theirs);
    // The program fills every buffer meanwhile; the keeper goes on serving others.
    assert_eq!(keeper.shell("echo other").text(), "other");
    let ended = Watcher::new(ours).into_end();
    assert_eq!((ended.stdout.len(), ended.exit), (20_000_000, Some(0)));
    assert_eq!(ended.stderr, b"end\n");
}

#[test]
fn input_reaches_the_program_and_ends() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let mut run = request(&["sha256sum"]);
    run.interactive = true;
    let (ours, theirs) = UnixStream::pair().expect("pair");
    // A part of the input came with the request.
    let mut pending = mgmt_api::stream::header(Kind::Stdin, 3).to_vec();
    pending.extend_from_slice(b"abc");
    keeper.client.run(&run, Some(&StreamEnd { pending: &pending, ..StreamEnd::of(theirs.as_fd()) })).expect("run");
    let mut watcher = Watcher::new(ours);
    for _ in 0..100 {
        watcher.send(Kind::Stdin, &vec![b'x'; 30_000]);
    }
    watcher.send(Kind::Stdin, &[]);
    drop(theirs);
    let sum = watcher.into_end().text();
    let expected = keeper.shell("(printf abc; head -c 3000000 /dev/zero | tr '\\0' x) | sha256sum").text();
    assert_eq!(sum, expected);
}

#[test]
fn program_without_interactive_input_reads_nothing() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    assert_eq!(keeper.shell("cat; echo done").text(), "done");
}

#[test]
fn terminal_is_the_containers_own_and_follows_its_size() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let mut run =
        request(&["sh", "-c", "tty; stty size; read x; stty size; echo got:$x; ls -ln $(tty) | cut -d' ' -f3"]);
    run.terminal = Some(TerminalSize { rows: 24, columns: 80 });
    run.interactive = true;
    let (ours, theirs) = UnixStream::pair().expect("pair");
    keeper.client.run(&run, Some(&StreamEnd::of(theirs.as_fd()))).expect("run");
    drop(theirs);
    let mut watcher = Watcher::new(ours);
    let contains =
        |text: &'static str| move |seen: &support::Ended| String::from_utf8_lossy(&seen.stdout).contains(text);
    assert!(watcher.until(contains("24 80")));
    watcher.send(Kind::Resize, &[50, 0, 100, 0]);
    watcher.send(Kind::Stdin, b"hello\n");
    let ended = watcher.into_end();
    let text = String::from_utf8_lossy(&ended.stdout).replace("\r\n", "\n");
    assert!(text.starts_with("/dev/pts/0\n24 80\n"), "{text}");
    assert!(text.ends_with("50 100\ngot:hello\n0\n"), "{text}");
    assert_eq!(ended.exit, Some(0));
}

#[test]
fn terminal_stays_for_the_next_client_when_the_first_one_leaves() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let mut run = request(&["sh", "-c", "read x; echo got:$x"]);
    run.terminal = Some(TerminalSize { rows: 24, columns: 80 });
    run.interactive = true;
    let (ours, theirs) = UnixStream::pair().expect("pair");
    let pid = keeper.client.run(&run, Some(&StreamEnd::of(theirs.as_fd()))).expect("run");
    drop((ours, theirs));
    let (ours, theirs) = UnixStream::pair().expect("pair");
    keeper.client.attach(pid, &StreamEnd::of(theirs.as_fd())).expect("attach");
    drop(theirs);
    let mut watcher = Watcher::new(ours);
    watcher.send(Kind::Stdin, b"later\n");
    let ended = watcher.into_end();
    assert!(String::from_utf8_lossy(&ended.stdout).ends_with("got:later\r\n"), "{ended:?}");
    assert_eq!(ended.exit, Some(0));
}

/// A connection of a session, of which the client has heard so many frames.
fn resume(keeper: &Keeper, pid: u32, heard: u64) -> Watcher {
    let (ours, theirs) = UnixStream::pair().expect("pair");
    keeper.client.resume(pid, SESSION, heard, theirs.as_fd(), &[]).expect("resume");
    Watcher::new(ours)
}

fn run_in_session(keeper: &Keeper, script: &str) -> (u32, Watcher) {
    let mut run = request(&["sh", "-c", script]);
    run.interactive = true;
    let (ours, theirs) = UnixStream::pair().expect("pair");
    let end = StreamEnd { session: Some(SESSION), ..StreamEnd::of(theirs.as_fd()) };
    (keeper.client.run(&run, Some(&end)).expect("run"), Watcher::new(ours))
}

const SESSION: u64 = 77;

#[test]
fn client_of_a_session_comes_back_to_what_it_has_not_heard() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let (pid, mut first) = run_in_session(&keeper, "echo begun; read x; echo $x; read x; echo $x; exit 5");
    first.until(|seen| seen.stdout == b"begun\n");
    first.send(Kind::Stdin, b"one\n");
    first.until(|seen| seen.stdout == b"begun\none\n");
    drop(first);
    // It has heard Started and the first line; its input and its end it says on the next connection.
    let mut second = resume(&keeper, pid, 2);
    second.until(|seen| seen.stdout == b"one\n");
    second.send(Kind::Stdin, b"two\n");
    second.until(|seen| seen.exit.is_some());
    drop(second);
    // The end was not confirmed, and is told again; after that there is nobody to come back.
    let mut third = resume(&keeper, pid, 3);
    third.until(|seen| seen.exit == Some(5));
    third.send(Kind::Heard, &5_u64.to_le_bytes());
    assert_eq!(third.into_end().stdout, b"two\n");
    let (_ours, theirs) = UnixStream::pair().expect("pair");
    assert!(matches!(
        keeper.client.resume(pid, SESSION, 5, theirs.as_fd(), &[]),
        Err(KeeperError::Refused(Refusal::HasEnded { .. }))
    ));
}

#[test]
fn input_of_a_session_stays_open_over_a_break_and_ends_with_a_farewell() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let (pid, mut first) = run_in_session(&keeper, "echo begun; cat; echo over");
    first.until(|seen| seen.stdout == b"begun\n");
    drop(first);
    let mut second = resume(&keeper, pid, 2);
    second.send(Kind::Stdin, b"more\n");
    second.until(|seen| seen.stdout == b"more\n");
    let (ours, theirs) = UnixStream::pair().expect("pair");
    keeper.client.attach(pid, &StreamEnd::of(theirs.as_fd())).expect("attach");
    drop(theirs);
    second.send(Kind::Leave, b"");
    assert_eq!(Watcher::new(ours).into_end().stdout, b"over\n");
}

#[test]
fn signal_from_the_client_and_from_the_daemon_reach_the_program() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let (ours, theirs) = UnixStream::pair().expect("pair");
    let script = "trap 'echo caught' USR1; echo ready; while :; do sleep 0.01; done";
    let pid = keeper.client.run(&request(&["sh", "-c", script]), Some(&StreamEnd::of(theirs.as_fd()))).expect("run");
    drop(theirs);
    let mut watcher = Watcher::new(ours);
    watcher.until(|seen| seen.stdout.ends_with(b"ready\n"));
    watcher.send(Kind::Signal, &[libc::SIGUSR1 as u8]);
    watcher.until(|seen| seen.stdout.ends_with(b"caught\n"));
    keeper.client.signal(pid, libc::SIGKILL, Some("alice".to_owned())).expect("signal");
    assert_eq!(watcher.into_end().exit, Some(137));
    let ended = keeper.client.list().expect("list").into_iter().find(|process| process.pid == pid).expect("listed");
    assert_eq!(ended.cause.as_deref(), Some("signal 9 of alice"));
    assert!(matches!(keeper.client.signal(1, libc::SIGKILL, None), Err(KeeperError::Refused(Refusal::IsInit))));
    assert!(matches!(keeper.client.signal(99, 0, None), Err(KeeperError::Refused(Refusal::NoSuchProcess { pid: 99 }))));
}

#[test]
fn detached_program_goes_on_is_listed_attached_to_and_logged() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let mut run = request(&["sh", "-c", "echo first; read x; echo got $x"]);
    (run.detach, run.interactive) = (true, true);
    let pid = keeper.client.run(&run, None).expect("run");

    let processes = keeper.client.list().expect("list");
    let process = processes.iter().find(|process| process.pid == pid).expect("listed");
    assert_eq!((process.uid, process.node.as_str(), process.exit), (0, "n2", None));
    assert_eq!(process.command.first().map(String::as_str), Some("sh"));
    assert!(processes.iter().all(|process| process.pid >= 131_072), "{processes:?}");

    let follow = keeper.connect().follow(pid, ALL, LogForm::Text).expect("follow");
    let (ours, theirs) = UnixStream::pair().expect("pair");
    keeper.client.attach(pid, &StreamEnd::of(theirs.as_fd())).expect("attach");
    drop(theirs);
    let mut watcher = Watcher::new(ours);
    watcher.send(Kind::Stdin, b"word\n");
    let ended = watcher.into_end();
    assert_eq!((ended.pid, ended.exit), (Some(pid), Some(0)));
    assert!(ended.stdout.ends_with(b"got word\n"));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(follow), &mut text).expect("follow to the end");
    assert_eq!(text, "first\ngot word\n");
    assert_eq!(keeper.client.logs(pid, ALL, LogForm::Text).expect("logs"), b"first\ngot word\n");
    assert_eq!(keeper.client.logs(pid, last(1), LogForm::Text).expect("logs"), b"got word\n");
    let ended = keeper.client.list().expect("list").into_iter().find(|process| process.pid == pid).expect("remembered");
    assert_eq!((ended.state, ended.exit), (ProcessState::Exited, Some(0)));
    let (_ours, theirs) = UnixStream::pair().expect("pair");
    assert!(matches!(keeper.client.attach(pid, &StreamEnd::of(theirs.as_fd())), Err(KeeperError::Refused(_))));
}

#[test]
fn log_of_a_program_that_has_ended_can_be_followed_to_its_end() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    // More than a socket holds at a time.
    let ended = keeper.shell("yes | head -c 1500000; echo last");
    let pid = ended.pid.expect("pid");
    let follow = |part| {
        let mut text = Vec::new();
        let mut socket = UnixStream::from(keeper.connect().follow(pid, part, LogForm::Text).expect("follow"));
        socket.set_read_timeout(Some(support::LIMIT)).expect("limit");
        std::io::Read::read_to_end(&mut socket, &mut text).expect("to the end");
        text
    };
    assert!(follow(ALL) == ended.stdout);
    assert_eq!(follow(last(1)), b"last\n");
    assert!(keeper.client.logs(pid, ALL, LogForm::Text).expect("logs") == ended.stdout);
}

#[test]
fn log_says_when_and_in_which_stream_while_the_program_runs_and_when_nothing_does() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    assert!(keeper.client.status().expect("status").times_logs);
    let mut run = request(&["sh", "-c", "echo out; read x; echo err >&2; read x; printf '\\377'"]);
    (run.detach, run.interactive) = (true, true);
    let begun = now_ms();
    let pid = keeper.client.run(&run, None).expect("run");
    let pieces = |json: &[u8]| -> Vec<LogPiece> {
        let lines = std::str::from_utf8(json).expect("JSON").lines();
        lines.map(|line| serde_json::from_str(line).expect("a piece")).collect()
    };
    let said = |pieces: &[LogPiece]| -> Vec<(LogStream, Vec<u8>)> {
        pieces.iter().map(|piece| (piece.stream, piece.text.bytes().expect("bytes").into_owned())).collect()
    };
    let all: [(LogStream, Vec<u8>); 3] =
        [(LogStream::Stdout, b"out\n".into()), (LogStream::Stderr, b"err\n".into()), (LogStream::Stdout, vec![255])];
    let log = |part| pieces(&keeper.client.logs(pid, part, LogForm::Pieces).expect("logs"));
    while log(ALL).is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let follow = keeper.connect().follow(pid, ALL, LogForm::Pieces).expect("follow");
    let (ours, theirs) = UnixStream::pair().expect("pair");
    keeper.client.attach(pid, &StreamEnd::of(theirs.as_fd())).expect("attach");
    drop(theirs);
    let mut watcher = Watcher::new(ours);
    // A mark is good for ten milliseconds.
    std::thread::sleep(Duration::from_millis(30));
    let before_second = now_ms();
    watcher.send(Kind::Stdin, b"\n");
    while log(ALL).len() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    watcher.send(Kind::Stdin, b"\n");
    assert_eq!(watcher.into_end().exit, Some(0));
    let mut followed = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(follow), &mut followed).expect("follow to the end");
    assert_eq!(said(&pieces(followed.as_bytes())), all);
    let kept = log(ALL);
    assert_eq!(said(&kept), all);
    let is_in_time = |piece: &LogPiece| piece.time_ms.is_some_and(|time_ms| (begun..=now_ms()).contains(&time_ms));
    assert!(kept.iter().all(is_in_time), "{begun} {kept:?} {}", now_ms());
    assert_eq!(said(&log(LogPart { since_ms: Some(before_second), ..ALL })), all[1..]);
    assert_eq!(said(&log(LogPart { since_ms: Some(now_ms() + 1000), ..ALL })), []);
    keeper.connect().stop(Duration::from_secs(60)).expect("stop");
    let left = keeper::kept::log(&keeper.options.log_dir, pid, ALL, LogForm::Pieces).expect("read").expect("kept");
    assert_eq!(pieces(&left), kept);
}

fn now_ms() -> u64 {
    std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as u64
}

#[test]
fn users_have_the_names_groups_and_homes_that_the_containers_own_files_say() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let as_user = |user: &str, command: &str| {
        let mut run = request(&["sh", "-c", command]);
        (run.uid, run.gid, run.user) = (65_534, 65_534, Some(user.to_owned()));
        keeper.run(&run).expect("run")
    };
    // Of every Debian: daemon is a user and a group, tape a group.
    let said = as_user("daemon", "id -u; id -g; id -G; echo $HOME").text();
    assert_eq!(said, "1\n1\n1\n/usr/sbin");
    assert_eq!(as_user("daemon:tape", "id -u; id -g; id -G").text(), "1\n26\n26");
    assert_eq!(as_user("500:tape", "id -u; id -g; echo $HOME").text(), "500\n26\n/tmp");
    assert_eq!(as_user("500:7", "id -u; id -g").text(), "500\n7");
    let mut run = request(&["sh", "-c", "echo $HOME"]);
    (run.user, run.env) = (Some("daemon".to_owned()), vec!["HOME=/x".into()]);
    assert_eq!(keeper.run(&run).expect("run").text(), "/x");
    // It is listed as who it is.
    let mut run = request(&["sleep", "1000"]);
    (run.user, run.detach) = (Some("daemon".to_owned()), true);
    let pid = keeper.client.run(&run, None).expect("run");
    let uid = || keeper.client.list().expect("list").into_iter().find(|one| one.pid == pid).expect("listed").uid;
    assert_eq!(uid(), 1);
    keeper.client.signal(pid, 9, None).expect("signal");
    while keeper.client.list().expect("list").iter().any(|one| one.pid == pid && one.exit.is_none()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(uid(), 1);
    for (user, stage) in [("eve", Stage::User), ("daemon:eve", Stage::Group)] {
        let mut run = request(&["true"]);
        (run.user, run.detach) = (Some(user.to_owned()), true);
        let refused = keeper.client.run(&run, None);
        let expected = Refusal::Launch { stage, errno: 2 };
        assert!(matches!(&refused, Err(KeeperError::Refused(refusal)) if *refusal == expected), "{refused:?}");
    }
}

#[test]
fn spectator_that_reads_nothing_stops_neither_the_program_nor_its_log() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let mut run = request(&["sh", "-c", "read x; head -c 8000000 /dev/zero; echo; echo finished"]);
    (run.detach, run.interactive) = (true, true);
    let pid = keeper.client.run(&run, None).expect("run");
    let (slow, theirs) = UnixStream::pair().expect("pair");
    keeper.client.attach(pid, &StreamEnd::of(theirs.as_fd())).expect("attach");
    drop(theirs);
    let mut slow = Watcher::new(slow);
    slow.send(Kind::Stdin, b"go\n");
    // The program ends although the spectator takes nothing.
    keeper.shell(&format!("while kill -0 {pid} 2>/dev/null; do sleep 0.02; done"));
    assert!(keeper.client.logs(pid, last(1), LogForm::Text).expect("logs") == b"finished\n");
    let seen = slow.into_end();
    assert!(seen.exit.is_none() && seen.stdout.len() < 8_000_000, "{}", seen.stdout.len());
}

#[test]
fn foreground_program_whose_client_vanished_sees_the_end_of_its_input_and_goes_on() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let mut run = request(&["sh", "-c", "cat >/dev/null; echo survived"]);
    run.interactive = true;
    let (ours, theirs) = UnixStream::pair().expect("pair");
    let pid = keeper.client.run(&run, Some(&StreamEnd::of(theirs.as_fd()))).expect("run");
    let follow = keeper.connect().follow(pid, ALL, LogForm::Text).expect("follow");
    drop((ours, theirs));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(follow), &mut text).expect("follow");
    assert_eq!(text, "survived\n");
}

#[test]
fn exec_shares_the_namespaces_of_the_program_beside() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let mut run = request(&["sh", "-c", "echo mark > /tmp/mark; read x"]);
    (run.detach, run.interactive) = (true, true);
    let pid = keeper.client.run(&run, None).expect("run");
    // The other one has begun, and has perhaps not come to its mark yet.
    let script = "for i in $(seq 1000); do [ -s /tmp/mark ] && break; sleep 0.01; done; cat /tmp/mark; kill -0 $OTHER && echo alive";
    let mut exec = mgmt_api::ExecRequest { pid, run: request(&["sh", "-c", script]) };
    exec.run.env.push(format!("OTHER={pid}").into());
    let (ours, theirs) = UnixStream::pair().expect("pair");
    keeper.client.exec(&exec, Some(&StreamEnd::of(theirs.as_fd()))).expect("exec");
    drop(theirs);
    assert_eq!(Watcher::new(ours).into_end().text(), "mark\nalive");
    exec.pid = 4_000_000;
    let gone = Refusal::NoSuchProcess { pid: 4_000_000 };
    assert!(matches!(keeper.client.exec(&exec, None), Err(KeeperError::Refused(refusal)) if refusal == gone));
}

#[test]
fn descriptors_are_stored_and_come_back() {
    if !is_root() {
        return;
    }
    use std::io::{Read, Seek, Write};
    let keeper = Keeper::start();
    for at in 0..40 {
        let mut file = tempfile::tempfile().expect("file");
        write!(file, "{at}").expect("write");
        keeper.client.store(&format!("key-{at:02}"), file.as_fd()).expect("store");
    }
    let read = |fd: std::os::fd::OwnedFd| {
        let (mut file, mut text) = (std::fs::File::from(fd), String::new());
        file.rewind().expect("rewind");
        file.read_to_string(&mut text).expect("read");
        text
    };
    let later = keeper.connect();
    for at in 0..40 {
        assert_eq!(read(later.fetch(&format!("key-{at:02}")).expect("fetch").expect("stored")), at.to_string());
    }
    keeper.client.drop_stored("key-07").expect("drop");
    assert!(keeper.client.fetch("key-07").expect("fetch").is_none());
    assert_eq!(keeper.client.status().expect("status").stored, 39);
}

#[test]
fn stop_asks_first_kills_after_the_grace_and_leaves_nothing() {
    if !is_root() {
        return;
    }
    let mut keeper = Keeper::start();
    let mut run =
        request(&["sh", "-c", "trap '' TERM; (trap '' TERM; setsid sleep 1000) & echo up; while :; do sleep 1; done"]);
    run.detach = true;
    let pid = keeper.client.run(&run, None).expect("run");
    let (ours, theirs) = UnixStream::pair().expect("pair");
    keeper.client.attach(pid, &StreamEnd::of(theirs.as_fd())).expect("attach");
    drop((ours, theirs));
    let host_pids = keeper.host_pids();
    keeper.connect().stop(Duration::from_millis(100)).expect("stop");
    assert!(keeper.child.wait().expect("wait").success());
    for pid in host_pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
    }
    assert_eq!(keeper.cgroup.members().expect("members"), Vec::<u32>::new());
    assert!(!keeper.options.control.exists());
    assert!(matches!(keeper.client.status(), Err(KeeperError::Gone { .. })));
}

#[test]
fn nothing_survives_a_killed_keeper() {
    if !is_root() {
        return;
    }
    let mut keeper = Keeper::start();
    let mut run = request(&["sh", "-c", "setsid sleep 1000 & sleep 1000"]);
    run.detach = true;
    keeper.client.run(&run, None).expect("run");
    let ends: Vec<_> = keeper.host_pids().into_iter().filter_map(|pid| sys::pidfd::open(pid as i32).ok()).collect();
    assert!(ends.len() >= 2);
    keeper.child.kill().expect("kill");
    keeper.child.wait().expect("wait");
    for end in &ends {
        support::wait_for(&[end]);
    }
}

#[test]
fn garbage_on_the_control_socket_hurts_only_its_connection() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    for garbage in [&b"\x00{"[..], b"\x01", b"\x07", b"\x00{\"Run\":3}", b"\x00\"NoSuch\"", &[0xff; 4000]] {
        let socket = sys::seqpacket::connect(&keeper.options.control).expect("connect");
        sys::seqpacket::send(&socket, garbage, &[] as &[std::os::fd::BorrowedFd<'_>]).expect("send");
    }
    assert_eq!(keeper.shell("echo fine").text(), "fine");
}
