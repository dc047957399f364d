//! What an endpoint has lent, and to whom.
//!
//! A slot is free or holds one grant. Its generation counts the grants it has held, so that a number names one grant
//! for ever: a smaller generation than the slot's was revoked, a larger one was never given. A slot whose generations
//! are used up is not used again.
//!
//! Not here: the memory (`M` is whatever names it), who asks (`kernel/ipc` says it by the broker's word).

use std::num::NonZeroU64;

use abi::limits::GRANTS_PER_ENDPOINT;
use abi::{Direction, Endpoint, GrantId, IpcError};

const _: () = assert!(GRANTS_PER_ENDPOINT <= 1 << 16);

#[derive(Clone, Debug)]
struct Grant<M> {
    to: Endpoint,
    /// What the incarnation of `to` that may use it is called, once that is known.
    incarnation: Option<u64>,
    direction: Direction,
    bytes: u64,
    memory: M,
}

#[derive(Clone, Debug)]
struct Slot<M> {
    /// Of the grant it holds, or of the next one.
    generation: u32,
    grant: Option<Grant<M>>,
}

/// Which process that ever had an endpoint is meant. Two of one endpoint share neither number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incarnation {
    /// The serial number of its control page here. An endpoint of another node may get another page, and be the same
    /// process.
    pub page: u64,
    /// Of its page on its own node, as far as that is known here.
    pub home: Option<NonZeroU64>,
}

impl Incarnation {
    /// The better of its numbers.
    fn name(self) -> u64 {
        self.home.map_or(self.page, NonZeroU64::get)
    }

    fn is_called(self, name: u64) -> bool {
        name == self.page || name == self.name()
    }
}

/// What a copier wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    pub by: Endpoint,
    pub incarnation: Incarnation,
    pub wanted: Direction,
    pub offset: u64,
    pub end: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Grants<M> {
    slots: Vec<Slot<M>>,
    free: Vec<u16>,
}

impl<M> Default for Grants<M> {
    fn default() -> Grants<M> {
        Grants { slots: Vec::new(), free: Vec::new() }
    }
}

impl<M> Grants<M> {
    /// Lends `bytes` of `memory` to `to`; to this incarnation of it, or to the first that uses it.
    pub fn give(
        &mut self,
        to: Endpoint,
        incarnation: Option<Incarnation>,
        direction: Direction,
        bytes: u64,
        memory: M,
    ) -> Result<GrantId, IpcError> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.slots.len() < GRANTS_PER_ENDPOINT => {
                self.slots.push(Slot { generation: 1, grant: None });
                (self.slots.len() - 1) as u16
            }
            None => return Err(IpcError::TableFull),
        };
        let slot = self.slots.get_mut(usize::from(number)).ok_or(IpcError::TableFull)?;
        let incarnation = incarnation.map(Incarnation::name);
        slot.grant = Some(Grant { to, incarnation, direction, bytes, memory });
        Ok(GrantId::new(number, slot.generation))
    }

    pub fn revoke(&mut self, id: GrantId) -> Result<M, IpcError> {
        let slot = self.slots.get_mut(id.slot()).ok_or(IpcError::UnknownGrant)?;
        slot.check(id)?;
        let grant = slot.grant.take().ok_or(IpcError::UnknownGrant)?;
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(id.slot() as u16);
        }
        Ok(grant.memory)
    }

    /// The memory of a grant, when the copier may do with it what it wants.
    pub fn used(&mut self, id: GrantId, wish: &Use) -> Result<&M, IpcError> {
        let slot = self.slots.get_mut(id.slot()).ok_or(IpcError::UnknownGrant)?;
        slot.check(id)?;
        let grant = slot.grant.as_mut().ok_or(IpcError::UnknownGrant)?;
        if grant.to != wish.by {
            return Err(IpcError::Denied);
        }
        if grant.incarnation.is_some_and(|name| !wish.incarnation.is_called(name)) {
            return Err(IpcError::Revoked);
        }
        grant.incarnation = Some(wish.incarnation.name());
        if !grant.direction.allows(wish.wanted) {
            return Err(IpcError::WrongDirection);
        }
        if wish.offset > wish.end || wish.end > grant.bytes {
            return Err(IpcError::OutOfGrant);
        }
        Ok(&grant.memory)
    }

    /// The memory of a grant as its owner copies from it or to it, as it was lent: `offset..end` must lie inside.
    pub fn own(&self, id: GrantId, wanted: Direction, offset: u64, end: u64) -> Result<&M, IpcError> {
        let slot = self.slots.get(id.slot()).ok_or(IpcError::UnknownGrant)?;
        slot.check(id)?;
        let grant = slot.grant.as_ref().ok_or(IpcError::UnknownGrant)?;
        if !grant.direction.allows(wanted) {
            return Err(IpcError::WrongDirection);
        }
        if offset > end || end > grant.bytes { Err(IpcError::OutOfGrant) } else { Ok(&grant.memory) }
    }
}

