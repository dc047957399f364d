//! The life of one number of a container on one node: who has it, who will have it, and who waits for that.
//!
//! `docs/design/endpoint-life.md` draws states and events, and lists the effects of each transition. The machine
//! decides and remembers; the broker carries out the [`Effect`]s in their order, and says what came of them as further
//! events. A failure that is known at once is an event after the last effect.
//!
//! Of a number that nobody has, only its [`Past`] is kept.

use std::collections::BTreeSet;
use std::fmt::Debug;

use abi::{Endpoint, Epoch, HoldId, IpcError, NodeId, Pid, Privileges};

use super::{Binding, Channel, Channels, Home, OwnerId, Told};

/// An asker: asked for something, and is to be told what came of it.
pub trait Asking: Copy + PartialEq + Debug {
    /// Whether both are requests of one party.
    fn is_of_same_party(&self, other: &Self) -> bool;
}

/// A stand-by: its node, and its pid in the container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub node: NodeId,
    pub pid: Pid,
}

/// What becomes of a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<A> {
    /// A process of this node has it from now on.
    Begins {
        owner: OwnerId,
        epoch: Epoch,
    },
    /// Another node has it.
    IsElsewhere {
        node: NodeId,
        epoch: Epoch,
        told: Told,
        change: Change,
    },
    /// A message of a process of that node has come, as of the one that has the number.
    Speaks {
        node: NodeId,
    },
    /// Its process, or the way to it, is gone.
    Ends {
        ending: Ending,
        reason: IpcError,
    },
    /// A successor is bound on this node in the next moment.
    IsFenced,
    /// The directory says that its process, on another node, is gone.
    IsGone {
        node: NodeId,
        epoch: Epoch,
        rest: Rest,
    },
    /// One of its channels has ended.
    LosesChannel,

    /// `by`: who asks, when it is a process of this node.
    Start {
        asker: A,
        by: Option<OwnerId>,
        hold: HoldId,
    },
    /// The owner is held and owes nothing.
    Drained {
        hold: HoldId,
    },
    Rollback,
    /// `behind`: who has the number, when it is a process of this node.
    Commit {
        asker: A,
        to: Place,
        behind: Option<Place>,
    },
    /// Whoever waited does so no longer. A start is taken back, a commit goes on.
    Cancelled {
        asker: A,
    },
    /// Whether the stand-by is there.
    Prepared {
        hold: HoldId,
        result: Result<Parting, IpcError>,
    },
    /// No channel of this node's owner reaches that node any more.
    LeftBy {
        hold: HoldId,
        node: NodeId,
    },
    /// The stand-by has it, or will not.
    TakenOver {
        hold: HoldId,
        result: Result<(), IpcError>,
    },
    /// That node has asked where it is.
    Sought {
        node: NodeId,
    },

    /// Its home lets go of it, and waits until nothing is left of it here.
    Leaves {
        asker: A,
        from: NodeId,
        epoch: Epoch,
    },
    /// A channel was refused by the node that let go of it.
    HasLeft {
        from: NodeId,
    },
    /// It will not come again, or nobody can say where.
    TransitEnds {
        error: IpcError,
    },

    /// The container is no more.
    Forget {
        reason: IpcError,
    },
}

