//! What a member does with what the primary says: in which order its copy and what lies beside it are changed, and when
//! the answer goes. The primary's own copy has one, too.

use std::collections::{BTreeMap, BTreeSet};

use crate::encoding::CopyState;
use crate::lease::Promised;
use crate::message::{Recent, ReplicaAnswer, ReplicaMessage};
use crate::record::{CopyMark, Replica};
use crate::{BlockRange, Extent, Layout, RangeSet};

/// What lies beside a copy. Kept as a whole: after a loss of power it is the one before or this.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// `None`: there is no copy yet.
    pub mark: Option<CopyMark>,
    /// The highest epoch that was heard.
    pub fence: u32,
    /// The activity log.
    pub hot: BTreeSet<Extent>,
    /// The extents that each member that is behind misses, but for what is in the activity log.
    pub behind: BTreeMap<Replica, RangeSet>,
}

/// Names an operation until it is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OperationTicket(pub u64);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CopyOperation<D> {
    /// Durable when it is done.
    Keep(Kept),
    Write {
        range: BlockRange,
        data: D,
    },
    /// All that was written before it began is durable when it is done.
    Flush,
    /// The checksums of these blocks, as they are on the medium: [`Backup::summed`] is told.
    Sum(BlockRange),
}

/// What a backup wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BackupAct<D> {
    /// On its copy, or beside it; then [`Backup::done`], or [`Backup::summed`].
    Do(OperationTicket, CopyOperation<D>),
    /// To the primary of that epoch.
    Answer(u32, ReplicaAnswer),
}

/// What follows an operation.
#[derive(Clone, Debug)]
enum Then<D> {
    Answer(u32, ReplicaAnswer),
    Welcome(u32),
    Write { asked: Writing, range: BlockRange, data: D },
    Written(Writing),
}

/// A write, or a copy, that is to be accepted.
#[derive(Clone, Copy, Debug)]
struct Writing {
    epoch: u32,
    seq: u64,
    /// When it is durable.
    durable: bool,
}

/// A member's side.
pub struct Backup<D> {
    layout: Layout,
    set: u64,
    boot: u64,
    /// As it shall be kept.
    wanted: Kept,
    /// As it is.
    kept: Kept,
    /// What is being kept, with what waits for it.
    keeping: Option<(OperationTicket, Kept, Vec<Then<D>>)>,
    /// What waits for the next time.
    waiting: Vec<Then<D>>,
    under_way: BTreeMap<OperationTicket, Then<D>>,
    /// Wait until no write is under way that was said before: what is said again must not be done after a later one.
    greetings: Vec<u32>,
    next_ticket: u64,
    /// Of extents in the activity log that were written in this life: by whom and when last.
    last: BTreeMap<Extent, (u32, u64)>,
    recent: BTreeMap<(u32, u64), BlockRange>,
    /// Nothing was written since it began: what was recent before is known by extents alone.
    began: bool,
    is_doubtful: bool,
    promised: Promised,
}

impl<D: Clone> Backup<D> {
    /// `boot`: of the machine, as it is now.
    pub fn begin(layout: Layout, set: u64, boot: u64, kept: Kept, now_ms: u64) -> Backup<D> {
        let is_another_boot = kept.mark.is_some_and(|mark| mark.boot != boot);
        let is_doubtful = is_another_boot && !kept.hot.is_empty();
        let mut wanted = kept.clone();
        // It lost nothing, and is sure of what it has: what is written from now on, and kept with this, is of this
        // boot.
        if let Some(mark) = wanted.mark.as_mut().filter(|_| !is_doubtful) {
            mark.boot = boot;
        }
        Backup {
            layout,
            set,
            boot,
            is_doubtful,
            wanted,
            kept,
            keeping: None,
            waiting: Vec::new(),
            under_way: BTreeMap::new(),
            greetings: Vec::new(),
            next_ticket: 0,
            last: BTreeMap::new(),
            recent: BTreeMap::new(),
            began: true,
            promised: Promised::at_begin(now_ms),
        }
    }

    pub fn mark(&self) -> Option<CopyMark> {
        self.wanted.mark
    }

    /// The highest epoch that it heard.
    pub fn fence(&self) -> u32 {
        self.wanted.fence
    }

    pub fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// From when on it may be primary.
    pub fn promised_until_ms(&self) -> u64 {
        self.promised.until_ms()
    }

