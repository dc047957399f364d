//! Descriptors that members make the broker hold, and who holds how many.
//!
//! The broker shares its process, and so its limit of descriptors, with the daemon. A member pays for what is held for
//! its sake: its connection, and every channel that it opens for as long as that lives. A member that asks for more
//! than its part is refused with `TableFull`; nobody else notices. Servers pay nothing: the daemon started them, and so
//! many.
//!
//! A channel to another node costs memory too, which the proxies fill: that is one more sum of a container.
//!
//! A [`Charge`] lies beside what it pays for and ends with it, so nobody can forget to give back.

use std::collections::HashMap;
use std::sync::Arc;

use abi::{DcId, IpcError};
use parking_lot::Mutex;

use crate::limits::{
    ARENA_BYTES_OF_DC, DESCRIPTOR_PARTS, DESCRIPTORS_OF_ALL, DESCRIPTORS_OF_DC, DESCRIPTORS_OF_PROCESS,
    DESCRIPTORS_OF_USER,
};

/// Who pays. A caller of another node has no process and no user here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub dc: DcId,
    pub person: Option<Person>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Person {
    pub uid: u32,
    pub pid: i32,
}

/// One sum that is bounded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Holder {
    All,
    Dc(DcId),
    User(DcId, u32),
    Process(DcId, i32),
    /// In bytes.
    Arenas(DcId),
}

impl Holder {
    /// `descriptors`: those of the process.
    fn limit(self, descriptors: usize) -> usize {
        let parts = match self {
            Holder::All => DESCRIPTORS_OF_ALL,
            Holder::Dc(_) => DESCRIPTORS_OF_DC,
            Holder::User(..) => DESCRIPTORS_OF_USER,
            Holder::Process(..) => DESCRIPTORS_OF_PROCESS,
            Holder::Arenas(_) => return ARENA_BYTES_OF_DC,
        };
        descriptors / DESCRIPTOR_PARTS * parts
    }
}

/// What is paid for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cost {
    pub descriptors: usize,
    /// Of a channel that a proxy carries.
    pub arena_bytes: usize,
}

impl Cost {
    pub fn of_descriptors(descriptors: usize) -> Cost {
        Cost { descriptors, arena_bytes: 0 }
    }
}

impl Member {
    /// Whose sums rise by a cost, and by how much.
    fn bill(self, cost: Cost) -> impl Iterator<Item = (Holder, usize)> {
        let person = self.person.map(|it| [Holder::User(self.dc, it.uid), Holder::Process(self.dc, it.pid)]);
        let of_descriptors = [Holder::All, Holder::Dc(self.dc)].into_iter().chain(person.into_iter().flatten());
        let arenas = (cost.arena_bytes > 0).then_some((Holder::Arenas(self.dc), cost.arena_bytes));
        of_descriptors.map(move |holder| (holder, cost.descriptors)).chain(arenas)
    }
}

#[derive(Debug)]
pub(crate) struct Ledger {
    limit: usize,
    held: Held,
}

/// Only the broker's thread uses it; it is shared with the charges.
type Held = Arc<Mutex<HashMap<Holder, usize>>>;

/// What somebody pays for. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    member: Member,
    cost: Cost,
    held: Held,
}

impl Ledger {
    /// `limit`: descriptors this process may have.
    pub fn new(limit: usize) -> Ledger {
        Ledger { limit, held: Held::default() }
    }

    pub fn of_this_process() -> Ledger {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Ledger::new(limit.map_or(usize::MAX / DESCRIPTOR_PARTS, |limit| limit as usize))
    }

    /// `TableFull` when the member, or somebody it is part of, would hold too much.
    pub fn charge(&self, member: Member, cost: Cost) -> Result<Charge, IpcError> {
        let held = self.held.lock();
        let has_room = |(holder, count): (Holder, usize)| {
            let sum = held.get(&holder).copied().unwrap_or(0).saturating_add(count);
            sum <= holder.limit(self.limit)
        };
        let all = member.bill(cost).all(has_room);
        drop(held);
        if all { Ok(self.charge_anyway(member, cost)) } else { Err(IpcError::TableFull) }
    }

