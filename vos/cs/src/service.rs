//! Between rings and the core: requests become calls, effects become answers, packets and frames.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use abi::limits::NODES_PER_DC;
use abi::{Endpoint, limits::WELL_KNOWN_ENDPOINTS};
use cs_core::{Act, ClientCall, Core, Host, Ticket};
use libvos::SharedPort;
use rustix::io::Errno;
use vos_api::cs::{IN_FLIGHT_MAX, LINK, Request as Ask};
use vos_api::session::Progress;
use vos_rt::{ClientId, DeskSocket, Handle, Hello, HelloReply, Request, Service};

use crate::links::{Links, unpack};
use crate::vitals::Gauges;

/// When a packet found no room at the desk.
const RETRY: Duration = Duration::from_millis(20);

const _: () = assert!(Endpoint::CS.number() + NODES_PER_DC as u32 <= WELL_KNOWN_ENDPOINTS);

enum Client {
    Program { session: u64, waiting: HashSet<Ticket> },
    Server { node: u8 },
}

/// The coordination server of one node.
pub struct Cs {
    core: Core,
    socket: DeskSocket,
    links: Links,
    gauges: Gauges,
    clients: HashMap<ClientId, Client>,
    /// Whose session it is: a number alone opens none of another program.
    sessions: HashMap<u64, (Endpoint, ClientId)>,
    waiting: HashMap<Ticket, Request>,
    next_ticket: Ticket,
    /// Requests of servers of other nodes that were taken.
    counted: BTreeMap<Host, u64>,
    began: Instant,
    is_stuffed: bool,
}

impl Cs {
    pub fn new(own: Host, socket: DeskSocket, port: SharedPort, handle: Handle) -> Cs {
        Cs {
            core: Core::new(own, 0),
            socket,
            links: Links::new(port, handle),
            gauges: Gauges::open(),
            clients: HashMap::new(),
            sessions: HashMap::new(),
            waiting: HashMap::new(),
            next_ticket: 1,
            counted: BTreeMap::new(),
            began: Instant::now(),
            is_stuffed: false,
        }
    }

