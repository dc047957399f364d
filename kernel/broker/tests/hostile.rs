//! A member of the container that keeps no rule harms only its own channels: an honest client and its server go on with
//! right answers in bounded time while real processes of another user attack the server, the broker and the channels,
//! one way for each test.
//!
//! - `hostile/attacks.rs`: what the attackers do, with `memory.rs`, `floods.rs` and `identity.rs`.
//! - `attacker.rs`: an attack as a process.
//! - `honest.rs`: those who must not notice.
//! - `owners.rs`: owners of grants that harm who copies.
//! - `raw.rs`: a channel without the library.
//!
//! What these do to a peer on another node is in `proxy/proxy-host/tests/hostile.rs`.

#[path = "hostile/attacker.rs"]
mod attacker;
#[path = "hostile/attacks.rs"]
mod attacks;
mod common;
#[path = "hostile/floods.rs"]
mod floods;
#[path = "hostile/honest.rs"]
mod honest;
#[path = "hostile/identity.rs"]
mod identity;
#[path = "hostile/memory.rs"]
mod memory;
#[path = "hostile/owners.rs"]
mod owners;
#[path = "hostile/raw.rs"]
mod raw;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use attacker::Attacker;
use common::OneNode;
use honest::{Honest, SERVER, Seen};
use ipc::conformance::World;
use ipc::{Completion, Endpoint, Event, IpcError, Message, Port, RingSpec, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(10));
/// An ordinary user, as programs of a container are to the broker.
const NOBODY: u32 = 65_534;

/// Not a test: what an attacker does. Started without its variables it does nothing.
#[test]
fn child_process() {
    let (Ok(name), Ok(path)) = (std::env::var("M3IPC_ATTACK"), std::env::var("M3IPC_SOCKET")) else { return };
    if name != "changes its user" {
        become_nobody();
    }
    attacks::run(&name, path.as_ref());
}

/// In every thread, and with /proc/self as that user's own.
fn become_nobody() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // SAFETY: numbers only, and a list without members.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
    }
}

fn can_become_another_user() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: needs root to become another user");
    }
    is_root
}

fn world() -> OneNode {
    let world = OneNode::new();
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(world.directory.path(), everybody).unwrap();
    world
}

/// Runs one attack beside the honest until it says what it did, kills it, and looks for what is left of it.
fn survive(attack: &str) -> (String, Seen) {
    let world = world();
    let honest = Honest::start(&world);
    honest.go_on();
    let mut attacker = Attacker::start(&world.socket(), attack);
    let did = attacker.line_with("did ");
    honest.go_on();
    attacker.kill();
    honest.go_on();
    only_the_honest_are_left(&world);
    // Newcomers are still let in.
    let mut newcomer = world.program();
    assert_eq!(newcomer.sendrec(SERVER, &Message::new(1), SOON).unwrap().kind, 2);
    let seen = honest.stop();
    eprintln!("{attack}: did {did}; {seen:?}");
    (did, seen)
}

/// The server, the client, and their channels of messages and of a ring.
fn only_the_honest_are_left(world: &OneNode) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let dc = world.broker.snapshot().unwrap().dcs.remove(0);
        if (dc.endpoints.len(), dc.channels.len(), dc.waiters) == (2, 2, 0) {
            return;
        }
        assert!(Instant::now() < until, "the attacker left {dc:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn garbage_in_the_words_of_a_channel_of_messages_ends_that_channel() {
    let (_, seen) = survive("garbage in messages");
    assert!(seen.taken > 0, "the attack reached the server");
}

#[test]
fn garbage_in_a_ring_and_lies_about_lengths_end_that_ring() {
    let (_, seen) = survive("garbage in rings");
    assert!(seen.ended_rings > 0, "the attack reached the server");
}

#[test]
fn garbage_in_a_lane_for_copies_copies_nothing() {
    survive("garbage in copies");
}

#[test]
fn old_words_and_replies_nobody_asked_for_are_passed_over() {
    let (_, seen) = survive("replays");
    assert!(seen.taken > 0, "the attack reached the server");
}

#[test]
fn member_cannot_be_taken_for_another() {
    let (did, seen) = survive("forges");
    assert_eq!(did, "refused");
    assert!(seen.forged > 0, "what it says in the name of another comes as its own");
}

#[test]
fn descriptors_cannot_be_reopened_resized_or_taken_from_others() {
    if can_become_another_user() {
        assert_eq!(survive("reopens").0, "refused");
    }
}

