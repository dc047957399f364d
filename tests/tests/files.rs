//! The differential tester over the nodes of a container: files answer as those of one kernel do, from whichever node.

use std::time::Duration;

use difftest::{Crowd, FROM, Lane, SetId, Settings, Tester, WORKER, World, be_worker, crowd};
use end_to_end::{Cluster, is_long_run};

const WORKER_ARGUMENTS: &[&str] = &["worker", "--exact", "--ignored", "--nocapture"];
const PROCESSES: usize = 2;
/// In the long form it is as many minutes.
const SECONDS: u64 = 20;
const ROUNDS: usize = 20;

/// Not a test: makes the calls of the others.
#[test]
#[ignore = "started by the other tests as a program of a container"]
fn worker() {
    be_worker(WORKER_ARGUMENTS);
}

/// The workers on so many nodes of a container.
fn over_nodes(nodes: usize, test: impl FnOnce(World)) {
    let cluster = Cluster::up(nodes);
    cluster.container("shop", nodes, &["--fs-node", "n2"]);
    let place = tempfile::tempdir().expect("a directory");
    let this_test = std::env::current_exe().expect("a test has a path");
    std::fs::copy(this_test, place.path().join("worker")).expect("copied");
    cluster.ok(&["import", "shop", place.path().to_str().expect("UTF-8"), "/programs"]);
    cluster.sh("shop", "n1", "mkdir /dc/difftest");
    let lane = |node: usize| {
        let node = format!("n{}", node + 1);
        let (role, from) = (format!("{WORKER}=first"), format!("{FROM}=/dc/difftest"));
        let run = ["run", "shop", "--node", &node, "-i", "--env", &role, "--env", &from, "--", "/dc/programs/worker"];
        Lane::start(cluster.command_without_limit(&[&run[..], WORKER_ARGUMENTS].concat()))
    };
    test(World::new((0..nodes).map(|node| (0..PROCESSES).map(|_| lane(node)).collect()).collect()));
}

fn compare(nodes: usize, command: &str) {
    let time = Duration::from_secs(if is_long_run() { SECONDS * 60 } else { SECONDS });
    let settings = Settings { set_id: SetId::Avoided, ..Settings::from_environment(time, 1, "") };
    over_nodes(nodes, |tree| {
        let oracle = World::oracle(tree.shape(), WORKER_ARGUMENTS);
        Tester::new(oracle, tree).test(&settings, command);
    });
}

#[test]
fn two_nodes_answer_as_one_kernel_does() {
    compare(2, "cargo test -p end-to-end --test files two_nodes -- --include-ignored");
}

#[test]
#[ignore = "takes its time: run by `make test-long`"]
fn three_nodes_answer_as_one_kernel_does() {
    compare(3, "cargo test -p end-to-end --test files three_nodes -- --include-ignored");
}

#[test]
fn invariants_hold_while_three_nodes_change_the_same_files() {
    over_nodes(3, |mut tree| {
        Crowd::ALL.iter().for_each(|what| crowd(&mut tree, *what, ROUNDS));
    });
}