    /// Waits until everything in the engine is known. False: not within that time.
    pub fn prepare(&mut self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        while !self.core.is_ready() && Instant::now() < until {
            self.socket.wait(until.saturating_duration_since(Instant::now()));
            self.turn();
        }
        self.core.is_ready()
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn program(&mut self, request: Request) {
        let Some(Client::Program { session, waiting }) = self.clients.get_mut(&request.client()) else {
            return request.fail(Errno::PROTO);
        };
        if waiting.len() >= IN_FLIGHT_MAX as usize {
            return request.fail(Errno::AGAIN);
        }
        let (ticket, session) = (self.next_ticket, *session);
        let data = request.data();
        let ask = match Ask::decode(request.op(), request.flags(), request.args(), &data) {
            Ok(ask) => ask,
            Err(why) => return request.refuse(why),
        };
        waiting.insert(ticket);
        self.next_ticket += 1;
        if matches!(ask, Ask::Sense(_)) {
            self.measure();
        }
        let (sequence, room) = (request.sequence(), request.in_capacity() as usize);
        self.waiting.insert(ticket, request);
        let now = (self.now(), self.now_us());
        self.core.call(ClientCall { ticket, session, sequence, room, request: ask }, now);
    }

    fn measure(&mut self) {
        let links = self.core.peers().len();
        self.core.set_vitals(self.gauges.read(links));
    }

    /// Frames of a server of another node.
    fn server(&mut self, node: u8, request: Request) {
        let data = request.data();
        let Ok(Ask::Link(link)) = Ask::decode(request.op(), request.flags(), request.args(), &data) else {
            return request.fail(Errno::INVAL);
        };
        if link.receiver != self.core.own().incarnation {
            return request.fail(Errno::STALE);
        }
        let from = Host { node, incarnation: link.sender };
        // Of lives before nothing comes any more.
        self.counted.retain(|host, _| host.node != node || host.incarnation >= link.sender);
        let counted = self.counted.entry(from).or_default();
        if link.count > *counted + 1 {
            tracing::error!(?from, count = link.count, counted, "frames are missing");
            return request.fail(Errno::INVAL);
        }
        let Some(frames) = unpack(link.frames) else { return request.fail(Errno::INVAL) };
        // One that was sent again over a new ring was taken already.
        if link.count == *counted + 1 {
            *counted = link.count;
            self.measure();
            let now = (self.now(), self.now_us());
            frames.iter().for_each(|frame| self.core.linked(from, frame, now));
        }
        request.reply([0; 4], 0);
    }

    fn turn(&mut self) {
        let now = self.now();
        for said in self.socket.heard() {
            self.core.desk_said(said, now);
        }
        for effect in self.core.turn(now) {
            match effect {
                Act::Answer(ticket, answer) => self.answer(ticket, answer),
                Act::Ask(asked) => self.socket.ask(&asked),
                Act::Send(to, frame) => self.links.send(to, frame),
                Act::Reborn(incarnation) => {
                    tracing::warn!(incarnation, "others took this server for dead: it begins anew");
                    self.counted.clear();
                    self.links.retain(&[]);
                }
            }
        }
        self.links.flush(self.core.own().incarnation);
        self.is_stuffed = self.socket.flush();
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<cs_core::Answered, vos_api::Errno>) {
        let Some(request) = self.waiting.remove(&ticket) else { return };
        if let Some(Client::Program { waiting, .. }) = self.clients.get_mut(&request.client()) {
            waiting.remove(&ticket);
        }
        match answer {
            Ok(said) => match request.put(0, &said.data) {
                Ok(()) => request.reply(said.words, said.data.len() as u32),
                Err(errno) => request.fail(errno),
            },
            Err(errno) => request.fail(Errno::from_raw_os_error(errno.number() as i32)),
        }
    }

    /// The node of a server of this kind.
    fn node_of(from: Endpoint) -> Option<u8> {
        let index = from.number().checked_sub(Endpoint::CS.number())?;
        u8::try_from(index).ok().filter(|index| usize::from(*index) < NODES_PER_DC && from.is_well_known())
    }
}

impl Service for Cs {
    fn opened(&mut self, client: ClientId, from: Endpoint, hello: &Hello) -> HelloReply {
        if let Some(node) = Cs::node_of(from) {
            self.clients.insert(client, Client::Server { node });
            return HelloReply::STATELESS;
        }
        let Hello { session, progress: Progress { acknowledged, .. }, .. } = *hello;
        if let Some((owner, before)) = self.sessions.get(&session).copied() {
            if owner != from {
                return HelloReply::Refused(Errno::PERM);
            }
            self.closed(before);
        }
        let now = self.now();
        match self.core.open(session, acknowledged, now) {
            Ok(highest) => {
                self.sessions.insert(session, (from, client));
                self.clients.insert(client, Client::Program { session, waiting: HashSet::new() });
                let service = u64::from(self.core.own().node);
                HelloReply::Welcome { highest, in_flight: IN_FLIGHT_MAX, service }
            }
            Err(_) => HelloReply::Refused(Errno::STALE),
        }
    }

    fn submit(&mut self, request: Request) {
        match self.clients.get(&request.client()) {
            Some(Client::Server { node }) if request.op() == LINK => {
                let node = *node;
                self.server(node, request);
            }
            Some(Client::Program { .. }) => self.program(request),
            _ => request.fail(Errno::PERM),
        }
    }

    fn closed(&mut self, client: ClientId) {
        let Some(Client::Program { session, waiting }) = self.clients.remove(&client) else { return };
        waiting.iter().for_each(|ticket| drop(self.waiting.remove(ticket)));
        self.sessions.remove(&session);
        let now = self.now();
        self.core.close(session, now);
    }

    fn goodbye(&mut self, request: Request) {
        self.closed(request.client());
        request.reply([0; 4], 0);
    }

    fn deadline(&self) -> Option<Instant> {
        let of_core = self.core.deadline().map(|at| self.began + Duration::from_millis(at));
        let retry = self.is_stuffed.then(|| Instant::now() + RETRY);
        of_core.into_iter().chain(retry).min()
    }

    fn tick(&mut self, _now: Instant) {
        self.turn();
        self.links.retain(&self.core.peers());
    }
}
