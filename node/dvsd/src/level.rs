//! The cluster's level: the format in which daemons write what they keep in the engine (`/format`).
//!
//! Every daemon reads several formats ([`versions::RECORDS`]) and says which in its node's record. The level is one
//! that all nodes can read, also those that are down: it rises when the last of them can, and never falls. Three
//! transactions see to it, each of which compares and writes `/format`, so that any two of them come one after the
//! other:
//!
//! | who | when | refused |
//! |---|---|---|
//! | a daemon registers its node | it reads the level, and its release talks with that of every other node | else it does not start |
//! | a machine joins | the same, as far as it says what it is; its daemon is asked again when it registers | else it gets no certificate |
//! | any daemon raises the level | every node reads the next one | it stays as it is |
//!
//! Not here: what a format changes (`records`).

use std::collections::BTreeMap;

use cluster::{Compare, Engine, EngineError, Listing, Lookup, Op, Outcome, Revision};
use mgmt_api::ClusterLevel;
use serde::Deserialize;
use versions::{Release, ReleaseError, Versions};

use crate::records::{self, FORMAT_KEY, MEMBERS, NodeRecord};

/// Without anything under the key: records without placements, of daemons that did not look.
const UNSAID: u64 = 1;

#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    #[error(
        "the cluster's records have format {level}, this daemon (release {own}) reads {reads}: it needs a later dvs"
    )]
    Later { level: u64, own: String, reads: Versions },
    #[error(
        "the cluster's records have format {level}, this daemon (release {own}) reads {reads}: the release before it \
         has to raise the cluster's level first (dvs cluster level, there)"
    )]
    Earlier { level: u64, own: String, reads: Versions },
    #[error(
        "{why}, and node '{node}' of this cluster is of release {theirs}: first dvs node upgrade there, by the release \
         between the two; or, if its machine is gone for good, dvs node remove {node} --lost"
    )]
    Apart { node: String, theirs: String, why: ReleaseError },
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What matters here of a node's record, whatever else a later release keeps in it.
#[derive(Deserialize)]
struct Standing {
    #[serde(default)]
    release: Release,
    #[serde(default = "records::of_the_first_release")]
    records: Versions,
}

fn members(engine: &dyn Lookup) -> Result<BTreeMap<String, Standing>, EngineError> {
    let entries = engine.list(MEMBERS)?.entries;
    entries
        .iter()
        .map(|entry| Ok((entry.key.trim_start_matches(MEMBERS).to_owned(), records::decode(entry)?)))
        .collect()
}

/// What somebody is who comes to the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Newcomer {
    pub node: String,
    pub release: Release,
    pub reads: Versions,
}

impl Newcomer {
    /// This daemon.
    pub fn own(node: &str) -> Newcomer {
        Newcomer { node: node.to_owned(), release: Release::own(), reads: versions::RECORDS.speaks }
    }

    fn may_come(&self, level: u64, members: &BTreeMap<String, Standing>) -> Result<(), LevelError> {
        let (own, reads) = (self.release.release.clone(), self.reads);
        if level > u64::from(reads.newest) {
            return Err(LevelError::Later { level, own, reads });
        }
        if level < u64::from(reads.oldest) {
            return Err(LevelError::Earlier { level, own, reads });
        }
        for (node, member) in members.iter().filter(|(node, _)| **node != self.node) {
            self.release.talks_with(&member.release).map_err(|why| LevelError::Apart {
                node: node.clone(),
                theirs: member.release.release.clone(),
                why,
            })?;
        }
        Ok(())
    }
}

/// The level, and its revision if it was ever said.
fn read(engine: &dyn Lookup) -> Result<(u64, Option<Revision>), EngineError> {
    let said = records::read::<u64>(engine, FORMAT_KEY)?;
    Ok(said.map_or((UNSAID, None), |(level, at)| (level, Some(at))))
}

/// What all daemons of the cluster can read.
pub fn of(engine: &dyn Lookup) -> Result<u64, EngineError> {
    Ok(read(engine)?.0)
}

/// The level in a list of what is below [`FORMAT_KEY`].
pub fn listed(format: &Listing) -> Result<u64, EngineError> {
    format.entries.first().map_or(Ok(UNSAID), records::decode)
}

fn unchanged(at: Option<Revision>) -> Compare {
    let key = FORMAT_KEY.to_owned();
    at.map_or(Compare::Absent { key: key.clone() }, |at| Compare::Modified { key, at })
}

