//! What the filter costs programs: the same calls without a filter, under one that allows everything, under the one of
//! a container of one node, and under the one of a container of several.
//!
//! A round measures each in a process of its own, in turn; ratios are made within a round. Figures for people, no bar:
//! `cargo test -p keeper --lib -- --ignored filter_costs --nocapture`.

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{getpid, test_kill_process};

use super::{ALLOW, RETURN, program, step};
use crate::orders::seat_of;

const ROLE: &str = "DVS_FILTER_COST_ROLE";
const TEST: &str = "seccomp::cost::what_the_filter_costs_programs";
const FILTERS: [&str; 4] = ["none", "allow", "one", "several"];
const CALLS: [&str; 3] = ["kill(own, 0)", "open, close", "fork, exec, wait"];
const ROUNDS: usize = 15;
/// A measurement is the best of so many, which has least of what the machine did beside it.
const RUNS: usize = 5;

fn per_call(count: u32, mut call: impl FnMut()) -> Duration {
    let run = |_| {
        let begun = Instant::now();
        (0..count).for_each(|_| call());
        begun.elapsed() / count
    };
    // In tenths of a nanosecond nothing is lost that matters here.
    (0..RUNS).map(run).min().unwrap()
}

fn measure(filter: &str) {
    let own = getpid();
    let seat = proc_core::range::Seat::of_pid(own.as_raw_nonzero().get() as u32).or_else(|| seat_of(65_536));
    let listener = match filter {
        "allow" => seccompiler::apply_filter(&[step(RETURN, 0, 0, ALLOW)]).map(|()| None).unwrap(),
        "one" => seccompiler::apply_filter(&program(None)).map(|()| None).unwrap(),
        "several" => Some(sys::notify::install(&program(seat)).unwrap()),
        _ => None,
    };
    let killed = per_call(40_000, || test_kill_process(black_box(own)).unwrap());
    let opened = per_call(10_000, || drop(open("/dev/null", OFlags::RDONLY, Mode::empty()).unwrap()));
    let executed = per_call(40, || assert!(Command::new("/bin/true").status().unwrap().success()));
    println!("\nns {} {} {}", killed.as_nanos(), opened.as_nanos(), executed.as_nanos());
    drop(listener);
}

fn measured(filter: &str) -> [f64; 3] {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", TEST, "--ignored", "--nocapture"]).env(ROLE, filter).stdin(Stdio::null());
    let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let figures = said.lines().find_map(|line| line.strip_prefix("ns ")).unwrap();
    let figures: Vec<f64> = figures.split(' ').map(|one| one.parse().unwrap()).collect();
    figures.try_into().unwrap()
}

fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[0], values[values.len() - 1]]
}

#[test]
#[ignore = "figures for people"]
fn what_the_filter_costs_programs() {
    if let Ok(filter) = std::env::var(ROLE) {
        return measure(&filter);
    }
    let rounds: Vec<[[f64; 3]; 4]> = (0..ROUNDS).map(|_| FILTERS.map(measured)).collect();
    for (at, call) in CALLS.iter().enumerate() {
        for (which, filter) in FILTERS.iter().enumerate() {
            let times = spread(rounds.iter().map(|round| round[which][at] / 1e3).collect());
            let ratio = |to: usize| spread(rounds.iter().map(|round| round[which][at] / round[to][at]).collect());
            let ([us, least, most], native, allow) = (times, ratio(0), ratio(1));
            println!(
                "{call:<17}{filter:<8}{us:>10.3} us ({least:.3}-{most:.3})  x none {:.3} ({:.3}-{:.3})  x allow {:.3} ({:.3}-{:.3})",
                native[0], native[1], native[2], allow[0], allow[1], allow[2],
            );
        }
    }
}
