//! Data of ring entries that is sent from where it lies, without a copy in the out buffer.
//!
//! The out buffer holds everything else, heads of entries among it. An insertion says which data goes after how many of
//! its bytes. What a party writes into its arena until the transport has taken the bytes changes them, nothing else:
//! lengths and places are fixed. A channel that ends leaves a copy of what of its data has not gone.

use std::collections::VecDeque;

use wire::WireChannel;

use crate::body::{Outgoing, Place};
use crate::buffer::OutBuffer;
use crate::channel::LocalChannel;
use crate::limits;

/// How data of ring entries is handed to the transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bodies {
    /// All that is to be sent lies in the out buffer.
    #[default]
    Copied,
    /// The transport takes long data from the arenas: see [`OutPiece`].
    InPlace,
}

/// What is to be sent next lies here.
pub enum OutPiece<'a, C> {
    Bytes(&'a [u8]),
    /// In the channel's arena.
    InArena {
        local: &'a C,
        at: u32,
        bytes: u32,
    },
}

struct Insertion {
    /// Bytes of the out buffer that go between the insertion before and this one.
    before: usize,
    body: Outgoing,
}

#[derive(Default)]
pub(crate) struct Insertions {
    queue: VecDeque<Insertion>,
    /// Bytes of the out buffer that go before the last one.
    placed: usize,
    bytes: usize,
}

impl Insertions {
    /// Bytes of data that has not gone.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= limits::IN_PLACE_MAX
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.queue.iter().any(|insertion| insertion.body.is_lost())
    }

    pub(crate) fn clear(&mut self) {
        *self = Insertions::default();
    }

    /// Behind all that `out` holds.
    pub(crate) fn push(&mut self, body: Outgoing, out: &OutBuffer) {
        let before = out.pending().len() - self.placed;
        self.placed += before;
        self.bytes += body.left() as usize;
        self.queue.push_back(Insertion { before, body });
    }

    /// The first `count` bytes of all pieces went.
    pub(crate) fn sent(&mut self, mut count: usize, out: &mut OutBuffer) {
        while let Some(first) = self.queue.front_mut() {
            let plain = count.min(first.before);
            out.sent(plain);
            first.before -= plain;
            self.placed -= plain;
            let data = (count - plain).min(first.body.left() as usize);
            first.body.advance(data);
            self.bytes -= data;
            count -= plain + data;
            if first.before > 0 || !first.body.is_complete() {
                return;
            }
            self.queue.pop_front();
        }
        out.sent(count);
    }

    /// The channel's memory goes.
    pub(crate) fn keep<C: LocalChannel>(&mut self, channel: WireChannel, local: &C) {
        let of_channel = self.queue.iter_mut().filter(|insertion| insertion.body.channel == channel);
        of_channel.for_each(|insertion| insertion.body.keep(local));
    }

    /// All that is to be sent, in order, up to what cannot be had any more.
    pub(crate) fn pieces<'a, C: LocalChannel + 'a>(
        &'a self,
        out: &'a OutBuffer,
        local: impl Fn(WireChannel) -> Option<&'a C>,
    ) -> impl Iterator<Item = OutPiece<'a, C>> {
        let mut rest = out.pending();
        let mut queue = self.queue.iter();
        let mut next = queue.next();
        let mut is_before_data = true;
        std::iter::from_fn(move || {
            let Some(insertion) = next else {
                let last = std::mem::take(&mut rest);
                return (!last.is_empty()).then_some(OutPiece::Bytes(last));
            };
            if std::mem::replace(&mut is_before_data, false) && insertion.before > 0 {
                let (bytes, after) = rest.split_at_checked(insertion.before)?;
                rest = after;
                return Some(OutPiece::Bytes(bytes));
            }
            (next, is_before_data) = (queue.next(), true);
            match insertion.body.place()? {
                Place::InArena { at, bytes } => {
                    local(insertion.body.channel).map(|local| OutPiece::InArena { local, at, bytes })
                }
                Place::Kept(bytes) => Some(OutPiece::Bytes(bytes)),
            }
        })
        .fuse()
    }
}
