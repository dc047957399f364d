//! Two links over a pipe that cuts, and proxies that are killed: nothing is lost, nothing comes twice.

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
    let mut steps = 0;
    while !world.is_done() {
        world.step(Weather::Calm);
        steps += 1;
        assert!(steps < CALM_STEPS_MAX, "seed {seed}: not done");
    }
    check(&world, seed);
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
    (0..200).for_each(|seed| run(seed, Weather::Calm));
}

#[test]
fn everything_arrives_once_and_in_order_over_cuts() {
    (0..2000).for_each(|seed| run(seed, Weather::Cuts));
}

#[test]
fn everything_arrives_once_and_in_order_over_cuts_and_killed_proxies() {
    (0..2000).for_each(|seed| run(seed, Weather::CutsAndKilledProxies));
}
