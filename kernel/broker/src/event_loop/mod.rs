//! The broker's thread: one loop over one epoll.
//!
//! It owns everything and shares nothing: no locks. Sources are commands of the daemon, listening sockets of
//! containers, connections, a pidfd for each bound process, and the socket of the shelf. Nothing here blocks (only a
//! full shelf is waited for, see `shelf/outgoing.rs`); a peer that sends garbage or does not read is dropped.
//!
//! - `accepting.rs`: who may connect.
//! - `commands.rs`: what the daemon asks.
//! - `requests.rs`: what programs and servers ask.
//! - `opening.rs`: how a channel is made.
//! - `living.rs`: what becomes of endpoints.
//! - `ending.rs`: deaths and what follows.
//! - `privileges.rs`: who may do what.
//! - `errands.rs`: what other brokers are asked.
//! - `migrating.rs`: endpoints that change their owner.
//! - `naming.rs`: what endpoints are called.
//! - `waits.rs`: deadlocks.
//! - `informing.rs`: what members ask about their container.
//! - `reserving.rs`: numbers kept for others.
//! - `proxying.rs`: proxies, and endpoints of other nodes.
//! - `pairing.rs`: which of several proxies carries a channel.
//! - `keeping.rs`: what outlives this broker.
//! - `adopting.rs`: what outlived the last one.

mod accepting;
mod adopting;
mod commands;
mod ending;
mod errands;
mod informing;
mod keeping;
mod living;
mod migrating;
mod naming;
mod opening;
mod pairing;
mod privileges;
mod proxying;
mod requests;
mod reserving;
mod waits;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use abi::limits::PAIRS_MAX;
use abi::{DcId, IpcError, NodeId, PairId};
use broker_api::{FromPort, FromProxy, MESSAGE_BYTES_MAX, Malformed, Message, Open, ToPort};
pub(crate) use errands::Asker;
use errands::Errands;
use ipc_core::ChannelId;
use ipc_core::table::OwnerId;
use migrating::Holding;
use naming::Claiming;
pub(crate) use naming::Finds;
use requests::BindRequest;
use sys::eventfd::{Poller, Trigger, WriteInterest};
use sys::seqpacket::{Received, Whole};

use crate::closer::Waste;
use crate::command::Command;
use crate::connection::{Connection, Packed, Party, Sendable, Sent};
use crate::container::Container;
use crate::ledger::{Charge, Ledger};
use crate::limits::{CHANNELS_PER_MILLI_BITS, REQUESTS_PER_TURN};
use crate::links::Links;
use crate::meters::Meters;
use crate::shelf::outgoing::Outgoing;
use crate::{BrokerConfig, Directory};

pub(crate) struct EventLoop {
    node: NodeId,
    directory: Box<dyn Directory>,
    commands: Receiver<Command>,
    bell: Arc<OwnedFd>,
    poller: Poller,
    containers: HashMap<DcId, Container>,
    connections: HashMap<OwnerId, Connection>,
    /// Pairs of proxies this node has.
    pairs: u8,
    links: Links,
    /// Pairs whose proxy has not said anything yet, and until when that is waited for.
    unmanned: BTreeMap<PairId, Instant>,
    unmanned_max: Duration,
    /// Opens that wait until their peer is bound, by connection and request.
    waiting_opens: HashMap<(OwnerId, u32), Open>,
    errands: Errands,
    /// Claims of a name that the directory has not decided yet.
    claims: HashMap<OwnerId, Claiming>,
    /// Processes that wait until a manager gives them a number.
    waiting_binds: HashMap<OwnerId, BindRequest>,
    /// Stand-bys: processes that wait to become the next owner of an endpoint.
    standing_by: HashMap<OwnerId, BindRequest>,
    /// What processes of this node hold on others.
    holding: Vec<Holding>,
    /// Number of the newest hold.
    last_hold: u32,
    ledger: Ledger,
    meters: Meters,
    /// When listeners are heard again that found no descriptor free.
    accepts_again: Option<Instant>,
    /// Connections found dead while something else was done; dropped at the end of the turn.
    doomed: Vec<OwnerId>,
    shelf: Option<Outgoing>,
    next_owner: u64,
    next_channel: u64,
    channels_made: u64,
    deaths: u64,
}

/// Whether a loop goes on: the broker's, or the one that reads a connection's messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    GoOn,
    End,
}

/// What a poller token names: the kind in the upper byte, a number below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    Commands,
    Listener(DcId),
    Connection(OwnerId),
    Process(OwnerId),
    Shelf,
}

impl Token {
    const NUMBER_BITS: u32 = 56;

    fn to_u64(self) -> u64 {
        let (kind, number) = match self {
            Token::Commands => (0, 0),
            Token::Listener(dc) => (1, u64::from(dc.0)),
            Token::Connection(owner) => (2, owner.0),
            Token::Process(owner) => (3, owner.0),
            Token::Shelf => (4, 0),
        };
        kind << Token::NUMBER_BITS | number
    }

