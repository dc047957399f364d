//! The end of a container's record, once no node has anything of it.
//!
//! Whoever asked for the deletion does it; a daemon that died meanwhile is made up for by any other, which looks from
//! time to time.

use std::collections::BTreeSet;

use cluster::{Compare, Engine, EngineError, Lookup, OPS_PER_TRANSACTION_MAX, Op, Outcome, Revision, allocate};

use crate::desks;
use crate::ledger;
use crate::numbered;
use crate::records::{self, DcView, Desired, NODES};
use crate::services;

/// The first living node that still has something of a deleted container. One that is down cleans up when it returns.
pub fn first_with_remains<'a>(view: &'a DcView, alive: &BTreeSet<String>) -> Option<&'a String> {
    let generation = view.record.generation;
    let gone = |node: &String| view.shares.get(node).is_some_and(|share| share.gone && share.generation == generation);
    view.record.spec.nodes.iter().find(|node| alive.contains(*node) && !gone(node))
}

/// What became of a record that somebody wanted to remove.
#[derive(Debug)]
pub enum Ending {
    Gone,
    /// Another one is at it, or was and died of it: this is how far it came.
    Contended(Box<DcView>),
}

/// Gives back what the container was promised, removes everything that was kept under its number, and then, at once,
/// the record and the number. Who dies in between leaves the record, so that another one goes on, and nobody gets its
/// name or number before. Changes nothing when the record changed.
pub fn forget(engine: &dyn Engine, view: &DcView) -> Result<Ending, EngineError> {
    if remove(engine, view)?.is_some() {
        return Ok(Ending::Gone);
    }
    let left = records::dc_view(engine, &view.record.spec.name)?.filter(|left| left.record.id == view.record.id);
    Ok(left.map_or(Ending::Gone, |left| Ending::Contended(Box::new(left))))
}

/// `None`: the record changed, or is gone.
fn remove(engine: &dyn Engine, view: &DcView) -> Result<Option<Revision>, EngineError> {
    let name = &view.record.spec.name;
    let key = records::dc_key(name);
    let Some(at) = give_back(engine, view)? else { return Ok(None) };
    let unchanged = Compare::Modified { key: key.clone(), at };
    let id = view.record.id;
    if numbered::revoke(engine, id, name, &unchanged)?.is_none() {
        return Ok(None);
    }
    let (endpoints, names) = (format!("{}{id}/", records::ENDPOINTS), format!("{}{id}/", records::NAMES));
    let (agreed, disks) = (desks::prefix(id), desks::disks_prefix(id));
    for prefix in [endpoints, names, format!("/epochs/{id}/"), agreed, disks, services::record::prefix(id)] {
        let keys: Vec<Op> = engine.list(&prefix)?.entries.into_iter().map(|entry| Op::delete(entry.key)).collect();
        for some in keys.chunks(OPS_PER_TRANSACTION_MAX) {
            let Outcome::Done(_) = engine.transact(std::slice::from_ref(&unchanged), some)? else { return Ok(None) };
        }
    }
    let (mut compares, mut ops) = allocate::releasing(engine, "dc", name)?;
    compares.push(unchanged);
    ops.push(Op::delete(key));
    ops.extend(view.record.spec.nodes.iter().map(|node| Op::delete(records::share_key(name, node))));
    match engine.transact(&compares, &ops)? {
        Outcome::Done(at) => Ok(Some(at)),
        Outcome::Conflict(_) => Ok(None),
    }
}

