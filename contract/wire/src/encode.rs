//! From a frame to bytes.

use std::num::NonZeroU64;

use abi::ring::{Completion, RingSpec, Submission};

use crate::codec::Sink;
use crate::decode::PACKING_LZ4;
use crate::frame::{Frame, Hello, OpenTag, OpenTags, Packing, Refusal, Resync, WireChannel, kind};
use crate::{HEAD_BYTES, LAYOUT, fault, limits};

/// Head and fixed fields of SUBMIT; exactly `data_bytes` of data must follow it on the wire, in blocks when it is
/// packed.
pub fn submit_head(
    out: &mut impl Sink,
    channel: WireChannel,
    index: u32,
    produced: u32,
    entry: &Submission,
    data: (u32, Packing),
) {
    ring_head(out, kind::SUBMIT, channel, index, produced, &entry.to_bytes(), data);
}

/// Head and fixed fields of COMPLETE; what follows is as after [`submit_head`].
pub fn complete_head(
    out: &mut impl Sink,
    channel: WireChannel,
    index: u32,
    produced: u32,
    entry: &Completion,
    data: (u32, Packing),
) {
    ring_head(out, kind::COMPLETE, channel, index, produced, &entry.to_bytes(), data);
}

fn ring_head(
    out: &mut impl Sink,
    kind: u8,
    channel: WireChannel,
    index: u32,
    produced: u32,
    entry: &[u8; 64],
    (data_bytes, packing): (u32, Packing),
) {
    packed_head(out, kind, Frame::RING_FIXED_BYTES as u32 + data_bytes, packing);
    put_channel(out, channel);
    out.put(&index.to_le_bytes());
    out.put(&produced.to_le_bytes());
    out.put(entry);
}

fn head(out: &mut impl Sink, kind: u8, body_bytes: u32) {
    packed_head(out, kind, body_bytes, Packing::Plain);
}

fn packed_head(out: &mut impl Sink, kind: u8, body_bytes: u32, packing: Packing) {
    let mut bytes = [0; HEAD_BYTES];
    bytes[0..4].copy_from_slice(&body_bytes.to_le_bytes());
    bytes[4] = kind;
    bytes[5] = LAYOUT;
    bytes[6] = if packing == Packing::Lz4 { PACKING_LZ4 } else { 0 };
    out.put(&bytes);
}

fn put_channel(out: &mut impl Sink, channel: WireChannel) {
    out.put(&channel.opener.0.to_le_bytes());
    out.put(&channel.number.to_le_bytes());
}

const CHANNEL_BYTES: usize = 10;

