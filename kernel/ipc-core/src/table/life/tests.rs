//! Every state against every event, as the design document says it; and random histories, after which nobody is
//! forgotten and nothing is left.

use std::collections::{BTreeMap, BTreeSet};

use abi::{ChannelId, Lane, PairId};
use proptest::prelude::*;

use super::*;
use crate::table::DcTable;

const HERE: NodeId = NodeId(1);

/// Of a party, one of its requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Asker(u32, u32);

impl Asking for Asker {
    fn is_of_same_party(&self, other: &Asker) -> bool {
        self.0 == other.0
    }
}

fn endpoint(number: u32) -> Endpoint {
    Endpoint::new(number).unwrap()
}

fn place(node: NodeId) -> Place {
    Place { node, pid: Pid::new(10).unwrap() }
}

fn parting(nodes: &[u16]) -> Parting {
    let nodes = nodes.iter().copied().map(NodeId).collect();
    Parting { here: HERE, nodes, privileges: None, room: 100 }
}

fn channel(id: u64, left: Endpoint, right: Endpoint) -> Channel {
    let (lane, proxied, pair) = (Lane::MESSAGES, None, PairId::FIRST);
    Channel { id: ChannelId(id), left, right, lane, entries: 0, arena_bytes: 0, proxied, pair }
}

/// Whom a number keeps waiting.
fn awaited<A: Asking>(present: &Present<A>) -> Vec<A> {
    let of_hold = present.hold().and_then(Hold::asker).copied();
    let of_departure = present.departure.as_ref().and_then(|departure| departure.asker);
    let of_transit = match present.state {
        State::Leaving { transit: Some((_, asker)), .. } => asker,
        _ => None,
    };
    [of_hold, of_departure, of_transit].into_iter().flatten().collect()
}

// ---- The table of the design document.

/// The number whose life it is, and one of this node with which it has a channel.
const IT: u32 = 300;
const PEER: u32 = 400;
const OWNER: OwnerId = OwnerId(1);
const FIRST_ASKER: Asker = Asker(1, 1);

type Case<'a> = (&'a str, Vec<Event<Asker>>);

/// How each state is reached.
fn states() -> Vec<Case<'static>> {
    let bound = || vec![Event::Begins { owner: OWNER, epoch: Epoch(5) }];
    let with = |before: &[Event<Asker>], more: Event<Asker>| [before, &[more]].concat();
    let hold = HoldId(1);
    let draining = with(&bound(), Event::Start { asker: FIRST_ASKER, by: None, hold });
    let held = with(&draining, Event::Drained { hold });
    let asking = with(&held, Event::Commit { asker: FIRST_ASKER, to: place(NodeId(2)), behind: None });
    let departing = with(&asking, Event::Prepared { hold, result: Ok(parting(&[2])) });
    let taking = with(&departing, Event::LeftBy { hold, node: NodeId(2) });
    let moved = with(&taking, Event::TakenOver { hold, result: Ok(()) });
    let found =
        Event::IsElsewhere { node: NodeId(2), epoch: Epoch(6), told: Told::ByDirectory, change: Change::HandedOver };
    let elsewhere = vec![Event::IsElsewhere {
        node: NodeId(2),
        epoch: Epoch(5),
        told: Told::ByDirectory,
        change: Change::Promoted,
    }];
    let caller = vec![Event::IsElsewhere {
        node: NodeId(2),
        epoch: Epoch(5),
        told: Told::ByFirstMessage,
        change: Change::Promoted,
    }];
    let leaving = with(&elsewhere, Event::IsGone { node: NodeId(2), epoch: Epoch(5), rest: Rest::Comes });
    let moving = with(&elsewhere, Event::Leaves { asker: FIRST_ASKER, from: NodeId(2), epoch: Epoch(5) });
    let in_transit = vec![Event::Leaves { asker: FIRST_ASKER, from: NodeId(2), epoch: Epoch(5) }];
    vec![
        ("free", vec![]),
        ("bound", bound()),
        ("draining", draining),
        ("held", held),
        ("asking", asking),
        ("departing", departing),
        ("taking, elsewhere", with(&taking, found.clone())),
        ("taking", taking),
        ("elsewhere, handed", with(&moved, found)),
        ("caller", caller),
        ("elsewhere", elsewhere),
        ("leaving", leaving),
        ("leaving, moves", moving),
        ("in transit", in_transit),
    ]
}

