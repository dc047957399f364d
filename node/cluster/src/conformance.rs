//! What every back end must do. A case takes a function that opens one more view of the same, initially empty, cluster,
//! and panics when the engine is wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::{
    Compare, Engine, EngineError, Event, EventKind, OPS_PER_TRANSACTION_MAX, Op, Outcome, Revision, Watch,
};
use crate::follow::{Change, Follower};
use crate::group::{self, Observer};
use crate::lease::KeptLease;
use crate::{allocate, lock};

pub type Open<'a> = &'a (dyn Fn() -> Box<dyn Engine> + Sync);

/// Long enough for a loaded machine; nothing that works waits for it.
const SOON: Duration = Duration::from_secs(20);
/// For what must not happen.
const A_WHILE: Duration = Duration::from_millis(50);
const TTL: Duration = Duration::from_millis(400);
const LONG_TTL: Duration = Duration::from_secs(60);

/// Makes a test of every case: `conformance_tests!(with_cluster)`, where `with_cluster(case: fn(Open))` makes an empty
/// cluster and calls the case with a way to open it.
#[macro_export]
macro_rules! conformance_tests {
    ($with:path) => {
        $crate::conformance_tests! { @each $with:
            what_was_put_is_read_by_another_view,
            list_is_ordered_and_keeps_to_its_prefix,
            lists_are_what_each_list_is,
            transaction_happens_whole_or_not_at_all,
            conflict_tells_what_is_there_instead,
            key_made_again_has_a_new_created_revision,
            deleting_what_is_not_there_changes_nothing,
            bad_keys_and_sizes_are_refused,
            sixteen_counters_lose_no_increment,
            watch_shows_changes_of_others_in_order_and_once,
            watch_from_the_past_shows_what_happened_since,
            watch_without_changes_times_out,
            cancelled_watch_ends_at_once,
            keys_vanish_with_their_lease_and_the_watch_sees_it,
            renewed_lease_goes_on,
            lease_that_ended_is_refused,
            lease_outlives_the_view_that_granted_it,
            lock_excludes_and_its_tokens_rise,
            lock_passes_on_when_its_holder_stops_renewing,
            old_holder_is_refused_by_its_fence,
            waiting_for_a_lock_is_limited,
            leader_is_known_and_succeeded,
            views_are_numbered_alike_for_all_observers,
            numbers_are_given_once,
            last_of_something_is_taken_once,
            follower_ends_with_the_present_state,
            engine_that_continues_another_has_later_revisions,
        }
    };
    (@each $with:path: $($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            $with($crate::conformance::$name);
        })*
    };
}

fn arc(open: Open<'_>) -> Arc<dyn Engine> {
    Arc::from(open())
}

fn done(outcome: Result<Outcome, EngineError>) -> Revision {
    match outcome {
        Ok(Outcome::Done(revision)) => revision,
        other => panic!("expected it to be done, got {other:?}"),
    }
}

fn put(engine: &dyn Engine, key: &str, value: &str) -> Revision {
    done(engine.transact(&[], &[Op::put(key, value)]))
}

fn soon(watch: &mut dyn Watch) -> Event {
    watch.recv(SOON).expect("the watch works").expect("a change in time")
}

pub fn what_was_put_is_read_by_another_view(open: Open<'_>) {
    let (one, other) = (open(), open());
    let revision = put(&*one, "/a", "1");
    let entry = other.read("/a").unwrap().unwrap();
    assert_eq!(
        (entry.value.as_slice(), entry.created, entry.modified, entry.lease),
        (&b"1"[..], revision, revision, None)
    );
    assert!(other.read("/b").unwrap().is_none());
}

pub fn list_is_ordered_and_keeps_to_its_prefix(open: Open<'_>) {
    let engine = open();
    for key in ["/p/b", "/p/a/x", "/pq", "/p/a", "/o/z", "/p/~"] {
        put(&*engine, key, key);
    }
    let keys: Vec<String> = engine.list("/p/").unwrap().entries.into_iter().map(|entry| entry.key).collect();
    assert_eq!(keys, ["/p/a", "/p/a/x", "/p/b", "/p/~"]);
    assert_eq!(engine.list("/").unwrap().entries.len(), 6);
}

