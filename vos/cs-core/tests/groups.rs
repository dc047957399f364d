//! Members of a group over several servers, and whatever may happen to these: the histories of all members agree.

mod world;

use std::collections::BTreeMap;

use vos_api::Measured;
use vos_api::cs::{Join, Joined, Leave, Level, Receive, Request, Send, event};
use world::World;

const NODES: u8 = 4;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Event {
    index: u64,
    kind: u8,
    level: u8,
    sender: u64,
    number: u64,
    body: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Joining,
    Member,
    Left,
    /// Its server told it so, or was killed, or its node was lost.
    Out,
}

struct Client {
    node: u8,
    session: u64,
    stage: Stage,
    id: u64,
    join: u64,
    receive: Option<u64>,
    sends: Vec<u64>,
    next: u64,
    history: Vec<Event>,
}

struct Story {
    clients: Vec<Client>,
    next_session: u64,
}

impl Story {
    fn add(&mut self, world: &mut World, node: u8) {
        self.next_session += 1;
        let session = self.next_session;
        let now = world.now;
        if !world.node(node).is_up || !world.node(node).core.is_ready() {
            return;
        }
        world.node(node).core.open(session, 0, now).expect("a new session");
        let name = format!("m{session}");
        let join = Request::Join(Join { group: Measured(b"g"), wait_ms: 3_600_000, name: name.as_bytes() });
        let join = world.call(node, session, 0, join);
        let (stage, receive, sends, history) = (Stage::Joining, None, Vec::new(), Vec::new());
        self.clients.push(Client { node, session, stage, id: 0, join, receive, sends, next: 1, history });
    }

    fn send(&mut self, world: &mut World, which: usize) {
        let client = &mut self.clients[which];
        if client.stage != Stage::Member || client.sends.len() > 4 {
            return;
        }
        let count = 1 + world.rng.below(3);
        let level = if world.rng.one_in(4) { Level::Safe } else { Level::Agreed };
        let mut messages = Vec::new();
        for number in client.next..client.next + count {
            let text = format!("{}:{number}", client.session);
            messages.extend_from_slice(&(text.len() as u32).to_le_bytes());
            messages.extend_from_slice(text.as_bytes());
        }
        let send = Send { level, member: client.id, first: client.next, messages: &messages };
        client.next += count;
        let ticket = world.call(client.node, client.session, 0, Request::Send(send));
        client.sends.push(ticket);
    }

    /// Everybody who is a member and does not wait for more asks for it.
    fn listen(&mut self, world: &mut World) {
        while let Some((node, ticket, answer)) = world.answers.pop_front() {
            let client = self.clients.iter_mut().filter(|client| client.node == node).find(|client| {
                client.join == ticket || client.receive == Some(ticket) || client.sends.contains(&ticket)
            });
            let Some(client) = client else { continue };
            if client.sends.contains(&ticket) {
                client.sends.retain(|send| *send != ticket);
                continue;
            }
            let is_join = client.join == ticket;
            if !is_join {
                client.receive = None;
            }
            match answer {
                Ok(said) if is_join => {
                    (client.id, client.stage) = (Joined::from(said.words).member, Stage::Member);
                }
                Ok(said) => client.history.extend(events(&said.data)),
                Err(_) if client.stage != Stage::Left => client.stage = Stage::Out,
                Err(_) => {}
            }
        }
        for client in &mut self.clients {
            if client.stage == Stage::Member && client.receive.is_none() {
                let receive = Request::Receive(Receive { member: client.id, wait_ms: 3_600_000 });
                client.receive = Some(world.call(client.node, client.session, 0, receive));
            }
        }
    }

    fn out(&mut self, node: u8) {
        let there = self.clients.iter_mut().filter(|client| client.node == node && client.stage != Stage::Left);
        there.for_each(|client| client.stage = Stage::Out);
    }

    fn leave(&mut self, world: &mut World, which: usize) {
        let client = &mut self.clients[which];
        if client.stage != Stage::Member {
            return;
        }
        client.stage = Stage::Left;
        if world.rng.one_in(2) {
            world.call(client.node, client.session, 0, Request::Leave(Leave { member: client.id }));
        } else {
            let now = world.now;
            world.node(client.node).core.close(client.session, now);
            world.turn(client.node);
        }
    }

    fn check(&self) {
        let members: Vec<&Client> = self.clients.iter().filter(|client| client.stage == Stage::Member).collect();
        for client in &self.clients {
            client.check_itself();
            // What was given to who fell out after what all had may be known to nobody else.
            let binding = |one: &&Event| one.kind == event::VIEW || one.level == Level::Safe as u16 as u8;
            let bound = if client.stage == Stage::Member {
                u64::MAX
            } else {
                client.history.iter().rfind(binding).map_or(0, |one| one.index)
            };
            for member in &members {
                let Some(from) = member.history.first().map(|one| one.index) else { continue };
                let known: BTreeMap<u64, &Event> = member.history.iter().map(|one| (one.index, one)).collect();
                // It will be given the rest.
                let to = bound.min(member.history.last().map_or(0, |one| one.index));
                for one in client.history.iter().filter(|one| one.index >= from && one.index <= to) {
                    assert_eq!(known.get(&one.index), Some(&one), "of {} at {}", client.session, member.session);
                }
                let (first, last) = match (client.history.first(), client.history.last()) {
                    (Some(first), Some(last)) => (first.index.max(from), last.index.min(bound)),
                    _ => continue,
                };
                let has = |index: &u64| client.history.iter().any(|one| one.index == *index);
                let gap = known.keys().find(|index| (first..=last).contains(*index) && !has(index));
                assert_eq!(gap, None, "{} passed over what {} was given", client.session, member.session);
            }
        }
    }

