//! Records of endpoints and of their names in the engine.
//!
//! `/names/DCID/NAME` holds an endpoint's number exactly while the record of that endpoint has the name: whatever
//! changes one changes both, in one transaction that compares the record of the endpoint. So whoever reads one knows
//! the other, and no name is left behind.

use abi::{EndpointName, Epoch, IpcError, NodeId};
use cluster::{Compare, Engine, EngineError, Op, Outcome, Revision};

use crate::records::{self, EndpointRecord};

/// Container and endpoint.
pub type Key = (u32, u32);

/// What the broker said of an endpoint of this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    Bound { epoch: Epoch, pid: i32, before: Before },
    Unbound(Epoch),
}

/// Who had a number before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// Nobody, or an owner to whom this one succeeds: its name stays.
    Predecessor,
    /// One that ended, and its name with it.
    Ended,
}

/// A name that an endpoint of this node wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    pub epoch: Epoch,
    pub name: EndpointName,
    /// The node of the endpoint that has the name, when no link leads there.
    pub lost: Option<NodeId>,
}

/// What the endpoint is called then.
pub fn store(
    engine: &dyn Engine,
    own: NodeId,
    (dc, endpoint): Key,
    write: Write,
) -> Result<Option<EndpointName>, EngineError> {
    let key = records::endpoint_key(dc, endpoint);
    // The first incarnation of an endpoint finds nothing there, mostly, and need not look before it is written.
    let mut is_first = matches!(write, Write::Bound { epoch, .. } if epoch.0 <= 1);
    loop {
        let found = if std::mem::take(&mut is_first) { None } else { records::read::<EndpointRecord>(engine, &key)? };
        let named = found.as_ref().and_then(|(there, _)| there.name);
        let (op, name) = match (write, &found) {
            (Write::Bound { epoch, .. }, Some((there, _))) if there.epoch > epoch.0 => {
                tracing::warn!(dc, endpoint, ours = epoch.0, theirs = there.epoch, "a later incarnation is registered");
                return Ok(None);
            }
            (Write::Bound { epoch, pid, before }, _) => {
                let name = named.filter(|_| before == Before::Predecessor);
                let record = EndpointRecord { node: own.0, epoch: epoch.0, pid, name };
                (Op::put(&*key, records::encode(&record)), name)
            }
            (Write::Unbound(epoch), Some((there, _))) if there.node == own.0 && there.epoch <= epoch.0 => {
                (Op::delete(&*key), None)
            }
            (Write::Unbound(_), _) => return Ok(None),
        };
        let mut ops = vec![op];
        ops.extend(named.filter(|_| name.is_none()).map(|ended| Op::delete(records::name_key(dc, ended))));
        let compare = match found {
            Some((_, modified)) => Compare::Modified { key: key.clone(), at: modified },
            None => Compare::Absent { key: key.clone() },
        };
        if let Outcome::Done(_) = engine.transact(&[compare], &ops)? {
            return Ok(name);
        }
    }
}

/// The endpoint has the name then, or why it does not.
pub fn claim(
    engine: &dyn Engine,
    own: NodeId,
    (dc, endpoint): Key,
    wish: Wish,
) -> Result<Result<(), IpcError>, EngineError> {
    let (key, name_key) = (records::endpoint_key(dc, endpoint), records::name_key(dc, wish.name));
    loop {
        let Some((record, modified)) = records::read::<EndpointRecord>(engine, &key)? else {
            return Ok(Err(IpcError::NotBound));
        };
        if (record.node, record.epoch) != (own.0, wish.epoch.0) {
            return Ok(Err(IpcError::NotBound));
        }
        match record.name {
            Some(name) if name == wish.name => return Ok(Ok(())),
            Some(_) => return Ok(Err(IpcError::TableFull)),
            None => {}
        }
        let named = EndpointRecord { name: Some(wish.name), ..record };
        let mut ops = vec![Op::put(&*key, records::encode(&named)), Op::put(&*name_key, records::encode(&endpoint))];
        let mut compares = vec![Compare::Modified { key: key.clone(), at: modified }];
        match records::read::<u32>(engine, &name_key)? {
            None => compares.push(Compare::Absent { key: name_key.clone() }),
            Some(held) => match inherit(engine, dc, wish, held)? {
                Some(taking) => {
                    compares.push(Compare::Modified { key: name_key.clone(), at: held.1 });
                    compares.extend(taking.compares);
                    ops.extend(taking.ops);
                }
                None => return Ok(Err(IpcError::EndpointInUse)),
            },
        }
        if let Outcome::Done(_) = engine.transact(&compares, &ops)? {
            return Ok(Ok(()));
        }
    }
}

