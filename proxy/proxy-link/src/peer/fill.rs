//! Frames for the peer: what is due first goes first, and nothing is built that the transport has no room for.

use std::time::Duration;

use wire::{Frame, WireChannel};

use super::channels::Ended;
use super::{Known, News, Peer};
use crate::buffer::OutBuffer;
use crate::channel::LocalChannel;
use crate::crossing::{Asking, Stage, Turn};
use crate::in_place::{Bodies, OutPiece};
use crate::link::{Class, Phase};

impl<C: LocalChannel> Peer<C> {
    /// Bytes to send: all of them, unless data may stay where it lies. After sending, call [`Peer::sent`].
    pub fn outgoing(&self) -> &OutBuffer {
        &self.link.out
    }

    /// How this connection's transport takes data. Until the next connection.
    pub fn set_bodies(&mut self, bodies: Bodies) {
        self.link.bodies = bodies;
    }

    /// Bytes to send, wherever they lie.
    pub fn pending_bytes(&self) -> usize {
        self.link.pending_bytes()
    }

    /// Whether some of them are not in [`Peer::outgoing`].
    pub fn has_data_in_place(&self) -> bool {
        !self.link.in_place.is_empty()
    }

    /// All that is to be sent, in order.
    pub fn pieces(&self) -> impl Iterator<Item = OutPiece<'_, C>> {
        let local = |channel| match self.known.get(&channel) {
            Some(Known::Crossing(crossing)) => Some(&crossing.local),
            _ => None,
        };
        self.link.in_place.pieces(&self.link.out, local)
    }

    pub fn sent(&mut self, now: Duration, bytes: usize) {
        self.link.sent(now, bytes);
    }

    /// Builds frames until nothing is left to tell or there is no more room. `true`: there is more; call again after
    /// something was sent or credit came.
    pub fn fill(&mut self, now: Duration) -> bool {
        if !self.fill_body() {
            return true;
        }
        self.link.keep_alive(now);
        match self.link.phase {
            Phase::Apart | Phase::Greeting => false,
            Phase::Resyncing => self.fill_resync(),
            Phase::Up => self.fill_channels(),
        }
    }

    /// The rest of the frame that was put last. `false` when there is no room for all of it.
    fn fill_body(&mut self) -> bool {
        let Some(channel) = self.link.body.as_ref().map(|body| body.channel) else { return true };
        let local = match self.known.get(&channel) {
            Some(Known::Crossing(crossing)) => Some(&crossing.local),
            _ => None,
        };
        self.link.go_on(local)
    }

    pub(super) fn fill_channels(&mut self) -> bool {
        if !self.fill_news() || !self.fill_parcels() {
            return true;
        }
        while self.link.body.is_none()
            && let Some(channel) = self.ready.pop_front()
        {
            let Some(Known::Crossing(crossing)) = self.known.get_mut(&channel) else { continue };
            if crossing.stage == Stage::Opening(Asking::Untold) {
                // A new connection: it is to be asked for again.
                crossing.queued = false;
                self.active(channel);
                continue;
            }
            match crossing.tell(&mut self.link) {
                Ok(Turn::Idle) => crossing.queued = false,
                Ok(Turn::More) => self.ready.push_back(channel),
                Ok(Turn::Blocked) => {
                    self.ready.push_front(channel);
                    return true;
                }
                Ok(Turn::Drained(reason)) => self.tell_end(channel, reason),
                Err(error) => self.end_slot(channel, error, Ended::Broken),
            }
        }
        !self.fill_news() || self.link.body.is_some()
    }

    /// `false` when there is no room.
    fn fill_news(&mut self) -> bool {
        while let Some(news) = self.news.front().copied() {
            let told = match news {
                News::Open(channel) => self.fill_open(channel),
                News::Opened(channel, result) => self.link.put(&Frame::Opened { channel, result }, Class::Control),
                News::Close(channel, reason) => self.link.put(&Frame::Close { channel, reason }, Class::Control),
                News::Closed(channel) => self.link.put(&Frame::Closed { channel }, Class::Control),
            };
            if !told {
                return false;
            }
            self.news.pop_front();
        }
        true
    }

    /// `false` when there is no room.
    fn fill_parcels(&mut self) -> bool {
        while let Some(bytes) = self.parcels.front() {
            if !self.link.put(&Frame::Parcel { bytes }, Class::Control) {
                return false;
            }
            self.parcels.pop_front();
        }
        true
    }

    /// `false` when there is no room.
    fn fill_open(&mut self, channel: WireChannel) -> bool {
        let Some(Known::Crossing(crossing)) = self.known.get_mut(&channel) else { return true };
        if crossing.stage != Stage::Opening(Asking::Untold) {
            // The peer listed it: it is open.
            crossing.queued = false;
            self.active(channel);
            return true;
        }
        if let Some(draining) = self.draining.get_mut(&crossing.ends.pair()) {
            draining.next = Some(channel);
        } else if !crossing.tell_open(&mut self.link) {
            return false;
        }
        crossing.queued = false;
        true
    }
}