/// What the broker has to do because of an event, in the order of the list that [`Number::step`] returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect<A> {
    /// Writes into the binding's page, for ever, why it is over, and drops what is kept for the binding.
    EndPage(Ending),
    /// A binding has begun.
    BeginPage,
    /// Records on the shelf who has the number, for the next broker.
    Keep,
    /// `by` has ended and is not told; `None`: both parties are told.
    EndChannel {
        channel: Channel,
        by: Option<Endpoint>,
        reason: IpcError,
    },
    /// The process has the number no longer.
    LetGo(OwnerId),
    /// 0 lets its owner go on.
    SetHold(u32),
    /// Nobody has it with this epoch any more, the directory is told.
    TellUnbound {
        epoch: Epoch,
    },
    /// Whoever waits until nobody has the number goes on.
    Disappears,
    /// Opens that wait only for the end of the transit fail.
    FailOpens(IpcError),
    Answer {
        asker: A,
        result: Result<(), IpcError>,
    },
    /// Asks whether a stand-by is there; `Prepared` is the answer.
    Prepare {
        to: Place,
        hold: HoldId,
    },
    /// Asks these nodes to let go; each answers `LeftBy`.
    AskToLeave {
        nodes: BTreeSet<NodeId>,
        epoch: Epoch,
        hold: HoldId,
    },
    /// Has the stand-by begin; `TakenOver` is the answer.
    HandOver {
        to: Place,
        epoch: Epoch,
        privileges: Option<Privileges>,
        hold: HoldId,
    },
    /// Tells these nodes where it is now, or that nobody has it.
    TellMoved {
        nodes: BTreeSet<NodeId>,
        to: Option<(NodeId, Epoch)>,
    },
    /// It is known to be there, should that be heard of here for the first time.
    FindAt {
        node: NodeId,
        epoch: Epoch,
    },
}

/// What the page of a binding that is over says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Dead,
    /// On a node that cannot be reached.
    Unreachable,
    /// Another owner was promoted.
    Fenced,
    Moved,
}

/// How an owner came after another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Without the consent of the one before.
    Promoted,
    HandedOver,
}

impl Change {
    fn ending(self) -> Ending {
        match self {
            Change::Promoted => Ending::Fenced,
            Change::HandedOver => Ending::Moved,
        }
    }

    fn reason(self) -> IpcError {
        match self {
            Change::Promoted => IpcError::Fenced,
            Change::HandedOver => IpcError::Moved,
        }
    }
}

/// What a process of another node said last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Its channels are closed after it, in order.
    Comes,
    /// Nobody brings it.
    Lost,
}

/// What its home knows when it lets go of a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parting {
    pub here: NodeId,
    /// Which may have channels with it.
    pub nodes: BTreeSet<NodeId>,
    pub privileges: Option<Privileges>,
    /// How many errands to other nodes there is room for.
    pub room: usize,
}

/// What is known of another node that is said to have a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    Known,
    /// It begins there.
    New,
    /// A newer epoch is known, or it is here, or has left from there.
    Refused,
}

/// What a number must not forget, though nobody has it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Past {
    /// The highest it ever had here.
    pub epoch: Epoch,
    /// Where its last migration went from here, and what came of it: an asker may commit twice.
    pub handed: Option<(Place, Result<(), IpcError>)>,
}

#[derive(Debug, Clone)]
pub(super) enum State<A> {
    Free,
    Local {
        owner: OwnerId,
        epoch: Epoch,
        hold: Option<Hold<A>>,
    },
    Remote {
        node: NodeId,
        epoch: Epoch,
        told: Told,
    },
    /// Its owner, on another node, has ended; what it said last may still be on its way. Nobody opens anything to it.
    Leaving {
        node: NodeId,
        epoch: Epoch,
        told: Told,
        transit: Option<(Transit, Option<A>)>,
    },
    /// Its owner has ended, and the next one is not known yet. Opens wait.
    InTransit(Transit),
}

/// Where it was, and with which epoch: news of that, or of what was before, come late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Transit {
    pub from: NodeId,
    epoch: Epoch,
}

/// An owner of this node that is to be handed over, as long as that can be taken back.
#[derive(Clone, Debug)]
pub(super) struct Hold<A> {
    /// Tells this hold from an earlier one, of which an answer may come late.
    id: HoldId,
    step: HoldStep<A>,
    /// On whose behalf it is held: when the holder ends, the hold is taken back.
    holder: A,
}

#[derive(Clone, Debug)]
enum HoldStep<A> {
    Draining { asker: A },
    Held,
    Asking { to: Place, asker: Option<A> },
}

