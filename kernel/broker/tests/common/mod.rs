//! Two brokers in one process, joined by the plainest proxy: a thread that copies between the two ends of each channel.

#![allow(dead_code)]

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use abi::PairId;
use broker::{
    Broker, BrokerConfig, Claim, DcOptions, Directory, EndpointName, Location, Names, Privileges, ServerIdentity,
};
use ipc::conformance::World;
use ipc::stand_in::{LinkState, LocalRole, OpenIn, ProxiedChannel, RequestId, Settled, StandInEvent, StandInPort};
use ipc::{ChannelId, DcId, Endpoint, Epoch, IpcError, NodeId, Port, Wait, Waker};

pub const DC: DcId = DcId(7);
const NODES: [NodeId; 2] = [NodeId(1), NodeId(2)];

/// Programs that may open anything, but manage nobody.
fn open_privileges() -> Privileges {
    Privileges { calls: Privileges::program().calls, ..Privileges::server() }
}

fn server_port(broker: &Broker, endpoint: Endpoint, epoch: u64) -> Result<Port, IpcError> {
    Port::from_socket(broker.server_socket(DC, ServerIdentity::new(endpoint, Epoch(epoch))).unwrap(), None)
}

/// Everything on one node.
pub struct OneNode {
    pub broker: Broker,
    pub directory: tempfile::TempDir,
}

impl OneNode {
    pub fn new() -> OneNode {
        OneNode::with(open_privileges())
    }

    pub fn with(program_privileges: Privileges) -> OneNode {
        let directory = tempfile::tempdir().unwrap();
        let broker = Broker::start(BrokerConfig::local()).unwrap();
        let listen = Some(directory.path().join("m3ipc"));
        broker.add_dc(DC, DcOptions { listen, program_privileges, ..DcOptions::default() }).unwrap();
        OneNode { broker, directory }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("m3ipc")
    }

    pub fn try_server(&self, endpoint: Endpoint, epoch: u64) -> Result<Port, IpcError> {
        server_port(&self.broker, endpoint, epoch)
    }
}

impl World for OneNode {
    fn server(&self, endpoint: Endpoint, epoch: u64) -> Port {
        self.try_server(endpoint, epoch).unwrap()
    }

    fn near_server(&self, endpoint: Endpoint, epoch: u64) -> Port {
        self.server(endpoint, epoch)
    }

    fn program(&self) -> Port {
        Port::connect(&self.socket(), None).unwrap()
    }

    fn near(&self) -> (NodeId, PathBuf) {
        (NodeId(1), self.socket())
    }

    fn far(&self) -> (NodeId, PathBuf) {
        self.near()
    }
}

type Places = Arc<Mutex<HashMap<Endpoint, (NodeId, Epoch, i32)>>>;

enum Gossip {
    Claimed(NodeId, DcId, Endpoint, Epoch, EndpointName, Result<(), IpcError>),
    Bound(NodeId, DcId, Endpoint, Epoch),
    Unbound(NodeId, DcId, Endpoint, Epoch),
    Stop,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    Told,
    Late,
}

struct SharedDirectory {
    node: NodeId,
    /// Of either node.
    pairs: u8,
    places: Places,
    names: Arc<Mutex<Names>>,
    gossip: Sender<Gossip>,
}

impl Directory for SharedDirectory {
    fn locate(&mut self, _: DcId, endpoint: Endpoint) -> Location {
        match self.places.lock().unwrap().get(&endpoint) {
            Some((node, epoch, _)) if *node != self.node => Location::Remote { node: *node, epoch: *epoch },
            Some(_) => Location::Local,
            None => Location::Unknown,
        }
    }

    fn find(&mut self, _: DcId, pid: i32) -> Option<Endpoint> {
        let places = self.places.lock().unwrap();
        places.iter().find(|(_, place)| place.2 == pid).map(|(endpoint, _)| *endpoint)
    }