pub fn lists_are_what_each_list_is(open: Open<'_>) {
    let engine = open();
    put(&*engine, "/one/a", "1");
    // More than any back end answers at once.
    for first in (0..600).step_by(OPS_PER_TRANSACTION_MAX) {
        let puts: Vec<Op> = (first..(first + OPS_PER_TRANSACTION_MAX).min(600))
            .map(|number| Op::put(format!("/many/{number:03}"), "x"))
            .collect();
        done(engine.transact(&[], &puts));
    }
    let prefixes = ["/many/", "/none/", "/one/", "/one/a", "/many/1"];
    let listings = engine.lists(&prefixes).unwrap();
    assert_eq!(listings.len(), prefixes.len());
    for (prefix, listing) in prefixes.iter().zip(listings) {
        assert_eq!(listing, engine.list(prefix).unwrap(), "{prefix}");
    }
    assert_eq!(engine.lists(&[]).unwrap(), []);
    assert!(matches!(engine.lists(&["/one/", "bad key"]), Err(EngineError::BadKey(_))));
    assert!(matches!(engine.lists(&["/one/"; OPS_PER_TRANSACTION_MAX + 1]), Err(EngineError::TooMany { .. })));
}

pub fn transaction_happens_whole_or_not_at_all(open: Open<'_>) {
    let engine = open();
    put(&*engine, "/a", "1");
    let wrong = [Compare::Present { key: "/a".into() }, Compare::Absent { key: "/a".into() }];
    let outcome = engine.transact(&wrong, &[Op::put("/b", "1"), Op::delete("/a")]).unwrap();
    assert!(matches!(outcome, Outcome::Conflict(_)));
    assert!(engine.read("/b").unwrap().is_none() && engine.read("/a").unwrap().is_some());
    let right = [Compare::Value { key: "/a".into(), equals: b"1".to_vec() }, Compare::Absent { key: "/b".into() }];
    let revision = done(engine.transact(&right, &[Op::put("/b", "1"), Op::delete("/a")]));
    assert_eq!(engine.read("/b").unwrap().unwrap().modified, revision);
    assert!(engine.read("/a").unwrap().is_none());
}

pub fn conflict_tells_what_is_there_instead(open: Open<'_>) {
    let engine = open();
    let old = put(&*engine, "/a", "1");
    put(&*engine, "/a", "2");
    let compares = [Compare::Modified { key: "/a".into(), at: old }, Compare::Present { key: "/none".into() }];
    let Outcome::Conflict(conflict) = engine.transact(&compares, &[Op::put("/a", "3")]).unwrap() else {
        panic!("no conflict")
    };
    let values: Vec<_> = conflict.current.iter().map(|entry| entry.as_ref().map(|entry| entry.value.clone())).collect();
    assert_eq!(values, [Some(b"2".to_vec()), None]);
}

pub fn key_made_again_has_a_new_created_revision(open: Open<'_>) {
    let engine = open();
    let first = put(&*engine, "/a", "1");
    put(&*engine, "/a", "2");
    assert_eq!(engine.read("/a").unwrap().unwrap().created, first);
    done(engine.transact(&[], &[Op::delete("/a")]));
    let again = put(&*engine, "/a", "3");
    assert!(again > first);
    assert_eq!(engine.read("/a").unwrap().unwrap().created, again);
    let fenced = engine.transact(&[Compare::Created { key: "/a".into(), at: first }], &[Op::delete("/a")]).unwrap();
    assert!(matches!(fenced, Outcome::Conflict(_)));
}

pub fn deleting_what_is_not_there_changes_nothing(open: Open<'_>) {
    let engine = open();
    let revision = put(&*engine, "/a", "1");
    assert_eq!(done(engine.transact(&[], &[Op::delete("/b")])), revision);
    assert_eq!(engine.list("/").unwrap().revision, revision);
}

pub fn bad_keys_and_sizes_are_refused(open: Open<'_>) {
    let engine = open();
    for key in ["", "a", "/", "/a b", "/a/", "/ä", &format!("/{}", "a".repeat(crate::KEY_BYTES_MAX))] {
        assert!(matches!(engine.read(key), Err(EngineError::BadKey(_))), "{key:?}");
        assert!(matches!(engine.transact(&[], &[Op::delete(key)]), Err(EngineError::BadKey(_))), "{key:?}");
    }
    let large = vec![0; crate::VALUE_BYTES_MAX + 1];
    assert!(matches!(engine.transact(&[], &[Op::put("/a", large)]), Err(EngineError::TooMany { .. })));
    let many: Vec<Op> = (0..=crate::OPS_PER_TRANSACTION_MAX).map(|index| Op::delete(format!("/{index}"))).collect();
    assert!(matches!(engine.transact(&[], &many), Err(EngineError::TooMany { .. })));
    assert!(matches!(engine.transact(&[], &[Op::delete("/a"), Op::put("/a", "")]), Err(EngineError::KeyNamedTwice(_))));
    assert!(matches!(engine.grant(Duration::ZERO), Err(EngineError::BadTtl(_))));
}

