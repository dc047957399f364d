//! The search for deadlocks: see `docs/design/deadlock.md`.
//!
//! Every wait that is told begins a chase. What a chase decides is in `ipc_core::waits`; here is how it reaches
//! processes and other brokers. A chase that is lost on its way, or to a broker that was killed, begins again when the
//! link comes up and when whoever waits hears of the new broker.

use abi::{DcId, Endpoint, IpcError};
use broker_api::{BetweenBrokers, ToPort, WaitId};
use ipc_core::table::Home;
use ipc_core::waits::{Probe, Step, Waiting};

use super::EventLoop;

impl EventLoop {
    pub(super) fn wait_told(&mut self, dc: DcId, own: Endpoint, wait: WaitId, peer: Endpoint) -> Result<(), IpcError> {
        let who = Waiting { endpoint: own, serial: wait.0 };
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        container.waits.begin(who, peer);
        self.chase(dc, who, peer);
        Ok(())
    }

    pub(super) fn wait_over(&mut self, dc: DcId, own: Endpoint, wait: WaitId) {
        let Some(container) = self.containers.get_mut(&dc) else { return };
        let who = Waiting { endpoint: own, serial: wait.0 };
        container.waits.end(who);
        if let Some(kept) = container.bindings.get_mut(&own) {
            kept.asked = None;
        }
    }

    pub(super) fn wait_confirmed(&mut self, dc: DcId, own: Endpoint, wait: WaitId) {
        let who = Waiting { endpoint: own, serial: wait.0 };
        let kept = self.containers.get_mut(&dc).and_then(|container| container.bindings.get_mut(&own));
        let asked = kept.and_then(|kept| kept.asked.take());
        if let Some((asked, mut probe)) = asked
            && asked == who
        {
            let step = probe.confirmed(who, |endpoint| self.is_here(dc, endpoint));
            self.take_step(dc, probe, step);
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
                self.tell_home_of(dc, at, &BetweenBrokers::Probe { dc, at, probe: probe.to_bytes() });
            }
            Step::Ask(who) => {
                let container = self.containers.get_mut(&dc);
                if let Some(kept) = container.and_then(|container| container.bindings.get_mut(&who.endpoint)) {
                    kept.asked = Some((who, probe));
                }
                self.tell_waiter(dc, who.endpoint, ToPort::AskWait { wait: WaitId(who.serial) });
            }
            Step::Refuse(who) if self.is_here(dc, who.endpoint) => {
                tracing::info!(%dc, endpoint = %who.endpoint, "its call is refused: it closes a circle of calls that wait for each other");
                self.refuse_wait(dc, who.endpoint, WaitId(who.serial));
            }
            Step::Refuse(who) => {
                let (endpoint, wait) = (who.endpoint, WaitId(who.serial));
                self.tell_home_of(dc, endpoint, &BetweenBrokers::RefuseWait { dc, endpoint, wait });
            }
        }
    }

    fn tell_home_of(&mut self, dc: DcId, endpoint: Endpoint, message: &BetweenBrokers) {
        if let Some(Home::Remote { node }) = self.home(dc, endpoint) {
            self.tell_broker(node, message);
        }
    }

    fn tell_waiter(&mut self, dc: DcId, endpoint: Endpoint, message: ToPort) {
        if let Some(owner) = self.local_owner(dc, endpoint) {
            self.send_and_announce(owner, message);
        }
    }

    /// Of an endpoint of another node nothing is told: such a parcel came too late.
    pub(super) fn refuse_wait(&mut self, dc: DcId, endpoint: Endpoint, wait: WaitId) {
        self.tell_waiter(dc, endpoint, ToPort::RefuseWait { wait });
    }

    fn is_here(&self, dc: DcId, endpoint: Endpoint) -> bool {
        self.local_owner(dc, endpoint).is_some()
    }

    /// What another broker chases.
    pub(super) fn hear_probe(&mut self, dc: DcId, at: Endpoint, probe: &[u8]) {
        // One that is not here is of no node that another broker would have to be told of: such a parcel came too late.
        if !self.is_here(dc, at) {
            return;
        }
        match Probe::from_bytes(probe) {
            Some(probe) => self.go_on(dc, probe, at),
            None => tracing::warn!(%dc, "another broker's probe makes no sense"),
        }
    }
}
