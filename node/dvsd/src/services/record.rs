//! What is kept of services in the engine.
//!
//! | key | value | who writes it |
//! |---|---|---|
//! | `/services/DCID/NAME` | [`ServiceRecord`] | any daemon that is asked; the placer |
//! | `/services/DCID/NAME/told/INDEX` | [`Told`] | worker of the container on the instance's node |
//! | `/epochs/DCID/services` | number of the last one that was made | who makes one |
//! | `/services/DCID/NAME/over/INDEX/NODE` | number: the highest epoch that is over there | likewise |

use std::collections::BTreeMap;

use cluster::{EngineError, Lookup, Revision};
use mgmt_api::{ServiceSpec, ServiceState};
use serde::{Deserialize, Serialize};
use service_core::record::{AskedFor, InstanceRecord, PlacementRecord, Staying, ToldState};

use crate::records::decode;

pub const SERVICES: &str = "/services/";

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServiceRecord {
    pub spec: ServiceSpec,
    pub asked: Asked,
    /// It goes as soon as nothing of it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_removed: bool,
    pub instances: Vec<StoredInstance>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Asked {
    /// How often somebody asked for a start.
    Runs {
        times: u64,
    },
    Stopped {
        times: u64,
    },
}

impl Asked {
    pub fn times(self) -> u64 {
        let (Asked::Runs { times } | Asked::Stopped { times }) = self;
        times
    }

    pub fn wanted(self) -> AskedFor {
        match self {
            Asked::Runs { times } => AskedFor::Runs { times },
            Asked::Stopped { .. } => AskedFor::Stopped,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoredInstance {
    pub epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<StoredPlacement>,
    /// Where the next placement is to be, or not to be, because somebody moved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredPlacement {
    pub node: String,
    pub incarnation: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves: bool,
    /// In words.
    pub why: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moved {
    To(String),
    AwayFrom(String),
}

impl StoredInstance {
    pub fn decided(&self) -> InstanceRecord {
        let placement = self.placement.as_ref().map(|placement| PlacementRecord {
            node: placement.node.clone(),
            incarnation: placement.incarnation,
            stay: if placement.leaves { Staying::Leaves } else { Staying::Stays },
        });
        InstanceRecord { epoch: self.epoch, placement }
    }

    /// What follows from it; `why` of a placement that is new.
    pub fn follow(&mut self, next: InstanceRecord, why: &str) {
        let is_same = self.epoch == next.epoch;
        if !is_same {
            self.moved = None;
        }
        let kept = self.placement.as_ref().filter(|_| is_same).map(|placement| placement.why.clone());
        self.placement = next.placement.map(|placement| StoredPlacement {
            node: placement.node,
            incarnation: placement.incarnation,
            leaves: placement.stay == Staying::Leaves,
            why: kept.unwrap_or_else(|| why.to_owned()),
        });
        self.epoch = next.epoch;
    }
}

/// What a node says of an instance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Told {
    pub epoch: u64,
    /// Which start of that epoch.
    pub number: u64,
    /// The ask that it answers.
    pub times: u64,
    pub state: ServiceState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// Of the last start; 0: there was none.
    #[serde(default)]
    pub pid: u32,
    pub since_s: u64,
    pub node: String,
    /// Why its program could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Told {
    pub fn state(&self) -> ToldState {
        ToldState { epoch: self.epoch, state: self.state, times: self.times }
    }
}

pub fn prefix(dc: u32) -> String {
    format!("{SERVICES}{dc}/")
}

pub fn service_key(dc: u32, name: &str) -> String {
    format!("{SERVICES}{dc}/{name}")
}

pub fn told_key(dc: u32, name: &str, index: usize) -> String {
    format!("{SERVICES}{dc}/{name}/told/{index}")
}

pub fn over_key(dc: u32, name: &str, index: usize, node: &str) -> String {
    format!("{SERVICES}{dc}/{name}/over/{index}/{node}")
}

/// All that is known of a service.
#[derive(Clone, Debug)]
pub struct ServiceView {
    pub record: ServiceRecord,
    pub modified: Revision,
    /// As it lies in the engine, of that revision.
    pub written: ServiceRecord,
    pub told: BTreeMap<usize, Told>,
    pub over: BTreeMap<(usize, String), u64>,
    /// Keys of reports, for whoever removes it.
    pub keys: Vec<String>,
}

impl ServiceView {
    /// The report of an instance's present epoch.
    /// Nodes on which instances of it run, each as often as it has some.
    pub fn standing(&self) -> Vec<String> {
        let runs = |state| matches!(state, ServiceState::Running | ServiceState::Healthy | ServiceState::Unhealthy);
        let placed = |index: usize| Some(self.record.instances.get(index)?.placement.as_ref()?.node.clone());
        let all =
            (0..self.record.instances.len()).filter(|index| self.told(*index).is_some_and(|told| runs(told.state)));
        all.filter_map(placed).collect()
    }

    pub fn told(&self, index: usize) -> Option<&Told> {
        let epoch = self.record.instances.get(index)?.epoch;
        self.told.get(&index).filter(|told| told.epoch == epoch)
    }
}

/// The container of which a key says something.
pub fn dc_of(key: &str) -> Option<u32> {
    key.strip_prefix(SERVICES)?.split_once('/')?.0.parse().ok()
}

/// Of a container, by name.
///
/// # Errors
/// A look-up failed, or what is there cannot be understood.
pub fn views(lookup: &dyn Lookup, dc: u32) -> Result<BTreeMap<String, ServiceView>, EngineError> {
    let prefix = prefix(dc);
    let mut views = BTreeMap::<String, ServiceView>::new();
    // A record comes before its reports in the order of keys.
    for entry in lookup.list(&prefix)?.entries {
        let Some(rest) = entry.key.strip_prefix(&prefix) else { continue };
        let parts: Vec<&str> = rest.split('/').collect();
        let name = parts.first().copied().unwrap_or_default();
        if let [name] = parts.as_slice() {
            let record: ServiceRecord = decode(&entry)?;
            let (told, over, keys) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
            let written = record.clone();
            let view = ServiceView { record, modified: entry.modified, written, told, over, keys };
            views.insert((*name).to_owned(), view);
            continue;
        }
        let Some(view) = views.get_mut(name) else { continue };
        match parts.as_slice() {
            [_, "told", index] => {
                if let Ok(index) = index.parse() {
                    view.told.insert(index, decode(&entry)?);
                }
            }
            [_, "over", index, node] => {
                if let Ok(index) = index.parse() {
                    view.over.insert((index, (*node).to_owned()), decode(&entry)?);
                }
            }
            _ => (),
        }
        view.keys.push(entry.key);
    }
    Ok(views)
}

/// The containers that have services, by number.
pub fn containers(lookup: &dyn Lookup) -> Result<Vec<u32>, EngineError> {
    let mut numbers: Vec<u32> = Vec::new();
    for entry in lookup.list(SERVICES)?.entries {
        let number = dc_of(&entry.key);
        numbers.extend(number.filter(|number| numbers.last() != Some(number)));
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// Services of a container are numbered from 1, for ever: the epochs of one are larger than those of any before it, of
/// which keepers may know under the same name.
pub fn numbers_key(dc: u32) -> String {
    format!("/epochs/{dc}/services")
}

/// Of those that are made with their container.
pub const FIRST_NUMBER: u64 = 1;
/// Placements of an instance before the next service's begin.
const EPOCH_BITS: u32 = 24;

/// A new one, with its number.
pub fn fresh(spec: ServiceSpec, number: u64) -> ServiceRecord {
    let instance = StoredInstance { epoch: number << EPOCH_BITS, ..StoredInstance::default() };
    let instances = vec![instance; spec.instances as usize];
    ServiceRecord { spec, asked: Asked::Runs { times: 1 }, is_removed: false, instances }
}