    /// Who speaks is the primary of `epoch`, or was.
    pub fn hear(&mut self, epoch: u32, message: ReplicaMessage<D>, now_ms: u64) -> Vec<BackupAct<D>> {
        if epoch < self.wanted.fence {
            return vec![BackupAct::Answer(epoch, ReplicaAnswer::Outdated { epoch: self.wanted.fence })];
        }
        let mut todo = Vec::new();
        let is_new = epoch > self.wanted.fence;
        self.wanted.fence = epoch;
        match message {
            ReplicaMessage::Hello => self.after_keeping(is_new, Then::Welcome(epoch), &mut todo),
            ReplicaMessage::Write { seq, floor, flushed, range, data, durable } => {
                // Whoever writes has settled: what was before is the same everywhere, and durable.
                self.began = false;
                self.recent.retain(|(of, seq), _| *of == epoch && *seq >= floor);
                self.make_room(epoch, flushed, range);
                for missing in self.wanted.behind.values_mut() {
                    self.layout.extents_of(range).for_each(|extent| missing.insert_one(extent.0));
                }
                self.write(Writing { epoch, seq, durable }, range, data, is_new, &mut todo);
            }
            ReplicaMessage::Copy { seq, range, data } => {
                self.write(Writing { epoch, seq, durable: false }, range, data, is_new, &mut todo);
            }
            ReplicaMessage::Flush { seq } => {
                self.flush_then(Then::Answer(epoch, ReplicaAnswer::Durable { seq }), &mut todo);
            }
            ReplicaMessage::Sum { seq, range } => {
                let ticket = self.ticket();
                self.under_way.insert(ticket, Then::Answer(epoch, ReplicaAnswer::Sums { seq, sums: Vec::new() }));
                todo.push(BackupAct::Do(ticket, CopyOperation::Sum(range)));
            }
            ReplicaMessage::Mark { generation, whole, behind } => {
                if whole && !self.is_whole() {
                    // It is as the others are, and all of it was flushed.
                    self.wanted.hot.clear();
                    self.last.clear();
                }
                self.wanted.mark = Some(CopyMark { set: self.set, generation, whole, boot: self.boot });
                self.wanted.behind = behind;
                self.is_doubtful &= !whole;
                self.after_keeping(true, Then::Answer(epoch, ReplicaAnswer::Marked { generation, whole }), &mut todo);
            }
            ReplicaMessage::Lease { asked_ms } => {
                self.promised.grant(now_ms);
                // Nobody reads under the lease of an epoch that a member could forget.
                self.after_keeping(is_new, Then::Answer(epoch, ReplicaAnswer::Granted { asked_ms }), &mut todo);
            }
        }
        todo
    }

    /// That operation is done.
    pub fn done(&mut self, ticket: OperationTicket) -> Vec<BackupAct<D>> {
        let mut todo = Vec::new();
        if let Some((_, kept, then)) = self.keeping.take_if(|keeping| keeping.0 == ticket) {
            self.kept = kept;
            then.into_iter().for_each(|then| self.go_on(then, &mut todo));
            self.keep_if_due(&mut todo);
        } else if let Some(then) = self.under_way.remove(&ticket) {
            self.go_on(then, &mut todo);
            std::mem::take(&mut self.greetings)
                .into_iter()
                .for_each(|epoch| self.go_on(Then::Welcome(epoch), &mut todo));
        }
        todo
    }

    /// Whether that operation is a write, or a copy, to its own copy.
    pub fn is_write(&self, ticket: OperationTicket) -> bool {
        matches!(self.under_way.get(&ticket), Some(Then::Written(_)))
    }

    /// That write found no room, or not for all of it.
    pub fn refused(&mut self, ticket: OperationTicket) -> Vec<BackupAct<D>> {
        if let Some(then) = self.under_way.get_mut(&ticket)
            && let Then::Written(Writing { epoch, seq, .. }) = *then
        {
            *then = Then::Answer(epoch, ReplicaAnswer::NoRoom { seq });
        }
        self.done(ticket)
    }

    /// These are the checksums that were wanted.
    pub fn summed(&mut self, ticket: OperationTicket, found: Vec<u32>) -> Vec<BackupAct<D>> {
        if let Some(Then::Answer(_, ReplicaAnswer::Sums { sums, .. })) = self.under_way.get_mut(&ticket) {
            *sums = found;
        }
        self.done(ticket)
    }

    fn is_whole(&self) -> bool {
        self.wanted.mark.is_some_and(|mark| mark.whole)
    }

    fn ticket(&mut self) -> OperationTicket {
        self.next_ticket += 1;
        OperationTicket(self.next_ticket)
    }

    fn write(&mut self, asked: Writing, range: BlockRange, data: D, is_new: bool, todo: &mut Vec<BackupAct<D>>) {
        let of = (asked.epoch, asked.seq);
        // What a member that catches up misses is known to the others; what it had on its own account stays known.
        let mut must_keep = is_new;
        if self.is_whole() {
            self.recent.insert(of, range);
            for extent in self.layout.extents_of(range) {
                self.last.insert(extent, of);
                self.wanted.hot.insert(extent);
                must_keep |= !self.kept.hot.contains(&extent);
            }
        }
        self.after_keeping(must_keep, Then::Write { asked, range, data }, todo);
    }

