//! What programs and servers ask.

use abi::{DcId, Endpoint, Epoch, IpcError};
use ipc::protocol::{Op, Packet, Patience};
use ipc_core::table::{Awaited, OwnerId, Waiter};
use ipc_shm::Life;
use sys::eventfd::Trigger;
use sys::seqpacket::{Received, Sender};

use super::errands::Asker;
use super::opening::os;
use super::{Engine, Token};
use crate::Privileges;
use crate::connection::{Bound, Party};

/// What a stand-by gets with its endpoint.
#[derive(Clone, Debug)]
pub(super) struct Succession {
    pub epoch: Epoch,
    /// Those of the owner before; `None` for its own.
    pub privileges: Option<Privileges>,
}

/// A process that asks to be bound, or stands by until it is.
#[derive(Debug)]
pub(super) struct BindRequest {
    pub dc: DcId,
    pub packet: Packet,
    /// Its pid as the container knows it.
    pub inner_pid: i32,
    sender: Sender,
    received: Received,
}

impl BindRequest {
    fn new(dc: DcId, packet: Packet, sender: Sender, received: Received) -> BindRequest {
        let inner_pid = sys::pidfd::innermost_pid(sender.pid).unwrap_or(sender.pid);
        BindRequest { dc, packet, inner_pid, sender, received }
    }
}

impl Engine {
    pub(super) fn take_request(&mut self, owner: OwnerId, packet: Packet, body: &[u8], received: Received) {
        // The kernel's word on who sent it: a socket that a forked child inherited is not its own.
        let Some(sender) = received.sender else { return self.doom(owner) };
        let Some(connection) = self.connections.get_mut(&owner) else { return };
        if !connection.is_new_request(packet.request) {
            return;
        }
        let Some(dc) = connection.dc() else { return self.take_proxy_request(owner, packet, body) };
        let result = match (&connection.bound, packet.op) {
            (None, Op::Bind) => {
                let is_patient = packet.patience == Patience::UntilBound && packet.own.is_none();
                let request = BindRequest::new(dc, packet, sender, received);
                if is_patient { self.wait_for_manager(owner, request) } else { self.bind(owner, request, None) }
            }
            (None, Op::StandBy) => self.stand_by(owner, BindRequest::new(dc, packet, sender, received)),
            (None, Op::Cancel) => {
                self.cancel_bind(owner, packet.value);
                // An owner that has been let go may still wait for its commit.
                self.cancel(owner, dc, packet.value);
                Ok(())
            }
            (None, _) => Err(IpcError::NotBound),
            (Some(bound), _) if bound.pid != sender.pid => Err(IpcError::NotBound),
            (Some(bound), op) => {
                let own = bound.endpoint;
                self.take_bound_request(owner, dc, own, Packet { op, ..packet }, body)
            }
        };
        if let Err(error) = result {
            self.fail(owner, packet.request, error);
        }
    }

    fn take_bound_request(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        own: Endpoint,
        packet: Packet,
        body: &[u8],
    ) -> Result<(), IpcError> {
        let peer = || packet.peer.ok_or(IpcError::BadEndpoint);
        match packet.op {
            // The broker that did it died before it said so.
            Op::Bind | Op::StandBy => self.say_bound(owner, dc, own, packet.request),
            Op::Unbind => {
                self.unbind(owner, IpcError::NotBound);
                self.answer(owner, Packet { request: packet.request, ..Packet::new(Op::Done) });
                Ok(())
            }
            Op::Open => self.open(owner, dc, own, packet),
            Op::AwaitBound => match self.reach(dc, own, peer()?) {
                Ok(()) => {
                    self.answer(owner, Packet { request: packet.request, ..Packet::new(Op::Done) });
                    Ok(())
                }
                Err(IpcError::NoSuchEndpoint | IpcError::NoLink | IpcError::Moved) => {
                    self.add_waiter(owner, dc, peer()?, packet.request, Awaited::Bound)
                }
                Err(error) => Err(error),
            },
            Op::AwaitUnbound => {
                let endpoint = peer()?;
                if self.resolve(dc, endpoint).is_err_and(|error| error != IpcError::Moved) {
                    self.answer(owner, Packet { request: packet.request, ..Packet::new(Op::Done) });
                    return Ok(());
                }
                self.add_waiter(owner, dc, endpoint, packet.request, Awaited::Unbound)
            }
            Op::Cancel => {
                self.cancel(owner, dc, packet.value);
                Ok(())
            }
            Op::GetEndpoint => {
                let endpoint = self.endpoint_of(dc, packet.value as i32).ok_or(IpcError::NoSuchEndpoint)?;
                let found = Packet { request: packet.request, peer: Some(endpoint), ..Packet::new(Op::Found) };
                self.answer(owner, found);
                Ok(())
            }
            Op::SetName => self.set_name(owner, dc, own, packet.request, body),
            Op::Find => self.find_named(owner, dc, &packet, body),
            Op::Waits => self.wait_told(dc, own, &packet),
            Op::WaitOver => {
                self.wait_over(dc, own, packet.value);
                Ok(())
            }
            Op::StillWaiting => {
                self.wait_confirmed(dc, own, packet.value);
                Ok(())
            }
            Op::Close => {
                self.close_by_party(dc, own, &packet);
                Ok(())
            }
            Op::BindFor => self.bind_for(owner, dc, own, &packet),
            Op::WakeUp
            | Op::SetPrivileges
            | Op::GetPrivileges
            | Op::MigrationStart
            | Op::MigrationCommit
            | Op::MigrationRollback
            | Op::Promote => self.run_errand(owner, dc, own, packet, body),
            Op::Inform => self.inform(owner, dc, own, &packet),
            Op::Drained => {
                self.drained(dc, own, packet.value);
                Ok(())
            }
            _ => {
                self.doom(owner);
                Ok(())
            }
        }
    }

