//! The exchange of messages over one channel, step by step: the sender's, the receiver's, the caller's and the
//! replier's part of `docs/design/channel.md`, "Messages".
//!
//! Not here: waiting between the steps, and what a party remembers (`kernel/ipc`, `talk.rs`). Nothing here waits, and
//! every step may be made over any memory ([`crate::words`]): the model in `tests/channel_model.rs` makes these.

use abi::layout::{state, word};
use abi::{Calls, IpcError, Settled};

use crate::slot::copy_whole;
use crate::word::{Both, Kind, Timing, Word, both_send};
use crate::words::{Direction, Words};

/// Exchanges of a state word that may fail: an honest peer changes it once.
const SETTLE_TRIES_MAX: u32 = 16;

/// Whether a proxy plays the peer: withdrawing has to be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proxied {
    No,
    Yes,
}

/// Two parties that may send to each other at once.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub own: u32,
    pub peer: u32,
}

/// What a waiting sender sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    Taken,
    GiveWay,
}

/// What a waiting caller sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replied {
    Published(Word),
    GiveWay,
    Corrupt,
}

/// The right that a message of this kind needs.
#[inline]
pub fn right_for(kind: Kind) -> Calls {
    match kind {
        Kind::Send => Calls::SEND,
        Kind::Request => Calls::SENDREC,
        Kind::Reply => Calls::NONE,
    }
}

// The sender.

/// Publishes what `write_line` writes into the free slot, and wakes the peer.
#[inline]
pub fn publish(half: &impl Words, word: Word, write_line: impl FnOnce()) {
    if word.timing == Timing::Timed {
        half.set_state(Direction::Own, word.in_state(state::OFFERED));
        if word.kind == Kind::Request {
            half.set_reply_state(Direction::Own, word.in_state(state::OFFERED));
        }
    } else if word.is_misjudged_by(half.state(Direction::Own)) {
        // What the word said of another message, with this counter or one that looks later.
        half.set_state(Direction::Own, state::IDLE);
    }
    if word.kind == Kind::Request {
        half.set_own_awaits(word.raw());
    }
    write_line();
    half.publish_word(word.raw());
    half.kick();
}

/// What became of the message with this word, as far as its sender, which waits until it is taken, has to act.
/// `seen` is the peer's word that was taken or passed over last, here and below.
#[inline]
pub fn sent(half: &impl Words, seen: u32, word: Word, numbers: Numbers) -> Option<Sending> {
    if half.peer_taken() == word.raw() {
        return Some(Sending::Taken);
    }
    let raw = half.peer_word();
    if raw != seen && raw & word::KIND_MASK == word::REPLY {
        pass_over(half, raw);
    }
    gives_way(half, seen, word, numbers).then_some(Sending::GiveWay)
}

/// Whether the peer sends to us while we send to it, and we are the one to give way.
fn gives_way(half: &impl Words, seen: u32, own_word: Word, numbers: Numbers) -> bool {
    let raw = half.peer_word();
    if raw == seen || half.peer_taken() == own_word.raw() {
        return false;
    }
    let word = Word::of(raw);
    let said = half.state(Direction::Peer);
    let is_over = word.is_some_and(|word| word.state_of(said) == state::WITHDRAWN || word.is_before(said));
    !is_over && both_send(numbers.own, numbers.peer, word) == Both::GiveWay
}

/// How the message with this word left the slot; `None` while it is there.
#[inline]
pub fn left_slot(half: &impl Words, word: Word) -> Option<Settled> {
    if half.peer_taken() == word.raw() {
        return Some(Settled::Taken);
    }
    (word.state_of(half.state(Direction::Own)) == state::WITHDRAWN).then_some(Settled::Withdrawn)
}

/// Takes a message back, or learns that it was taken. `None`: the proxy was asked, and says how it is [`settled`].
pub fn take_back(half: &impl Words, word: Word, proxied: Proxied) -> Option<Settled> {
    let wish = match proxied {
        Proxied::No => state::WITHDRAWN,
        Proxied::Yes => state::CANCEL,
    };
    let is_first = match word.timing {
        // A peer that was stuck may be freed at this moment.
        Timing::Untimed if word.kind == Kind::Send && proxied == Proxied::No => {
            settle(half, Direction::Own, word, wish)
        }
        // The proxy settles it; and who takes a request that is withdrawn at this moment finds nobody to answer.
        Timing::Untimed => {
            half.set_state(Direction::Own, word.in_state(wish));
            true
        }
        Timing::Timed => {
            let wished = word.in_state(wish);
            match half.exchange_state(Direction::Own, word.in_state(state::OFFERED), wished) {
                Ok(()) => true,
                // A proxy that was killed may have done it.
                Err(found) => found == wished,
            }
        }
    };
    match (is_first, proxied) {
        (false, _) => Some(Settled::Taken),
        (true, Proxied::No) => Some(Settled::Withdrawn),
        (true, Proxied::Yes) => {
            half.kick();
            None
        }
    }
}

/// What the proxy said to the wish of [`take_back`].
#[inline]
pub fn settled(half: &impl Words, word: Word) -> Option<Settled> {
    match word.state_of(half.state(Direction::Own)) {
        state::TAKEN => Some(Settled::Taken),
        state::WITHDRAWN => Some(Settled::Withdrawn),
        _ => (half.peer_taken() == word.raw()).then_some(Settled::Taken),
    }
}

