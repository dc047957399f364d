//! Requests of a kernel, and what an fs server answers to what the gate makes of them.
//!
//! An input is an answer (its status, four words, its data behind their length in two bytes) and a request, whose
//! length is made right.

use std::cell::RefCell;

use gate_fuse::DryGate;
use gate_fuse::backend::{Done, Token};
use gate_fuse::kernel::{self, InHeader, InitIn, opcode};
use gate_fuse::request::parse;
use vos_api::fs;
use zerocopy::{FromZeros, IntoBytes};

use crate::bytes::Bytes;

thread_local! {
    static GATE: RefCell<DryGate> = RefCell::new(gate());
}

fn gate() -> DryGate {
    let memory = sys::memfd::create_sealed("state", gate_fuse::STATE_BYTES).expect("memory");
    DryGate::new(memory).expect("a new gate")
}

/// The server understands what the gate asks, and the gate answers the kernel whatever the server says.
pub fn fuse(data: &[u8]) {
    let _ = parse(data);
    let mut bytes = Bytes(data);
    let (status, results) = (u32::from(bytes.u8()), [bytes.u64(), bytes.u64(), bytes.u64(), bytes.u64()]);
    let length = usize::from(bytes.u16());
    let done = Done { token: Token(1), status, results, data: bytes.take(length).to_vec() };
    let mut request = bytes.0.to_vec();
    let length = request.len() as u32;
    if let Some(first) = request.first_chunk_mut() {
        *first = length.to_ne_bytes();
    }
    let Ok(request) = parse(&request) else { return };
    for asked in GATE.with_borrow_mut(|gate| gate.serve(&request, &done)) {
        assert!(fs::Request::decode(asked.op, asked.flags, asked.args, &asked.data).is_ok(), "{request:?}");
    }
}

/// Each operation with heads of every length, and answers with and without what they should have.
pub fn corpus() -> Vec<Vec<u8>> {
    let attr = fs::Attr { mode: 0o100_644.into(), ino: 2.into(), ..fs::Attr::new_zeroed() };
    let entry = [attr.as_bytes(), &[1; 64]].concat();
    let answers = [(0, &[][..]), (0, &entry), (2, &[])];
    let answer = |(status, data): (u8, &[u8])| {
        let words = [1_u64, 100, 0, 1].map(u64::to_le_bytes).concat();
        [&[status][..], &words, &(data.len() as u16).to_le_bytes(), data].concat()
    };
    let request = |opcode: u32, head: &[u8]| {
        let header = InHeader { opcode, unique: 2, nodeid: 1, ..InHeader::default() };
        [header.as_bytes(), head, b"name\0other\0value"].concat()
    };
    let mut requests: Vec<Vec<u8>> = Vec::new();
    for opcode in opcode::LOOKUP..=opcode::TMPFILE {
        requests.extend([0, 8, 16, 24, 32, 40, 48, 56, 88].map(|bytes| request(opcode, &vec![1; bytes])));
    }
    let init = InitIn { major: kernel::VERSION_MAJOR, minor: kernel::VERSION_MINOR, flags: u32::MAX, max_readahead: 1 };
    requests.push(request(opcode::INIT, init.as_bytes()));
    let place = fs::PlaceHead { name_bytes: 4.into(), ..fs::PlaceHead::new_zeroed() };
    let bytes = (size_of::<fs::PlaceHead>() + b"name\0other\0value".len()) as u32;
    let cmd = kernel::iow(fs::PLACE_GROUP, fs::PLACE_NUMBER, bytes);
    let ioctl = kernel::IoctlIn { cmd, in_size: bytes, ..kernel::IoctlIn::default() };
    requests.push(request(opcode::IOCTL, &[ioctl.as_bytes(), place.as_bytes()].concat()));
    requests.iter().flat_map(|request| answers.map(|one| [&answer(one)[..], request].concat())).collect()
}
