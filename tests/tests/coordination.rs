//! Locks, elections, values and groups of a container's programs, over three nodes with their servers and daemons.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use end_to_end::{Cluster, c_library, eventually};
// Cargo builds the archive of the library together with what imports it.
use ipc_c as _;
use libvos::{CsClient, GroupEvent, GroupMembership};
use vos_api::cs::{ABSENT, ANY, Level, Race};

const PATIENCE: Duration = Duration::from_secs(30);

/// Not a test: a program of the container, which does what it is told. Outside it does nothing.
#[test]
fn child_process() {
    if std::env::var_os("COORDINATION_ROLE").is_none() {
        return;
    }
    let client = CsClient::connect(Path::new("/run/dvs/broker")).expect("the server of this node");
    say("-", &std::process::id().to_string());
    let memberships: Arc<Mutex<HashMap<String, GroupMembership>>> = Arc::default();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (client, memberships) = (client.clone(), Arc::clone(&memberships));
        // Each in its own thread: some wait.
        std::thread::spawn(move || {
            let words: Vec<&str> = line.split(' ').collect();
            say(words[0], &obey(&client, &memberships, &words[1..]));
        });
    }
}

fn obey(client: &CsClient, memberships: &Mutex<HashMap<String, GroupMembership>>, words: &[&str]) -> String {
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let wait = |index: usize| Duration::from_millis(number(index));
    match words[0] {
        "lock" => format!("{:?}", client.lock(words[1], wait(2))),
        "unlock" => format!("{:?}", client.unlock(words[1], number(2))),
        "confirm" => format!("{:?}", client.confirm(Race::Lock, words[1], number(2))),
        "campaign" => format!("{:?}", client.campaign(words[1], words[2].as_bytes(), wait(3))),
        "resign" => format!("{:?}", client.resign(words[1], number(2))),
        "leader" => {
            let leader = client.next_holder(Race::Election, words[1], number(2), wait(3));
            format!("{:?}", leader.map(|one| one.map(|one| (one.token, String::from_utf8(one.value).expect("text")))))
        }
        "holder" => format!("{:?}", client.holder(Race::Lock, words[1]).map(|one| one.map(|one| one.token))),
        "put" => {
            let condition = match words[3] {
                "any" => ANY,
                "absent" => ABSENT,
                _ => number(3),
            };
            format!("{:?}", client.put(words[1].as_bytes(), words[2].as_bytes(), condition))
        }
        "get" => {
            let got = client.get(words[1].as_bytes());
            format!("{:?}", got.map(|(value, revision)| (String::from_utf8(value).expect("text"), revision)))
        }
        "delete" => format!("{:?}", client.delete(words[1].as_bytes(), ANY).map(|_| ())),
        "watch" => {
            let told = client.watch(words[1].as_bytes(), number(2), wait(3)).map(|(events, seen)| {
                let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
                let events: Vec<_> =
                    events.into_iter().map(|one| (one.change, text(one.key), text(one.value))).collect();
                (events, seen)
            });
            format!("{told:?}")
        }
        "seen" => format!("{:?}", client.list(b"", b"").map(|(_, _, seen)| seen)),
        "count" => count(client, words[1].as_bytes(), number(2)),
        "join" => match client.join(words[1], words[2], wait(3)) {
            Ok(membership) => {
                let id = membership.id();
                memberships.lock().expect("alive").insert(words[1].to_owned(), membership);
                format!("Ok({id})")
            }
            Err(error) => format!("Err({error:?})"),
        },
        "send" => {
            let membership = memberships.lock().expect("alive")[words[1]].clone();
            let level = if words[2] == "safe" { Level::Safe } else { Level::Agreed };
            let sent = words[3..].iter().try_for_each(|text| membership.send(level, text.as_bytes()));
            format!("{:?}", sent.and_then(|()| membership.flush()))
        }
        "receive" => {
            let membership = memberships.lock().expect("alive")[words[1]].clone();
            match membership.receive(wait(2)) {
                Ok(events) => events.iter().map(told).collect::<Vec<_>>().join(" "),
                Err(error) => format!("Err({error:?})"),
            }
        }
        "flood" => {
            let membership = memberships.lock().expect("alive")[words[1]].clone();
            flood(&membership, number(2), number(3), number(4) as usize)
        }
        "beat" => {
            let membership = memberships.lock().expect("alive")[words[1]].clone();
            beat(&membership, words[2] == "send", number(3))
        }
        "echo" => echo(),
        "rtt" => {
            let to = ipc::Endpoint::new(number(1) as u32).expect("an endpoint");
            round_trips(to, number(2), Duration::from_millis(number(3)))
        }
        "view" => {
            let (number, members) = client.view(words[1], number(2), wait(3)).expect("a view");
            format!("{number}:{}", members.into_iter().map(|member| member.name).collect::<Vec<_>>().join("+"))
        }
        "sense" => {
            let nodes = client.sense(wait(1)).expect("nodes");
            let node = |node: &libvos::NodeVitals| {
                assert!(!node.answered || (node.memory_bytes > 0 && node.cpus > 0), "{node:?}");
                format!("{}:{}", node.node, node.answered)
            };
            nodes.iter().map(node).collect::<Vec<_>>().join(" ")
        }
        other => panic!("{other}?"),
    }
}

