//! The record of a cluster on disk, and the lock of those who change it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use client::places::RECORD;
use client::{DevCluster, Places};
use rustix::fs::{FlockOperation, flock};

/// One command at a time changes a cluster. The file goes with the cluster, see [`Lock::discard`].
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// None: somebody else has it.
    pub fn take(places: &Places, cluster: &str) -> io::Result<Option<Lock>> {
        let directory = places.run.join("dev");
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&directory)?;
        let path = directory.join(format!(".{cluster}.lock"));
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(cause) => return Err(cause.into()),
            }
            // Whoever had it before us may have removed the file: then it is no lock any more.
            let ours = file.metadata()?;
            match fs::metadata(&path) {
                Ok(current) if current.ino() == ours.ino() => return Ok(Some(Lock { file, path })),
                _ => {}
            }
        }
    }

    /// Gives the lock up together with its file: nothing is left to lock.
    pub fn discard(self) -> io::Result<()> {
        fs::remove_file(&self.path)?;
        drop(self.file);
        Ok(())
    }
}

/// Writes the record so that a reader sees the old one or the new one.
pub fn save(places: &Places, cluster: &DevCluster) -> io::Result<()> {
    let directory = places.dev_run(&cluster.name);
    let draft = directory.join(".cluster.json.new");
    let written = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&draft)?;
        serde_json::to_writer_pretty(&mut file, cluster)?;
        file.write_all(b"\n")?;
        drop(file);
        fs::rename(&draft, directory.join(RECORD))
    };
    written().inspect_err(|_| drop(fs::remove_file(&draft)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_command_on_a_cluster_finds_it_busy() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::under(directory.path());
        let lock = Lock::take(&places, "dev").unwrap().unwrap();
        assert!(Lock::take(&places, "dev").unwrap().is_none());
        assert!(Lock::take(&places, "other").unwrap().is_some());
        lock.discard().unwrap();
        assert!(Lock::take(&places, "dev").unwrap().is_some());
    }
}
