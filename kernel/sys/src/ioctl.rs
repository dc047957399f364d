//! Commands to a file that only take bytes from their caller.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The length has 14 bits in a command's number.
pub const BYTES_MAX: usize = (1 << 14) - 1;

/// Gives the command `_IOW(group, number, data.len())` with `data`.
///
/// # Errors
/// `ENOTTY`: the file knows no such command. `InvalidInput`: more than [`BYTES_MAX`] bytes.
pub fn give(file: impl AsFd, group: u8, number: u8, data: &[u8]) -> io::Result<libc::c_int> {
    if data.len() > BYTES_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let command = 1 << 30 | data.len() << 16 | usize::from(group) << 8 | usize::from(number);
    // SAFETY: (1) the descriptor is borrowed, hence open; (2) a command of this form reads at most the `data.len()`
    // bytes its number says, which are readable, and writes none.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), command as libc::Ioctl, data.as_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_knows_no_commands_says_so_and_too_much_is_refused() {
        let file = crate::memfd::create_sealed("file", 4096).unwrap();
        assert_eq!(give(&file, 0xd5, 1, b"x").unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert_eq!(give(&file, 0xd5, 1, &[0; BYTES_MAX + 1]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
