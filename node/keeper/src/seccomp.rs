//! The system calls no program of a container gets.
//!
//! Everything is allowed but a list: what would escape interception (`io_uring` executes calls that no filter sees),
//! what is global to the host, and what one tenant could use against others. Some calls are refused for some arguments
//! only. Calls of a foreign architecture (32-bit, x32) answer "no such call": the numbers would mean others, and what
//! is refused here would be open there.
//!
//! `seccompiler` applies the filter and has its types, but does not compile it: its compiler gives one errno for all
//! rules of a filter, lets calls of x32 through, and kills a program that makes a call of another architecture.
//!
//! | refused | because |
//! |---|---|
//! | leases, delegations and directory notes (`fcntl`) | whoever opens a leased file waits up to 45 s, on the node too |
//! | address families but Unix, IPv4, IPv6, netlink, packet | `AF_VSOCK` reaches the node's hypervisor, `AF_ALG` and dozens of others are kernel code that no container needs; neither has a namespace |
//! | netlink but routes, socket lists and device news | the other families configure what is the node's, or are large and seldom used parts of the kernel |
//! | rings of packet sockets, forced buffer sizes | memory that the kernel charges to nobody |
//! | new file systems | each is kernel code that reads what its user wrote, and a new devpts would have terminals beyond the limit |
//! | new namespaces | each doubles what the kernel lets an unprivileged user reach, and their number has no limit per container |
//! | keyrings, BPF, performance counters, modules, clocks, … | one for the whole machine |

use proc_core::filter;
use proc_core::range::Seat;
use seccompiler::{BpfProgram, sock_filter};

const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_NOT_LESS: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
/// x32 calls have this bit; no native number is near it.
const FIRST_FOREIGN_NUMBER: u32 = 0x4000_0000;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// As if the kernel did not know them: programs fall back, the C library from `clone3`, whose flags lie in memory that
/// no filter sees, to `clone`.
const UNKNOWN: [libc::c_long; 4] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_clone3];
/// The host's alone.
const REFUSED: [libc::c_long; 25] = [
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
    libc::SYS_setns,
    libc::SYS_fsopen,
];

const F_SETLEASE: u32 = 1024;
const F_NOTIFY: u32 = 1026;
/// Linux 6.19: leases of directories.
const F_SETDELEG: u32 = 1040;

const FAMILIES: [u32; 5] = [
    libc::AF_UNIX as u32,
    libc::AF_INET as u32,
    libc::AF_INET6 as u32,
    libc::AF_NETLINK as u32,
    libc::AF_PACKET as u32,
];
const NETLINK: [u32; 3] =
    [libc::NETLINK_ROUTE as u32, libc::NETLINK_SOCK_DIAG as u32, libc::NETLINK_KOBJECT_UEVENT as u32];
const PACKET_RINGS: [u32; 2] = [libc::PACKET_RX_RING as u32, libc::PACKET_TX_RING as u32];
const FORCED_BUFFERS: [u32; 2] = [libc::SO_SNDBUFFORCE as u32, libc::SO_RCVBUFFORCE as u32];

/// A mount call with none of these makes a new file system.
const OF_A_MOUNT: u32 = (libc::MS_REMOUNT
    | libc::MS_BIND
    | libc::MS_MOVE
    | libc::MS_SHARED
    | libc::MS_PRIVATE
    | libc::MS_SLAVE
    | libc::MS_UNBINDABLE) as u32;
/// The magic number that very old programs put into the flags; the kernel takes it out, after this filter saw bits of
/// it.
const OLD_MAGIC: u32 = 0xc0ed_0000;
const OLD_MAGIC_MASK: u32 = 0xffff_0000;

/// `CLONE_NEWTIME` is for unshare alone: in the flags of clone it is part of the signal's number.
const NEW_NAMESPACE: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
const NEW_TIME_NAMESPACE: u32 = 0x80;

