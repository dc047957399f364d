//! What the daemon asks of the broker's thread.

use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;

use abi::{DcId, Endpoint, EndpointName, Epoch, IpcError, NodeId, PairId};
use ipc::ChannelId;
use ipc::info::ChannelInfo;

use crate::{BrokerError, DcOptions, ServerIdentity, Shelf, Snapshot};

/// Where an answer goes; a daemon that gave up waiting is ignored.
pub(crate) type Answer<T> = SyncSender<Result<T, BrokerError>>;

pub(crate) enum Command {
    AddDc { dc: DcId, options: DcOptions, answer: Answer<()> },
    RemoveDc { dc: DcId, answer: Answer<()> },
    ServerSocket { dc: DcId, identity: ServerIdentity, answer: Answer<OwnedFd> },
    ProxySocket { pair: PairId, answer: Answer<OwnedFd> },
    RemoteBound { dc: DcId, endpoint: Endpoint, node: NodeId, epoch: Epoch, answer: Answer<()> },
    RemoteUnbound { dc: DcId, endpoint: Endpoint, node: NodeId, epoch: Epoch, answer: Answer<()> },
    NameClaimed { dc: DcId, endpoint: Endpoint, name: EndpointName, result: Result<(), IpcError>, answer: Answer<()> },
    ChangeShelf { shelf: Shelf, answer: Answer<()> },
    Snapshot { answer: Answer<Snapshot> },
    Channels { dc: DcId, from: ChannelId, answer: Answer<Vec<ChannelInfo>> },
    Shutdown,
}
