//! System calls of others, trapped by their filter and answered here (`seccomp_unotify(2)`).
//!
//! What the kernel says of a call it writes into memory of the caller's choice at once, or not at all, whoever is
//! killed meanwhile: in memory that outlives the process a successor finds all of it
//! (`ipc_shm::Mapping::receive_call`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// `SECCOMP_FILTER_FLAG_NEW_LISTENER` and `_WAIT_KILLABLE_RECV` (Linux 5.19): once a call was received, its caller
/// waits for the answer whatever signals come, unless they kill it.
const FLAGS: libc::c_ulong = 1 << 3 | 1 << 5;
/// Of `struct seccomp_notif`. The command's number has the size, so a kernel with a longer one knows this one, too.
pub const NOTIFICATION_BYTES: usize = 80;

const RECEIVE: libc::c_ulong = command(3, 0, 80);
const SEND: libc::c_ulong = command(3, 1, 24);
const GIVE: libc::c_ulong = command(1, 3, 24);
const IS_VALID: libc::c_ulong = command(1, 2, 8);
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`
const CONTINUE: u32 = 1;

/// `_IOC(direction, '!', number, bytes)`
const fn command(direction: libc::c_ulong, number: libc::c_ulong, bytes: libc::c_ulong) -> libc::c_ulong {
    direction << 30 | bytes << 16 | (b'!' as libc::c_ulong) << 8 | number
}

/// What a caller is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotifyAnswer {
    Value(i64),
    Errno(i32),
    /// The kernel goes on with the call, and reads its arguments once more.
    Native,
}

#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// Installs a filter for this thread and everything it becomes or starts; gives the listener, which is closed on exec.
///
/// It forbids new privileges first, as filters of unprivileged processes want it.
///
/// # Errors
/// `EBUSY`: a filter above has a listener already. `EINVAL`: no filter, or a kernel before Linux 5.19.
pub fn install(program: &[seccompiler::sock_filter]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Program {
        length: u16,
        steps: *const seccompiler::sock_filter,
    }
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = Program { length, steps: program.as_ptr() };
    // SAFETY: (1) this option takes plain numbers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: (1) `program` and its steps live across the call, which copies them; (2) `sock_filter` has the kernel's
    // layout, and so has `Program`: a count and a pointer.
    let listener =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, FLAGS, &raw const program) };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: (1) the kernel just opened this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as libc::c_int) })
}

/// Receives a call into [`NOTIFICATION_BYTES`], all of which are 0. Blocks until there is one: poll the listener
/// before.
///
/// # Safety
/// The bytes may be written, and nobody holds a Rust reference into them.
///
/// # Errors
/// `ENOENT`: the call is over already, and nothing was written. `EINVAL`: the bytes are not 0.
pub unsafe fn receive(listener: impl AsFd, into: *mut u8) -> io::Result<()> {
    // SAFETY: (1) the descriptor is borrowed, hence open; (2) the command writes at most its 80 bytes, which the caller
    // vouches for.
    let result = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), RECEIVE as libc::Ioctl, into) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Answers a call.
///
/// # Errors
/// `ENOENT`: it was answered before, or its caller is gone.
pub fn answer(listener: impl AsFd, id: u64, told: NotifyAnswer) -> io::Result<()> {
    let response = match told {
        NotifyAnswer::Value(value) => Response { id, value, error: 0, flags: 0 },
        NotifyAnswer::Errno(errno) => Response { id, value: 0, error: -errno, flags: 0 },
        NotifyAnswer::Native => Response { id, value: 0, error: 0, flags: CONTINUE },
    };
    // SAFETY: (1) the descriptor is borrowed, hence open; (2) the command reads the 24 bytes of `response`.
    let result = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), SEND as libc::Ioctl, &raw const response) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives the caller a copy of a descriptor, closed on exec, and with it the answer: the number that it has there
/// (Linux 5.14).
///
/// # Errors
/// `ENOENT`: the call was answered before, or its caller is gone. `EMFILE`: it has as many as it may have.
pub fn answer_with(listener: impl AsFd, id: u64, given: impl AsFd) -> io::Result<()> {
    #[repr(C)]
    struct Given {
        id: u64,
        flags: u32,
        descriptor: u32,
        number: u32,
        its_flags: u32,
    }
    const _: () = assert!(size_of::<Given>() == 24);
    /// `SECCOMP_ADDFD_FLAG_SEND`
    const IS_THE_ANSWER: u32 = 2;
    let descriptor = given.as_fd().as_raw_fd() as u32;
    let given = Given { id, flags: IS_THE_ANSWER, descriptor, number: 0, its_flags: libc::O_CLOEXEC as u32 };
    // SAFETY: (1) both descriptors are borrowed, hence open; (2) the command reads the 24 bytes of `given`.
    let result = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), GIVE as libc::Ioctl, &raw const given) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a call still waits for its answer. What was seen of its caller before counts only if it does.
pub fn is_valid(listener: impl AsFd, id: u64) -> bool {
    // SAFETY: (1) the descriptor is borrowed, hence open; (2) the command reads the eight bytes of `id`.
    unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), IS_VALID as libc::Ioctl, &raw const id) == 0 }
}

const _: () = assert!(size_of::<Response>() == 24);
