//! Every fuzz target over its corpus and some thousands of mutations, from a seed, on the stable compiler. What
//! libFuzzer finds in hours is `fuzz/README.md`'s; this keeps the targets alive and catches what is easy.

use std::time::{Duration, Instant};

use fuzz::TARGETS;

/// Inputs of one target; those that go through a broker are slower, so time is the other bound.
const INPUTS: u64 = 3000;
const TIME_MAX: Duration = Duration::from_secs(3);
/// However slow the machine.
const INPUTS_MIN: u64 = 100;
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// splitmix64
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// A few changes of one input: bits, interesting bytes, pieces taken out, doubled, or of another.
fn mutated(corpus: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    let mut input = corpus[chance.below(corpus.len())].clone();
    for _ in 0..=chance.below(6) {
        let at = chance.below(input.len());
        let until = (at + 1 + chance.below(16)).min(input.len());
        match chance.below(6) {
            0 if !input.is_empty() => input[at] ^= 1 << chance.below(8),
            1 if !input.is_empty() => input[at] = [0, 1, 0x7f, 0x80, 0xff][chance.below(5)],
            2 => drop(input.drain(at.min(until)..until)),
            3 => {
                let piece = input[at.min(until)..until].to_vec();
                input.splice(at.min(until)..at.min(until), piece);
            }
            4 => {
                let other = &corpus[chance.below(corpus.len())];
                input.extend(&other[chance.below(other.len())..]);
            }
            _ => input.push(chance.next() as u8),
        }
    }
    input
}

#[test]
fn no_target_panics_on_what_is_nearly_right() {
    let is_long = std::env::var_os("DVS_TEST_LONG").is_some();
    let seed = std::env::var("DVS_SEED").map_or(1, |seed| seed.parse().unwrap());
    let chosen = std::env::var("DVS_TARGET").unwrap_or_default();
    for (name, target, corpus) in TARGETS.iter().filter(|(name, ..)| chosen.is_empty() || *name == chosen) {
        let (corpus, mut chance, begun) = (corpus(), Chance(seed), Instant::now());
        corpus.iter().for_each(|input| target(input));
        let (inputs, time_max) = if is_long { (INPUTS * 10, TIME_MAX * 2) } else { (INPUTS, TIME_MAX) };
        let mut done = 0;
        while done < inputs && (done < INPUTS_MIN || begun.elapsed() < time_max) {
            let input = mutated(&corpus, &mut chance);
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "{name}, seed {seed}, input {done}: {input:?}");
            done += 1;
        }
        eprintln!("{name}: {} of the corpus and {done} more in {:?}", corpus.len(), begun.elapsed());
        assert!(begun.elapsed() < HANGS_AFTER, "{name} took {:?} for {done} inputs", begun.elapsed());
    }
}