pub fn sixteen_counters_lose_no_increment(open: Open<'_>) {
    const EACH: u64 = 20;
    put(&*open(), "/counter", "0");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let engine = open();
                (0..EACH).for_each(|_| increment(&*engine, "/counter"));
            });
        }
    });
    assert_eq!(open().read("/counter").unwrap().unwrap().value, (16 * EACH).to_string().into_bytes());
}

/// Adds one by compare-and-set. A busy engine is asked again.
pub fn increment(engine: &dyn Engine, key: &str) {
    loop {
        let entry = engine.read(key).unwrap().expect("the counter exists");
        let number: u64 = String::from_utf8(entry.value).unwrap().parse().unwrap();
        let compare = Compare::Modified { key: key.into(), at: entry.modified };
        match engine.transact(&[compare], &[Op::put(key, (number + 1).to_string())]) {
            Ok(Outcome::Done(_)) => return,
            Ok(Outcome::Conflict(_)) | Err(EngineError::Busy { .. }) => (),
            Err(error) => panic!("{error}"),
        }
    }
}

pub fn watch_shows_changes_of_others_in_order_and_once(open: Open<'_>) {
    const CHANGES: u64 = 300;
    let (one, other) = (open(), open());
    let mut watch = one.watch("/w/", Revision(0)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..CHANGES {
                let ops =
                    [Op::put("/w/a", index.to_string()), Op::put("/else", "x"), Op::put("/w/b", index.to_string())];
                done(other.transact(&[], &ops));
            }
        });
        for index in 0..CHANGES {
            let (first, second) = (soon(&mut *watch), soon(&mut *watch));
            assert_eq!((first.key.as_str(), second.key.as_str(), first.revision), ("/w/a", "/w/b", second.revision));
            for event in [first, second] {
                let EventKind::Put { value, .. } = event.kind else { panic!("nothing was deleted") };
                assert_eq!(value, index.to_string().into_bytes());
            }
        }
    });
    assert!(watch.recv(A_WHILE).unwrap().is_none());
}

pub fn watch_from_the_past_shows_what_happened_since(open: Open<'_>) {
    let engine = open();
    put(&*engine, "/a", "1");
    let seen = put(&*engine, "/a", "2");
    put(&*engine, "/a", "3");
    done(engine.transact(&[], &[Op::delete("/a")]));
    let mut watch = engine.watch("/", seen).unwrap();
    assert!(matches!(soon(&mut *watch).kind, EventKind::Put { value, .. } if value == b"3"));
    assert_eq!(soon(&mut *watch).kind, EventKind::Delete);
    assert_eq!(watch.seen(), engine.list("/").unwrap().revision);
}

pub fn watch_without_changes_times_out(open: Open<'_>) {
    let engine = open();
    let mut watch = engine.watch("/", Revision(0)).unwrap();
    let began = Instant::now();
    assert!(watch.recv(A_WHILE).unwrap().is_none());
    assert!(began.elapsed() >= A_WHILE);
}

pub fn cancelled_watch_ends_at_once(open: Open<'_>) {
    let engine = open();
    let mut watch = engine.watch("/", Revision(0)).unwrap();
    let canceller = watch.canceller();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || watch.recv(LONG_TTL));
        canceller.cancel();
        assert!(matches!(waiter.join().unwrap(), Err(EngineError::Cancelled)));
    });
}

pub fn keys_vanish_with_their_lease_and_the_watch_sees_it(open: Open<'_>) {
    let (one, other) = (open(), open());
    let lease = one.grant(TTL).unwrap();
    let revision = done(one.transact(&[], &[Op::put_leased("/l/a", "1", lease), Op::put_leased("/l/b", "1", lease)]));
    assert_eq!(other.read("/l/a").unwrap().unwrap().lease, Some(lease));
    let mut watch = other.watch("/l/", revision).unwrap();
    let gone: Vec<Event> = (0..2).map(|_| soon(&mut *watch)).collect();
    assert!(gone.iter().all(|event| event.kind == EventKind::Delete));
    assert!(other.list("/l/").unwrap().entries.is_empty());
}

