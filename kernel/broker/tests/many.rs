//! As many endpoints as a container must have room for, all at once.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use abi::limits::ENDPOINTS_PROMISED;
use common::OneNode;
use ipc::conformance::World;
use ipc::info::Cursor;
use ipc::{Endpoint, Message, Port, Source, Wait};
use rustix::event::{PollFd, PollFlags, poll};

const SOON: Wait = Wait::For(Duration::from_secs(20));
/// What is promised.
const PROMISED: usize = ENDPOINTS_PROMISED as usize;
/// A process has descriptors for so many ports.
const PORTS_EACH: usize = 1024;
const _: () = assert!(PROMISED.is_multiple_of(PORTS_EACH));

/// Not a test: a process with many endpoints, of which all answer.
#[test]
fn child_process() {
    let Ok(path) = std::env::var("M3IPC_SOCKET") else { return };
    let mut ports: Vec<Port> = (0..PORTS_EACH).map(|_| Port::connect(path.as_ref(), None).unwrap()).collect();
    // The first look arms the descriptor.
    ports.iter_mut().for_each(answer);
    let numbers: Vec<String> = ports.iter().map(|port| port.endpoint().to_string()).collect();
    println!("endpoints {}", numbers.join(" "));
    std::io::stdout().flush().unwrap();
    loop {
        let input = std::io::stdin();
        let mut polled: Vec<PollFd<'_>> =
            ports.iter().map(|port| PollFd::from_borrowed_fd(port.fd(), PollFlags::IN)).collect();
        polled.push(PollFd::new(&input, PollFlags::IN | PollFlags::HUP));
        poll(&mut polled, None).unwrap();
        let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        if ready.last() == Some(&true) {
            return;
        }
        ports.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready).for_each(|(port, _)| answer(port));
    }
}

/// Whatever is there.
fn answer(port: &mut Port) {
    while let Ok(request) = port.receive(Source::Any, Wait::NoWait) {
        port.reply(request.source.unwrap(), &request).unwrap();
    }
}

/// A child that is ended and waited for in any case.
struct Crowd(Child);

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Crowd {
    fn start(world: &OneNode) -> (Crowd, Vec<Endpoint>) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("M3IPC_SOCKET", world.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut crowd = Crowd(child);
        let lines = BufReader::new(crowd.0.stdout.take().unwrap()).lines();
        let numbers = lines.map(Result::unwrap).find_map(|line| {
            let (_, numbers) = line.split_once("endpoints ")?;
            Some(numbers.split(' ').map(|number| Endpoint::new(number.parse().unwrap()).unwrap()).collect())
        });
        (crowd, numbers.expect("the child says its endpoints"))
    }
}

#[test]
fn container_has_four_thousand_endpoints_and_each_can_be_called() {
    let world = OneNode::new();
    let mut crowds = Vec::new();
    let mut endpoints = Vec::new();
    for _ in 0..PROMISED / PORTS_EACH {
        let (crowd, numbers) = Crowd::start(&world);
        crowds.push(crowd);
        endpoints.extend(numbers);
    }
    let mut distinct = endpoints.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), PROMISED);
    assert_eq!(world.broker.snapshot().unwrap().dcs[0].endpoints.len(), PROMISED);
    // A caller's channels end with it: this process, which plays the broker too, has descriptors for some hundreds at a
    // time.
    for some in endpoints.chunks(256) {
        let mut caller = world.program();
        for endpoint in some {
            assert_eq!(caller.sendrec(*endpoint, &Message::new(3), SOON).unwrap().kind, 3);
        }
    }
    everybody_is_listed_and_so_is_every_channel(&world, &endpoints);
}

fn everybody_is_listed_and_so_is_every_channel(world: &OneNode, endpoints: &[Endpoint]) {
    let mut caller = world.program();
    let own = caller.endpoint();
    for endpoint in &endpoints[..256] {
        caller.notify(*endpoint, 1).unwrap();
    }
    let (mut listed, mut notified, mut next) = (0, 0, Some(Cursor::START));
    while let Some(from) = next {
        let page = caller.endpoints_info(from, usize::MAX).unwrap();
        (listed, next) = (listed + page.records.len(), page.next);
    }
    assert_eq!(listed, PROMISED + 1);
    next = Some(Cursor::START);
    while let Some(from) = next {
        let page = caller.channels_info(Some(own), from, usize::MAX).unwrap();
        let counts = page.records.iter().filter_map(|channel| channel.counts);
        (notified, next) = (notified + counts.map(|[left, _]| left.notifications).sum::<u32>(), page.next);
    }
    assert_eq!(notified, 256);
    assert_eq!(caller.endpoint_info(own).unwrap().near.notifications, 256);
    assert_eq!(world.broker.channels(common::DC).unwrap().len(), 256);
}