/// A hand-over that only goes forward. The number may have another owner before it is over.
#[derive(Clone, Debug)]
pub(super) struct Departure<A> {
    id: HoldId,
    from: NodeId,
    to: Place,
    /// Of the next owner.
    epoch: Epoch,
    privileges: Option<Privileges>,
    asker: Option<A>,
    /// Other nodes that hear where it went.
    told: BTreeSet<NodeId>,
    step: DepartureStep,
}

#[derive(Clone, Debug)]
enum DepartureStep {
    Departing { nodes: BTreeSet<NodeId> },
    Taking,
}

/// What a number is at this moment.
#[derive(Debug, Clone)]
pub(super) struct Present<A> {
    pub state: State<A>,
    pub departure: Option<Departure<A>>,
}

/// The channels of a number.
#[derive(Clone, Copy)]
pub(super) struct Own<'a> {
    pub endpoint: Endpoint,
    pub channels: &'a Channels,
}

impl Own<'_> {
    fn has_none(self) -> bool {
        self.channels.count_of(self.endpoint) == 0
    }

    fn end<A>(self, by: Option<Endpoint>, reason: IpcError) -> impl Iterator<Item = Effect<A>> {
        self.channels.of(self.endpoint).map(move |channel| Effect::EndChannel { channel: *channel, by, reason })
    }
}

/// One number in one step.
pub(super) struct Number<A> {
    pub past: Past,
    pub present: Present<A>,
}

type Effects<A> = Vec<Effect<A>>;

impl<A: Asking> Present<A> {
    pub fn free() -> Present<A> {
        Present { state: State::Free, departure: None }
    }

    pub fn bound(binding: Binding) -> Present<A> {
        let Binding { home, epoch, told } = binding;
        let state = match home {
            Home::Local { owner } => State::Local { owner, epoch, hold: None },
            Home::Remote { node } => State::Remote { node, epoch, told },
        };
        Present { state, departure: None }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Free) && self.departure.is_none()
    }

    pub fn binding(&self) -> Option<Binding> {
        match self.state {
            State::Local { owner, epoch, .. } => {
                Some(Binding { home: Home::Local { owner }, epoch, told: Told::ByDirectory })
            }
            State::Remote { node, epoch, told } | State::Leaving { node, epoch, told, .. } => {
                Some(Binding { home: Home::Remote { node }, epoch, told })
            }
            State::Free | State::InTransit(_) => None,
        }
    }

    pub fn transit(&self) -> Option<Transit> {
        match self.state {
            State::Leaving { transit: Some((transit, _)), .. } | State::InTransit(transit) => Some(transit),
            _ => None,
        }
    }

    pub fn hold(&self) -> Option<&Hold<A>> {
        if let State::Local { hold, .. } = &self.state { hold.as_ref() } else { None }
    }

    pub fn is_awaited_by(&self, asker: &A) -> bool {
        let of_hold = self.hold().and_then(Hold::asker);
        let of_departure = self.departure.as_ref().and_then(|departure| departure.asker.as_ref());
        of_hold == Some(asker) || of_departure == Some(asker)
    }
}

impl<A> Hold<A> {
    pub fn holder(&self) -> &A {
        &self.holder
    }

    fn asker(&self) -> Option<&A> {
        match &self.step {
            HoldStep::Draining { asker } => Some(asker),
            HoldStep::Held => None,
            HoldStep::Asking { asker, .. } => asker.as_ref(),
        }
    }

    /// Back to `Held`: nothing is under way any more. Returns the asker who is to be told.
    fn rest(&mut self) -> Option<A> {
        match std::mem::replace(&mut self.step, HoldStep::Held) {
            HoldStep::Draining { asker } => Some(asker),
            HoldStep::Held => None,
            HoldStep::Asking { asker, .. } => asker,
        }
    }
}

