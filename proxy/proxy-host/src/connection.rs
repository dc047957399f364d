//! One connection: a stream, its encryption, and what was read of it.

use std::time::Duration;

use abi::NodeId;
use proxy_link::{InBuffer, Peer};
use sys::eventfd::{Poller, WriteInterest};

use crate::carriers::Carrier;
use crate::error::CutReason;
use crate::local::Local;
use crate::secure::{Flow, Inward, Session};
use crate::transport::Stream;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// We dial this node; the stream does not stand yet.
    Dialling(NodeId),
    /// Accepted; HELLO has not come.
    Stranger,
    /// It carries the link with this node.
    Joined(NodeId),
}

pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) carrier: Carrier,
    pub(crate) session: Session,
    pub(crate) input: InBuffer,
    pub(crate) stage: Stage,
    pub(crate) since: Duration,
    interest: WriteInterest,
}

impl Connection {
    pub(crate) fn new(
        stream: Box<dyn Stream>,
        carrier: Carrier,
        session: Session,
        stage: Stage,
        since: Duration,
    ) -> Connection {
        Connection { stream, carrier, session, input: InBuffer::new(), stage, since, interest: WriteInterest::None }
    }

    /// The node whose link stands or falls with this connection.
    pub(crate) fn node(&self) -> Option<NodeId> {
        match self.stage {
            Stage::Dialling(node) | Stage::Joined(node) => Some(node),
            Stage::Stranger => None,
        }
    }

    /// Reads what is there, as far as it is taken: into the buffer, and to the `link` what need not lie there first.
    /// Adds what came to `bytes`.
    pub(crate) fn read(
        &mut self,
        link: Option<(&mut Peer<Local>, Duration)>,
        bytes: &mut usize,
    ) -> Result<Flow, CutReason> {
        let mut inward = Inward::new(&mut self.input, link);
        let flow = self.session.read(&mut self.stream, &mut inward);
        *bytes += inward.bytes();
        flow
    }

    /// How much of `out` was taken.
    pub(crate) fn write(&mut self, out: &[u8]) -> Result<usize, CutReason> {
        self.session.write(&mut self.stream, out)
    }

    /// Asks to be told when the stream takes bytes again, or not any more. One without a descriptor is asked in every
    /// round.
    pub(crate) fn set_interest(
        &mut self,
        poller: &Poller,
        token: u64,
        interest: WriteInterest,
    ) -> Result<(), CutReason> {
        if interest != self.interest
            && let Some(descriptor) = self.stream.descriptor()
        {
            poller.set_writable_interest(descriptor, token, interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}
