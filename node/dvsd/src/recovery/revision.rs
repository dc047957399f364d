//! What may not repeat itself in an engine that is begun anew of a copy: numbers that were given since the copy was
//! made, and what was true of nodes then.

use std::collections::BTreeMap;

use cluster::Revision;

use super::RecoveryError;
use super::dump::Dump;
use crate::identity::ClusterRecord;
use crate::joining::tokens;
use crate::records::now_s;

/// Revisions between the copy and the loss: hundreds of years of ordinary clusters.
const REVISIONS: u64 = 1 << 40;
/// Incarnations of one node or server meanwhile.
const EPOCHS: u64 = 1 << 20;
/// Containers that were made meanwhile.
const CONTAINERS: u64 = 1 << 12;

const EPOCH_KEYS: &str = "/epochs/";
const LAST_CONTAINER: &str = "/ids/dc/last";
/// What nodes say of themselves and of each other, who runs members, and tokens: one that was used since the copy would
/// be good once more.
const FORGOTTEN: [&str; 4] = ["/engine/", "/judging/", "/trust/", tokens::TOKENS];

/// What the new engine begins with.
pub struct Contents {
    pub cluster: ClusterRecord,
    pub after: Revision,
    pub entries: BTreeMap<String, Vec<u8>>,
}

/// `last`: the generation that this node saw last.
pub fn revised(dump: &Dump, last: u64) -> Result<Contents, RecoveryError> {
    let mut entries = BTreeMap::new();
    for (key, value) in &dump.entries {
        if FORGOTTEN.iter().any(|prefix| key.starts_with(prefix)) {
            continue;
        }
        let value = if key.starts_with(EPOCH_KEYS) {
            raised(key, value, EPOCHS)?
        } else if key == LAST_CONTAINER {
            raised(key, value, CONTAINERS)?
        } else {
            value.clone()
        };
        entries.insert(key.clone(), value);
    }
    let header = &dump.header;
    // By the clock: other nodes may have seen later ones than this node and the copy know.
    let generation = header.cluster.generation.max(last).saturating_add(1).max(now_s());
    let cluster = ClusterRecord { generation, ..header.cluster.clone() };
    Ok(Contents { cluster, after: Revision(header.revision.saturating_add(REVISIONS)), entries })
}

/// Both kinds of numbers are kept as their decimal digits.
fn raised(key: &str, value: &[u8], by: u64) -> Result<Vec<u8>, RecoveryError> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
    let number = number.ok_or_else(|| RecoveryError::BadValue { key: key.to_owned() })?;
    Ok(number.saturating_add(by).to_string().into_bytes())
}