/// What an argument must be for a call to be refused. The kernel too looks only at the lower half of these arguments.
#[derive(Clone, Copy)]
enum If {
    OneOf(u32, &'static [u32]),
    NoneOf(u32, &'static [u32]),
    AnyBit(u32, u32),
    NoBit(u32, u32),
    Masked { argument: u32, mask: u32, value: u32 },
}

/// Refused when all conditions hold.
struct Rule {
    call: libc::c_long,
    conditions: &'static [If],
    errno: i32,
}

const RULES: [Rule; 10] = [
    // What a file system without leases says.
    Rule {
        call: libc::SYS_fcntl,
        conditions: &[If::OneOf(1, &[F_SETLEASE, F_NOTIFY, F_SETDELEG])],
        errno: libc::EINVAL,
    },
    // What a kernel without the family says.
    Rule { call: libc::SYS_socket, conditions: &[If::NoneOf(0, &FAMILIES)], errno: libc::EAFNOSUPPORT },
    Rule { call: libc::SYS_socketpair, conditions: &[If::NoneOf(0, &FAMILIES)], errno: libc::EAFNOSUPPORT },
    Rule {
        call: libc::SYS_socket,
        conditions: &[If::OneOf(0, &[libc::AF_NETLINK as u32]), If::NoneOf(2, &NETLINK)],
        errno: libc::EPROTONOSUPPORT,
    },
    Rule {
        call: libc::SYS_setsockopt,
        conditions: &[If::OneOf(1, &[libc::SOL_PACKET as u32]), If::OneOf(2, &PACKET_RINGS)],
        errno: libc::EPERM,
    },
    Rule {
        call: libc::SYS_setsockopt,
        conditions: &[If::OneOf(1, &[libc::SOL_SOCKET as u32]), If::OneOf(2, &FORCED_BUFFERS)],
        errno: libc::EPERM,
    },
    Rule {
        call: libc::SYS_mount,
        conditions: &[If::Masked { argument: 3, mask: OLD_MAGIC_MASK, value: OLD_MAGIC }],
        errno: libc::EPERM,
    },
    Rule { call: libc::SYS_mount, conditions: &[If::NoBit(3, OF_A_MOUNT)], errno: libc::EPERM },
    Rule { call: libc::SYS_clone, conditions: &[If::AnyBit(0, NEW_NAMESPACE)], errno: libc::EPERM },
    Rule {
        call: libc::SYS_unshare,
        conditions: &[If::AnyBit(0, NEW_NAMESPACE | NEW_TIME_NAMESPACE)],
        errno: libc::EPERM,
    },
];

/// The filter, to be made before a fork and applied after it. `own`: with the calls that are answered by the call gate
/// of this node; they come first, and none of them is refused.
pub fn program(own: Option<Seat>) -> BpfProgram {
    let mut steps = vec![
        step(LOAD_WORD, 0, 0, OFFSET_ARCHITECTURE),
        step(JUMP_EQUAL, 1, 0, ARCHITECTURE),
        refuse(libc::ENOSYS),
        step(LOAD_WORD, 0, 0, OFFSET_NUMBER),
        step(JUMP_NOT_LESS, 0, 1, FIRST_FOREIGN_NUMBER),
        refuse(libc::ENOSYS),
    ];
    let trapped = own.into_iter().flat_map(|own| filter::steps(own, filter::served()));
    steps.extend(trapped.map(|one| step(one.code, one.if_true, one.if_false, one.operand)));
    let unknown = UNKNOWN.iter().map(|call| (*call, libc::ENOSYS));
    for (call, errno) in unknown.chain(REFUSED.iter().map(|call| (*call, libc::EPERM))) {
        steps.push(step(JUMP_EQUAL, 0, 1, call as u32));
        steps.push(refuse(errno));
    }
    RULES.iter().for_each(|rule| steps.extend(rule.steps()));
    steps.push(step(RETURN, 0, 0, ALLOW));
    steps
}

impl Rule {
    /// Made from the end: what a condition skips when it does not hold is then known. The call's number is loaded
    /// before and after.
    fn steps(&self) -> Vec<sock_filter> {
        let mut steps = vec![refuse(self.errno)];
        for condition in self.conditions.iter().rev() {
            let skip = steps.len() as u8;
            steps.splice(0..0, condition.steps(skip));
        }
        steps.push(step(LOAD_WORD, 0, 0, OFFSET_NUMBER));
        steps.insert(0, step(JUMP_EQUAL, 0, steps.len() as u8, self.call as u32));
        steps
    }
}

impl If {
    /// Goes on after its last step when it holds, `skip` steps further when not.
    fn steps(self, skip: u8) -> Vec<sock_filter> {
        let load = |argument: u32| step(LOAD_WORD, 0, 0, OFFSET_ARGUMENTS + 8 * argument);
        match self {
            If::OneOf(argument, values) => {
                let last = values.len() - 1;
                let compare = |(at, value): (usize, &u32)| {
                    step(JUMP_EQUAL, (last - at) as u8, if at == last { skip } else { 0 }, *value)
                };
                std::iter::once(load(argument)).chain(values.iter().enumerate().map(compare)).collect()
            }
            If::NoneOf(argument, values) => {
                let last = values.len() - 1;
                let compare = |(at, value): (usize, &u32)| step(JUMP_EQUAL, (last - at) as u8 + skip, 0, *value);
                std::iter::once(load(argument)).chain(values.iter().enumerate().map(compare)).collect()
            }
            If::AnyBit(argument, bits) => vec![load(argument), step(JUMP_ANY_BIT, 0, skip, bits)],
            If::NoBit(argument, bits) => vec![load(argument), step(JUMP_ANY_BIT, skip, 0, bits)],
            If::Masked { argument, mask, value } => {
                vec![load(argument), step(AND, 0, 0, mask), step(JUMP_EQUAL, 0, skip, value)]
            }
        }
    }
}

fn refuse(errno: i32) -> sock_filter {
    step(RETURN, 0, 0, ERRNO | errno as u32)
}

fn step(code: u16, if_true: u8, if_false: u8, operand: u32) -> sock_filter {
    sock_filter { code, jt: if_true, jf: if_false, k: operand }
}

#[cfg(test)]
mod cost;

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter says to a call: 0 is allowed.
    fn answer(call: libc::c_long, arguments: &[u64]) -> i32 {
        answer_on(ARCHITECTURE, call as u32, arguments)
    }

    fn answer_on(architecture: u32, number: u32, arguments: &[u64]) -> i32 {
        let program = program(None);
        let field = |offset: u32| match offset {
            OFFSET_NUMBER => number,
            OFFSET_ARCHITECTURE => architecture,
            offset => arguments.get(((offset - OFFSET_ARGUMENTS) / 8) as usize).copied().unwrap_or(0) as u32,
        };
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            let holds = match step.code {
                LOAD_WORD => {
                    loaded = field(step.k);
                    continue;
                }
                AND => {
                    loaded &= step.k;
                    continue;
                }
                RETURN if step.k == ALLOW => return 0,
                RETURN => return (step.k & !ERRNO) as i32,
                JUMP_EQUAL => loaded == step.k,
                JUMP_NOT_LESS => loaded >= step.k,
                JUMP_ANY_BIT => loaded & step.k != 0,
                other => panic!("{other:#x}"),
            };
            at += usize::from(if holds { step.jt } else { step.jf });
        }
    }

