//! What the file tree of a container waits for, for people whose programs wait for it.
//!
//! A program reads and writes through the gate of its node, which asks the file server, which asks the disk. Any of the
//! nodes and links between may be away; nothing fails then, everything waits.

use std::collections::{BTreeMap, BTreeSet};

use mgmt_api::{ServerKind, ServerState};

use super::{Api, blocking, nodes};
use crate::context::Context;
use crate::records::{self, DcView, Desired, NodeHealth};

/// What is known of the nodes.
pub struct Sight {
    alive: BTreeMap<String, NodeHealth>,
    here: String,
    unreachable: BTreeSet<String>,
    now_s: u64,
}

impl Sight {
    pub fn of(context: &Context) -> Result<Sight, cluster::EngineError> {
        Ok(Sight {
            alive: nodes::alive(context)?,
            here: context.config.node.clone(),
            unreachable: nodes::unreachable(context),
            now_s: records::now_s(),
        })
    }

    /// Why nothing gets from one node to the other. Both know the link between; this node knows its own best.
    fn cut(&self, from: &str, to: &str) -> Option<String> {
        if from == to {
            return None;
        }
        if !self.alive.contains_key(to) {
            return Some(format!("node {to} is down"));
        }
        let says_cut = |node: &str, other: &str| match node == self.here {
            true => self.unreachable.contains(other),
            false => self.alive.get(node).is_some_and(|health| health.unreachable.contains_key(other)),
        };
        if !says_cut(from, to) && !says_cut(to, from) {
            return None;
        }
        let began = |node: &str, other: &str| *self.alive.get(node)?.unreachable.get(other)?;
        let since = began(from, to).into_iter().chain(began(to, from)).min();
        let time = since.map(|since_s| format!(" for {} s", self.now_s.saturating_sub(since_s))).unwrap_or_default();
        Some(format!("there is no link between {from} and {to}{time}"))
    }

    /// Why the tree of a container does not answer on a node. None: nothing is known that would keep it.
    pub fn tree_waits(&self, view: &DcView, node: &str) -> Option<String> {
        if view.record.desired != Desired::Running {
            return None;
        }
        let of = |kind| view.record.placement.first(&kind).map(|instance| instance.node.as_str());
        let (server, disk) = (of(ServerKind::FS)?, of(ServerKind::DISK)?);
        let starting = || {
            let parts = [(server, ServerKind::FS, "the file server"), (disk, ServerKind::DISK, "the disk")];
            parts.into_iter().find_map(|(place, kind, name)| {
                let servers = &view.shares.get(place)?.share.servers;
                let resting = servers.iter().any(|one| one.kind == kind && one.state == ServerState::Resting);
                resting.then(|| (place, format!("{name} on {place} ended and starts again")))
            })
        };
        let cut = self.cut(node, server).map(|why| (server, why));
        let (place, why) = cut.or_else(|| self.cut(server, disk).map(|why| (disk, why))).or_else(starting)?;
        Some(format!("the tree of '{}' waits for {place}: {why}", view.record.spec.name))
    }
}

impl Api {
    /// What people should know before they wait, by node of the container.
    pub async fn notes(self: &std::sync::Arc<Self>, view: &DcView, nodes: &[String]) -> Vec<String> {
        let (api, view, nodes) = (std::sync::Arc::clone(self), view.clone(), nodes.to_vec());
        let found = blocking(move || {
            let sight = Sight::of(&api.context)?;
            let is_there = |node: &&String| sight.alive.contains_key(*node);
            let waits = |node: &String| Some(format!("on {node} {}", sight.tree_waits(&view, node)?));
            Ok(nodes.iter().filter(is_there).filter_map(waits).collect())
        });
        let found: Vec<String> = found.await.unwrap_or_default();
        super::health::engine_away(&self.context).into_iter().chain(found).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> DcView {
        let record = serde_json::json!({
            "id": 1, "desired": { "kind": "running" }, "generation": 1, "created_s": 0, "spec": {
                "name": "shop", "nodes": ["n1", "n2", "n3"],
                "servers": [{"kind": "fs", "node": "n2"}], "disks": [{"name": "root", "node": "n3", "bytes": 4096}],
            },
        });
        let record = serde_json::from_value(record).unwrap();
        DcView { record, modified: cluster::Revision(0), shares: BTreeMap::new() }
    }

    /// As n1 sees it: who lives, and who says of whom that there is no link.
    fn sight(alive: &[&str], cut: &[(&str, &str)]) -> Sight {
        let unreachable = |node: &str| -> BTreeMap<String, Option<u64>> {
            cut.iter().filter(|(from, _)| *from == node).map(|(_, to)| ((*to).to_owned(), None)).collect()
        };
        let health = |node: &&str| {
            let health = NodeHealth { unreachable: unreachable(node), ..NodeHealth::default() };
            ((*node).to_owned(), health)
        };
        Sight {
            alive: alive.iter().map(health).collect(),
            here: "n1".to_owned(),
            unreachable: unreachable("n1").into_keys().collect(),
            now_s: 100,
        }
    }

    #[test]
    fn tree_waits_for_what_is_away_between_a_node_and_the_disk() {
        let all = ["n1", "n2", "n3"];
        let waits = |sight: Sight, node: &str| sight.tree_waits(&view(), node);
        assert_eq!(waits(sight(&all, &[]), "n1"), None);
        let cut = "the tree of 'shop' waits for n2: there is no link between n1 and n2";
        assert_eq!(waits(sight(&all, &[("n1", "n2")]), "n1").as_deref(), Some(cut));
        assert_eq!(waits(sight(&all, &[("n1", "n2")]), "n2"), None, "who is beside the server does not wait");
        assert_eq!(waits(sight(&all, &[("n2", "n3")]), "n1"), waits(sight(&all, &[("n3", "n2")]), "n1"));
        let far = "the tree of 'shop' waits for n3: there is no link between n2 and n3";
        assert_eq!(waits(sight(&all, &[("n3", "n2")]), "n1").as_deref(), Some(far));
        let down = "the tree of 'shop' waits for n2: node n2 is down";
        assert_eq!(waits(sight(&["n1", "n3"], &[]), "n3").as_deref(), Some(down));
    }

    #[test]
    fn note_tells_for_how_long_a_link_is_gone_where_a_node_saw_it_go() {
        let mut sight = sight(&["n1", "n2", "n3"], &[("n2", "n3"), ("n3", "n2")]);
        sight.alive.get_mut("n3").unwrap().unreachable.insert("n2".to_owned(), Some(88));
        let note = "the tree of 'shop' waits for n3: there is no link between n2 and n3 for 12 s";
        assert_eq!(sight.tree_waits(&view(), "n1").as_deref(), Some(note));
    }

    #[test]
    fn tree_of_a_container_that_is_not_wanted_waits_for_nothing() {
        let mut view = view();
        view.record.desired = Desired::Stopped { grace_ms: 0 };
        assert_eq!(sight(&["n1"], &[]).tree_waits(&view, "n1"), None);
    }
}