/// Whether who comes may be in this cluster, and what its transaction compares and writes besides: the level does not
/// change before it is in.
pub fn admit(engine: &dyn Engine, who: &Newcomer) -> Result<(Compare, Op), LevelError> {
    let (level, at) = read(engine)?;
    let members = members(engine)?;
    // The first node of a cluster writes as well as it can.
    let is_new = at.is_none() && members.is_empty();
    let level = if is_new { u64::from(who.reads.newest) } else { level };
    who.may_come(level, &members)?;
    Ok((unchanged(at), Op::put(FORMAT_KEY, records::encode(&level))))
}

/// Before a daemon writes anything: it finds out that it must not.
pub fn check(engine: &dyn Engine, who: &Newcomer) -> Result<(), LevelError> {
    admit(engine, who).map(|_| ())
}

/// The newest format that all nodes read.
fn readable_by_all(own: Versions, members: &BTreeMap<String, Standing>) -> u64 {
    u64::from(members.values().map(|member| member.records.newest).fold(own.newest, u8::min))
}

/// Raises the level as far as all nodes go along. Answers what it is then.
pub fn raise(engine: &dyn Engine, own: Versions) -> Result<u64, EngineError> {
    loop {
        let (level, at) = read(engine)?;
        if level >= u64::from(own.newest) {
            return Ok(level);
        }
        let next = readable_by_all(own, &members(engine)?);
        if next <= level {
            return Ok(level);
        }
        // A conflict: a node came, or somebody else does the same.
        if let Outcome::Done(_) = engine.transact(&[unchanged(at)], &[Op::put(FORMAT_KEY, records::encode(&next))])? {
            tracing::info!(from = level, to = next, "the cluster's level rises");
            return Ok(next);
        }
    }
}

/// For people.
pub fn describe(lookup: &dyn Lookup) -> Result<ClusterLevel, EngineError> {
    let members = members(lookup)?;
    let own = versions::RECORDS.speaks;
    let releases = members.iter().map(|(node, member)| (node.clone(), member.release.clone())).collect();
    let holds_back = members.iter().filter(|(_, member)| member.records.newest < own.newest);
    Ok(ClusterLevel {
        level: read(lookup)?.0,
        readable: readable_by_all(own, &members),
        newest: own.newest.into(),
        held_back_by: holds_back.map(|(node, _)| node.clone()).collect(),
        releases,
    })
}

/// Nodes with which this one cannot talk, in words: they were let in while nobody looked.
pub fn problems<'a>(own: &str, members: impl Iterator<Item = &'a NodeRecord>) -> Vec<String> {
    let release = Release::own();
    let others = members.filter(|member| member.name != own);
    let apart = others.filter_map(|member| Some((&member.name, release.talks_with(&member.release).err()?)));
    apart.map(|(node, why)| format!("node '{node}': {why}; dvs node upgrade on the older one")).collect()
}

#[cfg(test)]
mod tests {
    use cluster::local::{LocalConfig, LocalEngine};

    use super::*;

