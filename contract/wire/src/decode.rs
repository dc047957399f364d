//! From bytes nobody has checked to a frame.

use std::num::NonZeroU64;

use abi::limits::{
    ARENA_BYTES_MAX, INLINE_BYTES_MAX, LANES_PER_PAIR, PARCEL_BYTES_MAX, RING_ENTRIES_MAX, TRANSFER_BYTES_MAX,
};
use abi::ring::{Completion, RingSpec, Submission};
use abi::{DcId, Endpoint, Epoch, IpcError, Lane, NodeId, PairId};
use versions::Versions;

use crate::codec::Fields;
use crate::frame::{Frame, Hello, OpenTag, OpenTags, Packing, Refusal, Resync, RingEntry, RingHead, WireChannel, kind};
use crate::{HEAD_BYTES, LAYOUT, Next, WireError, fault, limits};

/// See [`crate::frame_bytes`].
pub(crate) fn frame_bytes(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let [b0, b1, b2, b3, kind, layout, packing, zero] = *head;
    let body = u32::from_le_bytes([b0, b1, b2, b3]);
    if layout != LAYOUT {
        return Err(WireError::Layout(layout));
    }
    if kind == 0 || kind > kind::LAST {
        return Err(WireError::UnknownKind(kind));
    }
    if zero != 0 || packing > PACKING_LZ4 || packing != 0 && !is_ring(kind) {
        return Err(WireError::Field("packing"));
    }
    let body_max = if is_ring(kind) { limits::BODY_BYTES_MAX } else { limits::WHOLE_BODY_BYTES_MAX };
    if body as usize > body_max {
        return Err(WireError::TooLong(body));
    }
    Ok(Some(HEAD_BYTES + body as usize))
}

/// In a frame's head.
pub(crate) const PACKING_LZ4: u8 = 1;

fn is_ring(kind: u8) -> bool {
    matches!(kind, kind::SUBMIT | kind::COMPLETE)
}

/// See [`crate::next`].
pub(crate) fn next(bytes: &[u8]) -> Result<Next<'_>, WireError> {
    let Some(whole) = frame_bytes(bytes)? else { return Ok(Next::Incomplete) };
    if bytes.get(4).is_some_and(|kind| is_ring(*kind)) {
        let Some(head) = bytes.get(..Frame::RING_OVERHEAD_BYTES) else { return Ok(Next::Incomplete) };
        let mut fields = Fields::new(head);
        let [_, _, _, _, kind, _, packing, _] = *fields.array::<HEAD_BYTES>()?;
        let packing = if packing == PACKING_LZ4 { Packing::Lz4 } else { Packing::Plain };
        let data_bytes = whole.checked_sub(Frame::RING_OVERHEAD_BYTES).ok_or(WireError::Short)?;
        return ring_head(kind, packing, &mut fields, data_bytes).map(Next::Ring);
    }
    match bytes.get(..whole) {
        Some(frame) => Ok(Next::Frame(Frame::decode(frame)?, whole)),
        None => Ok(Next::Incomplete),
    }
}