    fn bound(&mut self, dc: DcId, endpoint: Endpoint, pid: i32, epoch: Epoch) {
        self.places.lock().unwrap().insert(endpoint, (self.node, epoch, pid));
        let _ = self.gossip.send(Gossip::Bound(self.node, dc, endpoint, epoch));
    }

    fn claim(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        epoch: Epoch,
        name: EndpointName,
        _: Option<NodeId>,
    ) -> Result<Claim, IpcError> {
        let result = self.names.lock().unwrap().claim(dc, endpoint, name);
        let _ = self.gossip.send(Gossip::Claimed(self.node, dc, endpoint, epoch, name, result));
        Ok(Claim::UnderWay)
    }

    fn named(&mut self, dc: DcId, name: EndpointName) -> Option<Endpoint> {
        self.names.lock().unwrap().holder(dc, name)
    }

    fn name_of(&mut self, dc: DcId, endpoint: Endpoint) -> Option<EndpointName> {
        self.names.lock().unwrap().of(dc, endpoint)
    }

    fn unbound(&mut self, dc: DcId, endpoint: Endpoint, epoch: Epoch) {
        {
            let mut places = self.places.lock().unwrap();
            // Not of a successor.
            if places.get(&endpoint).is_some_and(|place| place.0 == self.node && place.1 <= epoch) {
                self.names.lock().unwrap().end(dc, endpoint);
                places.remove(&endpoint);
            }
        }
        let _ = self.gossip.send(Gossip::Unbound(self.node, dc, endpoint, epoch));
    }

    fn pairs(&self, _: NodeId) -> u8 {
        self.pairs
    }
}

/// Clients on node 1, servers on node 2.
pub struct TwoNodes {
    pub brokers: [Arc<Broker>; 2],
    directory: tempfile::TempDir,
    gossip: Sender<Gossip>,
    gossiper: Option<JoinHandle<()>>,
    /// One for each pair.
    relays: Vec<Relay>,
    pairs: u8,
}

/// A running relay; killed by `stop`, which leaves every channel as it is.
struct Relay {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: JoinHandle<()>,
}

impl TwoNodes {
    pub fn new() -> TwoNodes {
        TwoNodes::with(1, News::Told)
    }

    pub fn with_pairs(pairs: u8) -> TwoNodes {
        TwoNodes::with(pairs, News::Told)
    }

    /// The directory answers who asks, and its news of who was bound do not arrive.
    pub fn without_news() -> TwoNodes {
        TwoNodes::with(1, News::Late)
    }

    fn with(pairs: u8, news: News) -> TwoNodes {
        let directory = tempfile::tempdir().unwrap();
        let (places, names) = (Places::default(), Arc::<Mutex<Names>>::default());
        let (gossip, heard) = channel();
        let brokers = [0, 1].map(|index| {
            let (places, names, gossip) = (places.clone(), names.clone(), gossip.clone());
            let shared = SharedDirectory { node: NODES[index], pairs, places, names, gossip };
            let broker = Broker::start(BrokerConfig {
                node: NODES[index],
                directory: Box::new(shared),
                ..BrokerConfig::local()
            })
            .unwrap();
            let first = 256 + index as u32 * 1000;
            let options = DcOptions {
                listen: Some(directory.path().join(format!("m3ipc{index}"))),
                program_endpoints: first..first + 1000,
                program_privileges: open_privileges(),
            };
            broker.add_dc(DC, options).unwrap();
            Arc::new(broker)
        });
        let others = brokers.clone();
        let gossiper = std::thread::spawn(move || {
            for said in heard {
                let other = |node: NodeId| &others[if node == NODES[0] { 1 } else { 0 }];
                match said {
                    Gossip::Claimed(node, dc, endpoint, epoch, name, result) => {
                        if result.is_ok() {
                            drop(other(node).remote_bound(dc, endpoint, node, epoch));
                        }
                        let own = &others[usize::from(node != NODES[0])];
                        drop(own.name_claimed(dc, endpoint, name, result));
                    }
                    Gossip::Bound(..) if news == News::Late => {}
                    Gossip::Bound(node, dc, endpoint, epoch) => {
                        drop(other(node).remote_bound(dc, endpoint, node, epoch))
                    }
                    Gossip::Unbound(node, dc, endpoint, epoch) => {
                        drop(other(node).remote_unbound(dc, endpoint, node, epoch));
                    }
                    Gossip::Stop => return,
                }
            }
        });
        let mut world = TwoNodes { brokers, directory, gossip, gossiper: Some(gossiper), relays: Vec::new(), pairs };
        world.start_relay();
        world
    }

