//! Network namespaces: made and kept alive by a file (a bind mount), entered by a thread of its own.
//!
//! A namespace lives as long as a process is in it, a descriptor refers to it, or its file is mounted. Working inside
//! one from a daemon with many threads happens on a short-lived thread ([`within`]); sockets made there stay there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, mount_bind, unmount};

#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    #[error("the name '{0}' is empty, too long or has a character other than a-z, 0-9, '-'")]
    BadName(String),
    #[error("there is no network namespace at {0}")]
    Missing(PathBuf),
    #[error("there is a network namespace at {0} already")]
    Exists(PathBuf),
    #[error("could not {what} {path}")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("could not make a network namespace")]
    Unshare(#[source] io::Error),
    #[error("could not enter the network namespace")]
    Enter(#[source] io::Error),
    #[error("the thread that worked in the network namespace panicked")]
    Panicked,
}

/// A fresh namespace that nothing but the descriptor keeps alive. Its loopback interface is down.
pub fn create_anonymous() -> Result<OwnedFd, NetnsError> {
    on_a_thread(|| {
        sys::ns::unshare(sys::ns::Kinds::NET).map_err(NetnsError::Unshare)?;
        own()
    })?
}

/// The calling thread's namespace.
pub fn own() -> Result<OwnedFd, NetnsError> {
    let path = Path::new("/proc/thread-self/ns/net");
    File::open(path).map(OwnedFd::from).map_err(|cause| file_error("open", path, cause))
}

/// A fresh namespace kept by the file `dir/name`, until [`remove`].
pub fn create(dir: &Path, name: &str) -> Result<OwnedFd, NetnsError> {
    let path = checked(dir, name)?;
    std::fs::create_dir_all(dir).map_err(|cause| file_error("make the directory", dir, cause))?;
    if let Err(cause) = OpenOptions::new().write(true).create_new(true).open(&path) {
        // A file without a mount is what a crash between the two steps left: take it over.
        if cause.kind() != io::ErrorKind::AlreadyExists {
            return Err(file_error("make", &path, cause));
        }
        if is_namespace(&path) {
            return Err(NetnsError::Exists(path));
        }
    }
    let target = path.clone();
    let made = on_a_thread(move || {
        sys::ns::unshare(sys::ns::Kinds::NET).map_err(NetnsError::Unshare)?;
        mount_bind("/proc/thread-self/ns/net", &target).map_err(|cause| file_error("mount", &target, cause.into()))?;
        own()
    });
    made.and_then(|made| made).inspect_err(|_| {
        let _ = std::fs::remove_file(&path);
    })
}

/// The namespace kept by `dir/name`.
pub fn open(dir: &Path, name: &str) -> Result<OwnedFd, NetnsError> {
    let path = checked(dir, name)?;
    if !is_namespace(&path) {
        return Err(NetnsError::Missing(path));
    }
    File::open(&path).map(OwnedFd::from).map_err(|cause| file_error("open", &path, cause))
}

/// [`open`], or [`create`] when it is not there.
pub fn ensure(dir: &Path, name: &str) -> Result<OwnedFd, NetnsError> {
    match open(dir, name) {
        Err(NetnsError::Missing(_)) => create(dir, name),
        other => other,
    }
}

/// Names of the namespaces kept in `dir`; none when the directory is missing.
pub fn list(dir: &Path) -> Result<Vec<String>, NetnsError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(file_error("list", dir, cause)),
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_namespace(&dir.join(name)))
        .collect();
    names.sort();
    Ok(names)
}

/// Gives up the file; the namespace goes when its last process does. Nothing there is no error.
pub fn remove(dir: &Path, name: &str) -> Result<(), NetnsError> {
    let path = checked(dir, name)?;
    match unmount(&path, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => (),
        Err(cause) => return Err(file_error("unmount", &path, cause.into())),
    }
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(file_error("remove", &path, cause)),
    }
}

/// Runs `work` on a thread of its own inside `namespace`.
pub fn within<T: Send>(namespace: impl AsFd, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    let namespace: BorrowedFd<'_> = namespace.as_fd();
    on_a_thread(move || {
        sys::ns::join(namespace, sys::ns::Kinds::NET).map_err(NetnsError::Enter)?;
        Ok(work())
    })?
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    std::thread::scope(|scope| scope.spawn(work).join()).map_err(|_| NetnsError::Panicked)
}

/// `nsfs` mounts answer with the file system's own magic number.
fn is_namespace(path: &Path) -> bool {
    const NSFS_MAGIC: i64 = 0x6e73_6673;
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == NSFS_MAGIC)
}

fn checked(dir: &Path, name: &str) -> Result<PathBuf, NetnsError> {
    let fine = (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if fine { Ok(dir.join(name)) } else { Err(NetnsError::BadName(name.to_owned())) }
}

fn file_error(what: &'static str, path: &Path, cause: io::Error) -> NetnsError {
    NetnsError::File { what, path: path.to_owned(), cause }
}
