//! A copy comes into an empty engine, whole or not at all: as long as `/filling` is there no daemon uses it, and
//! whoever finds it begins again.

use cluster::{Compare, Engine, EngineError, Op, Outcome};

use super::RecoveryError;
use super::revision::Contents;
use crate::identity::{CLUSTER, FILLING};
use crate::records::encode;

/// Of one transaction.
const OPS_MAX: usize = 100;
const BYTES_MAX: usize = 1 << 20;

pub fn fill(engine: &dyn Engine, contents: &Contents, told: &dyn Fn(usize, usize)) -> Result<(), RecoveryError> {
    if engine.read(FILLING)?.is_some() {
        empty(engine)?;
    }
    engine.continue_after(contents.after).map_err(|error| match error {
        EngineError::NotEmpty => RecoveryError::NotEmpty,
        error => error.into(),
    })?;
    let absent = |key: &str| Compare::Absent { key: key.to_owned() };
    demand(engine.transact(&[absent(FILLING), absent(CLUSTER)], &[Op::put(FILLING, encode(&contents.cluster))])?)?;
    let (mut ops, mut bytes, mut count) = (Vec::new(), 0, 0);
    for (key, value) in &contents.entries {
        let size = key.len() + value.len();
        if !ops.is_empty() && (ops.len() >= OPS_MAX || bytes + size > BYTES_MAX) {
            count += ops.len();
            engine.transact(&[], &std::mem::take(&mut ops))?;
            told(count, contents.entries.len());
            bytes = 0;
        }
        bytes += size;
        ops.push(Op::put(key.clone(), value.clone()));
    }
    if !ops.is_empty() {
        engine.transact(&[], &ops)?;
    }
    let done = [Op::put(CLUSTER, encode(&contents.cluster)), Op::delete(FILLING)];
    demand(engine.transact(&[absent(CLUSTER), Compare::Present { key: FILLING.to_owned() }], &done)?)
}

fn demand(outcome: Outcome) -> Result<(), RecoveryError> {
    match outcome {
        Outcome::Done(_) => Ok(()),
        // Somebody else fills it.
        Outcome::Conflict(_) => Err(RecoveryError::NotEmpty),
    }
}

