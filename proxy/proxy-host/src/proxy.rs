//! The loop: local events, sockets, links, time.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use abi::NodeId;
use ipc::stand_in::StandInPort;
use proxy_link::{Identity, LinkError, Phase};
use sys::eventfd::{Poller, READY_MAX, Trigger, WriteInterest};

use crate::attendance::Attendance;
use crate::carriers::{Carrier, Carriers, is_exhaustion};
use crate::connection::{Connection, Stage};
use crate::control::{CredentialTexts, FromProxy, Said};
use crate::controller::Controller;
use crate::error::CutReason;
use crate::pace::{Next, Pace};
use crate::peers::{self, Common, Table};
use crate::refusals::{RefusalLog, refusal_of};
use crate::secure::{Credentials, Session};
use crate::standing::{Changed, Glance, Standing};
use crate::traffic::{Served, has_unsent, read_frames, send};
use crate::transport::{Encryption, Target};
use crate::{ProxyConfig, ProxyError, limits};

/// Why the loop ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// A signal or the descriptor of [`Proxy::stop_on`] said so.
    Asked,
}

mod token {
    pub(super) const BROKER: u64 = 0;
    pub(super) const CONTROL: u64 = 1;
    pub(super) const STOP: u64 = 2;
    pub(super) const FIRST_CARRIER: u64 = 16;
    pub(super) const FIRST_CONNECTION: u64 = FIRST_CARRIER + crate::limits::TRANSPORTS_MAX as u64;
}

/// See the crate's head.
pub struct Proxy {
    common: Common,
    carriers: Carriers,
    credentials: Option<Credentials>,
    standing: Standing,
    controller: Option<Controller>,
    stop: Option<OwnedFd>,
    poller: Poller,
    peers: Table,
    connections: HashMap<u64, Connection>,
    next_token: u64,
    origin: Instant,
    /// The same, by the clock of the node.
    origin_ns: u64,
    next_due: Duration,
    ready: Vec<u64>,
    /// Connections whose round ended before they were dry: what they hold decrypted wakes nobody.
    unfinished: Vec<u64>,
    /// Connections that brought something lately.
    hot: Vec<Hot>,
    /// Rounds since all descriptors were looked at.
    unpolled: u32,
    /// Looks, one after the other, of which each found as many descriptors ready as one can tell: there may be more.
    full_looks: u32,
    refused: Option<String>,
    /// Whether the daemon was told that the broker is lost.
    has_told_alone: bool,
    refusals: RefusalLog,
    attendance: Attendance,
}

struct Hot {
    token: u64,
    /// Since it brought something.
    idle_looks: u32,
}

impl Proxy {
    /// Takes everything it needs; reads the certificates.
    pub fn new(config: ProxyConfig) -> Result<Proxy, ProxyError> {
        let credentials = match (&config.tls_dir, config.encryption) {
            (Some(dir), _) => Some(Credentials::load(dir, &config.cluster)?),
            (None, Encryption::Tls) => return Err(ProxyError::NoTlsDir),
            (None, Encryption::Plain) => None,
        };
        let mut carriers = Carriers::new(config.transports)?;
        let port = StandInPort::from_socket(config.broker).map_err(ProxyError::Broker)?;
        let controller = config.control.map(Controller::new).transpose().map_err(ProxyError::Poll)?;
        let poller = Poller::new().map_err(ProxyError::Poll)?;
        poller.add(port.fd(), token::BROKER, Trigger::Level).map_err(ProxyError::Poll)?;
        carriers.watch(&poller, token::FIRST_CARRIER).map_err(ProxyError::Poll)?;
        if let Some(controller) = &controller {
            poller.add(controller, token::CONTROL, Trigger::Level).map_err(ProxyError::Poll)?;
        }
        let me = Identity { cluster: config.cluster, node: config.node, id: config.node_id };
        Ok(Proxy {
            common: Common {
                me,
                incarnation: config.incarnation,
                pair: config.pair,
                times: config.times,
                encryption: config.encryption,
                can_encrypt: credentials.is_some(),
                compression: config.compression,
                began: microseconds_since_1970(),
            },
            carriers,
            credentials,
            standing: Standing::new(port, config.node_id, config.inspector),
            controller,
            stop: None,
            poller,
            peers: Table::new(),
            connections: HashMap::new(),
            next_token: token::FIRST_CONNECTION,
            // Not later than `origin`: nothing is said to have happened later than it did.
            origin_ns: sys::clock::monotonic_ns(),
            origin: Instant::now(),
            next_due: Duration::ZERO,
            ready: Vec::new(),
            unfinished: Vec::new(),
            hot: Vec::new(),
            unpolled: 0,
            full_looks: 0,
            refused: None,
            has_told_alone: false,
            refusals: RefusalLog::default(),
            attendance: Attendance::new(config.incarnation, config.pair, config.presence),
        })
    }

