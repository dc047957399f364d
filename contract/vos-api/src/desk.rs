//! What the coordination server and the daemon of its node say to each other about the cluster engine.
//!
//! One packet (`SOCK_SEQPACKET`) is one message. The daemon keeps a desk for each such server: it confines every key to
//! the server's container, and puts what is leased under the lease of the node. A daemon that takes over a desk says
//! [`FromDesk::Hello`]: what was not answered is asked again, so everything asked may happen twice. Then it tells all
//! keys there are, [`FromDesk::Listed`], and from there on every change; changes of one key may be told as the last.
//!
//! Keys are relative: `l/stock/0.7f`, without the container.

use versions::Versions;

/// Bytes of a packet: three values and what is around them.
pub const PACKET_BYTES_MAX: usize = 64 << 10;
/// Bytes of a value at the desk: what a group is, is the largest.
pub const DESK_VALUE_BYTES_MAX: usize = 16 << 10;
/// Bytes of a relative key.
pub const DESK_KEY_BYTES_MAX: usize = 192;
/// Comparisons, and edits, of one transaction.
pub const EDITS_MAX: usize = 3;
/// Questions that a server has at the desk: they wait in the socket while there is no daemon.
pub const QUESTIONS_MAX: usize = 16;

/// Where the record of a replicated disk lies, of the disk in this position.
pub fn disk_key(index: u32) -> String {
    format!("{DISK_KEYS}{index}")
}

/// Of a disk whose record lies there; `None`: it is no such key.
pub fn disk_of_key(key: &str) -> Option<u32> {
    key.strip_prefix(DISK_KEYS)?.parse().ok()
}

const DISK_KEYS: &str = "disk.";

/// What must hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Given {
    Absent(String),
    Present(String),
    Modified(String, u64),
    Created(String, u64),
}

/// How long a key stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stay {
    /// Until it is deleted, or the container is.
    Kept,
    /// At most as long as the node is there.
    Leased,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    Put { key: String, value: Vec<u8>, stay: Stay },
    Delete { key: String },
}

