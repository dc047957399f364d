//! A slot that is written again while the last reader may still be copying it, see `docs/design/channel.md`,
//! "Messages".
//!
//! A request without a limit is taken without a word from its receiver. So its sender that takes it back, and writes
//! the next, cannot know whether somebody is copying the first. The receiver finds out:
//!
//! ```text
//! sender                receiver
//! word = none           word is A?
//! fence (Release)       copy the line
//! write the line        fence (Acquire)
//! word = B (Release)    word is still A?
//! ```
//!
//! Whoever copies anything of the next message sees at its second look that the word is A no more. The model in
//! `tests/channel_model.rs` finds a copy of two halves when any of the three is missing.

/// The slot of one direction, as one of its parties reaches it.
pub trait Slot {
    /// As the sender: nothing lies here. A plain store.
    fn clear_word(&self);
    /// What is written afterwards is not seen without what was written before.
    fn release_fence(&self);
    /// As the receiver.
    fn load_word(&self) -> u32;
    /// What is looked at afterwards is not older than what was copied before.
    fn acquire_fence(&self);
}

/// Of a sender, before it writes the line anew although nobody said that the last message is taken.
pub fn begin_anew(slot: &impl Slot) {
    slot.clear_word();
    // Pairs with the fence in `copy_whole`.
    slot.release_fence();
}

/// Of a receiver: what `copy` copied, if it is all of the message with this word. Of a peer that keeps no rule it may
/// be any bytes.
#[inline]
pub fn copy_whole<T>(slot: &impl Slot, word: u32, copy: impl FnOnce() -> T) -> Option<T> {
    let copied = copy();
    // Pairs with the fence in `begin_anew`.
    slot.acquire_fence();
    (slot.load_word() == word).then_some(copied)
}
