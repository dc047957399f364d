//! What becomes other in the cluster, as it happens: containers, their nodes, services, nodes.
//!
//! Nothing is kept, and nobody pays for it who does not listen: while somebody does, what there is is compared with
//! what there was, each time when something changed. So what comes and goes between two looks is not told, and nothing
//! is told that one could not have seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use mgmt_api::{Dc, DcSpec, ErrorKind, EventInfo, EventSubject, Node, ServiceInfo, word};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::failure::{Failure, failure, no_such_dc};
use super::following::Following;
use super::gate::Caller;
use super::inhabitants::{container_of, without_reasons, without_the_node};
use super::{Api, blocking, dcs, nodes, services};
use crate::records::{self, DcView};

/// Events on their way to one who listens, in answers to single changes.
const FOLLOWED_MAX: usize = 16;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// A node that falls silent changes nothing in the engine at first.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
pub struct EventQuery {
    /// Of one container alone.
    dc: Option<String>,
}

pub async fn follow(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<EventQuery>,
) -> Result<Response, Failure> {
    if let (Some(own), Some(other)) = (container_of(&caller), &query.dc)
        && other != own
    {
        return Err(no_such_dc(other));
    }
    let (mut only, place) = match (&caller.inhabitant, query.dc) {
        (Some(place), _) => {
            let permit = place.follower().ok_or_else(too_many)?;
            (Some(Only::new(place.dc, &place.name, Listener::Inside)), Some(permit))
        }
        (None, Some(name)) => (Some(Only::new(api.dc(&name).await?.record.id, &name, Listener::Outside)), None),
        (None, None) => (None, None),
    };
    let mut changes = api.context.changes.subscribe();
    let mut seen = Seen::of(&api, only.as_mut()).await?;
    let (sender, receiver) = mpsc::channel::<Bytes>(FOLLOWED_MAX);
    tokio::spawn(async move {
        let _place = place;
        loop {
            tokio::select! {
                () = sender.closed() => return,
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK_AGAIN) => (),
            }
            // The engine may be away; then what there was is all that is known.
            let Ok(now) = Seen::of(&api, only.as_mut()).await else { continue };
            let lines: Vec<u8> = seen.differences(&now, records::now_ms()).iter().flat_map(line).collect();
            seen = now;
            if !lines.is_empty() && sender.send(lines.into()).await.is_err() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::new(Following(receiver))).into_response())
}

fn too_many() -> Failure {
    failure(
        ErrorKind::TooMany,
        "too many programs of the container follow its events",
        "again, when one of them has ended",
    )
}

fn line(event: &EventInfo) -> Vec<u8> {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line
}

/// A container that alone is told of: also when it gets another name, and the next one of its name when it is gone.
/// Programs of a container are told of that one alone. It keeps its name while it has programs.
struct Only {
    id: u32,
    name: String,
    listener: Listener,
    /// It was looked for among all.
    is_gone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Listener {
    Outside,
    /// A program of the container.
    Inside,
}

impl Only {
    fn new(id: u32, name: &str, listener: Listener) -> Only {
        Only { id, name: name.to_owned(), listener, is_gone: false }
    }

    async fn find(&mut self, api: &Arc<Api>) -> Result<Option<DcView>, Failure> {
        let (also, name) = (Arc::clone(api), self.name.clone());
        let named = blocking(move || Ok(records::dc_view(&also.context.answers, &name)?)).await?;
        let all = if self.needs_all(named.as_ref()) { api.dcs().await? } else { BTreeMap::new() };
        Ok(self.choose(named, all))
    }

    /// Whether it may have another name by now. Once it is gone nobody looks for it among all again.
    fn needs_all(&self, named: Option<&DcView>) -> bool {
        self.listener == Listener::Outside && !self.is_gone && named.is_none_or(|view| view.record.id != self.id)
    }