/// A key as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    pub key: String,
    pub value: Vec<u8>,
    pub created: u64,
    pub modified: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeskQuestion {
    Read { key: String },
    Transact { givens: Vec<Given>, edits: Vec<Edit> },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToDesk {
    pub id: u64,
    pub question: DeskQuestion,
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unanswered {
    /// The engine does not answer, and nothing happened.
    Away,
    /// It may have happened.
    Unknown,
    /// The container has its keys, or the engine is full.
    Full,
    /// The desk does not take this.
    Refused,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromDesk {
    /// What the daemon speaks: [`versions::DESK`]. A server that shares no version with it ends, and is replaced.
    Hello(Versions),
    Put(Known),
    Gone {
        key: String,
        revision: u64,
    },
    Listed {
        revision: u64,
    },
    Done {
        id: u64,
        revision: u64,
    },
    /// What was compared, as it is.
    Conflict {
        id: u64,
        current: Vec<Option<Known>>,
    },
    Found {
        id: u64,
        known: Option<Known>,
    },
    Failed {
        id: u64,
        why: Unanswered,
    },
}

impl Given {
    pub fn key(&self) -> &str {
        match self {
            Given::Absent(key) | Given::Present(key) | Given::Modified(key, _) | Given::Created(key, _) => key,
        }
    }
}

impl Edit {
    pub fn key(&self) -> &str {
        match self {
            Edit::Put { key, .. } | Edit::Delete { key } => key,
        }
    }
}

impl ToDesk {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out(Vec::new());
        out.u64(self.id);
        match &self.question {
            DeskQuestion::Read { key } => {
                out.u8(1);
                out.text(key);
            }
            DeskQuestion::Transact { givens, edits } => {
                out.u8(2);
                out.u8(givens.len() as u8);
                givens.iter().for_each(|given| out.given(given));
                out.u8(edits.len() as u8);
                edits.iter().for_each(|edit| out.edit(edit));
            }
        }
        out.0
    }

    /// `None`: no such message, or one beyond its bounds.
    pub fn decode(packet: &[u8]) -> Option<ToDesk> {
        let mut from = In(packet);
        let id = from.u64()?;
        let question = match from.u8()? {
            1 => DeskQuestion::Read { key: from.text()? },
            2 => {
                let givens = from.several(In::given)?;
                let edits = from.several(In::edit)?;
                DeskQuestion::Transact { givens, edits }
            }
            _ => return None,
        };
        from.end(ToDesk { id, question })
    }
}

impl FromDesk {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out(Vec::new());
        match self {
            FromDesk::Hello(speaks) => {
                out.u8(1);
                speaks.to_u16().to_le_bytes().into_iter().for_each(|byte| out.u8(byte));
            }
            FromDesk::Put(known) => {
                out.u8(2);
                out.known(known);
            }
            FromDesk::Gone { key, revision } => {
                out.u8(3);
                out.text(key);
                out.u64(*revision);
            }
            FromDesk::Listed { revision } => {
                out.u8(4);
                out.u64(*revision);
            }
            FromDesk::Done { id, revision } => {
                out.u8(5);
                out.u64(*id);
                out.u64(*revision);
            }
            FromDesk::Conflict { id, current } => {
                out.u8(6);
                out.u64(*id);
                out.u8(current.len() as u8);
                current.iter().for_each(|known| out.maybe(known.as_ref()));
            }
            FromDesk::Found { id, known } => {
                out.u8(7);
                out.u64(*id);
                out.maybe(known.as_ref());
            }
            FromDesk::Failed { id, why } => {
                out.u8(8);
                out.u64(*id);
                out.u8(match why {
                    Unanswered::Away => 1,
                    Unanswered::Unknown => 2,
                    Unanswered::Full => 3,
                    Unanswered::Refused => 4,
                });
            }
        }
        out.0
    }

    pub fn decode(packet: &[u8]) -> Option<FromDesk> {
        let mut from = In(packet);
        let message = match from.u8()? {
            1 => {
                let speaks = Versions::from_u16(u16::from_le_bytes([from.u8()?, from.u8()?]))?;
                // What a later daemon adds.
                return Some(FromDesk::Hello(speaks));
            }
            2 => FromDesk::Put(from.known()?),
            3 => FromDesk::Gone { key: from.text()?, revision: from.u64()? },
            4 => FromDesk::Listed { revision: from.u64()? },
            5 => FromDesk::Done { id: from.u64()?, revision: from.u64()? },
            6 => FromDesk::Conflict { id: from.u64()?, current: from.several(In::maybe)? },
            7 => FromDesk::Found { id: from.u64()?, known: from.maybe()? },
            8 => FromDesk::Failed {
                id: from.u64()?,
                why: match from.u8()? {
                    1 => Unanswered::Away,
                    2 => Unanswered::Unknown,
                    3 => Unanswered::Full,
                    4 => Unanswered::Refused,
                    _ => return None,
                },
            },
            _ => return None,
        };
        from.end(message)
    }
}

struct Out(Vec<u8>);

impl Out {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Keys and values are bounded far below 64 KiB; what is not is cut here and refused by the reader.
    fn bytes(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(..usize::from(u16::MAX)).unwrap_or(bytes);
        self.0.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn given(&mut self, given: &Given) {
        let (kind, at) = match given {
            Given::Absent(_) => (1, 0),
            Given::Present(_) => (2, 0),
            Given::Modified(_, at) => (3, *at),
            Given::Created(_, at) => (4, *at),
        };
        self.u8(kind);
        self.text(given.key());
        self.u64(at);
    }

    fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Put { key, value, stay } => {
                self.u8(if *stay == Stay::Leased { 2 } else { 1 });
                self.text(key);
                self.bytes(value);
            }
            Edit::Delete { key } => {
                self.u8(3);
                self.text(key);
            }
        }
    }

    fn known(&mut self, known: &Known) {
        self.text(&known.key);
        self.bytes(&known.value);
        self.u64(known.created);
        self.u64(known.modified);
    }

    fn maybe(&mut self, known: Option<&Known>) {
        self.u8(u8::from(known.is_some()));
        if let Some(known) = known {
            self.known(known);
        }
    }
}

struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self, at_most: usize) -> Option<&'a [u8]> {
        let count = usize::from(u16::from_le_bytes(self.array()?));
        let (bytes, rest) = self.0.split_at_checked(count).filter(|_| count <= at_most)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        let text = std::str::from_utf8(self.bytes(DESK_KEY_BYTES_MAX)?).ok()?;
        Some(text.to_owned())
    }

    fn several<T>(&mut self, one: impl Fn(&mut In<'a>) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::from(self.u8()?);
        if count > EDITS_MAX { None } else { (0..count).map(|_| one(self)).collect() }
    }

    fn given(&mut self) -> Option<Given> {
        let (kind, key, at) = (self.u8()?, self.text()?, self.u64()?);
        Some(match kind {
            1 => Given::Absent(key),
            2 => Given::Present(key),
            3 => Given::Modified(key, at),
            4 => Given::Created(key, at),
            _ => return None,
        })
    }

    fn edit(&mut self) -> Option<Edit> {
        let (kind, key) = (self.u8()?, self.text()?);
        Some(match kind {
            1 | 2 => Edit::Put {
                key,
                value: self.bytes(DESK_VALUE_BYTES_MAX)?.to_vec(),
                stay: if kind == 2 { Stay::Leased } else { Stay::Kept },
            },
            3 => Edit::Delete { key },
            _ => return None,
        })
    }

    fn known(&mut self) -> Option<Known> {
        let (key, value) = (self.text()?, self.bytes(DESK_VALUE_BYTES_MAX)?.to_vec());
        Some(Known { key, value, created: self.u64()?, modified: self.u64()? })
    }

    fn maybe(&mut self) -> Option<Option<Known>> {
        match self.u8()? {
            0 => Some(None),
            1 => self.known().map(Some),
            _ => None,
        }
    }

    fn end<T>(&self, message: T) -> Option<T> {
        self.0.is_empty().then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        Known { key: "k/a".to_owned(), value: vec![1, 2], created: 3, modified: 4 }
    }

    #[test]
    fn every_message_is_read_as_it_was_written() {
        let givens = vec![
            Given::Absent("a".to_owned()),
            Given::Modified("b".to_owned(), 7),
            Given::Created("c".to_owned(), u64::MAX),
        ];
        let edits = vec![
            Edit::Put { key: "a".to_owned(), value: vec![0; DESK_VALUE_BYTES_MAX], stay: Stay::Leased },
            Edit::Delete { key: "b".to_owned() },
        ];
        for question in [DeskQuestion::Read { key: "k/x".to_owned() }, DeskQuestion::Transact { givens, edits }] {
            let asked = ToDesk { id: 9, question };
            assert_eq!(ToDesk::decode(&asked.encode()), Some(asked));
        }
        let said = [
            FromDesk::Hello(Versions::from_to(2, 3)),
            FromDesk::Put(known()),
            FromDesk::Gone { key: "k".to_owned(), revision: 5 },
            FromDesk::Listed { revision: 6 },
            FromDesk::Done { id: 1, revision: 2 },
            FromDesk::Conflict { id: 1, current: vec![None, Some(known())] },
            FromDesk::Found { id: 1, known: Some(known()) },
            FromDesk::Failed { id: 1, why: Unanswered::Full },
        ];
        for message in said {
            assert_eq!(FromDesk::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn cut_or_lengthened_packet_is_no_message() {
        let packet = FromDesk::Conflict { id: 1, current: vec![None, Some(known())] }.encode();
        for length in 0..packet.len() {
            assert_eq!(FromDesk::decode(&packet[..length]), None, "{length}");
        }
        assert_eq!(FromDesk::decode(&[packet, vec![0]].concat()), None);
        let many = ToDesk {
            id: 1,
            question: DeskQuestion::Transact {
                givens: vec![],
                edits: (0..=EDITS_MAX).map(|index| Edit::Delete { key: format!("k/{index}") }).collect(),
            },
        };
        assert_eq!(ToDesk::decode(&many.encode()), None, "beyond its bound");
    }
}
