//! What attackers do, each in a process of its own, for a while; then one says what it "did" and stays until it is
//! killed.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abi::layout::{parked, side, word};
use abi::{DcId, Epoch, Lane};
use broker_api::{FromPort, FromProxy, IfAbsent, LinkState, Message as _, OpenIn, Pid, ToPort};
use ipc::{ChannelId, Endpoint, IpcError, Message, NodeId, Port, Wait};
use ipc_shm::{Access, Mapping};

use crate::attacker::{tell, wait_for_the_end, while_it_lasts};
use crate::honest::{MARK, SERVER};
use crate::memory::{Foothold, SPEC};
use crate::raw::{Chance, Channel, Member, ask, say};
use crate::{floods, identity, memory};

pub fn run(name: &str, path: &Path) {
    let seed = u64::from(std::process::id());
    eprintln!("attack {name:?}, seed {seed}");
    let chance = Chance(seed);
    let did = match name {
        "garbage in messages" => memory::garbage_in_messages(path, chance),
        "garbage in rings" => memory::garbage_in_rings(path, chance),
        "garbage in copies" => memory::garbage_in_copies(path, chance),
        "replays" => memory::replays(path, chance),
        "forges" => forges(path, chance),
        "reopens" => reopens(path),
        "blocks bells" => blocks_bells(path),
        "blocks the broker" => blocks_the_broker(path),
        "sends descriptors" => sends_descriptors(path),
        "moves sleepers" => moves_sleepers(path),
        "never reads" => floods::never_reads(path),
        "never receives" => Member::join(path).stay().to_string(),
        "floods channels" => floods::floods_channels(path),
        "floods connections" => floods::floods_connections(path),
        "floods requests" => floods::floods_requests(path, chance),
        "floods names" => floods::floods_names(path, chance),
        "floods notifications" => floods::floods_notifications(path),
        "never takes" => floods::never_takes(path),
        "forks" => identity::forks(path),
        "executes a child" => identity::executes_a_child(path),
        "executes itself" => identity::executes_itself(path),
        "was executed" => identity::was_executed(path),
        "changes its user" => identity::changes_its_user(path),
        "behaves" => return behaves(path, chance),
        other => panic!("no such attack: {other}"),
    };
    tell(&format!("did {did}"));
    wait_for_the_end();
}

impl Member {
    /// Stays bound without ever receiving.
    fn stay(self) -> Endpoint {
        let endpoint = self.endpoint;
        std::mem::forget(self);
        endpoint
    }
}

fn forges(path: &Path, mut chance: Chance) -> String {
    let mut allowed = Vec::new();
    // To the broker: the number of a server, a bound one, one of another node.
    for number in [SERVER.number(), 256, 8000, Endpoint::DS.number()] {
        let socket = sys::seqpacket::connect(path).unwrap();
        let bind = FromPort::Bind {
            endpoint: Endpoint::new(number),
            if_absent: IfAbsent::Fail,
            speaks: versions::PORT.speaks,
        };
        match ask(&socket, 1, &bind) {
            // Somebody has to have 8000: it is nobody's.
            Some((ToPort::Bound { .. }, _)) if number != 8000 => allowed.push(format!("bind {number}")),
            _ => {}
        }
    }
    let mut member = Member::join(path);
    let channel = member.open(SERVER, None).unwrap().unwrap();
    let ours = channel.id.0;
    // Channels of others, made shortly before ours.
    for id in ours.saturating_sub(64)..ours {
        say(&member.socket, 0, &FromPort::Close { channel: ChannelId(id), reason: IpcError::TableFull });
    }
    let (answer, _) = member.ask(&FromPort::WakeUp { endpoint: SERVER }).unwrap();
    if !matches!(answer, ToPort::Failed { .. }) {
        allowed.push("wake-up".into());
    }
    // A proxy's words, and the broker's own.
    for forged in words_of_others() {
        let mut other = Member::join(path);
        let _ = sys::seqpacket::send(&other.socket, &forged, &[] as &[OwnedFd]);
        // Who says them is hung up on, before it is heard again.
        if other.ask(&FromPort::GetPrivileges { endpoint: other.endpoint }).is_some() {
            allowed.push(format!("operation {}", forged[0]));
        }
    }
    // In the channel: the fields where a source once was, and the honest client's own words.
    let count = while_it_lasts(|| {
        let next = word::next(channel.own.load(side::MESSAGE_WORD, Ordering::Relaxed), word::REQUEST);
        channel.own.store_u64(side::MESSAGE_PAYLOAD, MARK, Ordering::Relaxed);
        channel.own.store_u64(side::MESSAGE_PAYLOAD + 8, chance.below(1 << 20), Ordering::Relaxed);
        channel.own.store(side::AWAITS, next, Ordering::Release);
        channel.own.store(side::MESSAGE_KIND, SERVER.number(), Ordering::Relaxed);
        channel.own.store(side::MESSAGE_WORD, next, Ordering::Release);
        channel.wake_peer();
        std::thread::sleep(Duration::from_micros(200));
    });
    assert!(count > 0);
    if allowed.is_empty() { "refused".into() } else { allowed.join(", ") }
}