impl<'a> Frame<'a> {
    /// Decodes one whole frame; `bytes` is exactly what [`crate::frame_bytes`] said.
    ///
    /// # Errors
    /// Anything but a frame with all its fields in range.
    pub fn decode(bytes: &'a [u8]) -> Result<Frame<'a>, WireError> {
        let whole = frame_bytes(bytes)?.ok_or(WireError::Short)?;
        if whole > bytes.len() {
            return Err(WireError::Short);
        }
        let mut fields = Fields::new(bytes);
        let [_, _, _, _, kind, _, packing, _] = *fields.array::<HEAD_BYTES>()?;
        if packing != 0 {
            return Err(WireError::Field("packing"));
        }
        let frame = body(kind, &mut fields)?;
        fields.end()?;
        Ok(frame)
    }
}

fn body<'a>(kind: u8, fields: &mut Fields<'a>) -> Result<Frame<'a>, WireError> {
    Ok(match kind {
        kind::HELLO => Frame::Hello(hello(fields)?),
        kind::REFUSE => {
            Frame::Refuse { refusal: refusal(fields.u8()?)?, reason: fields.text(limits::REASON_BYTES_MAX, "reason")? }
        }
        kind::RESYNC => Frame::Resync(resync(fields)?),
        kind::RESYNC_END => Frame::ResyncEnd,
        kind::OPEN => open(fields)?,
        kind::OPENED => {
            let channel = channel(fields)?;
            let result = fault(fields)?.map_or(Ok(()), Err);
            Frame::Opened { channel, result }
        }
        kind::CLOSE => {
            let channel = channel(fields)?;
            Frame::Close { channel, reason: fault(fields)?.ok_or(WireError::Field("close reason"))? }
        }
        kind::CLOSED => Frame::Closed { channel: channel(fields)? },
        kind::MESSAGE => message(fields)?,
        kind::TAKEN => Frame::Taken { channel: channel(fields)?, word: word(fields)? },
        kind::WITHDRAW => Frame::Withdraw { channel: channel(fields)?, word: word(fields)? },
        kind::WITHDRAWN => Frame::Withdrawn { channel: channel(fields)?, word: word(fields)? },
        kind::NOTIFY => Frame::Notify { channel: channel(fields)?, number: fields.u64()?, mask: fields.u64()? },
        kind::NOTIFIED => Frame::Notified { channel: channel(fields)?, number: fields.u64()? },
        kind::SUBMIT | kind::COMPLETE => ring(kind, fields)?,
        kind::PRODUCED => Frame::Produced { channel: channel(fields)?, produced: fields.u32()? },
        kind::HEARTBEAT => Frame::Heartbeat { seq: fields.u64()?, echo: fields.u64()? },
        kind::CREDIT => Frame::Credit { processed: fields.u64()? },
        kind::PARCEL => parcel(fields)?,
        other => return Err(WireError::UnknownKind(other)),
    })
}

fn parcel<'a>(fields: &mut Fields<'a>) -> Result<Frame<'a>, WireError> {
    let length = fields.u32()? as usize;
    if length > PARCEL_BYTES_MAX {
        return Err(WireError::Field("parcel"));
    }
    Ok(Frame::Parcel { bytes: fields.bytes(length)? })
}

fn hello<'a>(fields: &mut Fields<'a>) -> Result<Hello<'a>, WireError> {
    let hello = Hello {
        cluster: fields.text(limits::NAME_MAX, "cluster")?,
        node: fields.text(limits::NAME_MAX, "node")?,
        node_id: node(fields)?,
        incarnation: Epoch(fields.u64()?),
        connection: fields.u64()?,
        features: fields.u32()?,
        frame_bytes_max: fields.u32()?,
        window_bytes: fields.u32()?,
        pair: PairId::new(fields.u8()?).ok_or(WireError::Field("pair"))?,
        speaks: Versions::from_u16(fields.u16()?).ok_or(WireError::Field("versions"))?,
        release: fields.text(limits::RELEASE_BYTES_MAX, "release")?,
    };
    // What a later release adds.
    fields.rest();
    Ok(hello)
}

fn resync<'a>(fields: &mut Fields<'a>) -> Result<Resync<'a>, WireError> {
    let channel = channel(fields)?;
    let (published, taken, produced) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let notified = fields.u64()?;
    let tags = fields.rest();
    if !tags.len().is_multiple_of(limits::OPEN_TAG_BYTES) || tags.len() / limits::OPEN_TAG_BYTES > limits::OPEN_TAGS_MAX
    {
        return Err(WireError::Field("open tags"));
    }
    Ok(Resync { channel, published, taken, produced, notified, open_tags: OpenTags::Encoded(tags) })
}

/// `bytes` is one chunk of the list, checked to be whole by [`resync`].
pub(crate) fn open_tag(bytes: &[u8]) -> OpenTag {
    let mut fields = Fields::new(bytes);
    let mut next = || fields.u32().unwrap_or(0);
    OpenTag { tag: next(), arena_offset: next(), in_capacity: next() }
}

fn open<'a>(fields: &mut Fields<'a>) -> Result<Frame<'a>, WireError> {
    let channel = channel(fields)?;
    let dc = DcId(fields.u32()?);
    let (from, to) = (endpoint(fields)?, endpoint(fields)?);
    let lane = Lane(fields.u16()?);
    let (entries, arena_bytes) = (fields.u32()?, fields.u32()?);
    let incarnation = NonZeroU64::new(fields.u64()?);
    if dc.0 == 0 || dc.0 >= 1 << 24 {
        return Err(WireError::Field("container"));
    }
    if lane.0 >= LANES_PER_PAIR {
        return Err(WireError::Field("lane"));
    }
    let ring = match (lane, entries) {
        (Lane::MESSAGES, 0) if arena_bytes == 0 => None,
        (Lane::MESSAGES, _) | (_, 0) => return Err(WireError::Field("ring of lane")),
        _ if !entries.is_power_of_two() || entries > RING_ENTRIES_MAX => return Err(WireError::Field("ring entries")),
        _ if arena_bytes > ARENA_BYTES_MAX => return Err(WireError::Field("arena bytes")),
        _ => Some(RingSpec { entries, arena_bytes }),
    };
    Ok(Frame::Open { channel, dc, from, to, lane, ring, incarnation })
}

