//! The gate between a socket in place of the kernel and a server that only notes what it is asked.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::*;
use crate::kernel::OpenIn;
use crate::state::Handle;

/// Takes everything, completes nothing; ends as its events say.
#[derive(Default)]
struct Notes(Vec<u16>, Option<Event<Vec<u8>>>);

impl Backend for Notes {
    type Data = Vec<u8>;

    fn begin(&mut self, _start: Start) -> Result<(), BackendError> {
        Ok(())
    }

    fn submit(&mut self, op: &Op<'_>) -> Result<Token, Refused> {
        self.0.push(op.op);
        Ok(Token(self.0.len() as u64))
    }

    fn poll(&mut self) -> Option<Event<Vec<u8>>> {
        self.1.take()
    }

    fn recalled(&mut self, _ino: Option<u64>) {}

    fn fd(&self) -> BorrowedFd<'_> {
        unreachable!("these tests do not sleep")
    }

    fn may_sleep(&mut self) -> bool {
        false
    }

    fn awake(&mut self) {}
}

fn gate_with_open_files(count: usize) -> (OwnedFd, Gate<Notes>) {
    let (kernel, fuse) = sys::seqpacket::pair().expect("a pair of sockets");
    let object = rustix::fs::memfd_create("gate-state", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    let mut state = State::open(object.try_clone().expect("a descriptor")).expect("state");
    state.begin_session(1).expect("a session");
    for number in 1..=count as u64 {
        state.enter(Handle { ino: 5, fs_handle: number, flags: 0 }).expect("a free slot");
    }
    (kernel, Gate::new(fuse, object, Notes::default()).expect("a gate"))
}

fn open_request(unique: u64) -> Vec<u8> {
    let len = (size_of::<InHeader>() + size_of::<OpenIn>()) as u32;
    let head = InHeader { len, opcode: opcode::OPEN, unique, nodeid: 5, ..InHeader::default() };
    [head.as_bytes(), OpenIn::default().as_bytes()].concat()
}

#[test]
fn gate_whose_placement_is_old_ends_and_leaves_session_and_open_files_to_the_next() {
    let (_kernel, mut gate) = gate_with_open_files(3);
    let (session, why) = (gate.state.session(), Fenced::ServerMoved { told: 1, now: 2 });
    gate.backend.1 = Some(Event::Outdated(why));
    assert!(matches!(gate.take_completions(), Err(GateError::Outdated(told)) if told == why));
    assert_eq!((gate.state.session(), gate.state.open_files()), (session, 3));
}

#[test]
fn open_is_refused_before_the_server_is_asked_when_the_table_of_open_files_is_full() {
    let (kernel, mut gate) = gate_with_open_files(HANDLES_MAX - 1);
    assert_eq!(gate.handle(&open_request(2), 0).expect("handled"), Handled::Done);
    assert_eq!(gate.backend.0, [vos_api::fs::OPEN]);
    assert_eq!(gate.handle(&open_request(4), 0).expect("handled"), Handled::Done);
    assert_eq!(gate.backend.0, [vos_api::fs::OPEN], "a handle at the server that nobody can close");
    let mut answer = [0; 64];
    let bytes = sys::seqpacket::receive(&kernel, &mut answer).expect("an answer").bytes;
    let (head, _) = OutHeader::read_from_prefix(&answer[..bytes]).expect("a header");
    assert_eq!((head.unique, head.error), (4, -libc::ENFILE));
}

#[test]
fn pages_that_requests_are_read_into_are_there_before() {
    use std::os::unix::fs::FileExt;

    const PAGE: usize = 4096;
    const PRESENT: u64 = 1 << 63;
    let buffer = resident(BUFFER_BYTES);
    let (first, end) = (buffer.as_ptr().addr().div_ceil(PAGE), (buffer.as_ptr().addr() + buffer.len()) / PAGE);
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entry = [0; 8];
    for page in first..end {
        map.read_exact_at(&mut entry, (page * 8) as u64).unwrap();
        assert_ne!(u64::from_le_bytes(entry) & PRESENT, 0, "page {} of {}", page - first, end - first);
    }
}
