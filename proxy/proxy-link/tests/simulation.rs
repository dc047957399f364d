//! Links over pipes that delay, cut, stall and are dialled twice, and over packets that are lost, doubled, late and
//! overtaken, in a wire that is cut; and proxies that are killed: nothing is lost, nothing comes twice; and who ends a
//! channel is heard out.

#[path = "sim/memory.rs"]
mod memory;
#[path = "sim/packets.rs"]
mod packets;
#[path = "sim/parting.rs"]
mod parting;
#[path = "sim/party.rs"]
mod party;
#[path = "sim/pieces.rs"]
mod pieces;
#[path = "sim/pipes.rs"]
mod pipes;
#[path = "sim/world.rs"]
mod world;

use histories::rng::seeds;
use packets::Packets;
use parting::part;
use pipes::Pipes;
use proxy_link::LocalRole;
use world::{Link, Weather, World};

/// Steps in bad weather, then in good weather until everything has arrived.
const STORM_STEPS: u32 = 600;
const CALM_STEPS_MAX: u32 = 20_000;

fn run<L: Link>(seed: u64, weather: Weather) {
    let mut world = World::<L>::new(seed, 40);
    for _ in 0..STORM_STEPS {
        world.step(weather);
    }
    calm_down(&mut world, seed);
    check(&world, seed);
    // Why a channel ended goes with a proxy that is killed.
    if weather != Weather::CutsAndKilledProxies {
        part(&mut world, weather, seed);
    }
}

fn calm_down(world: &mut World<impl Link>, seed: u64) {
    let mut steps = 0;
    while !world.stage.is_done() {
        world.step(Weather::Calm);
        steps += 1;
        assert!(steps < CALM_STEPS_MAX, "seed {seed}: not done");
    }
}

/// Three nodes with a link between any two. A proxy carries both links of its node, so one that is killed takes both
/// down.
fn run_three(seed: u64) {
    // Link `i` joins node `i` to node `i + 1`.
    let mut links: Vec<World<Pipes>> = (0..3).map(|link| World::new(seed.wrapping_mul(3) + link, 30)).collect();
    for _ in 0..STORM_STEPS {
        let chance = &mut links[0].stage.chance;
        let victim = chance.one_in(200).then(|| chance.below(3) as usize);
        if let Some(victim) = victim {
            let ends = [(victim, 0), ((victim + 2) % 3, 1)];
            if ends.iter().all(|(link, side)| links[*link].stage.can_lose_proxy(*side)) {
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

fn check(world: &World<impl Link>, seed: u64) {
    let world = &world.stage;
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
            } else if local.0.borrow().role == LocalRole::Server {
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
    seeds(200, 1000).for_each(|seed| run::<Pipes>(seed, Weather::Calm));
}

#[test]
fn everything_arrives_once_and_in_order_over_cuts() {
    seeds(1000, 10_000).for_each(|seed| run::<Pipes>(seed, Weather::Cuts));
}

#[test]
fn everything_arrives_once_and_in_order_over_cuts_and_killed_proxies() {
    seeds(1000, 10_000).for_each(|seed| run::<Pipes>(seed, Weather::CutsAndKilledProxies));
}

#[test]
fn everything_arrives_once_and_in_order_over_doubled_connections_partitions_and_silence() {
    seeds(1000, 10_000).for_each(|seed| run::<Pipes>(seed, Weather::Storm));
}

#[test]
fn everything_arrives_once_and_in_order_among_three_nodes_whose_proxies_are_killed() {
    seeds(300, 10_000).for_each(run_three);
}

#[test]
fn everything_arrives_once_and_in_order_over_packets_that_are_lost_doubled_late_and_overtaken() {
    seeds(40, 1000).for_each(|seed| run::<Packets>(seed, Weather::Calm));
}

#[test]
fn everything_arrives_once_and_in_order_over_packets_and_killed_proxies() {
    seeds(40, 5000).for_each(|seed| run::<Packets>(seed, Weather::CutsAndKilledProxies));
}

#[test]
fn everything_arrives_once_and_in_order_over_packets_and_partitions_of_all_lengths() {
    seeds(40, 10_000).for_each(|seed| run::<Packets>(seed, Weather::Storm));
}