/// What may happen in any state.
fn events() -> Vec<(&'static str, Event<Asker>)> {
    let asker = Asker(2, 1);
    let hold = HoldId(1);
    let elsewhere =
        |node, epoch, told, change| Event::IsElsewhere { node: NodeId(node), epoch: Epoch(epoch), told, change };
    let no = Err(IpcError::NoSuchEndpoint);
    vec![
        ("begins", Event::Begins { owner: OwnerId(2), epoch: Epoch(6) }),
        ("is on 3, promoted", elsewhere(3, 7, Told::ByDirectory, Change::Promoted)),
        ("is on 2, handed over", elsewhere(2, 6, Told::ByDirectory, Change::HandedOver)),
        ("is on 2, late", elsewhere(2, 5, Told::ByDirectory, Change::Promoted)),
        ("speaks from 2", Event::Speaks { node: NodeId(2) }),
        ("ends", Event::Ends { ending: Ending::Dead, reason: IpcError::SourceDied }),
        ("link is lost", Event::Ends { ending: Ending::Unreachable, reason: IpcError::NoLink }),
        ("is fenced", Event::IsFenced),
        ("is gone from 2", Event::IsGone { node: NodeId(2), epoch: Epoch(6), rest: Rest::Comes }),
        ("is gone, no proxy", Event::IsGone { node: NodeId(2), epoch: Epoch(6), rest: Rest::Lost }),
        ("loses its last channel", Event::LosesChannel),
        ("start", Event::Start { asker, by: None, hold: HoldId(2) }),
        ("start, the same asks", Event::Start { asker: Asker(1, 2), by: None, hold: HoldId(2) }),
        ("start by its owner", Event::Start { asker, by: Some(OWNER), hold: HoldId(2) }),
        ("drained", Event::Drained { hold }),
        ("drained, late", Event::Drained { hold: HoldId(9) }),
        ("rollback", Event::Rollback),
        ("commit to 2", Event::Commit { asker, to: place(NodeId(2)), behind: None }),
        ("commit to 3", Event::Commit { asker, to: place(NodeId(3)), behind: None }),
        ("commit, is there", Event::Commit { asker, to: place(HERE), behind: Some(place(HERE)) }),
        ("asker gives up", Event::Cancelled { asker: FIRST_ASKER }),
        ("stand-by is there", Event::Prepared { hold, result: Ok(parting(&[2, 3])) }),
        ("no stand-by", Event::Prepared { hold, result: Err(IpcError::NoSuchEndpoint) }),
        ("2 has let go", Event::LeftBy { hold, node: NodeId(2) }),
        ("taken over", Event::TakenOver { hold, result: Ok(()) }),
        ("not taken over", Event::TakenOver { hold, result: no }),
        ("leaves 2", Event::Leaves { asker, from: NodeId(2), epoch: Epoch(6) }),
        ("leaves 2, late", Event::Leaves { asker, from: NodeId(2), epoch: Epoch(4) }),
        ("has left 2", Event::HasLeft { from: NodeId(2) }),
        ("transit ends", Event::TransitEnds { error: IpcError::NoLink }),
        ("container goes", Event::Forget { reason: IpcError::DcNotRunning }),
    ]
}

/// A table in which `IT` has come so far, with a channel, and has another one whenever it can.
fn at(history: &[Event<Asker>]) -> DcTable<Asker> {
    let mut table = DcTable::new(256..500);
    table.step(endpoint(PEER), Event::Begins { owner: OwnerId(9), epoch: Epoch(1) }).unwrap();
    for event in history {
        table.step(endpoint(IT), event.clone()).unwrap();
        let _ = table.open(channel(1, endpoint(PEER), endpoint(IT)));
    }
    table
}

