//! The container's keys as the desk told them, and what went lately.

use std::collections::{BTreeMap, VecDeque};

use vos_api::desk::{FromDesk, Known};

/// Deleted keys that are remembered, for those who watch.
pub const GONE_MAX: usize = 1024;

#[derive(Default)]
pub struct Replica {
    entries: BTreeMap<String, Known>,
    /// While everything is told anew.
    fresh: Option<BTreeMap<String, Known>>,
    gone: VecDeque<(u64, String)>,
    /// Of what went up to here, not all is remembered.
    floor: u64,
    seen: u64,
    is_listed: bool,
}

impl Replica {
    /// Everything was told at least once.
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Everything up to here is known.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    pub fn get(&self, key: &str) -> Option<&Known> {
        self.entries.get(key)
    }

    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Known> {
        let from = self.entries.range(prefix.to_owned()..).map(|(_, known)| known);
        from.take_while(move |known| known.key.starts_with(prefix))
    }

    /// Keys that went after `seen`, the earliest first.
    pub fn gone_after(&self, seen: u64) -> impl Iterator<Item = (u64, &str)> {
        self.gone.iter().filter(move |(revision, _)| *revision > seen).map(|(revision, key)| (*revision, key.as_str()))
    }

    /// Takes in what the desk said; answers the keys that are different now.
    pub fn take(&mut self, said: FromDesk) -> Vec<String> {
        match said {
            FromDesk::Hello(_) => {
                self.fresh = Some(BTreeMap::new());
                Vec::new()
            }
            FromDesk::Put(known) => match &mut self.fresh {
                Some(fresh) => {
                    fresh.insert(known.key.clone(), known);
                    Vec::new()
                }
                None => {
                    self.seen = self.seen.max(known.modified);
                    let key = known.key.clone();
                    self.entries.insert(key.clone(), known);
                    vec![key]
                }
            },
            FromDesk::Gone { key, revision } => {
                if let Some(fresh) = &mut self.fresh {
                    fresh.remove(&key);
                    return Vec::new();
                }
                self.seen = self.seen.max(revision);
                if self.entries.remove(&key).is_none() {
                    return Vec::new();
                }
                self.remember_gone(revision, key.clone());
                vec![key]
            }
            FromDesk::Listed { revision } => self.replace(revision),
            FromDesk::Done { .. } | FromDesk::Conflict { .. } | FromDesk::Found { .. } | FromDesk::Failed { .. } => {
                Vec::new()
            }
        }
    }

    fn replace(&mut self, revision: u64) -> Vec<String> {
        let Some(fresh) = self.fresh.take() else { return Vec::new() };
        let before = std::mem::replace(&mut self.entries, fresh);
        let differs = |key: &String| before.get(key) != self.entries.get(key);
        let changed: Vec<String> = before
            .keys()
            .chain(self.entries.keys().filter(|key| !before.contains_key(*key)))
            .filter(|key| differs(key))
            .cloned()
            .collect();
        let gone: Vec<String> = changed.iter().filter(|key| !self.entries.contains_key(*key)).cloned().collect();
        if !gone.is_empty() && revision <= self.seen {
            // When they went is not told, and may lie before what was told.
            self.floor = self.seen;
        } else {
            gone.into_iter().for_each(|key| self.remember_gone(revision, key));
        }
        self.seen = self.seen.max(revision);
        self.is_listed = true;
        changed
    }

    fn remember_gone(&mut self, revision: u64, key: String) {
        self.gone.push_back((revision, key));
        while self.gone.len() > GONE_MAX {
            self.floor = self.gone.pop_front().map_or(self.floor, |(revision, _)| revision.max(self.floor));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(key: &str, modified: u64) -> Known {
        Known { key: key.to_owned(), value: Vec::new(), created: modified, modified }
    }

    #[test]
    fn what_went_while_nobody_told_shows_after_the_next_listing() {
        let mut replica = Replica::default();
        for said in
            [FromDesk::Hello(versions::DESK.speaks), FromDesk::Put(known("k/a", 3)), FromDesk::Put(known("k/b", 4))]
        {
            assert!(replica.take(said).is_empty());
        }
        assert_eq!(replica.take(FromDesk::Listed { revision: 4 }), ["k/a", "k/b"]);
        replica.take(FromDesk::Hello(versions::DESK.speaks));
        replica.take(FromDesk::Put(known("k/b", 4)));
        assert!(replica.get("k/a").is_some(), "until everything was told");
        assert_eq!(replica.take(FromDesk::Listed { revision: 9 }), ["k/a"]);
        assert_eq!(replica.gone_after(4).collect::<Vec<_>>(), [(9, "k/a")]);
        assert_eq!(replica.floor(), 0);
    }

    #[test]
    fn only_so_many_that_went_are_remembered_and_the_floor_tells() {
        let mut replica = Replica::default();
        replica.take(FromDesk::Hello(versions::DESK.speaks));
        replica.take(FromDesk::Listed { revision: 0 });
        for revision in 1..=GONE_MAX as u64 + 1 {
            replica.take(FromDesk::Put(known("k/a", revision * 2)));
            replica.take(FromDesk::Gone { key: "k/a".to_owned(), revision: revision * 2 + 1 });
        }
        assert_eq!((replica.gone_after(0).count(), replica.floor()), (GONE_MAX, 3));
    }
}
