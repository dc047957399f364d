//! After a crash at any point the volume holds a prefix of the operations that contains everything promised: after the
//! death of the server alone every operation that was answered, after loss of power everything up to the last fsync.

use std::sync::Arc;

use crate::common::model::{Model, Op, difference, dump, run};
use crate::common::{Client, Random, attr_of, scaled, seeds};
use fs_core::device::BlockDevice;
use fs_core::testing::{MemoryDevice, Recorder, Step, after_crash};
use fs_core::{Depth, Fs, Options};
use vos_api::fs as api;

const VOLUME_BYTES: u64 = 64 << 20;
/// Set in a note when all up to the operation was synced.
const SYNCED: u64 = 1 << 63;

struct History {
    steps: Vec<Step>,
    /// The model after each operation.
    states: Vec<Model>,
}

fn record(seed: u64, operations: u64) -> History {
    let recorder = Arc::new(Recorder::new(VOLUME_BYTES));
    let mut random = Random::new(seed);
    let fs = Fs::open(recorder.clone(), Options::inline(seed)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let mut model = Model::new();
    let mut states = vec![model.clone()];
    recorder.note(0);
    for number in 1..=operations {
        let op = model.random_op(&mut random);
        let mut is_synced = false;
        let (status, made) = match &op {
            // As a gate does that expects a sync.
            Op::Write { ino, offset, data } if random.chance(50) => {
                let reply = client.change(api::WRITE, api::SYNC_FOLLOWS, [*ino, *offset, number], data);
                is_synced = reply.results[3] & api::SYNCED != 0;
                (reply.status, 0)
            }
            op => run(&mut client, op, number),
        };
        assert_eq!(status, model.apply(&op, number, made).err().unwrap_or(0), "seed {seed}: {op:?}");
        states.push(model.clone());
        recorder.note(number);
        if is_synced {
            recorder.note(number | SYNCED);
        }
        match random.below(12) {
            0 => {
                assert_eq!(client.read_call(api::FSYNC, [0; 3], &[]).status, 0);
                recorder.note(number | SYNCED);
            }
            1 => fs.checkpoint().expect("a checkpoint"),
            _ => (),
        }
    }
    History { steps: recorder.steps(), states }
}

/// Operations that must be there, and the last that may be.
fn bounds(steps: &[Step], is_power_lost: bool) -> (u64, u64) {
    let notes = || steps.iter().filter_map(|step| if let Step::Note(number) = step { Some(*number) } else { None });
    let last = notes().map(|note| note & !SYNCED).max().unwrap_or(0);
    let synced = notes().filter(|note| note & SYNCED != 0).map(|note| note & !SYNCED).max().unwrap_or(0);
    (if is_power_lost { synced } else { last }, last + 1)
}

fn check_recovery(device: MemoryDevice, history: &History, least: u64, most: u64, what: &str) {
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let fs = Fs::open(device.clone(), Options::inline(99)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let client = Client { fs: fs.clone(), session: 0, sequence: 0 };
    let found = dump(&client);
    let end = (most as usize + 1).min(history.states.len());
    let candidates = &history.states[least as usize..end];
    if !candidates.contains(&found) {
        let differences: Vec<String> = candidates.iter().map(|state| difference(&found, state)).collect();
        let earlier = history.states.iter().position(|state| *state == found);
        panic!("{what}: the state after operation {earlier:?}, not {least} to {most}: {differences:#?}");
    }
    let findings = fs.check(Depth::Data).expect("a readable volume");
    assert_eq!(findings, Vec::<String>::new(), "{what}");
    // It goes on working, and the next start finds the same.
    fs.goodbye(7).expect("the old client is gone");
    let mut client = Client::new(&fs, 8);
    let made = client.make(api::MKNOD, 1, "after the crash", 0o600, 1);
    assert_eq!(made.status, 0, "{what}");
    let before = dump(&client);
    drop((client, fs));
    let fs = Fs::open(device, Options::inline(98)).unwrap_or_else(|error| panic!("{what}, second start: {error}"));
    assert_eq!(dump(&Client { fs: fs.clone(), session: 0, sequence: 0 }), before, "{what}, second start");
}

#[test]
fn every_answered_operation_survives_the_death_of_the_server() {
    for seed in seeds(1) {
        let history = record(seed, scaled(60));
        for end in 0..=history.steps.len() {
            let steps = &history.steps[..end];
            if !matches!(steps.last(), None | Some(Step::Write { .. })) {
                continue;
            }
            let (least, most) = bounds(steps, false);
            let what = format!("seed {seed}, death after step {end}");
            check_recovery(after_crash(VOLUME_BYTES, steps, || true), &history, least, most, &what);
        }
    }
}

/// Histories, and how often each loses power: enough for every change, and a hundred thousand states for a long run.
fn losses() -> (u64, u64) {
    if std::env::var_os("DVS_TEST_LONG").is_some() { (40, 2500) } else { (2, 150) }
}

#[test]
fn everything_synced_survives_loss_of_power_with_any_unflushed_blocks_lost() {
    let (histories, rounds) = losses();
    for seed in seeds(histories) {
        let history = record(seed + 100, scaled(80));
        let mut random = Random::new(seed);
        for round in 0..scaled(rounds) {
            let end = 1 + random.below(history.steps.len() as u64) as usize;
            let steps = &history.steps[..end];
            let percent = *random.pick(&[0, 10, 50, 90, 97]);
            let (least, most) = bounds(steps, true);
            let what = format!("seed {seed}, round {round}, power lost after step {end}, {percent} % survive");
            let mut luck = Random::new(seed * 1000 + round);
            let device = after_crash(VOLUME_BYTES, steps, || luck.chance(percent));
            check_recovery(device, &history, least, most, &what);
        }
    }
}

#[test]
fn write_that_is_to_be_synced_is_durable_when_its_answer_says_so() {
    let recorder = Arc::new(Recorder::new(VOLUME_BYTES));
    let fs = Fs::open(recorder.clone(), Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let ino = attr_of(&client.make(api::MKNOD, 1, "log", 0o100_600, 1)).ino.get();
    let flushes = || recorder.steps().iter().filter(|step| matches!(step, Step::Flush)).count();
    let mut write = |marks: u16, at: u64| {
        let before = flushes();
        let reply = client.change(api::WRITE, marks, [ino, at * 4096, 2 + at], &[7; 4096]);
        assert_eq!(reply.status, 0);
        (reply.results[3] & api::SYNCED != 0, flushes() - before)
    };
    assert_eq!(write(0, 0), (false, 0));
    assert_eq!(write(api::SYNC_FOLLOWS, 1), (true, 1));
    // Nothing is left to do.
    let before = flushes();
    fs.sync().expect("synced");
    assert_eq!(flushes(), before);
    assert_eq!(write(0, 2), (false, 0));
    fs.sync().expect("synced");
    assert_eq!(flushes(), before + 1);
}
