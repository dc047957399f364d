//! Key-value store with publish and subscribe. Keys are 1 to 255 bytes, values at most 64 KiB.
//!
//! Every change has a revision, one count for the whole store; a completed change is durable. Errors: `ENOENT`,
//! `EEXIST`/`ESTALE` (a compare failed), `EINVAL`, `ENOSPC` (store or subscription limit).

use crate::operation::{Empty, Measured, operations, replies};

pub const KEY_BYTES_MAX: usize = 255;
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
pub const SUBSCRIPTIONS_PER_SESSION: usize = 64;
pub const KEYS_MAX: u64 = 1_000_000;

operations! {
    enum Request<'a>;

    /// Reply data: the value.
    GET = 16: repeatable Get<'a> { key: Measured<'a> } -> Revision [NoEntry];

    /// `condition`: [`ANY`], [`ABSENT`] or the revision that the value must have.
    PUT = 17: once Put<'a> { key: Measured<'a>, condition: u64, value: &'a [u8] } -> Revision [NoEntry, Exists, NoSpace];

    DELETE = 18: once Delete<'a> { key: Measured<'a>, condition: u64 } -> Revision [NoEntry, Exists, NoSpace];

    /// Keys that begin with `prefix`, from behind `after` on. Reply data: entries `key length u16, value length u32,
    /// revision u64, key, value`, as many as fit.
    LIST = 19: repeatable List<'a> { prefix: Measured<'a>, after: Measured<'a> } -> Listed [];

    /// From behind `revision` on; 0: from now on.
    SUBSCRIBE = 20: once Subscribe<'a> { prefix: Measured<'a>, revision: u64 } -> Subscribed [NoSpace];

    UNSUBSCRIBE = 21: once Unsubscribe { subscription: u32 } -> Empty [NoEntry, NoSpace];

    /// Completes when there are events behind revision `seen`, or after `wait_ms`. Reply data: events `subscription
    /// u32, key length u16, kind u8 (put, delete, message, lost), 0 u8, value length u32, revision u64, key, value`.
    /// `lost` says that older events were dropped: list again.
    NEXT = 22: repeatable Next { seen: u64, wait_ms: u64 } -> Events [];

    /// Reaches the subscribers of a prefix of the topic; stores nothing.
    PUBLISH = 23: once Publish<'a> { topic: Measured<'a>, value: &'a [u8] } -> Reached [NoSpace];
}

replies! {
    /// Of the value, or of its removal.
    Revision { revision };

    Listed {
        entries,
        /// 1 if more follow.
        has_more
    };

    Subscribed {
        subscription,
        /// The revision at which it begins.
        begin
    };

    Events { events };

    Reached { subscribers };
}

pub const ANY: u64 = u64::MAX;
pub const ABSENT: u64 = 0;

pub mod event {
    pub const PUT: u8 = 1;
    pub const DELETE: u8 = 2;
    pub const MESSAGE: u8 = 3;
    pub const LOST: u8 = 4;
}
