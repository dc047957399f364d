//! Programs of the container that agree on things: values that are compared and set, locks, an election.
//!
//! A program is told what to do by a line on its input and says what came of it by a line of output. It is asked one
//! thing at a time, so what a line says lies between the two moments at which we wrote and read.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use histories::models::race;
use histories::models::register::{Answer, Ask, Given};
use histories::terms::Told;
use histories::{Rng, Ticket};

use crate::robustness::Notes;
use crate::robustness::faults::{NODES, Node};
use crate::robustness::site::Site;

const VALUES: u64 = 4;
const LOCKS: u64 = 2;
const ELECTION: &str = "chief";
/// How long somebody waits for a lock.
const WAIT_MS: u64 = 1500;

/// Linux' numbers.
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ETIMEDOUT: i32 = 110;
const EHOSTUNREACH: i32 = 113;
const ESTALE: i32 = 116;

/// What the program said.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Said {
    Done(Vec<String>),
    Failed(i32),
    /// It is gone.
    Nothing,
}

struct Program {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// When it was last known to live.
    alive_at: u64,
    /// Faults that killed programs of its node before it was started.
    kills: u64,
}

impl Program {
    fn start(site: &Site, notes: &Notes, dc: &str, node: Node) -> Option<Program> {
        let kills = notes.kills(node);
        let test = ["child_process", "--exact", "--nocapture", "--test-threads=1"];
        let run =
            ["run", dc, "--node", NODES[node], "-i", "--env", "ROBUSTNESS_ROLE=member", "--", "/dc/programs/member"];
        let mut command = site.command_without_limit(node, &[&run[..], &test].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let input = child.stdin.take()?;
        let lines = BufReader::new(child.stdout.take()?).lines();
        let mut program = Program { child, input, lines, alive_at: notes.now(), kills };
        (program.hear() == Said::Done(vec!["ready".to_owned()])).then_some(program)
    }

    fn ask(&mut self, notes: &Notes, line: &str) -> Said {
        if writeln!(self.input, "{line}").is_err() {
            return Said::Nothing;
        }
        let said = self.hear();
        if said != Said::Nothing {
            self.alive_at = notes.now();
        }
        said
    }

    fn hear(&mut self) -> Said {
        loop {
            let Some(Ok(line)) = self.lines.next() else { return Said::Nothing };
            // The harness of the test that the program is says things of its own.
            let Some((_, said)) = line.split_once("said ") else { continue };
            let words: Vec<String> = said.split(' ').map(str::to_owned).collect();
            return match words.as_slice() {
                [failed, number] if failed == "error" => Said::Failed(number.parse().unwrap_or(0)),
                _ => Said::Done(words),
            };
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is left of a program after a step.
#[derive(PartialEq, Eq)]
enum Then {
    GoesOn,
    /// Nobody knows what it holds: another one takes its place.
    Over,
}

pub struct Member<'a> {
    pub site: &'a Site,
    pub notes: &'a Notes,
    pub dc: &'a str,
    pub node: Node,
    /// Of all members.
    pub number: u32,
    pub rng: Rng,
}

impl Member<'_> {
    /// Until the traffic ends.
    pub fn run(mut self) {
        let mut lives = 0;
        while !self.notes.has_ended() {
            let Some(mut program) = Program::start(self.site, self.notes, self.dc, self.node) else {
                self.notes.heard("a member was not started");
                std::thread::sleep(Duration::from_millis(200));
                continue;
            };
            lives += 1;
            let watcher = u64::from(self.number) * 1_000_000 + lives;
            while !self.notes.has_ended() && self.step(&mut program, watcher) == Then::GoesOn {
                std::thread::sleep(Duration::from_millis(10 + self.rng.below(50)));
            }
        }
    }

    fn step(&mut self, program: &mut Program, watcher: u64) -> Then {
        match self.rng.below(10) {
            0..=5 => self.value(program),
            6..=7 => {
                let name = format!("lock{}", self.rng.below(LOCKS));
                self.race(program, watcher, &name, Kind::Lock)
            }
            8 => self.race(program, watcher, ELECTION, Kind::Election),
            _ => self.look(program, watcher),
        }
    }

    fn value(&mut self, program: &mut Program) -> Then {
        let key = format!("key{}", self.rng.below(VALUES));
        let value = self.rng.draw() >> 16;
        match self.rng.below(10) {
            0..=3 => self.ask_value(program, &key, Ask::Get).1,
            4..=5 => self.ask_value(program, &key, Ask::Put { value, given: Given::Anything }).1,
            6 => self.ask_value(program, &key, Ask::Put { value, given: Given::Absent }).1,
            7 => self.ask_value(program, &key, Ask::Delete { given: Given::Anything }).1,
            // Read, then replace what was read.
            _ => match self.ask_value(program, &key, Ask::Get) {
                (Some(Answer::Found { revision: Some(by), .. }), _) => {
                    self.ask_value(program, &key, Ask::Put { value, given: Given::At(by) }).1
                }
                (_, then) => then,
            },
        }
    }

    fn ask_value(&mut self, program: &mut Program, key: &str, ask: Ask) -> (Option<Answer>, Then) {
        let given = |given: &Given| match given {
            Given::Anything => "any".to_owned(),
            Given::Absent => "absent".to_owned(),
            Given::Present => "present".to_owned(),
            Given::At(revision) => revision.to_string(),
        };
        let line = match &ask {
            Ask::Get => format!("get {key}"),
            Ask::Put { value, given: when } => format!("put {key} {value} {}", given(when)),
            Ask::Delete { given: when } => format!("delete {key} {}", given(when)),
        };
        let Some(ticket) = self.invoke(&format!("cs/{key}"), ask.clone()) else { return (None, Then::Over) };
        let said = program.ask(self.notes, &line);
        let answer = match (&ask, &said) {
            (Ask::Get, Said::Done(words)) => words
                .first()
                .and_then(|word| word.parse().ok())
                .zip(words.get(1).and_then(|word| word.parse().ok()))
                .map(|(value, revision)| Answer::Found { value, revision: Some(revision) }),
            (_, Said::Done(words)) => Some(Answer::Done { revision: words.first().and_then(|word| word.parse().ok()) }),
            (Ask::Get | Ask::Delete { .. }, Said::Failed(ENOENT)) => Some(Answer::Missing),
            (Ask::Put { given: Given::Absent, .. }, Said::Failed(EEXIST)) => Some(Answer::Refused),
            // The condition did not hold: the key is gone, or has another revision. A session that is over says that
            // too, to everything; then its answer is worth nothing.
            (Ask::Put { given: Given::At(_), .. }, Said::Failed(ENOENT)) => Some(Answer::Refused),
            (Ask::Put { given: Given::At(_), .. }, Said::Failed(ESTALE)) => {
                (program.ask(self.notes, "seen") != Said::Failed(ESTALE)).then_some(Answer::Refused)
            }
            _ => None,
        };
        match (&answer, said) {
            (Some(answer), _) => self.notes.values.answered(ticket, answer.clone(), self.notes.now()),
            (None, Said::Failed(EHOSTUNREACH)) => {
                self.notes.heard(&format!("value on {}: error {EHOSTUNREACH}", NODES[self.node]));
                self.notes.values.did_not_happen(ticket);
            }
            (None, Said::Failed(number)) => {
                self.notes.heard(&format!(
                    "{} on {}: error E{}",
                    line.split(' ').next().unwrap_or(""),
                    NODES[self.node],
                    name_of(number)
                ));
                return (None, Then::Over);
            }
            (None, _) => return (None, self.gone(program)),
        }
        (answer, Then::GoesOn)
    }

    /// Wants it, looks whether it still has it, gives it up.
    fn race(&mut self, program: &mut Program, watcher: u64, name: &str, kind: Kind) -> Then {
        let wish = self.rng.draw();
        let leader = format!("m{watcher}.{}", wish % 10_000);
        let (word, of) = (kind.word(), format!("{}/{name}", kind.word()));
        let invoked = self.notes.now();
        let Ok(ticket) = self.notes.races.invoke(self.number, of.clone(), race::Ask::Acquire { wish }, invoked) else {
            return Then::Over;
        };
        let token: u64 = match program.ask(self.notes, &format!("{word} {name} {leader} {WAIT_MS}")) {
            Said::Done(words) => words.first().and_then(|token| token.parse().ok()).unwrap_or(0),
            Said::Failed(ETIMEDOUT | EHOSTUNREACH) => {
                self.notes.races.did_not_happen(ticket);
                return Then::GoesOn;
            }
            said => {
                // It may get it, and nobody hears of it.
                self.lose(&of, wish, invoked);
                return self.over(program, said, word);
            }
        };
        self.notes.races.answered(ticket, race::Answer::Acquired { token }, self.notes.now());
        if kind == Kind::Election {
            self.notes.told(Told { watcher, at: self.notes.now(), token, leader });
        }
        for _ in 0..1 + self.rng.below(3) {
            let Ok(ticket) =
                self.notes.races.invoke(self.number, of.clone(), race::Ask::Confirm { wish }, self.notes.now())
            else {
                return Then::Over;
            };
            let answer = match program.ask(self.notes, &format!("confirm-{word} {name} {token}")) {
                Said::Done(_) => race::Answer::Yes,
                Said::Failed(ENOENT) => race::Answer::No,
                Said::Failed(EHOSTUNREACH) => continue,
                said => {
                    self.lose(&of, wish, program.alive_at);
                    return self.over(program, said, word);
                }
            };
            let is_lost = answer == race::Answer::No;
            self.notes.races.answered(ticket, answer, self.notes.now());
            if is_lost && self.notes.kills(self.node) == program.kills {
                // Whether it may have been lost is decided by the history, which has no loss of it.
                self.notes.heard(&format!("{word} was lost on {}", NODES[self.node]));
                return Then::Over;
            }
            std::thread::sleep(Duration::from_millis(self.rng.below(30)));
        }
        let Ok(ticket) =
            self.notes.races.invoke(self.number, of.clone(), race::Ask::Release { wish }, self.notes.now())
        else {
            return Then::Over;
        };
        match program.ask(self.notes, &format!("release-{word} {name} {token}")) {
            Said::Done(_) => {
                self.notes.races.answered(ticket, race::Answer::Released, self.notes.now());
                Then::GoesOn
            }
            said => {
                self.lose(&of, wish, program.alive_at);
                self.over(program, said, word)
            }
        }
    }

    fn look(&mut self, program: &mut Program, watcher: u64) -> Then {
        match program.ask(self.notes, &format!("leader {ELECTION}")) {
            Said::Done(words) => {
                if let [token, leader] = words.as_slice()
                    && let Ok(token) = token.parse()
                {
                    self.notes.told(Told { watcher, at: self.notes.now(), token, leader: leader.clone() });
                }
                Then::GoesOn
            }
            Said::Failed(EHOSTUNREACH) => Then::GoesOn,
            said => self.over(program, said, "leader"),
        }
    }

    fn lose(&self, of: &str, wish: u64, since: u64) {
        let _never = self.notes.races.invoke(self.number, of.to_owned(), race::Ask::Lose { wish }, since);
    }

    fn over(&self, program: &Program, said: Said, what: &str) -> Then {
        match said {
            Said::Failed(number) => {
                self.notes.heard(&format!("{what} on {}: error E{}", NODES[self.node], name_of(number)));
                Then::Over
            }
            _ => self.gone(program),
        }
    }

    /// Programs die when somebody kills them, and for no other reason.
    fn gone(&self, program: &Program) -> Then {
        if !self.notes.has_ended() && self.notes.kills(self.node) == program.kills {
            self.notes.is_wrong(format!("a member on {} is gone, though nothing there was killed", NODES[self.node]));
        }
        Then::Over
    }

    fn invoke(&self, key: &str, ask: Ask) -> Option<Ticket> {
        self.notes.values.invoke(self.number, key.to_owned(), ask, self.notes.now()).ok()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lock,
    Election,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Lock => "lock",
            Kind::Election => "lead",
        }
    }
}

/// In letters, because what is heard is counted without figures.
fn name_of(number: i32) -> &'static str {
    match number {
        ENOENT => "NOENT",
        EEXIST => "EXIST",
        ETIMEDOUT => "TIMEDOUT",
        EHOSTUNREACH => "HOSTUNREACH",
        ESTALE => "STALE",
        5 => "IO",
        11 => "AGAIN",
        28 => "NOSPC",
        32 => "PIPE",
        71 => "PROTO",
        104 => "CONNRESET",
        107 => "NOTCONN",
        _ => "another",
    }
}
