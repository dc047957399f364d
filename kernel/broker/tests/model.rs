//! Random calls of several endpoints at once, over a real broker and real threads, checked against what Minix allows.
//!
//! The model is nondeterministic: it does not say what must happen, only which histories may. Every call is recorded
//! with the time before and after it, and `model/rules.rs` says of a whole history whether each outcome was allowed: a
//! rendezvous is two calls that overlap, no message is lost, doubled, overtaken or taken by another, an error has its
//! reason.
//!
//! A seed fixes what everybody calls, not how the threads run. `DVS_SEED` runs one again.

mod common;
#[path = "model/play.rs"]
mod play;
#[path = "model/rules.rs"]
mod rules;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Histories played at once: most of a history's time somebody waits.
const AT_ONCE: usize = 4;
/// A single history takes a quarter of a second where nobody else wants the CPUs.
const HISTORY_MAX: Duration = Duration::from_secs(120);

#[test]
fn every_history_is_one_that_minix_allows() {
    let is_long = std::env::var_os("DVS_TEST_LONG").is_some();
    let one = std::env::var("DVS_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = one.map_or(0..if is_long { 3000 } else { 80 }, |seed| seed..seed + 1);
    let begun = Instant::now();
    let (next, seen) = (AtomicU64::new(seeds.start), Mutex::new((0, rules::Seen::default())));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !seeds.contains(&seed) {
                        return;
                    }
                    let history = play(seed);
                    let (calls, seen) = &mut *seen.lock().unwrap();
                    *calls += history.len();
                    check(seed, &history, seen);
                }
            });
        }
    });
    let (calls, seen) = seen.into_inner().unwrap();
    eprintln!("{calls} calls in {:?}: {seen:?}", begun.elapsed());
    if one.is_none() {
        seen.assert_that_everything_happened();
    }
}

fn play(seed: u64) -> Vec<play::Call> {
    let begun = Instant::now();
    let history = play::play(seed);
    assert!(begun.elapsed() < HISTORY_MAX, "seed {seed}: too slow");
    history
}

fn check(seed: u64, history: &[play::Call], seen: &mut rules::Seen) {
    if let Err(broken) = rules::check(history, seen) {
        history.iter().for_each(|call| eprintln!("{call:?}"));
        panic!("seed {seed}: {broken}");
    }
}
