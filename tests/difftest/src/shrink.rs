//! A smaller program that differs, too: fewer calls, then fewer places, then simpler arguments, until nothing can go.

use std::time::{Duration, Instant};

use crate::program::{Call, Kind, Op, Program, words};

/// So long a failure may be made smaller.
const BUDGET: Duration = Duration::from_secs(90);

/// `differs` runs a program, and says whether its answers differ.
pub fn shrink(program: Program, mut differs: impl FnMut(&Program) -> bool) -> Program {
    let limit = Instant::now() + BUDGET;
    let mut best = program;
    let mut attempt = |best: &mut Program, candidate: Program| {
        let is_smaller = candidate != *best && Instant::now() < limit && differs(&candidate);
        if is_smaller {
            *best = candidate;
        }
        is_smaller
    };
    loop {
        let before = best.clone();
        remove_chunks(&mut best, &mut attempt);
        move_together(&mut best, &mut attempt);
        simplify(&mut best, &mut attempt);
        if best == before || Instant::now() > limit {
            return best;
        }
    }
}

type Attempt<'a> = dyn FnMut(&mut Program, Program) -> bool + 'a;

fn remove_chunks(best: &mut Program, attempt: &mut Attempt<'_>) {
    let mut size = best.0.len().div_ceil(2);
    loop {
        let mut at = best.0.len();
        while at > 0 {
            let from = at.saturating_sub(size);
            let mut candidate = best.clone();
            candidate.0.drain(from..at);
            attempt(best, candidate);
            at = from.min(best.0.len());
        }
        if size <= 1 {
            return;
        }
        size = size.div_ceil(2);
    }
}

fn changed(best: &Program, at: usize, change: impl FnOnce(&mut Op)) -> Program {
    let mut candidate = best.clone();
    change(&mut candidate.0[at]);
    candidate
}

fn move_together(best: &mut Program, attempt: &mut Attempt<'_>) {
    let highest = best.0.iter().map(|op| op.node).max().unwrap_or(0);
    // A whole node at first, then single calls.
    for from in (1..=highest).rev() {
        for to in 0..from {
            let mut candidate = best.clone();
            candidate.0.iter_mut().filter(|op| op.node == from).for_each(|op| op.node = to);
            attempt(best, candidate);
        }
    }
    for at in 0..best.0.len() {
        for node in 0..best.0[at].node {
            let candidate = changed(best, at, |op| op.node = node);
            attempt(best, candidate);
        }
        let candidate = changed(best, at, |op| op.process = 0);
        attempt(best, candidate);
    }
}

fn simplify(best: &mut Program, attempt: &mut Attempt<'_>) {
    for at in 0..best.0.len() {
        for (index, kind) in best.0[at].call.kinds().iter().enumerate() {
            for value in simpler(*kind, best.0[at].args[index], best.0[at].call) {
                let candidate = changed(best, at, |op| op.args[index] = value);
                if attempt(best, candidate) && *kind != Kind::Open {
                    break;
                }
            }
        }
    }
}

/// From the simplest; those of flags each on their own.
fn simpler(kind: Kind, value: i64, call: Call) -> Vec<i64> {
    let simple: Vec<i64> = match kind {
        Kind::File | Kind::Map | Kind::Name => (0..value).collect(),
        Kind::Open => {
            let flags = words(kind)[3..].iter().filter(|(_, flag)| value & flag != 0);
            return flags.map(|(_, flag)| value & !flag).collect();
        }
        Kind::Mode => vec![0o644],
        Kind::Byte => vec![1],
        Kind::Length if call == Call::Map => vec![4096],
        Kind::Offset | Kind::Length => vec![0, 1, 100, 4096, 8192, 65_536],
        _ => words(kind).iter().map(|(_, value)| *value).take_while(|other| *other != value).collect(),
    };
    simple.into_iter().take_while(|other| *other != value).collect()
}
