//! What of the host's `/etc` a container may see: regular files, directories and links that everybody on the host may
//! read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Entries taken at most; a usual machine has two thousand.
const ENTRIES_MAX: usize = 20_000;
/// Bytes taken at most, well within the room of the container's root.
const BYTES_MAX: u64 = 64 << 20;
const DEPTH_MAX: usize = 16;
/// Our own configuration and keys.
const NEVER: [&str; 1] = ["dvs"];

#[derive(Debug)]
pub enum What {
    Dir(u32),
    Link(PathBuf),
    File(u32, Vec<u8>),
}

#[derive(Debug)]
pub struct Entry {
    /// Relative to `/etc`.
    pub path: PathBuf,
    pub what: What,
}

/// Parents come before what they hold.
#[derive(Debug, Default)]
pub struct Collected {
    pub entries: Vec<Entry>,
    bytes: u64,
}

/// Reads the tree; what cannot be read is left out, as is what would exceed the bounds.
pub fn collect(etc: &Path) -> Collected {
    let mut found = Collected::default();
    walk(etc, Path::new(""), 0, &mut found);
    found
}

fn walk(etc: &Path, below: &Path, depth: usize, found: &mut Collected) {
    let Ok(entries) = fs::read_dir(etc.join(below)) else { return };
    for entry in entries.flatten() {
        let path = below.join(entry.file_name());
        let Ok(kind) = entry.metadata() else { continue };
        let mode = kind.permissions().mode() & 0o7777;
        let excluded = depth == 0 && NEVER.iter().any(|never| path == Path::new(never));
        if found.entries.len() >= ENTRIES_MAX || excluded {
            continue;
        }
        if kind.is_symlink() {
            if let Ok(target) = fs::read_link(entry.path()) {
                found.entries.push(Entry { path, what: What::Link(target) });
            }
        } else if kind.is_dir() && mode & 0o005 == 0o005 && depth < DEPTH_MAX {
            found.entries.push(Entry { path: path.clone(), what: What::Dir(mode) });
            walk(etc, &path, depth + 1, found);
        } else if kind.is_file()
            && mode & 0o004 != 0
            && found.bytes + kind.len() <= BYTES_MAX
            && let Ok(content) = fs::read(entry.path())
        {
            found.bytes += content.len() as u64;
            found.entries.push(Entry { path, what: What::File(mode & 0o777, content) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_root_may_read_is_left_out() {
        let dir = tempfile::tempdir().expect("directory");
        for (name, mode) in [("passwd", 0o644), ("shadow", 0o640), ("key", 0o600)] {
            fs::write(dir.path().join(name), name).expect("write");
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).expect("mode");
        }
        fs::create_dir(dir.path().join("private")).expect("directory");
        fs::write(dir.path().join("private/open"), "x").expect("write");
        fs::set_permissions(dir.path().join("private"), fs::Permissions::from_mode(0o700)).expect("mode");
        fs::create_dir(dir.path().join("dvs")).expect("directory");
        let names: Vec<PathBuf> = collect(dir.path()).entries.into_iter().map(|entry| entry.path).collect();
        assert_eq!(names, [PathBuf::from("passwd")]);
    }
}
