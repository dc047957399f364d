//! The peer's word on channels that open, and what follows when both nodes opened the same one at once.

use abi::IpcError;
use wire::WireChannel;

use super::channels::Ended;
use super::{Action, Known, News, Peer};
use crate::channel::{Ends, LocalChannel, Pair};
use crate::crossing::{Asking, Stage};
use crate::{LinkError, limits};

impl<C: LocalChannel> Peer<C> {
    pub(super) fn hear_open(&mut self, channel: WireChannel, ends: Ends) -> Result<(), LinkError> {
        if channel.opener != self.link.peer.id {
            return Err(LinkError::OutOfPlace { frame: "OPEN of another node's channel" });
        }
        if self.news.len() >= limits::NEWS_MAX {
            return Err(LinkError::TooManyChannels(limits::CHANNELS_PER_LINK));
        }
        match self.known.get(&channel) {
            Some(Known::Asked { .. }) => {}
            Some(Known::Crossing(_)) => self.news.push_back(News::Opened(channel, Ok(()))),
            None if self.known.len() >= limits::CHANNELS_PER_LINK => {
                self.news.push_back(News::Opened(channel, Err(IpcError::TableFull)));
            }
            None => {
                self.known.insert(channel, Known::Asked { ends, listed: true });
                self.actions.push_back(Action::OpenIn { channel, ends });
            }
        }
        Ok(())
    }

    pub(super) fn hear_opened(&mut self, channel: WireChannel, result: Result<(), IpcError>) {
        let Some(Known::Crossing(crossing)) = self.known.get_mut(&channel) else { return };
        if !matches!(crossing.stage, Stage::Opening(_)) {
            return;
        }
        match result {
            Ok(()) => {
                crossing.opened();
                self.active(channel);
            }
            Err(IpcError::EndpointInUse) if crossing.refusals < limits::REFUSALS_MAX => self.give_way(channel),
            Err(reason) => self.end_slot(channel, reason, Ended::There),
        }
    }

    /// Both nodes opened the same at the same moment, and the peer's stays. Our broker ends ours when it makes the
    /// peer's, and not before, so that the local party never finds neither. Nothing is closed here.
    pub(super) fn give_way(&mut self, channel: WireChannel) {
        let Some(Known::Crossing(crossing)) = self.known.get_mut(&channel) else { return };
        crossing.stage = Stage::Opening(Asking::GivingWay);
        crossing.refusals += 1;
        let pair = crossing.ends.pair();
        self.giving_way.push(channel);
        // The peer's OPEN came before its refusal.
        let is_under_way =
            self.known.values().any(|known| matches!(known, Known::Asked { ends, .. } if ends.pair() == pair));
        if !is_under_way {
            self.ask_again_for(pair);
        }
    }

    /// The peer's channel came to nothing: ours that gave way to it is wanted after all.
    pub(super) fn ask_again_for(&mut self, pair: Pair) {
        let mut again = Vec::new();
        let known = &mut self.known;
        self.giving_way.retain(|channel| {
            let Some(Known::Crossing(crossing)) = known.get_mut(channel) else { return false };
            if crossing.stage != Stage::Opening(Asking::GivingWay) {
                return false;
            }
            let is_meant = crossing.ends.pair() == pair;
            if is_meant {
                crossing.stage = Stage::Opening(Asking::Untold);
                again.push(*channel);
            }
            !is_meant
        });
        for channel in again {
            self.active(channel);
        }
    }
}