/// Writes to what may only be read, in every way; those that are allowed.
pub fn write_to_what_is_read_only(member: &Member, channel: &Channel) -> Vec<String> {
    use rustix::fs::OFlags;
    let mut allowed = Vec::new();
    let mut check = |what: &str, is_allowed: bool| {
        if is_allowed {
            allowed.push(what.to_owned());
        }
    };
    let read_only =
        [("peer's side", &channel.files[1]), ("peer's page", &channel.files[6]), ("own page", &member.page)];
    for (name, file) in read_only {
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        for flags in [OFlags::RDWR, OFlags::WRONLY, OFlags::RDWR | OFlags::TRUNC] {
            check(&format!("open {name}"), rustix::fs::open(&own, flags, rustix::fs::Mode::empty()).is_ok());
        }
        check(&format!("write {name}"), rustix::io::pwrite(file, b"x", 0).is_ok());
        check(
            &format!("map {name}"),
            Mapping::of(file, rustix::fs::fstat(file).unwrap().st_size as usize, Access::ReadWrite).is_ok(),
        );
        check(&format!("chmod {name}"), rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(0o666)).is_ok());
    }
    allowed
}

/// Everything by which a descriptor becomes more than it was.
fn reopens(path: &Path) -> String {
    use rustix::fs::{FallocateFlags, SealFlags};
    let mut member = Member::join(path);
    let channel = member.open(SERVER, Some(SPEC)).unwrap().unwrap();
    let mut allowed = write_to_what_is_read_only(&member, &channel);
    let mut check = |what: &str, is_allowed: bool| {
        if is_allowed {
            allowed.push(what.to_owned());
        }
    };
    for file in &channel.files[..3] {
        for bytes in [0, 1, 1 << 30] {
            check("resize", rustix::fs::ftruncate(file, bytes).is_ok());
        }
        check("grow", rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 1 << 24).is_ok());
        check("seal", rustix::fs::fcntl_add_seals(file, SealFlags::WRITE).is_ok());
        check("give away", rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(0o666)).is_ok());
        // A hole is zeroes, as any member may write into what is its own.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(file, hole, 0, 4096);
    }
    let victim: i32 = std::env::var("M3IPC_VICTIM").unwrap().parse().unwrap();
    for place in ["fd", "mem", "map_files"] {
        let path = format!("/proc/{victim}/{place}");
        let opened = std::fs::read_dir(&path).map(drop).or_else(|_| std::fs::File::open(&path).map(drop));
        check(&format!("{place} of the victim"), opened.is_ok());
    }
    let pidfd = sys::pidfd::open(victim).unwrap();
    // SAFETY: calls with numbers, and one pointer to our own buffer of the length that is told.
    unsafe {
        let taken = libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), 3, 0);
        check("a descriptor of the victim", taken >= 0);
        check("trace the victim", libc::ptrace(libc::PTRACE_SEIZE, victim, 0, 0) == 0);
        check("stop the victim", libc::kill(victim, 0) == 0);
        let mut buffer = [0u8; 8];
        let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 8 };
        let remote = libc::iovec { iov_base: channel.own.address_u32(0).cast_mut().cast(), iov_len: 8 };
        check("memory of the victim", libc::process_vm_readv(victim, &local, 1, &remote, 1, 0) > 0);
    }
    if allowed.is_empty() { "refused".into() } else { allowed.join(", ") }
}

/// Fills every bell that this party holds, as far as it can, and makes the next signal block.
fn block(channel: &Channel) {
    for bell in &channel.files[3..6] {
        let _ = rustix::io::ioctl_fionbio(bell, true);
        let _ = rustix::io::read(bell, &mut [0; 8]);
        let _ = rustix::io::write(bell, &(u64::MAX - 1).to_ne_bytes());
        let _ = rustix::io::ioctl_fionbio(bell, false);
    }
}

fn blocks_bells(path: &Path) -> String {
    let mut foothold = Foothold::new(path, None);
    foothold.channel().request();
    foothold.channel().wake_peer();
    std::thread::sleep(Duration::from_millis(20));
    let channel = foothold.channel();
    block(channel);
    // The server rings for its answer whoever says that it sleeps in epoll.
    channel.own.store(side::PARKED, parked::EVENTFD, Ordering::SeqCst);
    let count = while_it_lasts(|| {
        channel.request();
        block(channel);
        std::thread::sleep(Duration::from_millis(1));
    });
    format!("{count}")
}

