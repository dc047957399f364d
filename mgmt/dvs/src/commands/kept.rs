//! Files that are kept: whole under their name, or not there.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::errors::Failure;
use crate::installed::not_written;

/// Written beside its place, durable, and then put there. What fails leaves nothing. Only its owner may read it.
pub fn whole<T>(
    path: &Path,
    may_replace: bool,
    write: impl FnOnce(&mut File) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if path.exists() && !may_replace {
        return Err(Failure::new(format!("{} is there already", path.display())).hint("another name, or --force"));
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let cannot = |error| not_written(path, &error);
    let _ = fs::remove_file(&fresh);
    let made = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).map_err(cannot)?;
        let done = write(&mut file)?;
        file.sync_all().map_err(cannot)?;
        fs::rename(&fresh, path).map_err(cannot)?;
        Ok(done)
    };
    let done = made();
    if done.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    done
}
