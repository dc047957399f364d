//! Processes as they were seen, over all nodes: a thing runs at most once, and each life has a greater epoch.
//!
//! A thing is a server of a container (its endpoint) or a program that was started once. Whoever looks at a table of
//! processes sees it for a while, never at one moment: of two processes that one look shows, the first may have ended
//! before the second began. So a life is what two looks agree about: it *certainly* lasted from the first time at which
//! it was seen to the last one.

use std::collections::BTreeMap;

/// One process of a thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Life {
    pub thing: String,
    pub node: String,
    /// Of a process alone, for ever: number and time of its beginning.
    pub process: (u32, u64),
    /// The epoch that it was started with; `None`: things of its kind have none.
    pub epoch: Option<u64>,
    /// It certainly was there from then …
    pub from: u64,
    /// … until then.
    pub until: u64,
}

/// Lives from looks.
#[derive(Default)]
pub struct Sightings {
    lives: BTreeMap<(u32, u64), Life>,
    /// Of processes that stood still since.
    over: Vec<Life>,
}

impl Sightings {
    /// It was there at this time.
    pub fn saw(&mut self, thing: &str, node: &str, process: (u32, u64), epoch: Option<u64>, now: u64) {
        let life = self.lives.entry(process).or_insert_with(|| Life {
            thing: thing.to_owned(),
            node: node.to_owned(),
            process,
            epoch,
            from: now,
            until: now,
        });
        life.until = life.until.max(now);
    }

    /// It stands still: what it does when it goes on is another life of it.
    pub fn stands_still(&mut self, process: (u32, u64)) {
        self.over.extend(self.lives.remove(&process));
    }

    pub fn lives(&self) -> Vec<Life> {
        self.lives.values().chain(&self.over).cloned().collect()
    }
}

/// What must not be, in words. Empty: everything is as it should be.
pub fn contradictions(lives: &[Life]) -> Vec<String> {
    let mut things = BTreeMap::<&str, Vec<&Life>>::new();
    for life in lives {
        things.entry(&life.thing).or_default().push(life);
    }
    let mut found = Vec::new();
    for lives in things.values_mut() {
        lives.sort_by_key(|life| life.from);
        // The one that was seen last, of those that were seen before.
        let mut latest: Option<&Life> = None;
        for life in lives.iter().copied() {
            if let Some(before) = latest.filter(|before| before.until > life.from && life.until > before.from) {
                found.push(format!("it ran twice at a time: {before:?} and {life:?}"));
            }
            latest = latest.filter(|before| before.until >= life.until).or(Some(life));
        }
        lives.sort_by_key(|life| life.process.1);
        let mut greatest: Option<&Life> = None;
        for life in lives.iter().copied() {
            if let Some(before) = greatest.filter(|before| life.epoch.is_some() && before.epoch >= life.epoch) {
                found.push(format!("a later life has no greater epoch: {before:?}, then {life:?}"));
            }
            greatest = greatest.filter(|before| before.epoch >= life.epoch).or(Some(life));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(thing: &str, node: &str, pid: u32, began: u64, epoch: u64, from: u64, until: u64) -> Life {
        Life { thing: thing.into(), node: node.into(), process: (pid, began), epoch: Some(epoch), from, until }
    }

    #[test]
    fn one_after_the_other_is_fine_also_on_another_node() {
        let fine = [
            life("fs", "n1", 7, 1, 1, 10, 20),
            life("fs", "n2", 8, 2, 2, 20, 30),
            life("ds", "n1", 9, 2, 1, 15, 30),
            life("fs", "n2", 7, 3, 4, 40, 40),
        ];
        assert_eq!(contradictions(&fine), Vec::<String>::new());
    }

    #[test]
    fn twice_at_a_time_and_epochs_that_do_not_grow_are_found() {
        let twice = [life("fs", "n1", 7, 1, 1, 10, 21), life("fs", "n2", 8, 2, 2, 20, 30)];
        assert_eq!(contradictions(&twice).len(), 1);
        // Hidden behind one that was short.
        let hidden =
            [life("fs", "n1", 7, 1, 1, 10, 50), life("fs", "n2", 8, 2, 2, 60, 61), life("fs", "n2", 9, 3, 3, 40, 45)];
        assert!(!contradictions(&hidden).is_empty());
        let stale = [life("fs", "n1", 7, 1, 3, 10, 20), life("fs", "n2", 8, 2, 3, 30, 40)];
        assert_eq!(contradictions(&stale).len(), 1);
    }

    #[test]
    fn looks_make_lives() {
        let mut seen = Sightings::default();
        for now in [5, 9, 7] {
            seen.saw("fs", "n1", (7, 1), Some(2), now);
        }
        assert_eq!(seen.lives(), [life("fs", "n1", 7, 1, 2, 5, 9)]);
        seen.stands_still((7, 1));
        seen.saw("fs", "n1", (7, 1), Some(2), 20);
        assert_eq!(seen.lives(), [life("fs", "n1", 7, 1, 2, 20, 20), life("fs", "n1", 7, 1, 2, 5, 9)]);
    }
}
