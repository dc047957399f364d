//! Which cluster this node belongs to, and whether the engine is that cluster's.
//!
//! `/cluster` in the engine has a number that no other cluster has, and counts how often the engine was begun anew of a
//! copy (`recovery`). `STATE_DIR/identity.json` is what this node saw there last. A daemon that took an empty engine,
//! or another cluster's, for its own would remove all containers that are not there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cluster::{Compare, Engine, EngineError, Op, Outcome};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::records::{self, encode, now_s};

pub const CLUSTER: &str = "/cluster";
/// While an engine is filled from a copy: what is there is not all.
pub const FILLING: &str = "/filling";
const NAME: &str = "identity.json";
const ID_BYTES: usize = 16;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// 128 random bits, in hexadecimal digits.
    pub id: String,
    pub name: String,
    pub born_s: u64,
    /// 1; the second since 1970, at least one more, each time the engine was begun anew of a copy.
    pub generation: u64,
}

/// What a node remembers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    pub id: String,
    pub generation: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("the engine was not filled to its end when it was begun anew of a copy: do that again")]
    Filling,
    #[error(
        "the engine has nothing of the cluster that this node belongs to ({id}): it has lost its data, or it is not this cluster's (setting 'etcd')"
    )]
    Empty { id: String },
    #[error("the engine is that of another cluster ({there}); this node belongs to {own} (setting 'etcd')")]
    Foreign { own: String, there: String },
    #[error(
        "the engine was begun anew since this one was left ({there} times, it should be {own}): it is not the cluster's any more"
    )]
    Earlier { own: u64, there: u64 },
    #[error("cannot read {}", .path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} does not say which cluster this is", .path.display())]
    Malformed {
        path: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
    #[error("cannot write {}", .path.display())]
    Unwritable {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("there are no random numbers")]
    NoRandomness,
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl IdentityError {
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            IdentityError::Filling => Some("dvs cluster restore FILE, with the same file"),
            IdentityError::Empty { .. } => Some(
                "dvs cluster restore FILE, where there is a backup; dvs cluster recover, where a member's data are left; else remove identity.json from the state directory, and this node's containers are gone",
            ),
            IdentityError::Foreign { .. } | IdentityError::Earlier { .. } => Some(
                "'etcd' in the daemon's settings; dvs node join TOKEN@ADDRESS --again makes it a node of another cluster",
            ),
            _ => None,
        }
    }
}

/// What a node's memory and an engine have to do with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meeting {
    /// Nobody has been here.
    Begin,
    /// The engine tells a new node.
    Adopt,
    Same,
    /// It was begun anew of a copy.
    Anew,
}

fn meet(own: Option<&Identity>, there: Option<&ClusterRecord>) -> Result<Meeting, IdentityError> {
    match (own, there) {
        (None, None) => Ok(Meeting::Begin),
        (None, Some(_)) => Ok(Meeting::Adopt),
        (Some(own), None) => Err(IdentityError::Empty { id: own.id.clone() }),
        (Some(own), Some(there)) if own.id != there.id => {
            Err(IdentityError::Foreign { own: own.id.clone(), there: there.id.clone() })
        }
        (Some(own), Some(there)) if own.generation > there.generation => {
            Err(IdentityError::Earlier { own: own.generation, there: there.generation })
        }
        (Some(own), Some(there)) if own.generation < there.generation => Ok(Meeting::Anew),
        _ => Ok(Meeting::Same),
    }
}

/// Before anything else is read or written there: refuses an engine that is not this node's cluster's.
pub fn confirm(engine: &dyn Engine, config: &Config) -> Result<Identity, IdentityError> {
    let own = Identity::read(&config.state_dir)?;
    if engine.read(FILLING)?.is_some() {
        return Err(IdentityError::Filling);
    }
    let mut there = records::read::<ClusterRecord>(engine, CLUSTER)?.map(|(record, _)| record);
    if meet(own.as_ref(), there.as_ref())? == Meeting::Begin {
        let id = random_id()?;
        let record = ClusterRecord { id, name: config.cluster.clone(), born_s: now_s(), generation: 1 };
        let absent = Compare::Absent { key: CLUSTER.to_owned() };
        there = match engine.transact(&[absent], &[Op::put(CLUSTER, encode(&record))])? {
            Outcome::Done(_) => Some(record),
            // Another node's daemon was faster.
            Outcome::Conflict(_) => records::read(engine, CLUSTER)?.map(|(record, _)| record),
        };
    }
    let meeting = meet(own.as_ref(), there.as_ref())?;
    let Some(there) = there else { return Err(IdentityError::Empty { id: String::new() }) };
    if meeting == Meeting::Anew {
        tracing::warn!(
            generation = there.generation,
            "the engine was begun anew of a copy; containers that are not in it are put aside here, not removed"
        );
    }
    let identity = Identity { id: there.id, generation: there.generation };
    if own.as_ref() != Some(&identity) {
        identity.write(&config.state_dir)?;
    }
    Ok(identity)
}

fn random_id() -> Result<String, IdentityError> {
    let mut bytes = [0_u8; ID_BYTES];
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    filled.map_err(|_| IdentityError::NoRandomness)?;
    Ok(pki::hex(&bytes))
}

impl Identity {
    /// Whether what the engine does not have may only be unknown to it: it was begun anew of a copy.
    pub fn may_have_forgotten(&self) -> bool {
        self.generation > 1
    }

    pub fn read(state_dir: &Path) -> Result<Option<Identity>, IdentityError> {
        let path = state_dir.join(NAME);
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map(Some).map_err(|cause| IdentityError::Malformed { path, cause })
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(IdentityError::Unreadable { path, cause }),
        }
    }

    fn write(&self, state_dir: &Path) -> Result<(), IdentityError> {
        let path = state_dir.join(NAME);
        crate::state::write_durably(&path, &encode(self), 0o644)
            .map_err(|cause| IdentityError::Unwritable { path, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(id: &str, generation: u64) -> ClusterRecord {
        ClusterRecord { id: id.to_owned(), name: "home".to_owned(), born_s: 0, generation }
    }

    fn own(id: &str, generation: u64) -> Identity {
        Identity { id: id.to_owned(), generation }
    }

    #[test]
    fn node_takes_only_its_own_clusters_engine() {
        assert_eq!(meet(None, None).unwrap(), Meeting::Begin);
        assert_eq!(meet(None, Some(&there("a", 3))).unwrap(), Meeting::Adopt);
        assert_eq!(meet(Some(&own("a", 2)), Some(&there("a", 2))).unwrap(), Meeting::Same);
        assert_eq!(meet(Some(&own("a", 1)), Some(&there("a", 2))).unwrap(), Meeting::Anew);
        assert!(matches!(meet(Some(&own("a", 1)), None), Err(IdentityError::Empty { .. })));
        assert!(matches!(meet(Some(&own("a", 1)), Some(&there("b", 1))), Err(IdentityError::Foreign { .. })));
        assert!(matches!(meet(Some(&own("a", 2)), Some(&there("a", 1))), Err(IdentityError::Earlier { .. })));
    }
}
