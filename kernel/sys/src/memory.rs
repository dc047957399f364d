//! Memory of another process (`process_vm_readv(2)`, `process_vm_writev(2)`).

use std::io;

/// Reads all of `into`, from an address of the process of a thread.
///
/// # Errors
/// `ESRCH`: there is none. `EPERM`: it may not be traced. `EFAULT`: something of it is not there.
pub fn read_of(thread: i32, address: u64, into: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: (1) the kernel writes at most `iov_len` bytes to `into`, which is borrowed for so long; (2) the other
    // address is looked at by the kernel alone, in the other process; (3) one vector each.
    let read = unsafe { libc::process_vm_readv(thread, &local, 1, &remote, 1, 0) };
    all_of(read, into.len())
}

/// Writes all of `from` to an address of the process of a thread.
///
/// # Errors
/// As of [`read_of`]; a part may have been written.
pub fn write_of(thread: i32, address: u64, from: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: from.len() };
    // SAFETY: (1) the kernel reads `iov_len` bytes of `from`, which is borrowed for so long, and writes none of it; (2)
    // the other address is looked at by the kernel alone, in the other process; (3) one vector each.
    let written = unsafe { libc::process_vm_writev(thread, &local, 1, &remote, 1, 0) };
    all_of(written, from.len())
}

fn all_of(done: isize, bytes: usize) -> io::Result<()> {
    match usize::try_from(done) {
        Ok(done) if done == bytes => Ok(()),
        // Up to what is not there.
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_read_and_what_is_not_is_an_error() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let (from, mut into) = ([1_u8, 2, 3, 4], [0; 4]);
        read_of(own, from.as_ptr() as u64, &mut into).unwrap();
        assert_eq!(into, from);
        for address in [0, 8, u64::MAX - 2] {
            assert_eq!(read_of(own, address, &mut into).unwrap_err().raw_os_error(), Some(libc::EFAULT), "{address}");
        }
        assert_eq!(read_of(i32::MAX, 0, &mut into).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn what_may_be_written_is_and_what_may_not_is_an_error() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let mut into = [0_u8; 4];
        write_of(own, into.as_mut_ptr() as u64, &[1, 2, 3, 4]).unwrap();
        assert_eq!(std::hint::black_box(into), [1, 2, 3, 4]);
        static CONSTANT: [u8; 4] = [5; 4];
        for address in [0, 8, CONSTANT.as_ptr() as u64] {
            let said = write_of(own, address, &[1, 2, 3, 4]);
            assert_eq!(said.unwrap_err().raw_os_error(), Some(libc::EFAULT), "{address}");
        }
        assert_eq!(std::hint::black_box(CONSTANT), [5; 4]);
    }
}
