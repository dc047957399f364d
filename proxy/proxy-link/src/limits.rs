//! Bounds of a link, with their reasons.

use wire::limits::{FRAME_BYTES_MAX, WHOLE_FRAME_BYTES_MAX};

/// The out buffer takes further bulk data below this fill: a chunk of a copy with its head, so that none of them leaves
/// a few bytes for a write of their own. What is put is encrypted and written before more is put, so all of it stays in
/// the nearest caches on its way.
pub const BATCH_BYTES: usize = abi::limits::COPY_CHUNK_BYTES as usize + 256;
/// Data that is sent from where it lies: shorter data is copied, which costs less than one more piece; so many at a
/// time make a batch, which is at most a channel's turn.
pub const IN_PLACE_BYTES_MIN: u32 = 4096;
pub const IN_PLACE_MAX: usize = 16;
/// Kept free for frames that must always go (heartbeat, credit, refusals): they are small and few.
pub const RESERVE_BYTES: usize = 4096;
/// A batch, one more frame of the longest kind that is put as a whole, and the reserve.
pub const OUT_BYTES: usize = BATCH_BYTES + WHOLE_FRAME_BYTES_MAX + RESERVE_BYTES;
/// Room for the longest frame that is taken as a whole, and for a read of a good size after it.
pub const IN_BYTES: usize = 256 * 1024;
/// Bytes a peer may have under way to us before we gave it credit: bandwidth times delay of 10 Gbit/s and 5 ms, and
/// more than two longest frames.
pub const WINDOW_BYTES: u32 = 8 << 20;
/// Credit is told after this many bytes: a few times per window.
pub const CREDIT_STEP_BYTES: u64 = WINDOW_BYTES as u64 / 8;
/// Smallest window a peer may announce: below it one frame could not be sent.
pub const WINDOW_BYTES_MIN: u32 = 2 * FRAME_BYTES_MAX as u32;
/// Channels over one link: the broker's own limit per process.
pub const CHANNELS_PER_LINK: usize = abi::limits::CHANNELS_PER_PROCESS;
/// Data of ring entries shorter than this is never packed: it is hardly shorter on the wire, and the wait is for the
/// round trip.
pub const PACKED_BYTES_MIN: u32 = 16 * 1024;
/// Long entries between two samples of whether packing pays, at first and at most.
pub const SKIP_MIN: u32 = 8;
pub const SKIP_MAX: u32 = 1024;
/// Heartbeats of which one measures the round trip: once a second on an idle link.
pub const HEARTBEATS_PER_PROBE: u64 = 10;
/// Heartbeats that may be confirmed yet: of more than a second.
pub const BEATS_REMEMBERED: usize = 16;
/// Untold news (OPEN, OPENED, CLOSE, CLOSED) beyond which a peer's further OPEN or CLOSE cuts the link: an answer, an
/// end and the confirmation of one for each channel.
pub const NEWS_MAX: usize = 3 * CHANNELS_PER_LINK;
/// Times an OPEN is repeated whose peer named a channel of its own instead that came to nothing: each is a round trip
/// in which that channel was made and ended, so a correct peer hardly needs two.
pub const REFUSALS_MAX: u32 = 16;
/// Bulk bytes one channel may add to a batch before the next channel's turn.
pub const TURN_BYTES: usize = 256 * 1024;
/// Ring entries of one turn.
pub const TURN_ENTRIES: usize = 64;
/// Parcels that wait for room: what a broker asks of another at a time and what it answers, each at most 512.
pub const PARCELS_MAX: usize = 1024;

const _: () = assert!(WINDOW_BYTES >= WINDOW_BYTES_MIN);
const _: () = assert!(IN_BYTES >= 2 * WHOLE_FRAME_BYTES_MAX);
const _: () = assert!(BATCH_BYTES >= wire::limits::BLOCK_BYTES + wire::Block::HEAD_BYTES);
const _: () = assert!(BATCH_BYTES >= abi::limits::COPY_CHUNK_BYTES as usize + wire::Frame::RING_OVERHEAD_BYTES);
