//! Who is current, and whether a copy is what the record says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A copy, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Replica(pub u8);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaStanding {
    /// It has everything that was acknowledged.
    Current,
    /// It misses something.
    Behind {
        /// The last generation in which it was current; `None`: it never was.
        since: Option<u64>,
    },
}

/// What the engine keeps of a set. Changed by compare-and-set alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// No other set ever has it.
    pub set: u64,
    /// Rises with each primary.
    pub epoch: u32,
    /// It is current.
    pub primary: Replica,
    /// Rises whenever somebody stops or begins to be current.
    pub generation: u64,
    pub members: BTreeMap<Replica, ReplicaStanding>,
}

/// What lies beside a copy, durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyMark {
    pub set: u64,
    pub generation: u64,
    /// False while it catches up: a mixture of old and new.
    pub whole: bool,
    /// Of the machine, when it was last sure of what it has.
    pub boot: u64,
}

/// Whether a copy is what the record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyVerdict {
    Current,
    /// Its node died between record and mark, or its disk is an old one.
    Lagging,
    /// By the map of what it misses.
    CatchesUp,
    CopyAll,
    Refused(CopyRefused),
}

/// Nothing is changed on such a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyRefused {
    /// It is no member.
    Stranger,
    /// It is one of another set.
    Foreign,
    /// It knows of later things than the record: the engine was restored from an older copy.
    Ahead,
    /// There is nothing, and should be everything.
    Lost,
    /// It went on by itself.
    Diverged,
}

/// `mark`: `None` when there is no copy yet.
pub fn judge(record: &ReplicaRecord, member: Replica, mark: Option<&CopyMark>) -> CopyVerdict {
    let Some(standing) = record.members.get(&member) else { return CopyVerdict::Refused(CopyRefused::Stranger) };
    if mark.is_some_and(|mark| mark.set != record.set) {
        return CopyVerdict::Refused(CopyRefused::Foreign);
    }
    if mark.is_some_and(|mark| mark.generation > record.generation) {
        return CopyVerdict::Refused(CopyRefused::Ahead);
    }
    match (standing, mark) {
        (ReplicaStanding::Current, None) => CopyVerdict::Refused(CopyRefused::Lost),
        (ReplicaStanding::Current, Some(mark)) if mark.generation < record.generation || !mark.whole => {
            CopyVerdict::Lagging
        }
        (ReplicaStanding::Current, Some(_)) => CopyVerdict::Current,
        (ReplicaStanding::Behind { since: None }, _) | (ReplicaStanding::Behind { .. }, None) => CopyVerdict::CopyAll,
        (ReplicaStanding::Behind { since: Some(since) }, Some(mark)) if mark.generation > *since => {
            CopyVerdict::Refused(CopyRefused::Diverged)
        }
        (ReplicaStanding::Behind { since: Some(since) }, Some(mark)) if mark.generation < *since => {
            CopyVerdict::CopyAll
        }
        (ReplicaStanding::Behind { .. }, Some(_)) => CopyVerdict::CatchesUp,
    }
}

impl ReplicaRecord {
    /// A new set: its first member has what there is, the others get it.
    pub fn new(set: u64, primary: Replica, others: &[Replica]) -> ReplicaRecord {
        let behind = others.iter().map(|member| (*member, ReplicaStanding::Behind { since: None }));
        let members = behind.chain([(primary, ReplicaStanding::Current)]).collect();
        ReplicaRecord { set, epoch: 1, primary, generation: 1, members }
    }

    pub fn is_current(&self, member: Replica) -> bool {
        self.members.get(&member) == Some(&ReplicaStanding::Current)
    }

    pub fn current(&self) -> impl Iterator<Item = Replica> {
        let is_current = |entry: &(&Replica, &ReplicaStanding)| *entry.1 == ReplicaStanding::Current;
        self.members.iter().filter(is_current).map(|(member, _)| *member)
    }

    pub fn behind(&self) -> impl Iterator<Item = Replica> {
        self.members.iter().filter(|entry| *entry.1 != ReplicaStanding::Current).map(|(member, _)| *member)
    }

    /// These are current no more; never the primary.
    pub fn without(&self, leave: &[Replica]) -> ReplicaRecord {
        let mut next = ReplicaRecord { generation: self.generation + 1, ..self.clone() };
        for member in leave.iter().filter(|member| **member != self.primary && self.is_current(**member)) {
            next.members.insert(*member, ReplicaStanding::Behind { since: Some(self.generation) });
        }
        next
    }

