//! Unix sockets that keep message boundaries and carry descriptors and the kernel's word on who sent a message.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::without::{Feature, without};

/// Descriptors that one message may carry here; the kernel allows 253.
pub const DESCRIPTORS_MAX: usize = 16;

/// Who sent a message, as the kernel says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sender {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

/// One message as it arrived.
#[derive(Debug, Default)]
pub struct Received {
    /// 0 with no error: the other end is closed.
    pub bytes: usize,
    pub descriptors: Vec<OwnedFd>,
    /// Only on sockets with [`ask_for_sender`].
    pub sender: Option<Sender>,
    /// Only on sockets with [`ask_for_sender`], since Linux 6.5.
    pub sender_pidfd: Option<OwnedFd>,
}

/// Two connected ends, both non-blocking.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A listening socket at `path`, non-blocking. A socket file that is there already is replaced.
pub fn listen(path: &std::path::Path, backlog: i32) -> io::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = unix_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// The next connection, non-blocking.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

/// Connects to a listening socket; the socket is non-blocking afterwards.
pub fn connect(path: &std::path::Path) -> io::Result<OwnedFd> {
    let socket = unix_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Connects as [`connect`], and waits for room among those who wait to be accepted; `WouldBlock` when there is none in
/// time.
pub fn connect_within(path: &std::path::Path, limit: Duration) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, Some(left))?;
        match rustix::net::connect(&socket, &address) {
            Err(rustix::io::Errno::INTR) => {}
            done => break done?,
        }
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Who connected, or made the pair.
pub fn peer(socket: impl AsFd) -> io::Result<Sender> {
    let peer = rustix::net::sockopt::socket_peercred(socket)?;
    Ok(Sender { pid: peer.pid.as_raw_nonzero().get(), uid: peer.uid.as_raw(), gid: peer.gid.as_raw() })
}

/// From now on the kernel adds to every message who sent it, and a descriptor of that process where it can.
pub fn ask_for_sender(socket: impl AsFd) -> io::Result<()> {
    set_option(&socket, libc::SO_PASSCRED, 1)?;
    const SO_PASSPIDFD: i32 = 76;
    if without(Feature::PassPidfd) {
        return Ok(());
    }
    where_known(set_option(&socket, SO_PASSPIDFD, 1))
}

/// From now on nobody can send descriptors to this socket. Whoever receives one has to close it, and closing can block
/// for hours: a stream with a long linger and a peer that does not read, a file of a server that is stopped. Kernels
/// before Linux 6.16 cannot.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    if without(Feature::PassRights) {
        return Ok(());
    }
    where_known(set_option(&socket, SO_PASSRIGHTS, 0))
}

const SO_PASSRIGHTS: i32 = 83;

/// Whether [`refuse_descriptors`] does anything here; found out once.
pub fn can_refuse_descriptors() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    let try_it = || unix_socket().is_ok_and(|socket| set_option(&socket, SO_PASSRIGHTS, 0).is_ok());
    !without(Feature::PassRights) && *CAN.get_or_init(try_it)
}

/// Sends one message; never blocks, never raises SIGPIPE. `WouldBlock` when the other end does not read.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[impl AsFd]) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() };
    let mut control = ControlBuffer::new();
    let mut numbers = [0i32; DESCRIPTORS_MAX];
    for (number, descriptor) in numbers.iter_mut().zip(descriptors) {
        *number = descriptor.as_fd().as_raw_fd();
    }
    // SAFETY: a zeroed msghdr is an empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    if !descriptors.is_empty() {
        let data_bytes = (descriptors.len() * size_of::<i32>()) as u32;
        message.msg_control = control.as_mut_ptr();
        // SAFETY: arithmetic only.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(data_bytes) } as usize;
        // SAFETY: 1. The control buffer is aligned for cmsghdr and longer than CMSG_SPACE of DESCRIPTORS_MAX numbers.
        // 2. So the first header exists and its data takes `data_bytes`.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(data_bytes) as usize;
            std::ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), data_bytes as usize);
        }
    }
    retry_interrupted(|| {
        // SAFETY: everything `message` points to lives on this stack frame or in the arguments.
        unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) }
    })
    .map(drop)
}

/// Receives one message into `buffer`; never blocks. A message or control data that did not fit is an error
/// (`InvalidData`), its descriptors are closed: so is one with descriptors for which this process has no room.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    match receive_whatever(socket, buffer)? {
        (received, Whole::All) => Ok(received),
        (_, Whole::Message | Whole::Nothing) => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

