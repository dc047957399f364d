//! What the broker tells of the container.

use abi::{Endpoint, IpcError};
use ipc_shm::Size;

use super::Port;
use crate::info::{ChannelInfo, Cursor, DcInfo, EndpointInfo, Page, ProxyInfo, Record, Topic, records, records_max};
use crate::protocol::{Op, Packet};

/// All of these need the privilege [`crate::Calls::INFO`] and are answered from what the broker of this node knows; asking again is safe.
impl Port {
    /// The container: how much there is, and its limits.
    pub fn dc_info(&mut self) -> Result<DcInfo, IpcError> {
        self.one(Topic::Dc, None)
    }

    /// One endpoint, of any node. `NoSuchEndpoint` when nobody is bound to it, `NoLink` when its node cannot be reached, `Busy` while it is
    /// being handed over.
    pub fn endpoint_info(&mut self, endpoint: Endpoint) -> Result<EndpointInfo, IpcError> {
        self.one(Topic::Endpoint, Some(endpoint))
    }

    /// Endpoints that this node knows, in order of their numbers: those that are bound here and those of other nodes that were heard of. At
    /// most `at_most`, and as many as one answer holds.
    pub fn endpoints_info(&mut self, from: Cursor, at_most: usize) -> Result<Page<EndpointInfo>, IpcError> {
        self.page(Topic::Endpoints, None, from, at_most)
    }

    /// Channels with a party on this node, in the order in which they were made: those of `endpoint`, or all.
    pub fn channels_info(
        &mut self,
        endpoint: Option<Endpoint>,
        from: Cursor,
        at_most: usize,
    ) -> Result<Page<ChannelInfo>, IpcError> {
        self.page(Topic::Channels, endpoint, from, at_most)
    }

    /// The pairs of proxies that lead to nodes on which the container has endpoints that are known here.
    pub fn proxies_info(&mut self, from: Cursor, at_most: usize) -> Result<Page<ProxyInfo>, IpcError> {
        self.page(Topic::Proxies, None, from, at_most)
    }

    fn one<T: Record>(&mut self, topic: Topic, endpoint: Option<Endpoint>) -> Result<T, IpcError> {
        let page = self.page(topic, endpoint, Cursor::START, 1)?;
        page.records.into_iter().next().ok_or(IpcError::NoBroker)
    }

    fn page<T: Record>(
        &mut self,
        topic: Topic,
        peer: Option<Endpoint>,
        from: Cursor,
        at_most: usize,
    ) -> Result<Page<T>, IpcError> {
        self.check_bound()?;
        if at_most == 0 {
            return Err(IpcError::BadArgument);
        }
        let size = Size { entries: at_most.min(records_max::<T>()) as u32, arena_bytes: 0 };
        let answer = self.ask(Packet { peer, value: topic.number(), far: from.0, size, ..Packet::new(Op::Inform) })?;
        let next = Some(Cursor(answer.packet.far)).filter(|next| *next != Cursor::START);
        // A list that does not go on would be asked for for ever.
        if answer.packet.op != Op::Information || next.is_some_and(|next| next.0 <= from.0) {
            return Err(IpcError::NoBroker);
        }
        let records = records(&answer.body).filter(|records| records.len() <= size.entries as usize);
        Ok(Page { records: records.ok_or(IpcError::NoBroker)?, next })
    }
}
