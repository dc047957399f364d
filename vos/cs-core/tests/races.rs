//! Locks and values over several servers, and whatever may happen to these: one owner after the other, with rising
//! tokens, and each change once.

mod world;

use std::collections::{BTreeMap, BTreeSet};

use vos_api::Errno;
use vos_api::Measured;
use vos_api::cs::{ABSENT, ANY, Acquire, Fencing, Put, Race, Release, Request, Version, WISHES_MAX};
use world::World;

const NODES: u8 = 3;

#[derive(Clone, PartialEq, Debug)]
enum Wish {
    None,
    Asked,
    Held(u64),
    Releasing(u64),
}

struct Client {
    node: u8,
    session: u64,
    wish: Wish,
    lock: u64,
    /// What has no answer yet, by sequence, as it is sent again.
    puts: BTreeMap<u64, (u64, Vec<u8>, u64)>,
    next: u64,
    done: Vec<(Vec<u8>, u64)>,
}

struct Story {
    clients: Vec<Client>,
    /// In the order in which owners heard that they are.
    tokens: Vec<u64>,
    /// A lease ended while its node lived: who has not heard of it may be behind.
    has_lost: bool,
}

impl Story {
    fn ask(&mut self, world: &mut World, which: usize) {
        let client = &mut self.clients[which];
        let name = Measured(b"stock");
        match client.wish {
            Wish::None => {
                client.wish = Wish::Asked;
                let wait_ms = if world.rng.one_in(3) { 50 } else { 3_600_000 };
                let acquire = Acquire { race: Race::Lock, name, wait_ms, value: b"" };
                client.lock = world.call(client.node, client.session, 0, Request::Acquire(acquire));
            }
            Wish::Held(token) => {
                client.wish = Wish::Releasing(token);
                let release = Release { race: Race::Lock, name, token };
                client.lock = world.call(client.node, client.session, 0, Request::Release(release));
            }
            Wish::Asked | Wish::Releasing(_) => {}
        }
    }

    fn put(&mut self, world: &mut World, which: usize) {
        let client = &mut self.clients[which];
        if client.puts.len() > 5 {
            return;
        }
        let value = format!("{}:{}", client.session, client.next).into_bytes();
        let condition = if world.rng.one_in(4) { ABSENT } else { ANY };
        let put = Put { key: Measured(b"key"), condition, value: &value };
        let ticket = world.call(client.node, client.session, client.next, Request::Put(put));
        client.puts.insert(client.next, (ticket, value, condition));
        client.next += 1;
    }

    fn listen(&mut self, world: &mut World) {
        while let Some((node, ticket, answer)) = world.answers.pop_front() {
            for client in self.clients.iter_mut().filter(|client| client.node == node) {
                if client.lock == ticket {
                    client.lock = 0;
                    client.wish = match (&client.wish, &answer) {
                        (Wish::Asked, Ok(said)) => {
                            let token = Fencing::from(said.words).token;
                            self.tokens.push(token);
                            Wish::Held(token)
                        }
                        _ => Wish::None,
                    };
                }
                let sequence = client.puts.iter().find(|(_, put)| put.0 == ticket).map(|(sequence, _)| *sequence);
                if let Some((_, value, _)) = sequence.and_then(|sequence| client.puts.remove(&sequence)) {
                    match &answer {
                        Ok(said) => client.done.push((value, Version::from(said.words).revision)),
                        Err(errno) => assert!(matches!(errno, Errno::Exists | Errno::Unreachable), "{errno}"),
                    }
                }
            }
        }
    }

    /// The server was killed: its clients come back, and ask again what was not answered.
    fn come_back(&mut self, world: &mut World, node: u8) {
        while !world.node(node).core.is_ready() {
            assert!(world.step());
        }
        let has_lost = self.has_lost;
        for client in self.clients.iter_mut().filter(|client| client.node == node) {
            let now = world.now;
            let acknowledged = client.puts.keys().next().copied().unwrap_or(client.next) - 1;
            if world.node(node).core.open(client.session, acknowledged, now).is_err() {
                // Only where the lease ended as well. It begins anew, and what it had under way is unknown to it.
                assert!(has_lost, "the session goes on");
                client.session += 1000;
                (client.next, client.wish, client.lock) = (1, Wish::None, 0);
                client.puts.clear();
                world.node(node).core.open(client.session, 0, now).expect("a new session");
            }
            for (sequence, (ticket, value, condition)) in client.puts.clone() {
                let put = Put { key: Measured(b"key"), condition, value: &value };
                let again = world.call(node, client.session, sequence, Request::Put(put));
                client.puts.insert(sequence, (again, value, condition));
                assert_ne!(again, ticket);
            }
            let name = Measured(b"stock");
            match client.wish {
                Wish::Asked => {
                    let acquire = Acquire { race: Race::Lock, name, wait_ms: 3_600_000, value: b"" };
                    client.lock = world.call(node, client.session, 0, Request::Acquire(acquire));
                }
                Wish::Releasing(token) => {
                    let release = Release { race: Race::Lock, name, token };
                    client.lock = world.call(node, client.session, 0, Request::Release(release));
                }
                Wish::None | Wish::Held(_) => {}
            }
        }
    }