/// `receive` for whom a message matters that comes without its descriptors, because this process has no room for them:
/// it has none of them then.
pub fn receive_even_without_descriptors(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    match receive_whatever(socket, buffer)? {
        (received, Whole::All) => Ok(received),
        (received, Whole::Message) => Ok(Received { descriptors: Vec::new(), ..received }),
        (_, Whole::Nothing) => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

/// What came of a message as it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whole {
    All,
    /// Its bytes; some of its descriptors did not.
    Message,
    /// It is longer than the buffer.
    Nothing,
}

/// `receive` for whom it matters who closes the descriptors that came: the caller has them, however little else came.
pub fn receive_whatever(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(Received, Whole)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = ControlBuffer::new();
    // SAFETY: a zeroed msghdr is an empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr();
    message.msg_controllen = size_of::<ControlBuffer>();
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    let bytes = retry_interrupted(|| {
        // SAFETY: everything `message` points to lives on this stack frame or in the arguments, with its true length.
        unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &mut message, flags) }
    })?;
    let mut received = Received { bytes, ..Received::default() };
    // SAFETY: the kernel filled `message` and its control buffer just now; see `take_control`.
    unsafe { take_control(&message, &mut received) };
    let is_cut = |flag| message.msg_flags & flag != 0;
    let whole = match (is_cut(libc::MSG_TRUNC), is_cut(libc::MSG_CTRUNC)) {
        (true, _) => Whole::Nothing,
        (false, true) => Whole::Message,
        (false, false) => Whole::All,
    };
    Ok((received, whole))
}

/// Takes ownership of what the control data holds.
///
/// # Safety
/// `message` must be as recvmsg left it, and this must be called once only for it: descriptors are owned afterwards.
unsafe fn take_control(message: &libc::msghdr, received: &mut Received) {
    const SCM_PIDFD: i32 = 4;
    // SAFETY: 1. The kernel wrote well-formed headers within msg_controllen. 2. Data is read unaligned. 3. Each
    // descriptor number is new in this process and is taken once.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let data_bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..data_bytes / size_of::<i32>() {
                        let number = data.cast::<i32>().add(index).read_unaligned();
                        received.descriptors.push(OwnedFd::from_raw_fd(number));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if data_bytes >= size_of::<libc::ucred>() => {
                    let ucred = data.cast::<libc::ucred>().read_unaligned();
                    received.sender = Some(Sender { pid: ucred.pid, uid: ucred.uid, gid: ucred.gid });
                }
                (libc::SOL_SOCKET, SCM_PIDFD) if data_bytes >= size_of::<i32>() => {
                    let number = data.cast::<i32>().read_unaligned();
                    if number >= 0 {
                        received.sender_pidfd = Some(OwnedFd::from_raw_fd(number));
                    }
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Room for the descriptors, the credentials and the pidfd of one message: for as many descriptors as the kernel lets
/// anybody send, because those without room it closes itself, on our thread.
#[repr(C, align(16))]
struct ControlBuffer([MaybeUninit<u8>; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 1152;
const SENT_MAX: usize = 253;

impl ControlBuffer {
    fn new() -> ControlBuffer {
        ControlBuffer([MaybeUninit::zeroed(); CONTROL_BYTES])
    }

    fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }
}

const _: () = assert!(DESCRIPTORS_MAX <= SENT_MAX && SENT_MAX * 4 + 16 + 32 + 32 < CONTROL_BYTES);

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// An option that an older kernel does not have stays as it is.
fn where_known(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => Err(error),
        _ => Ok(()),
    }
}

fn set_option(socket: &impl AsFd, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the option's value is an int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn retry_interrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let result = call();
        if result >= 0 {
            return Ok(result as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_arrives_with_its_descriptors_and_its_sender() {
        let (left, right) = pair().unwrap();
        ask_for_sender(&right).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        send(&left, b"hello", &[&writer, &writer]).unwrap();
        let mut buffer = [0; 16];
        let received = receive(&right, &mut buffer).unwrap();
        assert_eq!(&buffer[..received.bytes], b"hello");
        assert_eq!(received.sender.unwrap().pid, std::process::id() as i32);
        rustix::io::write(&received.descriptors[1], b"x").unwrap();
        assert_eq!(rustix::io::read(&reader, &mut buffer).unwrap(), 1);
    }

    #[test]
    fn who_finds_no_room_waits_until_somebody_is_accepted() {
        let path = std::env::temp_dir().join(format!("dvs-room-{}", std::process::id()));
        let listener = listen(&path, 0).unwrap();
        let _first = connect(&path).unwrap();
        let full = connect_within(&path, Duration::from_millis(20)).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let there = path.clone();
        let waiter = std::thread::spawn(move || connect_within(&there, Duration::from_secs(60)));
        accept(&listener).unwrap();
        waiter.join().unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn message_longer_than_the_buffer_is_an_error() {
        let (left, right) = pair().unwrap();
        send(&left, &[1; 32], &[] as &[OwnedFd]).unwrap();
        let error = receive(&right, &mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn closed_end_reads_as_nothing() {
        let (left, right) = pair().unwrap();
        drop(left);
        assert_eq!(receive(&right, &mut [0; 16]).unwrap().bytes, 0);
    }
}
