//! What is done to whom. A run is a list of rounds; the faults of a round are done at once, then everything is healed.
//!
//! As text: faults are joined by `+` to a round, rounds by spaces, and a fault is `KIND:WHO[:WHO][:MILLISECONDS]`, for
//! instance `kill:daemon:n2:500 stop:member:n1:2000+cut:n2:n3:1500`.

use std::fmt;
use std::str::FromStr;

use histories::Rng;

pub const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A process that every node has, or that one node of the container has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    Daemon,
    Member,
    Proxy,
    Keeper,
    Fs,
    Disk,
    Ds,
    Cs,
    Gate,
    /// Of a disk, where the node has one.
    Copy,
}

const ROLES: [(Role, &str); 10] = [
    (Role::Daemon, "daemon"),
    (Role::Member, "member"),
    (Role::Proxy, "proxy"),
    (Role::Keeper, "keeper"),
    (Role::Fs, "fs"),
    (Role::Disk, "disk"),
    (Role::Ds, "ds"),
    (Role::Cs, "cs"),
    (Role::Gate, "gate"),
    (Role::Copy, "copy"),
];

/// Of a node: an index in [`NODES`].
pub type Node = usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// SIGKILL. A daemon is started again after `ms`, as a service manager does; all others by those who look after
    /// them. Servers that a container has once are killed on whatever node they are.
    Kill { role: Role, node: Node, ms: u64 },
    /// SIGSTOP, and SIGCONT after `ms`.
    Stop { role: Role, node: Node, ms: u64 },
    /// Every process of a machine.
    StopMachine { node: Node, ms: u64 },
    /// A machine loses its power, and is started after `ms`.
    PowerOff { node: Node, ms: u64 },
    /// A machine's network cable.
    Unplug { node: Node, ms: u64 },
    /// In and out, five times.
    Flap { node: Node, ms: u64 },
    /// What the first sends does not reach the second.
    OneWay { from: Node, to: Node, ms: u64 },
    /// Nothing passes between the two.
    Between { one: Node, other: Node, ms: u64 },
    /// The disk of a node's state hangs four fifths of the time.
    SlowDisk { node: Node, ms: u64 },
    /// It hangs.
    HungDisk { node: Node, ms: u64 },
    /// Nothing is left on it.
    FullDisk { node: Node, ms: u64 },
    /// The engine forgets what was, and its member there moves its data together, which stops it for a moment.
    Compact { node: Node },
    /// Somebody starts a second daemon on a node.
    Second { node: Node },
    /// The machine is lost for good; another one of its name joins. The container is made anew: last of a generation.
    Replace { node: Node },
}

pub type Round = Vec<Fault>;

const KINDS: [&str; 14] = [
    "kill",
    "stop",
    "stopmachine",
    "poweroff",
    "unplug",
    "flap",
    "oneway",
    "between",
    "slowdisk",
    "hungdisk",
    "fulldisk",
    "compact",
    "second",
    "replace",
];

/// So many faults, `replacements` of them replacements. Every kind comes before any comes again: a deck is dealt to its
/// end, then the next one is mixed.
pub fn plan(seed: u64, count: usize, replace_every: usize) -> Vec<Round> {
    let mut rng = Rng::new(seed).fork(1);
    let (mut rounds, mut deck, mut dealt) = (Vec::<Round>::new(), Vec::<Fault>::new(), 0);
    while dealt < count {
        if replace_every > 0 && dealt % replace_every == replace_every / 2 {
            rounds.push(vec![Fault::Replace { node: rng.below(3) as usize }]);
            dealt += 1;
            continue;
        }
        if deck.is_empty() {
            deck = shuffled_deck(&mut rng);
        }
        let mut round: Round = deck.pop().into_iter().collect();
        dealt += 1;
        // A second one at once, now and then; not at a border of generations.
        let is_border = replace_every > 0 && dealt % replace_every == replace_every / 2;
        if rng.one_in(4) && dealt < count && !is_border {
            round.extend(deck.pop());
            dealt += usize::from(round.len() == 2);
        }
        rounds.push(round);
    }
    rounds
}

