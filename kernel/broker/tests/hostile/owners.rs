//! Owners of grants that answer their copiers by no rule: the copier's call ends, in time, with an error that says
//! nothing of the copier itself.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use abi::layout::side;
use ipc::conformance::World;
use ipc::{Completion, Endpoint, GrantId, IpcError, Place, Wait};

use crate::SOON;
use crate::raw::{Channel, Member};

/// Longer than the lane: more requests than it has entries.
const BYTES: usize = 3 << 20;
const ENTRIES: u32 = ipc::COPY_SPEC.entries;

/// An owner, and the copier's call, which is in a thread that the test outlives.
struct Copied {
    channel: Channel,
    told: mpsc::Receiver<Result<(), IpcError>>,
    _world: crate::OneNode,
    _owner: Member,
}

impl Copied {
    /// All that the lane holds was asked.
    fn begin(wait: Wait) -> Copied {
        let world = crate::world();
        let mut copier = world.server(Endpoint::DS, 1);
        let owner = Member::join(&world.socket());
        let to = Place { owner: owner.endpoint, grant: GrantId::new(0, 1), offset: 0 };
        let (say, told) = mpsc::channel();
        thread::spawn(move || {
            let _ = say.send(copier.copy_to(&vec![1; BYTES], to, wait));
        });
        let channel = owner.accept();
        let until = Instant::now() + Duration::from_secs(10);
        while channel.peer.load(side::RING_TAIL, Ordering::Acquire) != ENTRIES {
            assert!(Instant::now() < until, "nothing was asked");
            thread::sleep(Duration::from_millis(1));
        }
        Copied { channel, told, _world: world, _owner: owner }
    }

    /// Completes the first requests with this status, and says that so many were taken.
    fn complete(&self, count: u32, status: u32, head: u32) {
        for tag in 0..count {
            let completion = Completion { tag, status, ..Completion::default() };
            let at = side::RING + tag as usize * abi::ring::ENTRY_BYTES;
            self.channel.own.copy_in(at, &completion.to_bytes()).unwrap();
        }
        self.channel.own.store(side::RING_HEAD, head, Ordering::Release);
        self.channel.own.store(side::RING_TAIL, count, Ordering::Release);
        self.channel.wake_peer();
    }

    fn end(&self) -> Result<(), IpcError> {
        self.told.recv_timeout(Duration::from_secs(5)).expect("the copier's call ends")
    }
}

#[test]
fn copier_is_not_held_by_an_owner_that_took_what_was_never_asked() {
    let copied = Copied::begin(Wait::For(Duration::from_millis(200)));
    copied.complete(1, 0, ENTRIES + 5);
    assert_eq!(copied.end(), Err(IpcError::Corrupt));
}

#[test]
fn copier_is_not_held_by_an_owner_that_completes_what_it_never_took() {
    let copied = Copied::begin(Wait::For(Duration::from_millis(200)));
    copied.complete(ENTRIES, 0, 0);
    assert_eq!(copied.end(), Err(IpcError::Corrupt));
}

/// Errors that would speak of the copier itself, of its broker, or of nobody.
const FOREIGN: [IpcError; 6] =
    [IpcError::NotBound, IpcError::Fenced, IpcError::Moved, IpcError::NoBroker, IpcError::WokenUp, IpcError::Os(4)];

#[test]
fn copier_is_told_by_a_completion_only_what_concerns_the_grant() {
    for error in FOREIGN {
        let copied = Copied::begin(SOON);
        copied.complete(ENTRIES, error.code(), ENTRIES);
        assert_eq!(copied.end(), Err(IpcError::Corrupt), "{error:?}");
    }
    let copied = Copied::begin(SOON);
    copied.complete(ENTRIES, IpcError::Revoked.code(), ENTRIES);
    assert_eq!(copied.end(), Err(IpcError::Revoked));
}

#[test]
fn copier_is_told_by_an_owner_that_closes_only_that_it_ended() {
    for error in FOREIGN {
        let copied = Copied::begin(SOON);
        copied.channel.own.store(side::CLOSED, error.code(), Ordering::Release);
        copied.channel.wake_peer();
        assert_eq!(copied.end(), Err(IpcError::DestinationDied), "{error:?}");
    }
}