impl Frame<'_> {
    /// Fixed fields of SUBMIT and COMPLETE.
    pub(crate) const RING_FIXED_BYTES: usize = CHANNEL_BYTES + 8 + 64;
    /// Bytes before the data of SUBMIT and COMPLETE, the head included.
    pub const RING_OVERHEAD_BYTES: usize = HEAD_BYTES + Frame::RING_FIXED_BYTES;

    /// Bytes of the whole encoded frame.
    pub fn encoded_bytes(&self) -> usize {
        HEAD_BYTES + self.body_bytes()
    }

    fn body_bytes(&self) -> usize {
        match self {
            Frame::Hello(hello) => {
                2 + hello.cluster.len() + hello.node.len() + 2 + 8 + 8 + 4 + 4 + 4 + 1 + 2 + 1 + hello.release.len()
            }
            Frame::Refuse { reason, .. } => 2 + cut(reason).len(),
            Frame::Resync(resync) => CHANNEL_BYTES + 12 + 8 + resync.open_tags.iter().count() * limits::OPEN_TAG_BYTES,
            Frame::ResyncEnd => 0,
            Frame::Open { .. } => CHANNEL_BYTES + 4 + 4 + 4 + 2 + 8 + 8,
            Frame::Opened { .. } | Frame::Close { .. } => CHANNEL_BYTES + 6,
            Frame::Closed { .. } => CHANNEL_BYTES,
            Frame::Message { inline, payload, .. } => CHANNEL_BYTES + 8 + payload.len() + inline.len(),
            Frame::Taken { .. } | Frame::Withdraw { .. } | Frame::Withdrawn { .. } | Frame::Produced { .. } => {
                CHANNEL_BYTES + 4
            }
            Frame::Notify { .. } => CHANNEL_BYTES + 16,
            Frame::Notified { .. } => CHANNEL_BYTES + 8,
            Frame::Submit { data, .. } | Frame::Complete { data, .. } => Frame::RING_FIXED_BYTES + data.len(),
            Frame::Heartbeat { .. } => 16,
            Frame::Credit { .. } => 8,
            Frame::Parcel { bytes } => 4 + bytes.len(),
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Frame::Hello(_) => kind::HELLO,
            Frame::Refuse { .. } => kind::REFUSE,
            Frame::Resync(_) => kind::RESYNC,
            Frame::ResyncEnd => kind::RESYNC_END,
            Frame::Open { .. } => kind::OPEN,
            Frame::Opened { .. } => kind::OPENED,
            Frame::Close { .. } => kind::CLOSE,
            Frame::Closed { .. } => kind::CLOSED,
            Frame::Message { .. } => kind::MESSAGE,
            Frame::Taken { .. } => kind::TAKEN,
            Frame::Withdraw { .. } => kind::WITHDRAW,
            Frame::Withdrawn { .. } => kind::WITHDRAWN,
            Frame::Notify { .. } => kind::NOTIFY,
            Frame::Notified { .. } => kind::NOTIFIED,
            Frame::Submit { .. } => kind::SUBMIT,
            Frame::Complete { .. } => kind::COMPLETE,
            Frame::Produced { .. } => kind::PRODUCED,
            Frame::Heartbeat { .. } => kind::HEARTBEAT,
            Frame::Credit { .. } => kind::CREDIT,
            Frame::Parcel { .. } => kind::PARCEL,
        }
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut impl Sink) {
        head(out, self.kind(), self.body_bytes() as u32);
        match self {
            Frame::Hello(hello) => put_hello(out, hello),
            Frame::Refuse { refusal, reason } => {
                out.put(&[refusal_code(*refusal)]);
                put_text(out, cut(reason));
            }
            Frame::Resync(resync) => put_resync(out, resync),
            Frame::ResyncEnd => {}
            Frame::Open { channel, dc, from, to, lane, ring, incarnation } => {
                put_channel(out, *channel);
                out.put(&dc.0.to_le_bytes());
                out.put(&from.number().to_le_bytes());
                out.put(&to.number().to_le_bytes());
                out.put(&lane.0.to_le_bytes());
                let spec = ring.unwrap_or(RingSpec { entries: 0, arena_bytes: 0 });
                out.put(&spec.entries.to_le_bytes());
                out.put(&spec.arena_bytes.to_le_bytes());
                out.put(&incarnation.map_or(0, NonZeroU64::get).to_le_bytes());
            }
            Frame::Opened { channel, result } => put_fault(out, *channel, result.err()),
            Frame::Close { channel, reason } => put_fault(out, *channel, Some(*reason)),
            Frame::Closed { channel } => put_channel(out, *channel),
            Frame::Message { channel, word, kind, payload, inline } => {
                put_channel(out, *channel);
                out.put(&word.to_le_bytes());
                out.put(&kind.to_le_bytes());
                out.put(*payload);
                out.put(inline);
            }
            Frame::Taken { channel, word }
            | Frame::Withdraw { channel, word }
            | Frame::Withdrawn { channel, word }
            | Frame::Produced { channel, produced: word } => {
                put_channel(out, *channel);
                out.put(&word.to_le_bytes());
            }
            Frame::Notify { channel, number, mask } => {
                put_channel(out, *channel);
                out.put(&number.to_le_bytes());
                out.put(&mask.to_le_bytes());
            }
            Frame::Notified { channel, number } => {
                put_channel(out, *channel);
                out.put(&number.to_le_bytes());
            }
            Frame::Submit { channel, index, produced, entry, data } => {
                put_ring(out, *channel, *index, *produced, &entry.to_bytes(), data);
            }
            Frame::Complete { channel, index, produced, entry, data } => {
                put_ring(out, *channel, *index, *produced, &entry.to_bytes(), data);
            }
            Frame::Heartbeat { seq, echo } => {
                out.put(&seq.to_le_bytes());
                out.put(&echo.to_le_bytes());
            }
            Frame::Credit { processed } => out.put(&processed.to_le_bytes()),
            Frame::Parcel { bytes } => {
                out.put(&(bytes.len() as u32).to_le_bytes());
                out.put(bytes);
            }
        }
    }
}

fn put_ring(out: &mut impl Sink, channel: WireChannel, index: u32, produced: u32, entry: &[u8; 64], data: &[u8]) {
    put_channel(out, channel);
    out.put(&index.to_le_bytes());
    out.put(&produced.to_le_bytes());
    out.put(entry);
    out.put(data);
}

fn put_hello(out: &mut impl Sink, hello: &Hello<'_>) {
    put_text(out, hello.cluster);
    put_text(out, hello.node);
    out.put(&hello.node_id.0.to_le_bytes());
    out.put(&hello.incarnation.0.to_le_bytes());
    out.put(&hello.connection.to_le_bytes());
    out.put(&hello.features.to_le_bytes());
    out.put(&hello.frame_bytes_max.to_le_bytes());
    out.put(&hello.window_bytes.to_le_bytes());
    out.put(&[hello.pair.number()]);
    out.put(&hello.speaks.to_u16().to_le_bytes());
    put_text(out, hello.release);
}

fn put_resync(out: &mut impl Sink, resync: &Resync<'_>) {
    put_channel(out, resync.channel);
    out.put(&resync.published.to_le_bytes());
    out.put(&resync.taken.to_le_bytes());
    out.put(&resync.produced.to_le_bytes());
    out.put(&resync.notified.to_le_bytes());
    match resync.open_tags {
        OpenTags::Listed(tags) => tags.iter().for_each(|tag| put_open_tag(out, tag)),
        OpenTags::Encoded(bytes) => out.put(bytes),
    }
}

fn put_open_tag(out: &mut impl Sink, tag: &OpenTag) {
    out.put(&tag.tag.to_le_bytes());
    out.put(&tag.arena_offset.to_le_bytes());
    out.put(&tag.in_capacity.to_le_bytes());
}

fn put_fault(out: &mut impl Sink, channel: WireChannel, error: Option<abi::IpcError>) {
    let (code, errno) = error.map_or((0, 0), fault::to_code);
    put_channel(out, channel);
    out.put(&code.to_le_bytes());
    out.put(&errno.to_le_bytes());
}

/// Names are bounded where they are configured; a longer one would be refused by the peer, never sent wrongly.
fn put_text(out: &mut impl Sink, text: &str) {
    out.put(&[text.len() as u8]);
    out.put(text.as_bytes());
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(limits::REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

pub(crate) fn refusal_code(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::Cluster => 1,
        Refusal::Identity => 2,
        Refusal::Fenced => 3,
        Refusal::Version => 4,
        Refusal::Other => 255,
    }
}
