//! A run: generations of traffic and faults, with a container of its own each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use histories::Rng;

use crate::robustness::faults::{self, Fault, NODES, Round};
use crate::robustness::members::Member;
use crate::robustness::nemesis::Nemesis;
use crate::robustness::people::Person;
use crate::robustness::site::Site;
use crate::robustness::{Notes, examine, files, watch};

const DC: &str = "shop";
/// Faults of a generation at most: what was recorded is judged and forgotten then.
const FAULTS_OF_GENERATION: usize = 20;
const MEMBERS_ON_NODE: u32 = 2;
/// Traffic between what was healed and the next fault.
const QUIET: Duration = Duration::from_millis(400);

/// What is run, and as whom programs of the container are.
pub struct Wish {
    pub seed: u64,
    pub rounds: Vec<Round>,
    /// A program that does what `members.rs` tells it.
    pub member: PathBuf,
}

impl Wish {
    /// `SEED` and `FAULTS` of the environment; else this seed, and a plan of so many faults.
    pub fn from_environment(seed: u64, count: usize, replace_every: usize, member: PathBuf) -> Wish {
        let variable = |name: &str| std::env::var(name).ok();
        let seed = variable("SEED").map_or(seed, |text| text.parse().expect("SEED is a number"));
        let count = variable("COUNT").map_or(count, |text| text.parse().expect("COUNT is a number"));
        let rounds = match variable("FAULTS") {
            Some(text) => faults::read(&text).expect("FAULTS is a list of faults"),
            None => faults::plan(seed, count, replace_every),
        };
        Wish { seed, rounds, member }
    }
}

/// Panics with everything that was wrong.
pub fn run(wish: &Wish) {
    let begin = Instant::now();
    println!("SEED={} FAULTS='{}'", wish.seed, faults::written(&wish.rounds));
    let site = Site::up();
    println!("three nodes after {:.1} s", begin.elapsed().as_secs_f64());
    let (mut wrong, mut done, mut heard) = (Vec::new(), 0, BTreeMap::<String, u64>::new());
    let mut healings = Vec::new();
    for (number, generation) in generations(&wish.rounds).into_iter().enumerate() {
        let notes = Notes::default();
        let mut one = Generation { site: &site, notes: &notes, wish, number: number as u64, healings: &mut healings };
        let is_over = one.run(&generation, &mut done);
        for (words, times) in notes.all_heard() {
            *heard.entry(words).or_default() += times;
        }
        wrong.extend(notes.wrong());
        // What comes after something that is wrong says little.
        if is_over || !wrong.is_empty() {
            break;
        }
    }
    println!("{done} faults in {:.1} s", begin.elapsed().as_secs_f64());
    healings.sort_unstable();
    if let (Some(median), Some(longest)) = (healings.get(healings.len() / 2), healings.last()) {
        println!("well again after {median:.1?} (median), {longest:.1?} (longest)");
    }
    println!("errors that people and programs heard, figures left out:");
    heard.iter().for_each(|(words, times)| println!("  {times:5} {words}"));
    if !wrong.is_empty() {
        let place = place_of_logs(wish);
        site.save_logs(&place);
        let list = faults::written(&wish.rounds);
        panic!("SEED={} FAULTS='{list}'\nlogs: {}\n{}", wish.seed, place.display(), wrong.join("\n"));
    }
}

fn place_of_logs(wish: &Wish) -> PathBuf {
    std::env::temp_dir().join(format!("dvs-robustness-{}-{}", wish.seed, std::process::id()))
}

/// A replacement ends one.
fn generations(rounds: &[Round]) -> Vec<Vec<Round>> {
    let (mut generations, mut current, mut faults) = (Vec::new(), Vec::<Round>::new(), 0);
    for round in rounds {
        faults += round.len();
        current.push(round.clone());
        if faults >= FAULTS_OF_GENERATION || round.iter().any(|fault| fault.is_replacement()) {
            generations.push(std::mem::take(&mut current));
            faults = 0;
        }
    }
    generations.extend(Some(current).filter(|last| !last.is_empty()));
    generations
}

/// The others end with whoever has it.
struct Ending<'a>(&'a Notes);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

struct Generation<'a> {
    site: &'a Site,
    notes: &'a Notes,
    wish: &'a Wish,
    number: u64,
    healings: &'a mut Vec<Duration>,
}

