//! Which nodes run a member of etcd, where the cluster decides that itself (`managed = true` in `[etcd]`).
//!
//! | | |
//! |---|---|
//! | `file.rs` | what this node knows of the members, so that its daemon finds the engine |
//! | `step.rs` | the next step, from what is known: pure |
//! | `keeper.rs` | takes the steps, and runs or ends this node's member |
//! | `version.rs` | versions of etcd, and which of them go together |
//! | `shortage.rs` | why there are fewer members than there should be, for people: pure |
//!
//! | key | value | life |
//! |---|---|---|
//! | `/engine/members/NODE` | [`MemberRecord`] | as long as the node has a member, or is to have one |
//! | `/engine/offers/NODE` | [`Offer`] | with the node's lease: it could run one |
//! | `/engine/plan` | number | counts decisions: each compares it |

mod file;
mod keeper;
mod shortage;
mod step;
mod version;

use std::collections::BTreeMap;

use mgmt_api::MemberAddress;
use serde::{Deserialize, Serialize};

pub use file::{EngineFile, FileError, Own};
pub use keeper::{Members, QuorumError, offer, own_address};
use version::EtcdVersion;

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
    /// Which membership of the node it is: what another one left on its disk is nothing to it. 0: of the first member,
    /// or of a release that says nothing of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub membership: u64,
}

pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
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
    /// Of the etcd that it would run, `3.5.16`. Daemons of earlier releases do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl Offer {
    /// `None`: it was not said, or cannot be understood.
    fn version(&self) -> Option<EtcdVersion> {
        self.version.as_ref()?.parse().ok()
    }
}

pub fn member_key(node: &str) -> String {
    format!("{MEMBERS}{node}")
}

pub fn offer_key(node: &str) -> String {
    format!("{OFFERS}{node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offer_of_an_earlier_release_has_no_version_and_a_version_is_passed_over_by_it() {
        #[derive(Deserialize)]
        struct Earlier {
            #[serde(flatten)]
            address: MemberAddress,
        }
        let earlier = r#"{"client":"10.0.0.1:2379","peer":"10.0.0.1:2380"}"#;
        let offer: Offer = serde_json::from_str(earlier).unwrap();
        assert_eq!((offer.version(), serde_json::to_string(&offer).unwrap()), (None, earlier.to_owned()));
        let now = Offer { version: Some("3.5.16".to_owned()), ..offer };
        let text = serde_json::to_string(&now).unwrap();
        assert_eq!(serde_json::from_str::<Earlier>(&text).unwrap().address, now.address);
        assert_eq!(serde_json::from_str::<Offer>(&text).unwrap().version(), "3.5.16".parse().ok());
        let later = Offer { version: Some("four".to_owned()), ..now };
        assert_eq!(later.version(), None);
    }
}
