//! Writing what is kept under a container's number, as long as the container has it.
//!
//! A server of a container that is deleted may still write when everything under its number has been removed: its node
//! may have been away meanwhile. So whoever deletes a container first writes the number's own key anew
//! ([`revoke`]), and whoever writes under the number compares since when that key is as it is.

use cluster::{Compare, Engine, EngineError, Op, Outcome, Revision, allocate};

use crate::records::{self, Desired};

const SPACE: &str = "dc";

/// One thread's knowledge of a container's number.
#[derive(Debug)]
pub struct Numbered {
    dc: u32,
    since: Option<Revision>,
}

impl Numbered {
    pub fn new(dc: u32) -> Numbered {
        Numbered { dc, since: None }
    }

    /// As the engine's own. `None`: the container is deleted, and nothing happened.
    ///
    /// # Errors
    /// As the engine's.
    pub fn transact(
        &mut self,
        engine: &dyn Engine,
        compares: &[Compare],
        ops: &[Op],
    ) -> Result<Option<Outcome>, EngineError> {
        let key = allocate::used_key(SPACE, self.dc);
        loop {
            let is_known = self.since.is_some();
            let Some(at) = self.since.map_or_else(|| self.ask(engine, &key), |at| Ok(Some(at)))? else {
                return Ok(None);
            };
            self.since = Some(at);
            let last = Compare::Modified { key: key.clone(), at };
            let all: Vec<Compare> = compares.iter().cloned().chain([last]).collect();
            match engine.transact(&all, ops)? {
                Outcome::Conflict(mut conflict) => {
                    let number = conflict.current.pop().flatten();
                    if number.is_some_and(|number| number.modified == at) {
                        return Ok(Some(Outcome::Conflict(conflict)));
                    }
                    self.since = None;
                    if !is_known {
                        // Written anew in this moment.
                        return Ok(None);
                    }
                }
                done => return Ok(Some(done)),
            }
        }
    }

    /// Since when, if the container is to be.
    fn ask(&self, engine: &dyn Engine, key: &str) -> Result<Option<Revision>, EngineError> {
        let Some(number) = engine.read(key)? else { return Ok(None) };
        let name = String::from_utf8_lossy(&number.value);
        // Read afterwards: whoever deletes it later writes the number's key later, too.
        let view = records::dc_view(engine, &name)?.filter(|view| view.record.id == self.dc);
        let is_wanted = view.is_some_and(|view| !matches!(view.record.desired, Desired::Deleted { .. }));
        Ok(is_wanted.then_some(number.modified))
    }
}

/// From now on nobody writes under the number. `None`: a comparison did not hold.
///
/// # Errors
/// As the engine's.
pub fn revoke(engine: &dyn Engine, dc: u32, name: &str, given: &Compare) -> Result<Option<Revision>, EngineError> {
    let op = Op::put(allocate::used_key(SPACE, dc), name);
    Ok(match engine.transact(std::slice::from_ref(given), &[op])? {
        Outcome::Done(at) => Some(at),
        Outcome::Conflict(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use cluster::local::{LocalConfig, LocalEngine};

    use super::*;

    #[test]
    fn nobody_writes_under_the_number_of_a_container_that_is_deleted() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).unwrap();
        let write = |numbered: &mut Numbered, compares: &[Compare]| {
            numbered.transact(&engine, compares, &[Op::put("/programs/1/k/a", "1")]).unwrap()
        };
        let record = |desired: Desired| {
            records::encode(&serde_json::json!({
                "id": 1, "spec": { "name": "shop", "nodes": ["n1"] }, "generation": 1, "created_s": 0, "desired": desired,
                "placement": { "instances": [] },
            }))
        };
        let mut early = Numbered::new(1);
        assert_eq!(write(&mut early, &[]), None, "there is no such container");
        let created = [Op::put("/dcs/shop", record(Desired::Running)), Op::put("/ids/dc/used/1", "shop")];
        engine.transact(&[], &created).unwrap();
        assert!(matches!(write(&mut early, &[]), Some(Outcome::Done(_))));
        // What it compares is told as before.
        let absent = Compare::Absent { key: "/programs/1/k/a".to_owned() };
        match write(&mut early, &[absent]) {
            Some(Outcome::Conflict(conflict)) => assert_eq!(conflict.current.len(), 1),
            other => panic!("{other:?}"),
        }
        // Who wrote the key anew for another reason ends nothing.
        let given = Compare::Present { key: "/dcs/shop".to_owned() };
        revoke(&engine, 1, "shop", &given).unwrap().unwrap();
        assert!(matches!(write(&mut early, &[]), Some(Outcome::Done(_))));
        let deleted = record(Desired::Deleted { images: crate::records::Images::Remove });
        engine.transact(&[], &[Op::put("/dcs/shop", deleted)]).unwrap();
        // It knew the number before.
        assert!(matches!(write(&mut early, &[]), Some(Outcome::Done(_))));
        revoke(&engine, 1, "shop", &given).unwrap().unwrap();
        assert_eq!(write(&mut early, &[]), None);
        assert_eq!(write(&mut Numbered::new(1), &[]), None);
        engine.transact(&[], &[Op::delete("/dcs/shop"), Op::delete("/ids/dc/used/1")]).unwrap();
        assert_eq!(write(&mut early, &[]), None);
        assert_eq!(revoke(&engine, 1, "shop", &given).unwrap(), None);
    }
}