#[test]
fn bell_that_blocks_its_ringer_blocks_nobody_else() {
    survive("blocks bells");
}

#[test]
fn broker_is_not_blocked_by_a_bell_when_a_party_dies() {
    let world = world();
    let honest = Honest::start(&world);
    let mut victim = world.server(Endpoint::DS, 1);
    let mut attacker = Attacker::start(&world.socket(), "blocks the broker");
    let Event::Message(message) = victim.wait_event(SOON).unwrap() else { panic!("no message") };
    attacker.say("blocked");
    attacker.line_with("did ");
    drop((message, victim));
    honest.go_on();
    assert!(world.broker.snapshot().is_ok());
    // The broker still binds and opens.
    assert_eq!(world.program().sendrec(SERVER, &Message::new(1), SOON).unwrap().kind, 2);
    honest.stop();
}

#[test]
fn descriptors_that_take_hours_to_close_are_not_taken() {
    survive("sends descriptors");
}

/// As on a kernel that cannot refuse descriptors.
#[test]
fn descriptors_that_take_hours_to_close_hold_up_nobody() {
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["descriptors_that_take_hours_to_close_are_not_taken", "--exact", "--nocapture"]);
    let done = again.env(sys::without::VARIABLE, "passrights").output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && text.contains("1 passed"), "{done:?}");
}

