//! Names of endpoints, over two nodes with their daemons.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use end_to_end::{Cluster, eventually};
use ipc::{Endpoint, IpcError, NodeId, Port, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(20));
const PATIENCE: Duration = Duration::from_secs(20);

/// Not a test: a program of the container, which does what it is told. Outside it does nothing.
#[test]
fn child_process() {
    if std::env::var_os("NAMES_ROLE").is_none() {
        return;
    }
    let broker = Path::new("/run/dvs/broker");
    let mut port = Port::connect(broker, None).expect("bound");
    let node = port.dc_info().expect("its node tells").node;
    say(&format!("{} {} {}", port.endpoint(), node.0, std::process::id()));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u32>().expect("a number");
        match words[0] {
            "name" => say(&format!("{:?}", port.set_name(words[1]))),
            "find" => say(&format!("{:?}", port.find(words[1], SOON))),
            "look" => say(&format!("{:?}", port.find(words[1], Wait::NoWait))),
            "over" => {
                let own = port.endpoint();
                port.migration_start(own, SOON).expect("held");
                say(&format!("{:?}", hand_over(&mut port, NodeId(number(1) as u16), number(2))));
            }
            "after" => {
                let endpoint = Endpoint::new(number(1)).expect("an endpoint");
                port = Port::stand_by(broker, endpoint, SOON).expect("the owner");
                say(&format!("Ok({:?})", port.endpoint()));
            }
            other => panic!("{other}?"),
        }
    }
}

/// Who stands by says so only to its broker.
fn hand_over(port: &mut Port, node: NodeId, pid: u32) -> Result<(), IpcError> {
    let own = port.endpoint();
    let begin = Instant::now();
    loop {
        match port.migration_commit(own, node, pid as i32, SOON) {
            Err(IpcError::NoSuchEndpoint) if begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20))
            }
            result => return result,
        }
    }
}

fn say(line: &str) {
    println!("said {line}");
    std::io::stdout().flush().expect("somebody reads");
}

/// A program of the container, in the hands of this test.
struct Program {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    endpoint: String,
    /// Nodes get their numbers as they join: `n2` may be the first.
    node: String,
    pid: String,
}

impl Program {
    fn start(cluster: &Cluster, node: &str) -> Program {
        let test = ["child_process", "--exact", "--nocapture", "--test-threads=1"];
        let run = ["run", "shop", "--node", node, "-i", "--env", "NAMES_ROLE=any", "--", "/dc/programs/names"];
        let mut command = cluster.command(&[&run[..], &test].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs starts");
        let input = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let [endpoint, node, pid] = [const { String::new() }; 3];
        let mut program = Program { child, input, lines, endpoint, node, pid };
        let said = program.hear();
        let mut numbers = said.split(' ').map(str::to_owned);
        for number in [&mut program.endpoint, &mut program.node, &mut program.pid] {
            *number = numbers.next().expect("three numbers");
        }
        program
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it still listens");
    }

    fn hear(&mut self) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        lines.find_map(|line| Some(line.split_once("said ")?.1.to_owned())).expect("it says something")
    }

    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    /// As `find` and `look` say it.
    fn found(&self) -> String {
        format!("Ok(ep{})", self.endpoint)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn name_is_found_on_the_other_node_outlives_daemons_and_a_handover_and_ends_with_its_process() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let place = tempfile::tempdir().expect("a directory");
    let this_test = std::env::current_exe().expect("a test has a path");
    std::fs::copy(this_test, place.path().join("names")).expect("copied");
    cluster.ok(&["import", "shop", place.path().to_str().expect("UTF-8"), "/programs"]);

    let (mut near, mut far) = (Program::start(&cluster, "n1"), Program::start(&cluster, "n2"));
    assert_eq!(far.ask("look front-end"), "Err(NoSuchEndpoint)");
    far.tell("find front-end");
    assert_eq!(near.ask("name front-end"), "Ok(())");
    assert_eq!(far.hear(), near.found());
    assert_eq!(far.ask("name front-end"), "Err(EndpointInUse)");

    // Neither of the two daemons loses it. What a program on another node is told goes by both, and ends with one.
    for node in ["n1", "n2"] {
        drop(far);
        cluster.ok(&["dev", "restart", node]);
        assert_eq!(near.ask("find front-end"), near.found(), "{node} has a new daemon");
        far = Program::start(&cluster, "n2");
        assert_eq!(far.ask("find front-end"), near.found(), "{node} has a new daemon");
        assert_eq!(far.ask("name front-end"), "Err(EndpointInUse)", "{node} has a new daemon");
    }

    // To the other node.
    let mut next = Program::start(&cluster, "n2");
    next.tell(&format!("after {}", near.endpoint));
    assert_eq!(near.ask(&format!("over {} {}", next.node, next.pid)), "Ok(())");
    assert_eq!(next.hear(), near.found());
    assert_eq!(next.ask("find front-end"), near.found());
    assert_eq!(far.ask("name front-end"), "Err(EndpointInUse)");
    let mut other = Program::start(&cluster, "n1");
    assert_eq!(other.ask("find front-end"), near.found());

    // Its process is killed: the name is another's.
    cluster.ok(&["kill", "shop", &next.pid, "-s", "KILL"]);
    eventually("nobody is called so", PATIENCE, || {
        (other.ask("look front-end") == "Err(NoSuchEndpoint)").then_some(())
    });
    eventually("the name is free", PATIENCE, || (other.ask("name front-end") == "Ok(())").then_some(()));
    assert_eq!(far.ask("find front-end"), other.found());
}