impl Generation<'_> {
    /// Whether nothing more can be done.
    fn run(&mut self, rounds: &[Round], done: &mut usize) -> bool {
        let (site, notes) = (self.site, self.notes);
        if let Err(why) = self.make_container() {
            notes.is_wrong(format!("the container was not made: {why}"));
            return true;
        }
        let rng = Rng::new(self.wish.seed).fork(1000 + self.number);
        let (operations, mut is_over) = (AtomicU64::new(0), false);
        let lives = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch::watch(site, notes));
            for node in 0..NODES.len() {
                let rng = rng.clone();
                let person = Person {
                    site,
                    notes,
                    dc: DC,
                    node,
                    number: node as u32,
                    rng: rng.fork(node as u64),
                    started: Vec::new(),
                    steps: 0,
                };
                scope.spawn(move || person.run());
                for index in 0..MEMBERS_ON_NODE {
                    let number = 100 + node as u32 * MEMBERS_ON_NODE + index;
                    let member = Member { site, notes, dc: DC, node, number, rng: rng.fork(u64::from(number)) };
                    scope.spawn(move || member.run());
                }
                let (seed, operations) = (rng.fork(200 + node as u64).draw() >> 8, &operations);
                scope.spawn(move || {
                    operations.fetch_add(files::work(site, notes, DC, node, seed), Ordering::Relaxed);
                });
            }
            // Also when it panics: a scope waits for all.
            let end = Ending(notes);
            std::thread::sleep(QUIET);
            for round in rounds.iter().filter(|round| !round.iter().any(|fault| fault.is_replacement())) {
                if !self.round(round, done) {
                    is_over = true;
                    break;
                }
            }
            drop(end);
            watcher.join().expect("it does not panic")
        });
        if is_over {
            return true;
        }
        let programs = examine::judge_programs(site, notes, DC);
        let judged = examine::judge(notes, &lives);
        println!(
            "generation {}: {} histories of {} operations, {} of them unknown; {} lives, {programs} programs, {} file operations",
            self.number,
            judged.histories,
            judged.operations,
            judged.unknown,
            judged.lives,
            operations.into_inner()
        );
        if !notes.wrong().is_empty() {
            // A container's logs go with it.
            site.save_logs(&place_of_logs(self.wish));
        }
        examine::clear(site, notes);
        for fault in rounds.iter().flatten().copied() {
            if let Fault::Replace { node } = fault {
                let begin = Instant::now();
                let replaced = site.replace(node).map_err(|why| vec![why]);
                *done += 1;
                match replaced.and_then(|()| examine::await_well(site, None)) {
                    Ok(_) => println!("{fault}: well after {:.1} s", begin.elapsed().as_secs_f64()),
                    Err(unwell) => {
                        notes.is_wrong(format!("not well after {fault}: {unwell:?}"));
                        return true;
                    }
                }
            }
        }
        false
    }

    fn round(&mut self, round: &Round, done: &mut usize) -> bool {
        let begin = Instant::now();
        Nemesis::new(self.site, self.notes).act(round);
        let acted = begin.elapsed();
        *done += round.len();
        let list = faults::written(std::slice::from_ref(round));
        match examine::await_well(self.site, Some(DC)) {
            Ok(took) => {
                println!("{done:4} {list}: {:.1} s, well after {:.1} s", acted.as_secs_f64(), took.as_secs_f64());
                self.healings.push(took);
                std::thread::sleep(QUIET);
                true
            }
            Err(unwell) => {
                self.notes.is_wrong(format!("not well after {list}: {unwell:?}"));
                false
            }
        }
    }

    fn make_container(&self) -> Result<(), String> {
        let place = tempfile::tempdir().map_err(|error| error.to_string())?;
        let copied = std::process::Command::new("strip")
            .arg("-o")
            .arg(place.path().join("member"))
            .arg(&self.wish.member)
            .status();
        if !copied.is_ok_and(|status| status.success()) {
            std::fs::copy(&self.wish.member, place.path().join("member")).map_err(|error| error.to_string())?;
        }
        let nodes = NODES.join(",");
        // Its servers are on other nodes each time.
        let node = |index: u64| NODES[((self.number + index) % 3) as usize];
        let create = [
            "dc",
            "create",
            DC,
            "--nodes",
            &nodes,
            "--disk",
            "192M",
            "--fs-node",
            node(0),
            "--disk-node",
            node(1),
            "--ds-node",
            node(2),
            // Its disk has a copy on another node every second time.
            "--replicas",
            if self.number.is_multiple_of(2) { "1" } else { "2" },
            "--start",
        ];
        let begin = Instant::now();
        loop {
            let done = self.site.dvs(0, &create);
            if done.status.success() {
                break;
            }
            if begin.elapsed() > examine::WELL_WITHIN {
                return Err(String::from_utf8_lossy(&done.stderr).into_owned());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let done = self.site.dvs(0, &["import", DC, place.path().to_str().unwrap_or_default(), "/programs"]);
        if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
    }
}
