//! What was written: sent, on its way, lost, acknowledged.

use std::collections::VecDeque;
use std::time::Duration;

use super::limits::{
    CWND_FIRST, CWND_MIN, FAILED_AFTER, REORDER_MAX, RTO_FIRST, RTO_MAX, RTO_MIN, SEND_BYTES, WINDOW_BYTES,
};

pub(super) struct Sender {
    segment_bytes: usize,
    /// Not acknowledged, by offset; those that were never sent are at the end.
    segments: VecDeque<Segment>,
    /// Of the next byte written.
    end: u64,
    bytes: usize,
    unsent: usize,
    lost: usize,
    /// Segments that were sent and neither arrived nor count as lost, and their bytes.
    flying: usize,
    flight: usize,
    has_fin: bool,
    /// Offset up to which the peer takes bytes.
    limit: u64,
    /// Number of the next transmission; the highest that has arrived; the last loss before this one has been answered.
    next_number: u64,
    arrived: Option<u64>,
    recovered: u64,
    cwnd: usize,
    ssthresh: usize,
    round_trip: RoundTrip,
    backoff: u32,
    /// When something was sent or acknowledged last; since when nothing was heard while something is on its way.
    moved: Duration,
    stuck_since: Option<Duration>,
    /// One segment may go beyond the peer's limit, to learn whether it has moved.
    probe: bool,
}

struct Segment {
    offset: u64,
    bytes: Vec<u8>,
    is_last: bool,
    state: SegmentState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SegmentState {
    Unsent,
    /// With the number of its last transmission.
    Flying(u64),
    Lost,
    /// It has come, after a hole.
    Arrived,
}

impl Segment {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64 + u64::from(self.is_last)
    }
}

/// A segment to be sent now.
pub(super) struct Outgoing<'a> {
    pub(super) offset: u64,
    pub(super) data: &'a [u8],
    pub(super) is_last: bool,
}

impl Sender {
    pub(super) fn new(segment_bytes: usize, now: Duration) -> Sender {
        Sender {
            segment_bytes,
            segments: VecDeque::new(),
            end: 0,
            bytes: 0,
            unsent: 0,
            lost: 0,
            flying: 0,
            flight: 0,
            has_fin: false,
            limit: WINDOW_BYTES as u64,
            next_number: 1,
            arrived: None,
            recovered: 0,
            cwnd: CWND_FIRST * segment_bytes,
            ssthresh: usize::MAX,
            round_trip: RoundTrip::default(),
            backoff: 0,
            moved: now,
            stuck_since: None,
            probe: false,
        }
    }

    /// How much was taken.
    pub(super) fn write(&mut self, data: &[u8]) -> usize {
        let room = SEND_BYTES.saturating_sub(self.bytes).min(data.len());
        if self.has_fin {
            return 0;
        }
        let mut rest = data.get(..room).unwrap_or(&[]);
        while !rest.is_empty() {
            let is_open = |segment: &&mut Segment| segment.state == SegmentState::Unsent;
            let segment_bytes = self.segment_bytes;
            let tail = self.segments.back_mut().filter(is_open).filter(|tail| tail.bytes.len() < segment_bytes);
            let count;
            match tail {
                Some(tail) => {
                    count = rest.len().min(segment_bytes - tail.bytes.len());
                    tail.bytes.extend_from_slice(rest.get(..count).unwrap_or(&[]));
                }
                None => {
                    count = rest.len().min(segment_bytes);
                    self.push(rest.get(..count).unwrap_or(&[]), false);
                }
            }
            self.end += count as u64;
            rest = rest.get(count..).unwrap_or(&[]);
        }
        self.bytes += room;
        room
    }

    fn push(&mut self, data: &[u8], is_last: bool) {
        let mut bytes = Vec::with_capacity(if is_last { 0 } else { self.segment_bytes });
        bytes.extend_from_slice(data);
        self.segments.push_back(Segment { offset: self.end, bytes, is_last, state: SegmentState::Unsent });
        self.unsent += 1;
    }

