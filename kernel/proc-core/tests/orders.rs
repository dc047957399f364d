//! Signals over three nodes, and whatever may happen to these: each call is answered once, each signal heard at most
//! once and in order, and what is answered is true.

mod world;

use std::collections::{BTreeMap, BTreeSet};

use histories::rng::seeds;
use proc_core::journal::CallAnswer;
use proc_core::order::{ResultBytes, Whom};
use proc_core::permission::SignalError;
use world::{Call, World, limits_of};

const TURNS: usize = 20_000;

fn check_call(call: &Call, seed: u64) {
    let says = || format!("seed {seed}: {call:?}");
    let births: BTreeSet<u64> = call.heard.iter().map(|(birth, ..)| *birth).collect();
    assert_eq!(births.len(), call.heard.len(), "one process heard it twice, {}", says());
    match call.answers[..] {
        [] => assert!(call.is_over, "no answer, {}", says()),
        [_] => (),
        _ => panic!("answered twice, {}", says()),
    }
    if call.to == Whom::Everybody {
        assert!(call.is_over || call.answers == [CallAnswer::Native], "{}", says());
        return;
    }
    assert!(call.heard.len() <= 1, "{}", says());
    for (_, life, _) in &call.heard {
        let is_meant = *life == call.life_then || (!call.was_known && *life > call.life_then);
        assert!(is_meant, "another life's process heard it, {}", says());
    }
    // What it hears of limits is what they were, each time that it is written, and all of it before the answer.
    let were = call.heard.first().and_then(|(birth, life, _)| ResultBytes::of(&limits_of(*birth, *life).bytes()));
    assert!(call.written.iter().all(|written| Some(*written) == were && call.sets_limits()), "{}", says());
    match call.answers.first() {
        Some(CallAnswer::Value(0)) => assert!(!call.written.is_empty(), "{}", says()),
        Some(CallAnswer::Done) if call.sets_limits() => panic!("nothing was written, {}", says()),
        Some(CallAnswer::Done) => assert_eq!(call.heard.len(), 1, "{}", says()),
        Some(CallAnswer::Failed(SignalError::NotPermitted | SignalError::Invalid | SignalError::Full)) => {
            assert_eq!(call.heard.len(), 0, "{}", says());
        }
        Some(CallAnswer::Native) => panic!("a call to another node went on here, {}", says()),
        // NoProcess: who heard it may have ended with its node before the outcome was known. Unreachable: unknown.
        _ => (),
    }
}

fn check_order(calls: &[Call], seed: u64) {
    let mut heard: BTreeMap<(u64, usize), Vec<(u64, i32)>> = BTreeMap::new();
    for call in calls {
        let Some(target) = call.target else { continue };
        for (.., when) in &call.heard {
            heard.entry((call.birth, target.index())).or_default().push((*when, call.signal));
        }
    }
    for ((from, node), mut order) in heard {
        order.sort_unstable();
        let signals: Vec<i32> = order.into_iter().map(|(_, signal)| signal).collect();
        assert!(signals.is_sorted(), "seed {seed}: {from} was heard on node {node} in this order: {signals:?}");
    }
}

/// Between nodes too, for what was answered with success.
fn check_order_over_nodes(calls: &[Call], seed: u64) {
    let mut heard: BTreeMap<u64, Vec<(u64, i32)>> = BTreeMap::new();
    for call in
        calls.iter().filter(|call| [[CallAnswer::Done], [CallAnswer::Value(0)]].iter().any(|done| call.answers == done))
    {
        heard.entry(call.birth).or_default().extend(call.heard.iter().map(|(.., when)| (*when, call.signal)));
    }
    for (from, mut order) in heard {
        order.sort_unstable();
        let signals: Vec<i32> = order.into_iter().map(|(_, signal)| signal).collect();
        assert!(signals.is_sorted(), "seed {seed}: {from} was heard in this order: {signals:?}");
    }
}

#[test]
fn each_call_is_answered_once_and_each_signal_heard_at_most_once_in_order() {
    let (mut kills, mut answered, mut done, mut limits, mut gone, mut unknown) = (0, 0, 0, 0, 0, 0);
    let seeds = seeds(300, 10_000);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let mut world = World::new(seed);
        (0..TURNS).for_each(|_| world.turn());
        world.settle();
        world.calls.iter().for_each(|call| check_call(call, seed));
        check_order(&world.calls, seed);
        check_order_over_nodes(&world.calls, seed);
        assert!(world.remembered() < 500, "seed {seed}: {} outcomes are remembered", world.remembered());
        kills += world.kills;
        let is = |answer: CallAnswer| world.calls.iter().filter(|call| call.answers == [answer]).count() as u64;
        answered += world.calls.iter().filter(|call| !call.answers.is_empty()).count() as u64;
        done += is(CallAnswer::Done);
        limits += is(CallAnswer::Value(0));
        gone += is(CallAnswer::Failed(SignalError::NoProcess));
        unknown += is(CallAnswer::Failed(SignalError::Unreachable));
    }
    println!(
        "{count} seeds: {kills} kills; {answered} answered: {done} success, {limits} with limits, {gone} no process, {unknown} unreachable"
    );
    // The world is one in which something happens.
    assert!(kills > 20 * count && done > 30 * count && limits > 2 * count && unknown > count && unknown < answered / 4);
}