    /// For what is there already.
    pub fn charge_anyway(&self, member: Member, cost: Cost) -> Charge {
        Charge::new(member, cost, self.held.clone())
    }
}

impl Charge {
    fn new(member: Member, cost: Cost, held: Held) -> Charge {
        {
            let mut sums = held.lock();
            member.bill(cost).for_each(|(holder, count)| *sums.entry(holder).or_default() += count);
        }
        Charge { member, cost, held }
    }

    /// So many descriptors more on the same account, for something that ends earlier.
    pub fn besides(&self, descriptors: usize) -> Charge {
        Charge::new(self.member, Cost::of_descriptors(descriptors), self.held.clone())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut sums = self.held.lock();
        for (holder, count) in self.member.bill(self.cost) {
            if let Some(sum) = sums.get_mut(&holder) {
                *sum = sum.saturating_sub(count);
                if *sum == 0 {
                    sums.remove(&holder);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 100;

    fn member(dc: u32, uid: u32, pid: i32) -> Member {
        Member { dc: DcId(dc), person: Some(Person { uid, pid }) }
    }

    fn ledger() -> Ledger {
        Ledger::new(PART * DESCRIPTOR_PARTS)
    }

    /// As many charges of one part as it gets.
    fn take_all(ledger: &Ledger, member: impl Fn(usize) -> Member) -> Vec<Charge> {
        (0..DESCRIPTOR_PARTS).map_while(|index| ledger.charge(member(index), Cost::of_descriptors(PART)).ok()).collect()
    }

    #[test]
    fn process_user_and_container_each_have_their_part_and_leave_the_others_theirs() {
        let ledger = ledger();
        let of_process = take_all(&ledger, |_| member(1, 5, 77));
        assert_eq!(of_process.len(), DESCRIPTORS_OF_PROCESS);
        let of_user = take_all(&ledger, |index| member(1, 5, 100 + index as i32));
        assert_eq!(of_process.len() + of_user.len(), DESCRIPTORS_OF_USER);
        let of_dc = take_all(&ledger, |index| member(1, 6 + index as u32, 200 + index as i32));
        assert_eq!(of_process.len() + of_user.len() + of_dc.len(), DESCRIPTORS_OF_DC);
        let remote = Member { dc: DcId(1), person: None };
        assert_eq!(ledger.charge(remote, Cost::of_descriptors(1)).unwrap_err(), IpcError::TableFull);
        let of_another = take_all(&ledger, |_| member(2, 5, 77));
        assert_eq!(of_another.len(), DESCRIPTORS_OF_ALL - DESCRIPTORS_OF_DC);
    }

    #[test]
    fn arenas_that_proxies_fill_are_bounded_for_each_container() {
        let ledger = ledger();
        let of_a_channel = Cost { descriptors: 1, arena_bytes: ARENA_BYTES_OF_DC / 4 };
        let mut open: Vec<Charge> = (0..4).map(|pid| ledger.charge(member(1, 5, pid), of_a_channel).unwrap()).collect();
        assert_eq!(ledger.charge(member(1, 6, 9), of_a_channel).unwrap_err(), IpcError::TableFull);
        let remote = Member { dc: DcId(1), person: None };
        assert_eq!(ledger.charge(remote, of_a_channel).unwrap_err(), IpcError::TableFull, "opened from another node");
        assert!(ledger.charge(member(1, 6, 9), Cost::of_descriptors(1)).is_ok(), "without an arena");
        assert!(ledger.charge(member(2, 6, 9), of_a_channel).is_ok(), "another container");
        open.pop();
        assert!(ledger.charge(member(1, 6, 9), of_a_channel).is_ok());
    }

    #[test]
    fn what_ends_is_given_back_and_nothing_is_left() {
        let ledger = ledger();
        let charges = take_all(&ledger, |_| member(1, 5, 77));
        let more = charges[0].besides(3);
        assert_eq!(ledger.charge(member(1, 5, 77), Cost::of_descriptors(1)).unwrap_err(), IpcError::TableFull);
        drop(charges);
        assert!(ledger.charge(member(1, 5, 77), Cost::of_descriptors(PART)).is_ok());
        drop(more);
        assert!(ledger.held.lock().is_empty());
    }
}