    /// Nothing is written any more.
    pub(super) fn finish(&mut self) {
        if !self.has_fin {
            self.push(&[], true);
            self.end += 1;
            self.has_fin = true;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.bytes < SEND_BYTES && !self.has_fin
    }

    /// Of the next byte that was never sent: what an acknowledgement without data carries.
    pub(super) fn offset(&self) -> u64 {
        let first_unsent = self.segments.get(self.segments.len() - self.unsent);
        first_unsent.map_or(self.end, |segment| segment.offset)
    }

    /// The next segment to send, if one may go now; it counts as sent.
    pub(super) fn next(&mut self, now: Duration) -> Option<Outgoing<'_>> {
        let index = match self.lost {
            0 => self.segments.len() - self.unsent,
            _ => self.segments.iter().position(|segment| segment.state == SegmentState::Lost)?,
        };
        let segment = self.segments.get_mut(index)?;
        let length = segment.bytes.len();
        let fits = self.flight == 0 || self.flight + length <= self.cwnd;
        let is_taken = segment.offset + length as u64 <= self.limit;
        if !fits || !(is_taken || self.probe) {
            return None;
        }
        self.probe = false;
        match segment.state {
            SegmentState::Unsent => self.unsent -= 1,
            _ => self.lost -= 1,
        }
        segment.state = SegmentState::Flying(self.next_number);
        self.next_number += 1;
        self.flying += 1;
        self.flight += length;
        self.moved = now;
        self.stuck_since.get_or_insert(now);
        Some(Outgoing { offset: segment.offset, data: &segment.bytes, is_last: segment.is_last })
    }

    /// What the peer has, and takes. `sent_at`: when the packet left that is answered.
    ///
    /// # Errors
    /// It acknowledges what was never sent.
    pub(super) fn acknowledged(
        &mut self,
        now: Duration,
        ack: u64,
        window: u32,
        ranges: impl Iterator<Item = (u32, u32)>,
        round_trip: Option<Duration>,
    ) -> Result<(), NeverSent> {
        if ack > self.offset() {
            return Err(NeverSent);
        }
        self.limit = self.limit.max(ack + u64::from(window));
        let mut came = 0;
        while let Some(segment) = self.segments.front().filter(|segment| segment.end() <= ack) {
            let (length, state) = (segment.bytes.len(), segment.state);
            self.segments.pop_front();
            self.bytes -= length;
            came += self.arrive(state, length);
        }
        let mut has_holes = false;
        for (from, length) in ranges {
            has_holes = true;
            came += self.arrived_range(ack + u64::from(from), ack + u64::from(from) + u64::from(length));
        }
        // Whatever it says, the peer is there.
        self.stuck_since = self.stuck_since.map(|_| now);
        if came == 0 {
            return Ok(());
        }
        if let Some(sample) = round_trip {
            self.round_trip.sample(sample);
        }
        (self.backoff, self.moved) = (0, now);
        self.stuck_since = (self.flying > 0 || self.lost > 0).then_some(now);
        self.grow(came);
        if has_holes || self.recovered > 0 {
            self.find_lost();
        }
        Ok(())
    }

    /// A segment that came: the bytes that are no longer on their way, and at least one for a segment that had been
    /// given up.
    fn arrive(&mut self, state: SegmentState, length: usize) -> usize {
        match state {
            SegmentState::Flying(number) => {
                self.flying -= 1;
                self.flight -= length;
                self.arrived = self.arrived.max(Some(number));
                length.max(1)
            }
            SegmentState::Lost => {
                self.lost -= 1;
                1
            }
            SegmentState::Unsent => {
                self.unsent -= 1;
                0
            }
            SegmentState::Arrived => 0,
        }
    }

