//! Where things lie in the memory of a channel. See `docs/design/channel.md` for the drawing and the protocol.
//!
//! A channel has three memory objects. `Side` of the initiator ("left") and `Side` of the acceptor ("right") are each
//! written by their owner only and read-only for the peer. `Shared` is writable by both; it holds the state words,
//! the notification masks and the arena.

use crate::ring::ENTRY_BYTES;

/// How large a channel is: ring entries (0 for a channel of messages) and bytes of its arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Size {
    pub entries: u32,
    pub arena_bytes: u32,
}

impl Size {
    pub fn side_bytes(self) -> usize {
        side::PAGE_BYTES + (self.entries as usize * ENTRY_BYTES).next_multiple_of(4096)
    }

    pub fn shared_bytes(self) -> usize {
        shared::PAGE_BYTES + self.arena_bytes as usize
    }
}

/// Which end of a channel a party is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The initiator.
    Left,
    /// The acceptor.
    Right,
}

impl Role {
    pub fn other(self) -> Role {
        match self {
            Role::Left => Role::Right,
            Role::Right => Role::Left,
        }
    }
}

/// Offsets inside a side. The first page is control, the ring's entries follow.
pub mod side {
    /// One cache line: publication word, kind, 56 bytes of payload.
    pub const MESSAGE: usize = 0;
    pub const MESSAGE_WORD: usize = MESSAGE;
    pub const MESSAGE_KIND: usize = MESSAGE + 4;
    pub const MESSAGE_PAYLOAD: usize = MESSAGE + 8;

    /// Futex word that the peer sleeps on; its owner bumps it after a publication when the peer is parked.
    pub const EVENT: usize = 128;
    /// How the owner of this side waits at the moment: one of [`super::parked`].
    pub const PARKED: usize = 132;
    /// Notifications the owner posted so far; a change says: look at the mask in `Shared`.
    pub const NOTIFIED: usize = 136;
    /// 0 while the owner of this side keeps the channel open, else the code of the reason it closed it for
    /// ([`crate::IpcError::code`]); final.
    pub const CLOSED: usize = 140;

    /// Entries the owner has produced into its ring so far, modulo 2^32.
    pub const RING_TAIL: usize = 256;
    /// Entries of the peer's ring that the owner has consumed so far, modulo 2^32.
    pub const RING_HEAD: usize = 384;

    /// Two words that change with every message and that the peer seldom reads: apart from those it reads at every
    /// message. The publication word of the last message of the peer that the owner took,
    pub const TAKEN: usize = 512;
    /// and that of the request that the owner of this side waits to be answered, 0 when none.
    pub const AWAITS: usize = 516;

    /// Three words of 64 bits of a proxy that plays the owner of this side; they outlive it. The number of the last
    /// notification it took from the peer for the far side,
    pub const CARRIED_NUMBER: usize = 640;
    /// its bits, until the far side has passed them on,
    pub const CARRIED_BITS: usize = 648;
    /// and the number of the last notification of the far side that it posted here.
    pub const POSTED_NUMBER: usize = 656;
    /// And a word: not 0 once the far side is known to have the channel.
    pub const OPENED: usize = 664;

    /// Bytes of the data that travels with a message flagged [`super::word::INLINE`],
    pub const INLINE_BYTES: usize = 1024;
    /// and the data.
    pub const INLINE: usize = 1032;

    pub const PAGE_BYTES: usize = 4096;
    /// The ring's entries, 64 bytes each: submissions in the left side, completions in the right one.
    pub const RING: usize = PAGE_BYTES;

    const _: () = assert!(INLINE + crate::limits::INLINE_BYTES_MAX <= PAGE_BYTES);
}

/// Offsets inside the shared object.
pub mod shared {
    /// State word of the direction left to right, one of [`super::state`] in the low byte.
    pub const STATE_FROM_LEFT: usize = 0;
    pub const STATE_FROM_RIGHT: usize = 128;
    /// Pending notification bits, OR-ed by the sender, taken by exchange with 0.
    pub const NOTIFY_FROM_LEFT: usize = 256;
    pub const NOTIFY_FROM_RIGHT: usize = 384;
    /// Whether a timed caller still waits for its reply: the counter of its request and one of [`super::state`].
    /// Apart from the state words, because the replier may offer a message of its own before it takes the request.
    pub const REPLY_TO_LEFT: usize = 512;
    pub const REPLY_TO_RIGHT: usize = 640;

