//! Memory of another process (`process_vm_readv(2)`).

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
    match usize::try_from(read) {
        Ok(read) if read == into.len() => Ok(()),
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
}