/// Brings an untimed message to its end, which both parties try in their own way; nothing was said of it before.
/// `false` when the other was first.
pub fn settle(half: &impl Words, direction: Direction, word: Word, end: u32) -> bool {
    let mut found = half.state(direction);
    for _ in 0..SETTLE_TRIES_MAX {
        if word.is_misjudged_by(found) {
            break;
        }
        match half.exchange_state(direction, found, word.in_state(end)) {
            Ok(()) => return true,
            Err(now) => found = now,
        }
    }
    found == word.in_state(end)
}

// The receiver.

/// The peer's message that can be taken now. `Corrupt`: not a word, or of a kind that the peer may not send.
#[inline]
pub fn offered(half: &impl Words, seen: &mut u32, rights: Calls) -> Result<Option<Word>, IpcError> {
    let raw = half.peer_word();
    if raw == *seen || raw == 0 {
        return Ok(None);
    }
    let word = Word::of(raw).ok_or(IpcError::Corrupt)?;
    if !rights.contains(right_for(word.kind)) {
        return Err(IpcError::Corrupt);
    }
    let said = half.state(Direction::Peer);
    let is_over = word.timing == Timing::Untimed && word.kind != Kind::Reply && word.is_before(said);
    if is_over || word.state_of(said) == state::WITHDRAWN {
        *seen = raw;
        return Ok(None);
    }
    if word.kind == Kind::Reply {
        *seen = raw;
        pass_over(half, raw);
        return Ok(None);
    }
    Ok(Some(word))
}

/// Takes what `copy` copies of a message that was offered, or of the reply that was waited for. `None` when its sender
/// withdrew it first; `Corrupt` when there cannot be such a message.
#[inline]
pub fn take<T>(
    half: &impl Words,
    word: Word,
    proxied: Proxied,
    copy: impl FnOnce() -> Option<T>,
) -> Result<Option<T>, IpcError> {
    if !win_message(half, word) {
        return Ok(None);
    }
    let Some(copied) = copy_whole(half, word.raw(), copy) else {
        // Given up at this moment, and the next is there: `win_message` does not decide about it.
        return if is_replaced_request(half, word) { Ok(None) } else { Err(IpcError::Corrupt) };
    };
    half.set_own_taken(word.raw());
    // A caller waits for the reply, not for this, and a replier for nothing; everybody else does.
    if word.kind == Kind::Send || proxied == Proxied::Yes {
        half.kick();
    }
    Ok(Some(copied))
}

/// Agrees with the sender that the message is taken. `false` when it was withdrawn first.
#[inline]
fn win_message(half: &impl Words, word: Word) -> bool {
    match (word.kind, word.timing) {
        (Kind::Send | Kind::Request, Timing::Timed) => {
            let (offered, taken) = (word.in_state(state::OFFERED), word.in_state(state::TAKEN));
            half.exchange_state(Direction::Peer, offered, taken).is_ok()
        }
        (Kind::Send, Timing::Untimed) => settle(half, Direction::Peer, word, state::TAKEN),
        // Its sender waits for the answer in any case.
        (Kind::Request, Timing::Untimed) | (Kind::Reply, _) => true,
    }
}

/// Whether the request, which has no limit, lies there no more.
#[cold]
fn is_replaced_request(half: &impl Words, word: Word) -> bool {
    word.kind == Kind::Request && word.timing == Timing::Untimed && half.peer_word() != word.raw()
}

/// A reply that nobody waits for: its caller's wait ended for another reason. Taking it frees the slot of the replier,
/// who may sleep until it is free.
#[cold]
fn pass_over(half: &impl Words, reply: u32) {
    if half.own_taken() != reply {
        half.set_own_taken(reply);
        half.kick();
    }
}

// The caller.

/// What the caller that waits for the answer to `request` has to act on.
#[inline]
pub fn replied(half: &impl Words, seen: u32, request: Word, numbers: Numbers) -> Option<Replied> {
    let raw = half.peer_word();
    if raw == seen || raw == 0 {
        return None;
    }
    match Word::of(raw) {
        Some(reply) if reply.answers(request) => Some(Replied::Published(reply)),
        Some(reply) if reply.kind == Kind::Reply => {
            pass_over(half, raw);
            None
        }
        Some(_) => gives_way(half, seen, request, numbers).then_some(Replied::GiveWay),
        None => Some(Replied::Corrupt),
    }
}

/// Of a timed caller whose request was taken: `true` when it gave the reply up, else that follows at once.
pub fn give_up_reply(half: &impl Words, request: Word, proxied: Proxied) -> bool {
    let (waiting, given_up) = (request.in_state(state::OFFERED), request.in_state(state::WITHDRAWN));
    if half.exchange_reply_state(Direction::Own, waiting, given_up).is_err() {
        return false;
    }
    // The far side is asked to withdraw the request, which it cannot, and knows.
    let (taken, cancel) = (request.in_state(state::TAKEN), request.in_state(state::CANCEL));
    if proxied == Proxied::Yes && half.exchange_state(Direction::Own, taken, cancel).is_ok() {
        half.kick();
    }
    true
}

// The replier.

/// Agrees with the caller that its reply comes: it cannot give up any more afterwards. `Err` is what a timed caller's
/// reply word says instead.
#[inline]
pub fn win_reply(half: &impl Words, request: Word) -> Result<(), u32> {
    if request.timing == Timing::Untimed {
        return Ok(());
    }
    let (waiting, answered) = (request.in_state(state::OFFERED), request.in_state(state::TAKEN));
    half.exchange_reply_state(Direction::Peer, waiting, answered)
}