/// Of an attempt before; what says so goes last.
fn empty(engine: &dyn Engine) -> Result<(), EngineError> {
    let keys: Vec<String> = engine.list("/")?.entries.into_iter().map(|entry| entry.key).collect();
    let keys: Vec<&String> = keys.iter().filter(|key| *key != FILLING).collect();
    for some in keys.chunks(OPS_MAX) {
        let ops: Vec<Op> = some.iter().map(|key| Op::delete((*key).clone())).collect();
        engine.transact(&[], &ops)?;
    }
    engine.transact(&[], &[Op::delete(FILLING)]).map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cluster::local::{LocalConfig, LocalEngine};
    use cluster::{Lookup, Revision};

    use super::*;
    use crate::identity::ClusterRecord;
    use crate::records;
    use crate::recovery::dump::take;
    use crate::recovery::revision::revised;

    fn engine(dir: &tempfile::TempDir, name: &str) -> LocalEngine {
        let config = LocalConfig::new(dir.path().join(name), dir.path().join(format!("{name}.volatile")));
        LocalEngine::open(config).unwrap()
    }

    fn contents() -> Contents {
        let cluster = ClusterRecord { id: "1".repeat(32), name: "home".to_owned(), born_s: 1, generation: 4 };
        let entries: BTreeMap<String, Vec<u8>> = (0..350)
            .map(|number| (format!("/many/{number}"), vec![7; if number == 9 { 1 << 20 } else { 5 }]))
            .collect();
        Contents { cluster, after: Revision(1000), entries }
    }

    #[test]
    fn engine_is_filled_and_one_in_use_is_refused() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let engine = engine(&dir, "one");
        fill(&engine, &contents(), &|_, _| ()).unwrap();
        let list = engine.list("/").unwrap();
        assert_eq!(list.entries.len(), 351);
        assert!(list.entries.iter().all(|entry| entry.modified > Revision(1000)));
        let (cluster, _) = records::read::<ClusterRecord>(&engine, CLUSTER).unwrap().unwrap();
        assert_eq!(cluster, contents().cluster);
        assert!(matches!(fill(&engine, &contents(), &|_, _| ()), Err(RecoveryError::NotEmpty)));
        assert_eq!(engine.list("/").unwrap(), list, "it is as it was");
    }

    /// As if whoever filled it had died after any of its transactions.
    #[test]
    fn half_filled_engine_is_begun_again() {
        let whole = contents();
        for keys in [0, 1, 150, 350] {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let engine = engine(&dir, "one");
            let half = whole.entries.iter().take(keys).map(|(key, value)| Op::put(key.clone(), value.clone()));
            let ops: Vec<Op> = half.chain([Op::put("/of-another-copy", "1"), Op::put(FILLING, "1")]).collect();
            ops.chunks(100).for_each(|some| drop(engine.transact(&[], some).unwrap()));
            fill(&engine, &whole, &|_, _| ()).unwrap();
            let list = engine.list("/").unwrap();
            assert_eq!(list.entries.len(), 351);
            assert!(list.entries.iter().all(|entry| entry.key != FILLING && entry.key != "/of-another-copy"));
        }
    }

    #[test]
    fn numbers_that_were_given_rise_and_what_is_of_the_moment_is_forgotten() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let before = engine(&dir, "before");
        let lease = before.grant(std::time::Duration::from_secs(60)).unwrap();
        before
            .transact(
                &[],
                &[
                    Op::put(CLUSTER, encode(&contents().cluster)),
                    Op::put(records::FORMAT_KEY, encode(&records::FORMAT)),
                    Op::put("/epochs/node/n1", encode(&7)),
                    Op::put("/ids/dc/last", "12"),
                    Op::put("/ids/dc/of/shop", "12"),
                    Op::put("/dcs/shop", "{}"),
                    Op::put("/tokens/abc", "{}"),
                    Op::put("/engine/plan", "4"),
                    Op::put("/judging/verdicts/n2", "{}"),
                    Op::put_leased("/nodes/n1", "{}", lease),
                ],
            )
            .unwrap();
        let dump = take(&before, "a test".to_owned()).unwrap();
        let contents = revised(&dump, 1).unwrap();
        assert!(contents.cluster.generation > 1_700_000_000, "{}", contents.cluster.generation);
        let far = u64::MAX / 2;
        assert_eq!(revised(&dump, far).unwrap().cluster.generation, far + 1);
        let after = engine(&dir, "after");
        fill(&after, &contents, &|_, _| ()).unwrap();
        let value = |key: &str| after.read(key).unwrap().map(|entry| String::from_utf8(entry.value).unwrap());
        assert_eq!(value("/epochs/node/n1"), Some((7 + (1 << 20)).to_string()));
        assert_eq!(value("/ids/dc/last"), Some((12 + (1 << 12)).to_string()));
        assert_eq!(value("/ids/dc/of/shop").as_deref(), Some("12"));
        assert_eq!(value("/dcs/shop").as_deref(), Some("{}"));
        for key in ["/tokens/abc", "/engine/plan", "/judging/verdicts/n2", "/nodes/n1", FILLING] {
            assert_eq!(value(key), None, "{key}");
        }
        assert!(after.list("/").unwrap().revision > before.list("/").unwrap().revision);
        // An epoch that is none is nothing to begin with.
        before.transact(&[], &[Op::put("/epochs/node/n1", "x")]).unwrap();
        let dump = take(&before, "a test".to_owned()).unwrap();
        assert!(matches!(revised(&dump, 1), Err(RecoveryError::BadValue { .. })));
    }
}
