//! What the deputy's side of the ring does: a service for one client.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use abi::Endpoint;
use parking_lot::Mutex;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use vos_api::jobs::{
    Describe, Described, Half, News, Next, ORDER_RESIZE, ORDER_SIGNAL, ORDER_SIGNAL_ALL, Order, Request as Asked,
};
use vos_api::jobs::{Read, Say, Seek, Shut, Write};
use vos_rt::{ClientId, Hello, HelloReply, Request, Service};

use crate::streams::Line;

/// What the deputy hears.
#[derive(Debug)]
pub enum Event {
    /// The far end has a ring.
    Up(Endpoint),
    /// It has none any more.
    Down,
    News(News, u64),
    /// A signal for this process.
    Signal(i32),
}

/// Whom a signal is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom {
    Process,
    Group,
}

const STOPS: [u64; 3] = [libc::SIGTSTP as u64, libc::SIGTTIN as u64, libc::SIGTTOU as u64];
const CONTINUE: u64 = libc::SIGCONT as u64;

/// Orders to the far end, in the order in which they were given.
#[derive(Clone, Default)]
pub struct Orders(Arc<Mutex<OrderList>>);

#[derive(Default)]
struct OrderList {
    /// Not known to be heard. A signal that waits already does not wait twice, as in the kernel: so they are few.
    waiting: VecDeque<Order>,
    last: u64,
    /// Up to here the far end was told. What it was told may have happened: the same signal is another one from now on.
    told: u64,
    parked: Option<(Request, u64)>,
}

impl Orders {
    pub fn signal(&self, whom: Whom, signal: i32) {
        let mut orders = self.0.lock();
        let kind = if whom == Whom::Group { ORDER_SIGNAL_ALL } else { ORDER_SIGNAL };
        let value = u64::from(signal.unsigned_abs());
        let told = orders.told;
        if orders.waiting.iter().any(|order| order.number > told && (order.kind, order.value) == (kind, value)) {
            return;
        }
        // As in the kernel: who is continued does not stop for what was sent before, and the other way round.
        let (is_stop, is_continue) = (|value| STOPS.contains(&value), |value| value == CONTINUE);
        let is_over =
            |earlier: u64| (is_continue(value) && is_stop(earlier)) || (is_stop(value) && is_continue(earlier));
        let is_signal = |order: &Order| order.kind != ORDER_RESIZE;
        orders.waiting.retain(|order| order.number <= told || !is_signal(order) || !is_over(order.value));
        orders.last += 1;
        let number = orders.last;
        orders.waiting.push_back(Order { number, kind, value });
        orders.answer();
    }

    /// The terminal has another size.
    pub fn resize(&self, size: u64) {
        let mut orders = self.0.lock();
        // Only the last one counts.
        let told = orders.told;
        orders.waiting.retain(|order| order.number <= told || order.kind != ORDER_RESIZE);
        orders.last += 1;
        let number = orders.last;
        orders.waiting.push_back(Order { number, kind: ORDER_RESIZE, value: size });
        orders.answer();
    }

    fn next(&self, request: Request, after: u64) {
        let mut orders = self.0.lock();
        orders.waiting.retain(|order| order.number > after);
        orders.parked = Some((request, after));
        orders.answer();
    }
}

impl OrderList {
    fn answer(&mut self) {
        let Some((request, after)) = self.parked.take() else { return };
        match self.waiting.iter().find(|order| order.number > after) {
            Some(order) => {
                self.told = self.told.max(order.number);
                request.reply(*order, 0);
            }
            None => self.parked = Some((request, after)),
        }
    }
}

/// Both halves of a stream, where there are.
#[derive(Default)]
pub struct Lines {
    pub reading: Option<Line>,
    pub writing: Option<Line>,
}

/// An open file of the tree that others may have here.
pub struct SharedFile {
    pub file: OwnedFd,
    /// Where it stood when the job began.
    pub offset: u64,
}

