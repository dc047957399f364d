//! Programs on other nodes of the container: jobs (`docs/design/jobs.md`).

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use abi::IpcError;

use crate::failure::{DONE, Failure, entry};
use crate::pointer;

/// In every container over several nodes. The process that it becomes stands here for the program there.
const ON: &CStr = c"/run/dvs/bin/on";
const NAME: &CStr = c"on";
/// What follows is the program.
const END_OF_OPTIONS: &CStr = c"--";
/// As many as the kernel takes of the shortest.
const ARGUMENTS_MAX: usize = 1 << 20;

unsafe extern "C" {
    static environ: *const *const c_char;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_job_start(
    place: *const c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    argv: *const *const c_char,
    envp: *const *const c_char,
    pid: *mut libc::pid_t,
) -> c_int {
    entry(|| {
        let bad = Failure::Ipc(IpcError::BadArgument);
        pointer::check(pid)?;
        pointer::check(argv)?;
        // SAFETY: the header demands text that ends with a zero byte.
        let name = unsafe { pointer::text(place)? };
        // It would be an option.
        if name.is_empty() || name.starts_with('-') {
            return Err(bad);
        }
        let mut all = vec![NAME.as_ptr(), place, END_OF_OPTIONS.as_ptr()];
        // SAFETY: the header demands pointers, the last of which is null; none behind that one is read.
        all.extend((0..ARGUMENTS_MAX).map(|at| unsafe { *argv.add(at) }).take_while(|word| !word.is_null()));
        if all.len() == 3 || all.len() == 3 + ARGUMENTS_MAX {
            return Err(bad);
        }
        all.push(ptr::null());
        // SAFETY: it is the C library's, and whoever changes it while others read it breaks more than this.
        let envp = if envp.is_null() { unsafe { environ } } else { envp };
        // SAFETY: (1) path and words end with zero bytes, and both lists with null; (2) actions are null or the
        // caller's own; (3) a process number goes to `pid`, which was found not to be null; (4) the functions called
        // write to neither list, whatever their types allow.
        let error =
            unsafe { libc::posix_spawn(pid, ON.as_ptr(), actions, ptr::null(), all.as_ptr().cast(), envp.cast()) };
        if error == 0 { DONE } else { Err(Failure::Ipc(IpcError::Os(error))) }
    })
}
