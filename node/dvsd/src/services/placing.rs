//! Where instances stand: written by the living node with the lowest number. That saves work and nothing else, since
//! every change compares the record that it came from.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cluster::{Compare, Engine, EngineError, Lookup, OPS_PER_TRANSACTION_MAX, Op, Outcome};
use mgmt_api::{DcPhase, ServiceSpec};
use service_core::choose::{Candidate, ChosenWhy, NodeStanding, Nowhere, choose};
use service_core::order;
use service_core::record::{self, NextPlace, Wish};
use service_core::tenure::{Over, PlacerView, over, over_from};

use super::record::{Asked, Moved, ServiceView, service_key};
use crate::context::Context;
use crate::records::{self, DcView, Desired, NODE_WISHES, NodeRecord, NodeWish, encode};
use crate::succession::NodeSight;

/// What a placer knows of nodes.
pub struct Sight {
    members: BTreeMap<String, NodeRecord>,
    fenced: Vec<String>,
    alive: Vec<String>,
    cordoned: Vec<String>,
    loads: BTreeMap<String, u32>,
    /// Containers of which some nodes are still coming.
    coming: BTreeSet<u32>,
    views: BTreeMap<String, PlacerView>,
}

/// Between the first and the last node of a container that starts: who decides before would put everything on the
/// first.
const ARRIVAL: Duration = Duration::from_secs(5);

/// As long as nodes are waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What a placer remembers.
#[derive(Default)]
pub struct Seen {
    /// Since when it is known that incarnations are over.
    verdicts: BTreeMap<String, (u64, Instant)>,
    /// Since when a container is to run as it does now, by its generation.
    starts: BTreeMap<u32, (u64, Instant)>,
}

impl Seen {
    fn look(&mut self, verdicts: &BTreeMap<String, u64>, now: Instant) {
        for (node, over) in verdicts {
            let seen = self.verdicts.entry(node.clone()).or_insert((*over, now));
            if seen.0 < *over {
                *seen = (*over, now);
            }
        }
    }

    /// Whether nodes that are there may still bring a container up.
    fn is_coming(&mut self, dc: &DcView, is_there: impl Fn(&str) -> bool, now: Instant) -> bool {
        let (id, generation) = (dc.record.id, dc.record.generation);
        let start = self.starts.entry(id).or_insert((generation, now));
        if start.0 != generation {
            *start = (generation, now);
        }
        let phase = |node: &String| {
            let share = dc.shares.get(node).filter(|share| share.generation == generation);
            share.map(|share| share.share.phase)
        };
        let mut nodes = dc.record.spec.nodes.iter().filter(|node| is_there(node));
        let is_young = now.saturating_duration_since(start.1) < ARRIVAL;
        is_young && nodes.any(|node| matches!(phase(node), None | Some(DcPhase::Starting)))
    }
}

impl Sight {
    pub fn of(context: &Context, seen: &mut Seen, containers: &[DcView], now: Instant) -> Result<Sight, EngineError> {
        let members = context.members.read().clone();
        let verdicts = context.verdicts.read().clone();
        seen.look(&verdicts, now);
        let hearing = |node: &str, judged: u64| {
            let court = context.court.lock();
            let ended = court.as_ref().and_then(|court| court.ended_hearing(node));
            ended.filter(|(epoch, _)| *epoch == judged).map(|(_, began)| began)
        };
        let views: BTreeMap<String, PlacerView> = seen
            .verdicts
            .iter()
            .map(|(node, (judged, known))| {
                let view =
                    PlacerView { verdict: Some((*judged, *known)), hearing: hearing(node, *judged), said_over: 0 };
                (node.clone(), view)
            })
            .collect();
        let mirror = &*context.answers.mirror;
        let wishes: BTreeMap<String, NodeWish> = records::by_name(NODE_WISHES, &mirror.list(NODE_WISHES)?)?;
        let is_busy = |wish: &NodeWish| wish.cordoned || wish.leaving;
        let mut sight = Sight {
            coming: BTreeSet::new(),
            fenced: members.values().filter(|member| context.is_fenced(member)).map(|it| it.name.clone()).collect(),
            alive: context.observed.lock().alive.iter().cloned().collect(),
            cordoned: wishes.into_iter().filter(|(_, wish)| is_busy(wish)).map(|(node, _)| node).collect(),
            loads: super::load::told(mirror)?,
            views,
            members,
        };
        let coming = containers.iter().filter(|dc| seen.is_coming(dc, |node| sight.is_there(node), now));
        sight.coming = coming.map(|dc| dc.record.id).collect();
        Ok(sight)
    }

