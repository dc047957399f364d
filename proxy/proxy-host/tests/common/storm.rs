//! A cable that is simulated: frames of raw Ethernet between the proxies of two nodes pass a wire that loses, doubles,
//! delays and reorders them, from a seed. It is also cut for a moment every now and then, and about half of the cuts
//! end the session of one proxy or of both, so that the link has to be made anew.
//!
//! Brokers, proxies and parties are real and run on the real clock: the seed decides what happens to the frame of each
//! number, not which thread is first.

use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proxy_host::transport::eth::ETHER_TYPE;
use proxy_link::arq::wire::{Dice, Weather, Wire};
use proxy_link::arq::{Kind, Packet, refusal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::packet::{self, HEAD_BYTES, Mac};

/// Longest payload of a frame.
pub const MTU: usize = 1500;

pub fn mac(end: usize) -> Mac {
    [2, 0, 0, 0, 0, end as u8]
}

/// Its ends are what packet sockets are to proxies.
pub struct StormyCable {
    pub ends: [OwnedFd; 2],
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl StormyCable {
    pub fn new(seed: u64) -> StormyCable {
        let pairs = [0, 1].map(|_| sys::seqpacket::pair().expect("pair"));
        let [(end_a, door_a), (end_b, door_b)] = pairs;
        let stop = sys::eventfd::create().expect("eventfd");
        let stopped = stop.try_clone().expect("eventfd");
        let mut storm = Storm::new([door_a, door_b], seed);
        let thread = std::thread::spawn(move || storm.run(&stopped));
        StormyCable { ends: [end_a, end_b], stop, thread: Some(thread) }
    }
}

impl Drop for StormyCable {
    fn drop(&mut self) {
        sys::eventfd::signal(&self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Storm {
    doors: [OwnedFd; 2],
    wire: Wire,
    dice: Dice,
    next_cut: Duration,
    /// What the end was sent last: a packet of the session by which the link goes. Nothing else is known here of
    /// sessions.
    last: [Option<Vec<u8>>; 2],
}

impl Storm {
    fn new(doors: [OwnedFd; 2], seed: u64) -> Storm {
        let mut dice = Dice::new(!seed);
        let weather = Weather {
            lost_percent: 1 + dice.roll(5),
            doubled_percent: dice.roll(10),
            delay_us: 20 + dice.roll(500),
            jitter_us: dice.roll(1500),
        };
        let next_cut = Duration::from_millis(dice.roll(100));
        Storm { doors, wire: Wire::new(seed, weather), dice, next_cut, last: [None, None] }
    }

    fn run(&mut self, stop: &OwnedFd) {
        let origin = Instant::now();
        let mut buffer = vec![0; HEAD_BYTES + MTU];
        loop {
            let now = origin.elapsed();
            self.take(now, &mut buffer);
            if now >= self.next_cut {
                self.cut(now);
            }
            while let Some((to, frame)) = self.wire.arrived(now) {
                // A reader that is too slow loses it.
                let _ = packet::send(&self.doors[to], &frame);
                if payload(&frame).is_some_and(|packet| packet.kind == Kind::Data) {
                    self.last[to] = Some(frame);
                }
            }
            let due = self.wire.next_arrival().map_or(self.next_cut, |arrival| arrival.min(self.next_cut));
            if self.wait(stop, due.saturating_sub(origin.elapsed())) == Waited::ToStop {
                return;
            }
        }
    }

    fn take(&mut self, now: Duration, buffer: &mut [u8]) {
        for from in 0..2 {
            while let Ok(bytes @ 1..) = packet::receive(&self.doors[from], buffer) {
                self.wire.carry(now, 1 - from, &buffer[..bytes]);
            }
        }
    }

    fn cut(&mut self, now: Duration) {
        let millis = Duration::from_millis;
        self.next_cut = now + millis(100 + self.dice.roll(300));
        let until = now + millis(5 + self.dice.roll(60));
        match self.dice.roll(8) {
            to @ 0..2 => self.wire.cut(to as usize, until),
            2 | 3 => self.cut_both(until),
            end @ 4..6 => {
                self.end_session(end as usize - 4);
                self.cut_both(until);
            }
            _ => {
                (0..2).for_each(|end| self.end_session(end));
                self.cut_both(until);
            }
        }
    }

    fn cut_both(&mut self, until: Duration) {
        (0..2).for_each(|to| self.wire.cut(to, until));
    }

    /// The end is told that there is no such session, as if the other proxy had just begun its life.
    fn end_session(&mut self, end: usize) {
        let Some(last) = self.last[end].take() else { return };
        let Some(packet) = payload(&last) else { return };
        let mut frame = [mac(end), mac(1 - end)].concat();
        frame.extend_from_slice(&ETHER_TYPE.to_be_bytes());
        let (to, from) = (packet.from, packet.to);
        refusal(&Packet { to, from, ..packet }).encode(&mut frame);
        let _ = packet::send(&self.doors[end], &frame);
    }

    fn wait(&self, stop: &OwnedFd, limit: Duration) -> Waited {
        let fds = [self.doors[0].as_fd(), self.doors[1].as_fd(), stop.as_fd()];
        let mut polled = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        let _ = poll(&mut polled, Some(&limit));
        if polled[2].revents().is_empty() { Waited::Enough } else { Waited::ToStop }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waited {
    Enough,
    ToStop,
}

fn payload(frame: &[u8]) -> Option<Packet<'_>> {
    Packet::decode(frame.get(HEAD_BYTES..)?)
}
