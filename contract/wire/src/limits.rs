//! Every bound of the wire, with its reason.

use abi::limits::{INLINE_BYTES_MAX, NAME_BYTES_MAX, RING_ENTRIES_MAX, TRANSFER_BYTES_MAX};

/// Longest body: one ring entry with the most data it may carry, and its fixed fields.
pub const BODY_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + 128;
/// Longest frame.
pub const FRAME_BYTES_MAX: usize = BODY_BYTES_MAX + crate::HEAD_BYTES;
/// Open requests of one ring told in one RESYNC: all a ring can have, and as many again that ended meanwhile on one
/// side.
pub const OPEN_TAGS_MAX: usize = 4 * RING_ENTRIES_MAX as usize;
/// Bytes of one open request in RESYNC.
pub(crate) const OPEN_TAG_BYTES: usize = 12;
/// Longest body of a frame that is taken as a whole: a full RESYNC. Only SUBMIT and COMPLETE are longer, and their data
/// is taken as it comes.
pub const WHOLE_BODY_BYTES_MAX: usize = OPEN_TAGS_MAX * OPEN_TAG_BYTES + 128;
/// Longest frame that is taken as a whole.
pub const WHOLE_FRAME_BYTES_MAX: usize = WHOLE_BODY_BYTES_MAX + crate::HEAD_BYTES;
/// What a block of packed data unpacks to: long enough to pack well, short enough to stay in the nearest caches.
pub const BLOCK_BYTES: usize = 32 * 1024;
/// Names in HELLO.
pub const NAME_MAX: usize = NAME_BYTES_MAX;
/// The name of a release in HELLO.
pub const RELEASE_BYTES_MAX: usize = 32;
/// Words for people in REFUSE.
pub const REASON_BYTES_MAX: usize = 255;

const _: () = assert!(WHOLE_BODY_BYTES_MAX <= BODY_BYTES_MAX);
const _: () = assert!(INLINE_BYTES_MAX + 128 <= WHOLE_BODY_BYTES_MAX);