fn state_of(table: &DcTable<Asker>) -> String {
    let Some(present) = table.present.get(&endpoint(IT)) else { return "free".into() };
    let state = match &present.state {
        State::Free => "free",
        State::Local { hold: None, .. } => "bound",
        State::Local { hold: Some(hold), .. } => match hold.step {
            HoldStep::Draining { .. } => "draining",
            HoldStep::Held => "held",
            HoldStep::Asking { .. } => "asking",
        },
        State::Remote { told: Told::ByFirstMessage, .. } => "caller",
        State::Remote { .. } => "elsewhere",
        State::Leaving { transit: None, .. } => "leaving",
        State::Leaving { .. } => "leaving, moves",
        State::InTransit(_) => "in transit",
    };
    let step = present.departure.as_ref().map(|departure| match departure.step {
        DepartureStep::Departing { .. } => "departing",
        DepartureStep::Taking => "taking",
    });
    match step {
        None => state.into(),
        Some(step) if state == "in transit" => step.into(),
        Some(step) => format!("{step}, {state}"),
    }
}

fn described(effect: &Effect<Asker>) -> String {
    let numbers = |nodes: &BTreeSet<NodeId>| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(" and ");
    match effect {
        Effect::EndPage(ending) => format!("page says {ending:?}"),
        Effect::BeginPage => "page".into(),
        Effect::Keep => "keep".into(),
        Effect::EndChannel { reason, by, .. } => {
            format!("channel ends: {reason:?}{}", if by.is_none() { ", both are told" } else { "" })
        }
        Effect::LetGo(_) => "let its owner go".into(),
        Effect::SetHold(0) => "hold no more".into(),
        Effect::SetHold(_) => "hold".into(),
        Effect::TellUnbound { epoch } => format!("directory: {epoch} has ended"),
        Effect::Disappears => "nobody there".into(),
        Effect::FailOpens(error) => format!("opens: {error:?}"),
        Effect::Answer { asker: Asker(party, _), result: Ok(()) } => format!("answer {party}: done"),
        Effect::Answer { asker: Asker(party, _), result: Err(error) } => format!("answer {party}: {error:?}"),
        Effect::Prepare { to, .. } => format!("ask {} for its stand-by", to.node),
        Effect::AskToLeave { nodes, .. } => format!("ask {} to let go", numbers(nodes)),
        Effect::HandOver { to, .. } => format!("hand over to {}", to.node),
        Effect::TellMoved { nodes, to } => {
            let place = to.map_or("nowhere".into(), |(node, _)| format!("on {node}"));
            if nodes.is_empty() { format!("tell nobody: {place}") } else { format!("tell {}: {place}", numbers(nodes)) }
        }
        Effect::FindAt { node, .. } => format!("it is on {node}"),
    }
}

/// What each event does in each state, row by row: what it changes, and where it is refused.
fn rows() -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    let mut refused: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    let whole =
        |table: &DcTable<Asker>| format!("{:?}", (table.present.get(&endpoint(IT)), table.past.get(&endpoint(IT))));
    for (name, history) in states() {
        for (event_name, event) in events() {
            let mut table = at(&history);
            if event == Event::LosesChannel {
                table.close(ChannelId(1));
            }
            let before = whole(&table);
            match table.step(endpoint(IT), event) {
                Err(error) => {
                    assert_eq!(whole(&table), before, "{name}: {event_name} is refused, and changes something");
                    refused.entry((event_name, format!("{error:?}"))).or_default().push(name);
                }
                Ok(effects) => {
                    let does = effects.iter().map(|(_, effect)| described(effect)).collect::<Vec<_>>().join("; ");
                    if !does.is_empty() || whole(&table) != before {
                        rows.insert(format!("| {name} | {event_name} | {} | {does} |", state_of(&table)));
                    }
                }
            }
        }
    }
    rows.extend(
        refused.iter().map(|((event, error), states)| format!("| {event} | {error} | {} |", states.join("; "))),
    );
    rows
}

