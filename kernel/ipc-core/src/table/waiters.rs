//! Calls that wait for an endpoint to appear or to go.

use std::collections::BTreeMap;

use abi::{Endpoint, IpcError};

use super::OwnerId;

/// Waiting calls in one container.
pub const WAITERS_MAX: usize = 8192;
/// Waiting calls of one connection: a port has one, a server's helper threads a few.
pub const WAITERS_PER_OWNER: usize = 64;

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    Bound,
    Unbound,
}

/// One waiting call: the request of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    pub owner: OwnerId,
    pub request: u32,
    pub awaited: Awaited,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Waiters {
    by_endpoint: BTreeMap<Endpoint, Vec<Waiter>>,
    per_owner: BTreeMap<OwnerId, usize>,
    count: usize,
}

impl Waiters {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn add(&mut self, endpoint: Endpoint, waiter: Waiter) -> Result<(), IpcError> {
        let owned = self.per_owner.get(&waiter.owner).copied().unwrap_or(0);
        if self.count >= WAITERS_MAX || owned >= WAITERS_PER_OWNER {
            return Err(IpcError::TableFull);
        }
        self.per_owner.insert(waiter.owner, owned + 1);
        self.by_endpoint.entry(endpoint).or_default().push(waiter);
        self.count += 1;
        Ok(())
    }

    /// Endpoints that somebody waits for to be bound.
    pub fn awaited_endpoints(&self) -> Vec<Endpoint> {
        let is_awaited = |waiters: &&Vec<Waiter>| waiters.iter().any(|waiter| waiter.awaited == Awaited::Bound);
        self.by_endpoint.iter().filter(|(_, waiters)| is_awaited(waiters)).map(|(endpoint, _)| *endpoint).collect()
    }

    /// Everybody who waits for something of `endpoint`.
    pub fn of(&self, endpoint: Endpoint) -> impl Iterator<Item = &Waiter> {
        self.by_endpoint.get(&endpoint).into_iter().flatten()
    }

    /// Takes out everybody who waited for this to happen to `endpoint`.
    pub fn take(&mut self, endpoint: Endpoint, awaited: Awaited) -> Vec<Waiter> {
        self.take_if(Some(endpoint), |waiter| waiter.awaited == awaited)
    }

    /// Takes out those who wait for something of `endpoint` and are `meant`.
    pub fn take_some(&mut self, endpoint: Endpoint, meant: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        self.take_if(Some(endpoint), meant)
    }

    /// Takes out one call; `None` when it was answered already.
    pub fn cancel(&mut self, owner: OwnerId, request: u32) -> Option<Waiter> {
        self.take_if(None, |waiter| waiter.owner == owner && waiter.request == request).pop()
    }

    /// Forgets all calls of a connection.
    pub fn forget(&mut self, owner: OwnerId) {
        self.take_if(None, |waiter| waiter.owner == owner);
    }

    fn take_if(&mut self, only: Option<Endpoint>, matches: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let mut taken = Vec::new();
        let mut filter = |waiters: &mut Vec<Waiter>| {
            waiters.retain(|waiter| {
                let hit = matches(waiter);
                if hit {
                    taken.push(*waiter);
                }
                !hit
            });
        };
        match only {
            Some(endpoint) => {
                if let Some(waiters) = self.by_endpoint.get_mut(&endpoint) {
                    filter(waiters);
                    if waiters.is_empty() {
                        self.by_endpoint.remove(&endpoint);
                    }
                }
            }
            None => self.by_endpoint.retain(|_, waiters| {
                filter(waiters);
                !waiters.is_empty()
            }),
        }
        self.count -= taken.len();
        for waiter in &taken {
            if let Some(owned) = self.per_owner.get_mut(&waiter.owner) {
                *owned -= 1;
                if *owned == 0 {
                    self.per_owner.remove(&waiter.owner);
                }
            }
        }
        taken
    }
}
