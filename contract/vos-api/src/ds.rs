//! Key-value store with publish and subscribe. Keys are 1 to 255 bytes, values at most 64 KiB.
//!
//! Every change has a revision, one count for the whole store; a completed change is durable. Errors: `ENOENT`,
//! `EEXIST`/`ESTALE` (a compare failed; of every operation when the session was fenced), `EINVAL`, `ENOSPC` (store or
//! subscription limit).

use crate::operation::{Empty, Measured, operations, replies};

pub const KEY_BYTES_MAX: usize = 255;
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Subscriptions that one session may have at a time.
pub const SUBSCRIPTIONS_PER_SESSION: usize = 64;
/// Keys of one store.
pub const KEYS_MAX: u64 = 1_000_000;

operations! {
    enum Request<'a>;

    /// Reply data: the value.
    GET = 16: repeatable Get<'a> { key: Measured<'a> } -> Revision [NoEntry];

    /// `condition`: [`ANY`], [`ABSENT`] or the revision that the value must have.
    PUT = 17: once Put<'a> { key: Measured<'a>, condition: u64, value: &'a [u8] } -> Revision [NoEntry, Exists, NoSpace];

    /// Removes a key. `condition`: [`ANY`] or the revision that the value must have.
    DELETE = 18: once Delete<'a> { key: Measured<'a>, condition: u64 } -> Revision [NoEntry, NoSpace];

    /// Keys that begin with `prefix`, in order, after the key `after` (empty: from the first). Reply data: entries `key
    /// length u16, value length u32, revision u64, key, value`, as many as fit; `ERANGE` when not even one fits.
    LIST = 19: repeatable List<'a> { prefix: Measured<'a>, after: Measured<'a> } -> Listed [];

    /// Events of keys and topics that begin with `prefix`, with revisions above `revision`; 0: from now on. `ENOSPC`:
    /// the session has [`SUBSCRIPTIONS_PER_SESSION`].
    SUBSCRIBE = 20: once Subscribe<'a> { prefix: Measured<'a>, revision: u64 } -> Subscribed [NoSpace];

    UNSUBSCRIBE = 21: once Unsubscribe { subscription: u32 } -> Empty [NoEntry, NoSpace];

    /// Completes when there are events above revision `seen`, or without any after `wait_ms` milliseconds, an hour at
    /// most. `EINVAL` without room for 20 bytes per subscription. Reply data: events `subscription u32, key length u16,
    /// kind u8 ([`event`]), 0 u8, value length u32, revision u64, key, value`.
    NEXT = 22: repeatable Next { seen: u64, wait_ms: u64 } -> Events [];

    /// Sends a message to the subscriptions whose prefix the topic begins with. The message is no value: GET and LIST
    /// do not see it. It has a revision and stays among the recent events.
    PUBLISH = 23: once Publish<'a> { topic: Measured<'a>, value: &'a [u8] } -> Reached [NoSpace];
}

replies! {
    /// Of the value (GET), or of this change (PUT, DELETE).
    Revision { revision };

    Listed {
        entries,
        /// 1 if more follow.
        has_more
    };

    Subscribed {
        subscription,
        /// Events above this revision belong to the subscription.
        begin
    };

    Events { events };

    /// How many subscriptions there were for the message.
    Reached { subscribers };
}

/// Condition: whatever is there.
pub const ANY: u64 = u64::MAX;
/// Condition: the key must not be there.
pub const ABSENT: u64 = 0;

/// Kinds of events.
pub mod event {
    pub const PUT: u8 = 1;
    pub const DELETE: u8 = 2;
    pub const MESSAGE: u8 = 3;
    /// Events up to this revision were dropped: list again.
    pub const LOST: u8 = 4;
}
