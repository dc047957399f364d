//! What a proxy needs: one process that holds the sides of many endpoints of other nodes.
//!
//! The local party sees an ordinary channel; the proxy acts as the remote party. All state of a channel is in its memory,
//! so a proxy that was killed is replaced by one that is handed the same channels ([`StandInEvent::Resumed`]) and goes on.
//!
//! Publication words travel verbatim: the proxy at the far end publishes with the word that the sender used, so that
//! `awaits`, `taken` and the state words mean the same on both nodes. Ring indices and arena offsets are equal too.
//!
//! Not here: frames, links, retransmission (`proxy/`).

mod channel;

pub use channel::{Carried, Cursor, ProxiedChannel, Settled};

use std::os::fd::{BorrowedFd, OwnedFd};

use abi::{DcId, Endpoint, IpcError, Lane, NodeId};
use ipc_core::ChannelId;

use crate::{RingSpec, Wait, Waker};

/// Which party of a proxied channel is the local one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalRole {
    /// The local party opened the channel (left): it submits, the proxy completes.
    Client,
    /// The remote party opened it: the proxy submits, the local party completes.
    Server,
}

/// What the broker says of a proxied channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProxiedInfo {
    pub channel: ChannelId,
    pub dc: DcId,
    pub local: Endpoint,
    pub remote: Endpoint,
    pub node: NodeId,
    pub lane: Lane,
    /// `None` for lane 0, which carries messages.
    pub ring: Option<RingSpec>,
    pub role: LocalRole,
    /// What [`OpenIn::peer_channel`] said, so that a later proxy can tell which channel of the far node this is; 0 when
    /// the local party opened it.
    pub peer_channel: u64,
}

/// A request to open a channel from a remote endpoint to a local one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenIn {
    pub dc: DcId,
    /// The remote caller and its node.
    pub caller: Endpoint,
    pub node: NodeId,
    /// The local endpoint.
    pub target: Endpoint,
    pub lane: Lane,
    pub ring: Option<RingSpec>,
    /// The far node's number of the channel; comes back in [`ProxiedInfo`].
    pub peer_channel: u64,
}

/// Names a request until its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    Up,
    Down,
}

#[derive(Debug)]
pub enum StandInEvent {
    /// A local endpoint opened a channel to a remote one. It may already have published.
    OpenOut(ProxiedChannel),
    /// The answer to `open_in`.
    OpenedIn {
        request: RequestId,
        result: Result<ProxiedChannel, IpcError>,
    },
    /// After a restart of the proxy: a channel that its predecessor held.
    Resumed(ProxiedChannel),
    /// Every `Resumed` was told; comes once, also when there was none. A proxy dials and accepts only after it: a channel
    /// that it does not list to its peer is taken for ended there.
    AllResumed,
    /// The local party of this channel did something since the last `Active`: look at all of it. Not repeated.
    Active(ChannelId),
    /// The local party died, closed the channel, or broke the protocol; or the remote endpoint was declared gone. Final.
    Closed {
        channel: ChannelId,
        reason: IpcError,
    },
    Woken,
}

/// The proxy's connection to its broker.
pub struct StandInPort {
    _private: (),
}

impl StandInPort {
    /// `broker` is what `Broker::proxy_socket` gave. All channels of a predecessor come as `Resumed` first.
    pub fn from_socket(broker: OwnedFd) -> Result<StandInPort, IpcError> {
        let _ = broker;
        unimplemented!()
    }

    /// The next event; `TimedOut` when none came in time; `NoBroker` once when the broker's end is closed, after which
    /// only `Active` and `Closed` of existing channels and `Woken` come.
    pub fn wait_event(&mut self, wait: Wait) -> Result<StandInEvent, IpcError> {
        let _ = wait;
        unimplemented!()
    }

    /// Readable when `wait_event` may have something, provided that the last `wait_event` answered `TimedOut`.
    pub fn fd(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }

    pub fn waker(&self) -> Waker {
        unimplemented!()
    }

    /// Asks for a channel from a remote caller to a local endpoint. Answered by [`StandInEvent::OpenedIn`].
    pub fn open_in(&mut self, request: &OpenIn) -> Result<RequestId, IpcError> {
        let _ = request;
        unimplemented!()
    }

    /// Tells the broker that a remote endpoint ended: its stand-in page goes dead, its channels close with `reason`
    /// (`NoLink`, or anything else for a death).
    pub fn remote_gone(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        node: NodeId,
        reason: IpcError,
    ) -> Result<(), IpcError> {
        let _ = (dc, endpoint, node, reason);
        unimplemented!()
    }

    /// Down: every endpoint of the node becomes unreachable and opening answers `NoLink`, until Up. A node is up before
    /// anything was said of it.
    pub fn link(&mut self, node: NodeId, state: LinkState) -> Result<(), IpcError> {
        let _ = (node, state);
        unimplemented!()
    }

    /// Closes one channel: the far party refused or closed it. The local party's calls answer `reason`.
    pub fn close(&mut self, channel: ChannelId, reason: IpcError) -> Result<(), IpcError> {
        let _ = (channel, reason);
        unimplemented!()
    }
}