fn blocks_the_broker(path: &Path) -> String {
    let mut member = Member::join(path);
    let channel = member.open(Endpoint::DS, None).unwrap().unwrap();
    channel.request();
    channel.wake_peer();
    wait_for_the_end();
    block(&channel);
    std::mem::forget((member, channel));
    "block".into()
}

/// A stream that stays open for an hour after its last descriptor is closed.
fn lingering() -> OwnedFd {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    std::mem::forget(listener.accept().unwrap());
    std::mem::forget(listener);
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65_536]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: 3600 };
    // SAFETY: the value is the structure that the option takes.
    let result = unsafe {
        let bytes = size_of::<libc::linger>() as libc::socklen_t;
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), bytes)
    };
    assert_eq!(result, 0);
    stream.into()
}

/// What only a proxy says, and what only the broker does.
fn words_of_others() -> Vec<Vec<u8>> {
    let (dc, node, reason) = (DcId(1), NodeId(1), IpcError::SourceDied);
    let open = OpenIn {
        dc,
        caller: Endpoint::DS,
        node,
        target: SERVER,
        lane: Lane::MESSAGES,
        ring: None,
        peer_channel: 1,
        incarnation: None,
    };
    let of_proxies = [
        FromProxy::OpenIn(open),
        FromProxy::RemoteGone { dc, endpoint: SERVER, node, reason },
        FromProxy::Link { node, state: LinkState::Up },
    ];
    let of_brokers = [
        ToPort::Bound { dc, endpoint: SERVER, epoch: Epoch(9) },
        ToPort::Ended { dc, channel: ChannelId(1), reason },
        ToPort::Restarted,
        ToPort::Hold,
    ];
    let of_proxies = of_proxies.iter().map(|message| message.to_bytes(7));
    of_proxies.chain(of_brokers.iter().map(|message| message.to_bytes(7))).collect()
}

fn sends_descriptors(path: &Path) -> String {
    let mut taken = 0;
    let mut send = |socket: &OwnedFd, bytes: &[u8]| {
        let stream = lingering();
        match sys::seqpacket::send(socket, bytes, &[&stream]) {
            Ok(()) => {
                // The broker has the last one, unless it closed it already: then this one takes its hour.
                std::thread::spawn(move || drop(stream));
                taken += 1;
            }
            Err(_) => std::mem::forget(stream),
        }
    };
    let get = FromPort::GetEndpoint { pid: Pid::new(1).unwrap() };
    for message in [get, FromPort::Close { channel: ChannelId(1), reason: IpcError::TableFull }] {
        send(&Member::join(path).socket, &message.to_bytes(0));
        send(&Member::join(path).socket, &[1; 3]);
        // Before it was accepted.
        send(&sys::seqpacket::connect(path).unwrap(), &message.to_bytes(0));
    }
    format!("{taken} taken")
}

/// Moves whoever sleeps on a page that it may only read to a word of its own.
fn moves_sleepers(path: &Path) -> String {
    let mut member = Member::join(path);
    let channel = member.open(Endpoint::DS, None).unwrap().unwrap();
    channel.request();
    channel.wake_peer();
    wait_for_the_end();
    let page = Mapping::of(&channel.files[6], abi::layout::control::PAGE_BYTES, Access::Read).unwrap();
    let from = page.address_u32(abi::layout::control::EVENT);
    let to = channel.own.address_u32(side::INLINE);
    // SAFETY: the kernel uses both addresses as keys.
    let moved = unsafe { libc::syscall(libc::SYS_futex, from, libc::FUTEX_REQUEUE, 0, 1000usize, to, 0u32) };
    std::mem::forget((member, channel));
    format!("move {moved}")
}

/// Nothing wrong: calls, rings, notifications and channels, until it is killed.
fn behaves(path: &Path, mut chance: Chance) {
    const LIMIT: Wait = Wait::For(Duration::from_secs(10));
    let mut port = Port::connect(path, None).unwrap();
    port.sendrec(SERVER, &Message::new(1), LIMIT).unwrap();
    tell("did begin");
    loop {
        match chance.below(4) {
            0 => drop(port.open_ring(SERVER, SPEC, LIMIT).unwrap()),
            1 => port.notify(SERVER, 1).unwrap(),
            2 => drop(Port::connect(path, None).unwrap()),
            _ => match port.sendrec(SERVER, &Message::new(1), Wait::For(Duration::from_micros(chance.below(200)))) {
                Ok(_) | Err(IpcError::TimedOut) => {}
                Err(error) => panic!("{error}"),
            },
        }
    }
}