impl<M> Slot<M> {
    fn check(&self, id: GrantId) -> Result<(), IpcError> {
        let current = u64::from(self.generation);
        match id.generation() {
            0 => Err(IpcError::UnknownGrant),
            given if given < current => Err(IpcError::Revoked),
            // The last generation of a slot has no next one to tell it by.
            given if given == current && self.grant.is_none() && self.generation == u32::MAX => Err(IpcError::Revoked),
            given if given == current => Ok(()),
            _ => Err(IpcError::UnknownGrant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const SERVER: Endpoint = Endpoint::FS;
    const NEAR: Incarnation = of_page(1, 1);

    /// `home` 0: not known.
    const fn of_page(page: u64, home: u64) -> Incarnation {
        Incarnation { page, home: NonZeroU64::new(home) }
    }

    fn read_by(by: Endpoint, offset: u64, end: u64) -> Use {
        Use { by, incarnation: NEAR, wanted: Direction::Read, offset, end }
    }

    #[test]
    fn grant_is_good_for_its_endpoint_range_and_direction_only() {
        let mut grants = Grants::default();
        let id = grants.give(SERVER, None, Direction::Read, 100, "memory").unwrap();
        assert_eq!(grants.used(id, &read_by(SERVER, 0, 100)), Ok(&"memory"));
        assert_eq!(grants.used(id, &read_by(SERVER, 0, 101)), Err(IpcError::OutOfGrant));
        assert_eq!(grants.used(id, &read_by(SERVER, 5, 4)), Err(IpcError::OutOfGrant));
        assert_eq!(grants.used(id, &read_by(Endpoint::DS, 0, 1)), Err(IpcError::Denied));
        let write = Use { wanted: Direction::Write, ..read_by(SERVER, 0, 1) };
        assert_eq!(grants.used(id, &write), Err(IpcError::WrongDirection));
    }

    #[test]
    fn owner_uses_a_grant_as_it_was_lent() {
        let mut grants = Grants::default();
        let id = grants.give(SERVER, None, Direction::Read, 100, "memory").unwrap();
        assert_eq!(grants.own(id, Direction::Read, 0, 100), Ok(&"memory"));
        assert_eq!(grants.own(id, Direction::Read, 0, 101), Err(IpcError::OutOfGrant));
        assert_eq!(grants.own(id, Direction::Write, 0, 100), Err(IpcError::WrongDirection));
    }

    #[test]
    fn later_owner_of_the_number_does_not_inherit_the_grant() {
        let mut grants = Grants::default();
        let id = grants.give(SERVER, None, Direction::Read, 1, ()).unwrap();
        grants.used(id, &read_by(SERVER, 0, 1)).unwrap();
        let later = Use { incarnation: of_page(2, 2), ..read_by(SERVER, 0, 1) };
        assert_eq!(grants.used(id, &later), Err(IpcError::Revoked));
    }

    #[test]
    fn grant_follows_a_process_of_another_node_to_its_next_page_here() {
        let mut grants = Grants::default();
        // Its node may not have said yet which one it is.
        let known = [None, Some(of_page(10, 7)), Some(of_page(10, 0))];
        let ids = known.map(|it| grants.give(SERVER, it, Direction::Read, 1, ()).unwrap());
        let mut use_as = |id, page, home| {
            let wish = Use { incarnation: of_page(page, home), ..read_by(SERVER, 0, 1) };
            grants.used(id, &wish).map(drop)
        };
        for id in ids {
            assert_eq!(use_as(id, 10, 7), Ok(()));
            assert_eq!(use_as(id, 11, 7), Ok(()), "the same process with another page");
            assert_eq!(use_as(id, 11, 8), Err(IpcError::Revoked), "another process that was given the same page");
            assert_eq!(use_as(id, 12, 0), Err(IpcError::Revoked));
        }
    }

    #[test]
    fn table_takes_its_limit_and_no_more() {
        let mut grants = Grants::default();
        for _ in 0..GRANTS_PER_ENDPOINT {
            grants.give(SERVER, None, Direction::Read, 1, ()).unwrap();
        }
        assert_eq!(grants.give(SERVER, None, Direction::Read, 1, ()), Err(IpcError::TableFull));
    }

    proptest! {
        /// Against a map that never forgets: a live grant is found, a revoked one is `Revoked`, any other number
        /// unknown.
        #[test]
        fn every_number_names_one_grant_for_ever(steps in proptest::collection::vec((any::<bool>(), 0usize..8), 0..200)) {
            let mut grants = Grants::default();
            let mut given: BTreeMap<GrantId, (u32, bool)> = BTreeMap::new();
            for (index, (gives, pick)) in steps.into_iter().enumerate() {
                if gives {
                    let id = grants.give(SERVER, None, Direction::ReadWrite, 10, index as u32).unwrap();
                    prop_assert!(given.insert(id, (index as u32, true)).is_none(), "a number was given twice");
                } else if let Some(id) = given.keys().rev().nth(pick).copied() {
                    let (memory, is_live) = given[&id];
                    let expected = if is_live { Ok(memory) } else { Err(IpcError::Revoked) };
                    prop_assert_eq!(grants.revoke(id), expected);
                    given.insert(id, (memory, false));
                }
                for (id, (memory, is_live)) in &given {
                    let expected = if *is_live { Ok(memory) } else { Err(IpcError::Revoked) };
                    prop_assert_eq!(grants.used(*id, &read_by(SERVER, 0, 10)), expected);
                }
                let beyond = GrantId::new(300, 1);
                prop_assert_eq!(grants.used(beyond, &read_by(SERVER, 0, 1)), Err(IpcError::UnknownGrant));
            }
        }
    }
}
