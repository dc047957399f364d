//! A peer: the link to one node and all channels that cross it.
//!
//! One struct, in the order in which a link lives: `resync` compares what both sides hold after a connection, `glare`
//! and `channels` open and end channels, `hear` does what the peer's frames say, `fill` builds frames, `time` judges
//! silence.

mod channels;
mod fill;
mod glare;
mod hear;
mod resync;
mod time;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use abi::{Epoch, IpcError, PairId};
use wire::{Frame, Hello, WireChannel};

pub use hear::Due;

use crate::LinkError;
use crate::body::Incoming;
use crate::channel::{Ends, LocalChannel, Pair};
use crate::crossing::Crossing;
use crate::limits::PARCELS_MAX;
use crate::link::{Counters, Identity, Link, LinkTimes, Phase};
use crate::presence::{Opinion, Steadily};
use crate::thrift::Packer;

/// What the caller has to do.
#[derive(Debug)]
pub enum Action<C> {
    /// Ask the broker for a channel from a remote caller, answer with [`Peer::opened_in`].
    OpenIn {
        channel: WireChannel,
        ends: Ends,
    },
    /// The far side ended the channel: close it at the broker.
    Close {
        channel: WireChannel,
        local: C,
        reason: IpcError,
    },
    /// The channel's memory is not needed any more; the broker knows already.
    Forget {
        channel: WireChannel,
        local: C,
    },
    /// What the peer's broker tells ours.
    Parcel(Vec<u8>),
    /// All channels were compared: the peer's endpoints can be reached.
    Up,
    Suspect,
    /// The limit passed: the peer's endpoints cannot be reached, its channels are gone (each was told by `Forget`).
    Down,
}

enum Known<C> {
    /// Acceptor only: the broker has been asked.
    Asked {
        ends: Ends,
        listed: bool,
    },
    Crossing(Box<Crossing<C>>),
}

/// To be told: a channel comes or goes. Told in the order in which this node's broker decided it, because the peer
/// concludes from one about the other: an OPEN means that whatever the pair had before is gone, and a refusal with
/// `EndpointInUse` means that the channel in its way has been told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum News {
    Open(WireChannel),
    /// How an OPEN of the peer ended.
    Opened(WireChannel, Result<(), IpcError>),
    /// It ended here.
    Close(WireChannel, IpcError),
    /// A CLOSE of the peer was done.
    Closed(WireChannel),
}

struct Draining {
    channel: WireChannel,
    /// The pair's next channel, whose OPEN waits.
    next: Option<WireChannel>,
}

/// See the crate's head.
pub struct Peer<C> {
    link: Link,
    known: HashMap<WireChannel, Known<C>>,
    /// Channels that may have something to tell; each once.
    ready: VecDeque<WireChannel>,
    news: VecDeque<News>,
    parcels: VecDeque<Vec<u8>>,
    /// The channel of a pair that is `Draining`; the pair's next OPEN goes after its CLOSE.
    draining: HashMap<Pair, Draining>,
    /// Channels that give way to one of the peer's ([`Asking::GivingWay`]): few, and each for a moment.
    giving_way: Vec<WireChannel>,
    /// Channels not listed yet in this connection; then the end mark.
    unlisted: Vec<WireChannel>,
    end_told: bool,
    end_heard: bool,
    actions: VecDeque<Action<C>>,
    suspected: bool,
    given_up: bool,
    /// A frame whose data is not all here yet.
    incoming: Option<Incoming>,
    unkicked: Vec<WireChannel>,
    lazily_told: Duration,
}

impl<C: LocalChannel> Peer<C> {
    /// `now` counts from any fixed moment, the same for all calls.
    pub fn new(me: Identity, incarnation: Epoch, peer: Identity, times: LinkTimes, now: Duration) -> Peer<C> {
        Peer {
            link: Link::new(me, incarnation, peer, times, now),
            known: HashMap::new(),
            ready: VecDeque::new(),
            news: VecDeque::new(),
            parcels: VecDeque::new(),
            draining: HashMap::new(),
            giving_way: Vec::new(),
            unlisted: Vec::new(),
            end_told: false,
            end_heard: false,
            actions: VecDeque::new(),
            suspected: false,
            given_up: false,
            incoming: None,
            unkicked: Vec::new(),
            lazily_told: now,
        }
    }

