//! What the daemon asks.

use std::os::fd::{AsFd, OwnedFd};

use abi::{DcId, IpcError, PairId};
use ipc_core::table::{Event, Home as TableHome, OwnerId};
use sys::eventfd::Trigger;

use super::{EventLoop, Token, Turn};
use crate::closer::Waste;
use crate::command::Command;
use crate::connection::{Connection, Party};
use crate::container::{Container, Origin};
use crate::handle::os;
use crate::limits::{BACKLOG, DCS_MAX};
use crate::{BrokerError, ChannelInfo, DcInfo, DcOptions, EndpointInfo, Home, ServerIdentity, Snapshot};

impl EventLoop {
    pub(super) fn take_commands(&mut self) -> Turn {
        sys::eventfd::drain(&*self.bell);
        while let Ok(command) = self.commands.try_recv() {
            // An answer nobody waits for any more is dropped.
            match command {
                Command::AddDc { dc, options, answer } => drop(answer.try_send(self.add_dc(dc, options))),
                Command::RemoveDc { dc, answer } => drop(answer.try_send(self.remove_dc(dc))),
                Command::ServerSocket { dc, identity, answer } => {
                    drop(answer.try_send(self.server_socket(dc, identity)));
                }
                Command::ProxySocket { pair, answer } => drop(answer.try_send(self.proxy_socket(pair))),
                Command::RemoteBound { dc, endpoint, node, epoch, answer } => {
                    self.remote_bound(dc, endpoint, node, epoch);
                    drop(answer.try_send(self.known(dc)));
                }
                Command::RemoteUnbound { dc, endpoint, node, epoch, answer } => {
                    self.remote_unbound(dc, endpoint, node, epoch);
                    drop(answer.try_send(self.known(dc)));
                }
                Command::NameClaimed { dc, endpoint, name, result, answer } => {
                    self.name_claimed(dc, endpoint, name, result);
                    drop(answer.try_send(self.known(dc)));
                }
                Command::Snapshot { answer } => drop(answer.try_send(Ok(self.snapshot()))),
                Command::Channels { dc, from, answer } => {
                    drop(answer.try_send(self.known(dc).map(|()| self.channels_described(dc, from))));
                }
                Command::ChangeShelf { shelf, answer } => drop(answer.try_send(self.change_shelf(shelf))),
                Command::Shutdown => {
                    if self.shelf.is_none() {
                        self.containers.values().for_each(Container::remove_socket);
                    }
                    return Turn::End;
                }
            }
            self.drop_doomed();
        }
        Turn::GoOn
    }

    fn known(&self, dc: DcId) -> Result<(), BrokerError> {
        if self.containers.contains_key(&dc) { Ok(()) } else { Err(BrokerError::NoSuchDc(dc)) }
    }

    fn add_dc(&mut self, dc: DcId, options: DcOptions) -> Result<(), BrokerError> {
        match self.containers.get_mut(&dc) {
            Some(container) if container.origin == Origin::Shelf && container.options.listen == options.listen => {
                (container.origin, container.options) = (Origin::Daemon, options);
                self.keep_dc(dc);
                return Ok(());
            }
            Some(_) => return Err(BrokerError::DcExists(dc)),
            None => {}
        }
        if self.containers.len() >= DCS_MAX {
            return Err(BrokerError::TooManyDcs(dc));
        }
        let listener = match &options.listen {
            None => None,
            Some(path) => {
                let listener = sys::seqpacket::listen(path, BACKLOG)
                    .map_err(|cause| os("listen at the container's path", cause))?;
                // Accepted sockets inherit it; asked for after the accept, it would miss what was sent before.
                sys::seqpacket::ask_for_sender(&listener).map_err(|cause| os("ask who its callers are", cause))?;
                sys::seqpacket::refuse_descriptors(&listener).map_err(|cause| os("refuse descriptors", cause))?;
                // Every program of the container may ask; who it is, the kernel says.
                let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
                std::fs::set_permissions(path, everybody).map_err(|cause| os("open its socket to programs", cause))?;
                self.poller
                    .add(listener.as_fd(), Token::Listener(dc).to_u64(), Trigger::Level)
                    .map_err(|cause| os("watch the container's socket", cause))?;
                Some(listener)
            }
        };
        self.containers.insert(dc, Container::new(options, listener));
        self.keep_dc(dc);
        Ok(())
    }