pub fn renewed_lease_goes_on(open: Open<'_>) {
    let engine = arc(open);
    let lease = KeptLease::hold(&engine, TTL).unwrap();
    done(engine.transact(&[], &[Op::put_leased("/a", "1", lease.id())]));
    assert!(!lease.wait_lost(TTL * 3));
    assert!(engine.read("/a").unwrap().is_some());
    drop(lease);
    assert!(engine.read("/a").unwrap().is_none());
}

pub fn lease_that_ended_is_refused(open: Open<'_>) {
    let engine = open();
    let lease = engine.grant(LONG_TTL).unwrap();
    engine.revoke(lease).unwrap();
    engine.revoke(lease).unwrap();
    assert!(matches!(engine.renew(lease), Err(EngineError::LeaseGone(gone)) if gone == lease));
    assert!(matches!(engine.transact(&[], &[Op::put_leased("/a", "1", lease)]), Err(EngineError::LeaseGone(_))));
    assert!(engine.read("/a").unwrap().is_none());
}

pub fn lease_outlives_the_view_that_granted_it(open: Open<'_>) {
    let (one, other) = (open(), open());
    let lease = one.grant(LONG_TTL).unwrap();
    done(one.transact(&[], &[Op::put_leased("/a", "1", lease)]));
    drop(one);
    other.renew(lease).unwrap();
    assert!(other.read("/a").unwrap().is_some());
}

pub fn lock_excludes_and_its_tokens_rise(open: Open<'_>) {
    let tokens = std::sync::Mutex::new((0_u32, Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let lease = KeptLease::hold(&arc(open), LONG_TTL).unwrap();
                for _ in 0..5 {
                    let guard = lock::lock(&lease, "l", SOON).unwrap();
                    tokens.lock().unwrap().0 += 1;
                    assert_eq!(tokens.lock().unwrap().0, 1, "two hold the lock");
                    tokens.lock().unwrap().1.push(guard.token());
                    tokens.lock().unwrap().0 -= 1;
                }
            });
        }
    });
    let tokens = tokens.into_inner().unwrap().1;
    assert_eq!(tokens.len(), 20);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

pub fn lock_passes_on_when_its_holder_stops_renewing(open: Open<'_>) {
    let engine = arc(open);
    // A holder that will never renew: the key as the lock makes it, on a lease without a thread.
    let silent = engine.grant(TTL).unwrap();
    let first = done(engine.transact(&[], &[Op::put_leased(format!("/locks/l/{silent}"), "", silent)]));
    let lease = KeptLease::hold(&engine, LONG_TTL).unwrap();
    let guard = lock::lock(&lease, "l", SOON).unwrap();
    assert!(guard.token() > first);
}

pub fn old_holder_is_refused_by_its_fence(open: Open<'_>) {
    let engine = arc(open);
    let old_lease = KeptLease::hold(&engine, LONG_TTL).unwrap();
    let old = lock::lock(&old_lease, "l", SOON).unwrap();
    done(engine.transact(&[old.fence()], &[Op::put("/data", "old")]));
    // Somebody decided that the old holder is gone; it does not know yet.
    engine.revoke(old_lease.id()).unwrap();
    let lease = KeptLease::hold(&engine, LONG_TTL).unwrap();
    let new = lock::lock(&lease, "l", SOON).unwrap();
    done(engine.transact(&[new.fence()], &[Op::put("/data", "new")]));
    assert!(matches!(engine.transact(&[old.fence()], &[Op::put("/data", "late")]).unwrap(), Outcome::Conflict(_)));
    drop(old);
    assert!(engine.transact(&[new.fence()], &[]).is_ok_and(|outcome| matches!(outcome, Outcome::Done(_))));
    assert_eq!(engine.read("/data").unwrap().unwrap().value, b"new");
}

pub fn waiting_for_a_lock_is_limited(open: Open<'_>) {
    let engine = arc(open);
    let (one, other) = (KeptLease::hold(&engine, LONG_TTL).unwrap(), KeptLease::hold(&engine, LONG_TTL).unwrap());
    let guard = lock::lock(&one, "l", SOON).unwrap();
    assert!(matches!(lock::lock(&other, "l", A_WHILE), Err(lock::LockError::TimedOut { .. })));
    assert!(matches!(lock::lock(&one, "l", A_WHILE), Err(lock::LockError::AlreadyWanted { .. })));
    assert_eq!(engine.list("/locks/l/").unwrap().entries.len(), 1, "who gave up left nothing behind");
    assert!(engine.transact(&[guard.fence()], &[]).is_ok_and(|outcome| matches!(outcome, Outcome::Done(_))));
}

