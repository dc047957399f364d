//! Attacks by becoming another: a child, another program, another user.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use abi::Lane;
use broker_api::{FromPort, IfAbsent, Open, ToPort};
use ipc::{ChannelId, Endpoint, Port};

use crate::attacker::tell;
use crate::attacks::write_to_what_is_read_only;
use crate::honest::SERVER;
use crate::memory::SPEC;
use crate::raw::{Channel, Member, ask, say};

/// Whom they call.
const CALLED: Endpoint = Endpoint::DS;
/// What the next program inherits: number of the endpoint, of the channel, and descriptors.
const INHERITED: &str = "M3IPC_INHERITED";

/// The child keeps everything that the parent had and writes, whatever becomes of the parent.
pub fn forks(path: &Path) -> String {
    let mut member = Member::join(path);
    let channel = member.open(SERVER, None).unwrap().unwrap();
    tell(&format!("endpoint {}", member.endpoint));
    // SAFETY: the child makes plain system calls and touches memory it has; it never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for round in 0..2000u32 {
            channel.request();
            channel.wake_peer();
            let open = Open { peer: SERVER, lane: Lane::MESSAGES, ring: None, if_absent: IfAbsent::Fail };
            say(&member.socket, 100 + round, &FromPort::Open(open));
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    std::mem::forget((member, channel));
    "fork".into()
}

/// What a child that executes something says over the socket it inherited counts for nothing.
pub fn executes_a_child(path: &Path) -> String {
    let mut member = Member::join(path);
    let channel = member.open(SERVER, None).unwrap().unwrap();
    keep_over_exec(&member.socket);
    let number = member.socket.as_raw_fd();
    let script = format!("printf '%064d' 0 >&{number}; exec sleep 0");
    let status = Command::new("/bin/sh").args(["-c", &script]).status().unwrap();
    channel.request();
    channel.wake_peer();
    say(&member.socket, 50, &FromPort::AwaitBound { peer: CALLED });
    std::mem::forget((member, channel));
    format!("execute, {status}")
}

/// The process stays; the program is another, and has the socket, the own page and all of a channel.
pub fn executes_itself(path: &Path) -> String {
    let mut member = Member::join(path);
    let channel = member.open(CALLED, None).unwrap().unwrap();
    tell(&format!("endpoint {}", member.endpoint));
    assert!(channel.is_answered());
    let descriptors = [&member.socket, &member.page].into_iter().chain(&channel.files);
    let mut inherited = vec![u64::from(member.endpoint.number()), channel.id.0];
    for descriptor in descriptors {
        keep_over_exec(descriptor);
        inherited.push(descriptor.as_raw_fd() as u64);
    }
    let inherited = Vec::from_iter(inherited.iter().map(u64::to_string)).join(" ");
    let error = Command::new("/proc/self/exe")
        .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
        .env("M3IPC_ATTACK", "was executed")
        .env(INHERITED, inherited)
        .exec();
    panic!("{error}");
}

fn keep_over_exec(descriptor: &OwnedFd) {
    rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty()).unwrap();
}

pub fn was_executed(path: &Path) -> String {
    let inherited = std::env::var(INHERITED).unwrap();
    let numbers = Vec::from_iter(inherited.split(' ').map(|number| number.parse::<u64>().unwrap()));
    let [endpoint, channel, ref descriptors @ ..] = numbers[..] else { panic!("too few") };
    // SAFETY: the program before left them open for this one, and nothing here has them.
    let descriptors = descriptors.iter().map(|number| unsafe { OwnedFd::from_raw_fd(*number as i32) });
    let mut descriptors = Vec::from_iter(descriptors);
    let files = descriptors.split_off(2);
    let [socket, page]: [OwnedFd; 2] = descriptors.try_into().unwrap();
    let mut member = Member::inherited(Endpoint::new(endpoint as u32).unwrap(), socket, page);
    let channel = Channel::map(ChannelId(channel), None, files);
    assert!(channel.is_answered(), "it is the same member");
    let did = what_more_is_allowed(&mut member, &channel, path);
    std::mem::forget((member, channel));
    did
}

/// Joins as root, and goes on as an ordinary user.
pub fn changes_its_user(path: &Path) -> String {
    let mut member = Member::join(path);
    let channel = member.open(CALLED, None).unwrap().unwrap();
    tell(&format!("endpoint {}", member.endpoint));
    assert!(channel.is_answered());
    crate::become_nobody();
    assert!(channel.is_answered(), "it is the same member");
    let did = what_more_is_allowed(&mut member, &channel, path);
    std::mem::forget((member, channel));
    did
}

/// Of a member that is not what it was. It opens one channel more, as it may.
fn what_more_is_allowed(member: &mut Member, channel: &Channel, path: &Path) -> String {
    std::mem::forget(member.open(CALLED, Some(SPEC)).unwrap().unwrap());
    let mut allowed = write_to_what_is_read_only(member, channel);
    let mut check = |what: &str, is_allowed: bool| {
        if is_allowed {
            allowed.push(what.to_owned());
        }
    };
    let (answer, _) = member.ask(&FromPort::WakeUp { endpoint: SERVER }).unwrap();
    check("wake-up", !matches!(answer, ToPort::Failed { .. }));
    let bind = |endpoint| FromPort::Bind {
        endpoint: Some(endpoint),
        if_absent: IfAbsent::Fail,
        speaks: versions::PORT.speaks,
    };
    let (answer, _) = member.ask(&bind(SERVER)).unwrap();
    check("another number", matches!(answer, ToPort::Bound { endpoint, .. } if endpoint != member.endpoint));
    // Whoever connects anew is another member, also out of the same process.
    let socket = sys::seqpacket::connect(path).unwrap();
    let answer = ask(&socket, 1, &bind(member.endpoint));
    check("the same number twice", matches!(answer, Some((ToPort::Bound { .. }, _))));
    let other = Port::connect(path, None).unwrap();
    check("the same number again", other.endpoint() == member.endpoint);
    tell(&format!("found {}", if allowed.is_empty() { "refused".into() } else { allowed.join(", ") }));
    "become another".into()
}
