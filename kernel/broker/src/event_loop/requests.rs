//! What programs and servers ask.

use abi::{DcId, Endpoint, Epoch, IpcError};
use broker_api::{Errand, FromPort, IfAbsent, Open, ToPort};
use ipc_core::table::{Awaited, Event, LaneWish, OwnerId, Waiter};
use ipc_shm::ControlWriter;
use sys::eventfd::Trigger;
use sys::seqpacket::{Received, Sender};

use super::errands::Asker;
use super::opening::wish_of;
use super::proxying::Resolved;
use super::{EventLoop, Token};
use crate::Privileges;
use crate::connection::{Bound, Packed, Party};

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
    pub request: u32,
    /// The number it wishes, or stands by for.
    pub endpoint: Option<Endpoint>,
    /// Its pid as the container knows it.
    pub inner_pid: i32,
    sender: Sender,
    received: Received,
}

impl BindRequest {
    fn new(dc: DcId, request: u32, endpoint: Option<Endpoint>, sender: Sender, received: Received) -> BindRequest {
        let inner_pid = sys::pidfd::innermost_pid(sender.pid).unwrap_or(sender.pid);
        BindRequest { dc, request, endpoint, inner_pid, sender, received }
    }
}

/// The library of a program and this broker are of releases that do not talk: `EPROTONOSUPPORT`.
const OTHER_VERSION: IpcError = IpcError::Os(rustix::io::Errno::PROTONOSUPPORT.raw_os_error());

impl EventLoop {
    pub(super) fn take_request(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        request: u32,
        message: FromPort,
        received: Received,
    ) {
        // The kernel's word on who sent it: a socket that a forked child inherited is not its own.
        let Some(sender) = received.sender else { return self.doom(owner) };
        let Some(connection) = self.connections.get(&owner) else { return };
        let bind = |endpoint| BindRequest::new(dc, request, endpoint, sender, received);
        let result = match (&connection.bound, message) {
            (None, FromPort::Bind { speaks, .. } | FromPort::StandBy { speaks, .. })
                if versions::PORT.agree(speaks).is_err() =>
            {
                tracing::debug!(pid = sender.pid, %speaks, ours = %versions::PORT.speaks, "bound by no common version");
                Err(OTHER_VERSION)
            }
            (None, FromPort::Bind { endpoint: None, if_absent: IfAbsent::Wait, .. }) => {
                self.wait_for_manager(owner, bind(None))
            }
            (None, FromPort::Bind { endpoint, .. }) => self.bind(owner, bind(endpoint), None),
            (None, FromPort::StandBy { endpoint, .. }) => self.stand_by(owner, bind(Some(endpoint))),
            (None, FromPort::Cancel { cancelled }) => {
                self.cancel_bind(owner, cancelled);
                // An owner that has been let go may still wait for its commit.
                self.cancel(owner, dc, cancelled);
                Ok(())
            }
            (None, _) => Err(IpcError::NotBound),
            (Some(bound), _) if bound.pid != sender.pid => Err(IpcError::NotBound),
            (Some(bound), message) => self.take_bound_request(owner, dc, bound.endpoint, request, message),
        };
        if let Err(error) = result {
            self.fail(owner, request, error);
        }
    }