impl<A: Asking> Number<A> {
    /// Carries the event into the state, and returns what is to be done. An error refuses it: nothing has changed.
    pub fn step(&mut self, event: Event<A>, own: Own<'_>) -> Result<Effects<A>, IpcError> {
        match event {
            Event::Begins { owner, epoch } => self.begins(owner, epoch, own),
            Event::IsElsewhere { node, epoch, told, change } => self.is_elsewhere(node, epoch, told, change, own),
            Event::Speaks { node } => self.speaks(node),
            Event::Ends { ending, reason } => Ok(self.ends(ending, reason, own)),
            Event::IsFenced => Ok(self.is_fenced(own)),
            Event::IsGone { node, epoch, rest } => Ok(self.is_gone(node, epoch, rest, own)),
            Event::LosesChannel => Ok(self.end_if_left(own)),
            Event::Start { asker, by, hold } => self.start(asker, by, hold),
            Event::Drained { hold } => Ok(self.drained(hold)),
            Event::Rollback => self.roll_back(),
            Event::Commit { asker, to, behind } => self.commit(asker, to, behind),
            Event::Cancelled { asker } => Ok(self.cancelled(&asker)),
            Event::Prepared { hold, result } => Ok(self.prepared(hold, result, own)),
            Event::LeftBy { hold, node } => Ok(self.left_by(hold, node)),
            Event::TakenOver { hold, result } => Ok(self.taken_over(hold, result)),
            Event::Sought { node } => {
                if let Some(departure) = &mut self.present.departure {
                    departure.told.insert(node);
                }
                Ok(Vec::new())
            }
            Event::Leaves { asker, from, epoch } => Ok(self.leaves(asker, from, epoch, own)),
            Event::HasLeft { from } => Ok(self.has_left(from, own)),
            Event::TransitEnds { error } => Ok(self.transit_ends(error)),
            Event::Forget { reason } => Ok(self.forget(reason, own)),
        }
    }

    // ---- Bindings.

    /// Whether a process of this node may have it.
    pub fn may_begin(&self, epoch: Epoch) -> Result<(), IpcError> {
        match self.present.binding() {
            Some(Binding { home: Home::Local { .. }, .. }) => Err(IpcError::EndpointInUse),
            Some(Binding { epoch: theirs, .. }) if theirs >= epoch => Err(IpcError::Fenced),
            _ if self.past.epoch > epoch => Err(IpcError::Fenced),
            _ => Ok(()),
        }
    }

    fn begins(&mut self, owner: OwnerId, epoch: Epoch, own: Own<'_>) -> Result<Effects<A>, IpcError> {
        self.may_begin(epoch)?;
        self.past = Past { epoch, handed: None };
        Ok(self.replace(State::Local { owner, epoch, hold: None }, Change::Promoted, own))
    }

    /// Whether to believe that `node` has the number with `epoch`.
    pub fn judge(&self, node: NodeId, epoch: Epoch, told: Told) -> Claim {
        let is_late = self.present.transit().is_some_and(|transit| transit.epoch >= epoch);
        match self.present.binding() {
            _ if is_late && told == Told::ByDirectory => Claim::Refused,
            // The directory says more of a caller that is known by its first message: the same process.
            Some(known)
                if known.home == (Home::Remote { node })
                    && known.told == Told::ByFirstMessage
                    && known.epoch <= epoch =>
            {
                Claim::Known
            }
            Some(known) if known.home == (Home::Remote { node }) && known.epoch == epoch => Claim::Known,
            Some(known) if known.epoch >= epoch => Claim::Refused,
            _ if self.past.epoch > epoch => Claim::Refused,
            _ => Claim::New,
        }
    }

    fn is_elsewhere(
        &mut self,
        node: NodeId,
        epoch: Epoch,
        told: Told,
        change: Change,
        own: Own<'_>,
    ) -> Result<Effects<A>, IpcError> {
        match self.judge(node, epoch, told) {
            Claim::Refused => Err(IpcError::Fenced),
            Claim::New => {
                self.past.epoch = epoch;
                Ok(self.replace(State::Remote { node, epoch, told }, change, own))
            }
            Claim::Known => {
                let before = self.present.binding();
                // A first message after the directory's word adds nothing: the binding stays `ByDirectory`.
                let told = before.filter(|known| known.told == Told::ByDirectory).map_or(told, |known| known.told);
                self.past.epoch = epoch;
                let left = std::mem::replace(&mut self.present.state, State::Remote { node, epoch, told });
                let mut effects: Effects<A> = Vec::new();
                effects.extend((before != self.present.binding()).then_some(Effect::Keep));
                effects.extend(is_empty_here(left));
                Ok(effects)
            }
        }
    }

