//! What would become other if containers were as they are described: asked for before it is done.

use serde::{Deserialize, Serialize};

use crate::dc::{DcChange, DcSpec};
use crate::error::ErrorBody;
use crate::service::ServiceSpec;

/// Containers as they are to be. Others stay as they are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    pub dcs: Vec<DcSpec>,
    /// They run.
    #[serde(default = "yes")]
    pub running: bool,
}

fn yes() -> bool {
    true
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApplyPlan {
    /// In the order in which they were described.
    pub dcs: Vec<DcPlan>,
}

/// What is to be done about one container; nothing when it is as it was described.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DcPlan {
    pub dc: String,
    /// Of the container that was compared; absent: there is none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// One after the other; each is a request of the API.
    pub steps: Vec<PlanStep>,
    /// Why it cannot be so. Then nothing of it should be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<ErrorBody>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanStep {
    /// For people, a line each.
    pub what: Vec<String>,
    #[serde(flatten)]
    pub request: PlanRequest,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum PlanRequest {
    DcCreate {
        spec: Box<DcSpec>,
        start: bool,
    },
    DcNodeAdd {
        node: String,
    },
    DcChange {
        change: Box<DcChange>,
    },
    /// `replaced`: it is added again at once, so what comes after it stays.
    ServiceRemove {
        service: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replaced: bool,
    },
    ServiceAdd {
        service: Box<ServiceSpec>,
    },
    DcNodeRemove {
        node: String,
    },
    DcStart,
}
