//! What the broker tells of the container.

use abi::{Endpoint, IpcError};
use broker_api::info::{
    ChannelInfo, Cursor, DcInfo, EndpointInfo, Page, ProxyInfo, Question, Record, records, records_max,
};
use broker_api::{FromPort, Inquiry, ToPort};

use super::Port;
use crate::errors::{self, ErrorSet};

/// All of these need the privilege [`crate::Calls::INFO`] and are answered from what the broker of this node knows;
/// asking again is safe.
impl Port {
    /// The container: how much there is, and its limits. Errors: [`errors::DC_INFO`].
    pub fn dc_info(&mut self) -> Result<DcInfo, IpcError> {
        self.one(errors::DC_INFO, Question::Dc)
    }

    /// One endpoint, of any node. `NoSuchEndpoint` when nobody is bound to it, `NoLink` when its node cannot be
    /// reached, `Busy` while it is being handed over. Errors: [`errors::ENDPOINT_INFO`].
    pub fn endpoint_info(&mut self, endpoint: Endpoint) -> Result<EndpointInfo, IpcError> {
        self.one(errors::ENDPOINT_INFO, Question::Endpoint(endpoint))
    }

    /// Endpoints that this node knows, in order of their numbers: those that are bound here and those of other nodes
    /// that were heard of. At most `at_most`, and as many as one answer holds. Errors, as of all lists:
    /// [`errors::LIST_INFO`].
    pub fn endpoints_info(&mut self, from: Cursor, at_most: usize) -> Result<Page<EndpointInfo>, IpcError> {
        self.page(errors::LIST_INFO, Question::Endpoints { from }, at_most)
    }

    /// Channels with a party on this node, in the order in which they were made: those of `endpoint`, or all.
    pub fn channels_info(
        &mut self,
        endpoint: Option<Endpoint>,
        from: Cursor,
        at_most: usize,
    ) -> Result<Page<ChannelInfo>, IpcError> {
        self.page(errors::LIST_INFO, Question::Channels { of: endpoint, from }, at_most)
    }

    /// The pairs of proxies that lead to nodes on which the container has endpoints that are known here.
    pub fn proxies_info(&mut self, from: Cursor, at_most: usize) -> Result<Page<ProxyInfo>, IpcError> {
        self.page(errors::LIST_INFO, Question::Proxies { from }, at_most)
    }

    fn one<T: Record>(&mut self, of: ErrorSet, question: Question) -> Result<T, IpcError> {
        let page = self.page(of, question, 1)?;
        page.records.into_iter().next().ok_or(IpcError::NoBroker)
    }

    fn page<T: Record>(&mut self, of: ErrorSet, question: Question, at_most: usize) -> Result<Page<T>, IpcError> {
        self.check_bound()?;
        if at_most == 0 {
            return Err(IpcError::BadArgument);
        }
        let at_most = at_most.min(records_max::<T>());
        let answer = self.ask(of, &FromPort::Inform(Inquiry { question, at_most: at_most as u32 }))?;
        match answer.message {
            // A list that does not go on would be asked for for ever.
            ToPort::Information { next, records: body } if next.is_none_or(|next| next.0 > question.from().0) => {
                let records = records(&body).filter(|records| records.len() <= at_most);
                Ok(Page { records: records.ok_or(IpcError::NoBroker)?, next })
            }
            _ => Err(IpcError::NoBroker),
        }
    }
}
