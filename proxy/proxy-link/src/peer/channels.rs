//! Channels come and go: by word of this node's broker, and with the link.

use abi::IpcError;
use wire::WireChannel;

use super::{Action, Draining, Known, News, Peer};
use crate::channel::{Ends, LocalChannel, Pair};
use crate::crossing::{Asking, Crossing, Stage};
use crate::link::{Link, Phase};
use crate::{LinkError, limits};

impl<C: LocalChannel> Peer<C> {
    /// A local endpoint opened a channel to the peer's node.
    ///
    /// # Errors
    /// The channel and why it cannot be: close it at the broker.
    pub fn open_out(&mut self, number: u64, ends: Ends, local: C) -> Result<WireChannel, (C, IpcError)> {
        let channel = WireChannel { opener: self.link.me.id, number };
        self.admit(channel, ends, local, |channel, ends, local| {
            Crossing::new(channel, ends, local, Stage::Opening(Asking::Untold))
        })
    }

    /// A channel that a proxy before this one held. Call it before the first connection.
    pub fn resume(&mut self, channel: WireChannel, ends: Ends, local: C) -> Result<WireChannel, (C, IpcError)> {
        self.admit(channel, ends, local, Crossing::resumed)
    }

    fn admit(
        &mut self,
        channel: WireChannel,
        ends: Ends,
        local: C,
        make: impl FnOnce(WireChannel, Ends, C) -> Crossing<C>,
    ) -> Result<WireChannel, (C, IpcError)> {
        if self.given_up {
            return Err((local, IpcError::NoLink));
        }
        if self.known.len() >= limits::CHANNELS_PER_LINK {
            return Err((local, IpcError::TableFull));
        }
        let crossing = make(channel, ends, local);
        self.known.insert(channel, Known::Crossing(Box::new(crossing)));
        self.active(channel);
        Ok(channel)
    }

    /// The broker's answer to [`Action::OpenIn`].
    ///
    /// # Errors
    /// The peer does not want the channel any more: close it at the broker.
    pub fn opened_in(&mut self, channel: WireChannel, ends: Ends, result: Result<C, IpcError>) -> Result<(), C> {
        let asked = match self.known.get(&channel) {
            Some(Known::Asked { listed, .. }) => Some(*listed),
            _ => None,
        };
        match result {
            Ok(local) if asked.is_some() => {
                let mut crossing = Crossing::new(channel, ends, local, Stage::Open);
                // While channels are compared, it may be one that the peer had asked for in an earlier connection and
                // that ended since.
                crossing.listed = asked == Some(true);
                self.known.insert(channel, Known::Crossing(Box::new(crossing)));
                self.news.push_back(News::Opened(channel, Ok(())));
                self.active(channel);
                Ok(())
            }
            Ok(local) => Err(local),
            Err(error) => {
                if asked.is_some() {
                    self.known.remove(&channel);
                    self.news.push_back(News::Opened(channel, Err(error)));
                    self.ask_again_for(ends.pair());
                }
                Ok(())
            }
        }
    }

    /// The broker says that the channel ended on this node. What the local party had published is still sent.
    pub fn closed_here(&mut self, channel: WireChannel, reason: IpcError) {
        if let Some(Known::Crossing(crossing)) = self.known.get_mut(&channel) {
            match crossing.stage {
                Stage::Open => {
                    crossing.stage = Stage::Draining(reason);
                    self.draining.insert(crossing.ends.pair(), Draining { channel, next: None });
                }
                Stage::Draining(_) | Stage::Ending(_) => {}
                // The peer may have been asked: it learns by CLOSE that nobody waits any more.
                Stage::Opening(_) => self.end_slot(channel, reason, Ended::Here),
            }
        }
        self.active(channel);
    }

    /// The local party of the channel did something.
    pub fn active(&mut self, channel: WireChannel) {
        if let Some(Known::Crossing(crossing)) = self.known.get_mut(&channel)
            && !crossing.queued
        {
            crossing.queued = true;
            match crossing.stage {
                Stage::Opening(Asking::Untold) => self.news.push_back(News::Open(channel)),
                _ => self.ready.push_back(channel),
            }
        }
    }

    /// Everything that the local party had published is told: CLOSE follows, and after it the pair's next OPEN.
    pub(super) fn tell_end(&mut self, channel: WireChannel, reason: IpcError) {
        let Some(Known::Crossing(crossing)) = self.known.get_mut(&channel) else { return };
        crossing.stage = Stage::Ending(reason);
        crossing.queued = false;
        let pair = crossing.ends.pair();
        self.news.push_back(News::Close(channel, reason));
        self.let_next_open(pair, channel);
    }

    /// The pair's channel does not drain any more.
    fn let_next_open(&mut self, pair: Pair, drained: WireChannel) {
        if self.draining.get(&pair).is_some_and(|draining| draining.channel == drained)
            && let Some(next) = self.draining.remove(&pair).and_then(|draining| draining.next)
        {
            self.active(next);
        }
    }

    /// The peer ended the channel. It hears that this was done, whatever is here of that name: until then it keeps what
    /// the channel held.
    pub(super) fn hear_close(&mut self, channel: WireChannel, reason: IpcError) -> Result<(), LinkError> {
        if self.news.len() >= limits::NEWS_MAX {
            return Err(LinkError::TooManyChannels(limits::CHANNELS_PER_LINK));
        }
        self.end_slot(channel, reason, Ended::There);
        self.news.push_back(News::Closed(channel));
        Ok(())
    }

    pub(super) fn hear_closed(&mut self, channel: WireChannel) {
        if let Some(Known::Crossing(crossing)) = self.known.get(&channel)
            && let Stage::Ending(reason) = crossing.stage
        {
            self.end_slot(channel, reason, Ended::There);
        }
    }

    /// Removes the channel and says so where it is not known.
    pub(super) fn end_slot(&mut self, channel: WireChannel, reason: IpcError, ended: Ended) {
        let Some(known) = self.known.remove(&channel) else { return };
        keep_body(&mut self.link, channel, &known);
        if ended != Ended::There && matches!(self.link.phase, Phase::Resyncing | Phase::Up) {
            self.news.push_back(News::Close(channel, reason));
        }
        let pair = match &known {
            Known::Asked { ends, .. } => ends.pair(),
            Known::Crossing(crossing) => crossing.ends.pair(),
        };
        match known {
            Known::Asked { .. } => self.ask_again_for(pair),
            Known::Crossing(crossing) => self.end_relay(channel, *crossing, reason, ended),
        }
        // Behind the CLOSE.
        self.let_next_open(pair, channel);
    }

    fn end_relay(&mut self, channel: WireChannel, crossing: Crossing<C>, reason: IpcError, ended: Ended) {
        self.giving_way.retain(|giving_way| *giving_way != channel);
        let Crossing { local, stage, unkicked, .. } = crossing;
        if unkicked {
            local.kick();
        }
        let known_here = ended == Ended::Here || matches!(stage, Stage::Draining(_) | Stage::Ending(_));
        self.actions.push_back(match known_here {
            true => Action::Forget { channel, local },
            false => Action::Close { channel, local, reason },
        });
    }
}

/// The channel's memory goes, perhaps in the middle of a frame.
pub(super) fn keep_body<C: LocalChannel>(link: &mut Link, channel: WireChannel, known: &Known<C>) {
    if let Known::Crossing(crossing) = known {
        link.keep_data(channel, &crossing.local);
    }
}

/// Where a channel ended first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// The broker of this node said so.
    Here,
    /// The peer said so.
    There,
    /// One of the parties broke the protocol: both must be told.
    Broken,
}
