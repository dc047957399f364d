//! The daemon's handle of a running broker.

use std::os::fd::OwnedFd;

use abi::{DcId, Endpoint, Epoch, NodeId};

use crate::{BrokerConfig, DcOptions, ServerIdentity, Snapshot};

/// Why the broker could not do what the daemon asked.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    #[error("the broker has ended")]
    Ended,
    #[error("container {0} is already known to the broker")]
    DcExists(DcId),
    #[error("container {0} is not known to the broker")]
    NoSuchDc(DcId),
    #[error("the broker could not {action}")]
    Os { action: &'static str, #[source] cause: std::io::Error },
}

/// A running broker. Ends when dropped: channels that exist go on, nobody watches deaths any more.
pub struct Broker {
    _private: (),
}

impl Broker {
    pub fn start(config: BrokerConfig) -> Result<Broker, BrokerError> {
        let _ = config;
        unimplemented!()
    }

    pub fn add_dc(&self, dc: DcId, options: DcOptions) -> Result<(), BrokerError> {
        let _ = (dc, options);
        unimplemented!()
    }

    /// Ends every binding of the container; its channels close.
    pub fn remove_dc(&self, dc: DcId) -> Result<(), BrokerError> {
        let _ = dc;
        unimplemented!()
    }

    /// A connected end for a server, gate or agent of the container; hand it to the child as `broker_fd`.
    pub fn server_socket(&self, dc: DcId, identity: ServerIdentity) -> Result<OwnedFd, BrokerError> {
        let _ = (dc, identity);
        unimplemented!()
    }

    /// A connected end for the proxy. The newest one is the proxy: it is handed every proxied channel.
    pub fn proxy_socket(&self) -> Result<OwnedFd, BrokerError> {
        unimplemented!()
    }

    /// The daemon learned that another node bound an endpoint. Whoever waits for it goes on.
    pub fn remote_bound(&self, dc: DcId, endpoint: Endpoint, node: NodeId, epoch: Epoch) -> Result<(), BrokerError> {
        let _ = (dc, endpoint, node, epoch);
        unimplemented!()
    }

    /// The daemon learned that another node's endpoint ended. Ignored when a newer epoch is known.
    pub fn remote_unbound(&self, dc: DcId, endpoint: Endpoint, node: NodeId, epoch: Epoch) -> Result<(), BrokerError> {
        let _ = (dc, endpoint, node, epoch);
        unimplemented!()
    }

    pub fn snapshot(&self) -> Result<Snapshot, BrokerError> {
        unimplemented!()
    }

    /// Ends the broker's thread and waits for it.
    pub fn shutdown(self) {
        unimplemented!()
    }
}