    /// Connections are counted from here instead of 0: a number that grows over the lives of this node's proxies keeps
    /// even two of the same incarnation apart.
    pub fn count_connections_from(&mut self, first: u64) {
        self.link.count_connections_from(first);
    }

    /// Which of the pairs of proxies between the two nodes this is: the first, when nothing is said. Before the first
    /// connection.
    pub fn set_pair(&mut self, pair: PairId) {
        self.link.set_pair(pair);
    }

    /// The peer is told that packed data is understood here, and long data is packed for it where that pays. Before the
    /// first connection.
    pub fn pack_with(&mut self, packer: Box<dyn Packer>) {
        self.link.pack_with(packer);
    }

    pub fn identity(&self) -> &Identity {
        &self.link.peer
    }

    pub fn phase(&self) -> Phase {
        self.link.phase
    }

    pub fn is_suspected(&self) -> bool {
        self.suspected
    }

    /// The limit passed since the peer was reached last; until the link is up again, opening answers `NoLink`.
    pub fn is_given_up(&self) -> bool {
        self.given_up
    }

    pub fn counters(&self) -> Counters {
        self.link.counters
    }

    /// In which version the two sides of the connection talk; `None` before both have said what they speak.
    pub fn version(&self) -> Option<u8> {
        self.link.version
    }

    /// What heartbeats say of the peer from now on, to the peer.
    pub fn set_opinion(&mut self, opinion: Opinion) {
        self.link.opinion = opinion;
    }

    /// Of the heartbeats that the peer heard while it did not accuse this node.
    pub fn confirmed(&self) -> Option<Steadily> {
        self.link.confirmed()?.heard
    }

    /// Of those for which it vouched.
    pub fn vouched(&self) -> Option<Steadily> {
        self.link.confirmed()?.vouched
    }

    /// As heartbeats measured it last, while the link was idle.
    pub fn round_trip(&self) -> Option<Duration> {
        self.link.round_trip
    }

    pub fn channel_count(&self) -> usize {
        self.known.len()
    }

    pub fn silence(&self, now: Duration) -> Duration {
        self.link.silence(now)
    }

    pub fn next_action(&mut self) -> Option<Action<C>> {
        self.actions.pop_front()
    }

    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Tells the peer's broker something of ours. Lost when the link is not up, or cut before it went: brokers ask
    /// again when they hear that it is up.
    pub fn send_parcel(&mut self, bytes: Vec<u8>) {
        if self.link.phase == Phase::Up && self.parcels.len() < PARCELS_MAX {
            self.parcels.push_back(bytes);
        }
    }

    // ---- Connections.

    /// A connection that this side dialled stands.
    pub fn dialled(&mut self, now: Duration) {
        self.forget_connection();
        self.link.dialled(now);
    }

    /// A connection that the peer dialled stands and said `hello`. An earlier connection is given up by the caller.
    ///
    /// # Errors
    /// `Refuse`: tell it to the peer ([`refusal`]) and close; nothing has changed here.
    pub fn accepted(&mut self, now: Duration, hello: &Hello<'_>) -> Result<(), LinkError> {
        let out_of_reach = self.link.is_out_of_reach(now);
        self.link.accept(now, hello)?;
        if out_of_reach {
            // A peer that dials again and again may leave `tick` no moment between two connections.
            self.give_up();
        }
        self.forget_connection();
        self.begin_resync();
        Ok(())
    }

    /// The connection is gone. Channels stay until the limit has passed.
    pub fn cut(&mut self) {
        self.link.cut();
        self.forget_connection();
    }

    pub(super) fn forget_connection(&mut self) {
        // An OPEN is wanted in the next connection too; the rest follows from what both list.
        self.news.retain(|news| matches!(news, News::Open(_)));
        self.parcels.clear();
        self.unlisted.clear();
        self.incoming = None;
        (self.end_told, self.end_heard) = (false, false);
    }
}

/// What to send before closing a connection that ended with `error`, when the peer is to know why.
pub fn refusal(error: &LinkError) -> Option<Vec<u8>> {
    let LinkError::Refuse { refusal, reason } = error else { return None };
    let mut bytes = Vec::new();
    Frame::Refuse { refusal: *refusal, reason }.encode(&mut bytes);
    Some(bytes)
}