#[test]
fn every_state_takes_every_event_as_the_design_document_says() {
    let document = include_str!("../../../../../docs/design/endpoint-life.md");
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| state") && !line.starts_with("| event");
    let written: BTreeSet<String> = document.lines().filter(is_row).map(String::from).collect();
    let done = rows();
    let lines = |rows: Vec<&String>| rows.into_iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let (missing, surplus) = (done.difference(&written).collect(), written.difference(&done).collect());
    let (missing, surplus) = (lines(missing), lines(surplus));
    assert!(missing.is_empty() && surplus.is_empty(), "not written:\n{missing}\nwritten, but not so:\n{surplus}");
}

#[test]
fn states_are_what_they_are_called() {
    for (name, history) in states() {
        let reached = state_of(&at(&history));
        assert_eq!(reached, name.trim_end_matches(", handed"));
    }
}

// ---- Histories.

/// What carries out effects, as a broker does: it has a page for each binding and errands under way, and somebody
/// waits.
#[derive(Default)]
struct Shell {
    pages: BTreeSet<Endpoint>,
    channels: BTreeSet<ChannelId>,
    waiting: BTreeSet<Asker>,
    errands: Vec<(Endpoint, Event<Asker>)>,
}

struct World {
    table: DcTable<Asker>,
    shell: Shell,
    next_asker: u32,
}

impl World {
    fn new() -> World {
        World { table: DcTable::new(256..500), shell: Shell::default(), next_asker: 0 }
    }

    fn asker(&mut self, party: u32) -> Asker {
        self.next_asker += 1;
        Asker(party, self.next_asker)
    }

    fn stored(&self) -> BTreeSet<Asker> {
        self.table.present.values().flat_map(awaited).collect()
    }

    /// `asks`: who waits from then on, unless refused. Who had asked for the same waits no more.
    fn step(&mut self, number: Endpoint, event: Event<Asker>, asks: Option<Asker>) -> Result<(), TestCaseError> {
        let is_cancelled = if let Event::Cancelled { asker } = event { Some(asker) } else { None };
        let before: BTreeSet<Asker> = self.table.present.get(&number).map(awaited).into_iter().flatten().collect();
        let Ok(effects) = self.table.step(number, event) else { return Ok(()) };
        self.shell.waiting.extend(asks);
        let mut answered = BTreeSet::new();
        for (endpoint, effect) in effects {
            if let Effect::Answer { asker, .. } = &effect {
                prop_assert!(answered.insert(*asker), "{asker:?} is answered twice");
            }
            self.carry_out(endpoint, effect)?;
        }
        let stored = self.stored();
        for gone in before.iter().filter(|asker| !stored.contains(asker) && !answered.contains(asker)) {
            let is_replaced = asks.is_some_and(|asker| stored.contains(&asker));
            prop_assert!(is_replaced || is_cancelled == Some(*gone), "{gone:?} is forgotten");
            self.shell.waiting.remove(gone);
        }
        self.check()
    }

