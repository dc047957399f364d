//! After every connection both sides tell what their channels hold, and go on from there.

use abi::IpcError;
use wire::{Frame, WireChannel};

use super::channels::Ended;
use super::{Action, Draining, Known, Peer};
use crate::channel::LocalChannel;
use crate::crossing::Stage;
use crate::link::{Class, Phase};

impl<C: LocalChannel> Peer<C> {
    pub(super) fn begin_resync(&mut self) {
        for (channel, known) in &mut self.known {
            match known {
                Known::Asked { listed, .. } => *listed = false,
                Known::Crossing(crossing) => {
                    let was_told = matches!(crossing.stage, Stage::Ending(_));
                    crossing.restart();
                    if was_told {
                        self.draining.entry(crossing.ends.pair()).or_insert(Draining { channel: *channel, next: None });
                    }
                }
            }
        }
        self.giving_way.clear();
        let open = self.known.iter().filter(|(_, known)| matches!(known, Known::Crossing(_)));
        self.unlisted = open.map(|(channel, _)| *channel).collect();
    }

    pub(super) fn hear_resync(&mut self, resync: &wire::Resync<'_>) {
        let channel = resync.channel;
        let result = match self.known.get_mut(&channel) {
            Some(Known::Asked { listed, .. }) => {
                *listed = true;
                Ok(())
            }
            Some(Known::Crossing(crossing)) => crossing.apply(resync),
            // It ended here while the link was cut; the peer learns it from our list.
            None => Ok(()),
        };
        if let Err(error) = result {
            self.end_slot(channel, error, Ended::Broken);
        }
    }

    /// The peer's list is complete: what is not in it has ended there, unless the peer was never asked for it.
    pub(super) fn compare(&mut self) {
        let gone = |(channel, known): (&WireChannel, &Known<C>)| match known {
            Known::Asked { listed, .. } => (!listed).then_some(*channel),
            Known::Crossing(crossing) if crossing.listed || matches!(crossing.stage, Stage::Opening(_)) => None,
            Known::Crossing(_) => Some(*channel),
        };
        let gone: Vec<WireChannel> = self.known.iter().filter_map(gone).collect();
        for channel in gone {
            self.end_slot(channel, IpcError::SourceDied, Ended::There);
        }
    }

    pub(super) fn go_up(&mut self) {
        if self.link.phase != Phase::Resyncing || !self.end_told || !self.end_heard {
            return;
        }
        self.link.go_up();
        (self.suspected, self.given_up) = (false, false);
        self.actions.push_back(Action::Up);
        let channels: Vec<WireChannel> = self.known.keys().copied().collect();
        for channel in channels {
            self.active(channel);
        }
    }

    pub(super) fn fill_resync(&mut self) -> bool {
        let mut tags = Vec::new();
        while let Some(channel) = self.unlisted.last().copied() {
            if let Some(Known::Crossing(crossing)) = self.known.get_mut(&channel) {
                tags.clear();
                let resync = crossing.resync(&mut tags);
                if !self.link.put(&Frame::Resync(resync), Class::Control) {
                    return true;
                }
            }
            self.unlisted.pop();
        }
        if !self.end_told {
            if !self.link.put(&Frame::ResyncEnd, Class::Control) {
                return true;
            }
            self.end_told = true;
        }
        self.go_up();
        self.link.phase == Phase::Up && self.fill_channels()
    }
}
