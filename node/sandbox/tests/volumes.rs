//! A directory of the node is found where it is, and not where somebody makes it lead to meanwhile.

use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, RenameFlags, StatxFlags, renameat_with, statx};
use sandbox::volumes::{VolumeError, VolumeMount};

const TRIES: u32 = 5_000;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: this test needs root");
    }
    root
}

fn volume(allowed: &Path, below: &str) -> VolumeMount {
    let place = PathBuf::from("/data");
    VolumeMount { allowed: allowed.to_owned(), below: below.into(), place, read_only: true, owners: None }
}

/// Inode of the directory that was taken.
fn taken(volume: &VolumeMount) -> Result<u64, VolumeError> {
    let tree = volume.take(None)?;
    let stat = statx(tree.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::INO).expect("a directory");
    Ok(stat.stx_ino)
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it is there").ino()
}

#[test]
fn directory_that_is_swapped_for_a_link_is_found_as_itself_or_not_at_all() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let path = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(path("allowed/way/inner")).expect("directory");
    std::fs::create_dir_all(path("outside/inner")).expect("directory");
    symlink(path("outside"), path("allowed/link")).expect("link");
    let allowed = path("allowed");
    let right = inode(&path("allowed/way/inner"));
    let (done, mut found) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let (one, other) = (allowed.join("way"), allowed.join("link"));
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).expect("swap");
            }
        });
        for _ in 0..TRIES {
            match taken(&volume(&allowed, "way/inner")) {
                Ok(inode) if inode == right => found += 1,
                Ok(other) => {
                    done.store(true, Ordering::Relaxed);
                    panic!("inode {other} is not the directory");
                }
                Err(VolumeError::NoDirectory { .. }) => (),
                Err(error) => {
                    done.store(true, Ordering::Relaxed);
                    panic!("{error}");
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(found > 0, "it was never there");
}

#[test]
fn directory_that_is_moved_out_meanwhile_is_not_followed_above() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let path = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(path("allowed/a/b")).expect("directory");
    std::fs::create_dir(path("outside")).expect("directory");
    for below in ["..", "a/../..", "a/../../outside", "/etc", "a/b/../../../outside"] {
        assert!(taken(&volume(&path("allowed"), below)).is_err(), "{below}");
    }
    assert_eq!(taken(&volume(&path("allowed"), "")).expect("itself"), inode(&path("allowed")));
    assert_eq!(taken(&volume(&path("allowed"), "a/b")).expect("below"), inode(&path("allowed/a/b")));
}
