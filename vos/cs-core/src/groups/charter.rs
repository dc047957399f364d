//! What is agreed on in the engine about a group: who orders, in which epoch, on which hosts, and the newest view.

use serde::{Deserialize, Serialize};
use vos_api::desk::Known;

/// A server in one of its lives: one that was started again is another host, which has nothing of what the one before
/// had.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Host {
    /// Index of its node in the container.
    #[serde(rename = "n")]
    pub node: u8,
    #[serde(rename = "i")]
    pub incarnation: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Never used twice in a container.
    pub id: u64,
    #[serde(flatten)]
    pub host: Host,
    pub name: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Charter {
    /// Raised with each change of the sequencer.
    pub epoch: u64,
    /// Of the newest view that was agreed on.
    pub number: u64,
    pub sequencer: Host,
    /// In the order in which they came; the first that is there succeeds a sequencer.
    pub hosts: Vec<Host>,
    pub members: Vec<Member>,
}

impl Charter {
    /// Of a group that begins. Its epoch, and the number of its first view, are the revision that makes it: so both
    /// rise also when a group ends and another one of its name begins.
    pub fn new(own: Host, members: Vec<Member>) -> Charter {
        Charter { epoch: 0, number: 0, sequencer: own, hosts: vec![own], members }
    }

    /// As it counts, of a key that was made at `created`.
    pub fn counted_from(mut self, created: u64) -> Charter {
        if self.epoch == 0 {
            (self.epoch, self.number) = (created, created);
        }
        self
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// With its revision.
    pub fn of(known: &Known) -> Option<(Charter, u64)> {
        let charter: Charter = serde_json::from_slice(&known.value).ok()?;
        Some((charter.counted_from(known.created), known.modified))
    }
}
