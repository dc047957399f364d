//! The most a link can carry: frames, encryption and sockets without broker or processes. One thread per node.
//!
//! `cargo run -p proxy-host --example frame_bench`

use std::cell::{Cell, RefCell};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use abi::ring::{Completion, Submission};
use abi::{DcId, Endpoint, Epoch, IpcError, Lane, NodeId};
use pki::{Authority, NodeRequest, Validity};
use proxy_host::secure::{Credentials, Flow, Inward, Session};
use proxy_link::{
    Action, Carried, Ends, Identity, InBuffer, Indices, LinkTimes, LocalChannel, LocalRole, Peer, Phase, RingSpec,
    Settled,
};

const BYTES: u32 = 1 << 20;
const DEPTH: u32 = 8;
const READS: u32 = 2000;

/// A ring in ordinary memory; the local party is played between two looks of the link.
struct Ring {
    role: LocalRole,
    submissions: Cell<Indices>,
    completions: Cell<Indices>,
    arena: RefCell<Vec<u8>>,
}

#[derive(Clone)]
struct Memory(Rc<Ring>);

impl LocalChannel for Memory {
    fn role(&self) -> LocalRole {
        self.0.role
    }
    fn mark_open(&self) {}
    fn was_open(&self) -> bool {
        true
    }
    fn outbound(&self, _forwarded: u32) -> Result<Option<Carried>, IpcError> {
        Ok(None)
    }
    fn mark_taken(&self, _word: u32) {}
    fn cancel_requested(&self) -> Option<u32> {
        None
    }
    fn settle_withdrawn(&self, _word: u32) {}
    fn publish(&self, _message: Carried) -> Result<(), IpcError> {
        Ok(())
    }
    fn published(&self) -> u32 {
        0
    }
    fn taken(&self) -> u32 {
        0
    }
    fn withdraw(&self, _word: u32) -> Option<Settled> {
        Some(Settled::Withdrawn)
    }
    fn pending_notification(&self) -> Option<(u64, u64)> {
        None
    }

    fn confirm_notification(&self, _number: u64) {}

    fn notify(&self, _number: u64, _mask: u64) {}

