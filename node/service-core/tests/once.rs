//! One instance over three nodes, and whatever may happen to these: it never runs twice, no run begins twice, and when
//! all is well again it is where its record says.

mod world;

use histories::rng::seeds;
use world::{Broken, World};

const TURNS: u64 = 6_000;

fn run(seed: u64, broken: Option<Broken>) -> Result<World, String> {
    let mut world = World::new(seed, broken);
    for _ in 0..TURNS {
        world.turn()?;
    }
    world.calm()?;
    Ok(world)
}

#[test]
fn instance_runs_at_most_once_and_comes_back() {
    let mut seen = world::Seen::default();
    for seed in seeds(200, 10_000) {
        let world = run(seed, None).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        seen.add(&world.seen);
    }
    // What cannot be seen here is not tested.
    println!("{seen:?}");
    if std::env::var_os("DVS_SEED").is_none() {
        assert!(seen.runs > 1000 && seen.verdicts > 100 && seen.taken > 100 && seen.moved > 100, "{seen:?}");
        assert!(seen.vouched > 100, "{seen:?}");
        assert!(seen.expired > 100 && seen.late_reports > 100 && seen.late_starts > 10, "{seen:?}");
        assert!(seen.lost_races > 10 && seen.keepers_lost > 100, "{seen:?}");
    }
}

/// Each rule is there because without it an instance runs twice.
#[test]
fn without_one_of_the_rules_it_runs_twice() {
    for broken in Broken::ALL {
        let twice = |seed| run(seed, Some(broken)).err().filter(|fault| fault.contains("twice"));
        let (seed, fault) =
            (0..2000).find_map(|seed| Some((seed, twice(seed)?))).unwrap_or_else(|| panic!("{broken:?} does no harm"));
        println!("{broken:?}: seed {seed}: {fault}");
    }
}