    fn engine() -> (tempfile::TempDir, LocalEngine) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).unwrap();
        (dir, engine)
    }

    fn newcomer(node: &str, (release, follows): (&str, &str), reads: (u8, u8)) -> Newcomer {
        let release = Release { release: release.to_owned(), follows: follows.to_owned() };
        Newcomer { node: node.to_owned(), release, reads: Versions::from_to(reads.0, reads.1) }
    }

    const FIRST: (&str, &str) = ("0.1.0", "");
    const SECOND: (&str, &str) = ("0.2.0", "0.1");
    const THIRD: (&str, &str) = ("0.3.0", "0.2");

    /// As a daemon does it.
    fn register(engine: &LocalEngine, who: &Newcomer) -> Result<(), LevelError> {
        loop {
            let (compare, op) = admit(engine, who)?;
            let record = serde_json::json!({
                "name": who.node, "id": 1, "epoch": 1, "address": "192.0.2.1", "proxy_port": 1, "api_port": 1,
                "cpus": 1, "memory_bytes": 1, "release": who.release, "records": who.reads,
            });
            let ops = [op, Op::put(records::member_key(&who.node), records::encode(&record))];
            if let Outcome::Done(_) = engine.transact(&[compare], &ops)? {
                return Ok(());
            }
        }
    }

    fn level(engine: &LocalEngine) -> u64 {
        read(engine).unwrap().0
    }

    fn remove(engine: &LocalEngine, node: &str) {
        engine.transact(&[], &[Op::delete(records::member_key(node))]).unwrap();
    }

    #[test]
    fn level_rises_when_the_last_node_can_read_the_next_one_and_never_falls() {
        let (_dir, engine) = engine();
        for node in ["n1", "n2", "n3"] {
            register(&engine, &newcomer(node, FIRST, (1, 2))).unwrap();
        }
        assert_eq!(level(&engine), 2, "the first node writes as well as it can");
        let reads = Versions::from_to(2, 3);
        for node in ["n1", "n2"] {
            register(&engine, &newcomer(node, SECOND, (2, 3))).unwrap();
            assert_eq!(raise(&engine, reads).unwrap(), 2, "{node}");
        }
        register(&engine, &newcomer("n3", SECOND, (2, 3))).unwrap();
        assert_eq!(level(&engine), 2, "to register raises nothing");
        assert_eq!(raise(&engine, reads).unwrap(), 3);
        assert_eq!(raise(&engine, Versions::from_to(1, 2)).unwrap(), 3);
        let back = register(&engine, &newcomer("n3", FIRST, (1, 2))).unwrap_err();
        assert!(matches!(back, LevelError::Later { level: 3, .. }), "{back}");
        assert!(back.to_string().contains("0.1.0") && back.to_string().contains("versions 1 to 2"), "{back}");
    }

    #[test]
    fn node_that_is_down_holds_the_level_until_it_is_taken_out() {
        let (_dir, engine) = engine();
        register(&engine, &newcomer("n1", SECOND, (1, 3))).unwrap();
        assert_eq!(level(&engine), 3);
        let (_dir, engine) = self::engine();
        register(&engine, &newcomer("n1", FIRST, (1, 2))).unwrap();
        register(&engine, &newcomer("n2", SECOND, (1, 3))).unwrap();
        assert_eq!(raise(&engine, Versions::from_to(1, 3)).unwrap(), 2);
        remove(&engine, "n1");
        assert_eq!(raise(&engine, Versions::from_to(1, 3)).unwrap(), 3);
    }

    #[test]
    fn releases_between_which_there_is_another_are_not_in_one_cluster() {
        let (_dir, engine) = engine();
        register(&engine, &newcomer("n1", FIRST, (1, 2))).unwrap();
        let refused = register(&engine, &newcomer("n2", THIRD, (1, 3))).unwrap_err().to_string();
        for word in ["0.1.0", "0.3.0", "n1", "upgrade"] {
            assert!(refused.contains(word), "{refused}");
        }
        register(&engine, &newcomer("n2", SECOND, (1, 3))).unwrap();
        register(&engine, &newcomer("n1", SECOND, (1, 3))).unwrap();
        register(&engine, &newcomer("n2", THIRD, (2, 4))).unwrap();
        assert!(matches!(register(&engine, &newcomer("n3", FIRST, (1, 2))), Err(LevelError::Apart { .. })));
        // A node by itself is of whatever release it likes, as long as it reads what is there.
        remove(&engine, "n1");
        register(&engine, &newcomer("n2", ("0.5.0", "0.4"), (2, 5))).unwrap();
        let late = register(&engine, &newcomer("n2", ("0.9.0", "0.8"), (4, 6))).unwrap_err();
        assert!(matches!(late, LevelError::Earlier { level: 2, .. }), "{late}");
    }

    #[test]
    fn node_that_comes_while_the_level_rises_is_not_overlooked() {
        let (_dir, engine) = engine();
        register(&engine, &newcomer("n1", FIRST, (1, 2))).unwrap();
        register(&engine, &newcomer("n1", SECOND, (1, 3))).unwrap();
        // It looked, and then the other one raised the level.
        let late = newcomer("n2", FIRST, (1, 2));
        let (compare, op) = admit(&engine, &late).unwrap();
        assert_eq!(raise(&engine, Versions::from_to(1, 3)).unwrap(), 3);
        assert!(matches!(engine.transact(&[compare], &[op]), Ok(Outcome::Conflict(_))));
        assert!(matches!(register(&engine, &late), Err(LevelError::Later { level: 3, .. })));
    }

    #[test]
    fn records_of_daemons_that_said_nothing_are_those_of_the_first_release() {
        let (_dir, engine) = engine();
        let record = serde_json::json!({
            "name": "n1", "id": 1, "epoch": 1, "address": "192.0.2.1", "proxy_port": 1, "api_port": 1, "cpus": 1,
            "memory_bytes": 1,
        });
        engine.transact(&[], &[Op::put(records::member_key("n1"), records::encode(&record))]).unwrap();
        assert_eq!(level(&engine), UNSAID);
        check(&engine, &newcomer("n1", FIRST, (1, 2))).unwrap();
        let told = describe(&engine).unwrap();
        assert_eq!((told.level, told.releases["n1"].release.as_str()), (1, "0.1.0"));
        assert_eq!(raise(&engine, Versions::from_to(1, 3)).unwrap(), 2, "the first release reads 2");
    }
}
