//! Another root takes the place of the one there is, while everything goes on: three stages, each of which begins only
//! when every node has brought the one before to its end.
//!
//! | stage | `ca.crt` | signs | each node |
//! |---|---|---|---|
//! | announced | old, new | old | believes both, and so does its member of etcd, which is replaced for it, one at a time |
//! | switched | new, old | new | shows a certificate of the new one |
//! | over | new | new | |
//!
//! A node says how far it is under `/trust/NODE`. The living node with the smallest name takes the next step, by
//! comparing the record: two who take it take it once. A node that is down holds everything up, until it is back or
//! taken out: left behind, it could not come back.

use std::collections::BTreeSet;

use cluster::{Compare, Engine, EngineError, Lookup, Op, Outcome};
use mgmt_api::{AuthorityStage, AuthorityState};
use pki::Authority;
use serde::{Deserialize, Serialize};

use super::authority::{self, AUTHORITY, AuthorityError, AuthorityRecord, Root, Rotation};
use crate::records::{self, encode};

const TRUST: &str = "/trust/";

/// What a node believes and shows, as it says itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Trust {
    /// Fingerprints of the roots that it believes, its member of etcd too.
    pub believes: BTreeSet<String>,
    /// Of the root that signed what it shows.
    pub shows: String,
}

pub fn trust_key(node: &str) -> String {
    format!("{TRUST}{node}")
}

#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    #[error("another root is already taking the place of the one before")]
    UnderWay,
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

impl From<EngineError> for RotationError {
    fn from(error: EngineError) -> RotationError {
        RotationError::Authority(error.into())
    }
}

/// Begins with a new root.
pub fn begin(engine: &dyn Engine, cluster: &str) -> Result<(), RotationError> {
    let (mut record, at) = authority::demand(engine)?;
    if record.rotation.is_some() {
        return Err(RotationError::UnderWay);
    }
    let generation = record.generation + 1;
    let root = Authority::generate(cluster, generation).map_err(AuthorityError::Issue)?;
    record.roots.push(Root::of(&root));
    (record.generation, record.rotation, record.number) = (generation, Some(Rotation::Announced), record.number + 1);
    let same = Compare::Modified { key: AUTHORITY.to_owned(), at };
    match engine.transact(&[same], &[Op::put(AUTHORITY, encode(&record))])? {
        Outcome::Done(_) => Ok(()),
        Outcome::Conflict(_) => Err(AuthorityError::Contended.into()),
    }
}

/// How it stands, and for whom it waits.
pub fn state(engine: &dyn Lookup) -> Result<AuthorityState, AuthorityError> {
    let (record, _) = authority::demand(engine)?;
    let fingerprints = fingerprints(&record)?;
    let waits_for = match record.rotation {
        None => Vec::new(),
        Some(rotation) => behind(engine, rotation, &fingerprints)?,
    };
    Ok(AuthorityState {
        stage: match record.rotation {
            None => AuthorityStage::Settled,
            Some(Rotation::Announced) => AuthorityStage::Announced,
            Some(Rotation::Switched) => AuthorityStage::Switched,
        },
        roots: fingerprints,
        certificate_lifetime_s: record.lifetime_s,
        revoked: record.revoked.len() as u64,
        waits_for,
    })
}

/// The next step, if all have taken the last one.
pub fn advance(engine: &dyn Engine) -> Result<(), AuthorityError> {
    let Some((mut record, at)) = authority::read(engine)? else { return Ok(()) };
    let Some(rotation) = record.rotation else { return Ok(()) };
    if !behind(engine, rotation, &fingerprints(&record)?)?.is_empty() {
        return Ok(());
    }
    match rotation {
        Rotation::Announced => {
            record.roots.reverse();
            record.rotation = Some(Rotation::Switched);
        }
        Rotation::Switched => {
            record.roots.truncate(1);
            record.rotation = None;
        }
    }
    record.number += 1;
    let same = Compare::Modified { key: AUTHORITY.to_owned(), at };
    if let Outcome::Done(_) = engine.transact(&[same], &[Op::put(AUTHORITY, encode(&record))])? {
        tracing::info!(rotation = ?record.rotation, "the authority's roots");
    }
    Ok(())
}