    /// With a succession: who stood by for an endpoint that has no owner on this node.
    pub(super) fn bind(
        &mut self,
        owner: OwnerId,
        request: BindRequest,
        succession: Option<Succession>,
    ) -> Result<(), IpcError> {
        let BindRequest { dc, packet, inner_pid, sender, received } = request;
        let pidfd = match received.sender_pidfd {
            Some(pidfd) => pidfd,
            None => sys::pidfd::open(sender.pid).map_err(|error| IpcError::Os(error.raw_os_error().unwrap_or(0)))?,
        };
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        let connection = self.connections.get_mut(&owner).ok_or(IpcError::NotBound)?;
        let mut kept = None;
        let is_sender = |pid: i32| if pid == sender.pid { Ok(()) } else { Err(IpcError::Denied) };
        let (endpoint, epoch, inner_pid, privileges, ended) = match (&connection.party, succession) {
            (Party::Program { pid, .. }, Some(Succession { epoch, privileges })) => {
                is_sender(*pid)?;
                let endpoint = packet.own.ok_or(IpcError::BadEndpoint)?;
                let ended = container.table.bind_server(endpoint, owner, epoch)?;
                let privileges = privileges.unwrap_or_else(|| container.options.program_privileges.clone());
                (endpoint, epoch, inner_pid, privileges, ended)
            }
            (Party::Server { identity, .. }, Some(Succession { epoch, privileges })) => {
                if packet.own != Some(identity.endpoint) || identity.uid.is_some_and(|uid| uid != sender.uid) {
                    return Err(IpcError::Denied);
                }
                let ended = container.table.bind_server(identity.endpoint, owner, epoch)?;
                let privileges = privileges.unwrap_or_else(|| identity.privileges.clone());
                (identity.endpoint, epoch, inner_pid, privileges, ended)
            }
            (Party::Program { pid, .. }, None) => {
                is_sender(*pid)?;
                kept = container.table.reservations().of_process(inner_pid);
                let (endpoint, epoch) = container.table.bind_program(packet.own, inner_pid, owner)?;
                (endpoint, epoch, inner_pid, container.options.program_privileges.clone(), Vec::new())
            }
            (Party::Server { identity, .. }, None) => {
                let is_other_number = packet.own.is_some_and(|wish| wish != identity.endpoint);
                if is_other_number || identity.uid.is_some_and(|uid| uid != sender.uid) {
                    return Err(IpcError::Denied);
                }
                let ended = container.table.bind_server(identity.endpoint, owner, identity.epoch)?;
                (identity.endpoint, identity.epoch, 0, identity.privileges.clone(), ended)
            }
            (Party::Proxy { .. }, _) => return Err(IpcError::Denied),
        };
        // An owner elsewhere with a lower epoch is replaced: its peers must see its page end.
        container.leaving.remove(&endpoint);
        container.handed.remove(&endpoint);
        container.in_transit.remove(&endpoint);
        if let Some(old) = container.pages.remove(&endpoint) {
            old.set_life(Life::Fenced);
        }
        let page = container.make_page(endpoint, epoch);
        let watched = page.and_then(|page| {
            self.poller.add(&pidfd, Token::Process(owner).to_u64(), Trigger::Level)?;
            Ok(page)
        });
        let page = match watched {
            Ok(page) => page,
            Err(error) => {
                container.table.unbind(endpoint);
                container.pages.remove(&endpoint);
                return Err(IpcError::Os(error.raw_os_error().unwrap_or(0)));
            }
        };
        connection.bound = Some(Bound { endpoint, pid: sender.pid, inner_pid, pidfd, privileges });
        for channel in ended {
            self.channel_ended(dc, channel, None, IpcError::Fenced);
        }
        self.begin_counting(dc, endpoint);
        let bound = Packet { request: packet.request, dc, own: Some(endpoint), epoch, ..Packet::new(Op::Bound) };
        if kept == Some(endpoint) {
            self.drop_kept_reservation(dc, endpoint);
        }
        // In this order: a binding whose connection does not know of it is taken back by a successor.
        self.keep_binding(dc, endpoint);
        self.keep_connection(owner);
        // First the directory: whoever hears of the binding from its owner must find it.
        self.directory.bound(dc, endpoint, inner_pid, epoch);
        self.send(owner, bound, vec![page]);
        self.appeared(dc, endpoint);
        Ok(())
    }

