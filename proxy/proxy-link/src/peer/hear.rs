//! What the peer's bytes say.

use std::collections::HashMap;
use std::time::Duration;

use abi::IpcError;
use wire::{Block, Frame, Next, Packing, RingHead, WireChannel};

use super::channels::Ended;
use super::{Action, Known, Peer};
use crate::LinkError;
use crate::body::Incoming;
use crate::buffer::InBuffer;
use crate::channel::{Ends, LocalChannel};
use crate::crossing::Crossing;
use crate::link::Phase;

/// Where data that comes next goes in a channel's arena.
pub struct Due<'a, C> {
    pub local: &'a C,
    pub at: u32,
    pub bytes: u32,
}

impl<C: LocalChannel> Peer<C> {
    /// Decodes every whole frame in `input` and does what it says; data of a ring's frame is taken as it comes.
    ///
    /// # Errors
    /// The connection must be cut; `Refuse` is told to the peer before.
    pub fn receive(&mut self, input: &mut InBuffer, now: Duration) -> Result<(), LinkError> {
        let result = self.receive_frames(input, now);
        self.kick_all();
        result
    }

    fn receive_frames(&mut self, input: &mut InBuffer, now: Duration) -> Result<(), LinkError> {
        while self.take_data(input, now)? {
            let bytes = match wire::next(input.waiting())? {
                Next::Incomplete => break,
                Next::Frame(frame, bytes) => {
                    self.hear(now, &frame)?;
                    bytes
                }
                Next::Ring(head) => {
                    self.hear_head(&head)?;
                    Frame::RING_OVERHEAD_BYTES
                }
            };
            self.link.heard_frame(now, bytes);
            input.consume(bytes);
        }
        Ok(())
    }

    /// The same for `bytes` that were decrypted elsewhere: data that is due goes from there to its arena, the rest into
    /// `input`. Answers how many were taken; fewer than all when `input` is full.
    ///
    /// # Errors
    /// As [`Peer::receive`].
    pub fn receive_from(&mut self, bytes: &[u8], input: &mut InBuffer, now: Duration) -> Result<usize, LinkError> {
        let result = self.receive_parts(bytes, input, now);
        self.kick_all();
        result
    }