    fn socket(&self, index: usize) -> PathBuf {
        self.directory.path().join(format!("m3ipc{index}"))
    }

    pub fn start_relay(&mut self) {
        self.relays = PairId::all(self.pairs).map(|pair| self.relay_of(pair)).collect();
    }

    fn relay_of(&self, pair: PairId) -> Relay {
        let socket = |index: usize| self.brokers[index].proxy_socket_of(pair).unwrap();
        let mut sides = [0, 1].map(|index| StandInPort::from_socket(socket(index)).unwrap());
        // As proxies do when they have met.
        for (side, other) in sides.iter_mut().zip([NODES[1], NODES[0]]) {
            side.link(other, LinkState::Up).unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let waker = sides[0].waker();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || Pump::new(sides).run(&stopped));
        Relay { stop, waker, thread }
    }

    pub fn stop_relay(&mut self) {
        for relay in self.relays.drain(..) {
            relay.stop.store(true, Ordering::SeqCst);
            relay.waker.wake();
            relay.thread.join().unwrap();
        }
    }
}

impl Drop for TwoNodes {
    fn drop(&mut self) {
        self.stop_relay();
        let _ = self.gossip.send(Gossip::Stop);
        if let Some(gossiper) = self.gossiper.take() {
            let _ = gossiper.join();
        }
    }
}

impl World for TwoNodes {
    fn server(&self, endpoint: Endpoint, epoch: u64) -> Port {
        server_port(&self.brokers[1], endpoint, epoch).unwrap()
    }

    fn near_server(&self, endpoint: Endpoint, epoch: u64) -> Port {
        server_port(&self.brokers[0], endpoint, epoch).unwrap()
    }

    fn program(&self) -> Port {
        Port::connect(&self.socket(0), None).unwrap()
    }

    fn near(&self) -> (NodeId, PathBuf) {
        (NODES[0], self.socket(0))
    }

    fn far(&self) -> (NodeId, PathBuf) {
        (NODES[1], self.socket(1))
    }
}

/// One channel with its two ends; `opener` is the index of the side whose party opened it.
struct Joined {
    opener: usize,
    /// The end at the opener's node, then the end at the acceptor's.
    ends: [ProxiedChannel; 2],
    /// Where the data of requests in flight lies.
    offsets: HashMap<u32, u32>,
}

struct Pump {
    sides: [StandInPort; 2],
    opening: HashMap<(usize, RequestId), ProxiedChannel>,
    /// Channels that ended before the other side had opened them.
    ended_early: HashMap<(usize, ChannelId), IpcError>,
    /// By side and number.
    by_channel: HashMap<(usize, ChannelId), usize>,
    joined: HashMap<usize, Joined>,
    /// Of a predecessor: the opener's and the acceptor's ends, by the opener's number.
    resumed: [HashMap<ChannelId, ProxiedChannel>; 2],
    all_resumed: usize,
    next: usize,
}

impl Pump {
    fn new(sides: [StandInPort; 2]) -> Pump {
        Pump {
            sides,
            opening: HashMap::new(),
            ended_early: HashMap::new(),
            by_channel: HashMap::new(),
            joined: HashMap::new(),
            resumed: Default::default(),
            all_resumed: 0,
            next: 0,
        }
    }