    fn take_bound_request(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        own: Endpoint,
        request: u32,
        message: FromPort,
    ) -> Result<(), IpcError> {
        match message {
            // The broker that did it died before it said so.
            FromPort::Bind { .. } | FromPort::StandBy { .. } => self.say_bound(owner, dc, own, request)?,
            FromPort::Unbind => {
                self.unbind(owner, IpcError::NotBound);
                self.answer(owner, request, &ToPort::Done);
            }
            FromPort::Open(open) => self.open(owner, dc, own, request, open)?,
            FromPort::AwaitBound { peer } => match self.reach(dc, own, peer) {
                Ok(Resolved::Bound) => self.answer(owner, request, &ToPort::Done),
                Ok(Resolved::InTransit) | Err(IpcError::NoSuchEndpoint | IpcError::NoLink) => {
                    self.add_waiter(owner, dc, peer, request, Awaited::Bound)?;
                }
                Err(error) => return Err(error),
            },
            FromPort::AwaitUnbound { peer } => {
                if self.resolve(dc, peer).is_err() {
                    self.answer(owner, request, &ToPort::Done);
                } else {
                    self.add_waiter(owner, dc, peer, request, Awaited::Unbound)?;
                }
            }
            FromPort::Cancel { cancelled } => self.cancel(owner, dc, cancelled),
            FromPort::GetEndpoint { pid } => {
                let endpoint = self.endpoint_of(dc, pid.number()).ok_or(IpcError::NoSuchEndpoint)?;
                self.answer(owner, request, &ToPort::Found { endpoint, node: None });
            }
            FromPort::SetName { name } => self.set_name(owner, dc, own, request, name)?,
            FromPort::Find { name, if_absent } => self.find_named(owner, dc, request, (name, if_absent))?,
            FromPort::Waits { wait, peer } => self.wait_told(dc, own, wait, peer)?,
            FromPort::WaitOver { wait } => self.wait_over(dc, own, wait),
            FromPort::StillWaiting { wait } => self.wait_confirmed(dc, own, wait),
            FromPort::Close { channel, reason } => self.close_by_party(dc, own, channel, reason),
            FromPort::BindFor { pid, endpoint } => self.bind_for(owner, dc, own, request, (pid, endpoint))?,
            FromPort::Inform(inquiry) => self.inform(owner, dc, own, request, inquiry)?,
            FromPort::Drained { hold } => self.happens(dc, own, Event::Drained { hold }),
            FromPort::WakeUp { endpoint } => self.ask_errand((owner, request), dc, own, endpoint, Errand::WakeUp)?,
            FromPort::SetPrivileges { endpoint, privileges } => {
                self.ask_errand((owner, request), dc, own, endpoint, Errand::SetPrivileges { privileges })?;
            }
            FromPort::GetPrivileges { endpoint } => {
                self.ask_errand((owner, request), dc, own, endpoint, Errand::GetPrivileges)?;
            }
            FromPort::MigrationStart { endpoint } => {
                let holder = owner.0 as u32;
                self.ask_errand((owner, request), dc, own, endpoint, Errand::MigrationStart { holder })?;
            }
            FromPort::MigrationCommit { endpoint, node, pid } => {
                self.ask_errand((owner, request), dc, own, endpoint, Errand::MigrationCommit { node, pid })?;
            }
            FromPort::MigrationRollback { endpoint } => {
                self.ask_errand((owner, request), dc, own, endpoint, Errand::MigrationRollback)?;
            }
            FromPort::Promote { endpoint, node, pid, epoch } => {
                self.ask_errand((owner, request), dc, own, endpoint, Errand::Promote { node, pid, epoch })?;
            }
        }
        Ok(())
    }

