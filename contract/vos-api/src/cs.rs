//! Coordination of a container's members: locks, elections, small shared values, groups, and what its nodes are like.
//!
//! Each node has a server of its own (`Endpoint::CS` and the node's index); a program asks that of its node. What is
//! agreed over nodes stands on the cluster engine, confined to the container. Names of locks, elections and groups have
//! 1 to [`NAME_BYTES_MAX`] printable ASCII characters without `/`; keys 1 to [`KEY_BYTES_MAX`], `/` allowed but not at
//! the end. `docs/design/services.md` says what survives what.
//!
//! A session ends with its ring: locks, candidacies and memberships of a client end with it. Only over a restart of the
//! server a session goes on, and with it its locks and candidacies, not its memberships.
//!
//! Errors of all operations that need the engine: `EHOSTUNREACH` (it does not answer, nothing happened).

use crate::operation::{Empty, Measured, operations, replies, words};

/// Of a lock, an election, a group, a member.
pub const NAME_BYTES_MAX: usize = 64;
pub const KEY_BYTES_MAX: usize = 128;
/// A value under a key. What is larger belongs into `ds`.
pub const VALUE_BYTES_MAX: usize = 4096;
/// What a candidate says of itself.
pub const CANDIDATE_BYTES_MAX: usize = 256;
/// Locks and candidacies that the sessions of one node hold or wait for.
pub const WISHES_MAX: usize = 1024;
/// Keys that a container has, those that its members do not see among them.
pub const KEYS_MAX: usize = 4096;
/// Bytes of the values under them.
pub const BYTES_MAX: usize = 4 << 20;
/// Requests that one session may have under way.
pub const IN_FLIGHT_MAX: u32 = 64;
/// Groups with members on one node.
pub const GROUPS_MAX: usize = 64;
/// Members of one group.
pub const MEMBERS_MAX: usize = 64;
/// Bytes of the messages of one SEND, with the length before each.
pub const BURST_BYTES_MAX: usize = 64 << 10;
/// Before what each event of a RECEIVE carries ([`event`]).
pub const EVENT_HEAD_BYTES: usize = 32;
/// How long anything waits, whatever it asks for.
pub const WAIT_MAX_MS: u64 = 3_600_000;
/// Bytes of one node in the answer to SENSE ([`sensed`]).
pub const SENSED_BYTES: usize = 56;

words! {
    /// What is contended for. Both are queues; a candidate also says something of itself.
    enum Race: u16 {
        Lock = 1,
        Election = 2,
    }

    /// When a message of a group is given to its members.
    enum Level: u16 {
        /// In the one order, as soon as the member's server has it.
        Agreed = 1,
        /// In the same order, once the servers of all members have it.
        Safe = 2,
    }
}