    fn receive_parts(&mut self, bytes: &[u8], input: &mut InBuffer, now: Duration) -> Result<usize, LinkError> {
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            let is_direct = input.waiting().is_empty() && self.is_plain_data_due();
            let count = if is_direct { self.take_plain(rest, now) } else { input.append(rest) };
            if count == 0 {
                break;
            }
            taken += count;
            if !is_direct {
                self.receive_frames(input, now)?;
            }
        }
        Ok(taken)
    }

    /// Plain data that is due before anything else and is wanted: the transport may put it there itself, then says so
    /// by [`Peer::data_came`]. Only while no bytes wait that came before.
    pub fn due(&self) -> Option<Due<'_, C>> {
        let incoming = self.incoming.as_ref().filter(|incoming| incoming.packing == Packing::Plain)?;
        let (at, bytes) = (incoming.at?, incoming.left);
        match self.known.get(&incoming.channel) {
            Some(Known::Crossing(crossing)) if bytes > 0 && !crossing.is_ending() => {
                Some(Due { local: &crossing.local, at, bytes })
            }
            _ => None,
        }
    }

    /// The first `count` bytes of what is due are where they belong. Call [`Peer::receive`] next, which wakes who waits
    /// for them.
    pub fn data_came(&mut self, count: u32, now: Duration) {
        let Some(incoming) = &self.incoming else { return };
        let count = count.min(incoming.left);
        self.take_due(count, now, |_, _| Ok(()));
    }

    /// Wakes the parties whose entries came.
    fn kick_all(&mut self) {
        while let Some(channel) = self.unkicked.pop() {
            if let Some(Known::Crossing(crossing)) = self.known.get_mut(&channel)
                && std::mem::take(&mut crossing.unkicked)
            {
                crossing.local.kick();
            }
        }
    }

    fn is_plain_data_due(&self) -> bool {
        self.incoming.as_ref().is_some_and(|incoming| incoming.packing == Packing::Plain && incoming.left > 0)
    }

    /// Goes on with the data that is due, if any. `false` when there is more to come.
    fn take_data(&mut self, input: &mut InBuffer, now: Duration) -> Result<bool, LinkError> {
        match &self.incoming {
            None => Ok(true),
            Some(incoming) if incoming.packing == Packing::Plain || incoming.left == 0 => {
                let count = self.take_plain(input.waiting(), now);
                input.consume(count);
                Ok(self.incoming.is_none())
            }
            Some(_) => {
                while self.take_block(input, now)? {}
                Ok(self.incoming.is_none())
            }
        }
    }

    /// A whole block of packed data, when it is there and due.
    fn take_block(&mut self, input: &mut InBuffer, now: Duration) -> Result<bool, LinkError> {
        let Some(mut incoming) = self.incoming.take_if(|incoming| incoming.left > 0) else { return Ok(false) };
        let count = Block::plain_bytes(incoming.left as usize);
        let waiting = input.waiting();
        let block = Block::decode(waiting, count)?;
        let bytes = block.and_then(|block| waiting.get(Block::HEAD_BYTES..Block::HEAD_BYTES + block.bytes));
        let (Some(block), Some(bytes)) = (block, bytes) else {
            self.incoming = Some(incoming);
            return Ok(false);
        };
        incoming.left -= count as u32;
        if let Some(at) = incoming.at {
            // Out of the link for a moment: the channels are needed beside it.
            let mut thrift = self.link.unpacker().take().ok_or(LinkError::Packing)?;
            let plain = match block.is_stored {
                true => Ok(bytes),
                false => thrift.unpack(bytes, count),
            };
            let wanted = plain.map(|plain| self.hear_piece(&incoming, |local| local.copy_in(at, plain)));
            *self.link.unpacker() = Some(thrift);
            let wanted = wanted.map_err(|_| LinkError::Packing)?;
            incoming.at = wanted.then_some(at + count as u32);
        }
        let whole = Block::HEAD_BYTES + block.bytes;
        self.link.heard(now, whole);
        input.consume(whole);
        if incoming.left > 0 {
            self.incoming = Some(incoming);
        }
        Ok(true)
    }

    /// As many of the bytes as belong to the data that is due.
    fn take_plain(&mut self, bytes: &[u8], now: Duration) -> usize {
        let Some(incoming) = &self.incoming else { return 0 };
        let count = bytes.len().min(incoming.left as usize);
        let piece = bytes.get(..count).unwrap_or(&[]);
        self.take_due(count as u32, now, |local, at| local.copy_in(at, piece));
        count
    }

    /// The next `count` bytes of the data that is due came; `put` puts them where they belong.
    fn take_due(&mut self, count: u32, now: Duration, put: impl FnOnce(&C, u32) -> Result<(), IpcError>) {
        let Some(mut incoming) = self.incoming.take() else { return };
        incoming.left -= count;
        if let Some(at) = incoming.at {
            incoming.at = self.hear_piece(&incoming, |local| put(local, at)).then_some(at + count);
        }
        self.link.heard(now, count as usize);
        if incoming.left > 0 {
            self.incoming = Some(incoming);
        }
    }

    /// `false` when nobody wants the rest.
    fn hear_piece(&mut self, incoming: &Incoming, put: impl FnOnce(&C) -> Result<(), IpcError>) -> bool {
        let channel = incoming.channel;
        let Some(crossing) = listener(&mut self.known, channel) else { return false };
        let mut result = put(&crossing.local);
        if result.is_ok() && incoming.left == 0 {
            result = crossing.hear_entry(&incoming.entry);
        }
        if result.is_err() || incoming.left == 0 {
            self.heard(channel, result);
        }
        result.is_ok()
    }

    fn hear_head(&mut self, head: &RingHead) -> Result<(), LinkError> {
        match self.link.phase {
            Phase::Apart | Phase::Greeting => return Err(LinkError::OutOfPlace { frame: "a frame before HELLO" }),
            Phase::Resyncing if !self.end_heard => {
                return Err(LinkError::OutOfPlace { frame: "data before RESYNC_END" });
            }
            Phase::Resyncing | Phase::Up => {}
        }
        if head.packing == Packing::Lz4 && self.link.unpacker().is_none() {
            return Err(LinkError::OutOfPlace { frame: "packed data" });
        }
        self.link.counters.received_entries += 1;
        let RingHead { channel, entry, data_bytes: left, packing, .. } = *head;
        let at = listener(&mut self.known, channel).map(|crossing| crossing.hear_head(head)).transpose();
        if let Err(error) = at {
            self.heard(channel, Err(error));
        }
        self.incoming = Some(Incoming { channel, entry, at: at.unwrap_or(None), left, packing });
        Ok(())
    }

    fn hear(&mut self, now: Duration, frame: &Frame<'_>) -> Result<(), LinkError> {
        match (self.link.phase, frame) {
            (_, Frame::Refuse { refusal, reason }) => {
                Err(LinkError::Refused { refusal: *refusal, reason: (*reason).to_owned() })
            }
            (Phase::Greeting, Frame::Hello(hello)) => {
                self.link.greeted(hello)?;
                self.begin_resync();
                Ok(())
            }
            (Phase::Apart | Phase::Greeting, _) => Err(LinkError::OutOfPlace { frame: "a frame before HELLO" }),
            (_, Frame::Hello(_)) => Err(LinkError::OutOfPlace { frame: "a second HELLO" }),
            (_, Frame::Heartbeat { seq, echo }) => {
                self.link.heartbeat_came(now, *seq, *echo);
                Ok(())
            }
            (_, Frame::Credit { processed }) => self.link.credit_came(*processed),
            (Phase::Resyncing, Frame::Resync(resync)) if !self.end_heard => {
                self.hear_resync(resync);
                Ok(())
            }
            (Phase::Resyncing, Frame::ResyncEnd) if !self.end_heard => {
                self.end_heard = true;
                self.compare();
                self.go_up();
                Ok(())
            }
            (_, Frame::Resync(_) | Frame::ResyncEnd) => Err(LinkError::OutOfPlace { frame: "RESYNC" }),
            // The peer sends data when it has both end marks, so its own came before.
            (Phase::Resyncing, _) if !self.end_heard => Err(LinkError::OutOfPlace { frame: "data before RESYNC_END" }),
            (_, frame) => self.hear_channel(frame),
        }
    }

    fn hear_channel(&mut self, frame: &Frame<'_>) -> Result<(), LinkError> {
        match frame {
            Frame::Open { channel, dc, from, to, lane, ring, incarnation } => {
                let (dc, from, to, lane) = (*dc, *from, *to, *lane);
                self.hear_open(*channel, Ends { dc, from, to, lane, ring: *ring, incarnation: *incarnation })
            }
            Frame::Opened { channel, result } => {
                self.hear_opened(*channel, *result);
                Ok(())
            }
            Frame::Close { channel, reason } => self.hear_close(*channel, *reason),
            Frame::Closed { channel } => {
                self.hear_closed(*channel);
                Ok(())
            }
            Frame::Message { channel, .. }
            | Frame::Taken { channel, .. }
            | Frame::Withdraw { channel, .. }
            | Frame::Withdrawn { channel, .. }
            | Frame::Notify { channel, .. }
            | Frame::Notified { channel, .. }
            | Frame::Produced { channel, .. } => {
                self.hear_data(*channel, frame);
                Ok(())
            }
            Frame::Parcel { bytes } => {
                self.actions.push_back(Action::Parcel(bytes.to_vec()));
                Ok(())
            }
            _ => Err(LinkError::OutOfPlace { frame: "a frame of no channel" }),
        }
    }

    fn hear_data(&mut self, channel: WireChannel, frame: &Frame<'_>) {
        let Some(crossing) = listener(&mut self.known, channel) else { return };
        self.link.counters.received_messages += u64::from(matches!(frame, Frame::Message { .. }));
        let result = crossing.hear(frame);
        self.heard(channel, result);
    }

    /// What follows from having heard something for a channel.
    pub(super) fn heard(&mut self, channel: WireChannel, result: Result<(), IpcError>) {
        let Some(Known::Crossing(crossing)) = self.known.get_mut(&channel) else { return };
        if crossing.unkicked && self.unkicked.last() != Some(&channel) {
            self.unkicked.push(channel);
        }
        match result {
            Ok(()) => self.active(channel),
            Err(error) => self.end_slot(channel, error, Ended::Broken),
        }
    }
}

/// Who wants what the peer says for a channel. Frames for one that ended here meanwhile are late, not wrong.
fn listener<C: LocalChannel>(
    known: &mut HashMap<WireChannel, Known<C>>,
    channel: WireChannel,
) -> Option<&mut Crossing<C>> {
    match known.get_mut(&channel) {
        Some(Known::Crossing(crossing)) if !crossing.is_ending() => Some(crossing),
        _ => None,
    }
}
