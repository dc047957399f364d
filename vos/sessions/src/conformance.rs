//! What every store of sessions must do, and exactly-once as a whole: clients that lose rings, servers that die, steps
//! that fail, fences.

#![allow(clippy::expect_used, clippy::panic, reason = "these are tests")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;

use vos_api::session::{IN_FLIGHT_MAX, Progress};

use crate::record::{Place, Record, Standing, Step};
use crate::reply::Reply;
use crate::table::{Begun, End, Mark, Opening, REPLIES_KEPT, Refusal, Table};

/// What becomes of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Happens,
    /// It is given up after everything was put.
    Fails,
}

/// What goes into a step.
pub type Work<'a, E> = &'a mut dyn FnMut(&mut dyn Step<Error = E>) -> Result<(), E>;

/// A store under test.
pub trait Subject: Record {
    fn step(&mut self, fate: Fate, work: Work<'_, Self::Error>) -> Result<(), Self::Error>;

    /// As after the death of the server: what lay in memory is gone.
    fn restart(&mut self);
}

/// All cases, each on a store of its own. Panics where one fails.
pub fn check<S: Subject>(make: impl Fn() -> S)
where
    S::Error: Debug,
{
    what_was_put_in_one_step_is_there_after_a_restart(make());
    nothing_is_left_of_a_step_that_failed(make());
    what_was_dropped_is_gone(make());
    for seed in 1..=4 {
        let result = Simulation::new(make(), seed, Bounds { in_flight: 8, kept: 16 }).run(400);
        result.unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
}

fn reply(number: u64) -> Reply {
    Reply { status: 0, results: [number, 0, 0, 0], data: vec![number as u8; number as usize % 80] }
}

fn put<S: Subject>(store: &mut S, fate: Fate, session: u64, places: &[Place])
where
    S::Error: Debug,
{
    let result = store.step(fate, &mut |step| {
        step.put_standing(session, Standing::Live)?;
        places.iter().try_for_each(|place| step.put_reply(session, *place, &reply(place.sequence).to_bytes()))
    });
    assert!(result.is_ok() || fate == Fate::Fails, "{result:?}");
}

/// Executed in an order that is not that of their numbers.
const PLACES: [Place; 3] =
    [Place { order: 10, sequence: 3 }, Place { order: 12, sequence: 1 }, Place { order: 300, sequence: 70_000 }];

fn places_of<S: Subject>(store: &S, session: u64) -> Vec<Place>
where
    S::Error: Debug,
{
    let mut places = store.places(session).expect("readable");
    places.sort_unstable();
    places
}

fn what_was_put_in_one_step_is_there_after_a_restart<S: Subject>(mut store: S)
where
    S::Error: Debug,
{
    put(&mut store, Fate::Happens, 7, &PLACES);
    put(&mut store, Fate::Happens, u64::MAX, &PLACES[..1]);
    for (session, standing) in [(9, Standing::Fenced), (10, Standing::Ended)] {
        store.step(Fate::Happens, &mut |step| step.put_standing(session, standing)).expect("a step");
    }
    for _ in 0..2 {
        let standings: BTreeMap<_, _> = store.standings().expect("readable").into_iter().collect();
        let wanted = [(7, Standing::Live), (9, Standing::Fenced), (10, Standing::Ended), (u64::MAX, Standing::Live)];
        assert_eq!(standings, wanted.into());
        assert_eq!((places_of(&store, 7), places_of(&store, 9)), (PLACES.to_vec(), vec![]));
        assert_eq!(places_of(&store, u64::MAX), PLACES[..1]);
        for place in PLACES {
            assert_eq!(store.reply(7, place).expect("readable"), Some(reply(place.sequence)));
        }
        assert_eq!(store.reply(u64::MAX, PLACES[1]).expect("readable"), None);
        store.restart();
    }
}

fn nothing_is_left_of_a_step_that_failed<S: Subject>(mut store: S)
where
    S::Error: Debug,
{
    put(&mut store, Fate::Fails, 7, &PLACES);
    for _ in 0..2 {
        assert_eq!((store.standings().expect("readable"), places_of(&store, 7)), (vec![], vec![]));
        assert_eq!(store.reply(7, PLACES[0]).expect("readable"), None);
        store.restart();
    }
}

fn what_was_dropped_is_gone<S: Subject>(mut store: S)
where
    S::Error: Debug,
{
    put(&mut store, Fate::Happens, 7, &PLACES);
    put(&mut store, Fate::Happens, 8, &PLACES);
    let drops = |step: &mut dyn Step<Error = S::Error>| {
        step.drop_reply(7, PLACES[1])?;
        PLACES.iter().try_for_each(|place| step.drop_reply(8, *place))?;
        step.drop_standing(8)
    };
    store.step(Fate::Happens, &mut { drops }).expect("a step");
    for _ in 0..2 {
        assert_eq!(store.standings().expect("readable"), [(7, Standing::Live)]);
        assert_eq!((places_of(&store, 7), places_of(&store, 8)), (vec![PLACES[0], PLACES[2]], vec![]));
        assert_eq!(store.reply(7, PLACES[1]).expect("readable"), None);
        store.restart();
    }
}

/// How many operations a client has without having taken their completions, and how many replies are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub in_flight: u64,
    pub kept: usize,
}

const _: () = assert!(REPLIES_KEPT == 2 * IN_FLIGHT_MAX as usize, "the simulation has this proportion");

const SESSION: u64 = 5;

/// One client, its rings, and a server of several threads.
pub(crate) struct Simulation<S> {
    random: u64,
    bounds: Bounds,
    store: S,
    /// What a step of the store did besides: how often each operation was carried out.
    effects: BTreeMap<u64, u32>,
    // The client.
    next_sequence: u64,
    untaken: BTreeSet<u64>,
    // The ring.
    ring: u64,
    asked: VecDeque<u64>,
    answered: VecDeque<(u64, Reply)>,
    // The server.
    table: Table<u64>,
    order: u64,
    /// Taken by threads, and over which ring each was asked for.
    taken: Vec<(u64, u64)>,
    recorded: VecDeque<(u64, u64)>,
}

impl<S: Subject> Simulation<S>
where
    S::Error: Debug,
{
    pub fn new(store: S, seed: u64, bounds: Bounds) -> Simulation<S> {
        Simulation {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            bounds,
            store,
            effects: BTreeMap::new(),
            next_sequence: 1,
            untaken: BTreeSet::new(),
            ring: 0,
            asked: VecDeque::new(),
            answered: VecDeque::new(),
            table: Table::default(),
            order: 0,
            taken: Vec::new(),
            recorded: VecDeque::new(),
        }
    }

    /// So many things happen, then everybody comes to an end. The first thing that must not be is the error.
    pub fn run(mut self, events: u32) -> Result<(), String> {
        self.table.keep(self.bounds.kept);
        self.open_ring()?;
        for _ in 0..events {
            match self.below(41) {
                0..8 => self.ask(),
                8..20 => self.take_request()?,
                20..26 => self.execute()?,
                26..32 => self.answer(),
                32..38 => self.take_completion()?,
                38 => self.die()?,
                39 => self.fence()?,
                _ => self.lose_ring()?,
            }
        }
        while !self.untaken.is_empty() {
            self.take_request()?;
            self.execute()?;
            self.answer();
            self.take_completion()?;
        }
        let is_once = self.effects.len() as u64 == self.next_sequence - 1;
        if is_once { self.end() } else { Err("an operation that was answered was not executed".into()) }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % limit
    }

    fn ask(&mut self) {
        while (self.untaken.len() as u64) < self.bounds.in_flight {
            self.untaken.insert(self.next_sequence);
            self.asked.push_back(self.next_sequence);
            self.next_sequence += 1;
        }
    }

    fn take_completion(&mut self) -> Result<(), String> {
        let Some((sequence, got)) = self.answered.pop_front() else { return Ok(()) };
        self.untaken.remove(&sequence);
        if got == reply(sequence) { Ok(()) } else { Err(format!("{sequence} was answered {got:?}")) }
    }

    /// The server's loop takes requests in the order of the ring.
    fn take_request(&mut self) -> Result<(), String> {
        let Some(sequence) = self.asked.pop_front() else { return Ok(()) };
        match self.table.begin(Mark { session: SESSION, sequence }, self.ring) {
            Begun::Execute(ring) => self.taken.push((sequence, ring)),
            Begun::Joined => (),
            Begun::Executed(_, place) => {
                let stored = self.store.reply(SESSION, place).expect("readable");
                self.answered.push_back((sequence, stored.ok_or(format!("the reply of {sequence} is not there"))?));
            }
            Begun::Refused(_, why) => return Err(format!("{sequence} is refused: {why:?}")),
        }
        Ok(())
    }

    /// Threads come to their ends in any order; several operations may be one step.
    fn execute(&mut self) -> Result<(), String> {
        let mut batch = Vec::new();
        for _ in 0..self.below(4) {
            if !self.taken.is_empty() {
                let at = self.below(self.taken.len() as u64) as usize;
                batch.push(self.taken.swap_remove(at));
            }
        }
        let fate = if self.below(12) == 0 { Fate::Fails } else { Fate::Happens };
        let (table, order) = (&mut self.table, &mut self.order);
        let done = self.store.step(fate, &mut |step| {
            batch.iter().try_for_each(|(sequence, _)| {
                *order += 1;
                let mark = Mark { session: SESSION, sequence: *sequence };
                let entry = table.record(mark, *order).expect("the session is there");
                entry.put(step, &reply(*sequence).to_bytes())
            })
        });
        if fate == Fate::Fails {
            self.table.reload(&self.store, 0).expect("readable");
            self.taken.extend(batch);
            return Ok(());
        }
        done.expect("a step");
        for (sequence, ring) in batch {
            let times = self.effects.entry(sequence).or_default();
            *times += 1;
            if *times > 1 {
                return Err(format!("{sequence} was executed twice"));
            }
            self.recorded.push_back((sequence, ring));
        }
        Ok(())
    }

    /// In the order of execution.
    fn answer(&mut self) {
        let Some((sequence, ring)) = self.recorded.pop_front() else { return };
        let others = self.table.finish(Mark { session: SESSION, sequence });
        // Of the rings over which it was asked for the client has but the newest.
        for _ in others.into_iter().chain([ring]).filter(|ring| *ring == self.ring) {
            self.answered.push_back((sequence, reply(sequence)));
        }
    }

    fn lose_ring(&mut self) -> Result<(), String> {
        self.table.detach(SESSION, 0);
        self.open_ring()
    }

    /// The client learns it from its next answer, and comes back.
    fn fence(&mut self) -> Result<(), String> {
        self.table.refuse(SESSION, End::Fence);
        self.put_standing(Standing::Fenced);
        self.table.settle(SESSION, self.order + 1);
        if self.below(2) == 0 {
            self.restart();
        }
        self.table.detach(SESSION, 0);
        // Whatever was under way is refused, or was executed before.
        while let Some((sequence, _)) = self.taken.pop().or_else(|| self.recorded.pop_front()) {
            if self.greet(true) != Err(Refusal::Busy) {
                return Err(format!("revived while {sequence} is under way"));
            }
            self.table.finish(Mark { session: SESSION, sequence });
        }
        if self.greet(false) != Err(Refusal::Stale) {
            return Err("a client that does not know of the fence goes on".into());
        }
        self.open_ring_as(true)?;
        self.put_standing(Standing::Live);
        Ok(())
    }

    fn put_standing(&mut self, standing: Standing) {
        self.store.step(Fate::Happens, &mut |step| step.put_standing(SESSION, standing)).expect("a step");
    }

    fn greet(&mut self, revives: bool) -> Result<(), Refusal> {
        let acknowledged = self.untaken.first().map_or(self.next_sequence, |oldest| *oldest) - 1;
        let progress = Progress { acknowledged, revives };
        self.table.open(Opening { session: SESSION, progress, now_ms: 0 }).map(drop)
    }

    fn open_ring(&mut self) -> Result<(), String> {
        self.open_ring_as(false)
    }

    fn open_ring_as(&mut self, revives: bool) -> Result<(), String> {
        self.ring += 1;
        self.answered.clear();
        self.asked = self.untaken.iter().copied().collect();
        self.greet(revives).map_err(|why| format!("the ring is refused: {why:?}"))
    }

    fn die(&mut self) -> Result<(), String> {
        self.restart();
        self.open_ring()
    }

    fn restart(&mut self) {
        self.taken.clear();
        self.recorded.clear();
        self.store.restart();
        self.table = Table::load(&self.store, 0).expect("readable");
        self.table.keep(self.bounds.kept);
    }

    /// Nothing of a session that ended stays, in however many steps.
    fn end(mut self) -> Result<(), String> {
        self.table.refuse(SESSION, End::Forget);
        const MOST: usize = 3;
        loop {
            let places = self.table.clear(SESSION, MOST);
            let drops = &mut |step: &mut dyn Step<Error = S::Error>| {
                places.iter().try_for_each(|place| step.drop_reply(SESSION, *place))?;
                step.drop_standing(SESSION)
            };
            self.store.step(Fate::Happens, drops).expect("a step");
            if places.len() < MOST {
                break;
            }
        }
        self.table.forget(SESSION);
        let (standings, places) = (self.store.standings().expect("readable"), places_of(&self.store, SESSION));
        if standings.is_empty() && places.is_empty() { Ok(()) } else { Err(format!("left: {standings:?} {places:?}")) }
    }
}
