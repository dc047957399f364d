//! The broker's side of the proxy: which channel belongs to which peer, and what the broker is asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use abi::{IpcError, NodeId};
use ipc::stand_in::{LinkState, LocalRole, OpenIn, ProxiedChannel, RequestId, StandInEvent, StandInPort};
use ipc::{ChannelId, Wait};
use proxy_link::{Action, Ends, WireChannel};

use crate::inspect::Inspector;
use crate::limits;
use crate::local::{Local, ends};
use crate::peers::Table;

/// Why the local channels are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Glance {
    /// The loop comes back soon: local parties need not wake it.
    Busy,
    /// The loop is about to sleep: whoever does something from here on must wake it.
    BeforeSleep,
}

/// Whether a channel is new or was held by a proxy before this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Opened,
    Resumed,
}

/// A channel whose node is no peer yet: the daemon's list may be under way. Its patience begins with the first list.
struct Orphan {
    channel: ProxiedChannel,
    origin: Origin,
    since: Duration,
}

/// What a peer asked the broker for.
struct Asked {
    node: NodeId,
    channel: WireChannel,
    ends: Ends,
}

pub(crate) struct Standing {
    port: StandInPort,
    channels: HashMap<ChannelId, (NodeId, WireChannel)>,
    asked: HashMap<RequestId, Asked>,
    orphans: Vec<Orphan>,
    /// When the first list of peers came.
    listed: Option<Duration>,
    /// All channels of a predecessor are known: links may be made.
    pub(crate) is_complete: bool,
    /// The connection with the broker is lost: channels go on, nothing new can be opened.
    pub(crate) is_alone: bool,
    me: NodeId,
    inspector: Option<Arc<dyn Inspector>>,
}

impl Standing {
    pub(crate) fn new(port: StandInPort, me: NodeId, inspector: Option<Arc<dyn Inspector>>) -> Standing {
        Standing {
            port,
            channels: HashMap::new(),
            asked: HashMap::new(),
            orphans: Vec::new(),
            listed: None,
            is_complete: false,
            is_alone: false,
            me,
            inspector,
        }
    }

    /// The port's descriptor is readable.
    pub(crate) fn rung(&mut self) {
        self.port.look_at_descriptors_next();
    }

    /// Takes what happened on this node, up to a bound. `true` when anything did.
    pub(crate) fn take_events(&mut self, glance: Glance, peers: &mut Table, now: Duration) -> bool {
        for taken in 0..limits::EVENTS_PER_ROUND {
            let looked = match glance {
                Glance::Busy => self.port.look().and_then(|event| event.ok_or(IpcError::TimedOut)),
                Glance::BeforeSleep => self.port.wait_event(Wait::NoWait),
            };
            match looked {
                Ok(event) => self.take(event, peers, now),
                Err(IpcError::TimedOut) => return taken > 0,
                Err(error) => {
                    self.lost_broker(error);
                    return taken > 0;
                }
            }
        }
        true
    }

    fn lost_broker(&mut self, error: IpcError) {
        if !self.is_alone {
            tracing::warn!("the connection with the broker is lost ({error}); existing channels go on");
        }
        self.is_alone = true;
        self.is_complete = true;
    }

    /// Something could not be told to the broker. After that nothing can, and it may have nothing to say by which this
    /// would be noticed.
    fn not_told(&mut self, error: IpcError) {
        if error == IpcError::NoBroker {
            self.lost_broker(error);
        }
    }

    fn take(&mut self, event: StandInEvent, peers: &mut Table, now: Duration) {
        match event {
            StandInEvent::OpenOut(channel) => self.attach(channel, Origin::Opened, peers, now),
            StandInEvent::Resumed(channel) => self.attach(channel, Origin::Resumed, peers, now),
            StandInEvent::AllResumed => self.is_complete = true,
            StandInEvent::OpenedIn { request, result } => self.opened_in(request, result, peers),
            StandInEvent::Active(channel) => {
                if let Some((node, wire)) = self.channels.get(&channel)
                    && let Some(entry) = peers.get_mut(node)
                {
                    entry.peer.active(*wire);
                }
            }
            StandInEvent::Closed { channel, reason } => {
                if let Some((node, wire)) = self.channels.remove(&channel)
                    && let Some(entry) = peers.get_mut(&node)
                {
                    entry.peer.closed_here(wire, reason);
                }
                self.orphans.retain(|orphan| orphan.channel.info().channel != channel);
            }
            StandInEvent::Parcel { node, bytes } => {
                if let Some(entry) = peers.get_mut(&node) {
                    entry.peer.send_parcel(bytes);
                }
            }
            StandInEvent::Woken => {}
        }
    }

    fn attach(&mut self, channel: ProxiedChannel, origin: Origin, peers: &mut Table, now: Duration) {
        let info = *channel.info();
        let Some(entry) = peers.get_mut(&info.node) else {
            if self.orphans.len() >= limits::ORPHANS_MAX {
                return self.close(info.channel, IpcError::NoLink);
            }
            return self.orphans.push(Orphan { channel, origin, since: now });
        };
        let local = Local::new(channel, self.inspector.clone());
        let admitted = match (origin, info.role) {
            (Origin::Opened, _) => entry.peer.open_out(info.channel.0, ends(&info), local),
            (Origin::Resumed, LocalRole::Client) => {
                let wire = WireChannel { opener: self.me, number: info.channel.0 };
                entry.peer.resume(wire, ends(&info), local)
            }
            (Origin::Resumed, LocalRole::Server) => {
                let wire = WireChannel { opener: info.node, number: info.peer_channel };
                entry.peer.resume(wire, ends(&info), local)
            }
        };
        match admitted {
            Ok(wire) => drop(self.channels.insert(info.channel, (info.node, wire))),
            Err((_, reason)) => self.close(info.channel, reason),
        }
    }

