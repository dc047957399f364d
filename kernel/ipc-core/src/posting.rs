//! Notification bits: posting, taking, and a channel that ends while its poster lives, see `docs/design/channel.md`,
//! "Notifications".
//!
//! Nobody looks into a channel that ended any more: what lies there is handed on, by whoever closed it or by whoever
//! posted it.
//!
//! ```text
//! poster                                  closer
//! mask |= bits (Acquire and Release)      closed = reason
//! closed? then take the bits back         swap the mask with 0 (Release)
//! ```
//!
//! All three change the one mask, so one comes first. Bits that were there before the swap are the closer's. A post
//! after the swap reads what the swap wrote, and so sees `closed`. No fence is needed, nor does either rely on the one
//! of a wake-up.

use crate::words::Words;

/// Posts bits. Those that nobody will take, because the channel `is_over` for both, are the answer.
pub fn post(half: &impl Words, bits: u64, is_over: impl FnOnce() -> bool) -> u64 {
    half.post_notification(bits);
    half.kick();
    if is_over() { half.recall_notification(bits) } else { 0 }
}

/// Whether the peer posted since `seen` was its count.
#[inline]
pub fn is_posted(half: &impl Words, seen: u32) -> bool {
    half.peer_notified() != seen
}

/// The bits that the peer posted since `seen` was its count; 0 for none.
#[inline]
pub fn take(half: &impl Words, seen: &mut u32) -> u64 {
    let posted = half.peer_notified();
    if posted == *seen {
        return 0;
    }
    *seen = posted;
    half.take_notifications()
}

/// Ends the channel as its receiver. The bits that it holds are the answer; all others stay with their poster.
pub fn close(half: &impl Words, say_closed: impl FnOnce()) -> u64 {
    say_closed();
    half.take_notifications()
}
