//! What a primary and its members say to each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::encoding::CopyState;
use crate::record::Replica;
use crate::{BlockRange, Extent, RangeSet};

/// From the primary. All of it may be said again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaMessage<D> {
    /// First over each link.
    Hello,
    Write {
        seq: u64,
        /// Every write below it is accepted by all.
        floor: u64,
        /// Every write up to it is durable on all.
        flushed: u64,
        range: BlockRange,
        data: D,
        /// Accepted when it is durable, with all that was accepted before.
        durable: bool,
    },
    /// Of what it misses, or of what members may have differently.
    Copy { seq: u64, range: BlockRange, data: D },
    /// All that was answered before is made durable.
    Flush { seq: u64 },
    /// What is there of these blocks, as checksums.
    Sum { seq: u64, range: BlockRange },
    /// Its mark, and for each member that is behind the extents that it misses.
    Mark { generation: u64, whole: bool, behind: BTreeMap<Replica, RangeSet> },
    /// The answer lets reads be answered; `asked_ms` comes back.
    Lease { asked_ms: u64 },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaAnswer {
    /// To `Hello`.
    Welcome(CopyState),
    /// A write or a copy.
    Accepted {
        seq: u64,
    },
    /// A write or a copy that its medium has no room for: of its blocks some may be there.
    NoRoom {
        seq: u64,
    },
    Durable {
        seq: u64,
    },
    /// One for each block.
    Sums {
        seq: u64,
        sums: Vec<u32>,
    },
    Marked {
        generation: u64,
        whole: bool,
    },
    Granted {
        asked_ms: u64,
    },
    /// The epoch is over: this is a later one.
    Outdated {
        epoch: u32,
    },
}

/// Where writes went that were perhaps not accepted by all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recent {
    Blocks(RangeSet),
    /// It began since then, and only knows this much.
    Extents(BTreeSet<Extent>),
}
