//! Links over pipes that delay, cut, stall and are dialled twice, and proxies that are killed: nothing is lost, nothing comes twice.

#[path = "sim/memory.rs"]
mod memory;
#[path = "sim/party.rs"]
mod party;
#[path = "sim/world.rs"]
mod world;

use proxy_link::Role;
use world::{Weather, World};

/// Steps in bad weather, then in good weather until everything has arrived.
const STORM_STEPS: u32 = 600;
const CALM_STEPS_MAX: u32 = 20_000;

fn run(seed: u64, weather: Weather) {
    let mut world = World::new(seed, 40);
    for _ in 0..STORM_STEPS {
        world.step(weather);
    }
    calm_down(&mut world, seed);
    check(&world, seed);
}

fn calm_down(world: &mut World, seed: u64) {
    let mut steps = 0;
    while !world.is_done() {
        world.step(Weather::Calm);
        steps += 1;
        assert!(steps < CALM_STEPS_MAX, "seed {seed}: not done");
    }
}

/// Three nodes with a link between any two. A proxy carries both links of its node, so one that is killed takes both down.
fn run_three(seed: u64) {
    // Link `i` joins node `i` to node `i + 1`.
    let mut links: Vec<World> = (0..3).map(|link| World::new(seed.wrapping_mul(3) + link, 30)).collect();
    for _ in 0..STORM_STEPS {
        let chance = &mut links[0].chance;
        let victim = chance.one_in(200).then(|| chance.below(3) as usize);
        if let Some(victim) = victim {
            let ends = [(victim, 0), ((victim + 2) % 3, 1)];
            if ends.iter().all(|(link, side)| links[*link].can_lose_proxy(*side)) {
                ends.iter().for_each(|(link, side)| links[*link].kill_proxy(*side));
            }
        }
        links.iter_mut().for_each(|link| link.step(Weather::Storm));
    }
    for link in &mut links {
        calm_down(link, seed);
        check(link, seed);
    }
}

/// Of one kind of weather: enough for every change, and what `DVS_TEST_LONG` asks for. `DVS_SEED` runs one again.
fn seeds(few: u64, many: u64) -> std::ops::Range<u64> {
    if let Some(seed) = std::env::var("DVS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return seed..seed + 1;
    }
    0..if std::env::var_os("DVS_TEST_LONG").is_some() { many } else { few }
}

fn check(world: &World, seed: u64) {
    for (here, there) in [(0, 1), (1, 0)] {
        let (node, far) = (&world.nodes[here], &world.nodes[there]);
        assert_eq!(node.downs, 0, "seed {seed}");
        for (channel, (local, ends)) in &node.channels {
            let (party, far_party) = (&node.parties[channel], &far.parties[channel]);
            if ends.ring.is_none() {
                assert_eq!(party.delivered, far_party.received, "seed {seed}, messages of {channel:?} from {here}");
                let sent = party.delivered.iter().filter(|value| **value < world.goal).count() as u64;
                assert_eq!(sent + party.withdrawn, world.goal, "seed {seed}");
                for bit in 0..4 {
                    let (posted, seen) = (party.notified[bit], far_party.notifications[bit]);
                    assert!(seen <= posted && (seen > 0) == (posted > 0), "seed {seed}: {posted} posted, {seen} seen");
                }
            } else if local.0.borrow().role == Role::Server {
                let all: Vec<u64> = (0..world.goal).collect();
                assert_eq!(party.served, all, "seed {seed}, requests of {channel:?} at {here}");
                let mut answered = far_party.answered.clone();
                answered.sort_unstable();
                assert_eq!(answered, all, "seed {seed}, answers of {channel:?}");
            }
        }
    }
}

#[test]
fn everything_arrives_once_and_in_order_in_good_weather() {
    seeds(200, 1000).for_each(|seed| run(seed, Weather::Calm));
}

#[test]
fn everything_arrives_once_and_in_order_over_cuts() {
    seeds(1000, 10_000).for_each(|seed| run(seed, Weather::Cuts));
}

#[test]
fn everything_arrives_once_and_in_order_over_cuts_and_killed_proxies() {
    seeds(1000, 10_000).for_each(|seed| run(seed, Weather::CutsAndKilledProxies));
}

#[test]
fn everything_arrives_once_and_in_order_over_doubled_connections_partitions_and_silence() {
    seeds(1000, 10_000).for_each(|seed| run(seed, Weather::Storm));
}

#[test]
fn everything_arrives_once_and_in_order_among_three_nodes_whose_proxies_are_killed() {
    seeds(300, 10_000).for_each(run_three);
}
