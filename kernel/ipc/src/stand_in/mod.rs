//! What a proxy needs: one process that holds the sides of many endpoints of other nodes.
//!
//! The local party sees an ordinary channel; the proxy acts as the remote party. All state of a channel is in its
//! memory, so a proxy that was killed is replaced by one that is handed the same channels ([`StandInEvent::Resumed`])
//! and goes on.
//!
//! Publication words travel verbatim: the proxy at the far end publishes with the word that the sender used, so that
//! `awaits`, `taken` and the state words mean the same on both nodes. Ring indices and arena offsets are equal too.
//!
//! Not here: frames, links, retransmission (`proxy/`).

mod channel;
mod port;
mod watch;

pub use abi::{Carried, Indices, LocalRole, Settled};
pub use channel::ProxiedChannel;
pub use port::StandInPort;

use std::num::NonZeroU64;

use abi::{Calls, DcId, Endpoint, IpcError, Lane, NodeId};
pub use broker_api::{LinkState, OpenIn};
pub use ipc_core::CROWDED_AFTER;
use ipc_core::ChannelId;

use crate::RingSpec;

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
    /// What the local party may do to the remote one.
    pub calls: Calls,
    /// What [`OpenIn::peer_channel`] said, so that a later proxy can tell which channel of the far node this is; 0 when
    /// the local party opened it.
    pub peer_channel: u64,
    /// Of a local party that opened it: the serial number of its control page. `None` when the remote one did.
    pub incarnation: Option<NonZeroU64>,
}

/// Names a request until its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u32);

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
    /// Every `Resumed` was told; comes once, also when there was none. A proxy dials and accepts only after it: a
    /// channel that it does not list to its peer is taken for ended there.
    AllResumed,
    /// The local party of this channel did something since the last `Active`: look at all of it. Not repeated.
    Active(ChannelId),
    /// The local party died, closed the channel, or broke the protocol; or the remote endpoint was declared gone.
    /// Final.
    Closed {
        channel: ChannelId,
        reason: IpcError,
    },
    /// The broker has something to tell the broker of a node.
    Parcel {
        node: NodeId,
        bytes: Vec<u8>,
    },
    Woken,
}
