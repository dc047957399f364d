//! Whether a node is lost: a decision of the engine, not a guess (`docs/design/verdicts.md`).
//!
//! | | |
//! |---|---|
//! | `judge.rs` | what one daemon does about what it sees: pure, the time is passed in |
//! | `confirm.rs` | asks the engine whether this incarnation goes on, for who holds what must run once |
//! | `court.rs` | its thread: links, the follower, and the transactions |
//!
//! | key | value | life |
//! |---|---|---|
//! | `/judging/suspicions/NODE/ACCUSER` | incarnation of NODE | with the accuser's lease, until it hears of NODE again |
//! | `/judging/seconds/NODE/ACCUSER` | the objection with which the hearing began, or 0; whether he ever had a link with it | likewise: that he still hears nothing of it |
//! | `/judging/objections/NODE` | number | with NODE's lease, as long as anybody accuses it |
//! | `/judging/verdicts/NODE` | [`Verdict`] | until NODE comes back in a later incarnation, or is taken out |

mod confirm;
mod court;
mod judge;
#[cfg(test)]
mod simulation;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use confirm::confirm;
pub use court::Court;
pub use judge::HEARING;

const JUDGING: &str = "/judging/";
const SUSPICIONS: &str = "/judging/suspicions/";
const SECONDS: &str = "/judging/seconds/";
const OBJECTIONS: &str = "/judging/objections/";
const VERDICTS: &str = "/judging/verdicts/";

/// That an incarnation of a node is over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// Of the node's incarnations this one and all before.
    pub epoch: u64,
    pub since_s: u64,
    /// Who had heard nothing of it.
    pub accusers: BTreeSet<String>,
}

pub fn verdict_key(node: &str) -> String {
    format!("{VERDICTS}{node}")
}

fn suspicion_key(node: &str, accuser: &str) -> String {
    format!("{SUSPICIONS}{node}/{accuser}")
}

fn second_key(node: &str, accuser: &str) -> String {
    format!("{SECONDS}{node}/{accuser}")
}

fn objection_key(node: &str) -> String {
    format!("{OBJECTIONS}{node}")
}
