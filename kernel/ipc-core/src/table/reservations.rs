//! Numbers that a manager keeps for processes which have not bound yet.
//!
//! A number has at most one reservation and a process at most one number. A reservation ends when its process binds,
//! when it is taken back, or with its manager.

use std::collections::BTreeMap;

use abi::limits::RESERVATIONS_PER_DC;
use abi::{Endpoint, IpcError};

use super::OwnerId;

/// For whom a number is kept, and by whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// As the container knows it.
    pub pid: i32,
    pub by: OwnerId,
}

#[derive(Clone, Debug, Default)]
pub struct Reservations {
    by_endpoint: BTreeMap<Endpoint, Reservation>,
}

impl Reservations {
    pub fn iter(&self) -> impl Iterator<Item = (Endpoint, Reservation)> {
        self.by_endpoint.iter().map(|(endpoint, reservation)| (*endpoint, *reservation))
    }

    /// Whether the number is kept for somebody else.
    pub fn keeps_from(&self, endpoint: Endpoint, pid: i32) -> bool {
        self.by_endpoint.get(&endpoint).is_some_and(|reservation| reservation.pid != pid)
    }

    pub fn has(&self, endpoint: Endpoint) -> bool {
        self.by_endpoint.contains_key(&endpoint)
    }

    pub fn of_process(&self, pid: i32) -> Option<Endpoint> {
        self.by_endpoint.iter().find(|(_, reservation)| reservation.pid == pid).map(|(endpoint, _)| *endpoint)
    }

    /// Keeps a number, which nobody else has. For the same process and number again it changes nothing.
    pub fn insert(&mut self, endpoint: Endpoint, reservation: Reservation) -> Result<(), IpcError> {
        let other = self.of_process(reservation.pid).is_some_and(|kept| kept != endpoint);
        if other || self.keeps_from(endpoint, reservation.pid) {
            return Err(IpcError::EndpointInUse);
        }
        if self.by_endpoint.len() >= RESERVATIONS_PER_DC {
            return Err(IpcError::TableFull);
        }
        self.by_endpoint.insert(endpoint, reservation);
        Ok(())
    }

    pub fn remove(&mut self, endpoint: Endpoint) {
        self.by_endpoint.remove(&endpoint);
    }

    /// Ends those of a manager; what they kept.
    pub fn remove_of(&mut self, by: OwnerId) -> Vec<Endpoint> {
        let of_it = self.by_endpoint.iter().filter(|(_, reservation)| reservation.by == by);
        let ended: Vec<Endpoint> = of_it.map(|(endpoint, _)| *endpoint).collect();
        self.by_endpoint.retain(|_, reservation| reservation.by != by);
        ended
    }
}
