//! The search for deadlocks: see `docs/design/deadlock.md`.
//!
//! Every wait that is told begins a chase. What a chase decides is in `ipc_core::waits`; here is how it reaches processes and other
//! brokers. A chase that is lost on its way, or to a broker that was killed, begins again when the link comes up and when whoever
//! waits hears of the new broker.

use abi::{DcId, Endpoint, IpcError};
use ipc::protocol::{Op, Packet};
use ipc_core::table::Home;
use ipc_core::waits::{Probe, Step, Waiting};

use super::Engine;

impl Engine {
    pub(super) fn wait_told(&mut self, dc: DcId, own: Endpoint, packet: &Packet) -> Result<(), IpcError> {
        let peer = packet.peer.ok_or(IpcError::BadEndpoint)?;
        let who = Waiting { endpoint: own, serial: packet.value };
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        container.waits.begin(who, peer);
        self.chase(dc, who, peer);
        Ok(())
    }

    pub(super) fn wait_over(&mut self, dc: DcId, own: Endpoint, serial: u32) {
        let Some(container) = self.containers.get_mut(&dc) else { return };
        let who = Waiting { endpoint: own, serial };
        container.waits.end(who);
        container.asked.remove(&own);
    }

    pub(super) fn wait_confirmed(&mut self, dc: DcId, own: Endpoint, serial: u32) {
        let who = Waiting { endpoint: own, serial };
        let asked = self.containers.get_mut(&dc).and_then(|container| container.asked.remove(&own));
        if let Some((asked, mut probe)) = asked
            && asked == who
        {
            let step = probe.confirmed(who, |endpoint| self.is_here(dc, endpoint));
            self.take_step(dc, probe, step);
        }
    }

    /// Nobody is bound there any more.
    pub(super) fn forget_waits(&mut self, dc: DcId, endpoint: Endpoint) {
        if let Some(container) = self.containers.get_mut(&dc) {
            container.waits.forget(endpoint);
            container.asked.remove(&endpoint);
        }
    }

    /// A link came up: what was chased over it may have been lost.
    pub(super) fn chase_again(&mut self) {
        let of_dc = |(dc, container): (&DcId, &crate::container::Container)| {
            let dc = *dc;
            container.waits.iter().map(move |(who, peer)| (dc, who, peer)).collect::<Vec<_>>()
        };
        let all: Vec<_> = self.containers.iter().flat_map(of_dc).collect();
        for (dc, who, peer) in all {
            self.chase(dc, who, peer);
        }
    }

    fn chase(&mut self, dc: DcId, first: Waiting, peer: Endpoint) {
        self.go_on(dc, Probe::from(first), peer);
    }

    fn go_on(&mut self, dc: DcId, mut probe: Probe, at: Endpoint) {
        let Some(container) = self.containers.get(&dc) else { return };
        let step = probe.go_on(at, &container.waits, |endpoint| self.is_here(dc, endpoint));
        self.take_step(dc, probe, step);
    }

    fn take_step(&mut self, dc: DcId, probe: Probe, step: Step) {
        match step {
            Step::Ended => {}
            Step::Elsewhere(at) => {
                let packet = Packet { dc, peer: Some(at), ..Packet::new(Op::Probe) };
                self.tell_home_of(dc, at, &packet.with_body(&probe.to_bytes()));
            }
            Step::Ask(who) => {
                if let Some(container) = self.containers.get_mut(&dc) {
                    container.asked.insert(who.endpoint, (who, probe));
                }
                self.tell_waiter(dc, who, Op::AskWait);
            }
            Step::Refuse(who) if self.is_here(dc, who.endpoint) => {
                tracing::info!(%dc, endpoint = %who.endpoint, "its call is refused: it closes a circle of calls that wait for each other");
                self.tell_waiter(dc, who, Op::RefuseWait);
            }
            Step::Refuse(who) => {
                let packet = Packet { dc, peer: Some(who.endpoint), value: who.serial, ..Packet::new(Op::Refuse) };
                self.tell_home_of(dc, who.endpoint, &packet.to_bytes());
            }
        }
    }

    fn tell_home_of(&mut self, dc: DcId, endpoint: Endpoint, message: &[u8]) {
        if let Some(Home::Remote { node }) = self.home(dc, endpoint) {
            self.tell_broker(node, message);
        }
    }

    fn tell_waiter(&mut self, dc: DcId, who: Waiting, op: Op) {
        if let Some(owner) = self.local_owner(dc, who.endpoint) {
            self.send_and_announce(owner, Packet { value: who.serial, ..Packet::new(op) });
        }
    }

    fn is_here(&self, dc: DcId, endpoint: Endpoint) -> bool {
        self.local_owner(dc, endpoint).is_some()
    }

    /// What another broker chases.
    pub(super) fn hear_chase(&mut self, packet: &Packet, body: &[u8]) {
        let Some(endpoint) = packet.peer else { return };
        // It is of no node that another broker would have to be told of: such a parcel came too late.
        if !self.is_here(packet.dc, endpoint) {
            return;
        }
        match packet.op {
            Op::Refuse => {
                let who = Waiting { endpoint, serial: packet.value };
                self.tell_waiter(packet.dc, who, Op::RefuseWait);
            }
            _ => match Probe::from_bytes(body) {
                Some(probe) => self.go_on(packet.dc, probe, endpoint),
                None => tracing::warn!(dc = %packet.dc, "another broker's probe makes no sense"),
            },
        }
    }
}
