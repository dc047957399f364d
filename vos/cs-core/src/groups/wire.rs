//! What servers send each other about groups, as bytes. What does not parse is dropped: the link's other end is a
//! server of the same container, and one that errs must not bring another down.

use std::sync::Arc;

use vos_api::cs::{BURST_BYTES_MAX, Level, MEMBERS_MAX, NAME_BYTES_MAX};

use super::charter::{Host, Member};

/// Bytes of entries in one frame, beyond the first.
pub const FRAME_BYTES: usize = 256 << 10;
/// Entries of one frame; bursts of one.
const ENTRIES_MAX: usize = 4096;
/// As many as a container has nodes.
const HOSTS_MAX: usize = 64;

/// Messages of one member that are ordered together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Burst {
    pub level: Level,
    pub member: u64,
    /// Number of the first among its member's messages.
    pub first: u64,
    pub count: u32,
    /// Each message after its length.
    pub data: Arc<[u8]>,
}

/// The members from here on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    pub number: u64,
    pub epoch: u64,
    pub hosts: Vec<Host>,
    /// With how many messages of each were ordered before.
    pub members: Vec<(Member, u64)>,
}

/// What has a place in the one order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    View(View),
    Burst(Burst),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// To the sequencer: these members this host wants to have, all of them.
    Want { members: Vec<Member> },
    /// To the sequencer: to be ordered.
    Submit { epoch: u64, bursts: Vec<Burst> },
    /// From the sequencer: entries from `first` on, and up to where all hosts have them.
    Append { epoch: u64, stable: u64, first: u64, entries: Vec<Arc<Entry>> },
    /// To the sequencer: everything up to `index` is here.
    Have { epoch: u64, index: u64 },
    /// From who wants to be the next sequencer: nothing of an earlier epoch counts any more.
    Stop { epoch: u64 },
    /// The answer. `None`: this host has nothing of the group yet.
    Stopped { epoch: u64, high: Option<u64> },
    /// From the next sequencer to who has more.
    Fetch { epoch: u64, from: u64 },
    /// With how many messages of each member were ordered, after all that the sender has.
    Fill { epoch: u64, first: u64, entries: Vec<Arc<Entry>>, counted: Vec<(u64, u64)> },
}

impl Entry {
    pub fn bytes(&self) -> usize {
        match self {
            Entry::View(view) => 64 + view.members.len() * 96,
            Entry::Burst(burst) => 64 + burst.data.len(),
        }
    }
}

/// How many messages lie in `data`, each after its length. `None`: not any, or it ends within one.
pub fn count_messages(data: &[u8]) -> Option<u32> {
    let (mut rest, mut count) = (data, 0_u32);
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<4>()?;
        rest = after.get(usize::try_from(u32::from_le_bytes(*length)).ok()?..)?;
        count += 1;
    }
    (count > 0 && data.len() <= BURST_BYTES_MAX).then_some(count)
}

impl Frame {
    pub fn encode(&self, group: &str) -> Vec<u8> {
        let mut out = Out(Vec::with_capacity(64));
        out.text(group);
        match self {
            Frame::Want { members } => {
                out.0.push(1);
                out.many(members, Out::member);
            }
            Frame::Submit { epoch, bursts } => {
                out.0.push(2);
                out.u64(*epoch);
                out.many(bursts, Out::burst);
            }
            Frame::Append { epoch, stable, first, entries } => {
                out.0.push(3);
                [epoch, stable, first].into_iter().for_each(|word| out.u64(*word));
                out.many(entries, |out, entry| out.entry(entry));
            }
            Frame::Have { epoch, index } => {
                out.0.push(4);
                out.u64(*epoch);
                out.u64(*index);
            }
            Frame::Stop { epoch } => {
                out.0.push(5);
                out.u64(*epoch);
            }
            Frame::Stopped { epoch, high } => {
                out.0.push(6);
                out.u64(*epoch);
                out.u64(high.map_or(0, |high| high + 1));
            }
            Frame::Fetch { epoch, from } => {
                out.0.push(7);
                out.u64(*epoch);
                out.u64(*from);
            }
            Frame::Fill { epoch, first, entries, counted } => {
                out.0.push(8);
                out.u64(*epoch);
                out.u64(*first);
                out.many(entries, |out, entry| out.entry(entry));
                out.many(counted, |out, (member, count)| {
                    out.u64(*member);
                    out.u64(*count);
                });
            }
        }
        out.0
    }

    /// The group that it is about, and the frame.
    pub fn decode(bytes: &[u8]) -> Option<(String, Frame)> {
        let mut from = In(bytes);
        let group = from.text()?;
        let frame = match from.u8()? {
            1 => Frame::Want { members: from.many(MEMBERS_MAX, In::member)? },
            2 => Frame::Submit { epoch: from.u64()?, bursts: from.many(ENTRIES_MAX, In::burst)? },
            3 => Frame::Append {
                epoch: from.u64()?,
                stable: from.u64()?,
                first: from.u64()?,
                entries: from.many(ENTRIES_MAX, In::entry)?,
            },
            4 => Frame::Have { epoch: from.u64()?, index: from.u64()? },
            5 => Frame::Stop { epoch: from.u64()? },
            6 => Frame::Stopped { epoch: from.u64()?, high: from.u64()?.checked_sub(1) },
            7 => Frame::Fetch { epoch: from.u64()?, from: from.u64()? },
            8 => Frame::Fill {
                epoch: from.u64()?,
                first: from.u64()?,
                entries: from.many(ENTRIES_MAX, In::entry)?,
                counted: from.many(MEMBERS_MAX, |from| Some((from.u64()?, from.u64()?)))?,
            },
            _ => return None,
        };
        from.0.is_empty().then_some((group, frame))
    }
}

