//! Why an operation, or the opening of a volume, failed.

use thiserror::Error;
pub use vos_api::Errno;

use crate::device::DeviceError;

impl From<StoreError> for Errno {
    fn from(error: StoreError) -> Errno {
        tracing::error!("{error}");
        error.errno()
    }
}

impl From<DeviceError> for Errno {
    fn from(error: DeviceError) -> Errno {
        tracing::error!("{error}");
        match error.0 {
            116 => Errno::Stale,
            28 => Errno::NoSpace,
            _ => Errno::Io,
        }
    }
}

/// The metadata store failed. The volume accepts no change afterwards.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the metadata store failed")]
    Redb(#[source] Box<redb::Error>),
    #[error("the metadata store holds a {0} that makes no sense")]
    Damaged(&'static str),
}

impl StoreError {
    /// A host without room is no damage: who hears of it may make room.
    pub fn errno(&self) -> Errno {
        match self {
            StoreError::Redb(cause) => match &**cause {
                redb::Error::Io(cause) if cause.kind() == std::io::ErrorKind::StorageFull => Errno::NoSpace,
                _ => Errno::Io,
            },
            StoreError::Damaged(_) => Errno::Io,
        }
    }
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> StoreError {
        StoreError::Redb(Box::new(error.into()))
    }
}

/// Why a volume cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("the volume has {bytes} bytes, a file system needs at least {least}")]
    TooSmall { bytes: u64, least: u64 },
    #[error("the volume holds something that is not a DVS file system; it is left alone")]
    Unknown,
    #[error("both superblocks are damaged")]
    Superblocks,
    #[error("the file system has format version {found}, this program knows {known}")]
    Version { found: u32, known: u32 },
    #[error("the file system was made for {made} bytes, the volume has only {bytes}")]
    Shrunk { made: u64, bytes: u64 },
    #[error("the record of the metadata store's length is damaged")]
    Length,
    #[error("the metadata store cannot be opened: {0}")]
    Metadata(String),
    #[error("the metadata is damaged: {0}")]
    Damaged(&'static str),
    #[error("the tree has no snapshot '{0}' to go back to")]
    NoSnapshot(String),
    #[error("the tree cannot go back to snapshot '{name}'; it is as it was")]
    GoBack {
        name: String,
        #[source]
        cause: StoreError,
    },
    #[error("reading or writing the volume failed")]
    Device(#[from] DeviceError),
    #[error("the metadata store failed")]
    Store(#[from] StoreError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_on_a_full_host_says_enospc_and_any_other_failure_is_eio() {
        for (device, errno) in [(28, Errno::NoSpace), (5, Errno::Io)] {
            let failed = redb::Error::Io(DeviceError(device).into());
            assert_eq!(StoreError::from(failed).errno(), errno);
        }
    }
}
