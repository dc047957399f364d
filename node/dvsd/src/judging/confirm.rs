//! Whether this node's incarnation goes on, asked so that the answer holds against whoever hears an accusation.
//!
//! An answer of the engine alone says too little: a hearing may have begun before it, and end with a verdict right
//! after. So who is accused objects, in the same transaction that looks for a verdict; the hearing begins anew then.

use cluster::{Compare, Engine, EngineError, LeaseId, Op, Outcome};
use sys::clock::monotonic_ns;

use super::{JUDGING, SUSPICIONS, Verdict, objection_key, verdict_key};
use crate::records::{decode, encode};

/// A moment of the node's monotonic clock, in nanoseconds, before which no hearing began that may still end with a
/// verdict about this incarnation. `None`: it is over, or somebody is faster.
///
/// # Errors
/// The engine does not answer.
pub fn confirm(engine: &dyn Engine, own: &str, epoch: u64, lease: Option<LeaseId>) -> Result<Option<u64>, EngineError> {
    let asked = monotonic_ns();
    let listed = engine.list(JUDGING)?.entries;
    let verdict = listed.iter().find(|entry| entry.key == verdict_key(own));
    if let Some(entry) = verdict
        && decode::<Verdict>(entry)?.epoch >= epoch
    {
        return Ok(None);
    }
    let accusations = format!("{SUSPICIONS}{own}/");
    let is_accused = listed
        .iter()
        .filter(|entry| entry.key.starts_with(&accusations))
        .any(|entry| decode::<u64>(entry).is_ok_and(|accused| accused == epoch));
    if !is_accused {
        return Ok(Some(asked));
    }
    let Some(lease) = lease else { return Ok(None) };
    let key = verdict_key(own);
    let same_verdict = verdict.map_or(Compare::Absent { key: key.clone() }, |entry| Compare::Modified {
        key: key.clone(),
        at: entry.modified,
    });
    let asked = monotonic_ns();
    let objection = Op::put_leased(objection_key(own), encode(&asked), lease);
    let done = engine.transact(&[same_verdict], &[objection])?;
    Ok(matches!(done, Outcome::Done(_)).then_some(asked))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use cluster::Lookup;
    use cluster::local::{LocalConfig, LocalEngine};

    use super::*;
    use crate::judging::suspicion_key;

    #[test]
    fn who_is_accused_objects_and_who_was_judged_is_told_nothing() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).unwrap();
        let lease = engine.grant(Duration::from_secs(60)).unwrap();
        let ask = |epoch, lease| confirm(&engine, "n1", epoch, lease).unwrap();
        let before = monotonic_ns();
        assert!(ask(4, None).is_some_and(|at| at >= before));
        let write = |key: String, value: Vec<u8>| drop(engine.transact(&[], &[Op::put(key, value)]).unwrap());
        write(suspicion_key("n1", "n2"), encode(&4_u64));
        assert_eq!(ask(4, None), None, "it cannot object");
        assert!(engine.read(&objection_key("n1")).unwrap().is_none());
        assert!(ask(4, Some(lease)).is_some());
        let objected = engine.read(&objection_key("n1")).unwrap().expect("an objection").modified;
        assert!(ask(4, Some(lease)).is_some());
        assert!(engine.read(&objection_key("n1")).unwrap().expect("another one").modified > objected);
        // An accusation of another incarnation is none.
        assert!(ask(5, None).is_some());
        let verdict = Verdict { epoch: 4, since_s: 0, accusers: BTreeSet::new() };
        write(verdict_key("n1"), encode(&verdict));
        assert_eq!(ask(4, Some(lease)), None);
        assert!(ask(5, None).is_some());
    }
}