    /// `named`: the container of its name.
    fn choose(&mut self, named: Option<DcView>, all: BTreeMap<String, DcView>) -> Option<DcView> {
        let is_it = |view: &DcView| view.record.id == self.id;
        let found = match named {
            Some(named) if is_it(&named) => Some(named),
            _ if self.listener == Listener::Inside => None,
            named => all.into_values().find(is_it).or(named),
        };
        self.is_gone = found.is_none();
        if let Some(found) = &found {
            (self.id, self.name) = (found.record.id, found.record.spec.name.clone());
        }
        found
    }
}

/// All that events are told of.
#[derive(Clone, Default, Debug)]
struct Seen {
    /// With its services.
    dcs: BTreeMap<String, (Dc, Vec<ServiceInfo>)>,
    nodes: BTreeMap<String, Node>,
}

impl Seen {
    async fn of(api: &Arc<Api>, only: Option<&mut Only>) -> Result<Seen, Failure> {
        let mut seen = Seen::default();
        if let Some(only) = only {
            let Some(view) = only.find(api).await? else { return Ok(seen) };
            let (found, name) = (api.describe(&view), only.name.clone());
            let services = services::of(api, view).await.unwrap_or_default();
            let told = match only.listener {
                Listener::Outside => (found, services),
                Listener::Inside => (without_the_node(found), without_reasons(services)),
            };
            seen.dcs.insert(name, told);
            return Ok(seen);
        }
        for found in dcs::all(api).await? {
            let name = found.spec.name.clone();
            // It may be deleted at this moment.
            let services = match api.dc(&name).await {
                Ok(view) => services::of(api, view).await.unwrap_or_default(),
                Err(_) => Vec::new(),
            };
            seen.dcs.insert(name, (found, services));
        }
        let nodes = nodes::list(State(Arc::clone(api))).await?.0;
        seen.nodes = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        Ok(seen)
    }

    fn differences(&self, now: &Seen, at_ms: u64) -> Vec<EventInfo> {
        let mut told = Told { at_ms, events: Vec::new() };
        for (name, node) in &now.nodes {
            told.node(self.nodes.get(name), node);
        }
        for name in self.nodes.keys().filter(|name| !now.nodes.contains_key(*name)) {
            told.one(EventSubject::Node, name.clone(), "removed");
        }
        // A name may be another one's by now, and a container may have another name.
        for (name, _) in self.dcs.iter().filter(|(_, (dc, _))| now.by_id(dc.id).is_none()) {
            told.one(EventSubject::Container, name.clone(), "deleted");
        }
        for (name, (dc, _)) in &now.dcs {
            if let Some((before, _)) = self.by_id(dc.id).filter(|(before, _)| before.spec.name != *name) {
                told.one(EventSubject::Container, name.clone(), "renamed");
                told.with(|event| event.was = Some(before.spec.name.clone()));
            }
        }
        for (name, (dc, services)) in &now.dcs {
            let before = self.by_id(dc.id);
            told.dc(before.map(|(dc, _)| dc), dc);
            told.services(name, before.map_or(&[], |(_, services)| services), services);
        }
        told.events
    }

    fn by_id(&self, id: u32) -> Option<&(Dc, Vec<ServiceInfo>)> {
        self.dcs.values().find(|(dc, _)| dc.id == id)
    }
}

/// Events of one look.
struct Told {
    at_ms: u64,
    events: Vec<EventInfo>,
}

impl Told {
    fn one(&mut self, subject: EventSubject, name: String, what: &str) {
        let (at_ms, what) = (self.at_ms, what.to_owned());
        let event = EventInfo { at_ms, subject, name, what, was: None, node: None, pid: None, exit: None, why: None };
        self.events.push(event);
    }

    /// With more about the last one.
    fn with(&mut self, more: impl FnOnce(&mut EventInfo)) {
        if let Some(event) = self.events.last_mut() {
            more(event);
        }
    }

    fn node(&mut self, before: Option<&Node>, now: &Node) {
        let name = || now.name.clone();
        let Some(before) = before else {
            self.one(EventSubject::Node, name(), "joined");
            return self.with(|event| event.why = Some(word(&now.state)));
        };
        if before.state != now.state {
            self.one(EventSubject::Node, name(), &word(&now.state));
            self.with(|event| event.was = Some(word(&before.state)));
        }
        if before.cordoned != now.cordoned {
            self.one(EventSubject::Node, name(), if now.cordoned { "cordoned" } else { "uncordoned" });
        }
    }

    fn dc(&mut self, before: Option<&Dc>, now: &Dc) {
        let name = || now.spec.name.clone();
        match before {
            None => self.one(EventSubject::Container, name(), "created"),
            // Of another name it is told already.
            Some(before) if DcSpec { name: name(), ..before.spec.clone() } != now.spec => {
                self.one(EventSubject::Container, name(), "changed");
            }
            Some(_) => {}
        }
        if before.is_none_or(|before| before.phase != now.phase) {
            self.one(EventSubject::Container, name(), &word(&now.phase));
            let problem = now.shares.iter().flat_map(|share| &share.problems).next().cloned();
            self.with(|event| (event.was, event.why) = (before.map(|before| word(&before.phase)), problem));
        }
        if before.is_some_and(|before| before.paused != now.paused) {
            self.one(EventSubject::Container, name(), if now.paused { "paused" } else { "unpaused" });
        }
        for share in &now.shares {
            let was = before.and_then(|before| before.shares.iter().find(|one| one.node == share.node));
            // What all of it does is told above.
            if let Some(was) = was.filter(|was| was.phase != share.phase && share.phase != now.phase) {
                self.one(EventSubject::Share, format!("{}@{}", now.spec.name, share.node), &word(&share.phase));
                let (was, node) = (word(&was.phase), share.node.clone());
                let why = share.problems.first().cloned();
                self.with(|event| (event.was, event.node, event.why) = (Some(was), Some(node), why));
            }
        }
    }

