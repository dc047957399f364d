//! Numbers of [`IpcError`] on the wire: 16 bits of the variant, 32 bits of Linux's errno.

use abi::IpcError;

const OS: u16 = 100;

pub fn to_code(error: IpcError) -> (u16, i32) {
    match error {
        IpcError::Os(errno) => (OS, errno),
        other => (other.code() as u16, 0),
    }
}

/// `None` for a number nobody defined.
pub fn from_code(code: u16, errno: i32) -> Option<IpcError> {
    match code {
        OS => Some(IpcError::Os(errno)),
        code if errno == 0 => IpcError::known(code.into()),
        _ => None,
    }
}