    fn run(mut self, stop: &AtomicBool) {
        loop {
            let mut is_idle = true;
            for side in 0..2 {
                loop {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    match self.sides[side].wait_event(Wait::NoWait) {
                        Ok(event) => {
                            is_idle = false;
                            self.take(side, event);
                        }
                        Err(IpcError::TimedOut) => break,
                        Err(_) => return,
                    }
                }
            }
            if is_idle {
                let fds = [self.sides[0].fd(), self.sides[1].fd()];
                let mut polled = fds.each_ref().map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN));
                let _ = rustix::event::poll(&mut polled, None);
            }
        }
    }

    fn take(&mut self, side: usize, event: StandInEvent) {
        match event {
            StandInEvent::OpenOut(channel) => {
                let info = *channel.info();
                let request = OpenIn {
                    dc: info.dc,
                    caller: info.local,
                    node: NODES[side],
                    target: info.remote,
                    lane: info.lane,
                    ring: info.ring,
                    peer_channel: info.channel.0,
                    incarnation: info.incarnation,
                };
                let id = self.sides[1 - side].open_in(&request).unwrap();
                self.opening.insert((1 - side, id), channel);
            }
            StandInEvent::OpenedIn { request, result } => {
                let Some(near) = self.opening.remove(&(side, request)) else { return };
                let ended = self.ended_early.remove(&(1 - side, near.info().channel));
                match result {
                    Ok(far) => {
                        let far_channel = far.info().channel;
                        self.join(1 - side, near, far);
                        if let Some(reason) = ended {
                            self.end(side, far_channel, reason);
                        }
                    }
                    Err(_) if ended.is_some() => {}
                    Err(error) => self.sides[1 - side].close(near.info().channel, error).unwrap(),
                }
            }
            StandInEvent::Resumed(channel) => {
                let (by, name) = match channel.info().role {
                    LocalRole::Client => (0, channel.info().channel),
                    LocalRole::Server => (1, ChannelId(channel.info().peer_channel)),
                };
                self.resumed[by].insert(name, channel);
            }
            StandInEvent::AllResumed => {
                self.all_resumed += 1;
                if self.all_resumed == 2 {
                    self.join_resumed();
                }
            }
            StandInEvent::Parcel { bytes, .. } => self.sides[1 - side].parcel(NODES[side], &bytes).unwrap(),
            StandInEvent::Active(channel) => {
                if let Some(index) = self.by_channel.get(&(side, channel)).copied() {
                    self.pump(index);
                }
            }
            StandInEvent::Closed { channel, reason } => {
                let Some(index) = self.by_channel.get(&(side, channel)).copied() else {
                    if self.opening.iter().any(|((to, _), near)| *to == 1 - side && near.info().channel == channel) {
                        self.ended_early.insert((side, channel), reason);
                    }
                    return;
                };
                // What it said last goes first.
                self.pump(index);
                self.by_channel.remove(&(side, channel));
                let Some(joined) = self.joined.remove(&index) else { return };
                let far = &joined.ends[usize::from(joined.opener == side)];
                self.by_channel.remove(&(1 - side, far.info().channel));
                self.sides[1 - side].close(far.info().channel, reason).unwrap();
            }
            StandInEvent::Woken => {}
        }
    }

    /// The other end of a channel is gone already.
    fn end(&mut self, side: usize, channel: ChannelId, reason: IpcError) {
        if let Some(index) = self.by_channel.remove(&(side, channel))
            && let Some(joined) = self.joined.remove(&index)
        {
            for end in &joined.ends {
                self.by_channel.remove(&(1 - side, end.info().channel));
            }
            self.sides[side].close(channel, reason).unwrap();
        }
    }

    fn join_resumed(&mut self) {
        let [openers, mut acceptors] = std::mem::take(&mut self.resumed);
        for (name, near) in openers {
            let opener = usize::from(near.info().node == NODES[0]);
            match acceptors.remove(&name) {
                Some(far) => self.join(opener, near, far),
                None => drop(self.sides[opener].close(name, IpcError::NoLink)),
            }
        }
    }

    fn join(&mut self, opener: usize, near: ProxiedChannel, far: ProxiedChannel) {
        let index = self.next;
        self.next += 1;
        self.by_channel.insert((opener, near.info().channel), index);
        self.by_channel.insert((1 - opener, far.info().channel), index);
        let mut joined = Joined { opener, ends: [near, far], offsets: HashMap::new() };
        if joined.ends[0].info().ring.is_some() {
            joined.find_offsets();
        }
        self.joined.insert(index, joined);
        self.pump(index);
    }

    fn pump(&mut self, index: usize) {
        let Some(joined) = self.joined.get_mut(&index) else { return };
        if joined.ends[0].info().ring.is_some() {
            joined.pump_ring();
        } else {
            joined.pump_messages(0);
            joined.pump_messages(1);
            // What the second direction acknowledged may free the first.
            joined.pump_messages(0);
        }
    }
}

