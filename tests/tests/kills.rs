//! Servers, gates, proxies and keepers are killed again and again under load: no program sees an error, nothing that
//! was acknowledged is lost.
//!
//! The container has its programs on n1, its file server on n2 and its disk on n3, so that every operation crosses the
//! nodes twice.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use end_to_end::load::Load;
use end_to_end::store_load::StoreLoad;
use end_to_end::{Cluster, eventually, is_long_run};
use serde_json::Value;

const DC: &str = "shop";
/// For a server to be back, and for the load to go on. A machine with all CPUs busy needs seconds.
const SOON: Duration = Duration::from_secs(60);
const NODES: [&str; 3] = ["n1", "n2", "n3"];

fn times() -> u32 {
    if is_long_run() { 200 } else { 8 }
}

fn cluster_with_container() -> Cluster {
    let cluster = Cluster::up(3);
    cluster.container(DC, 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    cluster
}

/// Something that is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// One that the container's description lists, by its name there.
    Server(&'static str, &'static str),
    Proxy(&'static str),
    Keeper(&'static str),
}

impl Victim {
    fn node(self) -> &'static str {
        match self {
            Victim::Server(node, _) | Victim::Proxy(node) | Victim::Keeper(node) => node,
        }
    }

    /// Its PID on its node, once it serves.
    fn pid(self, cluster: &Cluster) -> Option<u32> {
        match self {
            Victim::Server(node, name) => server_pid(&inspect(cluster), node, name),
            Victim::Proxy(node) => child_of_daemon(cluster, node, "^dvs proxy"),
            Victim::Keeper(node) => child_of_daemon(cluster, node, "^dvs keeper"),
        }
    }

    /// Kills it when it serves, and waits until its successor does.
    fn kill(self, cluster: &Cluster) {
        let pid = eventually("it serves", SOON, || self.pid(cluster));
        cluster.kill(self.node(), pid);
        eventually("its successor serves", SOON, || self.pid(cluster).filter(|new| *new != pid));
    }
}

fn inspect(cluster: &Cluster) -> Value {
    cluster.json(&["dc", "inspect", DC, "-o", "json"])
}

fn server_pid(inspected: &Value, node: &str, name: &str) -> Option<u32> {
    let share = inspected["shares"].as_array()?.iter().find(|share| share["node"] == node)?;
    let server = share["servers"].as_array()?.iter().find(|server| server["name"] == name)?;
    (server["state"] == "running").then(|| server["pid"].as_u64())?.map(|pid| pid as u32)
}

/// Of a role that a node has once. A keeper's own children look like it.
fn child_of_daemon(cluster: &Cluster, node: &str, pattern: &str) -> Option<u32> {
    let script = "pgrep -f -P \"$(pgrep -o -f 'daemon --config')\" \"$0\"";
    let found = cluster.output(&["dev", "exec", node, "--", "sh", "-c", script, pattern]);
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    let mut pids = text.lines().filter_map(|line| line.parse().ok());
    pids.next().filter(|_| pids.next().is_none())
}

fn await_running(cluster: &Cluster) {
    eventually("the container runs whole", SOON, || (inspect(cluster)["phase"] == "running").then_some(()));
}

/// Kills the victims in turn, under load; after every second kill the load must have gone on before the next one comes.
fn storm(victims: &[Victim], times: u32, seed: u64) {
    let cluster = cluster_with_container();
    let load = Load::start(&cluster, DC, "n1", "/dc/load", seed);
    let begin = load.operations();
    for (round, victim) in (0..times).zip(victims.iter().cycle()) {
        victim.kill(&cluster);
        if round % 2 == 1 {
            load.await_more(&cluster, 1, SOON);
        }
    }
    load.await_more(&cluster, 1, SOON);
    assert!(load.operations() > begin);
    await_running(&cluster);
    let left = load.finish(&cluster, &NODES);
    cluster.ok(&["dc", "stop", DC]);
    cluster.ok(&["dc", "start", DC]);
    left.verify(&cluster, "n3");
}

#[test]
fn program_goes_on_while_the_disk_is_killed_again_and_again() {
    storm(&[Victim::Server("n3", "disk-root")], times(), 1);
}

#[test]
fn program_goes_on_while_the_file_server_is_killed_again_and_again() {
    storm(&[Victim::Server("n2", "fs")], times(), 2);
}

#[test]
fn program_goes_on_while_its_gate_is_killed_again_and_again() {
    storm(&[Victim::Server("n1", "gate")], times(), 3);
}

#[test]
fn program_goes_on_while_the_proxies_are_killed_again_and_again() {
    storm(&[Victim::Proxy("n1"), Victim::Proxy("n2"), Victim::Proxy("n3")], times(), 4);
}

#[test]
fn program_goes_on_while_everything_it_needs_is_killed_in_turn() {
    let victims = [
        Victim::Server("n1", "gate"),
        Victim::Server("n2", "fs"),
        Victim::Proxy("n2"),
        Victim::Server("n3", "disk-root"),
        Victim::Proxy("n3"),
        Victim::Server("n2", "fs"),
        Victim::Proxy("n1"),
    ];
    storm(&victims, times(), 5);
}

#[test]
fn program_goes_on_while_everything_it_needs_is_killed_at_once() {
    let cluster = cluster_with_container();
    let load = Load::start(&cluster, DC, "n1", "/dc/load", 8);
    let victims = [
        Victim::Server("n2", "fs"),
        Victim::Server("n3", "disk-root"),
        Victim::Server("n1", "gate"),
        Victim::Proxy("n1"),
        Victim::Proxy("n2"),
        Victim::Proxy("n3"),
    ];
    for _ in 0..times().div_ceil(3) {
        // Looked for first: the kills shall follow each other closely.
        let pids = victims.map(|victim| eventually("it serves", SOON, || victim.pid(&cluster)));
        victims.iter().zip(pids).for_each(|(victim, pid)| cluster.kill(victim.node(), pid));
        for (victim, old) in victims.iter().zip(pids) {
            eventually("its successor serves", SOON, || victim.pid(&cluster).filter(|new| *new != old));
        }
        load.await_more(&cluster, 1, SOON);
    }
    await_running(&cluster);
    load.finish(&cluster, &NODES).verify(&cluster, "n2");
}

#[test]
fn program_goes_on_after_servers_died_together_with_the_daemon_of_their_node() {
    let cluster = cluster_with_container();
    let load = Load::start(&cluster, DC, "n1", "/dc/load", 9);
    let victims = [Victim::Server("n2", "fs"), Victim::Server("n3", "disk-root"), Victim::Proxy("n2")];
    for (_, victim) in (0..times().div_ceil(3)).zip(victims.iter().cycle()) {
        let (node, pid) = (victim.node(), eventually("it serves", SOON, || victim.pid(&cluster)));
        // The daemon first: nobody sees the server die.
        cluster.ok(&[
            "dev",
            "exec",
            node,
            "--",
            "sh",
            "-c",
            &format!("kill -9 $(pgrep -o -f 'daemon --config') {pid}"),
        ]);
        cluster.ok(&["dev", "restart", node]);
        eventually("its successor serves", SOON, || victim.pid(&cluster).filter(|new| *new != pid));
        load.await_more(&cluster, 2, SOON);
    }
    await_running(&cluster);
    load.finish(&cluster, &NODES).verify(&cluster, "n3");
}

#[test]
fn programs_of_other_nodes_go_on_while_keepers_are_killed_again_and_again() {
    storm(&[Victim::Keeper("n2"), Victim::Keeper("n3")], times(), 6);
}

#[test]
fn clients_of_the_key_value_store_go_on_while_it_is_killed_again_and_again() {
    let cluster = Cluster::up(2);
    cluster.container(DC, 2, &["--ds-node", "n2"]);
    let loads = ["a", "b"].map(|prefix| StoreLoad::start(&cluster, DC, prefix));
    // The clients are on n1, so the proxies have a part in it.
    let victims =
        [Victim::Server("n2", "ds"), Victim::Server("n2", "ds"), Victim::Server("n2", "ds"), Victim::Proxy("n1")];
    let mut killed = 0;
    for victim in victims.iter().cycle() {
        victim.kill(&cluster);
        loads.iter().for_each(|load| load.await_more(SOON));
        killed += u32::from(matches!(victim, Victim::Server(..)));
        if killed >= times() {
            break;
        }
    }
    await_running(&cluster);
    for load in loads {
        load.finish(&cluster, DC);
    }
}

#[test]
fn killed_keeper_takes_its_programs_along_but_nothing_they_were_told() {
    let cluster = cluster_with_container();
    for round in 0..times() {
        let load = Load::start(&cluster, DC, "n1", &format!("/dc/load-{round}"), u64::from(round));
        Victim::Keeper("n1").kill(&cluster);
        load.lost(&cluster, "n3");
        await_running(&cluster);
        assert_eq!(cluster.sh(DC, "n1", "ls /dc | wc -l").trim(), (round + 1).to_string());
    }
}

/// The container's own programs wait while a node is lost; nobody else may have to.
#[test]
fn program_that_waits_for_a_lost_disk_can_be_killed_and_others_go_on_when_it_is_back() {
    let cluster = cluster_with_container();
    cluster.sh(DC, "n1", "echo hello > /dc/greeting");
    // Whatever interrupts the call, Python makes it again.
    let appends = "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: None); \
                   f = os.open('/dc/log', os.O_CREAT | os.O_APPEND | os.O_WRONLY); print('open', flush=True); \
                   signal.pause(); print('writes', flush=True); os.write(f, b'once\\n')";
    let mut appends = cluster.spawn(&["run", DC, "--node", "n1", "--workdir", "/", "--", "python3", "-c", appends]);
    let mut says = BufReader::new(appends.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert_eq!(says.next().as_deref(), Some("open"));
    // What its node had for itself it would change without the server.
    assert_eq!(cluster.sh(DC, "n2", "cat /dc/log"), "");
    let names = || {
        let listed = cluster.output(&["ps", DC, "-o", "name"]);
        String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let [appender] = <[String; 1]>::try_from(names()).expect("one program");
    cluster.ok(&["dev", "kill", "n3"]);
    cluster.ok(&["kill", "-s", "USR1", DC, &appender]);
    assert_eq!(says.next().as_deref(), Some("writes"));
    cluster.ok(&["kill", "-s", "USR1", DC, &appender]);
    let signalled = Instant::now();
    // What its node was told before nobody has to be asked for.
    let asks = ["run", DC, "--node", "n1", "--workdir", "/", "--", "sh", "-c", "echo >> /dc/asked; cat /dc/greeting"];
    let mut waiting = cluster.spawn(&asks);
    let mut killed = cluster.spawn(&asks);
    let pids = eventually("both wait", SOON, || {
        let mut pids = names();
        pids.retain(|pid| *pid != appender);
        (pids.len() == 2).then_some(pids)
    });
    // Either of the two: the other one goes on.
    cluster.ok(&["kill", "-s", "KILL", DC, &pids[0]]);
    let ended = eventually("it ends though the disk is lost", SOON, || {
        [&mut waiting, &mut killed].into_iter().find_map(|child| child.try_wait().expect("a child"))
    });
    assert_eq!(ended.code(), Some(137));
    // Longer than a gate counts on its server: only who dies is told that its call came to nothing.
    std::thread::sleep(Duration::from_secs(7).saturating_sub(signalled.elapsed()));
    cluster.ok(&["dev", "restart", "n3"]);
    assert_eq!(appends.wait().expect("it ends").code(), Some(0));
    assert_eq!(cluster.sh(DC, "n1", "cat /dc/log"), "once\n");
    let statuses = [waiting, killed].map(|child| {
        let done = child.wait_with_output().expect("it ends");
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
    });
    assert!(statuses.contains(&(Some(0), "hello\n".to_owned())), "{statuses:?}{}", cluster.logs());
}
