//! A container on one node has all the endpoints that are promised, with the limits that daemons and programs usually
//! start with.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use abi::limits::ENDPOINTS_PROMISED;
use end_to_end::{Cluster, eventually};
use ipc::{Endpoint, IpcError, Message, Port, Source, Wait};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SOON: Wait = Wait::For(Duration::from_secs(20));
const PROMISED: usize = ENDPOINTS_PROMISED as usize;
/// What a service manager or a login gives.
const USUAL_LIMIT: u64 = 1024;
/// One of the descriptors for each port would be more than the usual limit.
const PORTS_EACH: usize = 1024;
/// All but one, which is the caller's.
const CROWDS: [usize; 4] = [PORTS_EACH, PORTS_EACH, PORTS_EACH, PORTS_EACH - 1];
const _: () = assert!(CROWDS[0] + CROWDS[1] + CROWDS[2] + CROWDS[3] + 1 == PROMISED);
/// A channel holds descriptors of the daemon while it is there, of which endpoints have most.
const CALLED_EACH_TIME: usize = 256;
/// "Within seconds", on a machine that does other things besides.
const BINDING_MAX: Duration = Duration::from_secs(30);

fn limit_descriptors(limit: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(maximum.map_or(limit, |most| limit.min(most)));
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("a limit of descriptors");
}

/// Not a test: a program of the container. Outside it does nothing.
#[test]
fn child_process() {
    let Ok(role) = std::env::var("ENDPOINTS_ROLE") else { return };
    limit_descriptors(u64::MAX);
    match role.parse() {
        Ok(count) => be_many(count),
        Err(_) => call_some(),
    }
}

fn connect() -> Result<Port, IpcError> {
    Port::connect(Path::new("/run/dvs/broker"), None)
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().expect("somebody reads");
}

/// Binds so many, says which, and answers until nobody wants it any more.
fn be_many(count: usize) {
    let mut ports: Vec<Port> = (0..count).map(|_| connect().expect("bound")).collect();
    // The first look arms the descriptor.
    ports.iter_mut().for_each(answer);
    let numbers: Vec<String> = ports.iter().map(|port| port.endpoint().to_string()).collect();
    say(&format!("endpoints {}", numbers.join(" ")));
    let input = std::io::stdin();
    loop {
        let mut polled: Vec<PollFd<'_>> =
            ports.iter().map(|port| PollFd::from_borrowed_fd(port.fd(), PollFlags::IN)).collect();
        polled.push(PollFd::new(&input, PollFlags::IN | PollFlags::HUP));
        poll(&mut polled, None).expect("polled");
        let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        if ready.last() == Some(&true) {
            return;
        }
        ports.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready).for_each(|(port, _)| answer(port));
    }
}

fn answer(port: &mut Port) {
    while let Ok(request) = port.receive(Source::Any, Wait::NoWait) {
        port.reply(request.source.expect("a source"), &request).expect("answered");
    }
}

/// Binds the last one, is refused another, and calls whom each line names.
fn call_some() {
    let mut port = connect().expect("bound");
    say(&format!("endpoints {}", port.endpoint()));
    say(&format!("refused {:?}", connect().map(|port| port.endpoint())));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let called: Vec<u32> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
        for number in &called {
            let kind = i32::try_from(*number).expect("a number");
            let to = Endpoint::new(*number).expect("an endpoint");
            assert_eq!(port.sendrec(to, &Message::new(kind), SOON).map(|answer| answer.kind), Ok(kind));
        }
        say(&format!("answered {}", called.len()));
    }
}

/// A program of the container, in the hands of this test.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(cluster: &Cluster, role: &str) -> Program {
        let role = format!("ENDPOINTS_ROLE={role}");
        let test = ["child_process", "--exact", "--nocapture", "--test-threads=1"];
        let run = ["run", "shop", "-i", "--env", &role, "--", "/dc/programs/endpoints"];
        let mut command = cluster.command(&[&run[..], &test].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Program { input: child.stdin.take(), child, lines }
    }

    /// The rest of the next line with this word.
    fn hear(&mut self, word: &str) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        lines.find_map(|line| Some(line.split_once(word)?.1.trim().to_owned())).unwrap_or_else(|| panic!("no {word}"))
    }

    fn endpoints(&mut self) -> Vec<u32> {
        self.hear("endpoints ").split(' ').map(|number| number.parse().expect("a number")).collect()
    }

    fn call(&mut self, endpoints: &[u32]) {
        let numbers: Vec<String> = endpoints.iter().map(u32::to_string).collect();
        let input = self.input.as_mut().expect("it still listens");
        writeln!(input, "{}", numbers.join(" ")).expect("it still listens");
        assert_eq!(self.hear("answered "), endpoints.len().to_string());
    }

    fn end(mut self) {
        self.input = None;
        assert!(self.child.wait().expect("it ends").success());
    }
}

#[test]
fn container_on_one_node_binds_all_endpoints_that_are_promised_and_a_new_daemon_knows_them() {
    limit_descriptors(USUAL_LIMIT);
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let place = tempfile::tempdir().expect("a directory");
    let this_test = std::env::current_exe().expect("a test has a path");
    std::fs::copy(this_test, place.path().join("endpoints")).expect("copied");
    cluster.ok(&["import", "shop", place.path().to_str().expect("UTF-8"), "/programs"]);

    let start = Instant::now();
    let mut crowds = CROWDS.map(|count| Program::start(&cluster, &count.to_string()));
    let endpoints: Vec<u32> = crowds.iter_mut().flat_map(Program::endpoints).collect();
    let took = start.elapsed();
    eprintln!("{} endpoints of {} processes within {took:?}", endpoints.len(), CROWDS.len());
    assert!(took < BINDING_MAX, "{took:?}");

    let mut caller = Program::start(&cluster, "caller");
    let distinct: BTreeSet<u32> = endpoints.iter().copied().chain(caller.endpoints()).collect();
    assert_eq!(distinct.len(), PROMISED);
    assert_eq!(caller.hear("refused "), "Err(TableFull)");
    let shown = cluster.json(&["dc", "inspect", "shop", "-o", "json"]);
    let share = &shown["shares"][0]["endpoints"];
    let given = [&share["start"], &share["end"]].map(|number| number.as_u64().expect("a number") as u32);
    assert!(distinct.iter().all(|number| (given[0]..given[1]).contains(number)), "{given:?}");

    let some = |first: usize| -> Vec<u32> {
        endpoints.iter().skip(first).step_by(PROMISED / CALLED_EACH_TIME).copied().collect()
    };
    caller.call(&some(0));
    // Channels to others: the new daemon makes them, and it has everybody's connection.
    cluster.ok(&["dev", "restart", "n1"]);
    caller.call(&some(1)[..CALLED_EACH_TIME / 2]);

    caller.end();
    crowds.into_iter().for_each(Program::end);
    let mut again = eventually("the numbers are free again", Duration::from_secs(20), || {
        let mut one = Program::start(&cluster, "1");
        let heard = one.lines.by_ref().map_while(Result::ok).any(|line| line.contains("endpoints "));
        heard.then_some(one)
    });
    again.input = None;
    assert!(again.child.wait().expect("it ends").success());
}