struct Out(Vec<u8>);

impl Out {
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn many<T>(&mut self, all: &[T], one: impl Fn(&mut Out, &T)) {
        self.u32(all.len() as u32);
        all.iter().for_each(|each| one(self, each));
    }

    fn host(&mut self, host: &Host) {
        self.0.push(host.node);
        self.u64(host.incarnation);
    }

    fn member(&mut self, member: &Member) {
        self.u64(member.id);
        self.host(&member.host);
        self.text(&member.name);
    }

    fn burst(&mut self, burst: &Burst) {
        self.0.push(burst.level as u16 as u8);
        self.u64(burst.member);
        self.u64(burst.first);
        self.bytes(&burst.data);
    }

    fn entry(&mut self, entry: &Entry) {
        match entry {
            Entry::View(view) => {
                self.0.push(1);
                self.u64(view.number);
                self.u64(view.epoch);
                self.many(&view.hosts, Out::host);
                self.many(&view.members, |out, (member, counted)| {
                    out.member(member);
                    out.u64(*counted);
                });
            }
            Entry::Burst(burst) => {
                self.0.push(2);
                self.burst(burst);
            }
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

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self, at_most: usize) -> Option<&'a [u8]> {
        let count = usize::try_from(self.u32()?).ok().filter(|count| *count <= at_most)?;
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        crate::names::name(self.bytes(NAME_BYTES_MAX)?).ok()
    }

    fn many<T>(&mut self, at_most: usize, one: impl Fn(&mut In<'a>) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.u32()?).ok().filter(|count| *count <= at_most)?;
        (0..count).map(|_| one(self)).collect()
    }

    fn host(&mut self) -> Option<Host> {
        Some(Host { node: self.u8()?, incarnation: self.u64()? })
    }

    fn member(&mut self) -> Option<Member> {
        Some(Member { id: self.u64()?, host: self.host()?, name: self.text()? })
    }

    fn burst(&mut self) -> Option<Burst> {
        let level = match self.u8()? {
            1 => Level::Agreed,
            2 => Level::Safe,
            _ => return None,
        };
        let (member, first) = (self.u64()?, self.u64()?);
        let data = self.bytes(BURST_BYTES_MAX)?;
        Some(Burst { level, member, first, count: count_messages(data)?, data: data.into() })
    }

    fn entry(&mut self) -> Option<Arc<Entry>> {
        let entry = match self.u8()? {
            1 => Entry::View(View {
                number: self.u64()?,
                epoch: self.u64()?,
                hosts: self.many(HOSTS_MAX, In::host)?,
                members: self.many(MEMBERS_MAX, |from| Some((from.member()?, from.u64()?)))?,
            }),
            2 => Entry::Burst(self.burst()?),
            _ => return None,
        };
        Some(Arc::new(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_is_read_as_it_was_written_and_none_of_its_beginnings_is_one() {
        let host = Host { node: 3, incarnation: 7 };
        let member = Member { id: 5, host, name: "m".to_owned() };
        let burst =
            Burst { level: Level::Safe, member: 5, first: 9, count: 2, data: [1, 0, 0, 0, 8, 0, 0, 0, 0].into() };
        let view = View { number: 2, epoch: 3, hosts: vec![host], members: vec![(member.clone(), 4)] };
        let entries = vec![Arc::new(Entry::View(view)), Arc::new(Entry::Burst(burst.clone()))];
        let frames = [
            Frame::Want { members: vec![member] },
            Frame::Submit { epoch: 1, bursts: vec![burst] },
            Frame::Append { epoch: 1, stable: 2, first: 3, entries: entries.clone() },
            Frame::Have { epoch: 1, index: 2 },
            Frame::Stop { epoch: 1 },
            Frame::Stopped { epoch: 1, high: None },
            Frame::Stopped { epoch: 1, high: Some(0) },
            Frame::Fetch { epoch: 1, from: 2 },
            Frame::Fill { epoch: 1, first: 2, entries, counted: vec![(5, 10)] },
        ];
        for frame in frames {
            let bytes = frame.encode("g");
            assert_eq!(Frame::decode(&bytes), Some(("g".to_owned(), frame)));
            assert!((0..bytes.len()).all(|length| Frame::decode(&bytes[..length]).is_none()));
        }
    }

    #[test]
    fn messages_that_end_within_their_bytes_are_counted_and_others_refused() {
        assert_eq!(count_messages(&[0, 0, 0, 0, 1, 0, 0, 0, 9]), Some(2));
        for bad in [&[][..], &[1, 0, 0, 0], &[0, 0, 0], &[255, 255, 255, 255, 1]] {
            assert_eq!(count_messages(bad), None, "{bad:?}");
        }
    }
}
