//! The daemon's handle of a running broker.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use abi::{DcId, Endpoint, EndpointName, Epoch, IpcError, NodeId, PairId};
use ipc::ChannelId;
use ipc::info::ChannelInfo;

use crate::command::{Command, ReplySender};
use crate::event_loop::EventLoop;
use crate::limits::{COMMANDS_MAX, DCS_MAX, LOOKS_PER_PAGE};
use crate::{BrokerConfig, DcOptions, ServerIdentity, Shelf, Snapshot};

/// Why the broker could not do what the daemon asked.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    #[error("the broker has ended")]
    Ended,
    #[error("container {0} is already known to the broker")]
    DcExists(DcId),
    #[error("container {0} is one more than the {DCS_MAX} that a broker has room for")]
    TooManyDcs(DcId),
    #[error("container {0} is not known to the broker")]
    NoSuchDc(DcId),
    #[error("the broker could not {action}")]
    Os {
        action: &'static str,
        #[source]
        cause: std::io::Error,
    },
}

/// A running broker. Ends when dropped: channels that exist go on, nobody watches deaths until a successor takes over
/// from the shelf. Shared by reference; its calls wait for the broker's thread, which never blocks.
#[derive(Debug)]
pub struct Broker {
    commands: SyncSender<Command>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    pub fn start(config: BrokerConfig) -> Result<Broker, BrokerError> {
        let (commands, inbox) = sync_channel(COMMANDS_MAX);
        let bell = Arc::new(sys::eventfd::create().map_err(|cause| os("make an event descriptor", cause))?);
        let event_loop = EventLoop::new(config, inbox, bell.clone()).map_err(|cause| os("set up its poller", cause))?;
        let thread = std::thread::Builder::new()
            .name("broker".into())
            .spawn(move || event_loop.run())
            .map_err(|cause| os("start its thread", cause))?;
        Ok(Broker { commands, bell, thread: Some(thread) })
    }

    /// A container that an earlier broker left on the shelf is taken back with these options, when it listens at the
    /// same place.
    pub fn add_dc(&self, dc: DcId, options: DcOptions) -> Result<(), BrokerError> {
        self.ask(|answer| Command::AddDc { dc, options, answer })
    }

    /// Ends every binding of the container; its channels close.
    pub fn remove_dc(&self, dc: DcId) -> Result<(), BrokerError> {
        self.ask(|answer| Command::RemoveDc { dc, answer })
    }

    /// A connected end for a server, gate or agent of the container; hand it to the child as `broker_fd`.
    pub fn server_socket(&self, dc: DcId, identity: ServerIdentity) -> Result<OwnedFd, BrokerError> {
        self.ask(|answer| Command::ServerSocket { dc, identity, answer })
    }

    /// A connected end for the proxy of a node that has one.
    pub fn proxy_socket(&self) -> Result<OwnedFd, BrokerError> {
        self.proxy_socket_of(PairId::FIRST)
    }

    /// A connected end for the proxy of a pair. The newest one is that: it is handed every channel of the pair.
    pub fn proxy_socket_of(&self, pair: PairId) -> Result<OwnedFd, BrokerError> {
        self.ask(|answer| Command::ProxySocket { pair, answer })
    }

    /// The daemon learned that another node bound an endpoint. Whoever waits for it goes on.
    pub fn remote_bound(&self, dc: DcId, endpoint: Endpoint, node: NodeId, epoch: Epoch) -> Result<(), BrokerError> {
        self.ask(|answer| Command::RemoteBound { dc, endpoint, node, epoch, answer })
    }

    /// The daemon learned that another node's endpoint ended. Ignored when a newer epoch is known.
    pub fn remote_unbound(&self, dc: DcId, endpoint: Endpoint, node: NodeId, epoch: Epoch) -> Result<(), BrokerError> {
        self.ask(|answer| Command::RemoteUnbound { dc, endpoint, node, epoch, answer })
    }

    /// The daemon decided on a claim that was [`crate::Claim::UnderWay`], or knows now what an endpoint that was taken
    /// over is called. Whoever seeks the name goes on.
    pub fn name_claimed(
        &self,
        dc: DcId,
        endpoint: Endpoint,
        name: EndpointName,
        result: Result<(), IpcError>,
    ) -> Result<(), BrokerError> {
        self.ask(|answer| Command::NameClaimed { dc, endpoint, name, result, answer })
    }

    /// Keeps everything on another shelf from now on: the first one failed.
    pub fn change_shelf(&self, shelf: Shelf) -> Result<(), BrokerError> {
        self.ask(|answer| Command::ChangeShelf { shelf, answer })
    }

    pub fn snapshot(&self) -> Result<Snapshot, BrokerError> {
        self.ask(|answer| Command::Snapshot { answer })
    }

    /// The container's channels with a party on this node, with what they count. Asked for in parts, between which the
    /// broker's thread does other things.
    pub fn channels(&self, dc: DcId) -> Result<Vec<ChannelInfo>, BrokerError> {
        let mut all: Vec<ChannelInfo> = Vec::new();
        loop {
            let from = ChannelId(all.last().map_or(0, |last| last.channel.0.saturating_add(1)));
            let part = self.ask(|answer| Command::Channels { dc, from, answer })?;
            let is_last = part.len() < LOOKS_PER_PAGE;
            all.extend(part);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Ends the broker's thread and waits for it.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn ask<T>(&self, command: impl FnOnce(ReplySender<T>) -> Command) -> Result<T, BrokerError> {
        let (answer, answered) = sync_channel(1);
        self.commands.send(command(answer)).map_err(|_| BrokerError::Ended)?;
        sys::eventfd::signal(&*self.bell);
        answered.recv().map_err(|_| BrokerError::Ended)?
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // A broker that has ended already needs no telling.
        let _ = self.commands.send(Command::Shutdown);
        sys::eventfd::signal(&*self.bell);
        let _ = thread.join();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn os(action: &'static str, cause: std::io::Error) -> BrokerError {
    BrokerError::Os { action, cause }
}