    /// It has everything now.
    pub fn with(&self, member: Replica) -> ReplicaRecord {
        let mut next = ReplicaRecord { generation: self.generation + 1, ..self.clone() };
        if let Some(standing) = next.members.get_mut(&member) {
            *standing = ReplicaStanding::Current;
        }
        next
    }

    /// Another primary, or the same one in its next life. Who is current stays so: the new one may have to learn from
    /// the old one, and leaves it behind when it need not, and cannot reach it.
    ///
    /// `None`: that member is not current.
    pub fn succeeded_by(&self, member: Replica) -> Option<ReplicaRecord> {
        self.is_current(member).then(|| ReplicaRecord { epoch: self.epoch + 1, primary: member, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Replica = Replica(1);
    const TWO: Replica = Replica(2);

    fn record(standing: ReplicaStanding) -> ReplicaRecord {
        ReplicaRecord { set: 7, epoch: 3, primary: ONE, generation: 5, members: BTreeMap::from([(TWO, standing)]) }
    }

    fn mark(generation: u64, whole: bool) -> Option<CopyMark> {
        Some(CopyMark { set: 7, generation, whole, boot: 0 })
    }

    #[test]
    fn each_row_of_the_table() {
        use CopyVerdict::*;
        let current = ReplicaStanding::Current;
        let since = |since| ReplicaStanding::Behind { since };
        let rows = [
            (current, None, Refused(CopyRefused::Lost)),
            (current, mark(5, true), Current),
            (current, mark(4, true), Lagging),
            (current, mark(5, false), Lagging),
            (current, mark(4, false), Lagging),
            (current, mark(6, true), Refused(CopyRefused::Ahead)),
            (current, mark(6, false), Refused(CopyRefused::Ahead)),
            (since(None), None, CopyAll),
            (since(None), mark(5, true), CopyAll),
            (since(None), mark(0, false), CopyAll),
            (since(None), mark(6, true), Refused(CopyRefused::Ahead)),
            (since(Some(3)), None, CopyAll),
            (since(Some(3)), mark(3, true), CatchesUp),
            (since(Some(3)), mark(3, false), CatchesUp),
            (since(Some(3)), mark(2, true), CopyAll),
            (since(Some(3)), mark(2, false), CopyAll),
            (since(Some(3)), mark(4, true), Refused(CopyRefused::Diverged)),
            (since(Some(3)), mark(5, false), Refused(CopyRefused::Diverged)),
            (since(Some(3)), mark(6, true), Refused(CopyRefused::Ahead)),
        ];
        for (standing, mark, verdict) in rows {
            assert_eq!(judge(&record(standing), TWO, mark.as_ref()), verdict, "{standing:?} {mark:?}");
            let other = mark.map(|mark| CopyMark { set: 8, ..mark });
            if other.is_some() {
                let foreign = Refused(CopyRefused::Foreign);
                assert_eq!(judge(&record(standing), TWO, other.as_ref()), foreign);
            }
            assert_eq!(judge(&record(standing), ONE, mark.as_ref()), Refused(CopyRefused::Stranger));
        }
    }

    #[test]
    fn members_leave_come_back_and_succeed() {
        let first = ReplicaRecord::new(7, ONE, &[TWO]);
        assert_eq!(judge(&first, TWO, None), CopyVerdict::CopyAll);
        assert!(first.succeeded_by(TWO).is_none(), "it is not current");
        let both = first.with(TWO);
        assert_eq!((both.generation, both.current().count()), (2, 2));
        let alone = both.without(&[TWO, ONE]);
        assert_eq!((alone.generation, alone.current().collect::<Vec<_>>()), (3, vec![ONE]));
        assert_eq!(alone.members[&TWO], ReplicaStanding::Behind { since: Some(2) });
        let again = both.succeeded_by(ONE).unwrap();
        assert_eq!((again.epoch, again.generation, again.current().count()), (2, 2, 2));
        let next = both.succeeded_by(TWO).unwrap();
        assert_eq!((next.epoch, next.generation, next.primary), (2, 2, TWO));
        let without = next.without(&[ONE]);
        assert_eq!(without.members[&ONE], ReplicaStanding::Behind { since: Some(2) });
        assert_eq!(judge(&without, ONE, mark(2, true).as_ref()), CopyVerdict::CatchesUp);
    }
}
