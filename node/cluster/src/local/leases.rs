//! Deadlines of leases: one file of 16 bytes each (deadline and ttl in nanoseconds, little-endian) in a directory in
//! memory.
//!
//! Renewing writes the file and needs no lock, so that neither a busy nor a stopped writer of the database costs
//! anybody a lease. Ending is decided by moving the file away, inside the database transaction that deletes the keys:
//!
//! ```text
//! renew: write deadline; look whether the file still has its name    -> renewed, or gone
//! end:   move the file away; look at the deadline                    -> overdue: ended; renewed: move it back
//! ```
//!
//! Either the renewer sees that the file was moved or the ender sees the new deadline. When both do, the lease lives
//! and its holder believes it lost: the safe side.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::file_error;
use crate::boot_clock;
use crate::engine::{EngineError, LeaseId};

const RECORD_BYTES: usize = 16;

pub struct LeaseFiles {
    dir: PathBuf,
}

struct Record {
    deadline: Duration,
    ttl: Duration,
}

impl LeaseFiles {
    pub fn open(volatile_dir: &Path) -> Result<LeaseFiles, EngineError> {
        let dir = volatile_dir.join("leases");
        fs::create_dir_all(&dir).map_err(|error| file_error("cannot make", &dir, error))?;
        Ok(LeaseFiles { dir })
    }

    pub fn create(&self, lease: LeaseId, ttl: Duration) -> Result<(), EngineError> {
        let path = self.path(lease);
        // A file of this name is left from a grant whose transaction failed.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| file_error("cannot make", &path, error))?;
        write_record(&file, ttl).map_err(|error| file_error("cannot write", &path, error))
    }

    pub fn renew(&self, lease: LeaseId) -> Result<(), EngineError> {
        let path = self.path(lease);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(EngineError::LeaseGone(lease)),
            opened => opened.map_err(|error| file_error("cannot open", &path, error))?,
        };
        let record = read_record(&file).ok_or(EngineError::LeaseGone(lease))?;
        // An overdue lease may be granted no second life: others act on its end although nobody has reaped it yet.
        if record.deadline <= boot_clock() {
            return Err(EngineError::LeaseGone(lease));
        }
        write_record(&file, record.ttl).map_err(|error| file_error("cannot write", &path, error))?;
        if self.is_same_file(&file, &path) { Ok(()) } else { Err(EngineError::LeaseGone(lease)) }
    }

    /// `None`: there is no such lease since the last boot.
    pub fn deadline(&self, lease: LeaseId) -> Result<Option<Duration>, EngineError> {
        let path = self.path(lease);
        match File::open(&path) {
            Ok(file) => Ok(read_record(&file).map(|record| record.deadline)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file_error("cannot open", &path, error)),
        }
    }

    pub fn is_running(&self, lease: LeaseId) -> Result<bool, EngineError> {
        Ok(self.deadline(lease)?.is_some_and(|deadline| deadline > boot_clock()))
    }

    /// Whether the lease is over now. The caller holds the database's lock.
    pub fn close_if_overdue(&self, lease: LeaseId) -> Result<bool, EngineError> {
        let (path, aside) = (self.path(lease), self.dir.join(format!("{lease}.ending")));
        match fs::rename(&path, &aside) {
            // A file set aside by somebody who died right then: decide again.
            Err(error) if error.kind() == ErrorKind::NotFound && !aside.exists() => return Ok(true),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(file_error("cannot move", &path, error)),
            _ => (),
        }
        let renewed = File::open(&aside)
            .ok()
            .and_then(|file| read_record(&file))
            .is_some_and(|record| record.deadline > boot_clock());
        let settled = if renewed { fs::rename(&aside, &path) } else { fs::remove_file(&aside) };
        settled.map_err(|error| file_error("cannot settle", &aside, error))?;
        Ok(!renewed)
    }

    /// Ends it whatever its deadline. The caller holds the database's lock.
    pub fn close(&self, lease: LeaseId) -> Result<bool, EngineError> {
        let path = self.path(lease);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(file_error("cannot remove", &path, error)),
            _ => Ok(true),
        }
    }

    fn path(&self, lease: LeaseId) -> PathBuf {
        self.dir.join(lease.to_string())
    }

    fn is_same_file(&self, file: &File, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        match (file.metadata(), fs::metadata(path)) {
            (Ok(ours), Ok(named)) => ours.ino() == named.ino() && ours.dev() == named.dev(),
            _ => false,
        }
    }
}

fn write_record(file: &File, ttl: Duration) -> std::io::Result<()> {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&nanos(boot_clock() + ttl).to_le_bytes());
    record[8..].copy_from_slice(&nanos(ttl).to_le_bytes());
    file.write_all_at(&record, 0)
}

fn read_record(file: &File) -> Option<Record> {
    let mut record = [0; RECORD_BYTES];
    file.read_exact_at(&mut record, 0).ok()?;
    let (deadline, ttl) = record.split_at(8);
    Some(Record {
        deadline: Duration::from_nanos(u64::from_le_bytes(deadline.try_into().ok()?)),
        ttl: Duration::from_nanos(u64::from_le_bytes(ttl.try_into().ok()?)),
    })
}

/// 584 years fit.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (tempfile::TempDir, LeaseFiles) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let files = LeaseFiles::open(dir.path()).unwrap();
        (dir, files)
    }

    #[test]
    fn lease_that_is_not_overdue_survives_an_attempt_to_end_it() {
        let (_dir, files) = files();
        files.create(LeaseId(1), Duration::from_secs(60)).unwrap();
        assert!(!files.close_if_overdue(LeaseId(1)).unwrap());
        files.renew(LeaseId(1)).unwrap();
    }

    #[test]
    fn lease_set_aside_by_a_reaper_that_died_is_decided_again() {
        let (dir, files) = files();
        files.create(LeaseId(1), Duration::from_secs(60)).unwrap();
        let leases = dir.path().join("leases");
        fs::rename(leases.join("1"), leases.join("1.ending")).unwrap();
        assert!(matches!(files.renew(LeaseId(1)), Err(EngineError::LeaseGone(_))));
        assert!(!files.close_if_overdue(LeaseId(1)).unwrap(), "it is not overdue");
        files.renew(LeaseId(1)).unwrap();
    }

    #[test]
    fn overdue_lease_cannot_be_renewed_although_nobody_reaped_it() {
        let (_dir, files) = files();
        files.create(LeaseId(1), Duration::ZERO).unwrap();
        assert!(matches!(files.renew(LeaseId(1)), Err(EngineError::LeaseGone(LeaseId(1)))));
        assert!(files.close_if_overdue(LeaseId(1)).unwrap());
        assert!(files.deadline(LeaseId(1)).unwrap().is_none());
    }
}