/// What takes a name from its holder.
struct Taking {
    compares: Vec<Compare>,
    ops: Vec<Op>,
}

/// How to take the name from its holder, when the holder's node is gone: no link leads there, and its daemon is not
/// alive.
fn inherit(
    engine: &dyn Engine,
    dc: u32,
    wish: Wish,
    (holder, _): (u32, Revision),
) -> Result<Option<Taking>, EngineError> {
    let key = records::endpoint_key(dc, holder);
    let Some((record, modified)) = records::read::<EndpointRecord>(engine, &key)? else { return Ok(None) };
    let Some(lost) = wish.lost.filter(|lost| lost.0 == record.node) else { return Ok(None) };
    let Some(node) = records::members(engine)?.into_values().find(|member| member.id == lost.0) else {
        return Ok(None);
    };
    let alive = records::node_key(&node.name);
    if engine.read(&alive)?.is_some() {
        return Ok(None);
    }
    let nameless = EndpointRecord { name: None, ..record };
    let compares = vec![Compare::Modified { key: key.clone(), at: modified }, Compare::Absent { key: alive }];
    Ok(Some(Taking { compares, ops: vec![Op::put(key, records::encode(&nameless))] }))
}

/// Removes what an earlier daemon of this node wrote and `keep` does not want.
pub fn sweep(engine: &dyn Engine, own: NodeId, keep: impl Fn(u32, u32) -> bool) -> Result<(), EngineError> {
    for entry in engine.list(records::ENDPOINTS)?.entries {
        let Some((dc, endpoint)) = records::parse_endpoint_key(&entry.key) else { continue };
        let record: EndpointRecord = records::decode(&entry)?;
        if record.node == own.0 && !keep(dc, endpoint) {
            let mut ops = vec![Op::delete(&*entry.key)];
            ops.extend(record.name.map(|name| Op::delete(records::name_key(dc, name))));
            engine.transact(&[Compare::Modified { key: entry.key.clone(), at: entry.modified }], &ops)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cluster::Lookup;
    use cluster::local::{LocalConfig, LocalEngine};

    use super::*;
    use crate::records::NodeRecord;

    const ONE: NodeId = NodeId(1);
    const TWO: NodeId = NodeId(2);

    struct World {
        _dir: tempfile::TempDir,
        engine: LocalEngine,
    }

    impl World {
        fn new() -> World {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
            let engine = LocalEngine::open(config).unwrap();
            World { _dir: dir, engine }
        }

        fn bind(&self, node: NodeId, endpoint: u32, epoch: u64, before: Before) -> Option<EndpointName> {
            let write = Write::Bound { epoch: Epoch(epoch), pid: 0, before };
            store(&self.engine, node, (7, endpoint), write).unwrap()
        }

        fn unbind(&self, node: NodeId, endpoint: u32, epoch: u64) {
            assert_eq!(store(&self.engine, node, (7, endpoint), Write::Unbound(Epoch(epoch))).unwrap(), None);
        }

        fn claim(&self, node: NodeId, endpoint: u32, wish: Wish) -> Result<(), IpcError> {
            claim(&self.engine, node, (7, endpoint), wish).unwrap()
        }

        /// Every name with its endpoint, after a look whether names and endpoints say the same.
        fn names(&self) -> Vec<(String, u32)> {
            let mut of_endpoints = Vec::new();
            for entry in self.engine.list(records::ENDPOINTS).unwrap().entries {
                let (_, endpoint) = records::parse_endpoint_key(&entry.key).unwrap();
                let record: EndpointRecord = records::decode(&entry).unwrap();
                of_endpoints.extend(record.name.map(|name| (name.to_string(), endpoint)));
            }
            of_endpoints.sort();
            let listed = self.engine.list("/names/7/").unwrap().entries;
            let names: Vec<_> = listed
                .iter()
                .map(|entry| (entry.key["/names/7/".len()..].to_owned(), records::decode(entry).unwrap()))
                .collect();
            assert_eq!(names, of_endpoints);
            names
        }
    }

    fn wish(name: &str, epoch: u64) -> Wish {
        Wish { epoch: Epoch(epoch), name: EndpointName::new(name.as_bytes()).unwrap(), lost: None }
    }

    #[test]
    fn first_claim_of_a_name_counts_until_its_endpoint_ends() {
        let world = World::new();
        assert_eq!(world.claim(ONE, 20, wish("a", 1)), Err(IpcError::NotBound));
        world.bind(ONE, 20, 1, Before::Predecessor);
        world.bind(TWO, 30, 1, Before::Predecessor);
        assert_eq!(world.claim(ONE, 20, wish("a", 1)), Ok(()));
        assert_eq!(world.claim(ONE, 20, wish("a", 1)), Ok(()));
        assert_eq!(world.claim(TWO, 30, wish("a", 1)), Err(IpcError::EndpointInUse));
        assert_eq!(world.claim(ONE, 20, wish("b", 1)), Err(IpcError::TableFull));
        // Of an owner that is one no more.
        assert_eq!(world.claim(TWO, 20, wish("b", 1)), Err(IpcError::NotBound));
        assert_eq!(world.claim(TWO, 30, wish("b", 2)), Err(IpcError::NotBound));
        assert_eq!(world.names(), [("a".to_owned(), 20)]);
        world.unbind(TWO, 20, 1);
        assert_eq!(world.names().len(), 1, "not that node's");
        world.unbind(ONE, 20, 1);
        assert!(world.names().is_empty());
        assert_eq!(world.claim(TWO, 30, wish("a", 1)), Ok(()));
        assert_eq!(world.names(), [("a".to_owned(), 30)]);
    }

    #[test]
    fn successor_keeps_the_name_and_a_later_owner_does_not() {
        let world = World::new();
        let name = Some(wish("a", 1).name);
        world.bind(ONE, 20, 1, Before::Predecessor);
        world.claim(ONE, 20, wish("a", 1)).unwrap();
        // Written again by a daemon that was restarted; handed over; unbound by its node, late.
        assert_eq!(world.bind(ONE, 20, 1, Before::Predecessor), name);
        assert_eq!(world.bind(TWO, 20, 2, Before::Predecessor), name);
        world.unbind(ONE, 20, 1);
        assert_eq!(world.names(), [("a".to_owned(), 20)]);
        // The end of the one before was not written: the next one is what counts.
        assert_eq!(world.bind(TWO, 20, 3, Before::Ended), None);
        assert!(world.names().is_empty());
    }

    #[test]
    fn sweep_takes_the_names_of_what_it_removes() {
        let world = World::new();
        for (node, endpoint) in [(ONE, 20), (ONE, 21), (TWO, 30)] {
            world.bind(node, endpoint, 1, Before::Predecessor);
            world.claim(node, endpoint, wish(&format!("of-{endpoint}"), 1)).unwrap();
        }
        sweep(&world.engine, ONE, |_, endpoint| endpoint == 21).unwrap();
        assert_eq!(world.names(), [("of-21".to_owned(), 21), ("of-30".to_owned(), 30)]);
    }

    #[test]
    fn name_of_a_node_that_is_gone_is_free_and_of_one_that_is_cut_off_or_whose_daemon_is_away_it_is_not() {
        let world = World::new();
        let member = serde_json::json!({
            "name": "n1", "id": 1, "epoch": 1, "address": "", "proxy_port": 0, "api_port": 0, "cpus": 1, "memory_bytes": 0,
        });
        let member: NodeRecord = serde_json::from_value(member).unwrap();
        let ops = [Op::put("/members/n1", records::encode(&member)), Op::put("/nodes/n1", "{}")];
        world.engine.transact(&[], &ops).unwrap();
        world.bind(ONE, 20, 1, Before::Predecessor);
        world.bind(TWO, 30, 1, Before::Predecessor);
        world.claim(ONE, 20, wish("a", 1)).unwrap();
        let lost = Wish { lost: Some(ONE), ..wish("a", 1) };
        assert_eq!(world.claim(TWO, 30, lost), Err(IpcError::EndpointInUse), "its daemon is alive");
        world.engine.transact(&[], &[Op::delete("/nodes/n1")]).unwrap();
        assert_eq!(world.claim(TWO, 30, wish("a", 1)), Err(IpcError::EndpointInUse), "a link leads there");
        assert_eq!(world.claim(TWO, 30, lost), Ok(()));
        assert_eq!(world.names(), [("a".to_owned(), 30)]);
        // It comes back, with its endpoint.
        assert_eq!(world.bind(ONE, 20, 1, Before::Predecessor), None);
        assert_eq!(world.claim(ONE, 20, wish("a", 1)), Err(IpcError::EndpointInUse));
    }
}
