//! What the engine's follower says, handed to whom it concerns.
//!
//! Runs on the follower's thread alone; calls nothing that waits for a container, a child or the network.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

use cluster::follow::Change;
use cluster::{Entry, Event, EventKind};
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::reconcile::{Order, Reconciler};
use crate::records::{self, DCS, DcKey, DcRecord, MEMBERS, NodeRecord, ShareRecord, parse_dc_key};

pub struct News {
    context: Arc<Context>,
    reconciler: Arc<Reconciler>,
    dcs: BTreeMap<String, Known>,
    /// Leftovers are looked for once.
    cleaned: bool,
}

#[derive(Default)]
struct Known {
    record: Option<DcRecord>,
    shares: BTreeMap<String, ShareRecord>,
}

impl News {
    pub fn new(context: &Arc<Context>, reconciler: &Arc<Reconciler>) -> News {
        News { context: Arc::clone(context), reconciler: Arc::clone(reconciler), dcs: BTreeMap::new(), cleaned: false }
    }

    pub fn take(&mut self, change: Change) {
        match change {
            Change::All(entries) => self.take_all(entries),
            Change::One(event) => self.take_one(event),
            Change::Unknown(error) => {
                tracing::warn!(%error, "the cluster engine does not answer; nothing changes until it does")
            }
        }
        self.context.changed();
    }

    fn take_all(&mut self, entries: Vec<Entry>) {
        let (mut endpoints, mut members) = (HashMap::new(), BTreeMap::new());
        self.dcs.clear();
        for entry in &entries {
            if let Some(key) = records::parse_endpoint_key(&entry.key) {
                endpoints.extend(understood(&entry.key, &entry.value).map(|record| (key, record)));
            } else if entry.key.starts_with(MEMBERS) {
                members.extend(
                    understood::<NodeRecord>(&entry.key, &entry.value).map(|record| (record.name.clone(), record)),
                );
            } else if entry.key.starts_with(DCS) {
                self.put_dc(&entry.key, &entry.value);
            }
        }
        *self.context.members.write().unwrap_or_else(PoisonError::into_inner) = members;
        self.tell_proxy();
        self.context.directory.learned_all(&self.context.broker, &endpoints);
        let names: Vec<String> = self.dcs.keys().cloned().collect();
        names.iter().for_each(|name| self.order(name));
        let existing = self.existing();
        self.reconciler.retain(&existing);
        if !std::mem::replace(&mut self.cleaned, true) {
            self.reconciler.clean_leftovers(&existing);
        }
    }

    fn take_one(&mut self, event: Event) {
        let key = event.key.as_str();
        if let Some(endpoint) = records::parse_endpoint_key(key) {
            self.take_endpoint(endpoint, &event);
        } else if key.starts_with(MEMBERS) {
            self.take_member(&event);
        } else if key.starts_with(DCS) {
            self.take_dc(&event);
        }
        // Who is alive is read when asked for; numbers, incarnations and locks concern nobody here.
    }

    fn take_endpoint(&mut self, endpoint: (u32, u32), event: &Event) {
        let (directory, broker) = (&self.context.directory, &self.context.broker);
        match &event.kind {
            EventKind::Put { value, .. } => {
                if let Some(record) = understood(&event.key, value) {
                    directory.learned(broker, endpoint, record);
                }
            }
            EventKind::Delete => directory.forgot(broker, endpoint),
        }
    }

    fn take_member(&mut self, event: &Event) {
        let name = event.key.trim_start_matches(MEMBERS).to_owned();
        {
            let mut members = self.context.members.write().unwrap_or_else(PoisonError::into_inner);
            match &event.kind {
                EventKind::Put { value, .. } => {
                    members.extend(understood(&event.key, value).map(|record| (name, record)))
                }
                EventKind::Delete => drop(members.remove(&name)),
            }
        }
        self.tell_proxy();
    }

    fn tell_proxy(&self) {
        let members = self.context.members.read().unwrap_or_else(PoisonError::into_inner).clone();
        // First the broker's side: a link that comes or goes is judged by how many there are.
        self.context.directory.learned_members(&members);
        self.context.proxy.set_peers(&members, &self.context.config);
    }

    fn take_dc(&mut self, event: &Event) {
        let Some(DcKey::Record(name) | DcKey::Share { dc: name, .. }) = parse_dc_key(&event.key) else { return };
        match &event.kind {
            EventKind::Put { value, .. } => self.put_dc(&event.key, value),
            EventKind::Delete => self.delete_dc(&event.key),
        }
        self.order(name);
        if matches!((parse_dc_key(&event.key), &event.kind), (Some(DcKey::Record(_)), EventKind::Delete)) {
            self.reconciler.retain(&self.existing());
        }
    }

    fn put_dc(&mut self, key: &str, value: &[u8]) {
        match parse_dc_key(key) {
            Some(DcKey::Record(name)) => {
                self.dcs.entry(name.to_owned()).or_default().record = understood(key, value);
            }
            Some(DcKey::Share { dc, node }) => {
                if let Some(share) = understood(key, value) {
                    self.dcs.entry(dc.to_owned()).or_default().shares.insert(node.to_owned(), share);
                }
            }
            None => (),
        }
    }

    fn delete_dc(&mut self, key: &str) {
        match parse_dc_key(key) {
            Some(DcKey::Record(name)) => {
                self.dcs.entry(name.to_owned()).or_default().record = None;
            }
            Some(DcKey::Share { dc, node }) => {
                self.dcs.entry(dc.to_owned()).or_default().shares.remove(node);
            }
            None => (),
        }
        self.dcs.retain(|_, known| known.record.is_some() || !known.shares.is_empty());
    }

    fn order(&self, name: &str) {
        let Some(Known { record: Some(record), shares }) = self.dcs.get(name) else { return };
        let shares = shares.iter().filter(|(_, share)| share.id == record.id);
        let shares = shares.map(|(node, share)| (node.clone(), share.clone())).collect();
        self.reconciler.order(Order { record: record.clone(), shares });
    }

    fn existing(&self) -> Vec<u32> {
        let ids: BTreeSet<u32> =
            self.dcs.values().filter_map(|known| known.record.as_ref().map(|record| record.id)).collect();
        ids.into_iter().collect()
    }
}

fn understood<T: DeserializeOwned>(key: &str, value: &[u8]) -> Option<T> {
    let parsed = serde_json::from_slice(value);
    if let Err(error) = &parsed {
        tracing::error!(key, %error, "a record in the engine makes no sense; ignored");
    }
    parsed.ok()
}