/// Sends so many messages of 16 bytes in bursts, and takes what all members send until it has `total`: milliseconds,
/// and what tells the order.
fn flood(membership: &GroupMembership, count: u64, total: u64, burst: usize) -> String {
    let (sender, begin) = (membership.clone(), Instant::now());
    let sending = std::thread::spawn(move || {
        let messages: Vec<[u8; 16]> = (0..burst).map(|index| [index as u8; 16]).collect();
        let messages: Vec<&[u8]> = messages.iter().map(|message| &message[..]).collect();
        for _ in 0..count / burst as u64 {
            sender.send_all(Level::Agreed, &messages).expect("sent");
        }
        sender.flush().expect("sent");
    });
    let (mut taken, mut order) = (0, 0_u64);
    while taken < total {
        for event in membership.receive(PATIENCE).expect("a member") {
            if let GroupEvent::Message { sender, number, .. } = event {
                taken += 1;
                order = order.wrapping_mul(31).wrapping_add(sender ^ number);
            }
        }
    }
    sending.join().expect("sent");
    format!("{} {order}", begin.elapsed().as_millis())
}

/// Messages one after the other, each with the time at which it was sent: the median of how old they are when they are
/// given, in microseconds.
fn beat(membership: &GroupMembership, is_sender: bool, count: u64) -> String {
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let mut ages = Vec::new();
    while (ages.len() as u64) < count {
        if is_sender {
            // So that what is measured is a message's way, not how many wait before it.
            std::thread::sleep(Duration::from_millis(1));
            membership.send(Level::Agreed, &now().to_le_bytes()).expect("sent");
        }
        let mut taken = 0;
        while taken == 0 {
            for event in membership.receive(PATIENCE).expect("a member") {
                if let GroupEvent::Message { bytes, .. } = event
                    && let Ok(sent) = bytes.try_into().map(u64::from_le_bytes)
                {
                    ages.push((now() - sent) / 1000);
                    taken += 1;
                }
            }
        }
    }
    ages.sort_unstable();
    format!("{}", ages[ages.len() / 2])
}

fn echo() -> String {
    let mut port = ipc::Port::connect(Path::new("/run/dvs/broker"), None).expect("bound");
    let endpoint = port.endpoint();
    std::thread::spawn(move || {
        while let Ok(request) = port.receive(ipc::Source::Any, ipc::Wait::Forever) {
            let from = request.source.expect("a caller");
            if port.reply(from, &request).is_err() {
                return;
            }
        }
    });
    endpoint.to_string()
}

/// Half of the median round trip of a message, in microseconds. With a pause all on the way sleep between two.
fn round_trips(to: ipc::Endpoint, count: u64, pause: Duration) -> String {
    let mut port = ipc::Port::connect(Path::new("/run/dvs/broker"), None).expect("bound");
    port.wait4bind(to, ipc::Wait::For(PATIENCE)).expect("its node has heard of it");
    let mut took: Vec<u64> = (0..count)
        .map(|_| {
            std::thread::sleep(pause);
            let begin = Instant::now();
            port.sendrec(to, &ipc::Message::new(1), ipc::Wait::For(PATIENCE)).expect("an answer");
            begin.elapsed().as_nanos() as u64 / 2000
        })
        .collect();
    took.sort_unstable();
    took[took.len() / 2].to_string()
}