    /// Whether this is the node that places.
    pub fn places(&self, own: &str) -> bool {
        let living = self.members.values().filter(|member| self.is_there(&member.name));
        living.min_by_key(|member| member.id).is_some_and(|first| first.name == own)
    }

    /// Alive, and not judged.
    pub fn is_there(&self, node: &str) -> bool {
        self.alive.iter().any(|alive| alive == node) && !self.fenced.iter().any(|fenced| fenced == node)
    }

    /// Whether it can be given something of this container now.
    pub fn standing(&self, dc: &DcView, node: &str) -> NodeStanding {
        let knows = self.members.get(node).is_some_and(|member| member.services);
        let share = dc.shares.get(node).filter(|share| share.generation == dc.record.generation);
        let runs = share.is_some_and(|share| share.share.phase == DcPhase::Running);
        if !knows || !runs || !self.is_there(node) {
            NodeStanding::Away
        } else if self.cordoned.iter().any(|cordoned| cordoned == node) {
            NodeStanding::Cordoned
        } else {
            NodeStanding::Ready
        }
    }

    fn candidates(
        &self,
        dc: &DcView,
        services: &BTreeMap<String, ServiceView>,
        service: &ServiceSpec,
        moved: Option<&Moved>,
    ) -> Vec<Candidate> {
        let count = |name: Option<&str>, node: &str| -> u32 {
            let of = services.iter().filter(|(other, _)| name.is_none_or(|name| name == **other));
            let placements = of.flat_map(|(_, view)| &view.record.instances).filter_map(|it| it.placement.as_ref());
            placements.filter(|placement| placement.node == node && !placement.leaves).count() as u32
        };
        let candidate = |node: &String| {
            let standing = match moved {
                Some(Moved::AwayFrom(left)) if left == node => NodeStanding::Away,
                _ => self.standing(dc, node),
            };
            Candidate {
                name: node.clone(),
                standing,
                load: self.loads.get(node).copied(),
                own: count(Some(&service.name), node),
                all: count(None, node),
                neighbours: service.near.as_ref().map_or(0, |near| count(Some(near), node)),
            }
        };
        dc.record.spec.nodes.iter().map(candidate).collect()
    }

    /// Where an instance would be placed now.
    pub fn choose(
        &self,
        dc: &DcView,
        services: &BTreeMap<String, ServiceView>,
        service: &ServiceSpec,
        moved: Option<&Moved>,
    ) -> Result<(NextPlace, ChosenWhy), Nowhere> {
        let mut candidates = self.candidates(dc, services, service, moved);
        if let Some(Moved::AwayFrom(left)) = moved
            && candidates.iter().all(|it| it.standing != NodeStanding::Ready)
            && let Some(there) = candidates.iter_mut().find(|it| it.name == *left)
        {
            // There is nowhere else.
            there.standing = self.standing(dc, left);
        }
        let chosen = match moved {
            Some(Moved::To(node)) if self.standing(dc, node) == NodeStanding::Ready => {
                candidates.iter().position(|it| it.name == *node).map(|at| (at, ChosenWhy::Asked))
            }
            _ => None,
        };
        let (at, why) = chosen.map_or_else(|| choose(service, &candidates), Ok)?;
        let node = candidates.get(at).map(|it| it.name.clone()).ok_or(Nowhere::NoNode)?;
        let incarnation = self.members.get(&node).map(|member| member.epoch).ok_or(Nowhere::NoNode)?;
        Ok((NextPlace { node, incarnation }, why))
    }
}

impl NodeSight for Sight {
    fn is_lost(&self, node: &str) -> bool {
        self.fenced.iter().any(|fenced| fenced == node)
    }

    fn is_there(&self, node: &str) -> bool {
        Sight::is_there(self, node)
    }
}

