//! What an election looked like: one leader in a term, and terms that only rise.
//!
//! Watchers are told what their node knows, which may be late, so there is no one order to be found. But a token is one
//! term: whoever speaks of it must name the same leader, and no watcher may be told of an earlier term after a later
//! one.

use std::collections::BTreeMap;

/// Somebody leads, as this watcher was told; or as the leader itself was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Watchers that are told in order: one session at one server.
    pub watcher: u64,
    /// In the order in which this watcher heard.
    pub at: u64,
    pub token: u64,
    pub leader: String,
}

/// What contradicts itself, in words. Empty: nothing.
pub fn contradictions(told: &[Told]) -> Vec<String> {
    let mut leaders = BTreeMap::<u64, &Told>::new();
    let mut last = BTreeMap::<u64, &Told>::new();
    let mut found = Vec::new();
    let mut in_order: Vec<&Told> = told.iter().collect();
    in_order.sort_by_key(|one| one.at);
    for one in in_order {
        let first = leaders.entry(one.token).or_insert(one);
        if first.leader != one.leader {
            found.push(format!("two leaders in one term: {first:?} and {one:?}"));
        }
        if let Some(before) = last.insert(one.watcher, one).filter(|before| before.token > one.token) {
            found.push(format!("an earlier term after a later one: {before:?}, then {one:?}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(watcher: u64, at: u64, token: u64, leader: &str) -> Told {
        Told { watcher, at, token, leader: leader.to_owned() }
    }

    #[test]
    fn watchers_that_are_late_contradict_nobody() {
        let fine = [told(1, 1, 10, "a"), told(1, 2, 12, "b"), told(2, 3, 10, "a"), told(2, 4, 10, "a")];
        assert_eq!(contradictions(&fine), Vec::<String>::new());
    }

    #[test]
    fn two_leaders_in_a_term_and_terms_that_fall_are_found() {
        assert_eq!(contradictions(&[told(1, 1, 10, "a"), told(2, 2, 10, "b")]).len(), 1);
        assert_eq!(contradictions(&[told(1, 2, 10, "a"), told(1, 1, 12, "b")]).len(), 1);
    }
}
