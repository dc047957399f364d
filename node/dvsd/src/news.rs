//! What the engine's follower says, handed to whom it concerns.
//!
//! Runs on the follower's thread alone; calls nothing that waits for a container, a child or the network.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cluster::follow::Change;
use cluster::{EngineError, Entry, Event, EventKind};

use crate::context::{Context, Ending};
use crate::observed::{Observed, understood};
use crate::quorum;
use crate::reconcile::Reconciler;
use crate::records::{self, DcKey, MEMBERS, NodeRecord, parse_dc_key};
use crate::services::{self, ServiceBells};

pub struct News {
    context: Arc<Context>,
    reconciler: Arc<Reconciler>,
    /// Leftovers are looked for once.
    cleaned: bool,
}

impl News {
    pub fn new(context: &Arc<Context>, reconciler: &Arc<Reconciler>) -> News {
        News { context: Arc::clone(context), reconciler: Arc::clone(reconciler), cleaned: false }
    }

    pub fn take(&mut self, change: Change) {
        let concerns_services = match &change {
            Change::All(_) => true,
            Change::One(event) => ServiceBells::is_about(&event.key),
            Change::Unknown(_) => false,
        };
        self.context.answers.mirror.take(&change);
        self.context.desks.news(&change);
        self.context.people.take(&change);
        // Its programs know its services by name.
        let named = match &change {
            Change::One(event) => services::record::dc_of(&event.key),
            Change::All(_) | Change::Unknown(_) => None,
        };
        match change {
            Change::All(entries) => self.take_all(entries),
            Change::One(event) => self.take_one(event),
            Change::Unknown(EngineError::Replaced) => self.context.end(Ending::Replaced),
            Change::Unknown(error) => {
                tracing::warn!(%error, "the cluster engine does not answer; nothing changes until it does")
            }
        }
        if let Some(dc) = named {
            self.reconciler.look_again_at(dc);
        }
        if concerns_services {
            self.context.service_bells.ring();
        }
        self.context.changed();
    }

    /// Those who look after the engine's members look again.
    fn tell_members(&self) {
        if let Some(members) = &*self.context.quorum.lock() {
            members.look_again();
        }
    }

    fn take_all(&mut self, entries: Vec<Entry>) {
        let (mut endpoints, mut members, mut observed) = (HashMap::new(), BTreeMap::new(), Observed::default());
        for entry in &entries {
            if let Some(key) = records::parse_endpoint_key(&entry.key) {
                endpoints.extend(understood(&entry.key, &entry.value).map(|record| (key, record)));
            } else if entry.key.starts_with(MEMBERS) {
                members.extend(
                    understood::<NodeRecord>(&entry.key, &entry.value).map(|record| (record.name.clone(), record)),
                );
            } else {
                observed.put(&entry.key, &entry.value, entry.modified);
            }
        }
        if !members.contains_key(&self.context.config.node) {
            self.context.end(Ending::Removed);
        }
        *self.context.members.write() = members;
        self.context.tell_proxies();
        self.tell_members();
        self.context.directory.learned_all(&self.context.broker, &endpoints);
        let (names, existing) = (observed.names(), observed.ids());
        *self.context.observed.lock() = observed;
        names.iter().for_each(|name| self.order(name));
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
            self.tell_members();
        } else {
            let alive = self.context.observed.lock().alive.len();
            self.take_observed(&event);
            let is_about_members = key.starts_with(quorum::ENGINE) || key.starts_with(records::NODE_WISHES);
            if is_about_members || alive != self.context.observed.lock().alive.len() {
                self.tell_members();
            }
        }
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
            let mut members = self.context.members.write();
            match &event.kind {
                EventKind::Put { value, .. } => {
                    members.extend(understood(&event.key, value).map(|record| (name, record)))
                }
                EventKind::Delete => {
                    members.remove(&name);
                    if name == self.context.config.node {
                        self.context.end(Ending::Removed);
                    }
                }
            }
        }
        self.context.tell_proxies();
    }

    /// Numbers, incarnations and locks concern nobody here.
    fn take_observed(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Put { value, .. } => self.context.observed.lock().put(&event.key, value, event.revision),
            EventKind::Delete => self.context.observed.lock().delete(&event.key),
        }
        let Some(DcKey::Record(name) | DcKey::Share { dc: name, .. }) = parse_dc_key(&event.key) else { return };
        self.order(name);
        if matches!((parse_dc_key(&event.key), &event.kind), (Some(DcKey::Record(_)), EventKind::Delete)) {
            let existing = self.context.observed.lock().ids();
            self.reconciler.retain(&existing);
        }
    }

    fn order(&self, name: &str) {
        let order = self.context.observed.lock().order(name);
        order.into_iter().for_each(|order| self.reconciler.order(order));
    }
}