    fn notified(&self) -> u64 {
        0
    }
    fn entries(&self) -> Result<Indices, IpcError> {
        Ok(match self.0.role {
            LocalRole::Client => self.0.submissions.get(),
            LocalRole::Server => self.0.completions.get(),
        })
    }
    fn confirm(&self, head: u32) {
        let own = match self.0.role {
            LocalRole::Client => &self.0.submissions,
            LocalRole::Server => &self.0.completions,
        };
        own.set(Indices { head, ..own.get() });
    }
    fn put_count(&self) -> u32 {
        match self.0.role {
            LocalRole::Client => self.0.completions.get().tail,
            LocalRole::Server => self.0.submissions.get().tail,
        }
    }
    fn submission(&self, index: u32) -> Result<Submission, IpcError> {
        let tag = index % DEPTH;
        Ok(Submission { tag, arena_offset: tag * BYTES, in_capacity: BYTES, ..Submission::default() })
    }
    fn completion(&self, index: u32) -> Result<Completion, IpcError> {
        Ok(Completion { tag: index % DEPTH, in_bytes: BYTES, ..Completion::default() })
    }
    fn put_submission(&self, _submission: &Submission) -> Result<(), IpcError> {
        let Indices { head, tail } = self.0.submissions.get();
        self.0.submissions.set(Indices { head: head + 1, tail: tail + 1 });
        // The server answers at once.
        let Indices { head, tail } = self.0.completions.get();
        self.0.completions.set(Indices { head, tail: tail + 1 });
        Ok(())
    }
    fn put_completion(&self, _completion: &Completion) -> Result<(), IpcError> {
        let Indices { tail, .. } = self.0.completions.get();
        self.0.completions.set(Indices { head: tail + 1, tail: tail + 1 });
        // The client asks again at once.
        let Indices { head, tail } = self.0.submissions.get();
        if tail < READS {
            self.0.submissions.set(Indices { head, tail: tail + 1 });
        }
        Ok(())
    }
    fn kick(&self) {}
    fn arena_bytes(&self) -> u32 {
        DEPTH * BYTES
    }
    fn copy_out(&self, offset: u32, data: &mut [u8]) -> Result<(), IpcError> {
        let from = offset as usize;
        data.copy_from_slice(&self.0.arena.borrow()[from..from + data.len()]);
        Ok(())
    }
    fn copy_in(&self, offset: u32, data: &[u8]) -> Result<(), IpcError> {
        let from = offset as usize;
        self.0.arena.borrow_mut()[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn memory(role: LocalRole) -> Memory {
    let empty = Indices { head: 0, tail: 0 };
    let first = Indices { head: 0, tail: DEPTH };
    Memory(Rc::new(Ring {
        role,
        submissions: Cell::new(if role == LocalRole::Client { first } else { empty }),
        completions: Cell::new(empty),
        arena: RefCell::new(vec![7; (DEPTH * BYTES) as usize]),
    }))
}

fn identity(id: u16) -> Identity {
    Identity { cluster: "c1".into(), node: format!("n{id}"), id: NodeId(id) }
}

fn run(me: u16, far: u16, mut session: Session, mut stream: TcpStream) {
    stream.set_nonblocking(true).expect("non-blocking");
    stream.set_nodelay(true).expect("no delay");
    let start = Instant::now();
    let mut peer = Peer::new(identity(me), Epoch(1), identity(far), LinkTimes::default(), Duration::ZERO);
    let mut input = InBuffer::new();
    let ring = Some(RingSpec { entries: DEPTH, arena_bytes: DEPTH * BYTES });
    let ends = Ends { dc: DcId(1), from: Endpoint::GATE, to: Endpoint::FS, lane: Lane(1), ring, incarnation: None };
    let local = memory(if me == 1 { LocalRole::Client } else { LocalRole::Server });
    let mut channel = None;
    if me == 1 {
        peer.dialled(Duration::ZERO);
        channel = peer.open_out(1, ends, local.clone()).ok();
    }
    loop {
        let mut bytes = 0;
        loop {
            let mut inward = Inward::buffered(&mut input);
            let Ok(flow) = session.read(&mut stream, &mut inward) else { return };
            bytes += inward.bytes();
            let now = start.elapsed();
            if peer.phase() == Phase::Apart {
                let Ok(Some(whole)) = wire::frame_bytes(input.waiting()) else { break };
                let Ok(wire::Frame::Hello(hello)) = wire::Frame::decode(&input.waiting()[..whole]) else { return };
                peer.accepted(now, &hello).expect("let in");
                input.consume(whole);
            }
            peer.receive(&mut input, now).expect("correct");
            if flow == Flow::Dry || bytes > 1 << 20 {
                break;
            }
        }
        while let Some(action) = peer.next_action() {
            if let Action::OpenIn { channel: opened, ends } = action {
                let _ = peer.opened_in(opened, ends, Ok(local.clone()));
                channel = Some(opened);
            }
        }
        if let Some(channel) = channel {
            peer.active(channel);
        }
        loop {
            let more = peer.fill(start.elapsed());
            let pending = peer.outgoing().pending();
            let wanted = pending.len();
            let Ok(count) = session.write(&mut stream, pending) else { return };
            peer.sent(start.elapsed(), count);
            if count < wanted || !more || wanted == 0 {
                break;
            }
        }
        if me == 1 && local.put_count() >= READS {
            return;
        }
        if bytes == 0 {
            thread::yield_now();
        }
    }
}

fn main() {
    let dir = tempfile::tempdir().expect("directory");
    let authority = Authority::create(&dir.path().join("ca"), "c1").expect("authority");
    let load = |node: &str| {
        let into = dir.path().join(node);
        let request = NodeRequest { node, addresses: &[], valid: Validity::of_a_node() };
        authority.issue_node(&request, &into).expect("issued");
        Credentials::load(&into, "c1").expect("loaded")
    };
    let (a, b) = (load("n1"), load("n2"));
    for encrypted in [true, false, true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let dialled = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
        let accepted = listener.accept().expect("accepted").0;
        let session = if encrypted { Session::dialling(&a, "n2").expect("session") } else { Session::Plain };
        let accepting = Session::accepting(Some(b.clone()));
        let served = thread::spawn(move || run(2, 1, accepting, accepted));
        let start = Instant::now();
        run(1, 2, session, dialled);
        let rate = f64::from(READS) * f64::from(BYTES) / start.elapsed().as_secs_f64() / 1e6;
        served.join().expect("ended");
        println!("{}: {rate:.0} MB/s", if encrypted { "TLS" } else { "plain" });
    }
}
