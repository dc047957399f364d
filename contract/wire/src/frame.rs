//! The frames as checked values.

use std::num::NonZeroU64;

use abi::ring::{Completion, RingSpec, Submission};
use abi::{DcId, Endpoint, Epoch, IpcError, Lane, Message, NodeId, PairId};
use versions::Versions;

/// Numbers of the kinds on the wire. A number is never given a second meaning.
pub mod kind {
    pub const HELLO: u8 = 1;
    pub const REFUSE: u8 = 2;
    pub const RESYNC: u8 = 3;
    pub const RESYNC_END: u8 = 4;
    pub const OPEN: u8 = 5;
    pub const OPENED: u8 = 6;
    pub const CLOSE: u8 = 7;
    pub const MESSAGE: u8 = 8;
    pub const TAKEN: u8 = 9;
    pub const WITHDRAW: u8 = 10;
    pub const WITHDRAWN: u8 = 11;
    pub const NOTIFY: u8 = 12;
    pub const NOTIFIED: u8 = 13;
    pub const SUBMIT: u8 = 14;
    pub const COMPLETE: u8 = 15;
    pub const PRODUCED: u8 = 16;
    pub const HEARTBEAT: u8 = 17;
    pub const CREDIT: u8 = 18;
    pub const PARCEL: u8 = 19;
    pub const CLOSED: u8 = 20;
    /// The highest.
    pub const LAST: u8 = CLOSED;
}

/// Bits of [`Hello::features`].
pub mod feature {
    /// The speaker takes data of ring entries in LZ4 blocks.
    pub const LZ4: u32 = 1;
}

/// What [`Frame::Heartbeat`] says beside a number, from version 2 of the link on.
pub mod echo {
    /// The speaker accuses the hearer's node of being lost.
    pub const ACCUSES: u64 = 1 << 63;
    /// Less than half of the other nodes heard the speaker's lately.
    pub const UNHEARD: u64 = 1 << 62;
    /// The rest is the number.
    pub const NUMBER: u64 = UNHEARD - 1;
}

/// How the data of a ring entry travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Packing {
    #[default]
    Plain,
    /// In blocks, see [`crate::Block`].
    Lz4,
}

/// Names a channel between two nodes: the node of the process that opened it, and a number this node's broker never
/// gives twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WireChannel {
    pub opener: NodeId,
    pub number: u64,
}

/// Who speaks, in the first frame of each side. A later release may add fields at its end, which an earlier one does
/// not look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello<'a> {
    pub cluster: &'a str,
    pub node: &'a str,
    pub node_id: NodeId,
    /// Raised at every start of this node's proxy; a smaller one than was seen before is refused.
    pub incarnation: Epoch,
    /// Of the dialling side: counts its connections, so that an older connection never replaces a newer one.
    pub connection: u64,
    /// Bits of optional features; both sides use what both offer, see [`feature`].
    pub features: u32,
    /// Longest frame the speaker takes.
    pub frame_bytes_max: u32,
    /// Bytes of credited frames the speaker takes before it gives more credit.
    pub window_bytes: u32,
    /// Which of the pairs of proxies between two nodes it is of.
    pub pair: PairId,
    /// What the speaker speaks: [`versions::LINK`].
    pub speaks: Versions,
    /// Of the speaker, for people: `0.1.0`.
    pub release: &'a str,
}

/// Why a HELLO was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The peer belongs to another cluster.
    Cluster,
    /// Its name or number is not one the receiver knows, or not the one its certificate says; or it is of another pair.
    Identity,
    /// A newer proxy of the same node was seen.
    Fenced,
    /// Versions or limits do not fit.
    Version,
    /// Something that only a later release says; the reason is for people.
    Other,
}

/// A request of a ring that has no completion yet: its range is needed to move the completion's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenTag {
    pub tag: u32,
    pub arena_offset: u32,
    pub in_capacity: u32,
}

/// A ring entry in either direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RingEntry {
    Submission(Submission),
    Completion(Completion),
}

