//! What a client may change, checked before it travels inward.

use rustix::io::Errno;
use sessions::Mark;
use vos_api::ds::{DELETE, KEY_BYTES_MAX, PUBLISH, PUT, SUBSCRIBE, UNSUBSCRIBE, VALUE_BYTES_MAX};
use vos_api::session::GOODBYE;
use vos_rt::Request;

/// A change with its place in a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    pub session: u64,
    /// 0 only for [`Change::EndSession`].
    pub sequence: u64,
    pub change: Change,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
        condition: u64,
    },
    Delete {
        key: Vec<u8>,
        condition: u64,
    },
    /// From after `revision` on; 0 from now on.
    Subscribe {
        prefix: Vec<u8>,
        revision: u64,
    },
    Unsubscribe {
        subscription: u32,
    },
    Publish {
        topic: Vec<u8>,
        value: Vec<u8>,
    },
    /// Nothing of the session is kept.
    EndSession,
}

impl Order {
    pub fn mark(&self) -> Mark {
        Mark { session: self.session, sequence: self.sequence }
    }
}

impl Change {
    /// Reads a request that changes something. `EINVAL` when its lengths make no sense.
    pub fn of(request: &Request) -> Result<Change, Errno> {
        Change::parse(request.op(), request.args(), request.data())
    }

    /// `data` is the client's copy; nothing in it is trusted.
    pub fn parse(op: u16, args: [u64; 3], mut data: Vec<u8>) -> Result<Change, Errno> {
        if op == GOODBYE {
            return Ok(Change::EndSession);
        }
        if op == UNSUBSCRIBE {
            return Ok(Change::Unsubscribe { subscription: u32::try_from(args[0]).map_err(|_| Errno::INVAL)? });
        }
        let head = usize::try_from(args[0]).map_err(|_| Errno::INVAL)?;
        if head > data.len() || head > KEY_BYTES_MAX || data.len() - head > VALUE_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        let value = data.split_off(head);
        match op {
            SUBSCRIBE => Ok(Change::Subscribe { prefix: data, revision: args[1] }),
            _ if data.is_empty() => Err(Errno::INVAL),
            PUT => Ok(Change::Put { key: data, value, condition: args[1] }),
            DELETE => Ok(Change::Delete { key: data, condition: args[1] }),
            PUBLISH => Ok(Change::Publish { topic: data, value }),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Whether later changes of the same transaction could not see what this one does to subscriptions.
    pub fn touches_subscriptions(&self) -> bool {
        matches!(self, Change::Subscribe { .. } | Change::Unsubscribe { .. } | Change::EndSession)
    }
}