operations! {
    enum Request<'a>;

    /// Becomes the owner of a lock, or the leader, first come first served. Asked again by the same session it is the
    /// same wish. `ETIMEDOUT`: not within `wait_ms`, and the wish is withdrawn. `ENOSPC`: [`WISHES_MAX`].
    ACQUIRE = 16: repeatable Acquire<'a> {
        race: Race,
        name: Measured<'a>,
        wait_ms: u64,
        value: &'a [u8],
    } -> Fencing [TimedOut, NoSpace, Unreachable];

    /// Gives up what was acquired with this token. May be repeated: what is not held any more is given up.
    RELEASE = 17: repeatable Release<'a> { race: Race, name: Measured<'a>, token: u64 } -> Empty [Unreachable];

    /// Who owns it, once that is another one than `seen` (0: nobody, [`ANY`]: at once), or `wait_ms` have passed: as
    /// this node knows it. Reply data: what a leader says of itself.
    OWNER = 18: repeatable Owner<'a> { race: Race, name: Measured<'a>, seen: u64, wait_ms: u64 } -> Owned [];

    /// Asks the engine whether this token is still the owner's. `ENOENT`: it is not.
    CONFIRM = 19: repeatable Confirm<'a> { race: Race, name: Measured<'a>, token: u64 } -> Empty [NoEntry, Unreachable];

    /// The value of a key, from the engine. Reply data: the value.
    GET = 20: repeatable Get<'a> { key: Measured<'a> } -> Version [NoEntry, Unreachable];

    /// `condition`: [`ANY`], [`ABSENT`] or the revision that the value must have (`ESTALE` if it has another).
    PUT = 21: once Put<'a> {
        key: Measured<'a>,
        condition: u64,
        value: &'a [u8],
    } -> Version [NoEntry, Exists, NoSpace, Unreachable];

    /// `condition`: [`ANY`] or the revision that the value must have.
    DELETE = 22: once Delete<'a> { key: Measured<'a>, condition: u64 } -> Version [NoEntry, NoSpace, Unreachable];

    /// Keys that begin with `prefix`, in order, after the key `after`: as this node knows them. Reply data: entries as
    /// of WATCH.
    LIST = 23: repeatable List<'a> { prefix: Measured<'a>, after: Measured<'a> } -> Found [];

    /// Changes of keys that begin with `prefix` above revision `seen`, once there are any, or none after `wait_ms`.
    /// Changes of a key that follow each other quickly may show as the last of them. Reply data: entries `key length
    /// u16, kind u8 ([`change`]), 0 u8, value length u32, revision u64, key, value`.
    WATCH = 24: repeatable Watch<'a> { prefix: Measured<'a>, seen: u64, wait_ms: u64 } -> Found [];

    /// Becomes a member of a group, under a name that others see; answered when the view with it is there. `EEXIST`:
    /// this session is a member already. `ENOSPC`: [`GROUPS_MAX`], [`MEMBERS_MAX`].
    JOIN = 32: repeatable Join<'a> {
        group: Measured<'a>,
        wait_ms: u64,
        name: &'a [u8],
    } -> Joined [Exists, NoSpace, TimedOut, Unreachable];

    /// Is a member no more. May be repeated.
    LEAVE = 33: repeatable Leave { member: u64 } -> Empty [];

    /// Messages for all members, the sender among them: each after its length (`u32`, little-endian). `first` counts
    /// this member's messages, from 1. Answered when the server has them; their order is decided after that. `ESTALE`:
    /// not a member any more, join again.
    SEND = 34: repeatable Send<'a> { level: Level, member: u64, first: u64, messages: &'a [u8] } -> Empty [];

    /// What a member has not been given yet, once there is something, or nothing after `wait_ms`. What was given once
    /// is not given again. `ESTALE`: not a member any more, join again. Reply data: events ([`event`]).
    RECEIVE = 35: repeatable Receive { member: u64, wait_ms: u64 } -> Delivered [];

    /// The newest view of a group that was agreed on, once its number is above `seen`, or `wait_ms` have passed: as
    /// this node knows it. Number 0: there is no such group. Reply data: members ([`event`]).
    VIEW = 36: repeatable ViewOf<'a> { group: Measured<'a>, seen: u64, wait_ms: u64 } -> Viewed [];

    /// What the container's nodes are like now. Reply data: for each node [`sensed`].
    SENSE = 48: repeatable Sense { wait_ms: u64 } -> Sensed [];

    /// From the server of another node: frames, each after its length (`u32`). `ESTALE` when `receiver` is not the
    /// incarnation of this server.
    LINK = 64: repeatable Link<'a> {
        sender: u64,
        receiver: u64,
        /// Of this sender's requests to this receiver, from 1.
        count: u64,
        frames: &'a [u8],
    } -> Empty [NotPermitted];
}

replies! {
    /// Rises from owner to owner: whoever protects something refuses smaller ones.
    Fencing { token };

    Owned {
        /// 0: nobody.
        token,
        /// Index of its node in the container.
        node
    };

    Version { revision };

    Found {
        entries,
        /// Nothing up to here is missing.
        revision,
        /// 1 if more follow (LIST).
        has_more
    };

    Joined { member };

    Delivered { events };

    Viewed { number, members };

    Sensed { nodes };
}

/// Condition: whatever is there.
pub const ANY: u64 = u64::MAX;
/// Condition: the key must not be there.
pub const ABSENT: u64 = 0;

/// Kinds of entries of LIST and WATCH.
pub mod change {
    pub const PUT: u8 = 1;
    pub const DELETE: u8 = 2;
    /// Changes up to this revision are not known here any more: list again.
    pub const LOST: u8 = 3;
}

/// Events of RECEIVE: `kind u8, level u8, 0 u16, bytes u32, index u64, sender u64, number u64`, then the bytes.
///
/// `index` rises from event to event, and is the same for every member. Of a view `number` is the view's and the bytes
/// are its members: `member u64, node u16, name length u16, name`. Of messages `number` is that of the first, and the
/// bytes are the messages, each after its length (`u32`).
pub mod event {
    pub const VIEW: u8 = 1;
    pub const MESSAGES: u8 = 2;
}

/// One node of SENSE: `index u16, state u16, cpus u32, load u64 (thousandths of a process, one minute), memory u64,
/// available u64 (bytes), round_trip_us u64, links u64, age_ms u64`.
pub mod sensed {
    /// It answered.
    pub const HERE: u16 = 1;
    /// It did not answer in time.
    pub const SILENT: u16 = 2;
}