    #[test]
    fn leases_and_notes_are_refused_and_other_commands_are_not() {
        for (command, expected) in [
            (libc::F_SETLEASE, libc::EINVAL),
            (libc::F_NOTIFY, libc::EINVAL),
            (F_SETDELEG as i32, libc::EINVAL),
            (libc::F_GETLEASE, 0),
            (libc::F_DUPFD_CLOEXEC, 0),
            (libc::F_SETLK, 0),
            (libc::F_OFD_SETLK, 0),
            (libc::F_ADD_SEALS, 0),
        ] {
            assert_eq!(answer(libc::SYS_fcntl, &[3, command as u64, 0]), expected, "{command}");
        }
        // The kernel does not look at the upper half; neither must the filter be deceived by it.
        assert_eq!(answer(libc::SYS_fcntl, &[3, 1 << 32 | u64::from(F_SETLEASE), 0]), libc::EINVAL);
    }

    #[test]
    fn of_all_address_families_containers_have_five() {
        for family in 0..64 {
            let expected = if FAMILIES.contains(&family) { 0 } else { libc::EAFNOSUPPORT };
            for call in [libc::SYS_socket, libc::SYS_socketpair] {
                assert_eq!(answer(call, &[u64::from(family), 1, 0]), expected, "{family}");
            }
        }
        let netlink: Vec<u64> = (0..32)
            .filter(|protocol| answer(libc::SYS_socket, &[libc::AF_NETLINK as u64, 3, *protocol]) == 0)
            .collect();
        assert_eq!(netlink, [0, 4, 15]);
        // The number of a netlink protocol means something else in other families.
        assert_eq!(answer(libc::SYS_socket, &[libc::AF_INET as u64, 1, 6]), 0);
    }

