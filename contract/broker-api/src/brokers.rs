//! Brokers of two nodes. They believe each other, as their nodes do: rights were checked where somebody asked.

use abi::{DcId, Endpoint, Epoch, IpcError, NodeId, Pid, Privileges};

use crate::Descriptor;
use crate::packet::{Fault, Message, Slots};
use crate::values::{Field, WaitId, taken};

/// What a broker says to the broker of another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BetweenBrokers {
    /// What concerns an endpoint of the receiver's node, or one that it knows. Answered by an [`Answer`].
    Errand {
        dc: DcId,
        endpoint: Endpoint,
        errand: Errand,
    },
    /// Nothing is held any more that was held for processes of the sender's node before this.
    DisownHolds,
    /// An endpoint was handed over: to which node and with which epoch, or that nobody has it now.
    MovedTo {
        dc: DcId,
        endpoint: Endpoint,
        to: Option<(NodeId, Epoch)>,
    },
    /// The search for a deadlock goes on at an endpoint of the receiver's node. `probe` is an `ipc_core::waits::Probe`.
    Probe {
        dc: DcId,
        at: Endpoint,
        probe: Vec<u8>,
    },
    /// A wait of an endpoint of the receiver's node is to be refused.
    RefuseWait {
        dc: DcId,
        endpoint: Endpoint,
        wait: WaitId,
    },
    Answer(Answer),
}

messages! {
    /// What concerns one endpoint and is done by the broker of a node, perhaps by another one than was asked.
    Errand {
        9 WakeUp;
        10 SetPrivileges { privileges: Privileges = body };
        /// Answered by `Privileges`.
        11 GetPrivileges;
        /// `holder`: a number for the process that holds, of the node that asks.
        16 MigrationStart { holder: u32 = value };
        17 MigrationCommit { node: NodeId = node, pid: Pid = value };
        18 MigrationRollback;
        26 Promote { node: NodeId = node, pid: Pid = value, epoch: Epoch = epoch };
        /// Whether this process of the receiver's node stands by for the endpoint.
        28 Prepare { node: NodeId = node, pid: Pid = value };
        /// The endpoint, which was the sender's, leaves. Answered when nobody here has a channel with it.
        29 Leave { epoch: Epoch = epoch };
        /// This process of the receiver's node, which stands by for the endpoint, owns it.
        30 TakeOver { node: NodeId = node, pid: Pid = value, epoch: Epoch = epoch, privileges: Privileges = body };
    }
}

messages! {
    /// What came of an errand.
    Answer {
        102 Done;
        104 Failed { error: IpcError = value };
        105 Privileges { endpoint: Endpoint = peer, privileges: Privileges = body };
    }
}

/// Operations that are no errand for one endpoint.
pub(crate) const DISOWN_HOLDS: u16 = 18;
pub(crate) const PROBE: u16 = 24;
pub(crate) const REFUSE_WAIT: u16 = 25;
pub(crate) const MOVED_TO: u16 = 31;

impl Message for BetweenBrokers {
    fn put(&self, slots: &mut Slots) -> u16 {
        let mut about = |dc: &DcId, endpoint: &Endpoint| {
            dc.put(&mut slots.dc);
            endpoint.put(&mut slots.peer);
        };
        match self {
            BetweenBrokers::Errand { dc, endpoint, errand } => {
                about(dc, endpoint);
                errand.put(slots)
            }
            // The same number as of the errand, which always names an endpoint.
            BetweenBrokers::DisownHolds => DISOWN_HOLDS,
            BetweenBrokers::MovedTo { dc, endpoint, to } => {
                about(dc, endpoint);
                (slots.node, slots.epoch) = to.map_or((0, 0), |(node, epoch)| (node.0, epoch.0));
                MOVED_TO
            }
            BetweenBrokers::Probe { dc, at, probe } => {
                about(dc, at);
                probe.put(&mut slots.body);
                PROBE
            }
            BetweenBrokers::RefuseWait { dc, endpoint, wait } => {
                about(dc, endpoint);
                wait.put(&mut slots.value);
                REFUSE_WAIT
            }
            BetweenBrokers::Answer(answer) => answer.put(slots),
        }
    }

    fn take(operation: u16, slots: &mut Slots) -> Result<BetweenBrokers, Fault> {
        match Answer::take(operation, slots) {
            Err(Fault::Operation) => {}
            result => return result.map(BetweenBrokers::Answer),
        }
        if operation == DISOWN_HOLDS && slots.peer.is_none() {
            return Ok(BetweenBrokers::DisownHolds);
        }
        let (dc, endpoint) = (taken(&mut slots.dc, "dc")?, taken(&mut slots.peer, "endpoint")?);
        Ok(match operation {
            MOVED_TO => {
                let (node, epoch): (Option<NodeId>, Epoch) =
                    (taken(&mut slots.node, "node")?, taken(&mut slots.epoch, "epoch")?);
                BetweenBrokers::MovedTo {
                    dc,
                    endpoint,
                    to: node.filter(|_| epoch != Epoch(0)).map(|node| (node, epoch)),
                }
            }
            PROBE => BetweenBrokers::Probe { dc, at: endpoint, probe: taken(&mut slots.body, "probe")? },
            REFUSE_WAIT => BetweenBrokers::RefuseWait { dc, endpoint, wait: taken(&mut slots.value, "wait")? },
            _ => BetweenBrokers::Errand { dc, endpoint, errand: Errand::take(operation, slots)? },
        })
    }

    fn descriptors(&self) -> &'static [Descriptor] {
        &[]
    }
}
