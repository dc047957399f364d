//! Where something is mounted on this machine, and the signals that end it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use sandbox::fusehere::FuseHere;

use crate::commands::say;
use crate::errors::Failure;

/// Before there are threads, which inherit what is blocked.
pub fn stop_signals(signals: &[i32]) -> Result<OwnedFd, Failure> {
    sys::signals::open(signals).map_err(|error| Failure::new("signals cannot be waited for").because(&error))
}

pub fn demand_mountpoint(mountpoint: &Path) -> Result<(), Failure> {
    let place = mountpoint.display();
    let what = || Failure::new(format!("nothing can be mounted at '{place}'"));
    match std::fs::metadata(mountpoint) {
        Ok(about) if about.is_dir() => Ok(()),
        Ok(_) => Err(what().hint("a directory")),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            let hint = format!("umount -l {place}; or fusermount3 -u {place}");
            Err(what().because_text("a mount is there whose server has ended").hint(hint))
        }
        Err(error) => Err(what().because(&error).hint(format!("mkdir -p {place}"))),
    }
}

pub fn mount(here: &FuseHere) -> Result<OwnedFd, Failure> {
    here.mount().map_err(|error| {
        let hint = "as root; or with fusermount3 (Debian: fuse3), and a directory of your own";
        Failure::new(format!("nothing is mounted at '{}'", here.place.display())).because(&error).hint(hint)
    })
}

/// Somebody uses it.
pub fn say_that_it_stays(here: &FuseHere, error: &io::Error) {
    let place = here.place.display();
    say(&format!(
        "'{place}' stays mounted: {error}; again takes it away from there all the same (fuser -m {place} says who)"
    ));
}
