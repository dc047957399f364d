//! The engine of several machines, with real members of etcd: the cases that every engine must pass, and those of
//! members that die, stop, are too few, are full, or are of another cluster.

mod members;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster::conformance::Open;
use cluster::etcd::EtcdEngine;
use cluster::etcd::membership::Promotion;
use cluster::lease::KeptLease;
use cluster::{Compare, Engine, EngineError, EventKind, Lookup, Op, Outcome, Revision};
use members::relay::Relay;
use members::{Members, Security, is_installed};

const SOON: Duration = Duration::from_secs(30);

fn with_one_member(case: fn(Open<'_>)) {
    if is_installed() {
        let members = Members::start(1, Security::Plain, &[]);
        case(&|| members.open());
    }
}

cluster::conformance_tests!(with_one_member);

mod three_members_with_certificates_and_users {
    use super::*;

    fn with_three_members(case: fn(Open<'_>)) {
        if is_installed() {
            let members = Members::start(3, Security::TlsAndUser, &[]);
            case(&|| members.open());
        }
    }

    cluster::conformance_tests!(with_three_members);
}

fn done(outcome: Result<Outcome, EngineError>) -> Revision {
    match outcome {
        Ok(Outcome::Done(revision)) => revision,
        other => panic!("expected it to be done, got {other:?}"),
    }
}

/// Kills, or stops for longer than an attempt, the leader and then others, until `is_over`.
fn disturb(members: &mut Members, is_over: &AtomicBool) -> usize {
    let mut faults = 0;
    while !is_over.load(Ordering::Relaxed) {
        let victim = if faults % 3 == 2 { faults % members.members.len() } else { members.leader() };
        if faults % 2 == 0 {
            members.members[victim].kill();
            std::thread::sleep(Duration::from_millis(700));
            members.members[victim].start();
            assert!(members.members[victim].serves());
        } else {
            members.members[victim].stop();
            std::thread::sleep(Duration::from_millis(1500));
            members.members[victim].go_on();
        }
        faults += 1;
        std::thread::sleep(Duration::from_millis(300));
    }
    faults
}

/// A client that gives each member little time, so that a stopped one is a lost answer.
fn impatient(members: &Members) -> EtcdEngine {
    let mut config = members.config();
    config.attempt = Duration::from_millis(400);
    config.patience = SOON;
    EtcdEngine::open(config).unwrap()
}

#[test]
fn every_transaction_happens_once_while_members_die_and_stop() {
    if !is_installed() {
        return;
    }
    let mut members = Members::start(3, Security::Plain, &[]);
    let engines: Vec<EtcdEngine> = (0..4).map(|_| impatient(&members)).collect();
    let (is_over, made) = (AtomicBool::new(false), AtomicU64::new(0));
    done(engines[0].transact(&[], &[Op::put("/sum", "0")]));
    let until = Instant::now() + Duration::from_secs(12);
    let faults = std::thread::scope(|threads| {
        let writers: Vec<_> = engines
            .iter()
            .enumerate()
            .map(|(writer, engine)| {
                let made = &made;
                threads.spawn(move || {
                    for count in 0.. {
                        if Instant::now() >= until {
                            return;
                        }
                        // It would be refused if an attempt had happened before, unseen.
                        let key = format!("/log/{writer}/{count}");
                        let absent = Compare::Absent { key: key.clone() };
                        done(engine.transact(&[absent], &[Op::put(key, "1")]));
                        cluster::conformance::increment(engine, "/sum");
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let (members, is_over) = (&mut members, &is_over);
        let disturber = threads.spawn(move || disturb(members, is_over));
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        let faults = disturber.join().unwrap();
        ended.into_iter().for_each(|ended| ended.unwrap());
        faults
    });
    let made = made.into_inner();
    assert!(faults >= 3 && made >= 20, "{faults} faults, {made} rounds");
    assert_eq!(engines[0].list("/log/").unwrap().entries.len() as u64, made);
    assert_eq!(engines[0].read("/sum").unwrap().unwrap().value, made.to_string().into_bytes());
}

/// An engine whose first attempts go over a relay, and one that has nothing to do with it.
fn with_a_relay(patience: Duration, case: fn(&Relay, &EtcdEngine, &dyn Engine)) {
    if !is_installed() {
        return;
    }
    let members = Members::start(1, Security::Plain, &[]);
    let relay = Relay::start(&members.members[0].address);
    let mut config = members.config();
    // Where patience is short, the first attempt takes all of it.
    (config.attempt, config.patience) = (if patience < SOON { patience } else { Duration::from_millis(600) }, patience);
    config.members.insert(0, relay.address.clone());
    let (engine, other) = (EtcdEngine::open(config).unwrap(), members.open());
    done(engine.transact(&[], &[Op::put("/a", "0")]));
    relay.keep();
    case(&relay, &engine, &*other);
}

/// Lets the attempt that was kept arrive, and looks for long enough that it would be seen.
fn arrives_without_effect(relay: &Relay, other: &dyn Engine, key: &str, value: Option<&str>) {
    assert!(relay.let_go() >= 1, "an attempt was kept");
    let until = Instant::now() + Duration::from_millis(700);
    while Instant::now() < until {
        let found = other.read(key).unwrap().map(|entry| String::from_utf8(entry.value).unwrap());
        assert_eq!(found.as_deref(), value);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn late_attempt_changes_nothing_after_another_one_was_done() {
    with_a_relay(SOON, |relay, engine, other| {
        done(engine.transact(&[Compare::Present { key: "/a".into() }], &[Op::put("/a", "1")]));
        done(other.transact(&[], &[Op::put("/a", "2")]));
        arrives_without_effect(relay, other, "/a", Some("2"));
    });
}

#[test]
fn late_attempt_changes_nothing_after_a_conflict() {
    with_a_relay(SOON, |relay, engine, other| {
        let wanted = Compare::Value { key: "/a".into(), equals: b"x".to_vec() };
        let outcome = engine.transact(&[wanted], &[Op::put("/a", "1")]).unwrap();
        assert!(matches!(outcome, Outcome::Conflict(_)));
        done(other.transact(&[], &[Op::put("/a", "x")]));
        arrives_without_effect(relay, other, "/a", Some("x"));
    });
}

#[test]
fn late_attempt_deletes_nothing_that_came_after_it_was_answered() {
    with_a_relay(SOON, |relay, engine, other| {
        done(engine.transact(&[], &[Op::delete("/d")]));
        done(other.transact(&[], &[Op::put("/d", "new")]));
        arrives_without_effect(relay, other, "/d", Some("new"));
    });
}

#[test]
fn attempt_of_a_call_without_an_answer_changes_nothing_after_the_next_call() {
    with_a_relay(Duration::from_secs(2), |relay, engine, other| {
        assert!(matches!(engine.transact(&[], &[Op::put("/a", "1")]), Err(EngineError::Unknown(_))));
        done(engine.transact(&[], &[Op::put("/a", "2")]));
        arrives_without_effect(relay, other, "/a", Some("2"));
    });
}

#[test]
fn attempt_of_a_call_without_an_answer_changes_nothing_after_the_next_call_met_a_conflict() {
    with_a_relay(Duration::from_secs(2), |relay, engine, other| {
        let lock = || engine.transact(&[Compare::Absent { key: "/lock".into() }], &[Op::put("/lock", "mine")]);
        assert!(matches!(lock(), Err(EngineError::Unknown(_))));
        done(other.transact(&[], &[Op::put("/lock", "theirs")]));
        assert!(matches!(lock().unwrap(), Outcome::Conflict(_)));
        done(other.transact(&[], &[Op::delete("/lock")]));
        arrives_without_effect(relay, other, "/lock", None);
    });
}

#[test]
fn watch_ends_with_its_engine() {
    if !is_installed() {
        return;
    }
    let members = Members::start(1, Security::Plain, &[]);
    let engine = members.open();
    let mut watch = engine.watch("/", Revision(0)).unwrap();
    done(engine.transact(&[], &[Op::put("/a", "1")]));
    assert!(watch.recv(SOON).unwrap().is_some());
    drop(engine);
    assert!(matches!(watch.recv(SOON), Err(EngineError::Cancelled)));
}

#[test]
fn transaction_that_no_member_would_take_is_refused_before_it_is_sent() {
    if !is_installed() {
        return;
    }
    let members = Members::start(1, Security::Plain, &[]);
    let engine = members.open();
    let value = vec![0; cluster::VALUE_BYTES_MAX];
    done(engine.transact(&[], &[Op::put("/a", &*value)]));
    let both = engine.transact(&[], &[Op::put("/a", &*value), Op::put("/b", &*value)]);
    assert!(matches!(both, Err(EngineError::TooMany { .. })), "{both:?}");
}

#[test]
fn watch_goes_on_without_gap_or_repetition_while_members_die_and_stop() {
    if !is_installed() {
        return;
    }
    let mut members = Members::start(3, Security::Plain, &[]);
    let (writer, watcher) = (impatient(&members), impatient(&members));
    let mut watch = watcher.watch("/w/", Revision(0)).unwrap();
    let is_over = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_secs(10);
    let (seen, written, faults) = std::thread::scope(|threads| {
        let (members, is_over) = (&mut members, &is_over);
        let disturber = threads.spawn(move || disturb(members, is_over));
        let writes = threads.spawn(|| {
            let mut count = 0_u64;
            while Instant::now() < until {
                done(writer.transact(&[], &[Op::put("/w/a", count.to_string()), Op::put("/w/b", count.to_string())]));
                count += 1;
            }
            done(writer.transact(&[], &[Op::put("/w/end", "")]));
            count
        });
        let watched = threads.spawn(move || {
            let mut seen = Vec::new();
            loop {
                match watch.recv(SOON) {
                    Ok(Some(event)) if event.key == "/w/end" => return Ok(seen),
                    Ok(Some(event)) => seen.push(event),
                    other => return Err(format!("{other:?} after {} events", seen.len())),
                }
            }
        });
        let (written, seen) = (writes.join(), watched.join());
        is_over.store(true, Ordering::Relaxed);
        (seen.unwrap().unwrap(), written.unwrap(), disturber.join().unwrap())
    });
    assert!(faults >= 2 && written >= 10, "{faults} faults, {written} transactions");
    assert_eq!(seen.len() as u64, 2 * written);
    for (index, event) in seen.iter().enumerate() {
        let EventKind::Put { value, .. } = &event.kind else { panic!("nothing was deleted") };
        assert_eq!((event.key.as_str(), value), (["/w/a", "/w/b"][index % 2], &(index / 2).to_string().into_bytes()));
        assert!(index == 0 || event.revision >= seen[index - 1].revision);
    }
}

#[test]
fn lease_outlives_a_change_of_leader() {
    if !is_installed() {
        return;
    }
    let mut members = Members::start(3, Security::Plain, &[]);
    let engine: Arc<dyn Engine> = Arc::new(impatient(&members));
    let lease = KeptLease::hold(&engine, Duration::from_secs(6)).unwrap();
    done(engine.transact(&[], &[Op::put_leased("/l", "1", lease.id())]));
    for _ in 0..2 {
        let leader = members.leader();
        members.members[leader].kill();
        assert!(!lease.wait_lost(Duration::from_secs(4)));
        members.members[leader].start();
        assert!(members.members[leader].serves());
    }
    assert!(engine.read("/l").unwrap().is_some());
}

#[test]
fn call_under_way_at_a_host_of_which_nothing_is_heard_is_made_elsewhere_at_once() {
    if !is_installed() {
        return;
    }
    let members = Members::start(3, Security::Plain, &[]);
    let leader = members.leader();
    let asked = (leader + 1) % 3;
    let mut config = members.config();
    (config.first_member, config.attempt, config.patience) = (asked, SOON, SOON);
    let host = config.members[asked].host.clone();
    let engine = EtcdEngine::open(config).unwrap();
    done(engine.transact(&[], &[Op::put("/a", "0")]));
    members.members[asked].stop();
    let took = std::thread::scope(|threads| {
        let asking = threads.spawn(|| {
            let begin = Instant::now();
            done(engine.transact(&[], &[Op::put("/a", "1")]));
            begin.elapsed()
        });
        std::thread::sleep(Duration::from_millis(300));
        engine.set_silent([host].into());
        asking.join().unwrap()
    });
    members.members[asked].go_on();
    assert!(took >= Duration::from_millis(250) && took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn request_that_was_lost_with_the_leader_is_sent_again_soon_by_who_cannot_wait() {
    if !is_installed() {
        return;
    }
    let members = Members::start(3, Security::Plain, &[]);
    let leader = members.leader();
    let mut config = members.config();
    (config.first_member, config.attempt, config.patience) = ((leader + 1) % 3, SOON, SOON);
    let engine = EtcdEngine::open(config).unwrap();
    done(engine.transact(&[], &[Op::put("/a", "0")]));
    members.members[leader].stop();
    let begin = Instant::now();
    let hurried = engine.hurried(Duration::from_millis(400)).unwrap();
    done(hurried.transact(&[], &[Op::put("/a", "1")]));
    let took = begin.elapsed();
    members.members[leader].go_on();
    assert!(took < Duration::from_secs(10), "{took:?}");
    eprintln!("answered after {took:?}, over {} connections", engine.connections());
    assert_eq!(engine.read("/a").unwrap().unwrap().value, b"1");
}

#[test]
fn too_few_members_are_an_error_of_their_own_and_all_goes_on_with_enough() {
    if !is_installed() {
        return;
    }
    let mut members = Members::start(3, Security::Plain, &[]);
    let mut config = members.config();
    config.patience = Duration::from_secs(3);
    config.attempt = Duration::from_secs(1);
    let engine = EtcdEngine::open(config).unwrap();
    let mut watch = engine.watch("/", Revision(0)).unwrap();
    done(engine.transact(&[], &[Op::put("/a", "1")]));
    assert!(watch.recv(SOON).unwrap().is_some());
    for index in [0, 1] {
        members.members[index].kill();
    }
    // Until it has noticed, the last member lets requests wait.
    let until = Instant::now() + SOON;
    loop {
        let began = Instant::now();
        let refused = engine.transact(&[], &[Op::put("/b", "1")]).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        if matches!(refused, EngineError::NoQuorum(_)) {
            break;
        }
        assert!(matches!(refused, EngineError::Unknown(_) | EngineError::Unreachable(_)), "{refused:?}");
        assert!(Instant::now() < until, "{refused:?}");
    }
    assert!(matches!(engine.read("/a"), Err(EngineError::NoQuorum(_) | EngineError::Unreachable(_))));
    for index in [0, 1] {
        members.members[index].start();
    }
    let until = Instant::now() + SOON;
    while engine.transact(&[], &[Op::put("/c", "1")]).is_err() {
        assert!(Instant::now() < until);
    }
    // An attempt whose outcome was not known may have happened; what was refused did not.
    let last = std::iter::from_fn(|| watch.recv(SOON).unwrap()).find(|event| event.key == "/c");
    assert!(last.is_some());
}

#[test]
fn certificates_of_others_are_an_error_of_their_own() {
    if !is_installed() {
        return;
    }
    let members = Members::start(1, Security::TlsAndUser, &[]);
    for tls in [members.foreign_tls(), members.untrusted_tls()] {
        let mut config = members.config();
        config.tls = Some(tls);
        let began = Instant::now();
        let refused = EtcdEngine::open(config).map(drop).unwrap_err();
        assert!(matches!(refused, EngineError::Untrusted(_)), "{refused:?}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    let mut config = members.config();
    config.tls = None;
    config.patience = Duration::from_secs(1);
    let refused = EtcdEngine::open(config).map(drop).unwrap_err();
    assert!(matches!(refused, EngineError::Unreachable(_)), "{refused:?}");
}

#[test]
fn user_with_a_wrong_password_is_denied_and_one_without_rights_as_well() {
    if !is_installed() {
        return;
    }
    let members = Members::start(1, Security::TlsAndUser, &[]);
    let open = |name: &str, password: &str| {
        let mut config = members.config();
        let user = config.user.as_mut().unwrap();
        (user.name, user.password) = (name.to_owned(), password.to_owned());
        EtcdEngine::open(config).map(drop)
    };
    for (name, password) in [("root", "wrong"), ("nobody", "wrong")] {
        let refused = open(name, password).unwrap_err();
        assert!(matches!(refused, EngineError::Denied(_)), "{refused:?}");
    }
    members.etcdctl(0, &["user", "add", "guest:guest"]).expect("a user without a role");
    assert!(matches!(open("guest", "guest"), Err(EngineError::Denied(_))));
    members.etcdctl(0, &["role", "add", "dvs"]).expect("a role");
    members.etcdctl(0, &["role", "grant-permission", "dvs", "--prefix=true", "readwrite", "dvs/test"]).expect("rights");
    members.etcdctl(0, &["user", "grant-role", "guest", "dvs"]).expect("a user with a role");
    open("guest", "guest").expect("whoever may use the cluster's keys alone can serve it");
}

#[test]
fn full_engine_is_an_error_of_its_own_and_serves_again_with_room() {
    if !is_installed() {
        return;
    }
    let members = Members::start(1, Security::Plain, &["--quota-backend-bytes=4000000"]);
    let engine = members.open();
    let value = vec![b'v'; 100_000];
    let full = (0..200).find_map(|index| engine.transact(&[], &[Op::put(format!("/f/{index}"), &*value)]).err());
    assert!(matches!(full, Some(EngineError::Full(_))), "{full:?}");
    assert!(engine.read("/f/0").unwrap().is_some(), "what is there can be read");
    // Deleting is allowed; room comes from compaction and defragmentation, by the hand of an operator.
    // Also by one who comes now.
    done(members.open().transact(&[], &[Op::delete("/f/0")]));
    let revision =
        done(engine.transact(&[], &(1..60).map(|index| Op::delete(format!("/f/{index}"))).collect::<Vec<_>>()));
    // Without `--physical` it answers before what is over has left the file.
    members.etcdctl(0, &["compact", "--physical", &revision.to_string()]).expect("compacted");
    members.etcdctl(0, &["defrag"]).expect("defragmented");
    members.etcdctl(0, &["alarm", "disarm"]).expect("disarmed");
    done(engine.transact(&[], &[Op::put("/f/again", "1")]));
}

#[test]
fn compaction_is_told_to_who_is_behind_and_to_nobody_else() {
    if !is_installed() {
        return;
    }
    let members = Members::start(1, Security::Plain, &[]);
    let engine = members.open();
    let first = done(engine.transact(&[], &[Op::put("/a", "0")]));
    let mut behind = 0;
    let mut current = engine.watch("/", first).unwrap();
    for index in 1..=50 {
        behind = done(engine.transact(&[], &[Op::put("/a", index.to_string())])).0;
        assert!(current.recv(SOON).unwrap().is_some());
    }
    members.etcdctl(0, &["compact", &behind.to_string()]).expect("compacted");
    let mut late = engine.watch("/", first).unwrap();
    assert!(matches!(late.recv(SOON), Err(EngineError::Compacted { .. })));
    assert!(matches!(late.recv(SOON), Err(EngineError::Compacted { .. })));
    done(engine.transact(&[], &[Op::put("/b", "1")]));
    assert_eq!(current.recv(SOON).unwrap().unwrap().key, "/b");
}

/// Two ports that were free a moment ago.
fn free_ports() -> (u16, u16) {
    let (a, b) =
        (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    (a.local_addr().unwrap().port(), b.local_addr().unwrap().port())
}

/// Until something is so.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < until, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn members_come_as_learners_and_go_while_a_writer_goes_on() {
    if !is_installed() {
        return;
    }
    let mut cluster = Members::start(1, Security::Plain, &[]);
    let engine = EtcdEngine::open(cluster.config()).unwrap();
    let until = Instant::now() + 3 * SOON;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) && Instant::now() < until {
                count += 1;
                assert!(matches!(engine.transact(&[], &[Op::put("/count", count.to_string())]), Ok(Outcome::Done(_))));
            }
            count
        });
        for _ in 0..2 {
            let (client, peer) = free_ports();
            let url = format!("http://127.0.0.1:{peer}");
            engine.add_learner(&url).unwrap();
            engine.add_learner(&url).expect("again is no error");
            let learner = engine.listed_members().unwrap().into_iter().find(|member| member.peer_url == url).unwrap();
            assert!(learner.is_learner && !learner.has_started);
            assert_eq!(engine.promote(learner.id).unwrap(), Promotion::Behind);
            cluster.start_further(&url, client);
            eventually("a voter", || engine.promote(learner.id).unwrap() == Promotion::Done);
            assert_eq!(engine.promote(learner.id).expect("again is no error"), Promotion::Done);
            engine.set_members(cluster.members.iter().map(|member| member.address.clone()).collect()).unwrap();
        }
        // The first goes, which serves this engine and leads.
        let listed = engine.listed_members().unwrap();
        assert_eq!(listed.iter().filter(|member| !member.is_learner && member.has_started).count(), 3);
        let first = listed.iter().find(|member| cluster.members[0].listens_to_peers_at(&member.peer_url)).unwrap();
        engine.set_members(cluster.members[1..].iter().map(|member| member.address.clone()).collect()).unwrap();
        engine.remove_member(first.id).unwrap();
        engine.remove_member(first.id).expect("again is no error");
        eventually("its process has ended", || cluster.members[0].has_ended());
        eventually("two are left", || engine.listed_members().is_ok_and(|listed| listed.len() == 2));
        stop.store(true, Ordering::Relaxed);
        let count = written.join().unwrap();
        assert_eq!(engine.read("/count").unwrap().unwrap().value, count.to_string().into_bytes());
    });
}

/// Somebody began the engine anew, of a backup, while a daemon was running.
#[test]
fn another_cluster_at_the_same_address_is_noticed_and_nothing_is_written_there() {
    if !is_installed() {
        return;
    }
    let mut cluster = Members::start(1, Security::Plain, &[]);
    let engine = EtcdEngine::open(cluster.config()).unwrap();
    let revision = done(engine.transact(&[], &[Op::put("/a", "1")]));
    let mut watch = engine.watch("/", revision).unwrap();
    cluster.members[0].begin_anew();
    assert!(cluster.members[0].serves());
    let absent = [Compare::Absent { key: "/a".into() }];
    let written = engine.transact(&absent, &[Op::put("/a", "of before")]);
    assert!(matches!(written, Err(EngineError::Replaced)), "{written:?}");
    assert!(matches!(engine.read("/a"), Err(EngineError::Replaced)));
    assert!(matches!(engine.list("/"), Err(EngineError::Replaced)));
    assert!(matches!(watch.recv(SOON), Err(EngineError::Replaced)));
    let anew = EtcdEngine::open(cluster.config()).unwrap();
    assert_eq!(anew.list("/").unwrap().entries, []);
}