    fn arrived_range(&mut self, from: u64, end: u64) -> usize {
        let first = self.segments.partition_point(|segment| segment.offset < from);
        let mut came = 0;
        for index in first..self.segments.len() - self.unsent {
            let Some(segment) = self.segments.get_mut(index) else { break };
            if segment.end() > end || segment.is_last {
                break;
            }
            let (state, length) = (segment.state, segment.bytes.len());
            segment.state = SegmentState::Arrived;
            came += self.arrive(state, length);
        }
        came
    }

    fn grow(&mut self, came: usize) {
        let more = match self.cwnd < self.ssthresh {
            true => came,
            false => (self.segment_bytes * came).div_ceil(self.cwnd),
        };
        self.cwnd = (self.cwnd + more).min(SEND_BYTES);
    }

    /// What was sent well before something that has arrived is lost.
    fn find_lost(&mut self) {
        let Some(arrived) = self.arrived else { return };
        let sent = self.segments.len() - self.unsent;
        let mut newest = 0;
        for segment in self.segments.iter_mut().take(sent) {
            if let SegmentState::Flying(number) = segment.state
                && number + REORDER_MAX <= arrived
            {
                segment.state = SegmentState::Lost;
                self.lost += 1;
                self.flying -= 1;
                self.flight -= segment.bytes.len();
                newest = newest.max(number);
            }
        }
        // Several losses of one round trip are one sign of a full wire.
        if newest > self.recovered {
            self.recovered = self.next_number;
            self.ssthresh = (self.cwnd / 2).max(CWND_MIN * self.segment_bytes);
            self.cwnd = self.ssthresh;
        }
    }

    /// When [`Sender::tick`] has something to do.
    pub(super) fn due(&self) -> Option<Duration> {
        let waits = !self.segments.is_empty();
        waits.then(|| self.moved + (self.round_trip.timeout() * (1 << self.backoff.min(8))).min(RTO_MAX))
    }

    /// Nothing was heard in time: everything on its way counts as lost, and if nothing was, the peer's limit is tried.
    ///
    /// # Errors
    /// Nothing was heard for much longer.
    pub(super) fn tick(&mut self, now: Duration) -> Result<(), Unheard> {
        if self.due().is_none_or(|due| due > now) {
            return Ok(());
        }
        if self.stuck_since.is_some_and(|since| now.saturating_sub(since) >= FAILED_AFTER) {
            return Err(Unheard);
        }
        (self.moved, self.backoff) = (now, (self.backoff + 1).min(8));
        self.probe = true;
        if self.flying == 0 && self.lost == 0 {
            return Ok(());
        }
        let sent = self.segments.len() - self.unsent;
        for segment in self.segments.iter_mut().take(sent) {
            if let SegmentState::Flying(_) = segment.state {
                segment.state = SegmentState::Lost;
                self.lost += 1;
            }
        }
        (self.flying, self.flight) = (0, 0);
        self.recovered = self.next_number;
        self.ssthresh = (self.cwnd / 2).max(CWND_MIN * self.segment_bytes);
        self.cwnd = CWND_MIN * self.segment_bytes;
        Ok(())
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.round_trip.smoothed
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NeverSent;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unheard;

/// RFC 6298, section 2.
#[derive(Default)]
struct RoundTrip {
    smoothed: Option<Duration>,
    varies: Duration,
}

impl RoundTrip {
    fn sample(&mut self, sample: Duration) {
        match &mut self.smoothed {
            None => (self.smoothed, self.varies) = (Some(sample), sample / 2),
            Some(smoothed) => {
                self.varies = self.varies * 3 / 4 + smoothed.abs_diff(sample) / 4;
                *smoothed = *smoothed * 7 / 8 + sample / 8;
            }
        }
    }

    fn timeout(&self) -> Duration {
        self.smoothed.map_or(RTO_FIRST, |smoothed| (smoothed + self.varies * 4).clamp(RTO_MIN, RTO_MAX))
    }
}
