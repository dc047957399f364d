//! What attackers do, each in a process of its own, for a while; then one says what it "did" and stays until it is killed.

use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abi::Lane;
use abi::layout::{parked, shared, side, state, word};
use ipc::protocol::{Op, Packet};
use ipc::{ChannelId, Endpoint, IpcError, Message, NodeId, Port, RingSpec, Wait};
use ipc_shm::{Access, Mapping};

use crate::honest::{FORGED, MARK, SERVER};
use crate::raw::{Chance, Channel, Member, ask, say};

const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 64 << 10 };

pub fn run(name: &str, path: &Path) {
    let seed = u64::from(std::process::id());
    eprintln!("attack {name:?}, seed {seed}");
    let chance = Chance(seed);
    let did = match name {
        "garbage in messages" => garbage_in_messages(path, chance),
        "garbage in rings" => garbage_in_rings(path, chance),
        "garbage in copies" => garbage_in_copies(path, chance),
        "replays" => replays(path, chance),
        "forges" => forges(path, chance),
        "reopens" => reopens(path),
        "blocks bells" => blocks_bells(path),
        "blocks the broker" => blocks_the_broker(path),
        "sends descriptors" => sends_descriptors(path),
        "moves sleepers" => moves_sleepers(path),
        "never reads" => never_reads(path),
        "never receives" => Member::join(path).stay().to_string(),
        "floods channels" => floods_channels(path),
        "floods connections" => floods_connections(path),
        "floods requests" => floods_requests(path, chance),
        "floods notifications" => floods_notifications(path),
        "forks" => forks(path),
        "executes" => executes(path),
        "behaves" => return behaves(path, chance),
        other => panic!("no such attack: {other}"),
    };
    tell(&format!("did {did}"));
    wait_for_the_end();
}

fn tell(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// The next line of the test, or its end.
fn wait_for_the_end() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn while_it_lasts(mut attack: impl FnMut()) -> u64 {
    let millis = std::env::var("M3IPC_MILLIS").unwrap().parse().unwrap();
    let until = Instant::now() + Duration::from_millis(millis);
    let mut count = 0;
    while Instant::now() < until {
        attack();
        count += 1;
    }
    count
}

impl Member {
    /// Stays bound without ever receiving.
    fn stay(self) -> Endpoint {
        let endpoint = self.endpoint;
        std::mem::forget(self);
        endpoint
    }
}

/// A member and its channel, both made again when the other side has had enough of them.
struct Foothold<'a> {
    path: &'a Path,
    ring: Option<RingSpec>,
    member: Member,
    channel: Option<Channel>,
}

