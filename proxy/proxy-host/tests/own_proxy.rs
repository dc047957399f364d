//! A proxy that somebody else wrote, in a process of its own: `examples/shaped_proxy.rs` against one of ours.

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use abi::{Endpoint, IpcError, Message};
use common::{PATIENCE, Pair, RunningProxy, Way, Which, calm_times};
use ipc::Wait;
use proxy_host::transport::Encryption;

const SERVER: Endpoint = Endpoint::FS;
const CLIENT: Endpoint = Endpoint::GATE;
const WAIT: Wait = Wait::For(PATIENCE);
const RATE: u64 = 100_000;
const DENIED: i32 = 66;

/// Built with the tests, beside them.
fn example() -> PathBuf {
    let tests = std::env::current_exe().expect("own path");
    let profile = tests.parent().and_then(|deps| deps.parent()).expect("a target directory");
    let program = profile.join("examples").join("shaped_proxy");
    assert!(program.exists(), "{} is missing: cargo build -p proxy-host --examples", program.display());
    program
}

#[test]
fn proxy_of_ones_own_shapes_logs_and_filters() {
    let mut pair = Pair::over(Way::Tcp);
    let (mut peer_a, mut peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let mut command = Command::new(example());
    command.stderr(Stdio::piped());
    peer_b.transport = Some("shaped".to_owned());
    let options = serde_json::json!({ "rate": RATE, "deny_kind": DENIED });
    let (mut proxy_a, control_a) = pair.a.spawn_program(&peer_b, command, options);
    let RunningProxy::Process(child) = &mut proxy_a else { panic!("a process") };
    let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let log = thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
    peer_a.transport = None;
    let (_proxy_b, _control_b) = pair.b.start_proxy(&peer_a, Encryption::Tls, calm_times());
    let status = control_a.wait_until(|status| status.links.iter().any(|link| link.state == common::UP));
    assert_eq!(status.links[0].transport, "shaped");
    assert!(status.listen.contains_key("shaped"));

    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let served = thread::spawn(move || {
        for _ in 0..30 {
            let request = server.rcvrqst(WAIT).expect("a request");
            server.reply(request.source.expect("a source"), &request).expect("replied");
        }
        server
    });
    let (data, start) = (vec![7; 2000], Instant::now());
    for _ in 0..30 {
        client.sendrec_inline(SERVER, &Message::new(5), &data, WAIT).expect("answered");
    }
    // 60 kB at 100 kB/s; what may be saved up is 2 kB.
    assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
    let answer = client.sendrec(SERVER, &Message::new(DENIED), WAIT);
    assert_eq!(answer.err(), Some(IpcError::Denied));
    served.join().expect("served");

    proxy_a.kill();
    let log = log.join().expect("read");
    let count = |what: &str| log.iter().filter(|line| line.contains(what)).count();
    assert!(count("kind 5 passes") >= 60, "{log:#?}");
    assert!(count("kind 66 denied") >= 1, "{log:#?}");
}