#[test]
fn who_moves_sleepers_to_another_futex_delays_news_and_no_more() {
    let world = world();
    let honest = Honest::start(&world);
    let mut dying = world.server(Endpoint::DS, 1);
    let mut caller = world.program();
    let mut attacker = Attacker::start(&world.socket(), "moves sleepers");
    let begun = std::thread::scope(|scope| {
        let calling = scope.spawn(|| caller.sendrec(Endpoint::DS, &Message::new(1), Wait::Forever));
        // The attacker's and the caller's.
        for _ in 0..2 {
            dying.receive(ipc::Source::Any, SOON).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
        attacker.say("asleep");
        attacker.line_with("did ");
        let begun = Instant::now();
        drop(dying);
        assert_eq!(calling.join().unwrap(), Err(IpcError::SourceDied));
        begun
    });
    // A sleeper looks again after ten seconds.
    assert!(begun.elapsed() < Duration::from_secs(13), "{:?}", begun.elapsed());
    honest.stop();
}

#[test]
fn member_that_never_reads_is_dropped_and_holds_up_nobody() {
    survive("never reads");
}

#[test]
fn member_that_takes_nothing_and_asks_for_more_than_fits_loses_its_ring() {
    let (did, _) = survive("never takes");
    assert!(did.contains("Corrupt"), "{did}");
}

#[test]
fn message_to_a_member_that_never_receives_ends_at_its_limit() {
    let world = world();
    let honest = Honest::start(&world);
    let mut attacker = Attacker::start(&world.socket(), "never receives");
    let deaf = Endpoint::new(attacker.line_with("did ").parse().unwrap()).unwrap();
    let mut sender = world.program();
    for _ in 0..20 {
        assert_eq!(sender.send(deaf, &Message::new(1), Wait::For(Duration::from_millis(5))), Err(IpcError::TimedOut));
        sender.notify(deaf, 1).unwrap();
    }
    honest.stop();
}

#[test]
fn flood_of_channels_is_bounded_and_slows_nobody_down_for_long() {
    survive("floods channels");
}

#[test]
fn flood_of_connections_leaves_the_others_theirs() {
    survive("floods connections");
}

#[test]
fn flood_of_requests_to_the_broker_is_served_in_turn() {
    survive("floods requests");
}

#[test]
fn flood_of_names_takes_no_more_than_its_own() {
    survive("floods names");
}

#[test]
fn flood_of_notifications_is_merged() {
    survive("floods notifications");
}

#[test]
fn forked_child_that_goes_on_after_its_parent_keeps_no_endpoint() {
    let world = world();
    let honest = Honest::start(&world);
    let mut attacker = Attacker::start(&world.socket(), "forks");
    let number = Endpoint::new(attacker.line_with("endpoint ").parse().unwrap()).unwrap();
    ends_with_its_process(&world, attacker, number);
    only_the_honest_are_left(&world);
    honest.stop();
}

/// Kills the attacker, after it did what it does, while somebody calls it.
fn ends_with_its_process(world: &OneNode, mut attacker: Attacker, number: Endpoint) {
    let mut caller = world.program();
    let told = std::thread::scope(|scope| {
        let calling = scope.spawn(|| caller.sendrec(number, &Message::new(1), Wait::Forever));
        attacker.line_with("did ");
        let killed = Instant::now();
        // A child still holds the socket, the bells and the memory, and writes.
        attacker.child.kill().unwrap();
        let ended = calling.join().unwrap();
        // The last when the kill was quicker than the call.
        let is_told = matches!(ended, Err(IpcError::SourceDied | IpcError::DestinationDied | IpcError::NoSuchEndpoint));
        assert!(is_told, "{ended:?}");
        killed.elapsed()
    });
    assert!(told < Duration::from_secs(2), "{told:?}");
}

#[test]
fn child_that_a_member_lets_execute_something_speaks_for_nobody() {
    survive("executes a child");
}

/// A member that becomes something else, which calls the server here before and after, and then opens a ring to it.
fn become_another(attack: &str) {
    if !can_become_another_user() {
        return;
    }
    let world = world();
    let honest = Honest::start(&world);
    let mut server = world.server(Endpoint::DS, 1);
    let mut attacker = Attacker::start(&world.socket(), attack);
    let number = Endpoint::new(attacker.line_with("endpoint ").parse().unwrap()).unwrap();
    assert_eq!(hear(&mut server), [Heard::Request(number), Heard::Request(number), Heard::Ring(number)]);
    assert_eq!(attacker.line_with("found "), "refused");
    honest.go_on();
    let others = || world.broker.snapshot().unwrap().dcs.remove(0).endpoints.len();
    assert!(others() >= 4, "the two honest, the server here, and still the attacker");
    drop(server);
    ends_with_its_process(&world, attacker, number);
    only_the_honest_are_left(&world);
    honest.stop();
}

#[derive(PartialEq, Eq, Debug)]
enum Heard {
    Request(Endpoint),
    Ring(Endpoint),
}

/// Answers requests until somebody opens a ring.
fn hear(server: &mut Port) -> Vec<Heard> {
    let mut heard = Vec::new();
    while !matches!(heard.last(), Some(Heard::Ring(_))) {
        match server.wait_event(SOON).unwrap() {
            Event::Message(message) => {
                let source = message.source.unwrap();
                server.reply(source, &message).unwrap();
                heard.push(Heard::Request(source));
            }
            Event::RingOpened(ring) => heard.push(Heard::Ring(ring.client())),
            _ => {}
        }
    }
    heard
}

#[test]
fn member_that_changes_its_user_keeps_its_endpoint_and_gains_nothing() {
    become_another("changes its user");
}

#[test]
fn program_that_a_member_executes_in_its_place_is_the_same_member_and_gains_nothing() {
    become_another("executes itself");
}

#[test]
fn killed_at_any_instruction_a_member_leaves_nothing() {
    let world = world();
    let honest = Honest::start(&world);
    let mut chance = raw::Chance(std::process::id().into());
    let rounds = if std::env::var_os("DVS_TEST_LONG").is_some() { 300 } else { 12 };
    for _ in 0..rounds {
        let mut attacker = Attacker::start(&world.socket(), "behaves");
        attacker.line_with("did ");
        std::thread::sleep(Duration::from_micros(chance.below(3000)));
        attacker.kill();
        honest.go_on();
    }
    only_the_honest_are_left(&world);
    honest.stop();
}

#[test]
fn client_cannot_have_more_requests_taken_than_its_ring_holds() {
    let world = OneNode::new();
    let mut server = world.server(Endpoint::DS, 1);
    let spec = RingSpec { entries: 8, arena_bytes: 0 };
    let mut member = raw::Member::join(&world.socket());
    let channel = member.open(Endpoint::DS, Some(spec)).unwrap().unwrap();
    let set_tail =
        |tail: u32| channel.own.store(abi::layout::side::RING_TAIL, tail, std::sync::atomic::Ordering::Release);
    set_tail(8);
    channel.wake_peer();
    let Event::RingOpened(ring) = server.wait_event(SOON).unwrap() else { panic!("no ring") };
    for _ in 0..8 {
        assert!(ring.next().unwrap().is_some());
    }
    // Behind what was taken: a difference that wraps.
    set_tail(7);
    assert_eq!(ring.next(), Err(IpcError::Corrupt));
    assert!(ring.complete(&Completion::default()).is_err());
}
