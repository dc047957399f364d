//! One container as the broker of a node knows it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use abi::Endpoint;
use ipc::info::Side;
use ipc_core::ChannelId;
use ipc_core::table::{Channel, DcTable};
use ipc_core::waits::{Probe, Waiting, Waits};
use ipc_shm::{ChannelFiles, ControlWriter};

use crate::DcOptions;
use crate::closer::Closer;
use crate::event_loop::{Asker, Finds};
use crate::ledger::Charge;
use crate::meters::{Meter, Sent};

/// What the broker keeps of a channel besides its place in the table.
#[derive(Debug)]
pub(crate) enum Kept {
    /// Between two processes of this node: only what wakes them when the other dies.
    Lines { left: OwnedFd, right: OwnedFd, charge: Option<Charge>, meter: Option<Meter> },
    /// With a party on another node: everything, so that the next proxy can have it.
    Proxied { files: ChannelFiles, far: u64, charge: Option<Charge>, meter: Option<Meter> },
}

impl Kept {
    /// What whoever opened it pays.
    pub fn charge(&self) -> Option<&Charge> {
        match self {
            Kept::Lines { charge, .. } | Kept::Proxied { charge, .. } => charge.as_ref(),
        }
    }

    fn meter(&self) -> Option<&Meter> {
        match self {
            Kept::Lines { meter, .. } | Kept::Proxied { meter, .. } => meter.as_ref(),
        }
    }
}

/// What the broker keeps of a binding besides its place in the table.
#[derive(Debug)]
pub(crate) struct KeptBinding {
    pub page: ControlWriter,
    /// What the endpoint sent over channels that have ended.
    pub sent: Sent,
    /// A chase that goes on when a wait of it is confirmed: the latest.
    pub asked: Option<(Waiting, Probe)>,
}

impl KeptBinding {
    pub fn new(page: ControlWriter) -> KeptBinding {
        KeptBinding { page, sent: Sent::default(), asked: None }
    }
}

#[derive(Debug)]
pub(crate) struct Container {
    pub options: DcOptions,
    pub listener: Option<OwnedFd>,
    pub connections: usize,
    pub closer: Closer,
    pub table: DcTable<Asker>,
    /// One for each binding, local or remote.
    pub bindings: HashMap<Endpoint, KeptBinding>,
    pub kept: HashMap<ChannelId, Kept>,
    pub finds: Finds,
    pub origin: Origin,
    /// Waits of this node's endpoints that only their peer can end.
    pub waits: Waits,
}

/// Who said that a container is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Daemon,
    /// It was on the shelf; the daemon has not confirmed it yet.
    Shelf,
}

impl Container {
    pub fn new(options: DcOptions, listener: Option<OwnedFd>) -> Container {
        let table = DcTable::new(options.program_endpoints.clone());
        Container {
            options,
            listener,
            connections: 0,
            closer: Closer::default(),
            table,
            bindings: HashMap::new(),
            kept: HashMap::new(),
            finds: Finds::default(),
            origin: Origin::Daemon,
            waits: Waits::default(),
        }
    }

    /// What reads a channel; `None` when nothing can.
    pub fn meter(&self, channel: ChannelId) -> Option<&Meter> {
        self.kept.get(&channel)?.meter()
    }

    /// A channel that is no more in the table: what was kept of it. What its parties sent over it is remembered while
    /// they are bound.
    pub fn end_channel(&mut self, channel: &Channel) -> Option<Kept> {
        let kept = self.kept.remove(&channel.id)?;
        if let Some(meter) = kept.meter() {
            for (side, party) in [(Side::Left, channel.left), (Side::Right, channel.right)] {
                if let Some(of) = self.bindings.get_mut(&party) {
                    of.sent = of.sent.over(channel, side, &meter.read(side));
                }
            }
        }
        Some(kept)
    }

    /// Calls that wait for somebody to be bound or to have a name.
    pub fn waiters(&self) -> usize {
        self.table.waiters().len() + self.finds.len()
    }

    /// When nobody will listen there any more.
    pub fn remove_socket(&self) {
        if let (Some(_), Some(path)) = (&self.listener, &self.options.listen) {
            // A path that somebody else took over is not ours to complain about.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Of somebody who is bound.
    pub fn page(&self, endpoint: Endpoint) -> Option<&ControlWriter> {
        self.bindings.get(&endpoint).map(|of| &of.page)
    }
}
