//! A member whose peer is on another node keeps no rule. What it writes is read by its node's proxy first, which
//! carries everybody: the proxies live, their link stands, an honest pair behind them goes on with right answers, and
//! the attacker's own channels end.
//!
//! The attacks and the honest are those of `kernel/broker/tests/hostile.rs`. Here they are of the broker's own user,
//! which for what lies in a channel makes no difference.

mod common;

// Of these each test binary uses its part.
#[allow(dead_code)]
#[path = "../../../kernel/broker/tests/hostile/attacker.rs"]
mod attacker;
#[path = "../../../kernel/broker/tests/hostile/floods.rs"]
mod floods;
#[allow(dead_code)]
#[path = "../../../kernel/broker/tests/hostile/honest.rs"]
mod honest;
#[path = "../../../kernel/broker/tests/hostile/memory.rs"]
mod memory;
#[allow(dead_code)]
#[path = "../../../kernel/broker/tests/hostile/raw.rs"]
mod raw;

use std::path::Path;
use std::time::{Duration, Instant};

use abi::Message;
use attacker::{Attacker, tell, wait_for_the_end};
use broker::Broker;
use common::{Control, PATIENCE, Pair, RunningProxy, UP, Way, calm_times};
use honest::{Honest, SERVER, Seen};
use ipc::Wait;
use ipc::conformance::World;
use proxy_host::control::LinkStatus;
use proxy_host::transport::Encryption;
use raw::Chance;

/// Not a test: what an attacker does. Started without its variables it does nothing.
#[test]
fn child_process() {
    let (Ok(name), Ok(path)) = (std::env::var("M3IPC_ATTACK"), std::env::var("M3IPC_SOCKET")) else { return };
    let (path, chance) = (Path::new(&path), Chance(std::process::id().into()));
    let did = match name.as_str() {
        "garbage in messages" => memory::garbage_in_messages(path, chance),
        "garbage in rings" => memory::garbage_in_rings(path, chance),
        "garbage in copies" => memory::garbage_in_copies(path, chance),
        "replays" => memory::replays(path, chance),
        "never reads" => floods::never_reads(path),
        "never takes" => floods::never_takes(path),
        "floods channels" => floods::floods_channels(path),
        "floods connections" => floods::floods_connections(path),
        "floods requests" => floods::floods_requests(path, chance),
        "floods names" => floods::floods_names(path, chance),
        "floods notifications" => floods::floods_notifications(path),
        other => panic!("no such attack: {other}"),
    };
    tell(&format!("did {did}"));
    wait_for_the_end();
}

/// Attackers and the honest client on one node, the server on the other.
struct TwoNodes {
    // Proxies end before their brokers.
    _proxies: [RunningProxy; 2],
    controls: [Control; 2],
    pair: Pair,
}

impl TwoNodes {
    fn new() -> TwoNodes {
        let mut pair = Pair::over(Way::Unix);
        let (a, b) = (pair.a.as_peer(), pair.b.as_peer());
        let (proxy_a, control_a) = pair.a.start_proxy(&b, Encryption::Plain, calm_times());
        let (proxy_b, control_b) = pair.b.start_proxy(&a, Encryption::Plain, calm_times());
        let controls = [control_a, control_b];
        controls.iter().for_each(Control::wait_until_up);
        TwoNodes { _proxies: [proxy_a, proxy_b], controls, pair }
    }

    fn links(&self) -> [LinkStatus; 2] {
        self.controls.each_ref().map(|control| control.latest().links.remove(0))
    }

    /// The connection that there was is the one that there is.
    fn check_links(&self, before: &[LinkStatus; 2]) {
        let now = self.links();
        let is_same = |(old, new): (&LinkStatus, &LinkStatus)| new.state == UP && new.reconnects == old.reconnects;
        assert!(before.iter().zip(&now).all(is_same), "{before:?}, and now {now:?}");
    }

    /// On either node: the honest client's channels of messages and of a ring.
    fn only_the_honest_are_left(&self) {
        let until = Instant::now() + PATIENCE;
        let left = |broker: &Broker| broker.snapshot().expect("the broker lives").dcs.remove(0);
        loop {
            let both = [left(&self.pair.a.broker), left(&self.pair.b.broker)];
            if both.iter().all(|dc| (dc.channels.len(), dc.waiters) == (2, 0)) {
                return;
            }
            assert!(Instant::now() < until, "the attacker left {both:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What the attacker did, and how its channels ended.
fn survive(attack: &str) -> (String, Seen) {
    let world = TwoNodes::new();
    let honest = Honest::start(&world.pair);
    honest.go_on();
    let links = world.links();
    let mut attacker = Attacker::start(&world.pair.a.socket, attack);
    let did = attacker.line_with("did ");
    honest.go_on();
    attacker.kill();
    honest.go_on();
    world.only_the_honest_are_left();
    world.check_links(&links);
    // Newcomers are still let in.
    let mut newcomer = world.pair.program();
    assert_eq!(newcomer.sendrec(SERVER, &Message::new(1), Wait::For(PATIENCE)).expect("answered").kind, 2);
    let seen = honest.stop();
    eprintln!("{attack}: did {did}; {seen:?}");
    (did, seen)
}

#[test]
fn garbage_in_the_words_of_a_channel_ends_it_at_the_proxy() {
    let (did, seen) = survive("garbage in messages");
    assert!(did.contains("Corrupt"), "{did}");
    assert!(seen.taken > 0, "some of it looked right, and reached the server");
}

#[test]
fn garbage_in_a_ring_and_lies_about_lengths_end_it_at_the_proxy() {
    let (did, seen) = survive("garbage in rings");
    assert!(did.contains("Corrupt"), "{did}");
    assert!(seen.ended_rings > 0, "the server hears of the end");
}

#[test]
fn garbage_in_a_lane_for_copies_copies_nothing() {
    let (did, _) = survive("garbage in copies");
    assert!(did.contains("Corrupt"), "{did}");
}

#[test]
fn old_words_and_replies_nobody_asked_for_are_passed_over_or_end_the_channel() {
    let (did, seen) = survive("replays");
    assert!(did.contains("Corrupt") && !did.contains("TimedOut"), "who keeps no rule is not late: {did}");
    assert!(seen.taken > 0, "the attack reached the server");
}

#[test]
fn member_that_never_reads_its_socket_is_dropped() {
    survive("never reads");
}

#[test]
fn member_that_takes_nothing_and_asks_for_more_than_fits_loses_its_ring() {
    let (did, _) = survive("never takes");
    assert!(did.contains("Corrupt"), "{did}");
}

#[test]
fn flood_of_channels_is_bounded_on_both_nodes() {
    survive("floods channels");
}

#[test]
fn flood_of_connections_leaves_the_others_theirs() {
    survive("floods connections");
}

#[test]
fn flood_of_requests_is_served_in_turn() {
    survive("floods requests");
}

#[test]
fn flood_of_names_takes_no_more_than_its_own() {
    survive("floods names");
}

#[test]
fn flood_of_notifications_is_merged_on_the_way() {
    survive("floods notifications");
}
