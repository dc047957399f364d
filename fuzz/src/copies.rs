//! A primary of a replicated disk, and copies that say anything.

use replica_core::{
    BlockRange, CopyState, Decided, DiskRequest, Kept, Layout, Primary, PrimaryAct, Replica, ReplicaAnswer,
    ReplicaMessage, ReplicaRecord, decode_behind, encode_behind,
};

use crate::bytes::Bytes;

const LAYOUT: Layout = Layout { blocks: 1000, extent_blocks: 16, hot_extents: 4 };
const EVENTS_MAX: usize = 64;

/// What is read is written, and read again, as the same; and whatever copies answer, a primary goes on, asks for no
/// block that the disk does not have, and never for more than it has.
pub fn copies(data: &[u8]) {
    if let Some(kept) = Kept::decode(data) {
        assert_eq!(Kept::decode(&kept.encode()).as_ref(), Some(&kept));
    }
    if let Some(state) = CopyState::decode(data) {
        assert!(CopyState::decode(&state.encode()).is_some());
    }
    if let Some(behind) = decode_behind(data) {
        assert!(decode_behind(&encode_behind(&behind)).is_some());
    }
    let mut bytes = Bytes(data);
    let record = ReplicaRecord::new(7, Replica(0), &[Replica(1), Replica(2)]);
    let mut primary: Primary<u8> = Primary::begin(LAYOUT, record.with(Replica(1)), 0);
    let mut now_ms = 0;
    let mut next = 1;
    for _ in 0..EVENTS_MAX {
        if bytes.is_over() {
            break;
        }
        now_ms += u64::from(bytes.u8());
        let member = Replica(bytes.u8() % 4);
        let acts = match bytes.u8() % 10 {
            0 => match CopyState::decode(measured(&mut bytes)) {
                Some(state) => primary.answered(member, ReplicaAnswer::Welcome(state), now_ms),
                None => Vec::new(),
            },
            1 => primary.answered(member, ReplicaAnswer::Accepted { seq: bytes.u8().into() }, now_ms),
            2 => primary.answered(member, ReplicaAnswer::Durable { seq: bytes.u8().into() }, now_ms),
            3 => {
                let (generation, whole) = (bytes.u8().into(), bytes.u8() % 2 == 0);
                primary.answered(member, ReplicaAnswer::Marked { generation, whole }, now_ms)
            }
            4 => primary.answered(member, ReplicaAnswer::Granted { asked_ms: now_ms }, now_ms),
            5 => primary.link_up(member, now_ms),
            6 => primary.link_down(member, now_ms),
            7 => match serde_json::from_slice(measured(&mut bytes)) {
                Ok(record) => primary.decided(Decided::Conflict(record), now_ms),
                Err(_) => primary.decided(Decided::Accepted, now_ms),
            },
            8 => {
                let range = BlockRange { first: u64::from(bytes.u8()) * 3, count: u32::from(bytes.u8() % 32) + 1 };
                next += 1;
                match bytes.u8() % 4 {
                    0 => primary.ask(next, DiskRequest::Read { range }, now_ms),
                    what @ (1 | 3) => {
                        primary.ask(next, DiskRequest::Write { range, data: 0, durable: what == 3 }, now_ms)
                    }
                    _ => primary.ask(next, DiskRequest::Flush, now_ms),
                }
            }
            _ => primary.tick(now_ms),
        };
        assert!(acts.len() < 2000, "{} acts", acts.len());
        for act in acts {
            let range = match act {
                PrimaryAct::Send(_, ReplicaMessage::Write { range, .. } | ReplicaMessage::Copy { range, .. })
                | PrimaryAct::Copy { range, .. }
                | PrimaryAct::Read { range, .. } => range,
                _ => continue,
            };
            assert!(range.end() <= LAYOUT.blocks, "{range:?}");
        }
    }
}

fn measured<'a>(bytes: &mut Bytes<'a>) -> &'a [u8] {
    let count = bytes.u8();
    bytes.take(count.into())
}

/// A primary that two copies welcome, and that is asked for something.
pub fn corpus() -> Vec<Vec<u8>> {
    let mark = |generation| Some(replica_core::CopyMark { set: 7, generation, whole: true, boot: 1 });
    let state = |generation| {
        let recent = replica_core::Recent::Blocks([3, 4, 90].into_iter().collect());
        let behind = [(Replica(2), [1, 2].into_iter().collect())].into();
        let hot = [0, 5].map(replica_core::Extent).into();
        CopyState { mark: mark(generation), is_doubtful: false, is_blank: generation % 2 == 0, recent, hot, behind }
            .encode()
    };
    let mut whole = Vec::new();
    for member in [0, 1, 2] {
        whole.extend([0, member, 5]);
    }
    for member in [0, 1, 2] {
        let said = state(2);
        whole.extend([1, member, 0, said.len() as u8]);
        whole.extend(said);
    }
    for seq in 1..12 {
        for member in [0, 1, 2] {
            whole.extend([0, member, 1, seq, 0, member, 2, seq, 0, member, 3, 2, 0, 0, member, 4]);
        }
        whole.extend([9, 0, 8, seq, 9, 1, 0, 0, 8, seq, 2, 0]);
    }
    let kept = Kept { mark: mark(2), fence: 3, hot: Default::default(), behind: Default::default() };
    vec![whole, state(2), kept.encode()]
}
