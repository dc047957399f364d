//! Random calls of several endpoints at once, over a real broker and real threads, checked against what Minix allows.
//!
//! The model is nondeterministic: it does not say what must happen, only which histories may. Every call is recorded with the time before
//! and after it, and `model/rules.rs` says of a whole history whether each outcome was allowed: a rendezvous is two calls that overlap, no
//! message is lost, doubled, overtaken or taken by another, an error has its reason.
//!
//! A seed fixes what everybody calls, not how the threads run. `DVS_SEED` runs one again.

mod common;
#[path = "model/play.rs"]
mod play;
#[path = "model/rules.rs"]
mod rules;

use std::time::{Duration, Instant};

#[test]
fn every_history_is_one_that_minix_allows() {
    let is_long = std::env::var_os("DVS_TEST_LONG").is_some();
    let one = std::env::var("DVS_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = one.map_or(0..if is_long { 3000 } else { 80 }, |seed| seed..seed + 1);
    let begun = Instant::now();
    let (mut calls, mut seen) = (0, rules::Seen::default());
    for seed in seeds {
        let history = play::play(seed);
        calls += history.len();
        if let Err(broken) = rules::check(&history, &mut seen) {
            history.iter().for_each(|call| eprintln!("{call:?}"));
            panic!("seed {seed}: {broken}");
        }
        assert!(begun.elapsed() < Duration::from_secs(600), "seed {seed}: too slow");
    }
    eprintln!("{calls} calls in {:?}: {seen:?}", begun.elapsed());
    if one.is_none() {
        seen.assert_that_everything_happened();
    }
}
