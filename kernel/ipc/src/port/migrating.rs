//! Handing an endpoint over to another process: `docs/design/migration.md`.

use std::os::fd::OwnedFd;
use std::path::Path;

use abi::{Endpoint, Epoch, IpcError, NodeId};
use broker_api::{FromPort, HoldId, Pid};

use super::Port;
use super::attached::Use;
use crate::connection::Connection;
use crate::errors;
use crate::wait::{Deadline, Wait};
use crate::waiting::own_end;

/// How far this port is with being held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    No,
    /// No message is taken while the page shows this hold, and the broker knows that nothing is owed.
    Drained(u32),
}

impl Port {
    /// Connects as [`Port::connect`] does, as a backup of `endpoint`, and waits until the endpoint is handed over to
    /// this process ([`Port::migration_commit`]) or this process is promoted ([`Port::promote`]). Then it is its owner,
    /// with the next epoch. Errors: [`errors::BIND_LATER`].
    pub fn stand_by(path: &Path, endpoint: Endpoint, wait: Wait) -> Result<Port, IpcError> {
        let socket = sys::seqpacket::connect(path).map_err(|_| IpcError::NoBroker)?;
        Port::stand_by_over(socket, endpoint, wait)
    }

    /// [`Port::stand_by`] over a socket that the daemon handed over.
    pub fn stand_by_over(broker: OwnedFd, endpoint: Endpoint, wait: Wait) -> Result<Port, IpcError> {
        let mut connection = Connection::new(broker);
        let answer = errors::BIND_LATER
            .only(connection.call_waiting(&FromPort::StandBy { endpoint, speaks: versions::PORT.speaks }, wait))?;
        Port::bound(connection, answer)
    }

    /// Of the owner of `endpoint`, or of a manager: from now on its owner takes no new message, and callers wait.
    /// Returns when nothing that the owner took is unanswered, which the owner's library says when the owner waits for
    /// messages; an owner that holds itself must owe nothing (`Busy`). `TimedOut` when that took too long: the endpoint
    /// goes on then. Doing it again is safe; `Busy` while somebody else does it. It ends with
    /// [`Port::migration_commit`], with [`Port::migration_rollback`], or with the caller. Errors:
    /// [`errors::MIGRATION_START`].
    pub fn migration_start(&mut self, endpoint: Endpoint, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        let is_own = endpoint == self.endpoint;
        if is_own && self.owes_answers() {
            return Err(IpcError::Busy);
        }
        let result = self.ask_waiting(errors::MIGRATION_START, &FromPort::MigrationStart { endpoint }, wait).map(drop);
        match result {
            Ok(()) if is_own => self.hold = Hold::Drained(self.control.hold()),
            Err(IpcError::TimedOut | IpcError::NoBroker) => drop(self.migration_rollback(endpoint)),
            _ => {}
        }
        result
    }

    /// Hands `endpoint`, which was held by [`Port::migration_start`], over to the process `pid` (inside the container)
    /// of `node` that stands by for it. Returns when that is its owner. `BadArgument` when it is not held (a broker
    /// that was killed lets go), `NoSuchEndpoint` when nobody stands by there: it stays held. `DestinationDied` when
    /// the new owner died at that moment: the number is free. `TimedOut` and `NoLink`: whether it happened is unknown;
    /// asking again is safe. Errors: [`errors::MIGRATION_COMMIT`].
    pub fn migration_commit(&mut self, endpoint: Endpoint, node: NodeId, pid: i32, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        let (node, pid) = place(node, pid)?;
        let commit = FromPort::MigrationCommit { endpoint, node, pid };
        self.ask_waiting(errors::MIGRATION_COMMIT, &commit, wait).map(drop)
    }

    /// Lets `endpoint` go on where it is, as if nothing had happened. Doing it again is safe; `Busy` when it is on its
    /// way already. Errors: [`errors::MIGRATION_ROLLBACK`].
    pub fn migration_rollback(&mut self, endpoint: Endpoint) -> Result<(), IpcError> {
        self.check_bound()?;
        self.beside_watch(|port| {
            let rollback = FromPort::MigrationRollback { endpoint };
            errors::MIGRATION_ROLLBACK.only(port.connection.call(&rollback))?;
            if endpoint == port.endpoint {
                port.go_on_if_released();
            }
            Ok(())
        })
    }

    /// Of a manager: makes the process `pid` (inside the container) of `node`, which stands by for `endpoint`, its
    /// owner, without asking the one before, who is dead or cannot be reached; everybody who hears of it refuses that
    /// one from then on. `epoch` is the number of this decision, higher than any before: `Fenced` when it is not.
    /// `NoSuchEndpoint` when nobody stands by there. Errors: [`errors::PROMOTE`].
    pub fn promote(&mut self, endpoint: Endpoint, node: NodeId, pid: i32, epoch: Epoch) -> Result<(), IpcError> {
        self.check_bound()?;
        let (node, pid) = place(node, pid)?;
        self.ask(errors::PROMOTE, &FromPort::Promote { endpoint, node, pid, epoch }).map(drop)
    }

    /// Before the port sleeps: a held one that owes nothing says so once.
    pub(super) fn settle_hold(&mut self) {
        let hold = self.control.hold();
        if hold != 0 && self.hold != Hold::Drained(hold) && !self.owes_answers() {
            self.hold = Hold::Drained(hold);
            let _ = self.connection.send(&FromPort::Drained { hold: HoldId(hold) });
        }
    }

    /// A wait for one peer does not begin while the port is drained.
    pub(super) fn await_release(&mut self, deadline: Deadline) -> Result<(), IpcError> {
        while self.hold == Hold::Drained(self.control.hold()) {
            if let Some(error) = own_end(&self.control) {
                return Err(error);
            }
            if deadline.has_passed() {
                return Err(IpcError::TimedOut);
            }
            self.poll_descriptors(deadline.left())?;
        }
        self.go_on_if_released();
        Ok(())
    }

    /// The broker said that the hold changed.
    pub(super) fn go_on_if_released(&mut self) {
        if !self.control.is_held() {
            self.hold = Hold::No;
            self.attached.heat_all();
        }
    }

    /// Whether something that was taken waits for an answer.
    fn owes_answers(&mut self) -> bool {
        if !self.lanes.delegating.passed.is_empty() || self.lanes.delegating.in_flight > 0 {
            return true;
        }
        self.attached.any(|attached| match &attached.usage {
            Use::Messages(talk) => talk.owes_answer(&attached.half, attached.proxied),
            _ => false,
        })
    }
}

/// A process that may stand by.
fn place(node: NodeId, pid: i32) -> Result<(NodeId, Pid), IpcError> {
    let pid = Pid::new(pid).ok_or(IpcError::BadArgument)?;
    if node == NodeId(0) { Err(IpcError::BadArgument) } else { Ok((node, pid)) }
}