fn message<'a>(fields: &mut Fields<'a>) -> Result<Frame<'a>, WireError> {
    let channel = channel(fields)?;
    let word = word(fields)?;
    let kind = i32::from_le_bytes(*fields.array()?);
    let payload = fields.array()?;
    let inline = fields.rest();
    if inline.len() > INLINE_BYTES_MAX {
        return Err(WireError::Field("inline data"));
    }
    Ok(Frame::Message { channel, word, kind, payload, inline })
}

/// The fixed fields of SUBMIT or COMPLETE, after which `data_bytes` follow.
fn ring_head(kind: u8, packing: Packing, fields: &mut Fields<'_>, data_bytes: usize) -> Result<RingHead, WireError> {
    let (channel, index, produced) = (channel(fields)?, fields.u32()?, fields.u32()?);
    let (entry, announced) = match kind {
        kind::SUBMIT => {
            let entry = Submission::from_bytes(fields.array()?);
            if entry.span_bytes() > TRANSFER_BYTES_MAX || entry.reserved != 0 {
                return Err(WireError::Field("submission"));
            }
            (RingEntry::Submission(entry), entry.out_bytes)
        }
        _ => {
            let entry = Completion::from_bytes(fields.array()?);
            if entry.in_bytes > TRANSFER_BYTES_MAX || entry.reserved != 0 {
                return Err(WireError::Field("completion"));
            }
            (RingEntry::Completion(entry), entry.in_bytes)
        }
    };
    if data_bytes != announced as usize {
        return Err(WireError::Field("bytes of data"));
    }
    Ok(RingHead { channel, index, produced, entry, data_bytes: announced, packing })
}

fn ring<'a>(kind: u8, fields: &mut Fields<'a>) -> Result<Frame<'a>, WireError> {
    let data_bytes = fields.left().checked_sub(Frame::RING_FIXED_BYTES).ok_or(WireError::Short)?;
    let RingHead { channel, index, produced, entry, .. } = ring_head(kind, Packing::Plain, fields, data_bytes)?;
    let data = fields.rest();
    Ok(match entry {
        RingEntry::Submission(entry) => Frame::Submit { channel, index, produced, entry, data },
        RingEntry::Completion(entry) => Frame::Complete { channel, index, produced, entry, data },
    })
}

fn channel(fields: &mut Fields<'_>) -> Result<WireChannel, WireError> {
    Ok(WireChannel { opener: node(fields)?, number: fields.u64()? })
}

fn node(fields: &mut Fields<'_>) -> Result<NodeId, WireError> {
    match fields.u16()? {
        0 => Err(WireError::Field("node")),
        number => Ok(NodeId(number)),
    }
}

fn endpoint(fields: &mut Fields<'_>) -> Result<Endpoint, WireError> {
    Endpoint::new(fields.u32()?).ok_or(WireError::Field("endpoint"))
}

/// A word names a message, so it is never 0.
fn word(fields: &mut Fields<'_>) -> Result<u32, WireError> {
    match fields.u32()? {
        0 => Err(WireError::Field("word")),
        word => Ok(word),
    }
}

fn fault(fields: &mut Fields<'_>) -> Result<Option<IpcError>, WireError> {
    let code = fields.u16()?;
    let errno = i32::from_le_bytes(*fields.array()?);
    match (code, errno) {
        (0, 0) => Ok(None),
        _ => fault::from_code(code, errno).map(Some).ok_or(WireError::Field("error")),
    }
}

fn refusal(code: u8) -> Result<Refusal, WireError> {
    match code {
        1 => Ok(Refusal::Cluster),
        2 => Ok(Refusal::Identity),
        3 => Ok(Refusal::Fenced),
        4 => Ok(Refusal::Version),
        0 => Err(WireError::Field("refusal")),
        _ => Ok(Refusal::Other),
    }
}