pub struct Desk {
    pub token: u64,
    pub description: Vec<u8>,
    pub lines: Vec<Lines>,
    /// Of streams that are files of the tree.
    pub files: Vec<Option<SharedFile>>,
    pub orders: Orders,
    pub events: Sender<Event>,
    pub heard: u64,
    /// Its first ring said who it is; the broker says of the others whether they are its own.
    pub far: Option<Endpoint>,
    pub client: Option<ClientId>,
}

impl Desk {
    fn tell(&self, event: Event) {
        // The deputy ends first.
        let _ = self.events.send(event);
    }

    fn line(&self, stream: u32) -> Option<&Lines> {
        self.lines.get(stream as usize)
    }

    fn describe(&self, request: Request, at: u64) {
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let rest = self.description.get(from..).unwrap_or_default();
        let piece = rest.get(..request.in_capacity() as usize).unwrap_or(rest);
        match request.put(0, piece) {
            Ok(()) => {
                let bytes = piece.len() as u32;
                request.reply(Described { bytes: self.description.len() as u64 }, bytes);
            }
            Err(cause) => request.fail(cause),
        }
    }

    fn say(&mut self, request: Request, said: Say) {
        match said.number.checked_sub(self.heard) {
            Some(1) => {
                self.heard = said.number;
                request.reply([0; 4], 0);
                self.tell(Event::News(said.news, said.value));
            }
            // Said again.
            Some(0) | None => request.reply([0; 4], 0),
            Some(_) => request.fail(Errno::INVAL),
        }
    }

    /// Whoever has the same open file here goes on where the program ended, unless somebody went on meanwhile.
    fn seek(&self, request: Request, stream: u32, at: u64) {
        let Some(Some(shared)) = self.files.get(stream as usize) else { return request.fail(Errno::BADF) };
        let moved = seek(&shared.file, SeekFrom::Current(0)).and_then(|here| match here == shared.offset {
            true => seek(&shared.file, SeekFrom::Start(at)),
            false => Ok(here),
        });
        match moved {
            Ok(_) => request.reply([0; 4], 0),
            Err(cause) => request.fail(cause),
        }
    }

    fn shut(&self, request: Request, shut: Shut) {
        let lines = self.line(shut.stream);
        let line = lines.and_then(|lines| match shut.half {
            Half::Reading => lines.reading.as_ref(),
            Half::Writing => lines.writing.as_ref(),
        });
        line.into_iter().for_each(Line::end);
        request.reply([0; 4], 0);
    }
}

impl Service for Desk {
    fn opened(&mut self, client: ClientId, from: Endpoint, hello: &Hello) -> HelloReply {
        if hello.session != self.token || self.far.is_some_and(|far| far != from) {
            return HelloReply::Refused(Errno::PERM);
        }
        (self.far, self.client) = (Some(from), Some(client));
        self.tell(Event::Up(from));
        HelloReply::STATELESS
    }

    fn submit(&mut self, request: Request) {
        match Asked::decode(request.op(), request.flags(), request.args(), &[]) {
            Ok(Asked::Describe(Describe { at })) => self.describe(request, at),
            Ok(Asked::Read(Read { stream, piece })) => match self.line(stream).and_then(|lines| lines.reading.as_ref())
            {
                Some(line) => line.read(request, piece),
                None => request.fail(Errno::BADF),
            },
            Ok(Asked::Write(Write { stream, at })) => {
                match self.line(stream).and_then(|lines| lines.writing.as_ref()) {
                    Some(line) => line.write(request, at),
                    None => request.fail(Errno::BADF),
                }
            }
            Ok(Asked::Shut(shut)) => self.shut(request, shut),
            Ok(Asked::Next(Next { after })) => self.orders.next(request, after),
            Ok(Asked::Say(said)) => self.say(request, said),
            Ok(Asked::Seek(Seek { stream, at })) => self.seek(request, stream, at),
            Err(why) => request.refuse(why),
        }
    }

    fn closed(&mut self, client: ClientId) {
        if self.client == Some(client) {
            self.client = None;
            self.tell(Event::Down);
        }
    }
}
