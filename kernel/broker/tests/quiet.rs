//! What passes between two processes of one node is no business of the broker, nor, while both look for it, of the
//! kernel: shown by `strace` on all three processes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use broker::{Broker, BrokerConfig, DcOptions, Privileges};
use ipc::{DcId, Endpoint, Message, Port, WAIT_MODE_VARIABLE, Wait};

const WARM_UP: i32 = 1000;
const TRIPS: i32 = 3000;
const LAST: i32 = -1;
/// A call without a limit that sleeps for some milliseconds, as one may on a crowded machine, tells the broker of it:
/// it might be part of a deadlock.
const PATIENCE: Wait = Wait::For(Duration::from_secs(60));
/// What the caller writes before and after the round trips that count, to be found in the trace.
const BEGIN: &str = "begin of round trips";
const END: &str = "end of round trips";

/// Not a test: what the traced processes do. Started without their variables it does nothing.
#[test]
fn child_process() {
    let (Ok(role), Ok(path)) = (std::env::var("M3IPC_CHILD"), std::env::var("M3IPC_SOCKET")) else { return };
    match role.as_str() {
        "broker" => {
            let privileges = Privileges::server();
            let broker = Broker::start(BrokerConfig::local()).unwrap();
            let listen = Some(path.into());
            broker
                .add_dc(DcId(1), DcOptions { listen, program_privileges: privileges, ..DcOptions::default() })
                .unwrap();
            say("ready");
            let _ = std::io::stdin().read_line(&mut String::new());
        }
        "echo" => echo(Path::new(&path)),
        "caller" => call(Path::new(&path)),
        other => panic!("no such role: {other}"),
    }
}