    #[test]
    fn mounts_may_be_moved_bound_and_changed_but_not_made() {
        let mount = |flags: u64| answer(libc::SYS_mount, &[0, 0, 0, flags, 0]);
        for flags in [libc::MS_BIND, libc::MS_BIND | libc::MS_REC, libc::MS_REMOUNT | libc::MS_RDONLY, libc::MS_PRIVATE]
        {
            assert_eq!(mount(flags), 0, "{flags:#x}");
        }
        for flags in [0, libc::MS_NOSUID | libc::MS_NODEV, libc::MS_REC] {
            assert_eq!(mount(flags), libc::EPERM, "{flags:#x}");
            assert_eq!(mount(u64::from(OLD_MAGIC) | flags), libc::EPERM, "with the old magic number: {flags:#x}");
        }
        assert_eq!(answer(libc::SYS_fsopen, &[]), libc::EPERM);
    }

    #[test]
    fn processes_and_threads_are_made_and_namespaces_are_not() {
        let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
        for flags in [libc::SIGCHLD, thread, libc::CLONE_VFORK | libc::CLONE_VM | libc::SIGCHLD, libc::CLONE_PIDFD] {
            assert_eq!(answer(libc::SYS_clone, &[flags as u64]), 0, "{flags:#x}");
        }
        assert_eq!(answer(libc::SYS_unshare, &[libc::CLONE_FILES as u64]), 0);
        assert_eq!(answer(libc::SYS_unshare, &[u64::from(NEW_TIME_NAMESPACE)]), libc::EPERM);
        for bit in (0..32).map(|bit| 1_u32 << bit).filter(|bit| NEW_NAMESPACE & bit != 0) {
            for call in [libc::SYS_clone, libc::SYS_unshare] {
                assert_eq!(answer(call, &[u64::from(bit)]), libc::EPERM, "{bit:#x}");
            }
        }
        assert_eq!((answer(libc::SYS_clone3, &[]), answer(libc::SYS_setns, &[])), (libc::ENOSYS, libc::EPERM));
    }

    #[test]
    fn memory_that_is_charged_to_nobody_is_refused() {
        let set = |level: i32, option: i32| answer(libc::SYS_setsockopt, &[3, level as u64, option as u64]);
        assert_eq!(set(libc::SOL_PACKET, libc::PACKET_RX_RING), libc::EPERM);
        assert_eq!(set(libc::SOL_PACKET, libc::PACKET_TX_RING), libc::EPERM);
        assert_eq!(set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE), libc::EPERM);
        assert_eq!(set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE), libc::EPERM);
        assert_eq!(set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP), 0);
        assert_eq!(set(libc::SOL_SOCKET, libc::SO_RCVBUF), 0);
        assert_eq!(set(libc::SOL_TCP, libc::PACKET_RX_RING), 0, "the number means something else at another level");
    }

    #[test]
    fn no_call_is_both_answered_and_refused() {
        let refused = UNKNOWN.iter().chain(&REFUSED).copied().chain(RULES.iter().map(|rule| rule.call));
        for call in refused {
            assert!(proc_core::calls::ROWS.iter().all(|row| row.number != call), "{call}");
        }
    }

    #[test]
    fn other_architectures_get_no_call_at_all() {
        const I386: u32 = 0x4000_0003;
        assert_eq!(answer_on(I386, 55, &[3, 1024, 0]), libc::ENOSYS);
        assert_eq!(answer_on(ARCHITECTURE, FIRST_FOREIGN_NUMBER + 72, &[3, 1024, 0]), libc::ENOSYS);
        for call in REFUSED {
            assert_eq!(answer(call, &[]), libc::EPERM, "{call}");
        }
        assert_eq!(answer(libc::SYS_read, &[0, 0, 0]), 0);
    }
}
