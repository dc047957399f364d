//! `STATE_DIR/engine.json`: where the members of the engine are, and what this node's own one began with.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mgmt_api::MemberAddress;
use serde::{Deserialize, Serialize};

pub const NAME: &str = "engine.json";

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineFile {
    /// By node.
    pub members: BTreeMap<String, MemberAddress>,
    /// This node runs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<Own>,
}

/// What a member begins with. It stays as it was while the cluster changes: etcd only looks at it at its very first
/// start, and a process with other arguments would be replaced.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Own {
    /// Where all members are for each other, itself too; by node.
    pub initial: BTreeMap<String, String>,
    pub is_first: bool,
    /// What tells this cluster of etcd from others at the same addresses; the cluster's name where nobody said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The first one has served: it never begins again without its data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_founded: bool,
    /// [`super::MemberRecord::membership`].
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub membership: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}", .path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} does not say where the members of the engine are", .path.display())]
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
}

impl EngineFile {
    pub fn read(state_dir: &Path) -> Result<EngineFile, FileError> {
        let path = state_dir.join(NAME);
        let text = fs::read(&path).map_err(|cause| FileError::Unreadable { path: path.clone(), cause })?;
        serde_json::from_slice(&text).map_err(|cause| FileError::Malformed { path, cause })
    }

    /// As a whole or not at all: without it the daemon would not find the engine after a loss of power.
    pub fn write(&self, state_dir: &Path) -> Result<(), FileError> {
        let path = state_dir.join(NAME);
        let failed = |cause| FileError::Unwritable { path: path.clone(), cause };
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        crate::state::write_durably(&path, &text, 0o644).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_as_it_was_written_and_one_that_makes_no_sense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(EngineFile::read(dir.path()), Err(FileError::Unreadable { .. })));
        let address = MemberAddress { client: "10.0.0.1:2379".to_owned(), peer: "10.0.0.1:2380".to_owned() };
        let initial = BTreeMap::from([("n1".to_owned(), address.peer.clone())]);
        let own = Some(Own { initial, is_first: true, token: None, is_founded: false, membership: 0 });
        let file = EngineFile { members: BTreeMap::from([("n1".to_owned(), address)]), own };
        file.write(dir.path()).unwrap();
        assert_eq!(EngineFile::read(dir.path()).unwrap(), file);
        for text in ["", "{}", "{\"members\":{},\"other\":1}"] {
            fs::write(dir.path().join(NAME), text).unwrap();
            assert!(matches!(EngineFile::read(dir.path()), Err(FileError::Malformed { .. })), "{text}");
        }
    }
}
