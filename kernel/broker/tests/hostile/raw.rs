//! A member of the container without the library: the broker's socket and the bare memory of its channels.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abi::layout::{side, word};
use broker_api::{FromPort, IfAbsent, MESSAGE_BYTES_MAX, Message as _, Offer, Open, ToPort};
use ipc::{ChannelId, Endpoint, IpcError, Lane, RingSpec};
use ipc_shm::{Access, Mapping};

/// splitmix64
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Small, near a power of two, or anything.
    pub fn word(&mut self) -> u32 {
        match self.below(4) {
            0 => self.below(64) as u32,
            1 => (1u32 << self.below(32)).wrapping_add(self.below(3) as u32).wrapping_sub(1),
            _ => self.next() as u32,
        }
    }
}

pub struct Member {
    pub socket: OwnedFd,
    pub endpoint: Endpoint,
    /// The own control page, as it was handed over.
    pub page: OwnedFd,
    request: u32,
}

impl Member {
    pub fn join(path: &Path) -> Member {
        Member::try_join(path).expect("the broker binds programs")
    }

    pub fn try_join(path: &Path) -> Option<Member> {
        let socket = sys::seqpacket::connect(path).ok()?;
        match ask(
            &socket,
            1,
            &FromPort::Bind { endpoint: None, if_absent: IfAbsent::Fail, speaks: versions::PORT.speaks },
        )? {
            (ToPort::Bound { endpoint, .. }, pages) => {
                Some(Member { socket, endpoint, page: pages.into_iter().next()?, request: 1 })
            }
            _ => None,
        }
    }

    /// What another program of the same process left open.
    pub fn inherited(endpoint: Endpoint, socket: OwnedFd, page: OwnedFd) -> Member {
        Member { socket, endpoint, page, request: 1000 }
    }

    /// `None` when the broker hung up.
    pub fn ask(&mut self, message: &FromPort) -> Option<(ToPort, Vec<OwnedFd>)> {
        self.request += 1;
        ask(&self.socket, self.request, message)
    }

    /// A channel as its opener has it. `None` when the broker hung up.
    pub fn open(&mut self, to: Endpoint, ring: Option<RingSpec>) -> Option<Result<Channel, IpcError>> {
        self.open_lane(to, Lane::MESSAGES, ring)
    }

    pub fn open_lane(
        &mut self,
        peer: Endpoint,
        lane: Lane,
        ring: Option<RingSpec>,
    ) -> Option<Result<Channel, IpcError>> {
        match self.ask(&FromPort::Open(Open { peer, lane, ring, if_absent: IfAbsent::Fail }))? {
            (ToPort::Opened(offer), files) => Some(Ok(Channel::of(&offer, files))),
            (ToPort::Failed { error }, _) => Some(Err(error)),
            (answer, _) => panic!("{answer:?}"),
        }
    }

    /// The next channel that somebody opens to it.
    pub fn accept(&self) -> Channel {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some((_, ToPort::Accepted(offer), files)) = read(&self.socket).expect("the broker is there") {
                return Channel::of(&offer, files);
            }
            assert!(Instant::now() < until, "the broker says nothing");
        }
    }

    pub fn close(&self, channel: &Channel) {
        say(&self.socket, 0, &FromPort::Close { channel: channel.id, reason: IpcError::TableFull });
    }
}

/// Sends without waiting for room.
pub fn say(socket: &OwnedFd, request: u32, message: &FromPort) -> bool {
    sys::seqpacket::send(socket, &message.to_bytes(request), &[] as &[OwnedFd]).is_ok()
}

/// Sends and reads until the answer comes; what comes besides is thrown away.
pub fn ask(socket: &OwnedFd, request: u32, message: &FromPort) -> Option<(ToPort, Vec<OwnedFd>)> {
    let until = Instant::now() + Duration::from_secs(10);
    while !say(socket, request, message) {
        read(socket)?;
        assert!(Instant::now() < until, "the broker takes nothing");
    }
    loop {
        if let Some((of, answer, files)) = read(socket)?
            && of == request
        {
            return Some((answer, files));
        }
        assert!(Instant::now() < until, "the broker does not answer");
    }
}

/// `None`: hung up; `Some(None)`: nothing there for a while.
fn read(socket: &OwnedFd) -> Option<Option<(u32, ToPort, Vec<OwnedFd>)>> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    match sys::seqpacket::receive(socket, &mut buffer) {
        Ok(received) => {
            let (request, message) = ToPort::from_bytes(&buffer[..received.bytes]).ok()?;
            Some(Some((request, message, received.descriptors)))
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            let mut polled = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
            let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = rustix::event::poll(&mut polled, Some(&limit));
            Some(None)
        }
        Err(_) => None,
    }
}

pub struct Channel {
    pub id: ChannelId,
    pub own: Mapping,
    pub peer: Mapping,
    pub shared: Mapping,
    /// In the order of the protocol: own, peer, shared, bell in, bell out, lifeline, the peer's control page.
    pub files: Vec<OwnedFd>,
}

impl Channel {
    fn of(offer: &Offer, files: Vec<OwnedFd>) -> Channel {
        Channel::map(offer.channel, offer.ring, files)
    }

    pub fn map(id: ChannelId, ring: Option<RingSpec>, files: Vec<OwnedFd>) -> Channel {
        let size = ring.map(RingSpec::size).unwrap_or_default();
        let map = |index: usize, bytes: usize, access| Mapping::of(&files[index], bytes, access).unwrap();
        Channel {
            id,
            own: map(0, size.side_bytes(), Access::ReadWrite),
            peer: map(1, size.side_bytes(), Access::Read),
            shared: map(2, size.shared_bytes(), Access::ReadWrite),
            files,
        }
    }

    /// Wakes the peer in both ways.
    pub fn wake_peer(&self) {
        self.own.fetch_add(side::EVENT, 1, Ordering::Release);
        sys::futex::wake_all(self.own.address_u32(side::EVENT));
        sys::eventfd::signal(self.files[4].as_fd());
    }

    /// A request without a limit.
    pub fn request(&self) {
        let next = word::next(self.own.load(side::MESSAGE_WORD, Ordering::Relaxed), word::REQUEST);
        self.own.store(side::AWAITS, next, Ordering::Release);
        self.own.store(side::MESSAGE_WORD, next, Ordering::Release);
        self.own.fetch_add(side::EVENT, 1, Ordering::Release);
    }

    /// Asks, and waits for the answer.
    pub fn is_answered(&self) -> bool {
        let answer = || self.peer.load(side::MESSAGE_WORD, Ordering::Acquire);
        let (before, until) = (answer(), Instant::now() + Duration::from_secs(10));
        self.request();
        self.wake_peer();
        while answer() == before {
            if self.closed().is_some() || Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        self.own.store(side::TAKEN, answer(), Ordering::Release);
        true
    }

    /// Why the peer closed it, when it did.
    pub fn closed(&self) -> Option<IpcError> {
        let code = self.peer.load(side::CLOSED, Ordering::Acquire);
        (code != 0).then(|| IpcError::from_code(code))
    }
}