fn fingerprints(record: &AuthorityRecord) -> Result<Vec<String>, AuthorityError> {
    let all = record.roots.iter().map(|root| pki::fingerprint(&root.certificate_pem).map(|print| print.to_string()));
    all.collect::<Result<_, _>>().map_err(AuthorityError::Unusable)
}

/// Nodes that have not come to the end of this stage.
fn behind(engine: &dyn Lookup, rotation: Rotation, roots: &[String]) -> Result<Vec<String>, EngineError> {
    let mut behind = Vec::new();
    for node in records::members(engine)?.into_keys() {
        let trust = records::read::<Trust>(engine, &trust_key(&node))?.map(|(trust, _)| trust).unwrap_or_default();
        let is_done = match rotation {
            Rotation::Announced => roots.iter().all(|root| trust.believes.contains(root)),
            Rotation::Switched => roots.first() == Some(&trust.shows),
        };
        if !is_done {
            behind.push(node);
        }
    }
    Ok(behind)
}

#[cfg(test)]
mod tests {
    use cluster::local::{LocalConfig, LocalEngine};

    use super::*;

    fn trust(engine: &LocalEngine, node: &str, believes: &[&String], shows: &str) {
        let trust = Trust { believes: believes.iter().map(|root| (*root).clone()).collect(), shows: shows.to_owned() };
        engine.transact(&[], &[Op::put(trust_key(node), encode(&trust))]).unwrap();
    }

    #[test]
    fn no_stage_begins_before_all_have_ended_the_one_before() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).unwrap();
        let made = dir.path().join("authority");
        Authority::create(&made, "home").unwrap();
        let now = std::time::SystemTime::now();
        let own = pki::CertificateSummary { serial: "4a".to_owned(), from: now, until: now };
        authority::take_over(&engine, &made, "n1", &own).unwrap();
        for (id, name) in ["n1", "n2"].into_iter().enumerate() {
            let record = serde_json::json!({
                "name": name, "id": id, "epoch": 1, "address": "10.0.0.1", "proxy_port": 1, "api_port": 2, "cpus": 1,
                "memory_bytes": 1
            });
            engine.transact(&[], &[Op::put(records::member_key(name), record.to_string())]).unwrap();
        }
        let settled = state(&engine).unwrap();
        assert_eq!((settled.stage, settled.roots.len()), (AuthorityStage::Settled, 1));
        begin(&engine, "home").unwrap();
        assert!(matches!(begin(&engine, "home"), Err(RotationError::UnderWay)));
        let announced = state(&engine).unwrap();
        let (old, new) = (&announced.roots[0], &announced.roots[1]);
        assert_eq!((old, announced.waits_for.len()), (&settled.roots[0], 2));
        trust(&engine, "n1", &[old, new], old);
        trust(&engine, "n2", &[old], old);
        advance(&engine).unwrap();
        assert_eq!(state(&engine).unwrap().waits_for, ["n2"]);
        assert_eq!(state(&engine).unwrap().stage, AuthorityStage::Announced);
        trust(&engine, "n2", &[old, new], old);
        advance(&engine).unwrap();
        let switched = state(&engine).unwrap();
        assert_eq!((switched.stage, &switched.roots[0]), (AuthorityStage::Switched, new));
        trust(&engine, "n1", &[old, new], new);
        advance(&engine).unwrap();
        assert_eq!(state(&engine).unwrap().waits_for, ["n2"]);
        trust(&engine, "n2", &[old, new], new);
        advance(&engine).unwrap();
        let over = state(&engine).unwrap();
        assert_eq!((over.stage, &over.roots), (AuthorityStage::Settled, &vec![new.clone()]));
        advance(&engine).unwrap();
    }
}
