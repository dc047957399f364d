//! Programs until the time is over, and the report of the first that differs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::generate::generate;
use crate::program::{Call, Program};
use crate::shrink::shrink;
use crate::world::{Difference, Times, World, run};

/// A difference that does not come each time is tried so often.
const TRIES: usize = 5;

/// What the environment says: `DVS_DIFFTEST_SECONDS`, `DVS_DIFFTEST_SEED`, `DVS_DIFFTEST_WITHOUT` (calls that are left
/// out, or `times`, with commas), `DVS_DIFFTEST_PROGRAM` (one program, for which there is no need of a seed),
/// `DVS_DIFFTEST_ALL` (goes on after a difference, until the time is over, and tells those whose smallest programs make
/// other calls).
#[derive(Clone, Debug)]
pub struct Settings {
    pub time: Duration,
    pub seed: u64,
    pub without: Vec<Call>,
    pub times: Times,
    pub set_id: SetId,
    pub program: Option<Program>,
    pub after_first: AfterFirst,
}

/// Whether files are made set-user-id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetId {
    Used,
    /// For programs that lack `CAP_FSETID` of the whole machine, as those of a container: FUSE then takes the bit away
    /// at other calls.
    Avoided,
}

/// What follows the first difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterFirst {
    End,
    GoOn,
}

impl Settings {
    /// With what holds where the environment says nothing. `without` is in words, as in the environment.
    pub fn from_environment(time: Duration, seed: u64, without: &str) -> Settings {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
        let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        // An empty one is an answer here: nothing is left out.
        let without = std::env::var("DVS_DIFFTEST_WITHOUT").unwrap_or_else(|_| without.to_owned());
        let mut words: Vec<&str> = without.split(',').filter(|word| !word.is_empty()).collect();
        let all = words.len();
        words.retain(|word| *word != "times");
        let times = if words.len() < all { Times::Ignored } else { Times::Compared };
        let call = |word: &&str| *Call::ALL.iter().find(|call| call.word() == *word).expect("a call");
        Settings {
            time: number("DVS_DIFFTEST_SECONDS").map_or(time, Duration::from_secs),
            seed: number("DVS_DIFFTEST_SEED").unwrap_or(seed),
            without: words.iter().map(call).collect(),
            times,
            set_id: SetId::Used,
            program: text("DVS_DIFFTEST_PROGRAM").map(|text| Program::parse(&text).expect("a program")),
            after_first: if text("DVS_DIFFTEST_ALL").is_some() { AfterFirst::GoOn } else { AfterFirst::End },
        }
    }
}

/// Both worlds, and a number for each program's directory.
pub struct Tester {
    oracle: World,
    tree: World,
    times: Times,
    next: u64,
    calls: u64,
}

impl Tester {
    pub fn new(oracle: World, tree: World) -> Tester {
        assert_eq!(oracle.shape(), tree.shape(), "the same places");
        Tester { oracle, tree, times: Times::Compared, next: 0, calls: 0 }
    }

    /// Runs one program; a call without a place in these worlds goes to the last one.
    pub fn run(&mut self, program: &Program) -> Option<Difference> {
        self.next += 1;
        self.calls += program.0.len() as u64;
        let shape = self.tree.shape();
        let mut program = program.clone();
        for op in &mut program.0 {
            op.node = op.node.min(shape.nodes - 1);
            op.process = op.process.min(shape.processes - 1);
        }
        run(&program, &mut self.oracle, &mut self.tree, &format!("p{}", self.next), self.times)
    }

    /// Panics with the smallest program it finds when one differs. `command` is how a person comes here again.
    pub fn test(&mut self, settings: &Settings, command: &str) {
        self.times = settings.times;
        if let Some(program) = &settings.program {
            if let Some(difference) = self.run(program) {
                panic!("{}", report(program, &difference));
            }
            eprintln!("difftest: no difference in the program given");
            return;
        }
        let (begun, mut seed, mut told) = (Instant::now(), settings.seed, BTreeSet::new());
        while begun.elapsed() < settings.time {
            let program = generate(seed, self.tree.shape(), settings);
            if let Some(difference) = self.run(&program) {
                let (program, difference, rate) = self.smallest(program, difference);
                let text = format!(
                    "seed {seed}: the tree answers otherwise than one kernel ({rate})\n{}\nagain:\n  {}\n",
                    report(&program, &difference),
                    format_args!("DVS_DIFFTEST_PROGRAM='{}' {command}", program.line()),
                );
                if settings.after_first == AfterFirst::End || difference.is_fatal {
                    panic!("{text}");
                }
                if told.insert(calls(&program)) {
                    eprintln!("{text}");
                }
            }
            seed += 1;
        }
        let (programs, seconds) = (seed - settings.seed, begun.elapsed().as_secs_f64());
        let calls = self.calls as f64 / seconds;
        eprintln!("difftest: {programs} programs from seed {} on, {calls:.0} calls/s", settings.seed);
        assert!(told.is_empty(), "{} kinds of differences", told.len());
    }

    fn smallest(&mut self, program: Program, difference: Difference) -> (Program, Difference, String) {
        if difference.is_fatal {
            return (program, difference, "not tried again, because a worker is lost".to_owned());
        }
        let again = (0..TRIES).filter(|_| self.run(&program).is_some()).count();
        if again == 0 {
            return (program, difference, format!("not again in {TRIES} further runs"));
        }
        let tries = if again == TRIES { 1 } else { TRIES * 2 };
        let mut last = difference;
        let mut lost = false;
        let smallest = shrink(program, |candidate| {
            let found = (0..tries).find_map(|_| if lost { None } else { self.run(candidate) });
            lost |= found.as_ref().is_some_and(|found| found.is_fatal);
            let is_found = found.is_some();
            last = found.unwrap_or_else(|| last.clone());
            is_found
        });
        (smallest, last, format!("again in {again} of {TRIES} runs"))
    }
}

fn calls(program: &Program) -> String {
    program.0.iter().map(|op| op.call.word()).collect::<Vec<_>>().join(" ")
}

fn report(program: &Program, difference: &Difference) -> String {
    let mut text = String::new();
    for (at, op) in program.0.iter().enumerate() {
        let mark = if at == difference.at { "  <-- differs" } else { "" };
        text.push_str(&format!("  {op}{mark}\n"));
    }
    let Difference { what, oracle, tree, .. } = difference;
    let (oracle, tree) = apart(oracle, tree);
    format!("{text}{what}\n  one kernel: {oracle}\n  the tree:   {tree}")
}

/// Long answers from a little before the first word that is another.
fn apart(oracle: &str, tree: &str) -> (String, String) {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (oracle, tree) = (words(oracle), words(tree));
    let same = oracle.iter().zip(&tree).take_while(|(a, b)| a == b).count();
    let from = if oracle.len().max(tree.len()) > 24 { same.saturating_sub(10) } else { 0 };
    let shown =
        |words: &[String]| words[from.min(words.len())..].iter().take(24).cloned().collect::<Vec<_>>().join(" ");
    (shown(&oracle), shown(&tree))
}