    /// Who waits for a number, or stands by, does so no longer.
    fn cancel_bind(&mut self, owner: OwnerId, request: u32) {
        let mut was_waiting = false;
        for waiting in [&mut self.waiting_binds, &mut self.standing_by] {
            if waiting.get(&owner).is_some_and(|bind| bind.packet.request == request) {
                was_waiting = waiting.remove(&owner).is_some();
            }
        }
        if was_waiting {
            self.fail(owner, request, IpcError::TimedOut);
        }
    }

    fn say_bound(&mut self, owner: OwnerId, dc: DcId, own: Endpoint, request: u32) -> Result<(), IpcError> {
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let page = container.pages.get(&own).ok_or(IpcError::NotBound)?.reader().map_err(os)?;
        let epoch = container.table.binding(own).ok_or(IpcError::NotBound)?.epoch;
        let bound = Packet { request, dc, own: Some(own), epoch, ..Packet::new(Op::Bound) };
        self.send(owner, bound, vec![page]);
        Ok(())
    }

    fn open(&mut self, owner: OwnerId, dc: DcId, own: Endpoint, packet: Packet) -> Result<(), IpcError> {
        let to = packet.peer.ok_or(IpcError::BadEndpoint)?;
        if to == own {
            return Err(IpcError::BadEndpoint);
        }
        self.may_open(dc, own, to, &packet)?;
        match packet.ring() {
            Some(ring) if packet.lane.is_for_copies() && ring != ipc::COPY_SPEC => return Err(IpcError::BadArgument),
            Some(ring) if packet.lane.is_for_delegation() && ring != ipc::DELEGATE_SPEC => {
                return Err(IpcError::BadArgument);
            }
            Some(ring) => drop(ring.check()?),
            None => {}
        }
        match self.reach(dc, own, to) {
            Ok(()) => self.open_channel(dc, own, to, packet),
            Err(error) => {
                let may_come = matches!(error, IpcError::NoSuchEndpoint | IpcError::NoLink);
                if error != IpcError::Moved && !(may_come && packet.patience == Patience::UntilBound) {
                    return Err(error);
                }
                self.add_waiter(owner, dc, to, packet.request, Awaited::Bound)?;
                self.waiting_opens.insert((owner, packet.request), packet);
                Ok(())
            }
        }
    }

    fn add_waiter(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        endpoint: Endpoint,
        request: u32,
        awaited: Awaited,
    ) -> Result<(), IpcError> {
        if request == 0 {
            return Err(IpcError::BadArgument);
        }
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        container.table.waiters_mut().add(endpoint, Waiter { owner, request, awaited })
    }

    /// A call that was answered already is not answered again.
    fn cancel(&mut self, owner: OwnerId, dc: DcId, request: u32) {
        let waiter = self.containers.get_mut(&dc).and_then(|it| it.table.waiters_mut().cancel(owner, request));
        self.waiting_opens.remove(&(owner, request));
        let is_named = self.cancel_naming(owner, dc, request);
        let is_open = waiter.is_some() || is_named || self.errands.cancel(owner, request);
        if is_open || self.cancel_migration(dc, Asker::Port { owner, request }) {
            self.fail(owner, request, IpcError::TimedOut);
        }
    }

    /// Pids are the container's, so at most one node has it.
    fn endpoint_of(&mut self, dc: DcId, inner_pid: i32) -> Option<Endpoint> {
        if inner_pid <= 0 {
            return None;
        }
        let here = self.local_endpoint_of(dc, inner_pid);
        here.or_else(|| self.directory.find(dc, inner_pid))
    }

    fn local_endpoint_of(&self, dc: DcId, inner_pid: i32) -> Option<Endpoint> {
        let of_dc = self.connections.values().filter(|connection| connection.dc() == Some(dc));
        of_dc
            .filter_map(|connection| connection.bound.as_ref())
            .find(|bound| bound.inner_pid == inner_pid)
            .map(|bound| bound.endpoint)
    }
}
