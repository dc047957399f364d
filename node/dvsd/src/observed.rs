//! What the engine's follower has seen of containers and nodes. A waiter for a change looks here instead of reading
//! the engine anew at each one. It may be behind: whoever must know whether something is, or is gone, reads the engine.

use std::collections::{BTreeMap, BTreeSet};

use cluster::Revision;
use serde::de::DeserializeOwned;

use crate::reconcile::Order;
use crate::records::{DcKey, DcRecord, DcView, NODES, ShareRecord, parse_dc_key};

#[derive(Default)]
pub struct Observed {
    dcs: BTreeMap<String, ObservedDc>,
    pub alive: BTreeSet<String>,
}

#[derive(Default)]
struct ObservedDc {
    record: Option<(DcRecord, Revision)>,
    shares: BTreeMap<String, ShareRecord>,
}

impl Observed {
    pub fn put(&mut self, key: &str, value: &[u8], modified: Revision) {
        if let Some(node) = key.strip_prefix(NODES) {
            self.alive.insert(node.to_owned());
        }
        match parse_dc_key(key) {
            Some(DcKey::Record(name)) => {
                let record = understood(key, value).map(|record| (record, modified));
                self.dcs.entry(name.to_owned()).or_default().record = record;
            }
            Some(DcKey::Share { dc, node }) => {
                if let Some(share) = understood(key, value) {
                    self.dcs.entry(dc.to_owned()).or_default().shares.insert(node.to_owned(), share);
                }
            }
            None => (),
        }
    }

    pub fn delete(&mut self, key: &str) {
        if let Some(node) = key.strip_prefix(NODES) {
            self.alive.remove(node);
        }
        let Some(DcKey::Record(name) | DcKey::Share { dc: name, .. }) = parse_dc_key(key) else { return };
        let Some(dc) = self.dcs.get_mut(name) else { return };
        match parse_dc_key(key) {
            Some(DcKey::Share { node, .. }) => drop(dc.shares.remove(node)),
            _ => dc.record = None,
        }
        self.dcs.retain(|_, dc| dc.record.is_some() || !dc.shares.is_empty());
    }

    pub fn names(&self) -> Vec<String> {
        self.dcs.keys().cloned().collect()
    }

    /// Of all containers, each as it was last changed.
    pub fn records(&self) -> impl Iterator<Item = &(DcRecord, Revision)> {
        self.dcs.values().filter_map(|dc| dc.record.as_ref())
    }

    /// The container of a number.
    pub fn record_of(&self, id: u32) -> Option<&DcRecord> {
        self.dcs.values().filter_map(|dc| dc.record.as_ref()).map(|(record, _)| record).find(|record| record.id == id)
    }

    /// Numbers of the containers there are.
    pub fn ids(&self) -> Vec<u32> {
        let ids = self.dcs.values().filter_map(|dc| Some(dc.record.as_ref()?.0.id));
        ids.collect::<BTreeSet<u32>>().into_iter().collect()
    }

    pub fn view(&self, name: &str) -> Option<DcView> {
        let dc = self.dcs.get(name)?;
        let (record, modified) = dc.record.clone()?;
        let shares = dc.shares.iter().filter(|(_, share)| share.id == record.id);
        let shares = shares.map(|(node, share)| (node.clone(), share.clone())).collect();
        Some(DcView { record, modified, shares })
    }

    pub fn order(&self, name: &str) -> Option<Order> {
        self.view(name).map(|DcView { record, shares, .. }| Order { record, shares })
    }
}

pub fn understood<T: DeserializeOwned>(key: &str, value: &[u8]) -> Option<T> {
    let parsed = serde_json::from_slice(value);
    if let Err(error) = &parsed {
        tracing::error!(key, %error, "a record in the engine makes no sense; ignored");
    }
    parsed.ok()
}

#[cfg(test)]
mod tests {
    use cluster::Lookup;
    use cluster::local::{LocalConfig, LocalEngine};

    use super::*;
    use crate::records::{dc_key, dc_views_in};

    #[test]
    fn what_was_seen_is_what_the_engine_has_until_it_goes() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats/2026-11/engine.db");
        std::fs::copy(file, dir.path().join("engine.db")).expect("copied");
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).expect("the engine opens");
        // One listing for both: the leases in the file are over since then, and what hangs on them goes at any moment.
        let listing = engine.list("/").expect("listed");
        let (views, entries) = (dc_views_in(&listing).expect("read"), listing.entries);
        let mut observed = Observed::default();
        entries.iter().for_each(|entry| observed.put(&entry.key, &entry.value, entry.modified));
        assert_eq!(observed.names(), views.keys().cloned().collect::<Vec<_>>());
        for (name, view) in &views {
            let seen = observed.view(name).expect("seen");
            assert_eq!((seen.record.id, seen.modified), (view.record.id, view.modified));
            assert!(seen.shares.keys().eq(view.shares.keys()));
        }
        // A share may come before its record goes, and the other way round.
        observed.delete(&dc_key("shop"));
        assert!(observed.view("shop").is_none() && observed.order("shop").is_none());
        assert_eq!(observed.ids(), [views["plain"].record.id]);
        entries.iter().for_each(|entry| observed.delete(&entry.key));
        assert!(observed.names().is_empty() && observed.alive.is_empty());
    }
}