fn shuffled_deck(rng: &mut Rng) -> Vec<Fault> {
    use Role::*;
    let mut deck = Vec::new();
    for role in [Daemon, Daemon, Daemon, Member, Member, Proxy, Keeper, Fs, Disk, Copy, Ds, Cs, Cs, Gate] {
        deck.push(Fault::Kill { role, node: rng.below(3) as usize, ms: rng.below(1500) });
    }
    for role in [Daemon, Member, Member, Proxy, Fs, Copy, Cs] {
        deck.push(Fault::Stop { role, node: rng.below(3) as usize, ms: 300 + rng.below(3000) });
    }
    let node = |rng: &mut Rng| rng.below(3) as usize;
    deck.push(Fault::StopMachine { node: node(rng), ms: 300 + rng.below(3500) });
    deck.push(Fault::PowerOff { node: node(rng), ms: 300 + rng.below(2500) });
    deck.push(Fault::PowerOff { node: node(rng), ms: 300 + rng.below(2500) });
    deck.push(Fault::Unplug { node: node(rng), ms: 200 + rng.below(1000) });
    deck.push(Fault::Unplug { node: node(rng), ms: 1500 + rng.below(3000) });
    deck.push(Fault::Flap { node: node(rng), ms: 500 + rng.below(2500) });
    let from = node(rng);
    deck.push(Fault::OneWay { from, to: (from + 1 + node(rng) % 2) % 3, ms: 500 + rng.below(3000) });
    let one = node(rng);
    deck.push(Fault::Between { one, other: (one + 1 + node(rng) % 2) % 3, ms: 500 + rng.below(3000) });
    deck.push(Fault::SlowDisk { node: node(rng), ms: 1000 + rng.below(2000) });
    deck.push(Fault::HungDisk { node: node(rng), ms: 500 + rng.below(3000) });
    deck.push(Fault::FullDisk { node: node(rng), ms: 1000 + rng.below(1500) });
    deck.push(Fault::Compact { node: node(rng) });
    deck.push(Fault::Second { node: node(rng) });
    for last in (1..deck.len()).rev() {
        deck.swap(last, rng.below(last as u64 + 1) as usize);
    }
    deck
}

impl Fault {
    pub fn is_replacement(self) -> bool {
        matches!(self, Fault::Replace { .. })
    }

