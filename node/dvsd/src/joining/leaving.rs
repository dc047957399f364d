//! A node is taken out of the cluster: by its own will, or because its machine is gone for good.

use cluster::{Compare, Engine, EngineError, Lookup, Op, Outcome, Revision};
use mgmt_api::{ErrorBody, ErrorKind};

use super::admission::refused;
use super::authority;
use crate::ledger;
use crate::quorum;
use crate::records::{self, NodeRecord, NodeWish, Removed, encode, now_s};

/// Others may be faster this often; each time one of them has got on.
const ATTEMPTS: usize = 100;

/// Whether whoever asks says that the node's machine is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// Its daemon lives, and ends by this.
    No,
    ForGood,
}

/// Whether a node still keeps something for the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Duties {
    None,
    /// Its member of the engine goes elsewhere first: ask again.
    Handing,
}

/// Says that the node is to be taken out, so that what it has for the cluster goes elsewhere. Refused like
/// [`take_out`].
pub fn prepare(engine: &dyn Engine, node: &str, gone: Gone) -> Result<Duties, ErrorBody> {
    let failed = |error: EngineError| crate::api::failure::Failure::from(error).0;
    demand_may_go(engine, node, gone)?;
    let has_member = engine.read(&quorum::member_key(node)).map_err(failed)?.is_some();
    if gone == Gone::ForGood || !has_member {
        return Ok(Duties::None);
    }
    say_leaving(engine, node, true).map_err(failed)?;
    Ok(Duties::Handing)
}

/// It stays after all.
pub fn stays(engine: &dyn Engine, node: &str) -> Result<(), EngineError> {
    say_leaving(engine, node, false)
}

fn say_leaving(engine: &dyn Engine, node: &str, leaving: bool) -> Result<(), EngineError> {
    for _ in 0..ATTEMPTS {
        let key = records::node_wish_key(node);
        let (wish, compare) = match records::read::<NodeWish>(engine, &key)? {
            Some((wish, at)) => (wish, Compare::Modified { key: key.clone(), at }),
            None => (NodeWish::default(), Compare::Absent { key: key.clone() }),
        };
        if wish.leaving == leaving {
            return Ok(());
        }
        let wish = NodeWish { leaving, ..wish };
        if let Outcome::Done(_) = engine.transact(&[compare], &[Op::put(key, encode(&wish))])? {
            return Ok(());
        }
    }
    Ok(())
}

/// Takes a node out: its certificates are good no more, its incarnation is over, and it stays out until a machine joins
/// under its name. Refused while a container has a share there. May be repeated.
pub fn take_out(engine: &dyn Engine, node: &str, gone: Gone) -> Result<(), ErrorBody> {
    let failed = |error: EngineError| crate::api::failure::Failure::from(error).0;
    for _ in 0..ATTEMPTS {
        // Read before the containers: who puts one there changes it.
        let promised = ledger::unchanged(engine, node).map_err(failed)?;
        let (record, at) = demand_may_go(engine, node, gone)?;
        let (mut compares, mut ops) = authority::revoke(engine, node).map_err(refused)?;
        let (same_number, number) = cluster::allocate::releasing(engine, "node", node).map_err(failed)?;
        compares.extend(same_number);
        compares.extend([Compare::Modified { key: records::member_key(node), at }, promised]);
        if gone == Gone::No {
            // What it has for the cluster went elsewhere before.
            compares.push(Compare::Absent { key: quorum::member_key(node) });
        }
        let removed = Removed { since_s: now_s(), epoch: record.epoch };
        ops.extend(number);
        ops.extend([
            Op::put(records::removed_key(node), encode(&removed)),
            Op::delete(records::member_key(node)),
            Op::delete(records::node_key(node)),
            Op::delete(records::node_wish_key(node)),
            Op::delete(crate::judging::verdict_key(node)),
            Op::delete(super::rotation::trust_key(node)),
        ]);
        ops.extend(ledger::forget(node));
        if let Outcome::Done(_) = engine.transact(&compares, &ops).map_err(failed)? {
            return Ok(());
        }
        if gone == Gone::No && engine.read(&quorum::member_key(node)).map_err(failed)?.is_some() {
            return Err(ErrorBody::new(ErrorKind::Conflict, format!("node '{node}' cannot be removed yet"))
                .because("it runs a member of the cluster's engine")
                .hint("again in a moment"));
        }
    }
    Err(refused(authority::AuthorityError::Contended))
}

/// The node's record, when nothing stands against taking it out.
fn demand_may_go(engine: &dyn Engine, node: &str, gone: Gone) -> Result<(NodeRecord, Revision), ErrorBody> {
    let failed = |error: EngineError| crate::api::failure::Failure::from(error).0;
    let member = records::read::<NodeRecord>(engine, &records::member_key(node)).map_err(failed)?;
    let member = member
        .ok_or_else(|| ErrorBody::new(ErrorKind::NotFound, format!("there is no node '{node}'")).hint("dvs node ls"))?;
    demand_nobody_needs_it(engine, node).map_err(|refusal| refusal.unwrap_or_else(failed))?;
    let lives = engine.read(&records::node_key(node)).map_err(failed)?.is_some();
    demand_right_way(node, gone, lives)?;
    if engine.list(records::MEMBERS).map_err(failed)?.entries.len() <= 1 {
        return Err(ErrorBody::new(ErrorKind::Conflict, format!("'{node}' is the cluster's last node"))
            .hint("stop its daemon, and remove its state directory"));
    }
    Ok(member)
}

