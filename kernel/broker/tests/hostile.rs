//! A member of the container that keeps no rule harms only its own channels: an honest client and its server go on with right
//! answers in bounded time while real processes of another user attack the server, the broker and the channels, one way for each test.
//!
//! `hostile/attacks.rs`: what the attackers do. `hostile/honest.rs`: those who must not notice. `hostile/raw.rs`: a channel without the
//! library.

#[path = "hostile/attacks.rs"]
mod attacks;
mod common;
#[path = "hostile/honest.rs"]
mod honest;
#[path = "hostile/raw.rs"]
mod raw;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::OneNode;
use honest::{Honest, SERVER, Seen};
use ipc::conformance::World;
use ipc::{Completion, Endpoint, Event, IpcError, Message, RingSpec, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(10));
/// An ordinary user, as programs of a container are to the broker.
const NOBODY: u32 = 65_534;

/// Not a test: what an attacker does. Started without its variables it does nothing.
#[test]
fn child_process() {
    let (Ok(name), Ok(path)) = (std::env::var("M3IPC_ATTACK"), std::env::var("M3IPC_SOCKET")) else { return };
    become_nobody();
    attacks::run(&name, path.as_ref());
}

/// In every thread, and with /proc/self as that user's own.
fn become_nobody() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // SAFETY: both calls take numbers only.
    unsafe {
        assert_eq!(libc::setgid(NOBODY), 0);
        assert_eq!(libc::setuid(NOBODY), 0);
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
    }
}

fn world() -> OneNode {
    let world = OneNode::new();
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(world.directory.path(), everybody).unwrap();
    world
}

/// How long an attack of chance goes on.
fn attack_time() -> Duration {
    Duration::from_millis(if std::env::var_os("DVS_TEST_LONG").is_some() { 10_000 } else { 400 })
}

/// A process that is killed and waited for in any case.
struct Attacker {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Attacker {
    fn start(world: &OneNode, attack: &str) -> Attacker {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("M3IPC_ATTACK", attack)
            .env("M3IPC_SOCKET", world.socket())
            .env("M3IPC_MILLIS", attack_time().as_millis().to_string())
            .env("M3IPC_VICTIM", std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Attacker { child, lines }
    }

    /// What follows `prefix` in the first line that has it anywhere.
    fn line_with(&mut self, prefix: &str) -> String {
        let found = self.lines.find_map(|line| line.unwrap().split_once(prefix).map(|(_, rest)| rest.to_string()));
        found.unwrap_or_else(|| panic!("the attacker ended without saying {prefix:?}"))
    }

    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs one attack beside the honest until it says what it did, kills it, and looks for what is left of it.
fn survive(attack: &str) -> (String, Seen) {
    let world = world();
    let honest = Honest::start(&world);
    honest.go_on();
    let mut attacker = Attacker::start(&world, attack);
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
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root to become another user");
        return;
    }
    assert_eq!(survive("reopens").0, "refused");
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
    let mut attacker = Attacker::start(&world, "blocks the broker");
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

#[test]
fn who_moves_sleepers_to_another_futex_delays_news_and_no_more() {
    let world = world();
    let honest = Honest::start(&world);
    let mut dying = world.server(Endpoint::DS, 1);
    let mut caller = world.program();
    let mut attacker = Attacker::start(&world, "moves sleepers");
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
fn message_to_a_member_that_never_receives_ends_at_its_limit() {
    let world = world();
    let honest = Honest::start(&world);
    let mut attacker = Attacker::start(&world, "never receives");
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
fn flood_of_notifications_is_merged() {
    survive("floods notifications");
}

#[test]
fn forked_child_that_goes_on_after_its_parent_keeps_no_endpoint() {
    let world = world();
    let honest = Honest::start(&world);
    let mut attacker = Attacker::start(&world, "forks");
    let number = Endpoint::new(attacker.line_with("endpoint ").parse().unwrap()).unwrap();
    let mut caller = world.program();
    let told = std::thread::scope(|scope| {
        let calling = scope.spawn(|| caller.sendrec(number, &Message::new(1), Wait::Forever));
        attacker.line_with("did ");
        let killed = Instant::now();
        // The parent; the child still holds the socket, the bells and the memory, and writes.
        attacker.child.kill().unwrap();
        let ended = calling.join().unwrap();
        // The last when the kill was quicker than the call.
        let is_told = matches!(ended, Err(IpcError::SourceDied | IpcError::DestinationDied | IpcError::NoSuchEndpoint));
        assert!(is_told, "{ended:?}");
        killed.elapsed()
    });
    assert!(told < Duration::from_secs(2), "{told:?}");
    drop(caller);
    only_the_honest_are_left(&world);
    honest.stop();
}

#[test]
fn member_that_executes_another_program_or_changes_its_user_is_still_only_itself() {
    survive("executes");
}

#[test]
fn killed_at_any_instruction_a_member_leaves_nothing() {
    let world = world();
    let honest = Honest::start(&world);
    let mut chance = raw::Chance(std::process::id().into());
    let rounds = if std::env::var_os("DVS_TEST_LONG").is_some() { 300 } else { 12 };
    for _ in 0..rounds {
        let mut attacker = Attacker::start(&world, "behaves");
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