/// Decides what follows for all services of a container, and writes it. Gives when to look again, if that is known.
pub fn place_all(
    engine: &dyn Engine,
    sight: &Sight,
    dc: &DcView,
    services: &mut BTreeMap<String, ServiceView>,
    now: Instant,
) -> Result<Option<Instant>, EngineError> {
    let specs: Vec<ServiceSpec> = services.values().map(|view| view.record.spec.clone()).collect();
    // What stands near another one is placed after it.
    let names: Vec<String> = match order::order(&specs) {
        Ok(names) => names.into_iter().map(str::to_owned).collect(),
        Err(_) => services.keys().cloned().collect(),
    };
    // Nothing tells when they are not waited for any more.
    let mut again = sight.coming.contains(&dc.record.id).then(|| now + LOOK_AGAIN);
    for name in names {
        let Some(view) = services.get(&name) else { continue };
        if view.record.is_removed && view.record.instances.iter().all(|it| it.placement.is_none()) {
            forget(engine, dc.record.id, &name, view)?;
            services.remove(&name);
            continue;
        }
        let mut record = view.record.clone();
        for index in 0..record.instances.len() {
            let due = place_one(sight, dc, services, &name, index, &mut record, now);
            again = again.into_iter().chain(due).min();
            // The next one counts this one.
            if let Some(view) = services.get_mut(&name) {
                view.record = record.clone();
            }
        }
        let Some(view) = services.get_mut(&name) else { continue };
        if view.written == record {
            continue;
        }
        let key = service_key(dc.record.id, &name);
        let unchanged = Compare::Modified { key: key.clone(), at: view.modified };
        match engine.transact(&[unchanged], &[Op::put(&*key, encode(&record))])? {
            Outcome::Done(modified) => {
                tracing::info!(dc = dc.record.spec.name, service = name, "placed");
                (view.modified, view.written) = (modified, record);
            }
            // It changed meanwhile: news come.
            Outcome::Conflict(_) => (),
        }
    }
    Ok(again)
}

fn place_one(
    sight: &Sight,
    dc: &DcView,
    services: &BTreeMap<String, ServiceView>,
    name: &str,
    index: usize,
    record: &mut super::record::ServiceRecord,
    now: Instant,
) -> Option<Instant> {
    let view = services.get(name)?;
    let instance = record.instances.get(index)?.clone();
    let decided = instance.decided();
    let asked = if record.is_removed { Asked::Stopped { times: 0 } } else { record.asked };
    let is_up = dc.record.desired == Desired::Running;
    let wish = record::wish(&decided, asked.wanted(), view.told(index).map(super::record::Told::state));
    let mut due = None;
    let is_over = match &instance.placement {
        None => Over::No,
        Some(placement) => {
            let said_over = view.over.get(&(index, placement.node.clone())).copied().unwrap_or(0);
            let of_node = sight.views.get(&placement.node).copied().unwrap_or_default();
            let of_node = PlacerView { said_over, ..of_node };
            due = over_from(placement.incarnation, &of_node).filter(|at| *at > now);
            over(instance.epoch, placement.incarnation, &of_node, now)
        }
    };
    // Nothing is begun in a container that does not run; what stands there stays until it does.
    let chosen = match wish {
        Wish::Runs if is_up && instance.placement.is_none() && !sight.coming.contains(&dc.record.id) => {
            sight.choose(dc, services, &record.spec, instance.moved.as_ref()).ok()
        }
        _ => None,
    };
    let next = record::next(&decided, wish, is_over, chosen.as_ref().map(|(place, _)| place));
    let leaves_container = instance.placement.as_ref().is_some_and(|it| !dc.record.spec.nodes.contains(&it.node));
    let next = next.or_else(|| leaves_container.then(|| record::move_away(&decided)).flatten());
    if let Some(next) = next {
        let why = chosen.map(|(_, why)| why.to_string()).unwrap_or_default();
        if let Some(instance) = record.instances.get_mut(index) {
            instance.follow(next, &why);
        }
        // It may go on from there at once.
        due = Some(now);
    }
    due
}

fn forget(engine: &dyn Engine, dc: u32, name: &str, view: &ServiceView) -> Result<(), EngineError> {
    let unchanged = Compare::Modified { key: service_key(dc, name), at: view.modified };
    let reports: Vec<Op> = view.keys.iter().map(|key| Op::delete(&**key)).collect();
    for some in reports.chunks(OPS_PER_TRANSACTION_MAX) {
        if let Outcome::Conflict(_) = engine.transact(std::slice::from_ref(&unchanged), some)? {
            return Ok(());
        }
    }
    engine.transact(&[unchanged], &[Op::delete(service_key(dc, name))]).map(drop)
}
