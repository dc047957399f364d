//! Names. Every one is a type of its own, so that a node can never be passed where a container is meant.

use core::fmt;

use crate::limits;

/// Names a process or thread inside its container. The same number may exist in every container.
///
/// Numbers below [`limits::WELL_KNOWN_ENDPOINTS`] are given by configuration to the servers of the virtual OS; the
/// broker hands out the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(u32);

impl Endpoint {
    /// The first well-known numbers, the same in every container.
    pub const FS: Endpoint = Endpoint(1);
    pub const DS: Endpoint = Endpoint(2);
    /// Kept for servers that are not written yet: processes (`PM`), reincarnation (`RS`), information (`IS`).
    pub const PM: Endpoint = Endpoint(3);
    pub const RS: Endpoint = Endpoint(4);
    pub const IS: Endpoint = Endpoint(5);
    /// The gate that serves disks over NBD.
    pub const NBD: Endpoint = Endpoint(6);
    /// Who reads a disk for a backup.
    pub const COPIER: Endpoint = Endpoint(7);
    /// Disks are `DISK + index`, at most [`limits::DISKS_PER_DC`] of them.
    pub const DISK: Endpoint = Endpoint(16);
    /// Copies of replicated disks are `COPY + number`, at most [`limits::COPIES_PER_DC`] of them.
    pub const COPY: Endpoint = Endpoint(48);
    /// The file gate of node index `i` (position in the container's node list) is `GATE + i`.
    pub const GATE: Endpoint = Endpoint(64);
    /// The call gate of node index `i` is `CALLS + i`.
    pub const CALLS: Endpoint = Endpoint(128);
    /// The coordination server of node index `i` is `CS + i`.
    pub const CS: Endpoint = Endpoint(192);

    /// `None` when the number is outside the container's table.
    pub const fn new(number: u32) -> Option<Endpoint> {
        if number < limits::ENDPOINTS_PER_DC { Some(Endpoint(number)) } else { None }
    }

    /// As [`Endpoint::new`], of a number as a spawn record has it.
    pub fn from_u64(number: u64) -> Option<Endpoint> {
        u32::try_from(number).ok().and_then(Endpoint::new)
    }

    pub const fn number(self) -> u32 {
        self.0
    }

    pub const fn is_well_known(self) -> bool {
        self.0 < limits::WELL_KNOWN_ENDPOINTS
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ep{}", self.0)
    }
}

/// From whom a receive accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    Any,
    From(Endpoint),
}

/// Distinguishes the channels of one pair: lane 0 carries messages, every further lane carries one ring; the last four
/// carry what the lower and the higher endpoint delegate, and their copies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lane(pub u16);

impl Lane {
    pub const MESSAGES: Lane = Lane(0);

    /// The lane over which `copier` copies from and to what `owner` granted.
    pub const fn copies(copier: Endpoint, owner: Endpoint) -> Lane {
        Lane(limits::DELEGATE_LANES_END + (copier.0 > owner.0) as u16)
    }

    /// The lane over which `delegator` relays requests to `target` and notifies it for others.
    pub const fn delegation(delegator: Endpoint, target: Endpoint) -> Lane {
        Lane(limits::RING_LANES_END + (delegator.0 > target.0) as u16)
    }

    pub const fn is_for_copies(self) -> bool {
        self.0 >= limits::DELEGATE_LANES_END
    }

    pub const fn is_for_delegation(self) -> bool {
        limits::RING_LANES_END <= self.0 && self.0 < limits::DELEGATE_LANES_END
    }

    /// Whether the library serves the lane by itself.
    pub const fn is_reserved(self) -> bool {
        self.0 >= limits::RING_LANES_END
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A distributed container; also its VXLAN network identifier, hence 24 bits and never 0.
    DcId(u32)
}
id! {
    /// A node of the cluster, never 0.
    NodeId(u16)
}
/// One of the pairs of proxies between two nodes, below [`limits::PAIRS_MAX`]. Proxies of one number speak with each
/// other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PairId(u8);

impl PairId {
    /// The one that every node has.
    pub const FIRST: PairId = PairId(0);

    pub fn new(number: u8) -> Option<PairId> {
        (number < limits::PAIRS_MAX).then_some(PairId(number))
    }

    /// The first so many.
    pub fn all(count: u8) -> impl Iterator<Item = PairId> {
        (0..count.min(limits::PAIRS_MAX)).map(PairId)
    }

    pub fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for PairId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

id! {
    /// Raised whenever an endpoint, disk or group changes owner. Whoever carries an older one is refused.
    Epoch(u64)
}

/// Names a channel on one node. Never reused, not even by a restarted broker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelId(pub u64);

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The number of a process inside its container.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pid(i32);

impl Pid {
    /// `None` for a number that no process has.
    pub fn new(number: i32) -> Option<Pid> {
        (number > 0).then_some(Pid(number))
    }

    pub fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One hold of an endpoint, as its control page shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldId(pub u32);