fn demand_right_way(node: &str, gone: Gone, lives: bool) -> Result<(), ErrorBody> {
    match (gone, lives) {
        (Gone::No, false) => Err(ErrorBody::new(ErrorKind::Unavailable, format!("node '{node}' does not answer"))
            .because("its daemon is not there to end what it has")
            .hint(format!("start its daemon; or, if the machine is gone for good, dvs node remove {node} --lost"))),
        (Gone::ForGood, true) => Err(ErrorBody::new(ErrorKind::Conflict, format!("node '{node}' is not lost"))
            .because("its lease has not ended: something was heard of it a few seconds ago")
            .hint(format!("dvs node remove {node}; or, if it was just switched off, the same again in ten seconds"))),
        _ => Ok(()),
    }
}

/// `Err(Err)`: the engine failed.
fn demand_nobody_needs_it(engine: &dyn Lookup, node: &str) -> Result<(), Result<ErrorBody, EngineError>> {
    let views = records::dc_views(engine).map_err(Err)?;
    let there = views.into_iter().filter(|(_, view)| view.record.spec.nodes.iter().any(|one| one == node));
    let names: Vec<String> = there.map(|(name, _)| name).collect();
    let Some(first) = names.first() else { return Ok(()) };
    let some = names.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    Err(Ok(ErrorBody::new(ErrorKind::Conflict, format!("node '{node}' cannot be removed: containers are on it"))
        .because(format!("{} of them: {some}", names.len()))
        .hint(format!("dvs dc remove-node {first} {node}, or dvs dc delete {first}"))))
}

#[cfg(test)]
mod tests {
    use cluster::local::{LocalConfig, LocalEngine};
    use pki::{Authority, CertificateSummary};

    use super::*;

    fn own() -> CertificateSummary {
        let now = std::time::SystemTime::now();
        CertificateSummary { serial: "4a".to_owned(), from: now, until: now + std::time::Duration::from_secs(60) }
    }

    fn member(engine: &LocalEngine, name: &str) {
        let id = cluster::allocate::number(engine, "node", name, 1..=9).unwrap();
        let record = serde_json::json!({
            "name": name, "id": id, "epoch": 3, "address": "10.0.0.1", "proxy_port": 1, "api_port": 2, "cpus": 1,
            "memory_bytes": 1
        });
        engine.transact(&[], &[Op::put(records::member_key(name), record.to_string())]).unwrap();
    }

    fn alive(engine: &LocalEngine, name: &str) {
        engine.transact(&[], &[Op::put(records::node_key(name), b"{}".to_vec())]).unwrap();
    }

    #[test]
    fn node_goes_out_once_with_all_that_was_kept_of_it() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).unwrap();
        let made = dir.path().join("authority");
        Authority::create(&made, "home").unwrap();
        authority::take_over(&engine, &made, "n1", &own()).unwrap();
        member(&engine, "n1");
        let kind = |gone| take_out(&engine, "n1", gone).unwrap_err().kind;
        assert_eq!(take_out(&engine, "n9", Gone::No).unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(kind(Gone::ForGood), ErrorKind::Conflict, "the last one");
        member(&engine, "n2");
        assert_eq!(kind(Gone::No), ErrorKind::Unavailable);
        alive(&engine, "n1");
        assert_eq!(kind(Gone::ForGood), ErrorKind::Conflict, "it lives");
        assert_eq!(prepare(&engine, "n1", Gone::No).unwrap(), Duties::None);
        engine.transact(&[], &[Op::put(quorum::member_key("n1"), b"{}".to_vec())]).unwrap();
        assert_eq!(prepare(&engine, "n1", Gone::No).unwrap(), Duties::Handing);
        assert_eq!(kind(Gone::No), ErrorKind::Conflict, "it runs a member of the engine");
        stays(&engine, "n1").unwrap();
        engine.transact(&[], &[Op::delete(quorum::member_key("n1"))]).unwrap();
        let dc = serde_json::json!({
            "id": 1, "spec": { "name": "shop", "nodes": ["n1"] }, "desired": { "kind": "running" }, "generation": 1,
            "created_s": 0
        });
        engine.transact(&[], &[Op::put(records::dc_key("shop"), dc.to_string())]).unwrap();
        assert_eq!(kind(Gone::No), ErrorKind::Conflict, "a container is there");
        engine.transact(&[], &[Op::delete(records::dc_key("shop"))]).unwrap();
        take_out(&engine, "n1", Gone::No).unwrap();
        let (removed, _) = records::read::<Removed>(&engine, &records::removed_key("n1")).unwrap().unwrap();
        assert_eq!(removed.epoch, 3);
        assert!(engine.read(&records::member_key("n1")).unwrap().is_none());
        assert_eq!(kind(Gone::No), ErrorKind::NotFound);
        let free = cluster::allocate::number(&engine, "node", "n3", 1..=2).unwrap();
        assert_eq!(free, 1, "its number is free");
    }
}