    /// A list of peers came: from the first one on it is known who is none.
    pub(crate) fn heard_list(&mut self, now: Duration) {
        self.listed.get_or_insert(now);
    }

    /// Channels that waited for their node find its link, and those that waited too long are refused.
    pub(crate) fn place_orphans(&mut self, peers: &mut Table, now: Duration, patience: Duration) {
        for orphan in std::mem::take(&mut self.orphans) {
            let known = peers.contains_key(&orphan.channel.info().node);
            if known {
                self.attach(orphan.channel, orphan.origin, peers, now);
            } else if self.patience_ends(&orphan, patience).is_some_and(|end| now >= end) {
                self.close(orphan.channel.info().channel, IpcError::NoLink);
            } else {
                self.orphans.push(orphan);
            }
        }
    }

    /// When the next orphan has waited too long.
    pub(crate) fn next_orphan(&self, patience: Duration) -> Option<Duration> {
        self.orphans.iter().filter_map(|orphan| self.patience_ends(orphan, patience)).min()
    }

    fn patience_ends(&self, orphan: &Orphan, patience: Duration) -> Option<Duration> {
        Some(orphan.since.max(self.listed?) + patience)
    }

    fn opened_in(&mut self, request: RequestId, result: Result<ProxiedChannel, IpcError>, peers: &mut Table) {
        let Some(asked) = self.asked.remove(&request) else {
            if let Ok(channel) = result {
                self.close(channel.info().channel, IpcError::SourceDied);
            }
            return;
        };
        let id = result.as_ref().ok().map(|channel| channel.info().channel);
        let local = |channel| Local::new(channel, self.inspector.clone());
        let answer = match peers.get_mut(&asked.node) {
            Some(entry) => entry.peer.opened_in(asked.channel, asked.ends, result.map(local)),
            None => result.map_or(Ok(()), |channel| Err(local(channel))),
        };
        match (answer, id) {
            (Ok(()), Some(id)) => drop(self.channels.insert(id, (asked.node, asked.channel))),
            (Err(_), Some(id)) => self.close(id, IpcError::SourceDied),
            (_, None) => {}
        }
    }

    /// What a link wants done at the broker. Answers whether the state of the link changed for people.
    pub(crate) fn act(&mut self, node: NodeId, action: Action<Local>, peers: &mut Table) -> Changed {
        match action {
            Action::OpenIn { channel, ends } => self.open_in(node, channel, ends, peers),
            Action::Close { local, reason, .. } => {
                let info = local.channel.info();
                let id = info.channel;
                if reason == IpcError::Corrupt {
                    tracing::warn!(
                        "channel of endpoints {} and {} of container {} with node {node} is closed: a party broke its protocol",
                        info.local,
                        info.remote,
                        info.dc
                    );
                }
                self.channels.remove(&id);
                self.close(id, reason);
            }
            Action::Forget { local, .. } => drop(self.channels.remove(&local.channel.info().channel)),
            Action::Parcel(bytes) => {
                if let Err(error) = self.port.parcel(node, &bytes) {
                    tracing::debug!("the broker was not told what that of node {node} says: {error}");
                    self.not_told(error);
                }
            }
            Action::Up => {
                self.tell_link(node, LinkState::Up);
                return Changed::Yes;
            }
            Action::Suspect => return Changed::Yes,
            Action::Down => {
                self.tell_link(node, LinkState::Down);
                return Changed::Yes;
            }
        }
        Changed::No
    }

    fn open_in(&mut self, node: NodeId, channel: WireChannel, ends: Ends, peers: &mut Table) {
        let request = OpenIn {
            dc: ends.dc,
            caller: ends.from,
            node,
            target: ends.to,
            lane: ends.lane,
            ring: ends.ring,
            peer_channel: channel.number,
            incarnation: ends.incarnation,
        };
        let asked =
            if self.asked.len() >= limits::ASKED_MAX { Err(IpcError::TableFull) } else { self.port.open_in(&request) };
        match asked {
            Ok(request) => drop(self.asked.insert(request, Asked { node, channel, ends })),
            Err(error) => {
                self.not_told(error);
                if let Some(entry) = peers.get_mut(&node) {
                    // Without a channel there is nothing to give back.
                    let _ = entry.peer.opened_in(channel, ends, Err(error));
                }
            }
        }
    }

    /// The node is no peer any more, or cannot be reached.
    pub(crate) fn tell_link(&mut self, node: NodeId, state: LinkState) {
        if let Err(error) = self.port.link(node, state) {
            tracing::debug!("the broker was not told that the link with node {node} is {state:?}: {error}");
            self.not_told(error);
        }
    }

    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.channels.retain(|_, (owner, _)| *owner != node);
        self.tell_link(node, LinkState::Down);
    }

    fn close(&mut self, channel: ChannelId, reason: IpcError) {
        if let Err(error) = self.port.close(channel, reason) {
            tracing::debug!("the broker was not told that channel {channel} is closed: {error}");
            self.not_told(error);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Changed {
    No,
    Yes,
}
