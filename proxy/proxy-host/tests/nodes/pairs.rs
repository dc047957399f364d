//! Several proxies on either node: who talks by which, and what one that is killed, or cut off, does to the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{self, Control, DC, PATIENCE, Pair, RunningProxy, Way, Which, calm_times};
use abi::{Endpoint, IpcError, Message, PairId};
use broker::{Home, pair_of};
use ipc::{Port, Wait};
use proxy_host::transport::Encryption;

const SERVER: Endpoint = Endpoint::FS;
const WAIT: Wait = Wait::For(PATIENCE);
const PAIRS: u8 = 2;
const DOWN_MS: u64 = 1500;
/// The last request.
const END: i32 = 0;

fn pair(number: u8) -> PairId {
    PairId::new(number).expect("below the limit")
}

/// The so-many-th number that talks with the server by that pair.
fn client_of(number: u8, index: usize) -> Endpoint {
    let all = (100..256).filter_map(Endpoint::new);
    all.filter(|it| pair_of(DC, SERVER, *it, PAIRS) == pair(number)).nth(index).expect("one of so many")
}

/// Answers everybody until it is told to end.
fn echo(server: &mut Port) {
    loop {
        let request = server.rcvrqst(WAIT).expect("a request");
        // A caller whose pair was cut off does not wait any more.
        let _ = server.reply(request.source.expect("a source"), &request);
        if request.kind == END {
            return;
        }
    }
}

fn call(client: &mut Port, number: u64) -> Result<(), IpcError> {
    let reply = client.sendrec(SERVER, &Message::new(1).with_word(0, number), WAIT)?;
    assert_eq!(reply.word(0), number);
    Ok(())
}

fn end(client: &mut Port) {
    client.sendrec(SERVER, &Message::new(END), WAIT).expect("answered");
}

/// Two nodes with proxies as processes.
struct Processes {
    a: Vec<(RunningProxy, Control)>,
    b: Vec<(RunningProxy, Control)>,
    world: Pair,
}

impl Processes {
    fn new() -> Processes {
        let mut processes = Processes { a: Vec::new(), b: Vec::new(), world: Pair::with_pairs(Way::Tcp, PAIRS) };
        for pair in PairId::all(PAIRS) {
            let (a, b) = (processes.spawn(Which::A, pair), processes.spawn(Which::B, pair));
            a.1.wait_until_up();
            processes.a.push(a);
            processes.b.push(b);
        }
        processes
    }

    fn spawn(&mut self, which: Which, pair: PairId) -> (RunningProxy, Control) {
        let (here, there) = match which {
            Which::A => (&mut self.world.a, &self.world.b),
            Which::B => (&mut self.world.b, &self.world.a),
        };
        here.spawn_proxy_of(pair, &there.as_peer_of(pair), DOWN_MS)
    }
}

fn calls_of_many_endpoints_go_over_all_proxies_each_by_its_own(way: Way) {
    let mut world = Pair::with_pairs(way, PAIRS);
    let (mut proxies, mut controls) = (Vec::new(), Vec::new());
    for pair in PairId::all(PAIRS) {
        let (a, b) = (world.a.as_peer_of(pair), world.b.as_peer_of(pair));
        let (proxy_a, control) = world.a.start_proxy_of(pair, &[b], Encryption::Tls, calm_times());
        proxies.push((proxy_a, world.b.start_proxy_of(pair, &[a], Encryption::Tls, calm_times())));
        control.wait_until_up();
        controls.push(control);
    }
    let mut server = world.bind(Which::B, SERVER);
    // Two by the first pair, three by the other.
    let numbers = [client_of(0, 0), client_of(0, 1), client_of(1, 0), client_of(1, 1), client_of(1, 2)];
    let mut clients = numbers.map(|number| world.bind(Which::A, number));
    let mut last = world.bind(Which::A, client_of(0, 2));
    let calls = 50;
    thread::scope(|scope| {
        scope.spawn(|| echo(&mut server));
        let calling = clients
            .iter_mut()
            .map(|client| scope.spawn(move || (0..calls).for_each(|number| call(client, number).expect("answered"))));
        Vec::from_iter(calling).into_iter().for_each(|thread| thread.join().expect("all answered"));
        end(&mut last);
    });
    let carried = controls.iter().map(|control| {
        control.ask();
        control.next().links[0].received_messages
    });
    assert_eq!(Vec::from_iter(carried), [2 * calls + 1, 3 * calls]);
}

mod tcp {
    #[test]
    fn calls_of_many_endpoints_go_over_all_proxies_each_by_its_own() {
        super::calls_of_many_endpoints_go_over_all_proxies_each_by_its_own(super::Way::Tcp);
    }
}

mod unix {
    #[test]
    fn calls_of_many_endpoints_go_over_all_proxies_each_by_its_own() {
        super::calls_of_many_endpoints_go_over_all_proxies_each_by_its_own(super::Way::Unix);
    }
}

mod quic {
    #[test]
    fn calls_of_many_endpoints_go_over_all_proxies_each_by_its_own() {
        super::calls_of_many_endpoints_go_over_all_proxies_each_by_its_own(super::Way::Quic);
    }
}