    fn remove_dc(&mut self, dc: DcId) -> Result<(), BrokerError> {
        self.known(dc)?;
        let owners: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.dc() == Some(dc))
            .map(|(owner, _)| *owner)
            .collect();
        for owner in owners {
            self.drop_connection(owner);
        }
        let container = self.containers.get(&dc);
        let left: Vec<_> = container.map(|it| it.table.living().collect()).unwrap_or_default();
        for endpoint in left {
            self.happens(dc, endpoint, Event::Forget { reason: IpcError::DcNotRunning });
        }
        self.drop_doomed();
        if let Some(mut container) = self.containers.remove(&dc) {
            container.remove_socket();
            if let Some(listener) = container.listener.take() {
                // The shelf may hold it for a moment longer.
                let _ = self.poller.remove(&listener);
                if !sys::seqpacket::can_refuse_descriptors() {
                    // With who was not accepted yet, and what they sent.
                    container.closer.take(Waste::Socket(listener));
                }
            }
        }
        self.drop_kept_dc(dc);
        Ok(())
    }

    fn server_socket(&mut self, dc: DcId, identity: ServerIdentity) -> Result<OwnedFd, BrokerError> {
        self.known(dc)?;
        self.end_predecessors(dc, &identity);
        let (ours, theirs) = sys::seqpacket::pair().map_err(|cause| os("make a socket for a server", cause))?;
        self.add_connection(ours, Party::Server { dc, identity }, None)
            .map_err(|cause| os("watch a server's socket", cause))?;
        Ok(theirs)
    }

    /// A server that was killed is nobody any more, also while a thread of it is in the kernel: of a file gate one may
    /// wait there for a lock whose owner waits for what its successor has to say.
    fn end_predecessors(&mut self, dc: DcId, identity: &ServerIdentity) {
        let is_over = |connection: &Connection| match (&connection.party, &connection.bound) {
            (Party::Server { dc: of, identity: earlier }, Some(bound)) => {
                (*of, earlier.endpoint) == (dc, identity.endpoint)
                    && earlier.epoch < identity.epoch
                    && sys::pidfd::is_ending(bound.pid)
            }
            _ => false,
        };
        let over: Vec<OwnerId> =
            self.connections.iter().filter(|(_, one)| is_over(one)).map(|(owner, _)| *owner).collect();
        over.into_iter().for_each(|owner| self.process_died(owner));
    }

    fn proxy_socket(&mut self, pair: PairId) -> Result<OwnedFd, BrokerError> {
        let (ours, theirs) = sys::seqpacket::pair().map_err(|cause| os("make a socket for the proxy", cause))?;
        let owner = self
            .add_connection(ours, Party::Proxy { pair }, None)
            .map_err(|cause| os("watch the proxy's socket", cause))?;
        if let Some(old) = self.links.set_proxy(pair, owner) {
            self.drop_connection(old);
        }
        self.watch_unmanned(pair);
        self.hand_over_to_proxy(pair);
        Ok(theirs)
    }

    fn snapshot(&self) -> Snapshot {
        let mut dcs: Vec<DcInfo> = self.containers.iter().map(|(dc, container)| self.dc_info(*dc, container)).collect();
        dcs.sort_by_key(|info| info.dc);
        Snapshot {
            dcs,
            channels_made: self.channels_made,
            deaths: self.deaths,
            proxy_connected: self.links.has_any_proxy(),
        }
    }

    fn dc_info(&self, dc: DcId, container: &Container) -> DcInfo {
        let home = |home: &TableHome| match home {
            TableHome::Remote { node } => Home::Remote { node: *node },
            TableHome::Local { owner } => {
                let bound = self.connections.get(owner).and_then(|connection| connection.bound.as_ref());
                Home::Local { pid: bound.map_or(0, |bound| bound.pid) }
            }
        };
        let table = &container.table;
        DcInfo {
            dc,
            endpoints: table
                .bindings()
                .map(|(endpoint, binding)| EndpointInfo { endpoint, epoch: binding.epoch, home: home(&binding.home) })
                .collect(),
            channels: table
                .channels()
                .iter()
                .map(|channel| ChannelInfo {
                    channel: channel.id,
                    initiator: channel.left,
                    acceptor: channel.right,
                    lane: channel.lane,
                    ring: super::opening::ring_of(channel),
                    proxied: channel.proxied,
                    pair: channel.pair,
                })
                .collect(),
            waiters: container.waiters(),
        }
    }
}