pub fn leader_is_known_and_succeeded(open: Open<'_>) {
    let engine = arc(open);
    let (one, other) = (KeptLease::hold(&engine, LONG_TTL).unwrap(), KeptLease::hold(&engine, LONG_TTL).unwrap());
    assert!(lock::leader(&*engine, "e").unwrap().is_none());
    let first = lock::elect(&one, "e", b"one", SOON).unwrap();
    assert_eq!(lock::leader(&*engine, "e").unwrap(), Some((b"one".to_vec(), first.token())));
    std::thread::scope(|scope| {
        let successor = scope.spawn(|| lock::elect(&other, "e", b"other", SOON).unwrap());
        drop(first);
        let second = successor.join().unwrap();
        assert_eq!(lock::leader(&*engine, "e").unwrap(), Some((b"other".to_vec(), second.token())));
    });
}

pub fn views_are_numbered_alike_for_all_observers(open: Open<'_>) {
    let engine = arc(open);
    let lease = KeptLease::hold(&engine, LONG_TTL).unwrap();
    let mut observers: Vec<Observer> = (0..3).map(|_| Observer::new(&arc(open), "g")).collect();
    let _a = group::join(&lease, "g", "a", "").unwrap();
    assert!(matches!(group::join(&lease, "g", "a", ""), Err(group::GroupError::NameTaken { .. })));
    let first: Vec<_> = observers.iter_mut().map(|observer| observer.next_view(SOON).unwrap().unwrap()).collect();
    assert!(first.iter().all(|view| *view == first[0] && view.number == 1 && view.members.len() == 1), "{first:?}");
    let short = engine.grant(TTL).unwrap();
    done(engine.transact(&[], &[Op::put_leased("/groups/g/members/b", "", short)]));
    for observer in &mut observers {
        let view = observer.next_view(SOON).unwrap().unwrap();
        // A slow observer may meet the group when b's lease has ended already.
        assert!((view.number, view.members.len()) == (2, 2) || (view.number, view.members.len()) == (3, 1), "{view:?}");
        let last = if view.number == 3 { view } else { observer.next_view(SOON).unwrap().unwrap() };
        assert_eq!((last.number, last.members.len()), (3, 1));
    }
}

pub fn numbers_are_given_once(open: Open<'_>) {
    let given = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let given = &given;
            scope.spawn(move || {
                let engine = open();
                for owner in 0..5 {
                    let owner = format!("o{thread}-{owner}");
                    let number = allocate::number(&*engine, "s", &owner, 1..=20).unwrap();
                    assert_eq!(allocate::number(&*engine, "s", &owner, 1..=20).unwrap(), number);
                    given.lock().unwrap().push(number);
                }
            });
        }
    });
    let mut given = given.into_inner().unwrap();
    given.sort_unstable();
    assert_eq!(given, (1..=20).collect::<Vec<_>>());
    let engine = open();
    assert!(matches!(allocate::number(&*engine, "s", "more", 1..=20), Err(allocate::AllocateError::Exhausted { .. })));
    give_back(&*engine, "s", "o0-0");
    give_back(&*engine, "s", "o0-0");
    allocate::number(&*engine, "s", "more", 1..=20).unwrap();
}