    /// Another owner than before, if there was one.
    fn replace(&mut self, next: State<A>, change: Change, own: Own<'_>) -> Effects<A> {
        let mut effects = Vec::new();
        if self.present.binding().is_some() {
            effects.push(Effect::EndPage(change.ending()));
            effects.extend(own.end(None, change.reason()));
        }
        effects.push(Effect::BeginPage);
        // After the end of the channels: they are the old owner's.
        effects.push(Effect::Keep);
        match std::mem::replace(&mut self.present.state, next) {
            State::Local { owner, hold, .. } => {
                effects.extend(hold_ends(hold));
                effects.push(Effect::LetGo(owner));
            }
            other => effects.extend(is_empty_here(other)),
        }
        effects
    }

    fn speaks(&mut self, node: NodeId) -> Result<Effects<A>, IpcError> {
        match self.present.state {
            State::Leaving { transit: Some(_), .. } => return Err(IpcError::Moved),
            State::Remote { node: known, .. } if known == node => {}
            State::Leaving { node: known, epoch, told, transit: None } if known == node => {
                // So it is here again.
                self.present.state = State::Remote { node, epoch, told };
            }
            State::Local { .. } | State::Remote { .. } | State::Leaving { .. } => return Err(IpcError::Fenced),
            State::Free | State::InTransit(_) => return Err(IpcError::NoSuchEndpoint),
        }
        Ok(Vec::new())
    }

    fn ends(&mut self, ending: Ending, reason: IpcError, own: Own<'_>) -> Effects<A> {
        let Some(binding) = self.present.binding() else { return Vec::new() };
        let mut effects = vec![Effect::EndPage(ending), Effect::Keep];
        effects.extend(own.end(Some(own.endpoint), reason));
        let after = self.present.transit().map_or(State::Free, State::InTransit);
        match std::mem::replace(&mut self.present.state, after) {
            State::Local { hold, .. } => effects.extend(hold_ends(hold)),
            other => effects.extend(is_empty_here(other)),
        }
        effects.push(Effect::Disappears);
        if matches!(binding.home, Home::Local { .. }) {
            effects.push(Effect::TellUnbound { epoch: binding.epoch });
        }
        effects
    }

    fn is_fenced(&mut self, own: Own<'_>) -> Effects<A> {
        let State::Local { owner, .. } = self.present.state else { return Vec::new() };
        let mut effects = self.ends(Ending::Fenced, IpcError::Fenced, own);
        // The successor has the same number, so the directory is told of no end.
        effects.retain(|effect| !matches!(effect, Effect::TellUnbound { .. }));
        effects.push(Effect::LetGo(owner));
        effects
    }

    fn is_gone(&mut self, gone: NodeId, last: Epoch, rest: Rest, own: Own<'_>) -> Effects<A> {
        let (State::Remote { node, epoch, .. } | State::Leaving { node, epoch, .. }) = self.present.state else {
            return Vec::new();
        };
        if node != gone || epoch > last {
            return Vec::new();
        }
        if rest == Rest::Lost || own.has_none() {
            return self.ends(Ending::Dead, IpcError::SourceDied, own);
        }
        self.leave_with(None);
        vec![Effect::Disappears]
    }

    /// The owner, on another node, has ended or is being handed over: only its last channels are left.
    fn leave_with(&mut self, to: Option<(Transit, Option<A>)>) {
        if let State::Remote { node, epoch, told } | State::Leaving { node, epoch, told, .. } = self.present.state {
            let before = match &mut self.present.state {
                State::Leaving { transit, .. } => transit.take(),
                _ => None,
            };
            self.present.state = State::Leaving { node, epoch, told, transit: to.or(before) };
        }
    }

