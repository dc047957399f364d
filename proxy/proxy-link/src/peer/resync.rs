//! After every connection both sides tell what their channels hold, and go on from there.

use abi::IpcError;
use wire::{Frame, WireChannel};

use super::channels::Ended;
use super::{Action, Draining, Peer, Slot};
use crate::channel::LocalChannel;
use crate::link::{Class, Phase};
use crate::relay::Stage;

impl<C: LocalChannel> Peer<C> {
    pub(super) fn begin_resync(&mut self) {
        for (channel, slot) in &mut self.slots {
            match slot {
                Slot::Asked { listed, .. } => *listed = false,
                Slot::Relay(relay) => {
                    let was_told = matches!(relay.stage, Stage::Ending(_));
                    relay.restart();
                    if was_told {
                        self.draining.entry(relay.ends.pair()).or_insert(Draining { channel: *channel, next: None });
                    }
                }
            }
        }
        self.giving_way.clear();
        let open = self.slots.iter().filter(|(_, slot)| matches!(slot, Slot::Relay(_)));
        self.unlisted = open.map(|(channel, _)| *channel).collect();
    }

    pub(super) fn hear_resync(&mut self, resync: &wire::Resync<'_>) {
        let channel = resync.channel;
        let result = match self.slots.get_mut(&channel) {
            Some(Slot::Asked { listed, .. }) => {
                *listed = true;
                Ok(())
            }
            Some(Slot::Relay(relay)) => relay.apply(resync),
            // It ended here while the link was cut; the peer learns it from our list.
            None => Ok(()),
        };
        if let Err(error) = result {
            self.end_slot(channel, error, Ended::Broken);
        }
    }

    /// The peer's list is complete: what is not in it has ended there, unless the peer was never asked for it.
    pub(super) fn compare(&mut self) {
        let gone = |(channel, slot): (&WireChannel, &Slot<C>)| match slot {
            Slot::Asked { listed, .. } => (!listed).then_some(*channel),
            Slot::Relay(relay) if relay.listed || matches!(relay.stage, Stage::Opening(_)) => None,
            Slot::Relay(_) => Some(*channel),
        };
        let gone: Vec<WireChannel> = self.slots.iter().filter_map(gone).collect();
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
        let channels: Vec<WireChannel> = self.slots.keys().copied().collect();
        for channel in channels {
            self.active(channel);
        }
    }

    pub(super) fn fill_resync(&mut self) -> bool {
        let mut tags = Vec::new();
        while let Some(channel) = self.unlisted.last().copied() {
            if let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel) {
                tags.clear();
                let resync = relay.resync(&mut tags);
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
