//! The differential tester over two and three gates of one fs server: without a cluster, so that it is quick to run and
//! to debug.

#[macro_use]
mod common;

use std::time::Duration;

use difftest::{Crowd, Settings, Shape, Tester, be_worker, crowd};

use common::{World, in_private_mounts};

const WORKER_ARGUMENTS: &[&str] = &["worker", "--exact", "--ignored", "--nocapture"];
const PROCESSES: usize = 2;
const SECONDS: u64 = 20;
const LONG_SECONDS: u64 = 15 * 60;

const ROUNDS: usize = 50;

gate_processes!();

/// Not a test: makes the calls of the others.
#[test]
#[ignore = "started by the other tests as a process of its own"]
fn worker() {
    be_worker(WORKER_ARGUMENTS);
}

fn settings() -> Settings {
    let long = std::env::var_os("DVS_TEST_LONG").is_some();
    let time = Duration::from_secs(if long { LONG_SECONDS } else { SECONDS });
    Settings::from_environment(time, 1, "")
}

/// The workers over so many gates of one server. `kills`: gates and the server, now and then.
fn over_gates(
    names: &'static [&'static str],
    time: Duration,
    kills: Kills,
    test: impl FnOnce(difftest::World) + Send + 'static,
) {
    in_private_mounts(move || {
        let mut world = World::real();
        let patience = time + Duration::from_secs(300);
        let mut mounts: Vec<_> = names.iter().map(|name| world.mount_for(name, patience)).collect();
        let shape = Shape { nodes: names.len(), processes: PROCESSES };
        let tree = difftest::World::here(shape, WORKER_ARGUMENTS, |node| mounts[node].path.clone());
        let tester = std::thread::spawn(move || test(tree));
        let mut below = common::numbers(common::seed());
        while kills == Kills::Some && !tester.is_finished() {
            std::thread::sleep(Duration::from_millis(200 + below(800) as u64));
            match below(names.len() + 1) {
                0 => common::server(&mut world).replace_server(),
                node => mounts[node - 1].replace_gate(),
            }
        }
        if let Err(why) = tester.join() {
            std::panic::resume_unwind(why);
        }
    });
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kills {
    None,
    Some,
}

fn compare(names: &'static [&'static str], kills: Kills, command: &'static str) {
    let settings = settings();
    over_gates(names, settings.time, kills, move |tree| {
        let oracle = difftest::World::oracle(tree.shape(), WORKER_ARGUMENTS);
        Tester::new(oracle, tree).test(&settings, command);
    });
}

#[test]
fn two_gates_answer_as_one_kernel_does() {
    compare(&["one", "two"], Kills::None, "cargo test -p gate-fuse --test difftest two_gates -- --include-ignored");
}

#[test]
fn two_gates_answer_as_one_kernel_does_while_they_and_the_server_die() {
    compare(
        &["one", "two"],
        Kills::Some,
        "cargo test -p gate-fuse --test difftest they_and_the_server -- --include-ignored",
    );
}

#[test]
fn three_gates_answer_as_one_kernel_does() {
    compare(
        &["one", "two", "three"],
        Kills::None,
        "cargo test -p gate-fuse --test difftest three_gates -- --include-ignored",
    );
}

#[test]
fn invariants_hold_while_two_gates_change_the_same_files() {
    over_gates(&["one", "two"], Duration::ZERO, Kills::None, |mut tree| {
        Crowd::ALL.iter().for_each(|what| crowd(&mut tree, *what, ROUNDS));
    });
}