    fn of(token: u64) -> Token {
        let number = token & ((1 << Token::NUMBER_BITS) - 1);
        match token >> Token::NUMBER_BITS {
            1 => Token::Listener(DcId(number as u32)),
            2 => Token::Connection(OwnerId(number)),
            3 => Token::Process(OwnerId(number)),
            4 => Token::Shelf,
            _ => Token::Commands,
        }
    }
}

impl EventLoop {
    pub fn new(config: BrokerConfig, commands: Receiver<Command>, bell: Arc<OwnedFd>) -> io::Result<EventLoop> {
        let poller = Poller::new()?;
        poller.add(&*bell, Token::Commands.to_u64(), Trigger::Level)?;
        // Names of channels must differ from those of an earlier broker whose channels still live.
        let millis = clock_millis();
        let pairs = config.directory.pairs(config.node).clamp(1, PAIRS_MAX);
        let mut event_loop = EventLoop {
            node: config.node,
            directory: config.directory,
            commands,
            bell,
            poller,
            containers: HashMap::new(),
            connections: HashMap::new(),
            pairs,
            links: Links::default(),
            unmanned: BTreeMap::new(),
            unmanned_max: config.unmanned_max,
            waiting_opens: HashMap::new(),
            errands: Errands::numbered_from(millis),
            claims: HashMap::new(),
            waiting_binds: HashMap::new(),
            standing_by: HashMap::new(),
            holding: Vec::new(),
            // Not those of an earlier broker either, of which an owner may speak late.
            last_hold: millis as u32,
            ledger: Ledger::of_this_process(),
            meters: Meters::default(),
            accepts_again: None,
            doomed: Vec::new(),
            shelf: None,
            next_owner: 1,
            next_channel: millis << CHANNELS_PER_MILLI_BITS | 1,
            channels_made: 0,
            deaths: 0,
        };
        if let Some(shelf) = config.shelf {
            event_loop.adopt(shelf)?;
        }
        PairId::all(event_loop.pairs).for_each(|pair| event_loop.watch_unmanned(pair));
        Ok(event_loop)
    }

    pub fn run(mut self) {
        let mut ready = Vec::new();
        loop {
            ready.clear();
            let next = self.accepts_again.into_iter().chain(self.unmanned.values().copied()).min();
            let limit = next.map(|end| end.saturating_duration_since(Instant::now()));
            if let Err(error) = self.poller.wait(&mut ready, limit) {
                tracing::error!(%error, "the broker cannot wait any more");
                return;
            }
            for token in &ready {
                match Token::of(*token) {
                    Token::Commands => {
                        if self.take_commands() == Turn::End {
                            return;
                        }
                    }
                    Token::Listener(dc) => self.accept(dc),
                    Token::Connection(owner) => self.serve(owner),
                    Token::Process(owner) => self.process_died(owner),
                    Token::Shelf => self.serve_shelf(),
                }
                self.drop_doomed();
            }
            self.accept_again();
            self.give_up_unmanned();
        }
    }

    fn add_connection(&mut self, socket: OwnedFd, party: Party, charge: Option<Charge>) -> io::Result<OwnerId> {
        let owner = OwnerId(self.next_owner);
        self.next_owner += 1;
        sys::seqpacket::ask_for_sender(&socket)?;
        // The broker is sent no descriptors. One that came must be closed, and closing may block: so the kernel refuses
        // them.
        sys::seqpacket::refuse_descriptors(&socket)?;
        self.poller.add(&socket, Token::Connection(owner).to_u64(), Trigger::Level)?;
        let mut connection = Connection::new(socket, party);
        connection.charge = charge;
        if let Some(container) = connection.dc().and_then(|dc| self.containers.get_mut(&dc)) {
            container.connections += 1;
        }
        self.connections.insert(owner, connection);
        self.keep_connection(owner);
        Ok(owner)
    }

    /// Reads requests of one connection, and writes what waited for it.
    fn serve(&mut self, owner: OwnerId) {
        self.flush(owner);
        for _ in 0..REQUESTS_PER_TURN {
            let Some(connection) = self.connections.get(&owner) else { return };
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            let received = match sys::seqpacket::receive_whatever(&connection.socket, &mut buffer) {
                Ok((received, _)) if !received.descriptors.is_empty() => {
                    return self.dispose(owner, received.descriptors);
                }
                // Longer than any request.
                Ok((_, Whole::Nothing)) => return self.doom(owner),
                Ok((received, _)) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.doom(owner),
            };
            match self.take_message(owner, buffer.get(..received.bytes).unwrap_or(&[]), received) {
                Turn::GoOn => {}
                Turn::End => return,
            }
        }
    }

