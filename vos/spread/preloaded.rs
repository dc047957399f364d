//! What programs of `dvs run --spread` are started with (`LD_PRELOAD`): puts `on --spread` in the place of a program
//! that is about to be executed, if its name is one of those in `DVS_SPREAD`. Whether and where it then runs elsewhere
//! is `on`'s decision.
//!
//! It is called in children of `vfork`, whose memory is their parent's, and behind signal handlers: so nothing here
//! allocates, locks or writes what is not on its own stack. Nothing that is of the C library is needed but `dlsym`.
//!
//! `execl` and its sisters, whose arguments are counted by nobody, call the kernel by themselves; so do static
//! programs.

#![no_std]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null;

/// Arguments of a program that is put elsewhere; who has more runs here.
const ARGUMENTS_MAX: usize = 8192;
const ON: &CStr = c"/run/dvs/bin/on";
const RULES: &[u8] = b"DVS_SPREAD=";
/// glibc's and musl's: the next one of that name behind this library.
const RTLD_NEXT: *mut c_void = -1_isize as *mut c_void;

type Strings = *const *const c_char;
type Exec = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
type ExecHere = unsafe extern "C" fn(*const c_char, Strings) -> c_int;
type Spawn = unsafe extern "C" fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    static environ: Strings;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Nothing here panics; if it did, the program would see a crash.
    loop {
        core::hint::spin_loop();
    }
}

/// The arguments of `on`, on the caller's stack.
struct Instead([*const c_char; ARGUMENTS_MAX + 4]);

impl Instead {
    /// `None`: the program is not one of those.
    ///
    /// # Safety
    /// As of `execve`: strings end, lists of them do.
    unsafe fn of(program: *const c_char, arguments: Strings, environment: Strings) -> Option<Instead> {
        if program.is_null() || arguments.is_null() {
            return None;
        }
        // SAFETY: (1) the caller says that they end.
        let (rules, name) = unsafe { (rules(environment)?, CStr::from_ptr(program).to_bytes()) };
        let base = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
        let patterns = rules.split(|byte| *byte == b';').next().unwrap_or(rules);
        if !patterns.split(|byte| *byte == b',').any(|pattern| matches(pattern, base)) {
            return None;
        }
        let mut instead = Instead([null(); ARGUMENTS_MAX + 4]);
        instead.0[0] = c"on".as_ptr();
        instead.0[1] = c"--spread".as_ptr();
        instead.0[2] = c"--".as_ptr();
        instead.0[3] = program;
        let mut at = 1;
        loop {
            // SAFETY: (1) the list ends with a null pointer, behind which nobody reads: also an empty one has it.
            let argument = unsafe { *arguments.add(at - 1) };
            if argument.is_null() {
                return Some(instead);
            }
            // The first is the program's name of itself.
            if at > 1 {
                *instead.0.get_mut(at + 2).filter(|_| at + 3 < ARGUMENTS_MAX + 4)? = argument;
            }
            at += 1;
        }
    }
}

/// What `DVS_SPREAD` says there.
unsafe fn rules<'a>(environment: Strings) -> Option<&'a [u8]> {
    if environment.is_null() {
        return None;
    }
    let mut at = 0;
    loop {
        // SAFETY: (1) as of `execve`: a list of strings that ends with a null pointer.
        let variable = unsafe { *environment.add(at) };
        if variable.is_null() {
            return None;
        }
        // SAFETY: (1) likewise.
        if let Some(rules) = unsafe { CStr::from_ptr(variable) }.to_bytes().strip_prefix(RULES) {
            return Some(rules);
        }
        at += 1;
    }
}

/// `*` is anything, `?` any one byte. As `spread::matches`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of, mut star) = (0, 0, None);
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(byte) if *byte == b'?' || name.get(of) == Some(byte) => {
                at += 1;
                of += 1;
            }
            _ => match star {
                Some((place, taken)) => {
                    star = Some((place, taken + 1));
                    at = place + 1;
                    of = taken + 1;
                }
                None => return false,
            },
        }
    }
    !pattern.is_empty() && pattern.get(at..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

/// The C library's.
unsafe fn next<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: (1) the name ends; (2) `F` is the type that the C library documents for it.
    unsafe {
        let found = dlsym(RTLD_NEXT, name.as_ptr());
        (!found.is_null()).then(|| core::mem::transmute_copy(&found))
    }
}

/// # Safety
/// As of `execve(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(program: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: (1) what the caller promises is handed on.
    unsafe {
        let Some(real) = next::<Exec>(c"execve") else { return -1 };
        match Instead::of(program, arguments, environment) {
            Some(instead) => real(ON.as_ptr(), instead.0.as_ptr(), environment),
            None => real(program, arguments, environment),
        }
    }
}

/// # Safety
/// As of `execv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(program: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: (1) as above; (2) `environ` is the C library's.
    unsafe { execve(program, arguments, environ) }
}

/// # Safety
/// As of `execvpe(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(program: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: (1) what the caller promises is handed on.
    unsafe {
        match Instead::of(program, arguments, environment) {
            Some(instead) => match next::<Exec>(c"execve") {
                Some(real) => real(ON.as_ptr(), instead.0.as_ptr(), environment),
                None => -1,
            },
            None => match next::<Exec>(c"execvpe") {
                Some(real) => real(program, arguments, environment),
                None => -1,
            },
        }
    }
}

/// # Safety
/// As of `execvp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(program: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: (1) as above.
    unsafe {
        match Instead::of(program, arguments, environ) {
            Some(instead) => match next::<Exec>(c"execve") {
                Some(real) => real(ON.as_ptr(), instead.0.as_ptr(), environ),
                None => -1,
            },
            None => match next::<ExecHere>(c"execvp") {
                Some(real) => real(program, arguments),
                None => -1,
            },
        }
    }
}

/// # Safety
/// As of `posix_spawn(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut c_int,
    program: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: (1) what the caller promises is handed on.
    unsafe { spawn(c"posix_spawn", pid, program, actions, attributes, arguments, environment) }
}

/// # Safety
/// As of `posix_spawnp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut c_int,
    program: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: (1) what the caller promises is handed on.
    unsafe { spawn(c"posix_spawnp", pid, program, actions, attributes, arguments, environment) }
}

unsafe fn spawn(
    name: &CStr,
    pid: *mut c_int,
    program: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    const ENOSYS: c_int = 38;
    // SAFETY: (1) what the caller promises is handed on.
    unsafe {
        let Some(real) = next::<Spawn>(name) else { return ENOSYS };
        match Instead::of(program, arguments, environment) {
            Some(instead) => real(pid, ON.as_ptr(), actions, attributes, instead.0.as_ptr(), environment),
            None => real(pid, program, actions, attributes, arguments, environment),
        }
    }
}