/// Since when the record says that the container is promised nothing. `None`: it changed otherwise.
fn give_back(engine: &dyn Engine, view: &DcView) -> Result<Option<Revision>, EngineError> {
    let mut record = view.record.clone();
    let promised = std::mem::take(&mut record.placement.promised);
    if promised.is_empty() {
        return Ok(Some(view.modified));
    }
    let key = records::dc_key(&record.spec.name);
    // A conflict may be about the ledger, which others change.
    while engine.read(&key)?.is_some_and(|there| there.modified == view.modified) {
        let mut booking = ledger::book(&ledger::accounts(engine)?, &promised, ledger::Change::GiveBack);
        booking.compares.push(Compare::Modified { key: key.clone(), at: view.modified });
        booking.ops.push(Op::put(&*key, records::encode(&record)));
        if let Outcome::Done(at) = engine.transact(&booking.compares, &booking.ops)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Finishes deletions whose asker is gone. The engine is asked only where this node has been `told` of one.
pub fn finish_deletions(engine: &dyn Engine, told: &dyn Lookup) -> Result<(), EngineError> {
    let deleted = |view: &DcView| matches!(view.record.desired, Desired::Deleted { .. });
    if !records::dc_views(told)?.values().any(deleted) {
        return Ok(());
    }
    let views: Vec<DcView> = records::dc_views(engine)?.into_values().filter(deleted).collect();
    if views.is_empty() {
        return Ok(());
    }
    let entries = engine.list(NODES)?.entries;
    let alive = entries.iter().map(|entry| entry.key.trim_start_matches(NODES).to_owned()).collect();
    views
        .iter()
        .filter(|view| first_with_remains(view, &alive).is_none())
        .try_for_each(|view| forget(engine, view).map(drop))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use cluster::local::{LocalConfig, LocalEngine};
    use cluster::steered::{Course, EngineCall, Steered};
    use mgmt_api::{DcPhase, NodeShare, Promise};

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
        let id = allocate::number(engine, "dc", "shop", 1..=9).unwrap();
        let promised = Promise { containers: 1, ..Promise::default() };
        let record = serde_json::json!({
            "id": id, "spec": { "name": "shop", "nodes": ["n1", "n2"] }, "generation": 3, "created_s": 0,
            "desired": Desired::Deleted { images: Images::Remove },
            "placement": { "instances": [], "promised": { "n1": promised, "n2": promised } },
        });
        let ops = [
            Op::put("/dcs/shop", records::encode(&record)),
            Op::put("/nodes/n1", "{}"),
            Op::put("/ledger/n1", records::encode(&promised.plus(promised))),
            Op::put("/ledger/n2", records::encode(&promised)),
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
            address_ipv6: None,
            pid_base: 0,
            endpoints: 0..0,
            servers: Vec::new(),
            ports: Vec::new(),
            problems: Vec::new(),
        };
        let record = ShareRecord { id: 1, generation, stage: Stage::Down, gone: true, share };
        engine.transact(&[], &[Op::put(records::share_key("shop", node), records::encode(&record))]).unwrap();
    }

    const KEPT: [&str; 6] = ["/dcs/", "/eps/", "/names/", "/programs/", "/ids/dc/of/", "/ids/dc/used/"];

    #[test]
    fn node_that_was_away_reports_nothing_to_another_container_of_the_same_name() {
        let (_dir, engine) = engine();
        deleted_dc(&engine);
        let said = |id: u32| {
            let same = records::is_still(&engine, "shop", id).unwrap()?;
            Some(engine.transact(&[same], &[Op::put(records::share_key("shop", "n1"), "{}")]).unwrap())
        };
        assert!(matches!(said(1), Some(Outcome::Done(_))));
        assert!(said(2).is_none(), "another one");
        let same = records::is_still(&engine, "shop", 1).unwrap().unwrap();
        engine.transact(&[], &[Op::put("/dcs/shop", engine.read("/dcs/shop").unwrap().unwrap().value)]).unwrap();
        let late = engine.transact(&[same], &[Op::put(records::share_key("shop", "n1"), "{}")]).unwrap();
        assert!(matches!(late, Outcome::Conflict(_)), "it may have become another one meanwhile");
    }

    #[test]
    fn deletion_that_was_interrupted_anywhere_leaves_the_name_taken_and_is_finished_by_the_next() {
        for how in [Course::IsLost, Course::IsNotAnswered] {
            for which in 0.. {
                let (_dir, engine) = engine();
                deleted_dc(&engine);
                report_gone(&engine, "n1", 3);
                let view = records::dc_view(&engine, "shop").unwrap().unwrap();
                // It is away once, at the change of this number.
                let left = AtomicUsize::new(which);
                let leaves = Steered::new(engine, move |call| {
                    let is_it = call == EngineCall::Transact && left.fetch_sub(1, Ordering::Relaxed) == 0;
                    if is_it { how } else { Course::Happens }
                });
                let is_whole = forget(&leaves, &view).is_ok();
                let there = |prefix: &&str| !leaves.list(prefix).unwrap().entries.is_empty();
                let left: Vec<&str> = KEPT.into_iter().filter(there).collect();
                assert!(left.is_empty() || left.contains(&"/dcs/") && left.contains(&"/ids/dc/used/"), "{left:?}");
                finish_deletions(&leaves, &leaves).unwrap();
                assert!(!KEPT.iter().any(there), "{which} {how:?}");
                let accounts = ledger::accounts(&leaves).unwrap();
                assert_eq!([accounts["n1"].promised.containers, accounts["n2"].promised.containers], [1, 0], "once");
                if is_whole {
                    assert!(which > 3, "each step was met: {which}");
                    break;
                }
            }
        }
    }

    #[test]
    fn record_is_gone_only_when_it_is_also_after_somebody_who_began_and_died() {
        let (_dir, engine) = engine();
        deleted_dc(&engine);
        report_gone(&engine, "n1", 3);
        let view = records::dc_view(&engine, "shop").unwrap().unwrap();
        // What is promised was given back, and no more.
        give_back(&engine, &view).unwrap().unwrap();
        let Ending::Contended(now) = forget(&engine, &view).unwrap() else { panic!("it is still there") };
        assert!(engine.read("/dcs/shop").unwrap().is_some());
        assert!(matches!(forget(&engine, &now).unwrap(), Ending::Gone));
        assert!(engine.read("/dcs/shop").unwrap().is_none());
        assert!(matches!(forget(&engine, &now).unwrap(), Ending::Gone), "by somebody else");
    }

    #[test]
    fn deletion_is_finished_when_every_living_node_has_reported() {
        let (_dir, engine) = engine();
        deleted_dc(&engine);
        finish_deletions(&engine, &engine).unwrap();
        assert!(engine.read("/dcs/shop").unwrap().is_some(), "n1 has not said anything");
        report_gone(&engine, "n1", 2);
        finish_deletions(&engine, &engine).unwrap();
        assert!(engine.read("/dcs/shop").unwrap().is_some(), "n1 has answered an older wish only");
        report_gone(&engine, "n1", 3);
        finish_deletions(&engine, &engine).unwrap();
        for prefix in KEPT {
            assert!(engine.list(prefix).unwrap().entries.is_empty(), "{prefix}");
        }
    }
}
