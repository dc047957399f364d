//! A worker with one life, a keeper, and a program that does what it likes, while daemons are killed and people stop
//! and restart it: one run at a time, each with a higher number, nothing after a stop, and each policy is kept.

use std::time::{Duration, Instant};

use mgmt_api::{RestartPolicy, ServiceSpec, ServiceState};
use service_core::life::{FoundRun, InstanceLife, LifeStep};
use service_core::restart::RunEnd;
use service_core::tenure::{Begin, PERMIT, Run, RunTenure};

const EPOCH: u64 = 3;
const STEP: Duration = Duration::from_millis(20);
const POLICIES: [RestartPolicy; 3] = [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never];

/// Numbers that follow from a seed (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

struct Node {
    now: Instant,
    spec: ServiceSpec,
    keeper: RunTenure,
    life: InstanceLife,
    /// How the last run ended, as the keeper remembers.
    last_end: Option<RunEnd>,
    is_dead: bool,
    answers: Option<(Run, Instant, bool)>,
    begun: Vec<Run>,
    ends: Vec<RunEnd>,
    probes: usize,
}

impl Node {
    fn new(spec: ServiceSpec) -> Node {
        Node {
            now: Instant::now(),
            spec,
            keeper: RunTenure::default(),
            life: InstanceLife::new(EPOCH, Run::default()),
            last_end: None,
            is_dead: false,
            answers: None,
            begun: Vec::new(),
            ends: Vec::new(),
            probes: 0,
        }
    }

    fn turn(&mut self, numbers: &mut Numbers) {
        self.now += STEP;
        if let Some(run) = self.keeper.held() {
            self.keeper.extend(EPOCH, self.now + PERMIT);
            if self.is_dead || numbers.below(150) == 0 {
                let status = [0, 1, 137][numbers.below(3) as usize];
                self.end(run, RunEnd::Exit(status));
            }
        }
        if let Some((run, _, is_well)) = self.answers.take_if(|(_, at, _)| *at <= self.now) {
            self.life.probed(run, is_well, self.now);
        }
        let act = self.life.look(&self.spec, numbers.below(3) == 0, self.now);
        self.act(act, numbers);
    }

    fn end(&mut self, run: Run, end: RunEnd) {
        self.keeper.ended(run);
        (self.is_dead, self.last_end) = (false, Some(end));
        self.ends.push(end);
        self.life.ended(run, end, &self.spec, self.now);
    }

    fn act(&mut self, act: LifeStep, numbers: &mut Numbers) {
        match act {
            LifeStep::Begin(_) if numbers.below(4) == 0 => (), // on its way
            LifeStep::Begin(run) => match self.keeper.begin(run, self.now + PERMIT, self.now) {
                Begin::Start if numbers.below(10) == 0 => self.end(run, RunEnd::NotStarted),
                Begin::Start => {
                    assert!(self.begun.last().is_none_or(|last| *last < run), "{:?} then {run:?}", self.begun.last());
                    self.begun.push(run);
                    self.last_end = None;
                    self.life.began(run, &self.spec, self.now);
                }
                // The answer of the first time was lost with the daemon that asked.
                Begin::Begun => match self.last_end {
                    None => self.life.began(run, &self.spec, self.now),
                    Some(end) => self.life.ended(run, end, &self.spec, self.now),
                },
                Begin::Refused(refusal) => panic!("{run:?}: {refusal:?}, held {:?}", self.keeper.held()),
            },
            LifeStep::Signal(run) => {
                if self.keeper.held() != Some(run) {
                    self.life.ended(run, RunEnd::Lost, &self.spec, self.now);
                } else {
                    // Some do not hear it.
                    self.is_dead = numbers.below(2) == 0;
                }
            }
            LifeStep::Kill(run) => {
                assert_eq!(self.keeper.held(), Some(run));
                self.is_dead = true;
            }
            LifeStep::Probe { run, .. } => {
                self.probes += 1;
                let delay = Duration::from_millis(numbers.below(150));
                self.answers = Some((run, self.now + delay, numbers.below(8) > 0));
            }
            LifeStep::Wait(_) => (),
        }
    }

    /// Its daemon is killed, and another one begins.
    fn renew_daemon(&mut self) {
        let last = self.keeper.last();
        let before = self.life.state();
        self.answers = None;
        self.life = match (self.keeper.held(), self.last_end, before) {
            (Some(run), ..) => InstanceLife::found(run, FoundRun::Held, &self.spec, self.now),
            (None, _, ServiceState::Stopped) => InstanceLife::found(last, FoundRun::Stopped, &self.spec, self.now),
            (None, _, ServiceState::Failed) => InstanceLife::found(last, FoundRun::Failed, &self.spec, self.now),
            (None, Some(end), _) if last.epoch == EPOCH => {
                InstanceLife::found(last, FoundRun::Ended(end), &self.spec, self.now)
            }
            _ => InstanceLife::new(EPOCH, last),
        };
    }
}

fn spec(numbers: &mut Numbers) -> ServiceSpec {
    let health = ["", "health = { tcp = 1, interval_ms = 200, timeout_ms = 100, retries = 2, start_ms = 500 }"];
    let health = health[numbers.below(2) as usize];
    let text = format!("name = 'web'\ncommand = ['web']\nstop = {{ grace_ms = 300 }}\n{health}\n");
    let mut spec: ServiceSpec = toml::from_str(&text).unwrap();
    spec.restart = POLICIES[numbers.below(3) as usize];
    spec
}

#[test]
fn life_keeps_its_policy_and_ends_when_it_is_stopped() {
    let (mut runs, mut probes, mut over) = (0, 0, 0);
    for seed in 1..400_u64 {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut node = Node::new(spec(&mut numbers));
        let mut restarts = 0;
        for _ in 0..2_000 {
            node.turn(&mut numbers);
            if numbers.below(200) == 0 {
                node.renew_daemon();
            }
            if numbers.below(300) == 0 {
                restarts += 1;
                let act = node.life.restart(&node.spec, node.now);
                node.act(act, &mut numbers);
            }
        }
        if node.spec.restart == RestartPolicy::Never {
            assert!(node.begun.len() <= 1 + restarts, "seed {seed}: {} runs, {restarts} asked for", node.begun.len());
        }
        over += usize::from(matches!(node.life.state(), ServiceState::Stopped | ServiceState::Failed));
        let before = node.begun.len();
        let act = node.life.stop(&node.spec, node.now);
        node.act(act, &mut numbers);
        node.keeper.close(EPOCH);
        for _ in 0..60 {
            node.turn(&mut numbers);
        }
        assert!(node.keeper.is_over(EPOCH), "seed {seed}: {:?}", node.life);
        assert!(
            matches!(node.life.state(), ServiceState::Stopped | ServiceState::Failed),
            "seed {seed}: {:?}",
            node.life
        );
        assert_eq!(node.begun.len(), before, "seed {seed}: it began after it was stopped");
        (runs, probes) = (runs + node.begun.len(), probes + node.probes);
    }
    println!("{runs} runs, {probes} probes, {over} over by themselves");
    assert!(runs > 1000 && probes > 10_000 && over > 10, "{runs} {probes} {over}");
}
