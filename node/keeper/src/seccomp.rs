//! The system calls no program of a container gets.
//!
//! Everything is allowed but a short list: what would escape interception (`io_uring` executes calls that no filter
//! sees), what is global to the host, and the kernel's least guarded doors. Calls of a foreign architecture (32-bit, x32) answer
//! "no such call": the numbers would mean others.

use seccompiler::{BpfProgram, sock_filter};

const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_NOT_LESS: u16 = 0x35;
const RETURN: u16 = 0x06;
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
/// x32 calls have this bit; no native number is near it.
const FIRST_FOREIGN_NUMBER: u32 = 0x4000_0000;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// As if the kernel did not know them: programs fall back.
const UNKNOWN: [libc::c_long; 3] = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
/// The host's alone.
const REFUSED: [libc::c_long; 21] = [
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
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_syslog,
];

/// The filter, to be made before a fork and applied after it.
pub fn program() -> BpfProgram {
    let mut steps = vec![
        step(LOAD_WORD, 0, 0, OFFSET_ARCHITECTURE),
        step(JUMP_EQUAL, 1, 0, ARCHITECTURE),
        step(RETURN, 0, 0, ERRNO | libc::ENOSYS as u32),
        step(LOAD_WORD, 0, 0, OFFSET_NUMBER),
        step(JUMP_NOT_LESS, 0, 1, FIRST_FOREIGN_NUMBER),
        step(RETURN, 0, 0, ERRNO | libc::ENOSYS as u32),
    ];
    let unknown = UNKNOWN.iter().map(|call| (*call, libc::ENOSYS));
    for (call, errno) in unknown.chain(REFUSED.iter().map(|call| (*call, libc::EPERM))) {
        steps.push(step(JUMP_EQUAL, 0, 1, call as u32));
        steps.push(step(RETURN, 0, 0, ERRNO | errno as u32));
    }
    steps.push(step(RETURN, 0, 0, ALLOW));
    steps
}

fn step(code: u16, if_true: u8, if_false: u8, operand: u32) -> sock_filter {
    sock_filter { code, jt: if_true, jf: if_false, k: operand }
}
