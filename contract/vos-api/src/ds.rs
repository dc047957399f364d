//! Key-value store with publish and subscribe. Keys are 1 to 255 bytes, values at most 64 KiB.
//!
//! Request data begins with a key length in `args[0]`, the key, then the value. Every change has a revision, one
//! count for the whole store; a completed change is durable. Errors: `ENOENT`, `EEXIST`/`ESTALE` (a compare
//! failed), `EINVAL`, `ENOSPC` (store or subscription limit).

pub const KEY_BYTES_MAX: usize = 255;
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
pub const SUBSCRIPTIONS_PER_SESSION: usize = 64;
pub const KEYS_MAX: u64 = 1_000_000;

/// `args`: key bytes. Reply data: value. `results`: revision of the value.
pub const GET: u16 = 16;
/// `args`: key bytes, condition ([`ANY`], [`ABSENT`] or the revision it must have). `results`: new revision. In a session.
pub const PUT: u16 = 17;
/// `args`: key bytes, condition. `results`: revision of the removal. In a session.
pub const DELETE: u16 = 18;
/// `args`: bytes of the prefix, bytes of the start key (exclusive; request data: prefix, start key). Reply data: entries
/// `key length u16, value length u32, revision u64, key, value` as many as fit. `results`: entries, 1 if more follow.
pub const LIST: u16 = 19;
/// `args`: bytes of the prefix (request data), revision to begin after (0: from now on). `results`: subscription
/// number, revision at which it begins. In a session.
pub const SUBSCRIBE: u16 = 20;
/// `args`: subscription. In a session.
pub const UNSUBSCRIBE: u16 = 21;
/// `args`: highest revision seen, milliseconds to wait at most. Completes when events are there or the time is over. Reply
/// data: events `subscription u32, key length u16, kind u8 (put, delete, message, lost), 0 u8, value length u32, revision u64, key, value`.
/// `lost` says that older events were dropped: list again. `results`: events.
pub const NEXT: u16 = 22;
/// `args`: bytes of the topic. Request data: topic, value. Reaches the subscribers of a prefix of the topic; stores nothing.
/// `results`: subscribers. In a session.
pub const PUBLISH: u16 = 23;

pub const ANY: u64 = u64::MAX;
pub const ABSENT: u64 = 0;

pub mod event {
    pub const PUT: u8 = 1;
    pub const DELETE: u8 = 2;
    pub const MESSAGE: u8 = 3;
    pub const LOST: u8 = 4;
}
