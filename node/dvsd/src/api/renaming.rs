//! Another name for a container that is stopped.
//!
//! A container is known by its number; its name is in its key, in the keys of its nodes' reports, and in the key of the
//! number. All of them change in one transaction, in which the new record comes before the old one goes: whoever hears
//! of them one after the other never hears that the number is nobody's, which would end what there is of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use cluster::{Compare, Engine, EngineError, Op, Outcome, allocate};
use mgmt_api::{Dc, DcRename, ErrorKind};

use super::dcs::{name_taken, stopped_everywhere};
use super::failure::{Failure, failure};
use super::{Api, blocking, changes, parse, read_body};
use crate::level;
use crate::records::{self, DcView};

/// Space of the numbers of containers.
const IDS: &str = "dc";
/// Others may change the record this often.
const ATTEMPTS: usize = 100;

pub async fn rename(State(api): State<Arc<Api>>, Path(dc): Path<String>, body: Body) -> Result<Json<Dc>, Failure> {
    let DcRename { name } = parse(&read_body(body).await?)?;
    if !mgmt_api::valid_name(&name) {
        return Err(failure(
            ErrorKind::BadRequest,
            format!("{name:?} is no name for a container"),
            "1 to 32 of a-z, 0-9 and -, beginning with a letter",
        ));
    }
    for _ in 0..ATTEMPTS {
        let view = api.dc(&dc).await?;
        let hint = format!("dvs stop {dc}, and dvs start with its new name");
        let view = stopped_everywhere(&api, view, &hint).await?;
        let (also, name) = (Arc::clone(&api), name.clone());
        let renamed = blocking(move || {
            let engine = &*also.context.engine;
            changes::demand_known(level::of(engine)?, "containers that get another name")?;
            if records::dc_view(engine, &name)?.is_some() {
                return Err(name_taken(&name));
            }
            Ok(move_to(engine, view, &name)?)
        });
        if let Some(renamed) = renamed.await? {
            return Ok(Json(api.describe(&renamed)));
        }
    }
    Err(failure(ErrorKind::Unavailable, format!("container '{dc}' is changed all the time"), "again"))
}

/// `None`: somebody else changed something first.
fn move_to(engine: &dyn Engine, mut view: DcView, name: &str) -> Result<Option<DcView>, EngineError> {
    let old = std::mem::replace(&mut view.record.spec.name, name.to_owned());
    // What nodes said is of the earlier name.
    view.record.generation += 1;
    let (old_key, new_key) = (records::dc_key(&old), records::dc_key(name));
    let unchanged = Compare::Modified { key: old_key.clone(), at: view.modified };
    let number = allocate::renaming(engine, IDS, &old, name)?;
    let compares = [unchanged, Compare::Absent { key: new_key.clone() }].into_iter().chain(number.compares);
    // Also those that come in this moment.
    let nodes = view.record.spec.nodes.iter().chain(view.record.seats.keys());
    let mut reports: BTreeSet<String> = nodes.map(|node| records::share_key(&old, node)).collect();
    reports.extend(engine.list(&format!("{old_key}/"))?.entries.into_iter().map(|entry| entry.key));
    let record = Op::put(new_key, records::encode(&view.record));
    let reports = reports.into_iter().map(Op::delete);
    let ops: Vec<Op> = reports.chain([record]).chain(number.ops).chain([Op::delete(old_key)]).collect();
    let Outcome::Done(modified) = engine.transact(&compares.collect::<Vec<_>>(), &ops)? else { return Ok(None) };
    Ok(Some(DcView { modified, shares: Default::default(), ..view }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cluster::local::{LocalConfig, LocalEngine};
    use cluster::{EventKind, Lookup};
    use serde_json::json;

    use super::*;
    use crate::observed::Observed;
    use crate::records::{DcKey, DcRecord};

    fn engine() -> (tempfile::TempDir, LocalEngine) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).unwrap();
        (dir, engine)
    }

    fn put(engine: &LocalEngine, name: &str, id: u32) {
        let record: DcRecord = serde_json::from_value(json!({
            "id": id, "spec": { "name": name, "nodes": ["n1"] }, "generation": 3, "created_s": 0,
            "desired": { "kind": "stopped", "grace_ms": 0 },
        }))
        .unwrap();
        let ops = [
            Op::put(records::dc_key(name), records::encode(&record)),
            Op::put(records::share_key(name, "n1"), "{}"),
            Op::put(format!("/ids/dc/of/{name}"), id.to_string()),
            Op::put(format!("/ids/dc/used/{id}"), name),
        ];
        engine.transact(&[], &ops).unwrap();
    }

    #[test]
    fn name_changes_everywhere_at_once_and_the_number_is_never_nobodys() {
        let (_dir, engine) = engine();
        put(&engine, "shop", 7);
        let from = engine.list("/").unwrap().revision;
        let view = || {
            let record = records::read::<DcRecord>(&engine, &records::dc_key("shop")).unwrap().unwrap();
            DcView { record: record.0, modified: record.1, shares: Default::default() }
        };
        let mut observed = Observed::default();
        engine
            .list("/")
            .unwrap()
            .entries
            .iter()
            .for_each(|entry| observed.put(&entry.key, &entry.value, entry.modified));
        let mut watch = engine.watch("/", from).unwrap();
        let renamed = move_to(&engine, view(), "store").unwrap().unwrap();
        assert_eq!((renamed.record.spec.name.as_str(), renamed.record.id, renamed.record.generation), ("store", 7, 4));
        let keys: Vec<String> = engine.list("/").unwrap().entries.into_iter().map(|entry| entry.key).collect();
        assert_eq!(keys, ["/dcs/store", "/ids/dc/of/store", "/ids/dc/used/7"]);
        assert_eq!(engine.read("/ids/dc/used/7").unwrap().unwrap().value, b"store");
        let mut last_order = None;
        for _ in 0..6 {
            let event = watch.recv(Duration::from_secs(10)).unwrap().expect("a change");
            match event.kind {
                EventKind::Put { value, .. } => observed.put(&event.key, &value, event.revision),
                EventKind::Delete => observed.delete(&event.key),
            }
            assert_eq!(observed.ids(), [7], "after {}", event.key);
            // As the follower does, to its worker.
            let named = records::parse_dc_key(&event.key).map(|key| match key {
                DcKey::Record(name) | DcKey::Share { dc: name, .. } => name.to_owned(),
            });
            last_order = named.and_then(|name| observed.order(&name)).or(last_order);
        }
        assert_eq!(last_order.map(|order| order.record.spec.name).as_deref(), Some("store"));
        assert_eq!(observed.names(), ["store"]);
    }

    #[test]
    fn nothing_happens_when_the_record_changed_or_the_name_is_taken() {
        let (_dir, engine) = engine();
        put(&engine, "shop", 7);
        put(&engine, "store", 8);
        let (record, modified) = records::read::<DcRecord>(&engine, "/dcs/shop").unwrap().unwrap();
        let view = DcView { record, modified, shares: Default::default() };
        let before = engine.list("/").unwrap().entries;
        assert!(move_to(&engine, view.clone(), "store").unwrap().is_none());
        engine.transact(&[], &[Op::put("/dcs/shop", engine.read("/dcs/shop").unwrap().unwrap().value)]).unwrap();
        assert!(move_to(&engine, view, "other").unwrap().is_none());
        let keys = |entries: Vec<cluster::Entry>| entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>();
        assert_eq!(keys(engine.list("/").unwrap().entries), keys(before));
    }
}