    /// Nodes on which programs may have been killed.
    pub fn kills_programs_on(self) -> Option<Node> {
        match self {
            Fault::Kill { role: Role::Keeper, node, .. } | Fault::PowerOff { node, .. } | Fault::Replace { node } => {
                Some(node)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = |role: &Role| ROLES.iter().find(|(one, _)| one == role).map_or("", |(_, name)| name);
        match self {
            Fault::Kill { role: of, node, ms } => write!(f, "kill:{}:{}:{ms}", role(of), NODES[*node]),
            Fault::Stop { role: of, node, ms } => write!(f, "stop:{}:{}:{ms}", role(of), NODES[*node]),
            Fault::StopMachine { node, ms } => write!(f, "stopmachine:{}:{ms}", NODES[*node]),
            Fault::PowerOff { node, ms } => write!(f, "poweroff:{}:{ms}", NODES[*node]),
            Fault::Unplug { node, ms } => write!(f, "unplug:{}:{ms}", NODES[*node]),
            Fault::Flap { node, ms } => write!(f, "flap:{}:{ms}", NODES[*node]),
            Fault::OneWay { from, to, ms } => write!(f, "oneway:{}:{}:{ms}", NODES[*from], NODES[*to]),
            Fault::Between { one, other, ms } => write!(f, "between:{}:{}:{ms}", NODES[*one], NODES[*other]),
            Fault::SlowDisk { node, ms } => write!(f, "slowdisk:{}:{ms}", NODES[*node]),
            Fault::HungDisk { node, ms } => write!(f, "hungdisk:{}:{ms}", NODES[*node]),
            Fault::FullDisk { node, ms } => write!(f, "fulldisk:{}:{ms}", NODES[*node]),
            Fault::Compact { node } => write!(f, "compact:{}", NODES[*node]),
            Fault::Second { node } => write!(f, "second:{}", NODES[*node]),
            Fault::Replace { node } => write!(f, "replace:{}", NODES[*node]),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let words: Vec<&str> = text.split(':').collect();
        let wrong = || format!("'{text}' is no fault; there are {KINDS:?}");
        let node = |index: usize| {
            let name = words.get(index).ok_or_else(wrong)?;
            NODES.iter().position(|node| node == name).ok_or_else(wrong)
        };
        let role = |index: usize| {
            let name = words.get(index).ok_or_else(wrong)?;
            ROLES.iter().find(|(_, one)| one == name).map(|(role, _)| *role).ok_or_else(wrong)
        };
        let ms = |index: usize| words.get(index).and_then(|word| word.parse().ok()).ok_or_else(wrong);
        Ok(match words[0] {
            "kill" => Fault::Kill { role: role(1)?, node: node(2)?, ms: ms(3)? },
            "stop" => Fault::Stop { role: role(1)?, node: node(2)?, ms: ms(3)? },
            "stopmachine" => Fault::StopMachine { node: node(1)?, ms: ms(2)? },
            "poweroff" => Fault::PowerOff { node: node(1)?, ms: ms(2)? },
            "unplug" => Fault::Unplug { node: node(1)?, ms: ms(2)? },
            "flap" => Fault::Flap { node: node(1)?, ms: ms(2)? },
            "oneway" => Fault::OneWay { from: node(1)?, to: node(2)?, ms: ms(3)? },
            "between" => Fault::Between { one: node(1)?, other: node(2)?, ms: ms(3)? },
            "slowdisk" => Fault::SlowDisk { node: node(1)?, ms: ms(2)? },
            "hungdisk" => Fault::HungDisk { node: node(1)?, ms: ms(2)? },
            "fulldisk" => Fault::FullDisk { node: node(1)?, ms: ms(2)? },
            "compact" => Fault::Compact { node: node(1)? },
            "second" => Fault::Second { node: node(1)? },
            "replace" => Fault::Replace { node: node(1)? },
            _ => return Err(wrong()),
        })
    }
}

pub fn written(rounds: &[Round]) -> String {
    let round = |round: &Round| round.iter().map(Fault::to_string).collect::<Vec<_>>().join("+");
    rounds.iter().map(round).collect::<Vec<_>>().join(" ")
}

pub fn read(text: &str) -> Result<Vec<Round>, String> {
    text.split_whitespace().map(|round| round.split('+').map(str::parse).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_is_the_same_for_a_seed_has_every_kind_and_can_be_written_and_read() {
        let rounds = plan(7, 35, 30);
        assert_eq!(rounds, plan(7, 35, 30));
        assert_ne!(rounds, plan(8, 35, 30));
        assert_eq!(rounds.iter().map(Vec::len).sum::<usize>(), 35);
        let text = written(&rounds);
        assert_eq!(read(&text).as_ref(), Ok(&rounds));
        for kind in KINDS {
            assert!(text.split([' ', '+']).any(|fault| fault.starts_with(&format!("{kind}:"))), "{kind}: {text}");
        }
        assert!(rounds.iter().flatten().all(|fault| match fault {
            Fault::OneWay { from, to, .. } => from != to,
            Fault::Between { one, other, .. } => one != other,
            _ => true,
        }));
        assert!(read("kill:queen:n1:5").is_err() && read("replace:n9").is_err() && read("").unwrap().is_empty());
    }
}
