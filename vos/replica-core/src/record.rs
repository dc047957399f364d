//! Who is current, and whether a copy is what the record says.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Who people do not want any more. The primary takes them out of the members, once it serves: only then is it sure
    /// to need nothing of theirs. Here they stay until their copies are gone.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub leaving: BTreeSet<Replica>,
    /// The last one that people asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
}

/// All current copies are compared with the primary's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verification {
    /// Rises with each.
    pub number: u64,
    /// Seconds since 1970 when it was asked for.
    pub asked_s: u64,
    /// What differs becomes what the primary has.
    pub repair: bool,
    /// `None`: it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Verified>,
}

/// What a verification found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Verified {
    /// Whose copy the others were compared with.
    pub primary: Option<Replica>,
    /// How many blocks of each copy that was current all the time differed.
    pub different: BTreeMap<Replica, u64>,
    /// The first of these blocks, of any copy.
    pub blocks: BTreeSet<u64>,
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
        ReplicaRecord { set, epoch: 1, primary, generation: 1, members, leaving: BTreeSet::new(), verification: None }
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

    /// About to be another one in the next generation.
    fn changed(&self) -> ReplicaRecord {
        ReplicaRecord { generation: self.generation + 1, ..self.clone() }
    }

    /// These are current no more; never the primary.
    pub fn without(&self, leave: &[Replica]) -> ReplicaRecord {
        let mut next = self.changed();
        for member in leave.iter().filter(|member| **member != self.primary && self.is_current(**member)) {
            next.members.insert(*member, ReplicaStanding::Behind { since: Some(self.generation) });
        }
        next
    }

    /// It has everything now.
    pub fn with(&self, member: Replica) -> ReplicaRecord {
        let mut next = self.changed();
        if let Some(standing) = next.members.get_mut(&member) {
            *standing = ReplicaStanding::Current;
        }
        next
    }

    /// One more member, which gets everything.
    ///
    /// `None`: it is one, or leaves.
    pub fn joined_by(&self, member: Replica) -> Option<ReplicaRecord> {
        let mut next = self.changed();
        let is_new = next.members.insert(member, ReplicaStanding::Behind { since: None }).is_none();
        (is_new && !self.leaving.contains(&member)).then_some(next)
    }

    /// A member that the primary is to take out.
    ///
    /// `None`: it is the primary, or none.
    pub fn dismissed(&self, member: Replica) -> Option<ReplicaRecord> {
        if member == self.primary || !self.members.contains_key(&member) {
            return None;
        }
        let mut next = self.changed();
        next.leaving.insert(member);
        Some(next)
    }

    /// A member that is one no more, whatever it has.
    ///
    /// `None`: it is the primary, or none.
    pub fn left_by(&self, member: Replica) -> Option<ReplicaRecord> {
        let mut next = self.changed();
        (member != self.primary && next.members.remove(&member).is_some()).then_some(next)
    }

    /// Who left, and whose copy is gone.
    pub fn forgotten(&self, member: Replica) -> ReplicaRecord {
        let mut next = self.changed();
        next.leaving.remove(&member);
        next
    }

    /// People want the copies to be compared.
    ///
    /// `None`: they are being compared.
    pub fn verifying(&self, repair: bool, asked_s: u64) -> Option<ReplicaRecord> {
        let goes_on = self.verification.as_ref().is_some_and(|it| it.found.is_none());
        let number = self.verification.as_ref().map_or(0, |it| it.number) + 1;
        let verification = Some(Verification { number, asked_s, repair, found: None });
        // Of the same generation: nobody's mark is older by that.
        (!goes_on).then(|| ReplicaRecord { verification, ..self.clone() })
    }

    /// They were. Those that shall become what the primary has are current no more, until they are.
    pub fn verified(&self, found: Verified) -> ReplicaRecord {
        let repair = self.verification.as_ref().is_some_and(|it| it.repair);
        let differ = found.different.iter().filter(|one| repair && *one.1 > 0);
        let mut next = self.without(&differ.map(|one| *one.0).collect::<Vec<_>>());
        if let Some(verification) = &mut next.verification {
            verification.found = Some(found);
        }
        next
    }

    /// People say that a member that is behind is to be primary, because nobody who has everything comes back: what it
    /// misses is lost. Whoever was current is refused when it comes back all the same, and nothing on it is changed.
    ///
    /// `None`: it is no member, is current, or has never been.
    pub fn forced(&self, member: Replica) -> Option<ReplicaRecord> {
        let Some(ReplicaStanding::Behind { since: Some(since) }) = self.members.get(&member).copied() else {
            return None;
        };
        let mut next = ReplicaRecord { epoch: self.epoch + 1, primary: member, ..self.changed() };
        next.leaving.remove(&member);
        for standing in next.members.values_mut() {
            match standing {
                ReplicaStanding::Current => *standing = ReplicaStanding::Behind { since: Some(since) },
                // It may know more than the one that is forced.
                ReplicaStanding::Behind { since: Some(other) } => *other = since.min(*other),
                ReplicaStanding::Behind { since: None } => {}
            }
        }
        next.members.insert(member, ReplicaStanding::Current);
        Some(next)
    }

    /// Another primary, or the same one in its next life. Who is current stays so: the new one may have to learn from
    /// the old one, and leaves it behind when it need not, and cannot reach it.
    ///
    /// `None`: that member is not current.
    pub fn succeeded_by(&self, member: Replica) -> Option<ReplicaRecord> {
        let mut next = ReplicaRecord { epoch: self.epoch + 1, primary: member, ..self.clone() };
        next.leaving.remove(&member);
        self.is_current(member).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Replica = Replica(1);
    const TWO: Replica = Replica(2);

    fn record(standing: ReplicaStanding) -> ReplicaRecord {
        let members = BTreeMap::from([(TWO, standing)]);
        ReplicaRecord {
            set: 7,
            epoch: 3,
            primary: ONE,
            generation: 5,
            members,
            leaving: BTreeSet::new(),
            verification: None,
        }
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
    fn members_are_added_and_taken_out() {
        let three = Replica(3);
        let both = ReplicaRecord::new(7, ONE, &[TWO]).with(TWO);
        assert_eq!((both.joined_by(TWO), both.left_by(ONE), both.left_by(three)), (None, None, None));
        let more = both.joined_by(three).unwrap();
        assert_eq!((more.generation, more.current().count(), more.behind().collect::<Vec<_>>()), (3, 2, vec![three]));
        // Also from an image of earlier times.
        assert_eq!(judge(&more, three, mark(1, true).as_ref()), CopyVerdict::CopyAll);
        assert_eq!((more.dismissed(ONE), more.dismissed(Replica(4))), (None, None));
        let dismissed = more.dismissed(TWO).unwrap();
        assert_eq!((dismissed.generation, dismissed.is_current(TWO)), (4, true), "until the primary says so");
        assert_eq!(dismissed.succeeded_by(TWO).unwrap().leaving, BTreeSet::new(), "nobody else is there");
        let less = dismissed.left_by(TWO).unwrap();
        assert_eq!((less.joined_by(TWO), less.forgotten(TWO).joined_by(TWO).is_some()), (None, true));
        assert_eq!((less.generation, less.current().collect::<Vec<_>>()), (5, vec![ONE]));
        assert_eq!(judge(&less, TWO, mark(4, true).as_ref()), CopyVerdict::Refused(CopyRefused::Stranger));
    }

    #[test]
    fn who_is_forced_serves_and_who_knew_more_is_refused() {
        let alone = ReplicaRecord::new(7, ONE, &[TWO]).with(TWO).without(&[TWO]);
        assert_eq!((alone.forced(ONE), alone.forced(Replica(3))), (None, None));
        let never = ReplicaRecord::new(7, ONE, &[TWO]);
        assert_eq!(never.forced(TWO), None, "it never had everything");
        let forced = alone.forced(TWO).unwrap();
        assert_eq!((forced.epoch, forced.primary, forced.generation), (alone.epoch + 1, TWO, alone.generation + 1));
        assert_eq!(forced.current().collect::<Vec<_>>(), [TWO]);
        // It was marked last when it was current.
        assert_eq!(judge(&forced, TWO, mark(2, true).as_ref()), CopyVerdict::Lagging);
        assert_eq!(judge(&forced, ONE, mark(3, true).as_ref()), CopyVerdict::Refused(CopyRefused::Diverged));
    }

    #[test]
    fn copies_are_compared_once_at_a_time_and_those_that_differ_are_left_behind_if_that_was_asked() {
        let both = ReplicaRecord::new(7, ONE, &[TWO]).with(TWO);
        for repair in [false, true] {
            let asked = both.verifying(repair, 100).unwrap();
            assert_eq!((asked.generation, asked.verifying(repair, 101)), (2, None));
            let found =
                |blocks| Verified { primary: Some(ONE), different: [(TWO, blocks)].into(), ..Verified::default() };
            assert_eq!(asked.verified(found(0)).current().count(), 2);
            let differs = asked.verified(found(2));
            assert_eq!((differs.generation, differs.current().count()), (3, if repair { 1 } else { 2 }));
            assert_eq!(differs.verification.as_ref().unwrap().found, Some(found(2)));
            assert_eq!(differs.verifying(false, 102).unwrap().verification.unwrap().number, 2);
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