    pub const PAGE_BYTES: usize = 4096;
    /// The arena begins here.
    pub const ARENA: usize = PAGE_BYTES;
}

/// The publication word: `counter << 4 | flags`. The counter skips 0, so a word is never 0 once used. A message
/// continues the counter of the direction's last one that was no reply; a reply has the counter of the request it
/// answers, so that a reply to a request that was given up is told from the one that is awaited. No word comes twice in
/// a direction before its counter wraps.
pub mod word {
    pub const SEND: u32 = 0;
    pub const REQUEST: u32 = 1;
    pub const REPLY: u32 = 2;
    pub const KIND_MASK: u32 = 0b0011;
    /// The sender may withdraw: the receiver must win the state word before it takes the message.
    pub const TIMED: u32 = 0b0100;
    /// Data travels with the message.
    pub const INLINE: u32 = 0b1000;
    pub const FLAG_BITS: u32 = 4;

    pub const fn next(previous: u32, flags: u32) -> u32 {
        let mut counter = (previous >> FLAG_BITS).wrapping_add(1) & (u32::MAX >> FLAG_BITS);
        if counter == 0 {
            counter = 1;
        }
        counter << FLAG_BITS | flags
    }

    /// Whether `reply` is a reply, to just that request: it carries the request's counter. The reply to a request that
    /// its sender gave up may come when the next request is under way.
    pub const fn answers(reply: u32, request: u32) -> bool {
        reply & KIND_MASK == REPLY && request & KIND_MASK == REQUEST && reply >> FLAG_BITS == request >> FLAG_BITS
    }
}

/// State of one direction: the publication word's counter in the upper bits, one of these in the bits of the flags.
pub mod state {
    pub const IDLE: u32 = 0;
    pub const OFFERED: u32 = 1;
    pub const TAKEN: u32 = 2;
    pub const WITHDRAWN: u32 = 3;
    /// The sender of a proxied channel asks to withdraw; the proxy answers with `TAKEN` or `WITHDRAWN`.
    pub const CANCEL: u32 = 4;
}

/// How the owner of a side waits.
pub mod parked {
    /// It looks by itself.
    pub const AWAKE: u32 = 0;
    /// It sleeps on the peer's `EVENT` word.
    pub const FUTEX: u32 = 1;
    /// It sleeps in epoll: write to the channel's eventfd.
    pub const EVENTFD: u32 = 2;
}

/// The control page of one endpoint; only the broker writes it.
pub mod control {
    /// Futex word, bumped at every change of anything below.
    pub const EVENT: usize = 0;
    /// One of [`super::life`].
    pub const LIFE: usize = 4;
    /// Which hold it is, while traffic to the endpoint is held for a migration; else 0.
    pub const HOLD: usize = 8;
    /// Bumped by `wakeup`.
    pub const WAKEUPS: usize = 12;
    /// Two 32-bit halves, low first; bumped with `EVENT`.
    pub const EPOCH: usize = 16;
    /// 64 bits that no other page of this node ever had.
    pub const SERIAL: usize = 24;
    /// The serial number of the endpoint's page on its own node: tells two incarnations of it apart wherever they are
    /// looked at. 0 while that is not known here: the endpoint has opened nothing to this node yet.
    pub const HOME_SERIAL: usize = 32;
    pub const PAGE_BYTES: usize = 4096;
}

/// Life of an endpoint as its control page tells it.
pub mod life {
    pub const ALIVE: u32 = 1;
    /// The process died or unbound; final for this control page.
    pub const DEAD: u32 = 2;
    /// A remote endpoint whose node cannot be reached; final for this control page, a later bind makes a new one.
    pub const UNREACHABLE: u32 = 3;
    /// Another owner was promoted.
    pub const FENCED: u32 = 4;
    /// Handed over to another owner, who has another page.
    pub const MOVED: u32 = 5;
}

#[cfg(test)]
mod tests {
    use super::word;

    #[test]
    fn publication_word_is_never_zero_and_wraps() {
        let last = u32::MAX >> word::FLAG_BITS << word::FLAG_BITS;
        assert_eq!(word::next(last, word::SEND) >> word::FLAG_BITS, 1);
        assert_ne!(word::next(0, word::SEND), 0);
    }
}
