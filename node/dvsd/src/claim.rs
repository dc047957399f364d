//! One daemon works on a node at a time.
//!
//! Two would fight over what runs there, and over the member of the engine first of all, which the later one would end
//! as not its own. So a daemon takes its directories before it looks at anything in them: a lock of the kernel on the
//! directory itself, which needs no file and ends with the process, however that ends. What a daemon starts has a copy
//! of the descriptor for a moment, until it becomes its program; so a successor waits a little.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// For a predecessor that is just ending, and what it was about to start.
const WAIT_MAX: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("another daemon works on this node: it has taken {}", .0.display())]
    Taken(PathBuf),
    #[error("cannot take {}", path.display())]
    Failed {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
}

/// Directories of this daemon alone, until it is dropped.
#[derive(Debug)]
pub struct Claim {
    _taken: Vec<File>,
}

impl Claim {
    pub fn take(directories: &[&Path]) -> Result<Claim, ClaimError> {
        Claim::take_within(directories, WAIT_MAX)
    }

    fn take_within(directories: &[&Path], wait: Duration) -> Result<Claim, ClaimError> {
        let begin = Instant::now();
        let mut taken = Vec::new();
        let mut paths: Vec<&Path> = directories.to_vec();
        // One that is named twice is taken once, and all take them in the same order.
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            let failed = |cause| ClaimError::Failed { path: path.to_owned(), cause };
            let directory = File::open(path).map_err(failed)?;
            loop {
                match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => break,
                    Err(Errno::WOULDBLOCK) if begin.elapsed() < wait => std::thread::sleep(PAUSE),
                    Err(Errno::WOULDBLOCK) => return Err(ClaimError::Taken(path.to_owned())),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(failed(errno.into())),
                }
            }
            taken.push(directory);
        }
        Ok(Claim { _taken: taken })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_daemon_is_refused_whichever_directory_it_shares_and_its_successor_is_not() {
        let [state, run, other] = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
        let first = Claim::take(&[state.path(), run.path()]).expect("nobody is there");
        for shared in [&state, &run] {
            let second = Claim::take_within(&[shared.path(), other.path()], Duration::from_millis(50));
            let said = second.expect_err("the first one is there").to_string();
            assert!(said.contains("another daemon works on this node"), "{said}");
        }
        drop(first);
        Claim::take_within(&[state.path(), run.path(), other.path()], Duration::ZERO).expect("it ended");
        Claim::take_within(&[state.path(), state.path()], Duration::ZERO).expect("a directory may be named twice");
    }

    #[test]
    fn predecessor_that_is_just_ending_is_waited_for() {
        let place = tempfile::tempdir().expect("a directory");
        let first = Claim::take(&[place.path()]).expect("nobody is there");
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(first);
        });
        Claim::take(&[place.path()]).expect("it ended");
        ending.join().expect("it ends");
    }
}