/// SUBMIT or COMPLETE up to its data. The data is long and goes where the entry says, piece by piece as it comes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RingHead {
    pub channel: WireChannel,
    pub index: u32,
    pub produced: u32,
    pub entry: RingEntry,
    /// Bytes that follow, once they are unpacked.
    pub data_bytes: u32,
    pub packing: Packing,
}

/// What one side holds of a channel, told after every connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resync<'a> {
    pub channel: WireChannel,
    /// Word of the last message the speaker published to its local party, 0 when none.
    pub published: u32,
    /// Word of the last message of the speaker that its local party took, 0 when none.
    pub taken: u32,
    /// Entries the speaker has put into its local ring.
    pub produced: u32,
    /// Number of the last NOTIFY the speaker has passed on.
    pub notified: u64,
    pub open_tags: OpenTags<'a>,
}

/// A list of [`OpenTag`] as it lies in a frame, or before it is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenTags<'a> {
    Listed(&'a [OpenTag]),
    /// Checked to be a whole number of entries.
    Encoded(&'a [u8]),
}

impl OpenTags<'_> {
    pub fn iter(&self) -> impl Iterator<Item = OpenTag> + '_ {
        let (listed, encoded): (&[OpenTag], &[u8]) = match self {
            OpenTags::Listed(tags) => (tags, &[]),
            OpenTags::Encoded(bytes) => (&[], bytes),
        };
        let decoded = encoded.chunks_exact(crate::limits::OPEN_TAG_BYTES).map(crate::decode::open_tag);
        listed.iter().copied().chain(decoded)
    }
}

/// One frame. Bulk data is borrowed from the buffer it was decoded in.
#[derive(Clone, PartialEq, Debug)]
pub enum Frame<'a> {
    Hello(Hello<'a>),
    Refuse {
        refusal: Refusal,
        reason: &'a str,
    },
    Resync(Resync<'a>),
    ResyncEnd,
    Open {
        channel: WireChannel,
        dc: DcId,
        from: Endpoint,
        to: Endpoint,
        lane: Lane,
        ring: Option<RingSpec>,
        /// Of `from`: the serial number of its control page on its own node; 0 where nobody knows it.
        incarnation: Option<NonZeroU64>,
    },
    Opened {
        channel: WireChannel,
        result: Result<(), IpcError>,
    },
    Close {
        channel: WireChannel,
        reason: IpcError,
    },
    /// The speaker has done what CLOSE says, or had nothing of that name.
    Closed {
        channel: WireChannel,
    },
    Message {
        channel: WireChannel,
        word: u32,
        kind: i32,
        payload: &'a [u8; Message::PAYLOAD_BYTES],
        inline: &'a [u8],
    },
    Taken {
        channel: WireChannel,
        word: u32,
    },
    Withdraw {
        channel: WireChannel,
        word: u32,
    },
    Withdrawn {
        channel: WireChannel,
        word: u32,
    },
    Notify {
        channel: WireChannel,
        number: u64,
        mask: u64,
    },
    Notified {
        channel: WireChannel,
        number: u64,
    },
    /// `index` is the entry's place since the ring was opened, `produced` the completions the speaker has put into its
    /// ring.
    Submit {
        channel: WireChannel,
        index: u32,
        produced: u32,
        entry: Submission,
        data: &'a [u8],
    },
    Complete {
        channel: WireChannel,
        index: u32,
        produced: u32,
        entry: Completion,
        data: &'a [u8],
    },
    /// The speaker has put this many entries into its local ring.
    Produced {
        channel: WireChannel,
        produced: u32,
    },
    /// `seq` counts the speaker's heartbeats, `echo` is the last one it got, and what is said beside it ([`echo`]).
    Heartbeat {
        seq: u64,
        echo: u64,
    },
    /// Bytes of credited frames the speaker has processed since the connection began.
    Credit {
        processed: u64,
    },
    /// From the speaker's broker to the hearer's. Lost with its connection.
    Parcel {
        bytes: &'a [u8],
    },
}
