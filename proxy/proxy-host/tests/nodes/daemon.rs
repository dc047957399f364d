//! What a proxy makes of its daemon and its broker: one that comes late with the list of nodes, one that is lost.

use std::thread;
use std::time::Duration;

use crate::common::{Control, PATIENCE, Pair, RunningProxy, Way, Which};
use abi::{Endpoint, Message, PairId};
use ipc::Wait;

const SERVER: Endpoint = Endpoint::FS;
const CLIENT: Endpoint = Endpoint::GATE;
const WAIT: Wait = Wait::For(PATIENCE);
const DOWN_MS: u64 = 1000;
/// The far node waits for the whole of it.
const FAR_DOWN_MS: u64 = 10_000;

/// The proxies of A and B, with their controls; that of A gives its peers up after so many milliseconds.
fn link(pair: &mut Pair, down_ms: u64) -> [(RunningProxy, Control); 2] {
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let linked = [pair.a.spawn_proxy(&peer_b, down_ms), pair.b.spawn_proxy(&peer_a, FAR_DOWN_MS)];
    linked[0].1.wait_until_up();
    linked
}

#[test]
fn call_goes_on_when_the_successor_of_a_killed_proxy_hears_late_which_nodes_there_are() {
    let mut pair = Pair::over(Way::Tcp);
    let [(mut proxy, _control), _far] = link(&mut pair, DOWN_MS);
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let caller = thread::spawn(move || client.sendrec(SERVER, &Message::new(1).with_word(0, 42), WAIT));
    let request = server.rcvrqst(WAIT).expect("a request");

    proxy.kill();
    let (_successor, control) = pair.a.spawn_proxy_without_list(PairId::FIRST, DOWN_MS);
    // Not for synchronisation: longer than a channel whose node is not in the list may wait.
    thread::sleep(Duration::from_millis(DOWN_MS + DOWN_MS / 2));
    control.set_peers(&[pair.b.as_peer()]);
    server.reply(request.source.expect("a source"), &request).expect("replied");
    let reply = caller.join().expect("the caller").expect("answered");
    assert_eq!(reply.word(0), 42);
}

#[test]
fn channel_with_a_node_that_is_in_no_list_ends_when_the_limit_has_passed() {
    let mut pair = Pair::over(Way::Tcp);
    let [(mut proxy, _control), _far] = link(&mut pair, DOWN_MS);
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let caller = thread::spawn(move || client.sendrec(SERVER, &Message::new(1), WAIT));
    server.rcvrqst(WAIT).expect("a request");

    proxy.kill();
    let (_successor, control) = pair.a.spawn_proxy_without_list(PairId::FIRST, DOWN_MS);
    control.set_peers(&[]);
    assert_eq!(caller.join().expect("the caller"), Err(abi::IpcError::NoLink));
}

#[test]
fn proxy_that_loses_a_living_broker_says_so_and_its_successor_opens_what_it_could_not() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: this test needs root, to reach into a proxy");
    }
    let mut pair = Pair::over(Way::Tcp);
    let [(mut proxy, control), _far] = link(&mut pair, FAR_DOWN_MS);
    let (mut client, mut late) = (pair.bind(Which::A, CLIENT), pair.bind(Which::A, Endpoint::DS));
    let mut server = pair.bind(Which::B, SERVER);
    let serving = thread::spawn(move || {
        for _ in 0..4 {
            let request = server.rcvrqst(WAIT).expect("a request");
            server.reply(request.source.expect("a source"), &request).expect("replied");
        }
    });
    let mut call = |number| client.sendrec(SERVER, &Message::new(1).with_word(0, number), WAIT).map(|it| it.word(0));
    assert_eq!(call(1), Ok(1));
    assert!(!control.latest().is_alone);

    proxy.cut_from_broker();
    control.wait_until(|status| status.is_alone);
    // The channel that there is goes on.
    assert_eq!(call(2), Ok(2));
    let opening = thread::spawn(move || late.sendrec(SERVER, &Message::new(1).with_word(0, 3), WAIT));
    proxy.kill();
    let peer_b = pair.b.as_peer();
    let (_successor, control) = pair.a.spawn_proxy(&peer_b, FAR_DOWN_MS);
    control.wait_until_up();
    assert!(!control.latest().is_alone);
    assert_eq!(opening.join().expect("the late one").expect("answered").word(0), 3);
    assert_eq!(call(4), Ok(4));
    serving.join().expect("served");
}