impl<'a> Foothold<'a> {
    fn new(path: &'a Path, ring: Option<RingSpec>) -> Foothold<'a> {
        Foothold { path, ring, member: Member::join(path), channel: None }
    }

    fn channel(&mut self) -> &Channel {
        if let Some(old) = self.channel.take_if(|channel| channel.is_closed()) {
            self.member.close(&old);
        }
        while self.channel.is_none() {
            match self.member.open(SERVER, self.ring) {
                Some(Ok(channel)) => self.channel = Some(channel),
                Some(Err(_)) => std::thread::sleep(Duration::from_millis(1)),
                None => self.member = Member::join(self.path),
            }
        }
        self.channel.as_ref().unwrap()
    }
}

fn scribble(mapping: &Mapping, places: &[usize], chance: &mut Chance) {
    for _ in 0..=chance.below(6) {
        let at = match chance.below(4) {
            0 => chance.below(mapping.bytes() as u64 / 4) as usize * 4,
            _ => places[chance.below(places.len() as u64) as usize],
        };
        // Nobody goes on with a channel that its owner closed.
        if at != side::CLOSED {
            mapping.store(at, chance.word(), Ordering::Release);
        }
    }
}

fn garbage_in_messages(path: &Path, mut chance: Chance) -> String {
    let mut foothold = Foothold::new(path, None);
    let sides = [
        0,
        4,
        8,
        side::EVENT,
        side::PARKED,
        side::NOTIFIED,
        side::TAKEN,
        side::AWAITS,
        side::INLINE_BYTES,
        side::INLINE,
    ];
    let both = [
        shared::STATE_FROM_LEFT,
        shared::STATE_FROM_RIGHT,
        shared::NOTIFY_FROM_LEFT,
        shared::REPLY_TO_LEFT,
        shared::REPLY_TO_RIGHT,
    ];
    let count = while_it_lasts(|| {
        let channel = foothold.channel();
        if chance.below(3) == 0 {
            // A message as it should be, but for a length that is a lie.
            let counter = chance.word() << word::FLAG_BITS;
            channel.own.store(side::INLINE_BYTES, chance.word(), Ordering::Release);
            channel.own.store(side::MESSAGE_WORD, counter | word::REQUEST | word::INLINE, Ordering::Release);
        } else {
            scribble(&channel.own, &sides, &mut chance);
            scribble(&channel.shared, &both, &mut chance);
        }
        channel.wake_peer();
    });
    format!("{count}")
}

fn garbage_in_rings(path: &Path, mut chance: Chance) -> String {
    let mut foothold = Foothold::new(path, Some(SPEC));
    let heads = [side::RING_TAIL, side::RING_HEAD, side::PARKED, side::EVENT];
    let mut tail = 0u32;
    let count = while_it_lasts(|| {
        let channel = foothold.channel();
        for entry in 0..SPEC.entries as usize {
            let mut bytes = [0; 64];
            bytes.chunks_exact_mut(4).for_each(|four| four.copy_from_slice(&chance.word().to_le_bytes()));
            if chance.below(2) == 0 {
                // Nearly right: only the range is a lie, or not even that.
                bytes[16..28]
                    .chunks_exact_mut(4)
                    .for_each(|four| four.copy_from_slice(&(chance.word() & 0x1ffff).to_le_bytes()));
                bytes[28..32].fill(0);
            }
            channel.own.copy_in(side::RING + entry * 64, &bytes).unwrap();
        }
        tail = match chance.below(4) {
            0 => chance.word(),
            _ => channel.peer.load(side::RING_HEAD, Ordering::Acquire).wrapping_add(chance.below(3) as u32),
        };
        channel.own.store(side::RING_TAIL, tail, Ordering::Release);
        if chance.below(4) == 0 {
            scribble(&channel.own, &heads, &mut chance);
        }
        scribble(&channel.shared, &[shared::ARENA], &mut chance);
        channel.wake_peer();
    });
    format!("{count}")
}

fn garbage_in_copies(path: &Path, mut chance: Chance) -> String {
    let mut member = Member::join(path);
    let _talk = member.open(SERVER, None).unwrap().unwrap();
    let lane = Lane::copies(member.endpoint, SERVER);
    let open = Packet { peer: Some(SERVER), size: ipc::COPY_SPEC.size(), lane, ..Packet::new(Op::Open) };
    let mut channel: Option<Channel> = None;
    let count = while_it_lasts(|| {
        if let Some(old) = channel.take_if(|it| it.is_closed()) {
            member.close(&old);
        }
        if channel.is_none() {
            let (answer, files) = member.ask(open).unwrap();
            channel = (answer.op == Op::Opened).then(|| Channel::map(answer, files));
        }
        let Some(channel) = &channel else { return };
        let mut bytes = [0; 64];
        bytes.chunks_exact_mut(4).for_each(|four| four.copy_from_slice(&chance.word().to_le_bytes()));
        bytes[28..32].fill(0);
        let head = channel.peer.load(side::RING_HEAD, Ordering::Acquire);
        let at = side::RING + (head % ipc::COPY_SPEC.entries) as usize * 64;
        channel.own.copy_in(at, &bytes).unwrap();
        channel.own.store(side::RING_TAIL, head.wrapping_add(1 + chance.below(2) as u32), Ordering::Release);
        channel.wake_peer();
    });
    format!("{count}")
}

fn replays(path: &Path, mut chance: Chance) -> String {
    let mut foothold = Foothold::new(path, None);
    let mut words: Vec<u32> = Vec::new();
    let count = while_it_lasts(|| {
        let channel = foothold.channel();
        let last = channel.own.load(side::MESSAGE_WORD, Ordering::Relaxed);
        let flags = [word::REQUEST, word::SEND, word::SEND | word::TIMED, word::REQUEST | word::TIMED];
        let next = match chance.below(4) {
            // One that was used, one that is far ahead, or a reply that nobody awaits.
            0 if !words.is_empty() => words[chance.below(words.len() as u64) as usize],
            1 => word::next(chance.word(), word::REPLY),
            _ => word::next(last, flags[chance.below(4) as usize]),
        };
        if words.len() < 64 {
            words.push(next);
        }
        if next & word::TIMED != 0 {
            let offered = next >> word::FLAG_BITS << word::FLAG_BITS | state::OFFERED;
            channel.shared.store(shared::STATE_FROM_LEFT, offered, Ordering::Release);
            channel.shared.store(shared::REPLY_TO_LEFT, offered, Ordering::Release);
        }
        channel.own.store(side::AWAITS, next, Ordering::Release);
        channel.own.store(side::MESSAGE_KIND, FORGED as u32, Ordering::Relaxed);
        channel.own.store(side::MESSAGE_WORD, next, Ordering::Release);
        channel.wake_peer();
        if next & word::TIMED != 0 {
            // Taken back and offered again while it is being taken.
            for _ in 0..chance.below(50) {
                let wanted = [state::WITHDRAWN, state::OFFERED, state::TAKEN][chance.below(3) as usize];
                let value = next >> word::FLAG_BITS << word::FLAG_BITS | wanted;
                channel.shared.store(shared::STATE_FROM_LEFT, value, Ordering::Release);
            }
        }
    });
    format!("{count}")
}

fn forges(path: &Path, mut chance: Chance) -> String {
    let mut allowed = Vec::new();
    // To the broker: the number of a server, a bound one, one of another node.
    for number in [SERVER.number(), 256, 8000, Endpoint::DS.number()] {
        let socket = sys::seqpacket::connect(path).unwrap();
        let bind = Packet { own: Endpoint::new(number), request: 1, ..Packet::new(Op::Bind) };
        match ask(&socket, bind) {
            // Somebody has to have 8000: it is nobody's.
            Some((answer, _)) if answer.op == Op::Bound && number != 8000 => allowed.push(format!("bind {number}")),
            _ => {}
        }
    }
    let mut member = Member::join(path);
    let channel = member.open(SERVER, None).unwrap().unwrap();
    let ours = channel.packet.channel.0;
    // Channels of others, made shortly before ours.
    for id in ours.saturating_sub(64)..ours {
        say(&member.socket, &Packet { channel: ChannelId(id), value: 5, own: Some(SERVER), ..Packet::new(Op::Close) });
    }
    let (answer, _) = member.ask(Packet { peer: Some(SERVER), ..Packet::new(Op::WakeUp) }).unwrap();
    if answer.op != Op::Failed {
        allowed.push("wake-up".into());
    }
    // A proxy's words, and the broker's own.
    for op in [Op::OpenIn, Op::RemoteGone, Op::Link, Op::Bound, Op::Accepted, Op::Ended, Op::Resumed, Op::Restarted] {
        let mut other = Member::join(path);
        let forged = Packet { own: Some(SERVER), peer: Some(SERVER), node: NodeId(1), value: 1, ..Packet::new(op) };
        if let Some((answer, _)) = other.ask(forged)
            && answer.op != Op::Failed
        {
            allowed.push(format!("{op:?}"));
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

/// Everything by which a descriptor becomes more than it was.
fn reopens(path: &Path) -> String {
    use rustix::fs::{FallocateFlags, OFlags, SealFlags};
    let mut member = Member::join(path);
    let channel = member.open(SERVER, Some(SPEC)).unwrap().unwrap();
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

fn request(channel: &Channel) {
    let next = word::next(channel.own.load(side::MESSAGE_WORD, Ordering::Relaxed), word::REQUEST);
    channel.own.store(side::AWAITS, next, Ordering::Release);
    channel.own.store(side::MESSAGE_WORD, next, Ordering::Release);
    channel.own.fetch_add(side::EVENT, 1, Ordering::Release);
}

fn blocks_bells(path: &Path) -> String {
    let mut foothold = Foothold::new(path, None);
    request(foothold.channel());
    foothold.channel().wake_peer();
    std::thread::sleep(Duration::from_millis(20));
    let channel = foothold.channel();
    block(channel);
    // The server rings for its answer whoever says that it sleeps in epoll.
    channel.own.store(side::PARKED, parked::EVENTFD, Ordering::SeqCst);
    let count = while_it_lasts(|| {
        request(channel);
        block(channel);
        std::thread::sleep(Duration::from_millis(1));
    });
    format!("{count}")
}

fn blocks_the_broker(path: &Path) -> String {
    let mut member = Member::join(path);
    let channel = member.open(Endpoint::DS, None).unwrap().unwrap();
    request(&channel);
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

fn sends_descriptors(path: &Path) -> String {
    let mut taken = 0;
    let mut send = |socket: &OwnedFd, bytes: &[u8]| {
        let stream = lingering();
        match sys::seqpacket::send(socket, bytes, &[&stream]) {
            // The broker has the last one.
            Ok(()) => taken += 1,
            Err(_) => std::mem::forget(stream),
        }
    };
    for op in [Op::GetEndpoint, Op::Close] {
        send(&Member::join(path).socket, &Packet::new(op).to_bytes());
        send(&Member::join(path).socket, &[1; 3]);
        // Before it was accepted.
        send(&sys::seqpacket::connect(path).unwrap(), &Packet::new(op).to_bytes());
    }
    format!("{taken} taken")
}

/// Moves whoever sleeps on a page that it may only read to a word of its own.
fn moves_sleepers(path: &Path) -> String {
    let mut member = Member::join(path);
    let channel = member.open(Endpoint::DS, None).unwrap().unwrap();
    request(&channel);
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

fn never_reads(path: &Path) -> String {
    let mut hung_up = 0;
    let mut sent = 0u32;
    let mut member = Member::join(path);
    while_it_lasts(|| {
        let asked = Packet { request: 10 + sent, value: 1, ..Packet::new(Op::GetEndpoint) };
        sent += 1;
        match sys::seqpacket::send(&member.socket, &asked.to_bytes(), &[] as &[OwnedFd]) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => {
                hung_up += 1;
                member = Member::join(path);
            }
        }
    });
    assert!(hung_up > 0, "the broker keeps answers for ever");
    format!("{sent}, dropped {hung_up} times")
}

fn floods_channels(path: &Path) -> String {
    let mut member = Member::join(path);
    let mut kept = Vec::new();
    let (mut opened, mut refused) = (0, 0);
    while_it_lasts(|| match member.open(SERVER, Some(RingSpec { entries: 1024, arena_bytes: 256 << 20 })) {
        Some(Ok(channel)) => {
            opened += 1;
            kept.push(channel);
        }
        Some(Err(_)) => {
            refused += 1;
            kept.drain(..).for_each(|channel| member.close(&channel));
        }
        None => {
            kept.clear();
            member = Member::join(path);
        }
    });
    assert!(refused > 0, "channels without end");
    format!("{opened}, refused {refused}")
}

fn floods_connections(path: &Path) -> String {
    let mut members = Vec::new();
    let mut sockets = Vec::new();
    let (mut bound, mut refused) = (0, 0);
    while_it_lasts(|| {
        if members.len() + sockets.len() >= 300 {
            members.clear();
            sockets.clear();
        }
        match Member::try_join(path) {
            Some(member) => {
                bound += 1;
                members.push(member);
            }
            None => refused += 1,
        }
        sockets.extend(sys::seqpacket::connect(path));
    });
    format!("{bound}, refused {refused}")
}

fn floods_requests(path: &Path, mut chance: Chance) -> String {
    let mut member = Member::join(path);
    let ops =
        [Op::AwaitBound, Op::AwaitUnbound, Op::Open, Op::Cancel, Op::GetEndpoint, Op::Close, Op::Bind, Op::WakeUp];
    let mut request = 10;
    let count = while_it_lasts(|| {
        request += 1;
        let packet = Packet {
            request,
            own: Endpoint::new(chance.word() % 8192),
            peer: Endpoint::new(if chance.below(2) == 0 { SERVER.number() } else { chance.word() % 8192 }),
            value: chance.word() % 100,
            channel: ChannelId(chance.next()),
            size: ipc_shm::Size { entries: chance.word() % 16, arena_bytes: chance.word() },
            lane: Lane(chance.word() as u16 % 20),
            patience: ipc::protocol::Patience::UntilBound,
            ..Packet::new(ops[chance.below(8) as usize])
        };
        if !say(&member.socket, &packet) {
            // Full, or hung up: read everything.
            let mut buffer = [0; 65];
            loop {
                match sys::seqpacket::receive(&member.socket, &mut buffer) {
                    Ok(received) if received.bytes > 0 => {}
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                    _ => break member = Member::join(path),
                }
            }
        }
    });
    format!("{count}")
}

fn floods_notifications(path: &Path) -> String {
    let mut port = Port::connect(path, None).unwrap();
    let mut mask = 1u64;
    let count = while_it_lasts(|| {
        mask = mask.rotate_left(1);
        port.notify(SERVER, mask).unwrap();
    });
    let member = std::mem::ManuallyDrop::new(port);
    let _ = member.endpoint();
    format!("{count}")
}

/// The child keeps everything that the parent had and writes, whatever becomes of the parent.
fn forks(path: &Path) -> String {
    let mut member = Member::join(path);
    let channel = member.open(SERVER, None).unwrap().unwrap();
    tell(&format!("endpoint {}", member.endpoint));
    // SAFETY: the child makes plain system calls and touches memory it has; it never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for round in 0..2000u32 {
            request(&channel);
            channel.wake_peer();
            say(&member.socket, &Packet { request: 100 + round, peer: Some(SERVER), ..Packet::new(Op::Open) });
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    std::mem::forget((member, channel));
    "fork".into()
}

/// Another program, which inherits the socket and the memory's descriptors, and then another user.
fn executes(path: &Path) -> String {
    let mut member = Member::join(path);
    let channel = member.open(SERVER, None).unwrap().unwrap();
    rustix::io::fcntl_setfd(&member.socket, rustix::io::FdFlags::empty()).unwrap();
    // What a child that executes something says over the socket it inherited counts for nothing.
    let number = member.socket.as_raw_fd();
    let script = format!("printf '%064d' 0 >&{number}; exec sleep 0");
    let _ = std::process::Command::new("/bin/sh").args(["-c", &script]).status();
    // SAFETY: numbers only.
    let changed = unsafe { libc::setuid(libc::getuid()) };
    request(&channel);
    channel.wake_peer();
    // SAFETY: the descriptor is the member's own and stays open.
    let copy = unsafe { OwnedFd::from_raw_fd(libc::dup(number)) };
    say(&copy, &Packet { request: 50, peer: Some(Endpoint::DS), ..Packet::new(Op::AwaitBound) });
    std::mem::forget((member, channel));
    format!("execute, user {changed}")
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
