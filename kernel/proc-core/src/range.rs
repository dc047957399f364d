//! Process numbers tell on which node of its container a process was born, and so where it is.
//!
//! Node `i` of a container has the [`PIDS_PER_NODE`] numbers from `(i + 1) * PIDS_PER_NODE` on. Those below belong to
//! no node (1 is the init of each), and so do those after the last node's. Groups and sessions have the number of their
//! leader; they never span nodes.

use abi::limits::{NODES_PER_DC, PIDS_PER_NODE};

/// Position of a node in its container.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Seat(u8);

impl Seat {
    /// `None`: no container has so many nodes.
    pub const fn new(index: usize) -> Option<Seat> {
        if index < NODES_PER_DC { Some(Seat(index as u8)) } else { None }
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// All that a container may have, in order.
    pub fn all() -> impl Iterator<Item = Seat> {
        (0..NODES_PER_DC).filter_map(Seat::new)
    }

    /// First number of its processes.
    pub const fn first_pid(self) -> u32 {
        (self.0 as u32 + 1) * PIDS_PER_NODE
    }

    /// The number after the last one of its processes.
    pub const fn end_pid(self) -> u32 {
        self.first_pid() + PIDS_PER_NODE
    }

    /// Whose process has this number; `None`: nobody's.
    pub fn of_pid(pid: u32) -> Option<Seat> {
        Seat::new((pid / PIDS_PER_NODE).checked_sub(1)? as usize)
    }
}

/// First number that belongs to a node.
pub const FIRST_PID: u32 = PIDS_PER_NODE;
/// The number after the last one that belongs to a node.
pub const END_PID: u32 = (NODES_PER_DC as u32 + 1) * PIDS_PER_NODE;

/// Nodes of a container.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seats(u64);

impl Seats {
    pub const NONE: Seats = Seats(0);

    pub const fn from_bits(bits: u64) -> Seats {
        Seats(bits & (u64::MAX >> (64 - NODES_PER_DC)))
    }

    pub const fn bits(self) -> u64 {
        self.0
    }

    pub const fn contains(self, seat: Seat) -> bool {
        self.0 & (1 << seat.0) != 0
    }

    #[must_use]
    pub const fn with(self, seat: Seat) -> Seats {
        Seats(self.0 | 1 << seat.0)
    }

    #[must_use]
    pub const fn without(self, seat: Seat) -> Seats {
        Seats(self.0 & !(1 << seat.0))
    }

    /// The least one of them that comes after `seat`, or the least one.
    pub fn next(self, seat: Option<Seat>) -> Option<Seat> {
        let from = seat.map_or(0, |seat| seat.index() + 1);
        (from..NODES_PER_DC).filter_map(Seat::new).find(|next| self.contains(*next))
    }
}

impl FromIterator<Seat> for Seats {
    fn from_iter<T: IntoIterator<Item = Seat>>(seats: T) -> Seats {
        seats.into_iter().fold(Seats::NONE, Seats::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_belongs_to_one_node_or_to_nobody() {
        for seat in Seat::all() {
            assert_eq!(Seat::of_pid(seat.first_pid()), Some(seat));
            assert_eq!(Seat::of_pid(seat.end_pid() - 1), Some(seat));
            assert_ne!(Seat::of_pid(seat.end_pid()), Some(seat));
            assert_ne!(Seat::of_pid(seat.first_pid() - 1), Some(seat));
        }
        for nobodys in [0, 1, 299, FIRST_PID - 1, END_PID, u32::MAX / 2, u32::MAX] {
            assert_eq!(Seat::of_pid(nobodys), None, "{nobodys}");
        }
        assert_eq!(Seat::all().next().map(Seat::first_pid), Some(FIRST_PID));
        assert_eq!(Seat::all().last().map(Seat::end_pid), Some(END_PID));
    }

    #[test]
    fn sets_of_nodes_are_walked_in_order() {
        let some: Seats = [5, 0, 62].into_iter().filter_map(Seat::new).collect();
        let mut walked = Vec::new();
        let mut at = some.next(None);
        while let Some(seat) = at {
            walked.push(seat.index());
            at = some.next(Some(seat));
        }
        assert_eq!(walked, [0, 5, 62]);
        assert_eq!(Seats::from_bits(u64::MAX).without(Seat(62)).next(Some(Seat(61))), None);
    }
}
