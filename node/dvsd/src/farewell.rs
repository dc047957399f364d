//! The end of a container's record, once no node has anything of it.
//!
//! Whoever asked for the deletion does it; a daemon that died meanwhile is made up for by any other, which looks from
//! time to time.

use std::collections::BTreeSet;

use cluster::allocate::AllocateError;
use cluster::{Compare, Engine, EngineError, OPS_PER_TRANSACTION_MAX, Op, Outcome};

use crate::desks;
use crate::ledger;
use crate::records::{self, DcView, Desired, NODES};

/// The first living node that still has something of a deleted container. One that is down cleans up when it returns.
pub fn first_with_remains<'a>(view: &'a DcView, alive: &BTreeSet<String>) -> Option<&'a String> {
    let generation = view.record.generation;
    let gone = |node: &String| view.shares.get(node).is_some_and(|share| share.gone && share.generation == generation);
    view.record.spec.nodes.iter().find(|node| alive.contains(*node) && !gone(node))
}

/// Removes the record and everything that was kept under the container's number. Changes nothing when the record
/// changed.
pub fn forget(engine: &dyn Engine, view: &DcView) -> Result<(), EngineError> {
    let name = &view.record.spec.name;
    let key = records::dc_key(name);
    loop {
        let mut booking =
            ledger::book(&ledger::accounts(engine)?, &view.record.placement.promised, ledger::Change::GiveBack);
        booking.compares.push(Compare::Modified { key: key.clone(), at: view.modified });
        booking.ops.push(Op::delete(&*key));
        booking.ops.extend(view.record.spec.nodes.iter().map(|node| Op::delete(records::share_key(name, node))));
        let Outcome::Conflict(_) = engine.transact(&booking.compares, &booking.ops)? else { break };
        // It may be the ledger that others changed.
        if engine.read(&key)?.is_none_or(|there| there.modified != view.modified) {
            return Ok(());
        }
    }
    match cluster::allocate::release(engine, "dc", name) {
        Err(AllocateError::Engine(error)) => return Err(error),
        Err(error) => tracing::error!(dc = name, %error, "the container's number was not given back"),
        Ok(()) => (),
    }
    let id = view.record.id;
    let (endpoints, names) = (format!("{}{id}/", records::ENDPOINTS), format!("{}{id}/", records::NAMES));
    for prefix in [endpoints, names, format!("/epochs/{id}/"), desks::prefix(id)] {
        let keys: Vec<Op> = engine.list(&prefix)?.entries.into_iter().map(|entry| Op::delete(entry.key)).collect();
        for some in keys.chunks(OPS_PER_TRANSACTION_MAX) {
            engine.transact(&[], some)?;
        }
    }
    Ok(())
}

/// Finishes deletions whose asker is gone.
pub fn finish_deletions(engine: &dyn Engine) -> Result<(), EngineError> {
    let deleted = |view: &DcView| matches!(view.record.desired, Desired::Deleted { .. });
    let views: Vec<DcView> = records::dc_views(engine)?.into_values().filter(deleted).collect();
    if views.is_empty() {
        return Ok(());
    }
    let entries = engine.list(NODES)?.entries;
    let alive = entries.iter().map(|entry| entry.key.trim_start_matches(NODES).to_owned()).collect();
    views.iter().filter(|view| first_with_remains(view, &alive).is_none()).try_for_each(|view| forget(engine, view))
}

#[cfg(test)]
mod tests {
    use cluster::Lookup;
    use cluster::local::{LocalConfig, LocalEngine};
    use mgmt_api::{DcPhase, NodeShare};

    use super::*;
    use crate::reconcile::plan::Stage;
    use crate::records::{Images, ShareRecord};

    fn engine() -> (tempfile::TempDir, LocalEngine) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let engine =
            LocalEngine::open(LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"))).unwrap();
        (dir, engine)
    }

    fn deleted_dc(engine: &dyn Engine) {
        let id = cluster::allocate::number(engine, "dc", "shop", 1..=9).unwrap();
        let record = serde_json::json!({
            "id": id, "spec": { "name": "shop", "nodes": ["n1", "n2"] }, "generation": 3, "created_s": 0,
            "desired": Desired::Deleted { images: Images::Remove },
        });
        let ops = [
            Op::put("/dcs/shop", records::encode(&record)),
            Op::put("/nodes/n1", "{}"),
            Op::put(format!("/eps/{id}/1"), "{}"),
            Op::put(format!("/names/{id}/shop"), "1"),
            Op::put(format!("/programs/{id}/k/a"), "1"),
        ];
        engine.transact(&[], &ops).unwrap();
    }

    fn report_gone(engine: &dyn Engine, node: &str, generation: u64) {
        let share = NodeShare {
            node: node.to_owned(),
            phase: DcPhase::Stopped,
            address: String::new(),
            pid_base: 0,
            endpoints: 0..0,
            servers: Vec::new(),
            problems: Vec::new(),
        };
        let record = ShareRecord { id: 1, generation, stage: Stage::Down, gone: true, share };
        engine.transact(&[], &[Op::put(records::share_key("shop", node), records::encode(&record))]).unwrap();
    }

    #[test]
    fn deletion_is_finished_when_every_living_node_has_reported() {
        let (_dir, engine) = engine();
        deleted_dc(&engine);
        finish_deletions(&engine).unwrap();
        assert!(engine.read("/dcs/shop").unwrap().is_some(), "n1 has not said anything");
        report_gone(&engine, "n1", 2);
        finish_deletions(&engine).unwrap();
        assert!(engine.read("/dcs/shop").unwrap().is_some(), "n1 has answered an older wish only");
        report_gone(&engine, "n1", 3);
        finish_deletions(&engine).unwrap();
        for prefix in ["/dcs/", "/eps/", "/names/", "/programs/", "/ids/dc/of/", "/ids/dc/used/"] {
            assert!(engine.list(prefix).unwrap().entries.is_empty(), "{prefix}");
        }
    }
}
