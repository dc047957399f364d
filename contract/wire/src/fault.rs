//! Numbers of [`IpcError`] on the wire: 16 bits of the variant, 32 bits of Linux's errno.

use abi::IpcError;

const CODES: [(u16, IpcError); 24] = [
    (1, IpcError::NotBound),
    (2, IpcError::BadEndpoint),
    (3, IpcError::NoSuchEndpoint),
    (4, IpcError::EndpointInUse),
    (5, IpcError::TableFull),
    (6, IpcError::DestinationDied),
    (7, IpcError::SourceDied),
    (8, IpcError::TimedOut),
    (9, IpcError::WokenUp),
    (10, IpcError::NotWaiting),
    (11, IpcError::Deadlock),
    (12, IpcError::Denied),
    (13, IpcError::OutOfGrant),
    (14, IpcError::BadArgument),
    (15, IpcError::NoLink),
    (16, IpcError::Fenced),
    (17, IpcError::Corrupt),
    (18, IpcError::NoBroker),
    (19, IpcError::DcNotRunning),
    (20, IpcError::UnknownGrant),
    (21, IpcError::Revoked),
    (22, IpcError::WrongDirection),
    (23, IpcError::Busy),
    (24, IpcError::Moved),
];
const OS: u16 = 100;

pub fn to_code(error: IpcError) -> (u16, i32) {
    match error {
        IpcError::Os(errno) => (OS, errno),
        other => (CODES.iter().find(|(_, known)| *known == other).map_or(OS, |(code, _)| *code), 0),
    }
}

/// `None` for a number nobody defined.
pub fn from_code(code: u16, errno: i32) -> Option<IpcError> {
    match code {
        OS => Some(IpcError::Os(errno)),
        code if errno == 0 => CODES.iter().find(|(known, _)| *known == code).map(|(_, error)| *error),
        _ => None,
    }
}