    /// Ends a binding that is leaving with its last channel, and also one that is known by its first message alone:
    /// that message may have come after the news that the process ended.
    fn end_if_left(&mut self, own: Own<'_>) -> Effects<A> {
        if !own.has_none() {
            return Vec::new();
        }
        match self.present.state {
            State::Leaving { transit: Some((transit, asker)), .. } => {
                self.present.state = State::InTransit(transit);
                let mut effects = vec![Effect::EndPage(Ending::Moved), Effect::Keep];
                effects.extend(asker.map(|asker| Effect::Answer { asker, result: Ok(()) }));
                effects
            }
            State::Leaving { transit: None, .. } | State::Remote { told: Told::ByFirstMessage, .. } => {
                self.ends(Ending::Dead, IpcError::SourceDied, own)
            }
            _ => Vec::new(),
        }
    }

    // ---- The home of a number that is handed over.

    fn start(&mut self, asker: A, by: Option<OwnerId>, id: HoldId) -> Result<Effects<A>, IpcError> {
        if self.present.departure.is_some() {
            return Err(IpcError::Busy);
        }
        let State::Local { owner, hold, .. } = &mut self.present.state else { return Err(IpcError::NoSuchEndpoint) };
        let done = Effect::Answer { asker, result: Ok(()) };
        match hold {
            Some(hold) if !hold.holder.is_of_same_party(&asker) => Err(IpcError::Busy),
            Some(Hold { step: HoldStep::Held, holder, .. }) => {
                *holder = asker;
                Ok(vec![done])
            }
            // The same request over another link.
            Some(Hold { step: HoldStep::Draining { asker: waiting }, holder, .. }) => {
                (*waiting, *holder) = (asker, asker);
                Ok(Vec::new())
            }
            Some(Hold { step: HoldStep::Asking { .. }, .. }) => Err(IpcError::Busy),
            None => {
                // An owner that holds itself owes nothing: its library made sure of that.
                let is_own = by == Some(*owner);
                let step = if is_own { HoldStep::Held } else { HoldStep::Draining { asker } };
                *hold = Some(Hold { id, step, holder: asker });
                self.past.handed = None;
                let mut effects = vec![Effect::SetHold(id.0)];
                effects.extend(is_own.then_some(done));
                Ok(effects)
            }
        }
    }

