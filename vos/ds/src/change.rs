//! What a client may change, checked before it travels inward.

use rustix::io::Errno;
use sessions::Mark;
use vos_api::ds::{Delete, KEY_BYTES_MAX, Publish, Put, Request as Ask, Subscribe, Unsubscribe, VALUE_BYTES_MAX};
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
        Change::parse(request.op(), request.flags(), request.args(), &request.data())
    }

    /// `data` is the client's copy; nothing in it is trusted.
    pub fn parse(op: u16, flags: u16, args: [u64; 3], data: &[u8]) -> Result<Change, Errno> {
        let errno = |why| Errno::from_raw_os_error(vos_api::Errno::from(why).number() as i32);
        Ok(match Ask::decode(op, flags, args, data).map_err(errno)? {
            Ask::Put(Put { key, condition, value }) => {
                Change::Put { key: checked(key.0, 1)?, value: checked_value(value)?, condition }
            }
            Ask::Delete(Delete { key, condition }) => Change::Delete { key: checked(key.0, 1)?, condition },
            Ask::Publish(Publish { topic, value }) => {
                Change::Publish { topic: checked(topic.0, 1)?, value: checked_value(value)? }
            }
            Ask::Subscribe(Subscribe { prefix, revision }) => {
                Change::Subscribe { prefix: checked(prefix.0, 0)?, revision }
            }
            Ask::Unsubscribe(Unsubscribe { subscription }) => Change::Unsubscribe { subscription },
            Ask::Get(_) | Ask::List(_) | Ask::Next(_) => return Err(Errno::OPNOTSUPP),
        })
    }

    /// Whether later changes of the same transaction could not see what this one does to subscriptions.
    pub fn touches_subscriptions(&self) -> bool {
        matches!(self, Change::Subscribe { .. } | Change::Unsubscribe { .. } | Change::EndSession)
    }
}

fn checked(key: &[u8], least: usize) -> Result<Vec<u8>, Errno> {
    if (least..=KEY_BYTES_MAX).contains(&key.len()) { Ok(key.to_vec()) } else { Err(Errno::INVAL) }
}

fn checked_value(value: &[u8]) -> Result<Vec<u8>, Errno> {
    if value.len() <= VALUE_BYTES_MAX { Ok(value.to_vec()) } else { Err(Errno::INVAL) }
}
