//! What proc gates say to each other, and what they make of texts of procfs, in which names are a tenant's.
//!
//! An input is a question and bytes that are taken for an ask, an answer to the question, `status` and `stat`.

use gate_proc::ask::{ANSWER_BYTES_MAX, Ask, ListedProcess, ProcAnswer, ProcFacts, ProcQuestion};
use gate_proc::glance::GlanceDepth;
use gate_proc::number::{Entry, ProcInode};
use gate_proc::render::{stat_from, status_inside};
use gate_proc::visible::{Asker, Looked};
use proc_core::caller::Uids;
use proc_core::range::Seat;
use sys::procfs::ProcessLink;

use crate::bytes::Bytes;

const NODE: usize = 1;
/// ENOENT, one of the errors that an answer may have.
const NO_SUCH_FILE: i32 = 2;
const IDS: Uids = Uids { base: 1_000_000, count: 65_536 };

fn node() -> Seat {
    Seat::new(NODE).expect("a seat")
}

fn question(kind: u8, pid: u32) -> ProcQuestion {
    match kind % 6 {
        0 => ProcQuestion::Processes,
        1 => ProcQuestion::Owner(pid),
        2 => ProcQuestion::Descriptors(pid),
        3 => ProcQuestion::Link(pid, ProcessLink::Descriptor(1)),
        4 => ProcQuestion::Glances(pid, GlanceDepth::Inside),
        _ => ProcQuestion::File(pid, Entry::Stat),
    }
}

/// What is understood is written as it was read; processes of an answer are those of the node, each once.
pub fn table(data: &[u8]) {
    let mut bytes = Bytes(data);
    let (kind, pid, number) = (bytes.u8(), bytes.u32(), bytes.u64());
    let said = bytes.0;
    if let Ok(ask) = Ask::decode(said) {
        assert_eq!(ask.encode(), said);
    }
    if let Ok(answer) = ProcAnswer::decode(said, question(kind, pid), node()) {
        assert!(answer.encode() == said && said.len() <= ANSWER_BYTES_MAX);
        if let Ok(ProcFacts::Processes(listed)) = answer.said {
            assert!(listed.iter().all(|one| Seat::of_pid(one.pid) == Some(node())));
            assert!(listed.is_sorted_by(|one, next| one.pid < next.pid));
        }
    }
    if let Some(node) = ProcInode::from_number(number) {
        assert_eq!(node.number(), number);
    }
    let asker = Asker { uid: 5, gid: 5, effective: 0 };
    if let Some(looked) = Looked::of_status(said, 5, IDS)
        && looked.may_be_looked_into_by(&asker)
    {
        assert_eq!((looked.uids, looked.gids), ([5; 3], [5; 3]));
    }
    let inside = status_inside(said, IDS);
    assert!(inside.len() <= said.len() * 4 + 8);
    let _ = stat_from(said, i64::from(pid));
}

pub fn corpus() -> Vec<Vec<u8>> {
    let pid = node().first_pid() + 100;
    let asker = Asker { uid: 5, gid: 6, effective: 1 << 19 };
    let listed = |pid| ListedProcess { pid, uid: 5, gid: 6 };
    let answers = [
        Ok(ProcFacts::Processes(vec![listed(pid), listed(pid + 1)])),
        Ok(ProcFacts::Processes(vec![listed(pid)])),
        Ok(ProcFacts::Descriptors(vec![0, 1, 2])),
        Ok(ProcFacts::Bytes(b"/dev/null".to_vec())),
        Err(NO_SUCH_FILE),
    ];
    let ids = "1000005\t1000005\t1000005\t1000005";
    let status = format!("Name:\ta\nUid:\t{ids}\nGid:\t{ids}\nGroups:\t1000005 7 \nCapPrm:\t0\n");
    let stat = format!("{pid} (a) b) S{}\n", " 7".repeat(49));
    let mut all = vec![status.into_bytes(), stat.into_bytes()];
    all.extend(answers.map(|said| ProcAnswer { began_ns: 1, said }.encode()));
    all.extend((0..5).map(|kind| Ask { question: question(kind, pid), asker }.encode().to_vec()));
    let head = |kind: u8| [&[kind][..], &pid.to_le_bytes(), &ProcInode::Remote(pid).number().to_le_bytes()].concat();
    all.iter().flat_map(|said| (0..5).map(move |kind| [&head(kind)[..], said].concat())).collect()
}