#[test]
fn killed_proxy_disturbs_no_other_pair_and_its_successor_goes_on_with_its_channels() {
    let mut processes = Processes::new();
    let mut server = processes.world.bind(Which::B, SERVER);
    let mut clients = [0, 1].map(|number| processes.world.bind(Which::A, client_of(number, 0)));
    let mut last = processes.world.bind(Which::A, client_of(0, 1));
    let answered = [AtomicU64::new(0), AtomicU64::new(0)];
    let is_over = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| echo(&mut server));
        let calling = clients.iter_mut().zip(&answered).map(|(client, answered)| {
            let is_over = &is_over;
            scope.spawn(move || {
                while is_over.load(Ordering::SeqCst) == 0 {
                    call(client, answered.load(Ordering::SeqCst)).expect("no error reaches the caller");
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        let calling = Vec::from_iter(calling);
        let so_many_more = |client: usize, more: u64| {
            let from = answered[client].load(Ordering::SeqCst);
            while answered[client].load(Ordering::SeqCst) < from + more {
                thread::sleep(Duration::from_millis(1));
            }
        };
        for which in [Which::A, Which::B, Which::A] {
            so_many_more(1, 20);
            let side = if which == Which::A { &mut processes.a } else { &mut processes.b };
            let (mut killed, _control) = side.pop().expect("the second");
            killed.kill();
            let when = answered[1].load(Ordering::SeqCst);
            so_many_more(0, 200);
            // What was under way when it was killed may have come before.
            assert!(answered[1].load(Ordering::SeqCst) <= when + 1, "there is no proxy for it");
            let successor = processes.spawn(which, pair(1));
            let side = if which == Which::A { &mut processes.a } else { &mut processes.b };
            side.push(successor);
            so_many_more(1, 20);
        }
        is_over.store(1, Ordering::SeqCst);
        calling.into_iter().for_each(|thread| thread.join().expect("all answered"));
        end(&mut last);
    });
    let control = &processes.a[0].1;
    control.ask();
    let status = control.next();
    assert!(status.links.iter().all(|link| link.reconnects == 0), "the first pair never noticed: {status:?}");
}

#[test]
fn pair_that_is_down_for_good_takes_its_channels_with_it_and_the_node_goes_with_the_last() {
    let mut processes = Processes::new();
    let mut server = processes.world.bind(Which::B, SERVER);
    let [mut of_alive, mut later, mut of_dead, mut next] = [(0, 0), (0, 1), (1, 0), (1, 1)]
        .map(|(number, index)| processes.world.bind(Which::A, client_of(number, index)));
    let is_known = |processes: &Processes| {
        let info = processes.world.a.broker.snapshot().expect("lives").dcs.remove(0);
        info.endpoints.iter().any(|it| it.endpoint == SERVER && matches!(it.home, Home::Remote { .. }))
    };
    thread::scope(|scope| {
        scope.spawn(|| echo(&mut server));
        call(&mut of_alive, 1).expect("answered");
        call(&mut of_dead, 1).expect("answered");
        processes.b[1].0.kill();
        // Waits as long as the other one may come back, and is told then.
        let mut number = 2;
        let ended = loop {
            number += 1;
            if let Err(error) = call(&mut of_dead, number) {
                break error;
            }
        };
        assert_eq!(ended, IpcError::NoLink);
        assert_eq!(call(&mut next, 1), Err(IpcError::NoLink));
        call(&mut of_alive, 2).expect("the other pair goes on");
        call(&mut later, 1).expect("also for who was not there before");
        assert!(is_known(&processes));

        // Back, and everybody reaches the server again.
        processes.b[1] = processes.spawn(Which::B, pair(1));
        for client in [&mut of_dead, &mut next] {
            client.wait4bind(SERVER, WAIT).expect("reached again");
            call(client, 3).expect("answered");
        }

        processes.b[0].0.kill();
        processes.b[1].0.kill();
        let ends = [&mut of_alive, &mut next].map(|client| call(client, 4).expect_err("nobody is there"));
        assert_eq!(ends, [IpcError::NoLink; 2]);
        while is_known(&processes) {
            thread::sleep(Duration::from_millis(1));
        }
        processes.b[1] = processes.spawn(Which::B, pair(1));
        next.wait4bind(SERVER, WAIT).expect("by one pair it is here again");
        call(&mut next, 5).expect("answered");
        assert_eq!(call(&mut of_alive, 5), Err(IpcError::NoLink));
        end(&mut next);
    });
}

#[test]
fn proxies_of_different_pairs_do_not_link() {
    let mut world = Pair::with_pairs(Way::Tcp, PAIRS);
    let (a, b) = (world.a.as_peer_of(pair(0)), world.b.as_peer_of(pair(1)));
    let (_proxy_b, _control_b) = world.b.start_proxy_of(pair(1), &[a], Encryption::Tls, calm_times());
    let (_proxy_a, control) = world.a.start_proxy_of(pair(0), &[b], Encryption::Tls, calm_times());
    let says_why = |text: &String| text.contains("another pair");
    let status = loop {
        control.ask();
        let status = control.next();
        if status.links[0].last_error.as_ref().is_some_and(says_why) {
            break status;
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert_ne!(status.links[0].state, common::UP);
}