    fn check(&self, world: &World) {
        if !self.has_lost {
            assert!(self.tokens.is_sorted_by(|one, next| one < next), "one owner after the other: {:?}", self.tokens);
        }
        let unique: BTreeSet<&u64> = self.tokens.iter().collect();
        assert_eq!(unique.len(), self.tokens.len(), "no token twice");
        let mut written: BTreeMap<&[u8], usize> = BTreeMap::new();
        for (_, value) in world.engine.written.iter().filter(|(key, _)| key == "k/key") {
            *written.entry(value).or_default() += 1;
        }
        // Where the lease ends between two attempts, what the first of them did is forgotten (`services.md`).
        let twice: Vec<_> = written.iter().filter(|(_, times)| **times > 1 && !self.has_lost).collect();
        assert!(twice.is_empty(), "a change happened twice: {twice:?}");
        for (value, _) in self.clients.iter().flat_map(|client| &client.done) {
            assert!(written.contains_key(value.as_slice()), "what was said to be done is");
        }
    }
}

fn tell(seed: u64, leases_end: bool) {
    println!("seed {seed}");
    let mut world = World::new(seed, NODES);
    world.settle(500, |_| ());
    let mut story = Story { clients: Vec::new(), tokens: Vec::new(), has_lost: false };
    for session in 1..=6 {
        let node = (session % u64::from(NODES)) as u8;
        let now = world.now;
        world.node(node).core.open(session, 0, now).expect("a new session");
        let (puts, done) = (BTreeMap::new(), Vec::new());
        story.clients.push(Client { node, session, wish: Wish::None, lock: 0, puts, next: 1, done });
    }
    for _ in 0..600 {
        let which = world.rng.below(6) as usize;
        let node = world.rng.below(u64::from(NODES)) as u8;
        match world.rng.below(100) {
            0..20 => story.ask(&mut world, which),
            20..35 => story.put(&mut world, which),
            35 => {
                world.kill(node);
                story.come_back(&mut world, node);
            }
            36 => world.daemon_takes_over(node),
            37 if leases_end && world.rng.one_in(4) => {
                world.end_lease(node);
                story.has_lost = true;
            }
            38..44 => world.pass(30),
            _ => {
                for _ in 0..world.rng.below(10) {
                    world.step();
                }
            }
        }
        story.listen(&mut world);
    }
    story.check(&world);
    // Everybody lets go of what he has, until nobody waits.
    for _ in 0..40 {
        world.settle(1_000, |world| story.listen(world));
        (0..6)
            .filter(|which| matches!(story.clients[*which].wish, Wish::Held(_)))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|which| story.ask(&mut world, which));
    }
    world.settle(10_000, |world| story.listen(world));
    story.check(&world);
    for client in &story.clients {
        let is_quiet = client.wish == Wish::None && client.puts.is_empty();
        assert!(is_quiet, "{} waits: {:?} {:?}; {:?}", client.session, client.wish, client.puts, world.queue());
    }
    let left: Vec<&String> = world.engine.keys.keys().filter(|key| key.starts_with("l/")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn owners_follow_each_other_and_changes_happen_once_while_servers_and_daemons_go() {
    (0..150).for_each(|seed| tell(seed, false));
}

#[test]
fn tokens_are_given_once_also_when_leases_end() {
    (500..600).for_each(|seed| tell(seed, true));
}

#[test]
fn member_that_wants_everything_is_refused_and_others_names_and_sessions_are_not_its_own() {
    let mut world = World::new(1, 1);
    world.settle(500, |_| ());
    world.node(0).core.open(1, 0, 1).expect("a new session");
    let acquire = |world: &mut World, name: &str| {
        let acquire = Acquire { race: Race::Lock, name: Measured(name.as_bytes()), wait_ms: 0, value: b"" };
        world.call(0, 1, 0, Request::Acquire(acquire))
    };
    for number in 0..WISHES_MAX {
        acquire(&mut world, &format!("lock-{number}"));
    }
    let refused = acquire(&mut world, "one-more");
    let answer = world.answers.iter().find(|(_, ticket, _)| *ticket == refused).map(|(.., answer)| answer.clone());
    assert_eq!(answer, Some(Err(Errno::NoSpace)));
    for bad in ["", "a/b", "../k/x", " "] {
        let ticket = acquire(&mut world, bad);
        let answer = world.answers.iter().find(|(_, one, _)| *one == ticket).map(|(.., answer)| answer.clone());
        assert_eq!(answer, Some(Err(Errno::Invalid)), "{bad:?}");
    }
    world.settle(1_000, |world| world.answers.clear());
    assert_eq!(world.queue().len(), WISHES_MAX);
    let now = world.now;
    world.node(0).core.close(1, now);
    world.turn(0);
    world.settle(1_000, |world| world.answers.clear());
    assert!(world.queue().is_empty(), "all is free when its session is over");
}

/// Its server is killed before it could be withdrawn, and is first in the queue when it comes back.
#[test]
fn lock_is_of_nobody_who_was_told_that_his_time_is_over_while_the_engine_was_away() {
    let mut world = World::new(1, 2);
    world.settle(500, |_| ());
    for (node, session) in [(0, 1), (1, 2), (0, 3)] {
        world.node(node).core.open(session, 0, 1).expect("a new session");
    }
    let name = Measured(b"stock");
    let lock = |world: &mut World, node, session, wait_ms| {
        world.call(node, session, 0, Request::Acquire(Acquire { race: Race::Lock, name, wait_ms, value: b"" }))
    };
    let answer = |world: &World, ticket| {
        world.answers.iter().find(|(_, one, _)| *one == ticket).map(|(.., answer)| answer.clone())
    };
    let settled = |world: &mut World| while world.step() {};
    let first = lock(&mut world, 0, 1, 0);
    settled(&mut world);
    let token = Fencing::from(answer(&world, first).expect("an answer").expect("it is free").words).token;
    let second = lock(&mut world, 1, 2, 50);
    settled(&mut world);
    // The engine says nothing meanwhile.
    world.pass(100);
    world.pass(10_000);
    let told = answer(&world, second);
    world.kill(1);
    world.call(0, 1, 0, Request::Release(Release { race: Race::Lock, name, token }));
    settled(&mut world);
    let now = world.now;
    world.node(1).core.open(2, 0, now).expect("it comes back");
    // What was not answered is asked again.
    let again = told.is_none().then(|| lock(&mut world, 1, 2, 50));
    world.settle(20_000, |_| ());
    let has_it = again.and_then(|again| answer(&world, again)).is_some_and(|answer| answer.is_ok());
    let third = lock(&mut world, 0, 3, 1_000);
    world.settle(20_000, |_| ());
    let is_free = answer(&world, third).is_some_and(|answer| answer.is_ok());
    assert!(has_it != is_free, "told {told:?}; who has it knows that, or it is free: {:?}", world.queue());
}

#[test]
fn candidate_who_comes_again_is_called_what_it_says_now() {
    let mut world = World::new(1, 1);
    world.settle(500, |_| ());
    for session in [1, 2] {
        world.node(0).core.open(session, 0, 1).expect("a new session");
    }
    let name = Measured(b"chief");
    let campaign = |world: &mut World, session, value: &[u8], wait_ms| {
        let acquire = Acquire { race: Race::Election, name, wait_ms, value };
        world.call(0, session, 0, Request::Acquire(acquire))
    };
    let answer = |world: &World, ticket| {
        world.answers.iter().find(|(_, one, _)| *one == ticket).map(|(.., answer)| answer.clone())
    };
    let chief = campaign(&mut world, 1, b"chief", 0);
    let early = campaign(&mut world, 2, b"early", 50);
    for _ in 0..100 {
        world.step();
    }
    let token = Fencing::from(answer(&world, chief).expect("an answer").expect("it leads").words).token;
    // The engine says nothing, so the first candidacy is still there when the second one comes.
    world.pass(100);
    world.pass(10_000);
    assert_eq!(answer(&world, early), None, "it is told when it is withdrawn");
    let late = campaign(&mut world, 2, b"late", 60_000);
    world.call(0, 1, 0, Request::Release(Release { race: Race::Election, name, token }));
    world.settle(1_000, |_| ());
    let token = Fencing::from(answer(&world, late).expect("an answer").expect("it leads").words).token;
    let first = world.engine.keys.values().find(|(known, _)| known.created == token).expect("the owner's key");
    assert_eq!(String::from_utf8_lossy(&first.0.value), "late");
    assert_eq!(answer(&world, early), Some(Err(Errno::TimedOut)));
}
