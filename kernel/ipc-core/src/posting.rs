//! Notification bits in a channel that ends while its poster lives, see `docs/design/channel.md`, "Notifications".
//!
//! Nobody looks into such a channel any more: what lies there is handed on, by whoever closed it or by whoever posted
//! it.
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

/// The mask of one direction, as one of its parties reaches it.
pub trait Posting {
    /// Sets bits, in one step with Acquire and Release, and says so to the receiver.
    fn post(&self, bits: u64);
    /// Wakes the receiver if it sleeps.
    fn wake(&self);
    /// Takes back those of the bits that lie there, in one step.
    fn recall(&self, bits: u64) -> u64;
    /// As the receiver: takes everything in one step with Acquire and Release.
    fn take(&self) -> u64;
}

/// Posts bits. Those that nobody will take, because the channel `is_over` for both, are the answer.
pub fn post(mask: &impl Posting, bits: u64, is_over: impl FnOnce() -> bool) -> u64 {
    mask.post(bits);
    mask.wake();
    if is_over() { mask.recall(bits) } else { 0 }
}

/// Ends the channel as its receiver. The bits that it holds are the answer; all others stay with their poster.
pub fn close(mask: &impl Posting, say_closed: impl FnOnce()) -> u64 {
    say_closed();
    mask.take()
}
