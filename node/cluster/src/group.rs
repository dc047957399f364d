//! Groups: who is in, in numbered views that everybody sees alike.
//!
//! A member is a leased key `/groups/GROUP/members/NAME`. The agreed view is the key `/groups/GROUP/view`; whoever
//! notices that the members differ from it writes the next one by compare-and-set, so that a number names one set of
//! members for all observers. Somebody who looks away sees the newest view, not every one in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::engine::{Compare, Engine, EngineError, Listing, Op, Outcome, Revision, Watch};
use crate::lease::KeptLease;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct View {
    /// From 1, without gaps.
    pub number: u64,
    /// In the order they joined.
    pub members: Vec<Member>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub name: String,
    /// Revision of joining: tells a member from its successor of the same name.
    pub joined: u64,
    pub data: String,
}

#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    #[error("group {group:?} already has a member {member:?}")]
    NameTaken { group: String, member: String },
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Membership; ends when dropped, or with the lease.
pub struct Membership {
    lease: Arc<KeptLease>,
    key: String,
    joined: Revision,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let fence = Compare::Created { key: self.key.clone(), at: self.joined };
        if let Err(error) = self.lease.engine().transact(&[fence], &[Op::delete(&*self.key)]) {
            tracing::warn!(key = self.key, %error, "cannot leave a group; membership ends with the lease");
        }
    }
}

pub fn join(lease: &Arc<KeptLease>, group: &str, member: &str, data: &str) -> Result<Membership, GroupError> {
    let key = format!("/groups/{group}/members/{member}");
    match lease
        .engine()
        .transact(&[Compare::Absent { key: key.clone() }], &[Op::put_leased(&*key, data, lease.id())])?
    {
        Outcome::Done(joined) => Ok(Membership { lease: Arc::clone(lease), key, joined }),
        Outcome::Conflict(_) => Err(GroupError::NameTaken { group: group.to_owned(), member: member.to_owned() }),
    }
}

/// Sees the views of a group; being a member is not needed.
pub struct Observer {
    engine: Arc<dyn Engine>,
    prefix: String,
    watch: Option<Box<dyn Watch>>,
    shown: u64,
}

impl Observer {
    pub fn new(engine: &Arc<dyn Engine>, group: &str) -> Observer {
        Observer { engine: Arc::clone(engine), prefix: format!("/groups/{group}/"), watch: None, shown: 0 }
    }

    /// The newest view that was not returned yet; `None` when there is none for `timeout`.
    pub fn next_view(&mut self, timeout: Duration) -> Result<Option<View>, EngineError> {
        let until = Instant::now() + timeout;
        loop {
            let (view, revision) = self.agree()?;
            if view.number > self.shown {
                self.shown = view.number;
                return Ok(Some(view));
            }
            let mut watch = match self.watch.take() {
                Some(watch) if watch.seen() >= revision => watch,
                _ => self.engine.watch(&self.prefix, revision)?,
            };
            match watch.recv(until.saturating_duration_since(Instant::now())) {
                Ok(Some(_)) => self.watch = Some(watch),
                Ok(None) => return Ok(None),
                Err(EngineError::Compacted { .. }) => (),
                Err(error) => return Err(error),
            }
        }
    }

    /// The agreed view, after writing the next one when the members have changed.
    fn agree(&self) -> Result<(View, Revision), EngineError> {
        let key = format!("{}view", self.prefix);
        loop {
            let listing = self.engine.list(&self.prefix)?;
            let stored = listing.entries.iter().find(|entry| entry.key == key);
            let agreed = match stored {
                Some(entry) => serde_json::from_slice(&entry.value).map_err(|_| EngineError::BadValue(key.clone()))?,
                None => View { number: 0, members: Vec::new() },
            };
            let members = self.members(&listing);
            if agreed.members == members {
                return Ok((agreed, listing.revision));
            }
            let next = View { number: agreed.number + 1, members };
            let compare = match stored {
                Some(entry) => Compare::Modified { key: key.clone(), at: entry.modified },
                None => Compare::Absent { key: key.clone() },
            };
            let value = serde_json::to_vec(&next).map_err(|_| EngineError::BadValue(key.clone()))?;
            // Whoever is first decides; everybody reads what was decided.
            self.engine.transact(&[compare], &[Op::put(&*key, value)])?;
        }
    }

    fn members(&self, listing: &Listing) -> Vec<Member> {
        let prefix = format!("{}members/", self.prefix);
        let mut members: Vec<Member> = listing
            .entries
            .iter()
            .filter_map(|entry| {
                let name = entry.key.strip_prefix(&prefix)?.to_owned();
                Some(Member { name, joined: entry.created.0, data: String::from_utf8_lossy(&entry.value).into_owned() })
            })
            .collect();
        members.sort_by(|one, other| (one.joined, &one.name).cmp(&(other.joined, &other.name)));
        members
    }
}
