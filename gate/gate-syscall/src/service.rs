//! Orders of other nodes' call gates: from their rings to init, and back.

use std::collections::HashMap;
use std::sync::Arc;

use abi::Endpoint;
use parking_lot::Mutex;
use proc_core::errand::FromInit;
use proc_core::order::{LifeNumber, Order, Outcome, Sequence};
use proc_core::range::{Seat, Seats};
use rustix::io::Errno;
use vos_api::calls::{CarriedOut, Request as Asked};
use vos_rt::{ClientId, Hello, HelloReply, Request, Service};

use crate::init::InitSocket;
use crate::jobs::{Starter, load_here};
use crate::table::Answerer;

/// Which order it is.
type OrderName = (Seat, LifeNumber, Sequence);

/// Orders that init has, and who waits for their outcomes. One order may be asked twice, over two rings.
///
/// At most as many as the entries of all rings that other call gates have here.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<HashMap<OrderName, Vec<Request>>>>);

pub struct Orders {
    init: Arc<InitSocket>,
    life: LifeNumber,
    peers: Seats,
    clients: HashMap<ClientId, Seat>,
    waiting: Waiting,
    further: Further,
}

/// What else other nodes may ask for.
#[derive(Default)]
pub struct Further {
    pub starter: Option<Starter>,
    pub answerer: Option<Answerer>,
}

impl Orders {
    /// Takes what init says on a thread of its own, which ends with init, and then `gone` is called.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn new(
        init: InitSocket,
        life: LifeNumber,
        peers: Seats,
        further: Further,
        gone: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Orders> {
        let (init, waiting) = (Arc::new(init), Waiting::default());
        let (heard, asked) = (Arc::clone(&init), waiting.clone());
        std::thread::Builder::new().name("init".to_owned()).spawn(move || {
            while let Ok(said) = heard.receive(None) {
                if let Some(FromInit::Done(outcome)) = said {
                    asked.answer(&outcome);
                }
            }
            gone();
        })?;
        Ok(Orders { init, life, peers, clients: HashMap::new(), waiting, further })
    }
}

impl Waiting {
    fn answer(&self, outcome: &Outcome) {
        let name = (outcome.origin, outcome.origin_life, outcome.sequence);
        let asked = self.0.lock().remove(&name).unwrap_or_default();
        let bytes = outcome.encode();
        let mut words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_le_bytes);
        let mut word = || words.next().unwrap_or(0);
        let reply = CarriedOut { first: word(), second: word(), third: word() };
        let data = outcome.data.as_slice();
        for request in asked {
            match request.put(0, data) {
                Ok(()) => request.reply(reply, data.len() as u32),
                Err(errno) => request.fail(errno),
            }
        }
    }
}

fn seat_of(endpoint: Endpoint) -> Option<Seat> {
    Seat::new(endpoint.number().checked_sub(Endpoint::CALLS.number())? as usize)
}

impl Service for Orders {
    fn opened(&mut self, client: ClientId, from: Endpoint, _: &Hello) -> HelloReply {
        match seat_of(from).filter(|seat| self.peers.contains(*seat)) {
            Some(seat) => {
                self.clients.insert(client, seat);
                HelloReply::Welcome { highest: 0, in_flight: 0, service: self.life.0 }
            }
            None => HelloReply::Refused(Errno::PERM),
        }
    }

    fn submit(&mut self, request: Request) {
        let data = request.data();
        let order = match Asked::decode(request.op(), request.flags(), request.args(), &data) {
            Ok(Asked::CarryOut(asked)) => Order::decode(asked.order),
            Ok(Asked::Start(asked)) => {
                return match &self.further.starter {
                    Some(starter) => {
                        let from = self.clients.get(&request.client()).copied();
                        starter.start(request, from, asked.order);
                    }
                    None => request.fail(Errno::OPNOTSUPP),
                };
            }
            Ok(Asked::Show(_)) => {
                return match &self.further.answerer {
                    Some(answerer) => answerer.answer(request),
                    None => request.fail(Errno::OPNOTSUPP),
                };
            }
            Ok(Asked::Load(_)) => return request.reply(load_here(), 0),
            Err(why) => return request.refuse(why),
        };
        let Ok(order) = order else { return request.fail(Errno::PROTO) };
        // A node speaks for its own programs alone.
        if self.clients.get(&request.client()) != Some(&order.origin) {
            return request.fail(Errno::PERM);
        }
        let name = (order.origin, order.origin_life, order.sequence);
        let mut waiting = self.waiting.0.lock();
        waiting.entry(name).or_default().push(request);
        if self.init.carry(&order).is_err() {
            // Others may wait for it already, and are asked to come again as well.
            for request in waiting.remove(&name).unwrap_or_default() {
                request.fail(Errno::AGAIN);
            }
        }
    }

    fn closed(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }
}