/// Adds so much to a number, one by one, each time comparing that nobody did meanwhile.
fn count(client: &CsClient, key: &[u8], times: u64) -> String {
    for _ in 0..times {
        loop {
            let (number, revision) = match client.get(key) {
                Ok((value, revision)) => {
                    (String::from_utf8(value).expect("text").parse::<u64>().expect("a number"), revision)
                }
                Err(_) => (0, ABSENT),
            };
            if client.put(key, (number + 1).to_string().as_bytes(), revision).is_ok() {
                break;
            }
        }
    }
    "counted".to_owned()
}

fn told(event: &GroupEvent) -> String {
    match event {
        GroupEvent::View { members, .. } => {
            format!("[{}]", members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join("+"))
        }
        GroupEvent::Message { bytes, .. } => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn say(tag: &str, line: &str) {
    println!("said {tag} {line}");
    std::io::stdout().flush().expect("somebody reads");
}

/// A program of the container, in the hands of this test.
struct Program {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    heard: HashMap<String, String>,
    next: u32,
    pid: String,
}

impl Program {
    fn start(cluster: &Cluster, dc: &str, node: &str) -> Program {
        let test = ["child_process", "--exact", "--nocapture", "--test-threads=1"];
        let run = ["run", dc, "--node", node, "-i", "--env", "COORDINATION_ROLE=any", "--", "/dc/programs/member"];
        let mut command = cluster.command(&[&run[..], &test].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs starts");
        let input = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut program = Program { child, input, lines, heard: HashMap::new(), next: 0, pid: String::new() };
        program.pid = program.hear("-");
        program
    }

    /// The answer is heard by the tag that this returns.
    fn tell(&mut self, line: &str) -> String {
        self.next += 1;
        writeln!(self.input, "{} {line}", self.next).expect("it still listens");
        self.next.to_string()
    }

    fn hear(&mut self, tag: &str) -> String {
        loop {
            if let Some(said) = self.heard.remove(tag) {
                return said;
            }
            let line = self.lines.next().expect("it says something").expect("text");
            if let Some((_, said)) = line.split_once("said ") {
                let (of, said) = said.split_once(' ').expect("a tag");
                self.heard.insert(of.to_owned(), said.to_owned());
            }
        }
    }

    fn ask(&mut self, line: &str) -> String {
        let tag = self.tell(line);
        self.hear(&tag)
    }

    fn token(&mut self, line: &str) -> u64 {
        number_in(&self.ask(line))
    }

    /// What it is given of a group, until it was given `last`.
    fn receive_until(&mut self, group: &str, last: &str) -> Vec<String> {
        let (mut given, begin) = (Vec::new(), Instant::now());
        while !given.iter().any(|word| word == last) {
            assert!(begin.elapsed() < PATIENCE, "{last} does not come after {given:?}");
            let said = self.ask(&format!("receive {group} 1000"));
            assert!(!said.starts_with("Err"), "{said}");
            given.extend(said.split(' ').filter(|word| !word.is_empty()).map(str::to_owned));
        }
        given
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number_in(said: &str) -> u64 {
    let number = said.strip_prefix("Ok(").and_then(|rest| rest.strip_suffix(')'));
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number: {said}"))
}

fn cluster(dcs: &[&str], nodes: usize) -> Cluster {
    let cluster = Cluster::up(nodes);
    let place = tempfile::tempdir().expect("a directory");
    let this_test = std::env::current_exe().expect("a test has a path");
    std::fs::copy(this_test, place.path().join("member")).expect("copied");
    for dc in dcs {
        cluster.container(dc, nodes, &[]);
        cluster.ok(&["import", dc, place.path().to_str().expect("UTF-8"), "/programs"]);
    }
    cluster
}

fn kill_server(cluster: &Cluster, dc: &str, node: &str) {
    let pid = eventually("a server runs", PATIENCE, || cluster.server_pid(dc, node, "cs"));
    cluster.kill(node, pid);
}

#[test]
fn locks_and_values_are_one_over_nodes_and_outlive_servers_and_daemons_but_not_their_holders() {
    let cluster = cluster(&["shop", "yard"], 3);
    let mut first = Program::start(&cluster, "shop", "n1");
    let one = first.token("lock stock 1000");
    // Streams of programs on other nodes pass two daemons and end with either, so these come later.
    cluster.ok(&["dev", "restart", "n1"]);
    assert_eq!(first.ask(&format!("confirm stock {one}")), "Ok(())");
    let mut programs = ["n2", "n3"].map(|node| Program::start(&cluster, "shop", node));
    let [second, third] = &mut programs;
    assert_eq!(second.ask("lock stock 100"), format!("Err({})", errno("TIMEDOUT")));
    let (waits, waits_longer) = (second.tell("lock stock 60000"), {
        std::thread::sleep(Duration::from_millis(300));
        third.tell("lock stock 60000")
    });
    assert_eq!(first.ask(&format!("confirm stock {one}")), "Ok(())");

    // Another container knows nothing of it.
    let mut stranger = Program::start(&cluster, "yard", "n1");
    assert_eq!(stranger.ask("holder stock"), "Ok(None)");
    let other = stranger.token("lock stock 1000");
    assert!(stranger.ask("put secret 1 any").starts_with("Ok"));
    assert_eq!(first.ask("get secret"), format!("Err({})", errno("NOENT")));
    assert_eq!(stranger.ask(&format!("unlock stock {other}")), "Ok(())");

    // Servers come and go; the lock stays where it is.
    kill_server(&cluster, "shop", "n1");
    kill_server(&cluster, "shop", "n2");
    assert_eq!(first.ask(&format!("confirm stock {one}")), "Ok(())");
    kill_server(&cluster, "shop", "n1");
    assert_eq!(first.ask(&format!("confirm stock {one}")), "Ok(())");

    // Counting while servers die: each addition happens once.
    let counts = [first.tell("count number 40"), third.tell("count number 40")];
    for node in ["n1", "n3", "n1"] {
        std::thread::sleep(Duration::from_millis(150));
        kill_server(&cluster, "shop", node);
    }
    assert_eq!([first.hear(&counts[0]), third.hear(&counts[1])], ["counted", "counted"]);
    assert!(third.ask("get number").starts_with("Ok((\"80\""), "80 additions");

    // The holder dies: the next in line has it, and the one after that when the next lets go.
    cluster.ok(&["kill", "shop", &first.pid, "-s", "KILL"]);
    let two = number_in(&second.hear(&waits));
    assert!(two > one, "{two} after {one}");
    assert_eq!(second.ask(&format!("unlock stock {two}")), "Ok(())");
    let three = number_in(&third.hear(&waits_longer));
    assert!(three > two);
    assert_eq!(second.ask(&format!("confirm stock {two}")), format!("Err({})", errno("NOENT")));

    // What changes is told on every node.
    let seen = second.token("seen");
    let watch = second.tell(&format!("watch config/ {seen} 30000"));
    assert!(third.ask("put config/a 1 absent").starts_with("Ok"));
    assert!(second.hear(&watch).contains("(Put, \"config/a\", \"1\")"));
    assert_eq!(third.ask("put config/a 2 absent"), format!("Err({})", errno("EXIST")));
    assert_eq!(third.ask("put config/a 2 1"), format!("Err({})", errno("STALE")));

    // A deleted container leaves nothing.
    drop((first, programs));
    cluster.ok(&["dc", "delete", "shop", "--force"]);
}

/// As `Errno` shows itself.
fn errno(name: &str) -> String {
    let errno = match name {
        "TIMEDOUT" => rustix::io::Errno::TIMEDOUT,
        "NOENT" => rustix::io::Errno::NOENT,
        "EXIST" => rustix::io::Errno::EXIST,
        "STALE" => rustix::io::Errno::STALE,
        other => panic!("{other}?"),
    };
    format!("{errno:?}")
}

#[test]
fn leader_is_followed_and_group_agrees_while_members_servers_and_a_node_die() {
    let cluster = cluster(&["shop"], 3);
    let mut programs = ["n1", "n2", "n3"].map(|node| Program::start(&cluster, "shop", node));
    let [first, second, third] = &mut programs;

    let term = first.token("campaign boss one 1000");
    let next = second.tell("campaign boss two 60000");
    assert_eq!(third.ask("leader boss 0 10000"), format!("Ok(Some(({term}, \"one\")))"));
    let change = third.tell(&format!("leader boss {term} 30000"));
    assert_eq!(first.ask(&format!("resign boss {term}")), "Ok(())");
    let later = number_in(&second.hear(&next));
    let said = third.hear(&change);
    let followed = said == format!("Ok(Some(({later}, \"two\")))") || said == "Ok(None)";
    assert!(later > term && followed, "{later} after {term}: {said}");

    for (program, name) in [(&mut *first, "a"), (&mut *second, "b"), (&mut *third, "c")] {
        assert!(program.ask(&format!("join crew {name} 20000")).starts_with("Ok"), "{name}");
    }
    for program in [&mut *first, &mut *second, &mut *third] {
        assert_eq!(program.receive_until("crew", "[a+b+c]").last().map(String::as_str), Some("[a+b+c]"));
    }
    assert!(second.ask("view crew 0 0").ends_with(":a+b+c"));
    assert_eq!(third.ask("sense 2000"), "0:true 1:true 2:true");

    // All speak at once: one order.
    let sends = [
        (first.tell("send crew agreed a1 a2 a3")),
        (second.tell("send crew safe b1 b2 b3")),
        (third.tell("send crew agreed c1 c2 c3")),
    ];
    for (program, send) in [&mut *first, &mut *second, &mut *third].into_iter().zip(&sends) {
        assert_eq!(program.hear(send), "Ok(())");
    }
    let told = [&mut *first, &mut *second, &mut *third].map(|program| {
        let (mut told, begin) = (Vec::new(), Instant::now());
        while told.len() < 9 && begin.elapsed() < PATIENCE {
            let said = program.ask("receive crew 1000");
            told.extend(said.split(' ').filter(|word| !word.is_empty()).map(str::to_owned));
        }
        told
    });
    assert_eq!(told[0].len(), 9, "{told:?}");
    assert!(told[0] == told[1] && told[1] == told[2], "{told:?}");

    // The server of the sequencer is killed: its member is out, the others go on, and it may come back.
    kill_server(&cluster, "shop", "n1");
    for program in [&mut *second, &mut *third] {
        program.receive_until("crew", "[b+c]");
    }
    assert_eq!(first.ask("receive crew 1000"), format!("Err({})", errno("STALE")));
    assert_eq!(second.ask("send crew safe after"), "Ok(())");
    third.receive_until("crew", "after");
    assert!(first.ask("join crew a 20000").starts_with("Ok"));
    third.receive_until("crew", "[b+c+a]");

    // A node is lost whole; its lock and its place in the group go with its lease.
    let lock = second.token("lock crane 1000");
    let waits = third.tell("lock crane 60000");
    cluster.ok(&["dev", "kill", "n2"]);
    let after = number_in(&third.hear(&waits));
    assert!(after > lock);
    third.receive_until("crew", "[c+a]");
}

#[test]
fn programs_in_c_and_python_count_under_one_lock_and_talk_in_one_group() {
    let Some(programs) = c_library::built() else { return };
    let library = tempfile::tempdir().expect("a directory");
    c_library::link_into(library.path());
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror"]).arg(c_library::source("examples/coordination.c"));
    cc.arg("-I")
        .arg(c_library::source("include"))
        .arg("-L")
        .arg(library.path())
        .args(["-lm3ipc", "-Wl,-rpath,$ORIGIN"]);
    c_library::ok(cc.arg("-o").arg(programs.path().join("coordination")));
    let script = c_library::source("python/examples/coordination.py");
    std::fs::copy(script, programs.path().join("coordination.py")).expect("copied");
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    cluster.ok(&["import", "shop", programs.path().to_str().expect("UTF-8"), "/programs"]);

    let c = |node: &str, name: &str| {
        cluster.ok(&["run", "-d", "shop", "--node", node, "--", "/dc/programs/coordination", name])
    };
    let variables = ["PYTHONPATH=/dc/programs", "M3IPC_LIBRARY=/dc/programs/libm3ipc.so.0"];
    let python = ["--", "python3", "/dc/programs/coordination.py", "p"];
    let run = ["run", "-d", "shop", "--node", "n2", "--env", variables[0], "--env", variables[1]];
    let pids = [c("n1", "c"), c("n2", "d"), cluster.ok(&[&run[..], &python].concat())];
    let logs = || pids.iter().map(|pid| cluster.ok(&["logs", "shop", pid.trim()])).collect::<Vec<String>>();
    eventually("each has counted three times, and all have met", PATIENCE, || {
        let logs = logs();
        let numbers: BTreeSet<&str> = logs
            .iter()
            .flat_map(|log| log.lines())
            .filter_map(|line| line.split_once(" counts "))
            .map(|(_, number)| number)
            .collect();
        let met = logs.iter().all(|log| {
            log.lines().any(|line| {
                line.starts_with("view ")
                    && ["c", "d", "p"].iter().all(|name| line.split(' ').any(|word| word == *name))
            })
        });
        (met && numbers == BTreeSet::from(["1", "2", "3", "4", "5", "6", "7", "8", "9"])).then_some(())
    });
    // What two of them were given is in the same order.
    let logs = logs();
    let after_last_view =
        |log: &String| log.lines().filter(|line| line.contains(" counts ")).map(str::to_owned).collect::<Vec<_>>();
    let told: Vec<Vec<String>> = logs.iter().map(after_last_view).collect();
    for (one, other) in [(0, 1), (1, 2), (0, 2)] {
        let common = |of: usize, with: usize| {
            told[of].iter().filter(|line| told[with].contains(line)).cloned().collect::<Vec<_>>()
        };
        assert_eq!(common(one, other), common(other, one));
    }
    pids.iter().for_each(|pid| drop(cluster.ok(&["kill", "shop", pid.trim()])));
}

/// Figures; `docs/design/services.md` has them. Short in an ordinary run, where nothing of speed is asserted.
#[test]
fn three_members_of_one_node_and_of_three_are_given_a_flood_in_one_order() {
    let (rounds, count, beats) = if end_to_end::is_long_run() { (5, 200_000, 1000) } else { (1, 20_000, 100) };
    let cluster = cluster(&["shop"], 3);
    for nodes in [["n1", "n1", "n1"], ["n1", "n2", "n3"]] {
        let mut members = nodes.map(|node| Program::start(&cluster, "shop", node));
        for (member, name) in members.iter_mut().zip(["a", "b", "c"]) {
            assert!(member.ask(&format!("join crew {name} 20000")).starts_with("Ok"));
        }
        for member in &mut members {
            member.receive_until("crew", "[a+b+c]");
        }
        for _ in 0..rounds {
            let tags = members.each_mut().map(|member| member.tell(&format!("flood crew {count} {} 50", 3 * count)));
            let said: Vec<String> = members.iter_mut().zip(tags).map(|(member, tag)| member.hear(&tag)).collect();
            let told: Vec<(u64, &str)> = said
                .iter()
                .map(|said| said.split_once(' ').expect("two words"))
                .map(|(ms, order)| (ms.parse().expect("a number"), order))
                .collect();
            assert!(told.iter().all(|(_, order)| *order == told[0].1), "one order: {said:?}");
            let slowest = told.iter().map(|(ms, _)| *ms).max().unwrap_or(1).max(1);
            println!("{nodes:?}: {} messages/s, each given to three", 3 * count * 1000 / slowest);

            let echo = members[1].ask("echo");
            let one_way = members[0].ask(&format!("rtt {echo} {beats} 0"));
            let paced = members[0].ask(&format!("rtt {echo} {beats} 1"));
            let tags = ["send", "take", "take"];
            let tags: Vec<String> = members
                .iter_mut()
                .zip(tags)
                .map(|(member, role)| member.tell(&format!("beat crew {role} {beats}")))
                .collect();
            let ages: Vec<String> = members.iter_mut().zip(&tags).map(|(member, tag)| member.hear(tag)).collect();
            println!(
                "{nodes:?}: p50 {ages:?} us from send to each member; one way of a message {one_way} us, {paced} us 1 ms apart"
            );
        }
    }
}