impl Joined {
    /// From end `from` to the other.
    fn pump_messages(&mut self, from: usize) {
        let (source, target) = (&self.ends[from], &self.ends[1 - from]);
        let taken = target.taken();
        if taken != 0 && taken != source.acknowledged() {
            source.mark_taken(taken);
        }
        if let Some(word) = source.cancel_requested() {
            match if target.published() == word { target.withdraw(word) } else { Some(Settled::Withdrawn) } {
                Some(Settled::Taken) => source.mark_taken(word),
                Some(Settled::Withdrawn) => source.settle_withdrawn(word),
                // Its taker says so in a moment.
                None => {}
            }
        }
        if let Ok(Some(message)) = source.outbound(0)
            && target.publish(&message) == Err(IpcError::NotWaiting)
        {
            source.settle_withdrawn(message.word);
        }
        if let Some((number, mask)) = source.pending_notification() {
            target.notify(number, mask);
            source.confirm_notification(number);
        }
    }

    /// After a restart: submissions that were forwarded and not completed still lie in the client's ring, because their
    /// entries are confirmed only, not overwritten while in flight.
    fn find_offsets(&mut self) {
        let client = &self.ends[0];
        let Ok(cursor) = client.submissions() else { return };
        let entries = client.info().ring.map_or(0, |ring| ring.entries);
        for back in 1..=entries {
            if let Ok(submission) = client.submission(cursor.head.wrapping_sub(back)) {
                self.offsets.entry(submission.tag).or_insert(submission.arena_offset);
            }
        }
    }

    fn pump_ring(&mut self) {
        let [client, server] = &self.ends;
        if let Ok(cursor) = client.submissions() {
            // What the predecessor put already is not put again.
            let mut index = server.submissions_put();
            while index != cursor.tail {
                let Ok(submission) = client.submission(index) else { return };
                self.offsets.insert(submission.tag, submission.arena_offset);
                let offset = submission.arena_offset as usize;
                server.arena().copy_from(offset, client.arena(), offset, submission.out_bytes as usize).unwrap();
                server.put_submission(&submission).unwrap();
                index = index.wrapping_add(1);
            }
            client.confirm_submissions(index);
            server.kick();
        }
        if let Ok(cursor) = server.completions() {
            let mut index = client.completions_put();
            while index != cursor.tail {
                let Ok(completion) = server.completion(index) else { return };
                let offset = self.offsets.remove(&completion.tag).unwrap_or(0) as usize;
                client.arena().copy_from(offset, server.arena(), offset, completion.in_bytes as usize).unwrap();
                client.put_completion(&completion).unwrap();
                index = index.wrapping_add(1);
            }
            server.confirm_completions(index);
            client.kick();
        }
    }
}

pub fn wait_readable(fd: impl AsFd) {
    let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut polled, Some(&limit)).unwrap(), 1, "the descriptor never became readable");
}
