//! Three machines under faults from a seed, with people and programs at work: `tests/src/robustness`, and
//! docs/design/robustness.md.
//!
//! `SEED=7 cargo test …` is another run, `FAULTS='kill:daemon:n2:500 …'` these faults, `COUNT=100` so many.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use end_to_end::robustness::figures;
use end_to_end::robustness::run::{Wish, run};
use end_to_end::robustness::site::Site;
use libvos::CsClient;
use rustix::io::Errno;
use vos_api::cs::{ABSENT, ANY, Race};

/// Not a test: a program of the container, which does what it is told. Outside it does nothing.
#[test]
fn child_process() {
    if std::env::var_os("ROBUSTNESS_ROLE").is_none() {
        return;
    }
    let client = match CsClient::connect(Path::new("/run/dvs/broker")) {
        Ok(client) => client,
        Err(error) => return say(&format!("none: {error}")),
    };
    say("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match obey(&client, &words) {
            Ok(text) => say(&text),
            Err(error) => say(&format!("error {}", error.raw_os_error())),
        }
    }
}

fn obey(client: &CsClient, words: &[&str]) -> Result<String, Errno> {
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let wait = |index: usize| Duration::from_millis(number(index));
    let given = |index: usize| match words[index] {
        "any" => ANY,
        "absent" => ABSENT,
        _ => number(index),
    };
    let race = |word: &str| if word.ends_with("lock") { Race::Lock } else { Race::Election };
    Ok(match words[0] {
        "get" => {
            let (value, revision) = client.get(words[1].as_bytes())?;
            format!("{} {revision}", String::from_utf8_lossy(&value))
        }
        "put" => client.put(words[1].as_bytes(), words[2].as_bytes(), given(3))?.to_string(),
        "delete" => client.delete(words[1].as_bytes(), given(2))?.to_string(),
        "seen" => client.list(b"", b"")?.2.to_string(),
        "lock" => client.lock(words[1], wait(3))?.to_string(),
        "lead" => client.campaign(words[1], words[2].as_bytes(), wait(3))?.to_string(),
        "confirm-lock" | "confirm-lead" => {
            client.confirm(race(words[0]), words[1], number(2))?;
            "yes".to_owned()
        }
        "release-lock" => {
            client.unlock(words[1], number(2))?;
            "released".to_owned()
        }
        "release-lead" => {
            client.resign(words[1], number(2))?;
            "released".to_owned()
        }
        "leader" => match client.holder(Race::Election, words[1])? {
            Some(one) => format!("{} {}", one.token, String::from_utf8_lossy(&one.value)),
            None => "nobody".to_owned(),
        },
        other => panic!("{other}?"),
    })
}

fn say(line: &str) {
    println!("said {line}");
    std::io::stdout().flush().expect("somebody reads");
}

fn is_possible() -> bool {
    let is_there = std::process::Command::new("etcd").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server)");
    }
    is_there
}

#[test]
fn thirty_faults_hurt_nobody_but_those_whom_they_kill() {
    if is_possible() {
        let this_test = std::env::current_exe().expect("a test has a path");
        run(&Wish::from_environment(1, 30, 30, this_test));
    }
}

#[test]
#[ignore = "an hour and more"]
fn thousand_faults_hurt_nobody_but_those_whom_they_kill() {
    if is_possible() {
        let this_test = std::env::current_exe().expect("a test has a path");
        run(&Wish::from_environment(1000, 1000, 40, this_test));
    }
}

/// `COUNT=60 cargo test --workspace --test robustness -- --ignored --nocapture figures`
#[test]
#[ignore = "a measurement"]
fn figures_of_lost_nodes_and_lost_leaders() {
    if !is_possible() {
        return;
    }
    let count = std::env::var("COUNT").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let site = Site::up();
    let (others, leaders) = figures::node_losses(&site, count);
    let kills = figures::leader_kills(&site, count / 2);
    println!("a node that did not lead is fenced everywhere: {}", others.shown());
    println!("a node that led is fenced everywhere: {}", leaders.shown());
    println!("the engine's leader is killed, the API answers a change: {}", kills.shown());
}