    fn check_end(&self) {
        let members: Vec<&Client> = self.clients.iter().filter(|client| client.stage == Stage::Member).collect();
        assert!(self.clients.iter().all(|client| client.stage != Stage::Joining), "everybody got in");
        let mut ids: Vec<u64> = members.iter().map(|client| client.id).collect();
        ids.sort_unstable();
        for client in &members {
            let view = client.history.iter().rfind(|one| one.kind == event::VIEW).expect("a view");
            let mut listed = members_of(&view.body);
            listed.sort_unstable();
            assert_eq!(listed, ids, "the last view of {} has everybody who is there", client.session);
            for sender in &members {
                let own = client.history.iter().filter(|one| one.kind == event::MESSAGES && one.sender == sender.id);
                let last = own.map(|one| one.number + count(&one.body)).max();
                let joined_before =
                    client.history.first().map(|one| one.index) <= sender.history.first().map(|one| one.index);
                if joined_before && sender.next > 1 {
                    assert_eq!(last, Some(sender.next), "{} has all of {}", client.session, sender.session);
                }
            }
        }
    }
}

impl Client {
    fn check_itself(&self) {
        let mut counted: BTreeMap<u64, u64> = BTreeMap::new();
        let mut view = 0;
        for pair in self.history.windows(2) {
            assert!(pair[0].index < pair[1].index, "{}: twice, or out of order", self.session);
        }
        for one in &self.history {
            if one.kind == event::VIEW {
                assert!(one.number > view, "{}: views go on", self.session);
                view = one.number;
                assert!(members_of(&one.body).contains(&self.id), "{} is a member of its views", self.session);
            } else if let Some(next) = counted.insert(one.sender, one.number + count(&one.body)) {
                assert_eq!(one.number, next, "{}: messages of one sender, none twice, none left out", self.session);
            }
        }
        assert!(self.history.first().is_none_or(|one| one.kind == event::VIEW));
    }
}

fn count(body: &[u8]) -> u64 {
    let (mut rest, mut count) = (body, 0);
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        rest = &after[u32::from_le_bytes(*length) as usize..];
        count += 1;
    }
    count
}

fn members_of(body: &[u8]) -> Vec<u64> {
    let (mut rest, mut ids) = (body, Vec::new());
    while let Some((id, after)) = rest.split_first_chunk::<8>() {
        ids.push(u64::from_le_bytes(*id));
        let length = usize::from(u16::from_le_bytes([after[2], after[3]]));
        rest = &after[4 + length..];
    }
    ids
}

fn events(data: &[u8]) -> Vec<Event> {
    let (mut rest, mut events) = (data, Vec::new());
    while let Some((head, after)) = rest.split_first_chunk::<32>() {
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight"));
        let bytes = u32::from_le_bytes(head[4..8].try_into().expect("four")) as usize;
        let (body, next) = after.split_at(bytes);
        let (index, sender, number) = (word(8), word(16), word(24));
        events.push(Event { index, kind: head[0], level: head[1], sender, number, body: body.to_vec() });
        rest = next;
    }
    assert!(rest.is_empty());
    events
}

/// What may happen besides.
#[derive(Clone, Copy, PartialEq)]
enum Harm {
    None,
    Kills,
    Everything,
}

fn tell(seed: u64, harm: Harm) {
    println!("seed {seed}");
    let mut world = World::new(seed, NODES);
    let mut story = Story { clients: Vec::new(), next_session: 0 };
    world.settle(500, |_| ());
    for _ in 0..1500 {
        let what = world.rng.below(100);
        let (node, which) = (world.rng.below(u64::from(NODES)) as u8, world.rng.below(100) as usize);
        let which = which % story.clients.len().max(1);
        match what {
            0..3 if story.clients.len() < 40 => story.add(&mut world, node),
            3..30 if !story.clients.is_empty() => story.send(&mut world, which),
            30 if !story.clients.is_empty() && world.rng.one_in(3) => story.leave(&mut world, which),
            31 if harm != Harm::None && world.rng.one_in(3) => {
                world.kill(node);
                story.out(node);
            }
            32 if harm == Harm::Everything && world.rng.one_in(3) => world.daemon_takes_over(node),
            33 if harm == Harm::Everything && world.rng.one_in(6) => world.end_lease(node),
            34 if harm == Harm::Everything
                && world.rng.one_in(8)
                && world.nodes.iter().filter(|one| one.is_up).count() > 2 =>
            {
                world.lose(node);
                story.out(node);
            }
            35 if harm == Harm::Everything => {
                let other = world.rng.below(u64::from(NODES)) as u8;
                world.cut.push((node, other));
            }
            36..38 => drop(world.cut.pop()),
            38..42 => {
                let ms = world.rng.below(400);
                world.pass(ms);
            }
            42 if harm == Harm::Everything => world.pass(5_000),
            _ => {
                for _ in 0..world.rng.below(12) {
                    world.step();
                }
            }
        }
        story.listen(&mut world);
    }
    world.cut.clear();
    story.check();
    world.settle(40_000, |world| story.listen(world));
    story.check();
    story.check_end();
}

#[test]
fn members_are_given_one_order_while_they_come_and_go() {
    (0..60).for_each(|seed| tell(seed, Harm::None));
}

#[test]
fn survivors_of_killed_servers_agree_on_views_and_messages() {
    (100..200).for_each(|seed| tell(seed, Harm::Kills));
}

#[test]
fn whatever_happens_to_nodes_links_leases_and_daemons_members_agree() {
    (1000..1150).for_each(|seed| tell(seed, Harm::Everything));
}
