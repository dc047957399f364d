//! Which nodes run a member of etcd, where the cluster decides that itself (`managed = true` in `[etcd]`).
//!
//! | | |
//! |---|---|
//! | `file.rs` | what this node knows of the members, so that its daemon finds the engine |
//! | `step.rs` | the next step, from what is known: pure |
//! | `keeper.rs` | takes the steps, and runs or ends this node's member |
//!
//! | key | value | life |
//! |---|---|---|
//! | `/engine/members/NODE` | [`MemberRecord`] | as long as the node has a member, or is to have one |
//! | `/engine/offers/NODE` | [`Offer`] | with the node's lease: it could run one |
//! | `/engine/plan` | number | counts decisions: each compares it |

mod file;
mod keeper;
mod step;

use std::collections::BTreeMap;

use mgmt_api::MemberAddress;
use serde::{Deserialize, Serialize};

pub use file::{EngineFile, FileError, Own};
pub use keeper::{Members, QuorumError, offer, own_address};

pub const MEMBERS: &str = "/engine/members/";
pub const OFFERS: &str = "/engine/offers/";
pub const PLAN: &str = "/engine/plan";
/// All of the above.
pub const ENGINE: &str = "/engine/";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberRecord {
    #[serde(flatten)]
    pub address: MemberAddress,
    pub stage: Stage,
    /// Where all members are that it begins with, itself too; by node.
    #[serde(default)]
    pub initial: BTreeMap<String, String>,
}

/// See `docs/design/joining.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    Invited,
    Learner,
    Voter,
    /// Nobody asks it any more, its own daemon first of all.
    Leaving,
    /// Its own daemon asks another one: it can go.
    Left,
}

/// A node could run a member there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    #[serde(flatten)]
    pub address: MemberAddress,
}

pub fn member_key(node: &str) -> String {
    format!("{MEMBERS}{node}")
}

pub fn offer_key(node: &str) -> String {
    format!("{OFFERS}{node}")
}