    /// What is durable everywhere need not be in the activity log; what others miss of it is kept before it goes. It
    /// stays as long as there is room: whoever writes there again has nothing to keep.
    fn make_room(&mut self, epoch: u32, flushed: u64, range: BlockRange) {
        let more = self.layout.extents_of(range).filter(|extent| !self.wanted.hot.contains(extent)).count();
        if !self.is_whole() || more == 0 || self.wanted.hot.len() + more <= self.layout.hot_extents {
            return;
        }
        let last = &self.last;
        let is_hot = |extent: &Extent| last.get(extent).is_some_and(|(of, seq)| *of == epoch && *seq > flushed);
        // Who is behind gets what is forgotten, also of an earlier life.
        let forgotten: Vec<Extent> = self.wanted.hot.iter().copied().filter(|extent| !is_hot(extent)).collect();
        self.wanted.hot.retain(is_hot);
        for missing in self.wanted.behind.values_mut() {
            missing.insert_extents(&forgotten);
        }
        self.last.retain(|_, (of, seq)| *of == epoch && *seq > flushed);
    }

    fn after_keeping(&mut self, must_keep: bool, then: Then<D>, todo: &mut Vec<BackupAct<D>>) {
        if !must_keep && self.keeping.is_none() {
            return self.go_on(then, todo);
        }
        self.waiting.push(then);
        self.keep_if_due(todo);
    }

    fn keep_if_due(&mut self, todo: &mut Vec<BackupAct<D>>) {
        if self.keeping.is_some() || self.waiting.is_empty() {
            return;
        }
        let ticket = self.ticket();
        todo.push(BackupAct::Do(ticket, CopyOperation::Keep(self.wanted.clone())));
        self.keeping = Some((ticket, self.wanted.clone(), std::mem::take(&mut self.waiting)));
    }

    fn go_on(&mut self, then: Then<D>, todo: &mut Vec<BackupAct<D>>) {
        match then {
            Then::Answer(epoch, answer) => todo.push(BackupAct::Answer(epoch, answer)),
            Then::Welcome(epoch) => match self.under_way.values().any(|then| matches!(then, Then::Written(_))) {
                true => self.greetings.push(epoch),
                false => todo.push(BackupAct::Answer(epoch, self.welcome())),
            },
            // Its successor was heard meanwhile.
            Then::Write { asked, .. } if asked.epoch < self.wanted.fence => {
                todo.push(BackupAct::Answer(asked.epoch, ReplicaAnswer::Outdated { epoch: self.wanted.fence }));
            }
            Then::Write { asked, range, data } => {
                let ticket = self.ticket();
                self.under_way.insert(ticket, Then::Written(asked));
                todo.push(BackupAct::Do(ticket, CopyOperation::Write { range, data }));
            }
            Then::Written(Writing { epoch, seq, durable }) => {
                let accepted = Then::Answer(epoch, ReplicaAnswer::Accepted { seq });
                match durable {
                    true => self.flush_then(accepted, todo),
                    false => self.go_on(accepted, todo),
                }
            }
        }
    }

    fn flush_then(&mut self, then: Then<D>, todo: &mut Vec<BackupAct<D>>) {
        let ticket = self.ticket();
        self.under_way.insert(ticket, then);
        todo.push(BackupAct::Do(ticket, CopyOperation::Flush));
    }

    fn welcome(&self) -> ReplicaAnswer {
        let hot = self.wanted.hot.clone();
        let recent = match self.began {
            true => Recent::Extents(hot.clone()),
            false => {
                let mut blocks = RangeSet::default();
                self.recent.values().for_each(|range| blocks.insert_blocks(*range));
                Recent::Blocks(blocks)
            }
        };
        ReplicaAnswer::Welcome(CopyState {
            mark: self.wanted.mark,
            is_doubtful: self.is_doubtful,
            // Whoever has the medium knows.
            is_blank: false,
            recent,
            hot,
            behind: self.wanted.behind.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { blocks: 24, extent_blocks: 4, hot_extents: 3 };

    /// What it keeps when it is told to write.
    fn written(backup: &mut Backup<()>) -> Kept {
        let range = BlockRange::one(5);
        let write = ReplicaMessage::Write { seq: 1, floor: 1, flushed: 0, range, data: (), durable: false };
        let acts = backup.hear(1, write, 0);
        let kept = acts.into_iter().find_map(|act| match act {
            BackupAct::Do(_, CopyOperation::Keep(kept)) => Some(kept),
            _ => None,
        });
        kept.expect("the extent is kept")
    }

    #[test]
    fn who_lost_nothing_with_its_power_is_not_in_doubt_when_it_is_only_started_again() {
        let mark = Some(CopyMark { set: 7, generation: 3, whole: true, boot: 1 });
        let idle = Kept { mark, fence: 1, ..Kept::default() };
        let mut backup = Backup::begin(LAYOUT, 7, 2, idle, 0);
        assert!(!backup.is_doubtful());
        let kept = written(&mut backup);
        assert!(!Backup::<()>::begin(LAYOUT, 7, 2, kept.clone(), 0).is_doubtful(), "the same boot");
        assert!(Backup::<()>::begin(LAYOUT, 7, 3, kept.clone(), 0).is_doubtful(), "it lost power meanwhile");
        // In doubt it stays so until it is marked.
        let mut doubtful = Backup::<()>::begin(LAYOUT, 7, 3, kept, 0);
        doubtful.hear(2, ReplicaMessage::Hello, 0);
        assert!(Backup::<()>::begin(LAYOUT, 7, 3, doubtful.wanted, 0).is_doubtful());
    }
}
