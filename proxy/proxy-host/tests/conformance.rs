//! The promises of M3-IPC, with clients and servers on two nodes behind two proxies.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use abi::PairId;
use common::watchdog::Watchdog;
use common::{Pair, Way, calm_times};
use ipc::conformance::{Case, World, cases};
use proxy_host::transport::Encryption;

fn peers_behind_two_proxies_keep_every_promise(way: Way) {
    // QUIC has no plain form.
    let encryptions = if way == Way::Quic { &[Encryption::Tls][..] } else { &[Encryption::Tls, Encryption::Plain] };
    encryptions.iter().for_each(|encryption| keep_promises(way, *encryption, 1));
}

#[test]
fn peers_behind_two_pairs_of_proxies_keep_every_promise() {
    keep_promises(Way::Tcp, Encryption::Tls, 2);
}

/// One case takes long when packets are lost, and most of the time it waits.
const AT_ONCE: usize = 4;

/// `DVS_SEED` runs one seed again, `CASE` one case.
#[test]
fn peers_keep_every_promise_over_a_simulated_wire_that_loses_doubles_delays_reorders_and_is_cut() {
    let is_long = std::env::var_os("DVS_TEST_LONG").is_some();
    let seeds = match std::env::var("DVS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { 12 } else { 1 },
    };
    let runs: Vec<_> = seeds.flat_map(|seed| cases().map(move |case| (seed, case))).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    while let Some((seed, case)) = runs.get(next.fetch_add(1, Ordering::SeqCst)) {
                        keep_promise_in_storm(*seed, case);
                    }
                })
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        assert_eq!(failed, 0, "seed and case are said above");
    });
}

fn keep_promise_in_storm(seed: u64, (name, case): &Case) {
    let encryption = if seed.is_multiple_of(2) { Encryption::Plain } else { Encryption::Tls };
    let _watched = Watchdog::over(&format!("DVS_SEED={seed} CASE={name}"));
    let kept = catch_unwind(AssertUnwindSafe(|| {
        let begun = Instant::now();
        with_two_nodes(Way::Storm { seed }, encryption, 1, *case);
        eprintln!("case: {name}, seed {seed}, {:?}", begun.elapsed());
    }));
    if let Err(why) = kept {
        eprintln!("FAILED: DVS_SEED={seed} CASE={name}");
        resume_unwind(why);
    }
}

fn keep_promises(way: Way, encryption: Encryption, pairs: u8) {
    for (name, case) in cases() {
        let case_of = format!("case: {name}, {way:?}, {encryption:?}");
        eprintln!("{case_of}");
        let _watched = Watchdog::over(&case_of);
        with_two_nodes(way, encryption, pairs, *case);
    }
}

fn with_two_nodes(way: Way, encryption: Encryption, pairs: u8, case: fn(&dyn World)) {
    let mut pair = Pair::with_pairs(way, pairs);
    // They end before their brokers.
    let _proxies: Vec<_> = PairId::all(pairs).map(|of| pair.start_proxies_of(of, encryption, calm_times())).collect();
    case(&pair);
}

/// Not a test: a case of which one party fails and the other waits for it. Started without its variable it does
/// nothing.
#[test]
fn case_that_hangs() {
    if std::env::var_os("DVS_TEST_HANG").is_some() {
        let _watched = Watchdog::with_limit("a case that hangs", Duration::from_millis(50));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    std::thread::park();
                }
            });
            panic!("one party fails");
        });
    }
}

#[test]
fn case_that_hangs_is_ended_and_named() {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["--exact", "case_that_hangs"]).env("DVS_TEST_HANG", "1");
    let ended = command.output().expect("started");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("HANGS: a case that hangs"), "{ended:?}");
}

over_each_transport!(peers_behind_two_proxies_keep_every_promise);