    fn drained(&mut self, id: HoldId) -> Effects<A> {
        match self.held(id) {
            Some(hold) if matches!(hold.step, HoldStep::Draining { .. }) => {
                hold.rest().map(|asker| Effect::Answer { asker, result: Ok(()) }).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn roll_back(&mut self) -> Result<Effects<A>, IpcError> {
        if self.present.departure.is_some() {
            return Err(IpcError::Busy);
        }
        let State::Local { hold, .. } = &mut self.present.state else { return Ok(Vec::new()) };
        let waiting = match hold {
            None => return Ok(Vec::new()),
            Some(Hold { step: HoldStep::Asking { .. }, .. }) => return Err(IpcError::Busy),
            Some(hold) => hold.rest(),
        };
        *hold = None;
        let mut effects = answer(waiting, Err(IpcError::TimedOut));
        effects.push(Effect::SetHold(0));
        Ok(effects)
    }

    fn commit(&mut self, asker: A, to: Place, behind: Option<Place>) -> Result<Effects<A>, IpcError> {
        if let Some(departure) = &mut self.present.departure {
            if departure.to != to {
                return Err(IpcError::Busy);
            }
            departure.asker = Some(asker);
            return Ok(Vec::new());
        }
        if let State::Local { hold: Some(Hold { id, step, .. }), .. } = &mut self.present.state {
            return match step {
                HoldStep::Held => {
                    *step = HoldStep::Asking { to, asker: Some(asker) };
                    Ok(vec![Effect::Prepare { to, hold: *id }])
                }
                HoldStep::Asking { to: under_way, asker: waiting } if *under_way == to => {
                    *waiting = Some(asker);
                    Ok(Vec::new())
                }
                _ => Err(IpcError::Busy),
            };
        }
        // Asked twice: the answer was lost with its link, or with the broker that gave it.
        match self.past.handed {
            Some((place, result)) if place == to => Ok(vec![Effect::Answer { asker, result }]),
            _ if behind == Some(to) => Ok(vec![Effect::Answer { asker, result: Ok(()) }]),
            _ => Err(IpcError::BadArgument),
        }
    }

    fn cancelled(&mut self, gone: &A) -> Effects<A> {
        if let Some(departure) = &mut self.present.departure
            && departure.asker.as_ref() == Some(gone)
        {
            departure.asker = None;
        }
        let State::Local { hold, .. } = &mut self.present.state else { return Vec::new() };
        match hold {
            Some(Hold { step: HoldStep::Draining { asker }, .. }) if asker == gone => {
                *hold = None;
                vec![Effect::SetHold(0)]
            }
            Some(Hold { step: HoldStep::Asking { asker, .. }, .. }) if asker.as_ref() == Some(gone) => {
                *asker = None;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn prepared(&mut self, id: HoldId, result: Result<Parting, IpcError>, own: Own<'_>) -> Effects<A> {
        let State::Local { owner, epoch, .. } = self.present.state else { return Vec::new() };
        let Some(hold) = self.held(id) else { return Vec::new() };
        let HoldStep::Asking { to, .. } = hold.step else { return Vec::new() };
        let asker = hold.rest();
        match result {
            Err(error) => answer(asker, Err(error)),
            // One to the next owner's node, and one to take over.
            Ok(parting) if parting.nodes.len() + 2 > parting.room => answer(asker, Err(IpcError::TableFull)),
            Ok(parting) => self.leave_home((owner, epoch), (id, to, asker), parting, own),
        }
    }

    /// The old owner ends. Nobody can take this back.
    fn leave_home(
        &mut self,
        (owner, epoch): (OwnerId, Epoch),
        (id, to, asker): (HoldId, Place, Option<A>),
        parting: Parting,
        own: Own<'_>,
    ) -> Effects<A> {
        let Parting { here, mut nodes, privileges, .. } = parting;
        if to.node != here {
            // Its clients may open a channel at this moment, although they had none.
            nodes.insert(to.node);
        }
        let mut effects = Vec::new();
        if !nodes.is_empty() {
            effects.push(Effect::AskToLeave { nodes: nodes.clone(), epoch, hold: id });
        }
        effects.extend([Effect::EndPage(Ending::Moved), Effect::Keep]);
        effects.extend(own.end(Some(own.endpoint), IpcError::Moved));
        effects.push(Effect::LetGo(owner));
        self.present.state = State::InTransit(Transit { from: here, epoch });
        let next = Epoch(epoch.0.saturating_add(1));
        let step = DepartureStep::Departing { nodes: nodes.clone() };
        let departure = Departure { id, from: here, to, epoch: next, privileges, asker, told: nodes, step };
        self.present.departure = Some(departure);
        effects.extend(self.hand_over_if_left());
        effects
    }

    /// Also for a node that cannot be reached: it has no channel with the number any more either.
    fn left_by(&mut self, id: HoldId, node: NodeId) -> Effects<A> {
        match &mut self.present.departure {
            Some(Departure { id: of, step: DepartureStep::Departing { nodes }, .. }) if *of == id => {
                nodes.remove(&node);
                self.hand_over_if_left().into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Once nobody talks with the old owner any more, the new one begins.
    fn hand_over_if_left(&mut self) -> Option<Effect<A>> {
        let departure = self.present.departure.as_mut()?;
        match &departure.step {
            DepartureStep::Departing { nodes } if nodes.is_empty() => {}
            _ => return None,
        }
        departure.step = DepartureStep::Taking;
        let Departure { id, to, epoch, .. } = *departure;
        Some(Effect::HandOver { to, epoch, privileges: departure.privileges.take(), hold: id })
    }

    fn taken_over(&mut self, id: HoldId, result: Result<(), IpcError>) -> Effects<A> {
        let is_it = |it: &mut Departure<A>| it.id == id && matches!(it.step, DepartureStep::Taking);
        let Some(Departure { from, to, epoch, asker, mut told, .. }) = self.present.departure.take_if(is_it) else {
            return Vec::new();
        };
        let result = result.map_err(|error| if error == IpcError::NoLink { error } else { IpcError::DestinationDied });
        told.remove(&to.node);
        let at = result.is_ok().then_some((to.node, epoch));
        let mut effects = vec![Effect::TellMoved { nodes: told, to: at }];
        match result {
            Ok(()) if to.node != from => effects.push(Effect::FindAt { node: to.node, epoch }),
            Ok(()) => {}
            Err(_) => {
                effects.extend(self.transit_ends(IpcError::NoSuchEndpoint));
                effects.push(Effect::TellUnbound { epoch: Epoch(epoch.0.saturating_sub(1)) });
            }
        }
        self.past.handed = Some((to, result));
        effects.extend(answer(asker, result));
        effects
    }

    fn held(&mut self, id: HoldId) -> Option<&mut Hold<A>> {
        let State::Local { hold, .. } = &mut self.present.state else { return None };
        hold.as_mut().filter(|hold| hold.id == id)
    }

    // ---- Nodes of its clients.

    fn leaves(&mut self, asker: A, from: NodeId, epoch: Epoch, own: Own<'_>) -> Effects<A> {
        let done = vec![Effect::Answer { asker, result: Ok(()) }];
        if self.past.epoch > epoch {
            // Asked twice, and over since.
            return done;
        }
        let transit = Transit { from, epoch };
        match self.present.state {
            State::Remote { node, .. } | State::Leaving { node, .. } if node == from => {
                self.leave_with(Some((transit, Some(asker))));
                self.end_if_left(own)
            }
            // It is known to be elsewhere.
            State::Local { .. } | State::Remote { .. } | State::Leaving { .. } => done,
            State::Free | State::InTransit(_) => {
                self.present.state = State::InTransit(transit);
                done
            }
        }
    }

    fn has_left(&mut self, from: NodeId, own: Own<'_>) -> Effects<A> {
        let epoch = self.past.epoch;
        match self.present.state {
            State::Remote { node, .. } | State::Leaving { node, transit: None, .. } if node == from => {
                self.leave_with(Some((Transit { from, epoch }, None)));
                self.end_if_left(own)
            }
            _ => Vec::new(),
        }
    }

    fn transit_ends(&mut self, error: IpcError) -> Effects<A> {
        // A transit that began here is ended by its own departure alone.
        if self.present.departure.is_some() {
            return Vec::new();
        }
        let asker = match &mut self.present.state {
            State::Leaving { transit, .. } => match transit.take() {
                Some((_, asker)) => asker,
                None => return Vec::new(),
            },
            State::InTransit(_) => {
                self.present.state = State::Free;
                None
            }
            _ => return Vec::new(),
        };
        let mut effects = vec![Effect::FailOpens(error), Effect::Disappears];
        effects.extend(answer(asker, Err(error)));
        effects
    }

    fn forget(&mut self, reason: IpcError, own: Own<'_>) -> Effects<A> {
        let mut effects = self.ends(Ending::Dead, reason, own);
        let asker = self.present.departure.take().and_then(|departure| departure.asker);
        effects.extend(self.transit_ends(reason));
        effects.extend(answer(asker, Err(reason)));
        effects
    }
}

fn answer<A>(asker: Option<A>, result: Result<(), IpcError>) -> Effects<A> {
    asker.map(|asker| Effect::Answer { asker, result }).into_iter().collect()
}

/// An owner has ended, and with it the hand-over of its number.
fn hold_ends<A>(hold: Option<Hold<A>>) -> Effects<A> {
    answer(hold.and_then(|mut hold| hold.rest()), Err(IpcError::DestinationDied))
}

/// A home may wait for the end of what was here.
fn is_empty_here<A>(before: State<A>) -> Effects<A> {
    match before {
        State::Leaving { transit: Some((_, asker)), .. } => answer(asker, Ok(())),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