    fn carry_out(&mut self, endpoint: Endpoint, effect: Effect<Asker>) -> Result<(), TestCaseError> {
        match effect {
            Effect::EndPage(_) => prop_assert!(self.shell.pages.remove(&endpoint), "no page ends"),
            Effect::BeginPage => prop_assert!(self.shell.pages.insert(endpoint), "a second page begins"),
            Effect::EndChannel { channel, .. } => prop_assert!(self.shell.channels.remove(&channel.id), "ends twice"),
            Effect::Answer { asker, .. } => prop_assert!(self.shell.waiting.remove(&asker), "{asker:?} did not ask"),
            Effect::Prepare { hold, .. } => {
                self.shell.errands.push((endpoint, Event::Prepared { hold, result: Ok(parting(&[2, 3])) }));
            }
            Effect::AskToLeave { nodes, hold, .. } => {
                let answers = nodes.into_iter().map(|node| (endpoint, Event::LeftBy { hold, node }));
                self.shell.errands.extend(answers);
            }
            Effect::HandOver { hold, .. } => {
                self.shell.errands.push((endpoint, Event::TakenOver { hold, result: Ok(()) }));
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let bound: BTreeSet<Endpoint> = self.table.bindings().map(|(endpoint, _)| endpoint).collect();
        prop_assert_eq!(&self.shell.pages, &bound);
        prop_assert_eq!(&self.shell.waiting, &self.stored());
        let channels: BTreeSet<ChannelId> = self.table.channels().iter().map(|channel| channel.id).collect();
        prop_assert_eq!(&self.shell.channels, &channels);
        for present in self.table.present.values() {
            prop_assert!(!present.is_over());
        }
        Ok(())
    }

    fn let_happen(&mut self, what: &Happening) -> Result<(), TestCaseError> {
        match *what {
            Happening::Event(number, ref event, party) => {
                let (event, asks) = self.asked(endpoint(number), event.clone(), party);
                self.step(endpoint(number), event, asks)?;
            }
            Happening::GivesUp(number) => {
                let waiting = self.table.present.get(&endpoint(number)).map(awaited).unwrap_or_default();
                // Of another broker nobody hears that it gives up.
                if let Some(asker) = waiting.into_iter().find(|asker| self.table.awaited_by(asker).is_some()) {
                    self.step(endpoint(number), Event::Cancelled { asker }, None)?;
                }
            }
            Happening::Opens(id, one, other) => {
                if self.table.open(channel(id, endpoint(one), endpoint(other))).is_ok() {
                    self.shell.channels.insert(ChannelId(id));
                }
            }
            Happening::Closes(id) => {
                if let Some(channel) = self.table.close(ChannelId(id)) {
                    self.shell.channels.remove(&channel.id);
                    self.step(channel.left, Event::LosesChannel, None)?;
                    self.step(channel.right, Event::LosesChannel, None)?;
                }
            }
            Happening::Answered(which, is_done) => {
                if !self.shell.errands.is_empty() {
                    let which = which % self.shell.errands.len();
                    let (number, event) = self.shell.errands.remove(which);
                    self.step(number, if is_done { event } else { failed(event) }, None)?;
                }
            }
        }
        Ok(())
    }

    /// The event with its asker, or with the hold there is.
    fn asked(&mut self, number: Endpoint, event: Event<Asker>, party: u32) -> (Event<Asker>, Option<Asker>) {
        let asker = self.asker(party);
        match event {
            Event::Start { by, .. } => (Event::Start { asker, by, hold: HoldId(asker.1) }, Some(asker)),
            Event::Commit { to, behind, .. } => (Event::Commit { asker, to, behind }, Some(asker)),
            Event::Leaves { from, epoch, .. } => (Event::Leaves { asker, from, epoch }, Some(asker)),
            Event::Drained { .. } => {
                let hold = self.table.present.get(&number).and_then(Present::hold).map_or(HoldId(0), |hold| hold.id);
                (Event::Drained { hold }, None)
            }
            other => (other, None),
        }
    }

    /// Everybody dies, every link is lost, every errand fails.
    fn end(&mut self) -> Result<(), TestCaseError> {
        let numbers: Vec<Endpoint> = self.table.living().collect();
        for number in numbers {
            self.step(number, Event::Ends { ending: Ending::Dead, reason: IpcError::SourceDied }, None)?;
            self.step(number, Event::TransitEnds { error: IpcError::NoLink }, None)?;
        }
        while let Some((number, event)) = self.shell.errands.pop() {
            self.step(number, failed(event), None)?;
        }
        Ok(())
    }
}

fn failed(event: Event<Asker>) -> Event<Asker> {
    match event {
        Event::Prepared { hold, .. } => Event::Prepared { hold, result: Err(IpcError::NoLink) },
        Event::TakenOver { hold, .. } => Event::TakenOver { hold, result: Err(IpcError::NoLink) },
        other => other,
    }
}

#[derive(Clone, Debug)]
enum Happening {
    /// To a number, asked for by a party.
    Event(u32, Event<Asker>, u32),
    GivesUp(u32),
    Opens(u64, u32, u32),
    Closes(u64),
    /// One of the errands under way is done or fails.
    Answered(usize, bool),
}

fn happening() -> impl Strategy<Value = Happening> {
    const NUMBERS: std::ops::Range<u32> = 300..303;
    let of =
        |event| (NUMBERS, event, 0u32..3).prop_map(|(number, event, party)| Happening::Event(number, event, party));
    let node = || (2u16..4).prop_map(NodeId);
    let anybody = || (1u16..4).prop_map(NodeId);
    let epoch = || (1u64..12).prop_map(Epoch);
    let told = prop_oneof![Just(Told::ByDirectory), Just(Told::ByFirstMessage)];
    let change = prop_oneof![Just(Change::Promoted), Just(Change::HandedOver)];
    let rest = prop_oneof![Just(Rest::Comes), Just(Rest::Lost)];
    let nobody = Asker(0, 0);
    let by = prop_oneof![Just(None), (1u64..3).prop_map(|owner| Some(OwnerId(owner)))];
    prop_oneof![
        of((1u64..3, epoch()).prop_map(|(owner, epoch)| Event::Begins { owner: OwnerId(owner), epoch }).boxed()),
        of((node(), epoch(), told, change)
            .prop_map(|(node, epoch, told, change)| Event::IsElsewhere { node, epoch, told, change })
            .boxed()),
        of(node().prop_map(|node| Event::Speaks { node }).boxed()),
        of(Just(Event::Ends { ending: Ending::Dead, reason: IpcError::SourceDied }).boxed()),
        of(Just(Event::IsFenced).boxed()),
        of((node(), epoch(), rest).prop_map(|(node, epoch, rest)| Event::IsGone { node, epoch, rest }).boxed()),
        of(by.prop_map(move |by| Event::Start { asker: nobody, by, hold: HoldId(0) }).boxed()),
        of(Just(Event::Drained { hold: HoldId(0) }).boxed()),
        of(Just(Event::Rollback).boxed()),
        of((anybody(), anybody())
            .prop_map(move |(to, behind)| Event::Commit { asker: nobody, to: place(to), behind: Some(place(behind)) })
            .boxed()),
        of((node(), epoch()).prop_map(move |(from, epoch)| Event::Leaves { asker: nobody, from, epoch }).boxed()),
        of(node().prop_map(|from| Event::HasLeft { from }).boxed()),
        of(node().prop_map(|node| Event::Sought { node }).boxed()),
        of(Just(Event::TransitEnds { error: IpcError::NoLink }).boxed()),
        NUMBERS.prop_map(Happening::GivesUp),
        (1u64..20, NUMBERS, NUMBERS).prop_map(|(id, one, other)| Happening::Opens(id, one, other)),
        (1u64..20).prop_map(Happening::Closes),
        (any::<usize>(), any::<bool>()).prop_map(|(which, is_done)| Happening::Answered(which, is_done)),
        (any::<usize>(), Just(true)).prop_map(|(which, is_done)| Happening::Answered(which, is_done)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever happens: each binding has one page, whoever asked is waiting or was answered once, each channel ends
    /// once, epochs never fall. And in the end nothing is left but the past.
    #[test]
    fn no_history_forgets_anybody_or_leaves_anything(
        history in proptest::collection::vec(happening(), 0..120),
        last in prop_oneof![Just(Last::EverythingEnds), Just(Last::ContainerGoes)],
    ) {
        let mut world = World::new();
        let mut highest: BTreeMap<Endpoint, Epoch> = BTreeMap::new();
        for happening in &history {
            world.let_happen(happening)?;
            for (number, binding) in world.table.bindings() {
                let before = highest.insert(number, binding.epoch).unwrap_or_default();
                prop_assert!(binding.epoch >= before);
            }
        }
        match last {
            Last::EverythingEnds => world.end()?,
            Last::ContainerGoes => {
                for number in world.table.living().collect::<Vec<_>>() {
                    world.step(number, Event::Forget { reason: IpcError::DcNotRunning }, None)?;
                }
            }
        }
        prop_assert_eq!(world.table.living().count(), 0);
        prop_assert!(world.shell.waiting.is_empty() && world.shell.pages.is_empty() && world.shell.channels.is_empty());
    }
}

#[derive(Clone, Copy, Debug)]
enum Last {
    EverythingEnds,
    ContainerGoes,
}
