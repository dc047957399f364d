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

use crate::words::{Fence, Words};

/// Of a sender, before it writes the line anew although nobody said that the last message is taken.
#[cold]
pub fn begin_anew(half: &impl Words) {
    half.clear_word();
    // Pairs with the fence in `copy_whole`.
    half.fence(Fence::Anew);
}

/// Of a receiver: what `copy` copied, if it is all of the message with this word. Of a peer that keeps no rule it may
/// be any bytes.
#[inline]
pub fn copy_whole<T>(half: &impl Words, word: u32, copy: impl FnOnce() -> Option<T>) -> Option<T> {
    let copied = copy();
    // Pairs with the fence in `begin_anew`.
    half.fence(Fence::Copied);
    if half.peer_word() == word { copied } else { None }
}