    /// Binds the process that sent `request`: chooses its number and epoch, makes its page, tells the directory,
    /// answers. `succession`: the process stood by and takes over from an owner that has let go; `None`: an ordinary
    /// bind.
    ///
    /// `place_program` and `place_server` have asked all that could refuse `Event::Begins`, so nothing is half done
    /// when the step is made.
    pub(super) fn bind(
        &mut self,
        owner: OwnerId,
        request: BindRequest,
        succession: Option<Succession>,
    ) -> Result<(), IpcError> {
        let BindRequest { dc, request, endpoint: wish, inner_pid, sender, received } = request;
        let pidfd = match received.sender_pidfd {
            Some(pidfd) => pidfd,
            None => sys::pidfd::open(sender.pid)?,
        };
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        let connection = self.connections.get_mut(&owner).ok_or(IpcError::NotBound)?;
        let (table, options) = (&mut container.table, &container.options);
        let (endpoint, epoch, inner_pid, privileges) = match (&connection.party, succession) {
            (Party::Program { pid, .. }, _) if *pid != sender.pid => return Err(IpcError::Denied),
            (Party::Program { .. }, Some(Succession { epoch, privileges })) => {
                let endpoint = wish.ok_or(IpcError::BadEndpoint)?;
                table.place_server(endpoint, epoch)?;
                (endpoint, epoch, inner_pid, privileges.unwrap_or_else(|| options.program_privileges.clone()))
            }
            (Party::Program { .. }, None) => {
                let (endpoint, epoch) = table.place_program(wish, inner_pid)?;
                (endpoint, epoch, inner_pid, options.program_privileges.clone())
            }
            (Party::Server { identity, .. }, succession) => {
                // A server stands by for its own number only.
                let is_other_number = wish.map_or(succession.is_some(), |wish| wish != identity.endpoint);
                if is_other_number || identity.uid.is_some_and(|uid| uid != sender.uid) {
                    return Err(IpcError::Denied);
                }
                let (epoch, inner_pid, privileges) = match succession {
                    Some(Succession { epoch, privileges }) => (epoch, inner_pid, privileges),
                    None => (identity.epoch, 0, None),
                };
                table.place_server(identity.endpoint, epoch)?;
                (identity.endpoint, epoch, inner_pid, privileges.unwrap_or_else(|| identity.privileges.clone()))
            }
            (Party::Proxy { .. }, _) => return Err(IpcError::Denied),
        };
        let is_reserved = table.reservations().of_process(inner_pid) == Some(endpoint);
        let page = ControlWriter::create(epoch)?;
        let reader = page.reader()?;
        self.poller.add(&pidfd, Token::Process(owner).to_u64(), Trigger::Level)?;
        connection.bound = Some(Bound { endpoint, pid: sender.pid, inner_pid, pidfd, privileges });
        if is_reserved {
            table.reservations_mut().remove(endpoint);
            self.drop_kept_reservation(dc, endpoint);
        }
        self.step_with(dc, endpoint, Event::Begins { owner, epoch }, Some(page))?;
        // Binding first, then connection. A broker killed in between leaves a binding that no connection claims: its
        // successor ends it (`adopting.rs`).
        self.keep_connection(owner);
        // First the directory: whoever hears of the binding from its owner must find it.
        self.directory.bound(dc, endpoint, inner_pid, epoch);
        let bound = ToPort::Bound { dc, endpoint, epoch };
        self.send_packed(owner, Packed::new(request, &bound, vec![reader]));
        self.appeared(dc, endpoint);
        Ok(())
    }

    /// Cancels a bind that waits for its number, or a stand-by.
    fn cancel_bind(&mut self, owner: OwnerId, request: u32) {
        let mut was_waiting = false;
        for waiting in [&mut self.waiting_binds, &mut self.standing_by] {
            if waiting.get(&owner).is_some_and(|bind| bind.request == request) {
                was_waiting = waiting.remove(&owner).is_some();
            }
        }
        if was_waiting {
            self.fail(owner, request, IpcError::TimedOut);
        }
    }

    fn say_bound(&mut self, owner: OwnerId, dc: DcId, own: Endpoint, request: u32) -> Result<(), IpcError> {
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let page = container.page(own).ok_or(IpcError::NotBound)?.reader()?;
        let epoch = container.table.binding(own).ok_or(IpcError::NotBound)?.epoch;
        let bound = ToPort::Bound { dc, endpoint: own, epoch };
        self.send_packed(owner, Packed::new(request, &bound, vec![page]));
        Ok(())
    }

    fn open(&mut self, owner: OwnerId, dc: DcId, own: Endpoint, request: u32, open: Open) -> Result<(), IpcError> {
        let to = open.peer;
        if to == own {
            return Err(IpcError::BadEndpoint);
        }
        self.may_open(dc, own, to, (open.lane, open.ring))?;
        match (wish_of(&open), open.ring) {
            (LaneWish::Copies, Some(ring)) if ring != ipc::COPY_SPEC => return Err(IpcError::BadArgument),
            (LaneWish::Delegation, Some(ring)) if ring != ipc::DELEGATE_SPEC => return Err(IpcError::BadArgument),
            (_, Some(ring)) => drop(ring.check()?),
            (_, None) => {}
        }
        match self.reach(dc, own, to) {
            Ok(Resolved::Bound) => return self.open_channel(dc, own, request, &open),
            Ok(Resolved::InTransit) => {}
            Err(IpcError::NoSuchEndpoint | IpcError::NoLink) if open.if_absent == IfAbsent::Wait => {}
            Err(error) => return Err(error),
        }
        self.add_waiter(owner, dc, to, request, Awaited::Bound)?;
        self.waiting_opens.insert((owner, request), open);
        Ok(())
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