pub fn last_of_something_is_taken_once(open: Open<'_>) {
    const THERE_ARE: usize = 5;
    let taken = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let taken = &taken;
            scope.spawn(move || {
                if take_with_a_record(&*open(), &format!("o{thread}"), THERE_ARE) {
                    taken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    let engine = open();
    assert_eq!((taken.into_inner(), engine.list("/taken/").unwrap().entries.len()), (THERE_ARE, THERE_ARE));
    // What an owner has it has, also when there are no more; what is given back can be taken.
    let owner = engine.list("/taken/").unwrap().entries[0].key["/taken/".len()..].to_owned();
    assert!(allocate::choose(&*engine, "t", &owner, 1..=1000, THERE_ARE).is_ok_and(|choice| choice.ops.is_empty()));
    assert!(!take_with_a_record(&*engine, "late", THERE_ARE));
    give_back(&*engine, "t", &owner);
    assert!(take_with_a_record(&*engine, "late", THERE_ARE));
}

fn give_back(engine: &dyn Engine, space: &str, owner: &str) {
    let (compares, ops) = allocate::releasing(engine, space, owner).unwrap();
    done(engine.transact(&compares, &ops));
}

/// Takes a number and writes a record of it, both or neither. False: all are taken.
fn take_with_a_record(engine: &dyn Engine, owner: &str, there_are: usize) -> bool {
    loop {
        let mut choice = match allocate::choose(engine, "t", owner, 1..=1000, there_are) {
            Ok(choice) => choice,
            Err(allocate::AllocateError::Exhausted { used, .. }) => {
                assert_eq!(used, there_are);
                return false;
            }
            Err(allocate::AllocateError::Engine(EngineError::Busy { .. })) => continue,
            Err(error) => panic!("{error}"),
        };
        choice.ops.push(Op::put(format!("/taken/{owner}"), choice.number.to_string()));
        match engine.transact(&choice.compares, &choice.ops) {
            Ok(Outcome::Done(_)) => return true,
            Ok(Outcome::Conflict(_)) | Err(EngineError::Busy { .. }) => (),
            Err(error) => panic!("{error}"),
        }
    }
}

pub fn follower_ends_with_the_present_state(open: Open<'_>) {
    let engine = arc(open);
    put(&*engine, "/f/before", "1");
    let (sender, receiver) = std::sync::mpsc::channel();
    let follower = Follower::start(&engine, "/f/", move |change| sender.send(change).unwrap()).unwrap();
    let Change::All(entries) = receiver.recv_timeout(SOON).unwrap() else { panic!("everything comes first") };
    assert_eq!(entries.len(), 1);
    put(&*open(), "/f/after", "2");
    let Change::One(event) = receiver.recv_timeout(SOON).unwrap() else { panic!("then the change") };
    assert_eq!(event.key, "/f/after");
    drop(follower);
    assert!(receiver.recv_timeout(SOON).is_err(), "a dropped follower says nothing more");
}

/// For back ends whose history can be made to end: `transactions` more than it keeps.
pub fn watch_that_fell_behind_the_history_is_told(open: Open<'_>, transactions: u64) {
    let engine = open();
    let mut behind = engine.watch("/", Revision(0)).unwrap();
    for index in 0..transactions {
        put(&*engine, "/a", &index.to_string());
    }
    assert!(matches!(behind.recv(SOON), Err(EngineError::Compacted { .. })));
    assert!(matches!(behind.recv(SOON), Err(EngineError::Compacted { .. })));
    let listing = engine.list("/").unwrap();
    let mut watch = engine.watch("/", listing.revision).unwrap();
    put(&*engine, "/b", "1");
    assert_eq!(soon(&mut *watch).key, "/b");
}

pub fn engine_that_continues_another_has_later_revisions(open: Open<'_>) {
    let before = Revision(1 << 40);
    let engine = open();
    engine.continue_after(before).unwrap();
    let (first, other) = (put(&*engine, "/a", "1"), open());
    assert!(first > before);
    let entry = other.read("/a").unwrap().unwrap();
    assert_eq!((entry.created, entry.modified), (first, first));
    let listing = other.list("/").unwrap();
    assert!(listing.revision >= first && listing.entries == [entry]);
    // Comparisons: what was true of the engine before is not true here.
    let modified = |at| [Compare::Modified { key: "/a".into(), at }];
    for at in [Revision(first.0 - before.0), before, Revision(1)] {
        let outcome = other.transact(&modified(at), &[Op::put("/a", "x")]).unwrap();
        let Outcome::Conflict(conflict) = outcome else { panic!("it is of {first}, not of {at}") };
        assert!(conflict.revision >= first && conflict.current[0].as_ref().unwrap().modified == first);
    }
    let second = done(other.transact(&modified(first), &[Op::put("/a", "2")]));
    let created = [Compare::Created { key: "/a".into(), at: first }];
    let third = done(engine.transact(&created, &[Op::put("/a", "3")]));
    assert!(third > second && second > first);
    let mut watch = other.watch("/a", first).unwrap();
    assert_eq!([soon(&mut *watch).revision, soon(&mut *watch).revision], [second, third]);
    // Whoever knows the state of the engine before has to list again.
    let mut late = other.watch("/a", Revision(before.0 - 7)).unwrap();
    assert!(matches!(late.recv(SOON), Err(EngineError::Compacted { .. })));
    assert!(matches!(engine.continue_after(third), Err(EngineError::NotEmpty)));
}