    fn services(&mut self, dc: &str, before: &[ServiceInfo], now: &[ServiceInfo]) {
        for service in now {
            let was = before.iter().find(|one| one.spec.name == service.spec.name);
            for instance in &service.instances {
                let was = was.and_then(|one| one.instances.iter().find(|one| one.name == instance.name));
                let name = || format!("{dc}/{}", instance.name);
                let is_moved = was.is_some_and(|was| {
                    was.epoch != instance.epoch
                        && was.node.is_some()
                        && instance.node.is_some()
                        && was.node != instance.node
                });
                let is_again = was.is_some_and(|was| was.pid != instance.pid && instance.pid.is_some());
                let is_other = was.is_none_or(|was| was.state != instance.state);
                if is_moved {
                    self.one(EventSubject::Service, name(), "moved");
                    self.with(|event| {
                        event.was = was.and_then(|was| was.node.clone());
                        event.node.clone_from(&instance.node);
                        event.why = Some(instance.why.clone()).filter(|why| !why.is_empty());
                    });
                }
                if is_other || is_again {
                    self.one(EventSubject::Service, name(), &word(&instance.state));
                    self.with(|event| {
                        event.was = was.map(|was| word(&was.state));
                        event.node.clone_from(&instance.node);
                        (event.pid, event.exit, event.why) = (instance.pid, instance.exit, instance.problem.clone());
                    });
                }
            }
        }
        for gone in before.iter().filter(|gone| !now.iter().any(|one| one.spec.name == gone.spec.name)) {
            self.one(EventSubject::Service, format!("{dc}/{}", gone.spec.name), "removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dc(name: &str, id: u32, phase: &str, shares: &[(&str, &str)]) -> Dc {
        let shares: Vec<_> = shares
            .iter()
            .map(|(node, phase)| {
                json!({
                    "node": node, "phase": phase, "address": "10.1.0.1", "servers": [], "pid_base": 1,
                    "endpoints": { "start": 1, "end": 2 },
                })
            })
            .collect();
        let spec = json!({ "name": name, "nodes": ["n1", "n2"] });
        serde_json::from_value(json!({
            "id": id, "spec": spec, "phase": phase, "shares": shares, "generation": 1, "created_s": 0,
        }))
        .unwrap()
    }

    fn service(state: &str, node: &str, pid: u32, epoch: u64) -> ServiceInfo {
        let instance = json!({
            "name": "web/0", "state": state, "node": node, "pid": pid, "restarts": 0, "epoch": epoch,
        });
        let spec = json!({ "name": "web", "command": ["true"] });
        serde_json::from_value(json!({ "spec": spec, "is_wanted": true, "instances": [instance] })).unwrap()
    }

    fn seen(dcs: Vec<(Dc, Vec<ServiceInfo>)>) -> Seen {
        Seen { dcs: dcs.into_iter().map(|one| (one.0.spec.name.clone(), one)).collect(), nodes: BTreeMap::new() }
    }

    fn told(before: &Seen, now: &Seen) -> Vec<String> {
        let said = |event: EventInfo| {
            let was = event.was.map(|was| format!(" after {was}")).unwrap_or_default();
            format!("{} {}{was}", event.name, event.what)
        };
        before.differences(now, 0).into_iter().map(said).collect()
    }

    fn view(name: &str, id: u32) -> DcView {
        let record = serde_json::from_value(json!({
            "id": id, "desired": { "kind": "running" }, "generation": 1, "created_s": 0,
            "spec": { "name": name, "nodes": ["n1"] },
        }));
        DcView { record: record.unwrap(), modified: cluster::Revision(0), shares: BTreeMap::new() }
    }

    #[test]
    fn one_is_looked_for_among_all_when_its_name_is_anothers_and_never_for_who_is_inside() {
        let id = |found: Option<DcView>| found.map(|view| view.record.id);
        let all = || BTreeMap::from([("shop".to_owned(), view("shop", 2)), ("store".to_owned(), view("store", 1))]);
        let named = || Some(view("shop", 2));
        let mut outside = Only::new(1, "shop", Listener::Outside);
        assert!(!outside.needs_all(Some(&view("shop", 1))));
        assert!(outside.needs_all(named().as_ref()) && outside.needs_all(None));
        assert_eq!(id(outside.choose(named(), all())), Some(1));
        assert_eq!(outside.name, "store");
        assert_eq!(id(outside.choose(None, BTreeMap::new())), None);
        assert!(!outside.needs_all(None));
        // The next one of its name.
        assert_eq!(id(outside.choose(Some(view("store", 3)), BTreeMap::new())), Some(3));
        let mut inside = Only::new(1, "shop", Listener::Inside);
        assert_eq!(id(inside.choose(Some(view("shop", 1)), BTreeMap::new())), Some(1));
        assert!(!inside.needs_all(named().as_ref()));
        assert_eq!(id(inside.choose(named(), all())), None);
        assert_eq!((inside.id, &*inside.name), (1, "shop"));
    }

    #[test]
    fn container_comes_runs_and_goes() {
        let stopped = seen(vec![(dc("shop", 1, "stopped", &[]), vec![])]);
        let running = seen(vec![(dc("shop", 1, "running", &[("n1", "running"), ("n2", "running")]), vec![])]);
        assert_eq!(told(&Seen::default(), &stopped), ["shop created", "shop stopped"]);
        assert_eq!(told(&stopped, &running), ["shop running after stopped"]);
        assert!(told(&running, &running).is_empty());
        let half = seen(vec![(dc("shop", 1, "degraded", &[("n1", "running"), ("n2", "failed")]), vec![])]);
        assert_eq!(told(&running, &half), ["shop degraded after running", "shop@n2 failed after running"]);
        assert_eq!(told(&half, &Seen::default()), ["shop deleted"]);
        let other = seen(vec![(dc("shop", 2, "stopped", &[]), vec![])]);
        assert_eq!(told(&stopped, &other), ["shop deleted", "shop created", "shop stopped"]);
    }

    #[test]
    fn another_name_is_one_event_also_when_the_old_name_is_another_ones_at_once() {
        let one = |name, id| (dc(name, id, "stopped", &[]), vec![]);
        let (before, after) = (seen(vec![one("shop", 1)]), seen(vec![one("store", 1)]));
        assert_eq!(told(&before, &after), ["store renamed after shop"]);
        let taken = seen(vec![one("shop", 2), one("store", 1)]);
        assert_eq!(told(&before, &taken), ["store renamed after shop", "shop created", "shop stopped"]);
        // Two that change their names, and one whose name goes to another one while it goes.
        let swapped = (seen(vec![one("a", 1), one("b", 2)]), seen(vec![one("a", 2), one("b", 1)]));
        assert_eq!(told(&swapped.0, &swapped.1), ["a renamed after b", "b renamed after a"]);
        let inherited = (seen(vec![one("a", 1), one("b", 2)]), seen(vec![one("b", 1)]));
        assert_eq!(told(&inherited.0, &inherited.1), ["b deleted", "b renamed after a"]);
        let running = seen(vec![(dc("store", 1, "running", &[]), vec![service("running", "n1", 7, 1)])]);
        assert_eq!(
            told(&before, &running),
            ["store renamed after shop", "store running after stopped", "store/web/0 running"]
        );
    }

    #[test]
    fn service_moves_and_begins_again() {
        let with = |service| seen(vec![(dc("shop", 1, "running", &[]), vec![service])]);
        let first = with(service("running", "n1", 7, 1));
        assert_eq!(told(&with(service("starting", "n1", 7, 1)), &first), ["shop/web/0 running after starting"]);
        let again = with(service("running", "n1", 8, 1));
        assert_eq!(told(&first, &again), ["shop/web/0 running after running"]);
        let moved = with(service("starting", "n2", 8, 2));
        assert_eq!(told(&again, &moved), ["shop/web/0 moved after n1", "shop/web/0 starting after running"]);
        let none = seen(vec![(dc("shop", 1, "running", &[]), vec![])]);
        assert_eq!(told(&moved, &none), ["shop/web removed"]);
    }

    #[test]
    fn node_is_told_with_its_state() {
        let node = |state: &str, cordoned: bool| -> Node {
            serde_json::from_value(json!({
                "name": "n1", "id": 1, "state": state, "cordoned": cordoned, "address": "192.0.2.1", "proxy_port": 1,
                "api_port": 1, "epoch": 1, "cpus": 1, "memory_bytes": 1, "dcs": [],
            }))
            .unwrap()
        };
        let with = |node: Node| Seen { nodes: BTreeMap::from([("n1".to_owned(), node)]), ..Seen::default() };
        assert_eq!(told(&Seen::default(), &with(node("ready", false))), ["n1 joined"]);
        let down = with(node("down", true));
        assert_eq!(told(&with(node("ready", false)), &down), ["n1 down after ready", "n1 cordoned"]);
        assert_eq!(told(&down, &Seen::default()), ["n1 removed"]);
    }
}