fn say(line: &str) {
    // In one write, so that it is found in the trace.
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

fn echo(path: &Path) {
    let mut port = Port::connect(path, None).unwrap();
    say(&format!("endpoint {}", port.endpoint()));
    loop {
        let request = port.rcvrqst(Wait::Forever).unwrap();
        port.reply(request.source.unwrap(), &request).unwrap();
        if request.kind == LAST {
            return;
        }
    }
}

fn call(path: &Path) {
    let server = Endpoint::new(std::env::var("M3IPC_SERVER").unwrap().parse().unwrap()).unwrap();
    let mut port = Port::connect(path, None).unwrap();
    let mut trips = |count: i32| {
        for kind in 1..=count {
            assert_eq!(port.sendrec(server, &Message::new(kind), PATIENCE).unwrap().kind, kind);
        }
    };
    trips(WARM_UP);
    say("warm");
    let _ = std::io::stdin().read_line(&mut String::new());
    trips(WARM_UP);
    say(BEGIN);
    trips(TRIPS);
    say(END);
    port.sendrec(server, &Message::new(LAST), Wait::Forever).unwrap();
}

/// A child that is killed and waited for in any case.
struct Program {
    child: Child,
    stdin: ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Program {
    fn start(socket: &Path, role: &str, wait_mode: &str, server: &str) -> Program {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("M3IPC_CHILD", role)
            .env("M3IPC_SOCKET", socket)
            .env("M3IPC_SERVER", server)
            .env(WAIT_MODE_VARIABLE, wait_mode)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (stdin, lines) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        Program { child, stdin, lines }
    }

    fn line_with(&mut self, prefix: &str) -> String {
        let found = self.lines.find_map(|line| line.unwrap().split_once(prefix).map(|(_, rest)| rest.to_string()));
        found.unwrap_or_else(|| panic!("the child ended without saying {prefix:?}"))
    }

    /// All threads: those that serve the program and the one that waits for it.
    fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.map(|task| task.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Those that wait in a system call.
    fn sleepers(&self) -> Vec<String> {
        let call = |thread: &String| {
            std::fs::read_to_string(format!("/proc/{}/task/{thread}/syscall", self.child.id())).unwrap_or_default()
        };
        self.threads().into_iter().filter(|thread| !call(thread).starts_with("running")).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// System calls of the broker, of the server and of the caller between the two marks.
struct Calls {
    broker: Vec<String>,
    server: Vec<String>,
    caller: Vec<String>,
}

/// `None` where there is no strace, or it may not trace.
fn traced(wait_mode: &str) -> Option<Calls> {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("m3ipc");
    let mut broker = Program::start(&socket, "broker", "adaptive", "");
    broker.line_with("ready");
    let mut server = Program::start(&socket, "echo", wait_mode, "");
    let endpoint = server.line_with("endpoint ");
    let mut caller = Program::start(&socket, "caller", wait_mode, &endpoint);
    caller.line_with("warm");
    let threads = [broker.threads(), server.threads(), caller.threads()];
    let asleep: Vec<String> = [&broker, &server, &caller].into_iter().flat_map(Program::sleepers).collect();

    let output = directory.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-s", "64", "-o"]).arg(&output);
    for program in [&broker, &server, &caller] {
        strace.arg("-p").arg(program.child.id().to_string());
    }
    let Ok(mut tracer) = strace.stderr(Stdio::piped()).stdin(Stdio::null()).spawn() else {
        eprintln!("SKIPPED: no strace");
        return None;
    };
    let mut said = BufReader::new(tracer.stderr.take().unwrap()).lines();
    // It says so once for each process.
    let attached = said.by_ref().take(3).filter(|line| line.as_ref().is_ok_and(|line| line.contains("attached")));
    if attached.count() < 3 {
        let _ = tracer.kill();
        let _ = tracer.wait();
        eprintln!("SKIPPED: strace may not trace here");
        return None;
    }
    // It goes on saying things that nobody reads.
    let drain = std::thread::spawn(move || said.for_each(drop));
    // Attaching interrupts every call in which a thread sleeps, so that it is made, and shown, once more.
    let limit = Instant::now() + Duration::from_secs(20);
    let shows_all = || {
        let shown = std::fs::read_to_string(&output).unwrap_or_default();
        asleep.iter().all(|thread| shown.lines().any(|line| line.starts_with(&format!("{thread} "))))
    };
    while !shows_all() {
        assert!(Instant::now() < limit, "strace shows nothing of {asleep:?}");
        std::thread::yield_now();
    }
    caller.stdin.write_all(b"go\n").unwrap();
    caller.line_with(END);
    drop((broker, server, caller));
    tracer.wait().unwrap();
    drain.join().unwrap();

    let trace = std::fs::read_to_string(&output).unwrap();
    let between = trace.lines().skip_while(|line| !line.contains(BEGIN)).skip(1).take_while(|line| !line.contains(END));
    let between: Vec<&str> = between.collect();
    let of = |threads: &Vec<String>| {
        let mine =
            |line: &&&str| line.split_whitespace().next().is_some_and(|pid| threads.iter().any(|own| own == pid));
        // A call that was interrupted by the tracer began before.
        let is_new = |line: &&&str| !line.contains("resumed>");
        between.iter().filter(mine).filter(is_new).map(|line| (*line).to_owned()).collect()
    };
    let [broker, server, caller]: [Vec<String>; 3] = threads.each_ref().map(of);
    // Every few seconds the broker looks at its clock: a wait in which nothing came is followed by the next one.
    let is_broker = |line: &&&str| threads[0].iter().any(|own| line.split_whitespace().next() == Some(own));
    let quiet = between.iter().filter(is_broker).filter(|line| line.contains("epoll_pwait") && line.ends_with("= 0"));
    let mut quiet = quiet.count();
    let broker = broker.into_iter().filter(|line| {
        let is_next = line.contains("epoll_pwait(") && quiet > 0;
        quiet -= usize::from(is_next);
        !is_next
    });
    Some(Calls { broker: broker.collect(), server, caller })
}

#[test]
fn broker_makes_no_system_call_for_messages_between_others() {
    for wait_mode in ["park", "adaptive"] {
        let Some(calls) = traced(wait_mode) else { return };
        assert!(calls.broker.is_empty(), "{wait_mode}: {:?}", calls.broker);
        if wait_mode == "park" {
            // The control: the trace shows calls where there are some. Who was off its CPU when the answer came needs
            // none.
            let few = TRIPS as usize / 10;
            assert!(calls.caller.len() > few && calls.server.len() > few);
        }
        eprintln!(
            "{wait_mode}: {TRIPS} round trips, {} calls of the caller, {} of the server",
            calls.caller.len(),
            calls.server.len()
        );
    }
}

#[test]
fn messages_between_two_that_spin_make_no_system_call_at_all() {
    let Some(calls) = traced("spin") else { return };
    let all = [calls.broker, calls.server, calls.caller].concat();
    assert!(all.is_empty(), "{} calls, such as {:?}", all.len(), all.first());
}