    /// The loop ends when this descriptor becomes readable.
    pub fn stop_on(&mut self, stop: OwnedFd) -> Result<(), ProxyError> {
        self.poller.add(&stop, token::STOP, Trigger::Level).map_err(ProxyError::Poll)?;
        self.stop = Some(stop);
        Ok(())
    }

    /// Where it listens: names of transports with their addresses.
    pub fn local_addresses(&self) -> impl Iterator<Item = (String, String)> {
        self.carriers.addresses()
    }

    /// System calls of its transports.
    pub(crate) fn system_calls(&self) -> Vec<i64> {
        self.carriers.system_calls()
    }

    /// Runs until it is told to stop.
    pub fn run(&mut self) -> Result<Stopped, ProxyError> {
        let mut pace = Pace::new();
        loop {
            let now = self.now();
            let mut found = self.hear_broker(Glance::Busy, now);
            found |= self.turn_due();
            found |= self.serve_unfinished(now);
            // What local parties said goes before anybody is asked for more.
            found |= self.send_all(now);
            if self.look_at_descriptors(now, &mut found)? == Asked::ToStop {
                return Ok(Stopped::Asked);
            }
            found |= self.act();
            found |= self.tick_if_due(now);
            self.mind_carriers();
            if found {
                pace.found();
                continue;
            }
            match pace.found_nothing() {
                Next::LookAgain => pace.yield_cpu(),
                Next::Sleep => {
                    let now = self.now();
                    if self.hear_broker(Glance::BeforeSleep, now) {
                        pace.found();
                        continue;
                    }
                    let limit = self.next_due.saturating_sub(self.now());
                    if self.poll(limit, &mut found)? == Asked::ToStop {
                        return Ok(Stopped::Asked);
                    }
                    // Silence is judged in the next round, which asks all descriptors first: a signal may have ended
                    // this sleep.
                    pace.slept();
                }
            }
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Takes what happened on this node. `true` when anything did.
    fn hear_broker(&mut self, glance: Glance, now: Duration) -> bool {
        let might_dial = self.standing.is_complete;
        let found = self.standing.take_events(glance, &mut self.peers, now);
        if self.standing.is_alone && !std::mem::replace(&mut self.has_told_alone, true) {
            self.tell_daemon();
        }
        if self.standing.is_complete && !might_dial {
            self.next_due = now;
        }
        found
    }

    // ---- Readiness.

    /// Hot connections are read without asking first, which is a system call less for each message. All descriptors are
    /// asked when nothing is hot, now and then in any case, and before silence is judged.
    fn look_at_descriptors(&mut self, now: Duration, found: &mut bool) -> Result<Asked, ProxyError> {
        self.unpolled += 1;
        if self.hot.is_empty() || self.unpolled >= limits::UNPOLLED_ROUNDS_MAX || now >= self.next_due {
            return self.poll(Duration::ZERO, found);
        }
        let mut hot = std::mem::take(&mut self.hot);
        hot.retain_mut(|it| {
            let brought = self.serve(it.token, now);
            *found |= brought;
            it.idle_looks = if brought { 0 } else { it.idle_looks + 1 };
            it.idle_looks <= limits::IDLE_LOOKS_MAX && self.connections.contains_key(&it.token)
        });
        self.hot = hot;
        Ok(Asked::Nothing)
    }

    fn heat(&mut self, token: u64) {
        if self.hot.len() < limits::HOT_MAX && !self.hot.iter().any(|hot| hot.token == token) {
            self.hot.push(Hot { token, idle_looks: 0 });
        }
    }

    fn poll(&mut self, limit: Duration, found: &mut bool) -> Result<Asked, ProxyError> {
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        self.unpolled = 0;
        self.poller.wait(&mut ready, Some(limit)).map_err(ProxyError::Poll)?;
        self.full_looks = if ready.len() < READY_MAX { 0 } else { self.full_looks.saturating_add(1) };
        let now = self.now();
        for token in &ready {
            match *token {
                // Its events are taken at the head of every round.
                token::BROKER => self.standing.rung(),
                token::CONTROL => self.hear_daemon(),
                token::STOP => return Ok(Asked::ToStop),
                carrier @ token::FIRST_CARRIER..token::FIRST_CONNECTION => {
                    if let Some(carrier) = self.carriers.at(carrier - token::FIRST_CARRIER) {
                        *found |= self.turn(carrier);
                    }
                }
                connection => {
                    if self.serve(connection, now) {
                        *found = true;
                        self.heat(connection);
                    }
                }
            }
        }
        self.ready = ready;
        Ok(Asked::Nothing)
    }

    /// A transport has something: streams without a descriptor are asked one by one. `true` when frames came, or there
    /// may be room for what waits to be sent.
    fn turn(&mut self, carrier: Carrier) -> bool {
        self.carriers.turn(carrier);
        self.accept_all(carrier);
        let shares = |(token, connection): (&u64, &Connection)| {
            (connection.carrier == carrier && connection.stream.descriptor().is_none()).then_some(*token)
        };
        let sharing: Vec<u64> = self.connections.iter().filter_map(shares).collect();
        let now = self.now();
        sharing.into_iter().filter(|token| self.serve(*token, now) || self.has_unsent(*token)).count() > 0
    }

    fn has_unsent(&self, token: u64) -> bool {
        let Some(connection) = self.connections.get(&token) else { return false };
        let Stage::Joined(node) = connection.stage else { return false };
        self.peers.get(&node).is_some_and(|entry| has_unsent(connection, entry))
    }

    fn turn_due(&mut self) -> bool {
        if self.carriers.next_due().is_none_or(|due| due > Instant::now()) {
            return false;
        }
        self.carriers.resume(&self.poller, Instant::now());
        let due = self.carriers.due_by(Instant::now());
        due.into_iter().filter(|carrier| self.turn(*carrier)).count() > 0
    }

    /// A transport may have sent something that is to be repeated: do not sleep longer than it says.
    fn mind_carriers(&mut self) {
        if let Some(due) = self.carriers.next_due() {
            self.next_due = self.next_due.min(due.saturating_duration_since(self.origin));
        }
    }

    fn accept_all(&mut self, carrier: Carrier) {
        loop {
            let stream = match self.carriers.accept(carrier) {
                Ok(stream) => stream,
                Err(error) if is_exhaustion(&error) => {
                    tracing::error!(%error, pause = ?limits::ACCEPT_PAUSE, "nobody can be let in");
                    return self.carriers.pause(&self.poller, carrier, Instant::now() + limits::ACCEPT_PAUSE);
                }
                // Nobody dials any more, or he is gone already.
                Err(_) => return,
            };
            if !self.has_room_for_stranger() {
                self.refusals.tell(self.now(), &CutReason::Crowded);
                continue;
            }
            if !self.standing.is_complete {
                continue;
            }
            let session = match self.carriers.encryption(carrier) {
                Encryption::Plain => Session::accepting(self.credentials.clone()),
                Encryption::Tls => Session::Sealed(stream.peer_certificate()),
            };
            self.add(Connection::new(stream, carrier, session, Stage::Stranger, self.now()));
        }
    }

    /// Makes room, if need be: whoever belongs here says so in far less time than the oldest has had.
    fn has_room_for_stranger(&mut self) -> bool {
        let strangers = || self.connections.iter().filter(|(_, it)| it.stage == Stage::Stranger);
        if strangers().count() < limits::STRANGERS_MAX {
            return true;
        }
        let overdue = self.now().saturating_sub(limits::STRANGER_GIVES_WAY);
        let oldest = strangers().min_by_key(|(token, _)| **token).filter(|(_, it)| it.since <= overdue);
        let oldest = oldest.map(|(token, _)| *token);
        if let Some(token) = oldest {
            self.drop_connection(token, CutReason::Crowded);
        }
        oldest.is_some()
    }

    fn add(&mut self, connection: Connection) -> Option<u64> {
        let token = self.next_token;
        if let Some(descriptor) = connection.stream.descriptor()
            && let Err(error) = self.poller.add(descriptor, token, Trigger::Level)
        {
            tracing::warn!("a connection cannot be watched: {error}");
            return None;
        }
        self.next_token += 1;
        self.next_due = self.next_due.min(connection.since + limits::GREETING_MAX);
        self.connections.insert(token, connection);
        Some(token)
    }

    /// A connection is ready. `true` when frames came.
    fn serve(&mut self, token: u64, now: Duration) -> bool {
        let Some(connection) = self.connections.get_mut(&token) else { return false };
        let served = match connection.stage {
            Stage::Dialling(node) => self.finish_dialling(token, node, now).map(|()| Served::Idle),
            Stage::Stranger => self.greet(token, now),
            Stage::Joined(node) => {
                let Some(entry) = self.peers.get_mut(&node) else { return false };
                read_frames(connection, entry, now)
            }
        };
        match served {
            Ok(Served::Idle) => false,
            Ok(Served::Dry) => true,
            Ok(Served::Unfinished) => {
                if !self.unfinished.contains(&token) {
                    self.unfinished.push(token);
                }
                true
            }
            Err(reason) => {
                self.drop_connection(token, reason);
                true
            }
        }
    }

    fn serve_unfinished(&mut self, now: Duration) -> bool {
        let unfinished = std::mem::take(&mut self.unfinished);
        for token in &unfinished {
            self.serve(*token, now);
        }
        !unfinished.is_empty()
    }

    // ---- Connections come and go.

    fn finish_dialling(&mut self, token: u64, node: NodeId, now: Duration) -> Result<(), CutReason> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        match connection.stream.established() {
            None => return Ok(()),
            Some(result) => result?,
        }
        connection.stage = Stage::Joined(node);
        connection.set_interest(&self.poller, token, WriteInterest::None)?;
        if let Some(entry) = self.peers.get_mut(&node) {
            entry.peer.dialled(now);
        }
        // From here on there are heartbeats.
        self.next_due = now;
        Ok(())
    }

    /// Reads until the stranger has said who it is, then makes it the link.
    fn greet(&mut self, token: u64, now: Duration) -> Result<Served, CutReason> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(Served::Idle) };
        let mut bytes = 0;
        connection.read(None, &mut bytes)?;
        // The handshake's own answers.
        connection.write(&[])?;
        if !connection.session.is_ready() {
            return Ok(Served::of(bytes));
        }
        let (hello, whole) = match wire::next(connection.input.waiting()).map_err(LinkError::from)? {
            wire::Next::Incomplete => return Ok(Served::of(bytes)),
            wire::Next::Frame(wire::Frame::Hello(hello), whole) => (hello, whole),
            _ => return Err(LinkError::OutOfPlace { frame: "a frame before HELLO" }.into()),
        };
        let node = hello.node_id;
        let entry = self.peers.get_mut(&node).ok_or(CutReason::Stranger(node.0))?;
        if !connection.session.is_from(hello.node, &self.common.me.cluster) {
            return Err(CutReason::Name { node: hello.node.to_owned() });
        }
        if !entry.protection.lets_in(connection.session.encryption(), connection.carrier) {
            return Err(CutReason::NotEncrypted);
        }
        if let Err(error) = entry.peer.accepted(now, &hello) {
            if error.is_of_versions() {
                // Who dials is told, and here it is to be seen too.
                entry.last_error = Some(error.to_string());
            }
            return Err(error.into());
        }
        self.next_due = now;
        connection.input.consume(whole);
        connection.stage = Stage::Joined(node);
        if let Some(old) = entry.token.replace(token) {
            // Its state in the peer has been replaced already.
            self.connections.remove(&old);
            tracing::info!("node {node}: {}", CutReason::Replaced);
        }
        let (Some(connection), Some(entry)) = (self.connections.get_mut(&token), self.peers.get_mut(&node)) else {
            return Ok(Served::Dry);
        };
        // HELLO came, and ours is to be sent, whether more came after it or not.
        Ok(match read_frames(connection, entry, now)? {
            Served::Idle => Served::Dry,
            more => more,
        })
    }

    fn drop_connection(&mut self, token: u64, reason: CutReason) {
        let Some(mut connection) = self.connections.remove(&token) else { return };
        if let Some(refusal) = refusal_of(&reason) {
            let _ = connection.write(&refusal);
        }
        // An alert says more than a closed connection.
        let _ = connection.write(&[]);
        let now = self.now();
        match connection.node().and_then(|node| self.peers.get_mut(&node)) {
            Some(entry) if entry.token == Some(token) => {
                let was_up = entry.peer.phase() == Phase::Up;
                let node = entry.peer.identity().node.clone();
                entry.lost(now, &reason);
                let reason = reason.in_full();
                self.next_due = self.next_due.min(entry.next_dial);
                match was_up {
                    true => tracing::warn!("link with {node} is cut: {reason}"),
                    false => tracing::debug!("no link with {node}: {reason}"),
                }
            }
            _ => self.refusals.tell(now, &reason),
        }
    }

    /// Of two nodes the one with the smaller number dials.
    fn dial_due(&mut self, now: Duration) {
        if !self.standing.is_complete {
            return;
        }
        let me = self.common.me.id;
        let due = |(node, entry): (&NodeId, &mut peers::Entry)| {
            (me < *node && entry.token.is_none() && entry.next_dial <= now).then_some(*node)
        };
        let due: Vec<NodeId> = self.peers.iter_mut().filter_map(due).collect();
        for node in due {
            if let Err(reason) = self.dial(node, now)
                && let Some(entry) = self.peers.get_mut(&node)
            {
                entry.lost(now, &reason);
            }
        }
    }

    fn dial(&mut self, node: NodeId, now: Duration) -> Result<(), CutReason> {
        let Some(entry) = self.peers.get(&node) else { return Ok(()) };
        let (carrier, name) = (entry.address.carrier, &entry.peer.identity().node);
        let session = match (self.carriers.encryption(carrier), entry.protection.encryption, &self.credentials) {
            (Encryption::Tls, ..) => Session::Sealed(None),
            (Encryption::Plain, Encryption::Plain, _) => Session::Plain,
            (Encryption::Plain, Encryption::Tls, None) => return Err(CutReason::NoCredentials),
            (Encryption::Plain, Encryption::Tls, Some(credentials)) => Session::dialling(credentials, name)?,
        };
        let stream = self.carriers.dial(carrier, Target { node: name, address: &entry.address.text })?;
        let token = self.add(Connection::new(stream, carrier, session, Stage::Dialling(node), now));
        let token = token.ok_or(CutReason::Closed)?;
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.set_interest(&self.poller, token, WriteInterest::Waiting)?;
        }
        if let Some(entry) = self.peers.get_mut(&node) {
            entry.token = Some(token);
        }
        Ok(())
    }

    // ---- To the peers.

    /// Builds and writes for every link until there is nothing more or the sockets are full. `true` when bytes went.
    fn send_all(&mut self, now: Duration) -> bool {
        let mut found = false;
        let mut broken = Vec::new();
        for entry in self.peers.values_mut() {
            let Some(token) = entry.token else { continue };
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            if !matches!(connection.stage, Stage::Joined(_)) {
                continue;
            }
            match send(connection, entry, now) {
                Ok(sent) => {
                    found |= sent.bytes > 0;
                    if let Err(reason) = connection.set_interest(&self.poller, token, sent.interest) {
                        broken.push((token, reason));
                    }
                }
                Err(reason) => broken.push((token, reason)),
            }
        }
        for (token, reason) in broken {
            self.drop_connection(token, reason);
        }
        found
    }

    /// Does at the broker what the links want. `true` when anything was to do.
    fn act(&mut self) -> bool {
        if !self.peers.values().any(|entry| entry.peer.has_actions()) {
            return false;
        }
        let mut found = false;
        let mut changed = false;
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            while let Some(action) = self.peers.get_mut(&node).and_then(|entry| entry.peer.next_action()) {
                found = true;
                changed |= self.standing.act(node, action, &mut self.peers) == Changed::Yes;
            }
        }
        if changed {
            self.tell_daemon();
        }
        found
    }

    // ---- Time.

    /// `true` when it was: there may be something to send, or to look at first.
    fn tick_if_due(&mut self, now: Duration) -> bool {
        if now < self.next_due {
            return false;
        }
        // After a while in which this process did not run, peers that spoke are not silent because their turn has not
        // come.
        if (1..limits::FULL_LOOKS_MAX).contains(&self.full_looks) {
            return true;
        }
        let mut silent = Vec::new();
        self.attendance.look(&mut self.peers, self.common.times, (now, self.origin_ns));
        for entry in self.peers.values_mut() {
            if let Err(error) = entry.peer.tick(now)
                && let Some(token) = entry.token
            {
                silent.push((token, error.into()));
            }
        }
        let late = |(token, connection): (&u64, &Connection)| {
            let greeted = match connection.stage {
                Stage::Joined(node) => self.peers.get(&node).is_some_and(|e| e.peer.phase() != Phase::Greeting),
                Stage::Dialling(_) | Stage::Stranger => false,
            };
            (!greeted && now >= connection.since + limits::GREETING_MAX).then_some((*token, CutReason::Greeting))
        };
        silent.extend(self.connections.iter().filter_map(late));
        for (token, reason) in silent {
            self.drop_connection(token, reason);
        }
        self.dial_due(now);
        self.standing.place_orphans(&mut self.peers, now, self.common.times.down);
        self.next_due = self.due_after(now);
        true
    }

    fn due_after(&self, now: Duration) -> Duration {
        let me = self.common.me.id;
        let links = self.peers.values().filter_map(|entry| entry.peer.next_tick(now));
        let dials = self.peers.iter().filter_map(|(node, entry)| {
            let dials = me < *node && entry.token.is_none() && self.standing.is_complete;
            dials.then_some(entry.next_dial)
        });
        let greetings = self.connections.values().filter_map(|connection| {
            let due = connection.since + limits::GREETING_MAX;
            (due > now).then_some(due)
        });
        let orphans = self.standing.next_orphan(self.common.times.down);
        let due = links.chain(dials).chain(greetings).chain(orphans).min();
        due.unwrap_or(now + Duration::from_secs(3600)).max(now + Duration::from_millis(1))
    }

    // ---- The daemon.

    fn hear_daemon(&mut self) {
        loop {
            let Some(controller) = &mut self.controller else { return };
            match controller.receive() {
                Said::Nothing => return,
                Said::Gone => {
                    tracing::warn!("the daemon is gone; links go on as they are");
                    if let Some(controller) = self.controller.take() {
                        let _ = self.poller.remove(&controller);
                    }
                    return;
                }
                Said::Nonsense(why) => self.refused = Some(why),
                Said::Message(message) => {
                    let renewed = message.credentials.map(|texts| self.set_credentials(&texts));
                    if let Some(accused) = message.accused {
                        self.attendance.accuse(accused);
                        self.next_due = self.now();
                    }
                    let others = message.others;
                    let listed = message.peers.map(|list| self.set_peers(&list, others.unwrap_or(list.len())));
                    // What was refused stays so until something else is said.
                    if renewed.is_some() || listed.is_some() {
                        let failed = |done: Option<Result<(), String>>| done.and_then(Result::err);
                        self.refused = failed(renewed).or_else(|| failed(listed));
                    }
                }
            }
            self.tell_daemon();
        }
    }

    /// Connections that are made from now on show and believe these. What stands goes on; without certificates at the
    /// start there are none later.
    ///
    /// # Errors
    /// They cannot be used, and those of before stay. For people.
    pub fn set_credentials(&mut self, texts: &CredentialTexts) -> Result<(), String> {
        if self.credentials.is_none() {
            return Ok(());
        }
        let words = |error: ProxyError| match std::error::Error::source(&error) {
            Some(cause) => format!("new certificates: {error}: {cause}"),
            None => format!("new certificates: {error}"),
        };
        let credentials = Credentials::of(texts, Path::new(""), &self.common.me.cluster).map_err(words)?;
        self.carriers.set_credentials(&credentials).map_err(words)?;
        self.credentials = Some(credentials);
        Ok(())
    }

    /// Replaces the list of peers. `others`: how many nodes there are beside this one.
    ///
    /// # Errors
    /// What of the list was not taken, and why, for people. The rest of it was, unless the list is longer than that of
    /// any cluster.
    pub fn set_peers(&mut self, list: &[crate::control::PeerAddress], others: usize) -> Result<(), String> {
        let now = self.now();
        let changes = peers::update(&mut self.peers, list, &self.common, &self.carriers, now)?;
        self.attendance.set_others(others);
        self.standing.heard_list(now);
        for entry in changes.removed {
            if let Some(token) = entry.token {
                self.connections.remove(&token);
            }
            self.standing.forget_node(entry.peer.identity().id);
        }
        for node in changes.moved {
            if let Some(token) = self.peers.get(&node).and_then(|entry| entry.token) {
                self.drop_connection(token, CutReason::Moved);
            }
        }
        if !changes.added.is_empty() {
            self.standing.place_orphans(&mut self.peers, now, self.common.times.down);
        }
        self.next_due = now;
        changes.refused.map_or(Ok(()), Err)
    }

    fn tell_daemon(&mut self) {
        if self.controller.is_none() {
            return;
        }
        let now = self.now();
        let status = |entry: &peers::Entry| {
            let connection = entry.token.and_then(|token| self.connections.get(&token));
            let carrier = connection.map_or(entry.address.carrier, |connection| connection.carrier);
            let of_transport = connection.and_then(|connection| connection.stream.round_trip());
            let encryption = match self.carriers.encryption(carrier) {
                Encryption::Tls => Encryption::Tls,
                Encryption::Plain => entry.protection.encryption,
            };
            entry.status(now, self.carriers.name(carrier), encryption, of_transport)
        };
        let mut links: Vec<_> = self.peers.values().map(status).collect();
        links.sort_by_key(|link| link.id);
        let listen = self.carriers.addresses().collect();
        let there_ns = self.attendance.there_ns(&self.peers, (now, self.origin_ns));
        let (refused, is_alone) = (self.refused.clone(), self.standing.is_alone);
        let status = FromProxy { listen, links, there_ns, refused, is_alone };
        if let Some(controller) = &mut self.controller {
            controller.tell(status);
        }
    }
}

/// Should the clock be wrong, the incarnation still tells a new proxy from an old one.
fn microseconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Nothing,
    ToStop,
}

#[cfg(test)]
mod tests;
