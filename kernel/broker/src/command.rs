//! What the daemon asks of the broker's thread.

use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;

use abi::{DcId, Endpoint, EndpointName, Epoch, IpcError, NodeId, PairId};
use ipc::ChannelId;
use ipc::info::ChannelInfo;

use crate::{BrokerError, DcOptions, ServerIdentity, Shelf, Snapshot};

/// Where an answer goes; a daemon that gave up waiting is ignored.
pub(crate) type ReplySender<T> = SyncSender<Result<T, BrokerError>>;

pub(crate) enum Command {
    AddDc {
        dc: DcId,
        options: DcOptions,
        answer: ReplySender<()>,
    },
    RemoveDc {
        dc: DcId,
        answer: ReplySender<()>,
    },
    ServerSocket {
        dc: DcId,
        identity: ServerIdentity,
        answer: ReplySender<OwnedFd>,
    },
    ProxySocket {
        pair: PairId,
        answer: ReplySender<OwnedFd>,
    },
    RemoteBound {
        dc: DcId,
        endpoint: Endpoint,
        node: NodeId,
        epoch: Epoch,
        answer: ReplySender<()>,
    },
    RemoteUnbound {
        dc: DcId,
        endpoint: Endpoint,
        node: NodeId,
        epoch: Epoch,
        answer: ReplySender<()>,
    },
    NameClaimed {
        dc: DcId,
        endpoint: Endpoint,
        name: EndpointName,
        result: Result<(), IpcError>,
        answer: ReplySender<()>,
    },
    ChangeShelf {
        shelf: Shelf,
        answer: ReplySender<()>,
    },
    Snapshot {
        answer: ReplySender<Snapshot>,
    },
    Channels {
        dc: DcId,
        from: ChannelId,
        answer: ReplySender<Vec<ChannelInfo>>,
    },
    Shutdown,
}