    /// A peer that sends descriptors to the broker is dropped. When a container's members have sent too many, all its
    /// programs are.
    fn dispose(&mut self, owner: OwnerId, descriptors: Vec<OwnedFd>) {
        self.doom(owner);
        let Some(dc) = self.connections.get(&owner).and_then(Connection::dc) else { return };
        let Some(container) = self.containers.get_mut(&dc) else { return };
        container.closer.take(Waste::Descriptors(descriptors));
        if container.closer.is_abused() {
            tracing::warn!(%dc, "members send descriptors to the broker: all programs of the container lose their connections");
            let is_member = |it: &Connection| matches!(it.party, Party::Program { dc: of, .. } if of == dc);
            self.doomed.extend(self.connections.iter().filter(|(_, it)| is_member(it)).map(|(owner, _)| *owner));
        }
    }

    /// Handles one message. `End`: read no more of this connection now, because the message took long (`Inform`) or the
    /// connection is doomed.
    fn take_message(&mut self, owner: OwnerId, bytes: &[u8], received: Received) -> Turn {
        let taken = match self.connections.get(&owner).map(Connection::dc) {
            None => return Turn::End,
            Some(None) => FromProxy::from_bytes(bytes).map(|(request, message)| {
                if self.is_new_request(owner, request) {
                    self.take_proxy_request(owner, request, message);
                }
                Turn::GoOn
            }),
            Some(Some(dc)) => FromPort::from_bytes(bytes).map(|(request, message)| {
                let is_long = matches!(message, FromPort::Inform(_));
                if self.is_new_request(owner, request) {
                    self.take_request(owner, dc, request, message, received);
                }
                if is_long { Turn::End } else { Turn::GoOn }
            }),
        };
        match taken {
            Ok(turn) => turn,
            Err(Malformed::Value { request, .. }) => {
                if self.is_new_request(owner, request) {
                    self.fail(owner, request, IpcError::BadArgument);
                }
                Turn::GoOn
            }
            // The end of the connection, or what nobody of ours sends.
            Err(Malformed::Layout | Malformed::UnknownOperation(_) | Malformed::Unused(_)) => {
                self.doom(owner);
                Turn::End
            }
        }
    }

    fn is_new_request(&mut self, owner: OwnerId, request: u32) -> bool {
        self.connections.get_mut(&owner).is_some_and(|connection| connection.is_new_request(request))
    }

    fn send(&mut self, owner: OwnerId, message: &impl Sendable) -> Sent {
        self.send_packed(owner, Packed::new(0, message, Vec::new()))
    }

    fn send_packed(&mut self, owner: OwnerId, packed: Packed) -> Sent {
        let Some(connection) = self.connections.get_mut(&owner) else { return Sent::Lost };
        let sent = connection.send(packed);
        self.after_send(owner, sent);
        sent
    }

    fn answer(&mut self, owner: OwnerId, request: u32, answer: &impl Sendable) {
        if request != 0 {
            self.send_packed(owner, Packed::new(request, answer, Vec::new()));
        }
    }

    fn fail(&mut self, owner: OwnerId, request: u32, error: IpcError) {
        self.answer(owner, request, &ToPort::Failed { error });
    }

    fn flush(&mut self, owner: OwnerId) {
        if let Some(connection) = self.connections.get_mut(&owner) {
            let had_to_wait = connection.waits_to_write;
            let sent = connection.flush();
            self.after_send(owner, sent);
            self.go_on_handing_over(owner);
            if had_to_wait {
                // A copier's lane may have been among it.
                self.announce(owner);
            }
        }
    }

    fn after_send(&mut self, owner: OwnerId, sent: Sent) {
        let Some(connection) = self.connections.get_mut(&owner) else { return };
        let interest = match sent {
            Sent::All if !connection.waits_to_write => return,
            Sent::Waiting if connection.waits_to_write => return,
            Sent::All => WriteInterest::None,
            Sent::Waiting => WriteInterest::Waiting,
            Sent::Lost => return self.doom(owner),
        };
        connection.waits_to_write = interest == WriteInterest::Waiting;
        let token = Token::Connection(owner).to_u64();
        if self.poller.set_writable_interest(&connection.socket, token, interest).is_err() {
            self.doom(owner);
        }
    }

    /// Drops the connection when nothing else is being done.
    fn doom(&mut self, owner: OwnerId) {
        self.doomed.push(owner);
    }

    /// Ending one connection may doom others.
    fn drop_doomed(&mut self) {
        while let Some(owner) = self.doomed.pop() {
            self.drop_connection(owner);
        }
    }

    fn new_channel(&mut self) -> ChannelId {
        let channel = ChannelId(self.next_channel);
        self.next_channel += 1;
        channel
    }
}

/// The clock's milliseconds, with which what is numbered begins.
fn clock_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}
