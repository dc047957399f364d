//! A program's output on disk: two files that take turns, so that at most [`BYTES_MAX`] are kept and the newest half
//! always is. All logs of a keeper together have a budget ([`LOGS_BYTES_MAX`]); who keeps to it is `kept`.
//!
//! A log outlives its program and the keeper. What of it is gone is counted, and said where the log is read from its
//! beginning.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Bytes kept of one program.
pub const BYTES_MAX: u64 = 4 << 20;
const TURN_BYTES: u64 = BYTES_MAX / 2;
/// Bytes kept of all programs of a container on a node.
pub const LOGS_BYTES_MAX: u64 = 64 << 20;
const _: () = assert!(LOGS_BYTES_MAX >= 2 * BYTES_MAX, "one program must not push out all others");

/// Bytes of all logs there are.
pub type Total = Rc<Cell<u64>>;

#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    /// `None` when it was read from what an earlier keeper left, and is written no more.
    file: Option<File>,
    bytes: u64,
    older_bytes: u64,
    gone: u64,
    broken: bool,
    total: Total,
}

impl Log {
    pub fn create(dir: &Path, pid: u32, total: &Total) -> io::Result<Log> {
        let path = path_of(dir, pid);
        let _ = std::fs::remove_file(older(&path));
        let file = Some(create(&path)?);
        Ok(Log { path, file, bytes: 0, older_bytes: 0, gone: 0, broken: false, total: Rc::clone(total) })
    }

    /// What an earlier keeper left of a program.
    pub fn left(dir: &Path, pid: u32, gone: u64, total: &Total) -> Log {
        let path = path_of(dir, pid);
        let bytes_of = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        let (bytes, older_bytes) = (bytes_of(&path), bytes_of(&older(&path)));
        total.set(total.get() + bytes + older_bytes);
        Log { path, file: None, bytes, older_bytes, gone, broken: false, total: Rc::clone(total) }
    }

    /// A full disk must not stop the program; what cannot be written is lost, and said once here, and in the log.
    pub fn append(&mut self, bytes: &[u8]) {
        let before = self.bytes + self.older_bytes;
        let written = self.try_append(bytes);
        self.total.set((self.total.get() + self.bytes + self.older_bytes).saturating_sub(before));
        match written {
            Ok(()) => self.broken = false,
            Err(cause) => {
                if !std::mem::replace(&mut self.broken, true) {
                    tracing::warn!(%cause, path = %self.path.display(), "output of a program is not logged any more");
                }
            }
        }
    }

    fn try_append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.bytes + bytes.len() as u64 > TURN_BYTES
            && let Err(cause) = self.turn()
        {
            self.gone += bytes.len() as u64;
            return Err(cause);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = self.file.as_mut().map_or(Ok(0), |file| file.write(rest));
            match written {
                Ok(written) if written > 0 => {
                    self.bytes += written as u64;
                    rest = rest.get(written..).unwrap_or_default();
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => (),
                failed => {
                    self.gone += rest.len() as u64;
                    return Err(failed.err().unwrap_or_else(|| io::ErrorKind::WriteZero.into()));
                }
            }
        }
        Ok(())
    }

    /// What is written becomes the older half.
    fn turn(&mut self) -> io::Result<()> {
        let aside = self.path.with_extension("log.2");
        std::fs::rename(&self.path, &aside)?;
        match create(&self.path) {
            Ok(file) => self.file = Some(file),
            Err(cause) => {
                // As before, and tried again at the next write.
                std::fs::rename(&aside, &self.path)?;
                return Err(cause);
            }
        }
        std::fs::rename(&aside, older(&self.path))?;
        self.gone += self.older_bytes;
        (self.older_bytes, self.bytes) = (self.bytes, 0);
        Ok(())
    }

    /// Lets go of the older half, or of everything when there is none.
    pub fn cut(&mut self) {
        let cut = if self.older_bytes > 0 {
            let _ = std::fs::remove_file(older(&self.path));
            std::mem::take(&mut self.older_bytes)
        } else {
            let _ = OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(0));
            std::mem::take(&mut self.bytes)
        };
        self.gone += cut;
        self.total.set(self.total.get().saturating_sub(cut));
    }

    pub fn bytes(&self) -> u64 {
        self.bytes + self.older_bytes
    }

    /// Bytes that were written and are not there any more, or never were.
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// What is kept, or its last lines.
    pub fn tail(&self, lines: Option<usize>) -> io::Result<Vec<u8>> {
        tail(&self.path, self.gone, lines)
    }

    pub fn remove(self) {
        self.total.set(self.total.get().saturating_sub(self.bytes + self.older_bytes));
        let _ = std::fs::remove_file(older(&self.path));
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What is kept of the log of a program in `dir`, of which `gone` bytes are missing; or its last lines.
pub fn tail_of(dir: &Path, pid: u32, gone: u64, lines: Option<usize>) -> io::Result<Vec<u8>> {
    tail(&path_of(dir, pid), gone, lines)
}

fn tail(path: &Path, gone: u64, lines: Option<usize>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for path in [older(path), path.to_owned()] {
        match File::open(path) {
            Ok(file) => _ = file.take(BYTES_MAX).read_to_end(&mut text)?,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => (),
            Err(cause) => return Err(cause),
        }
    }
    let start = lines.map_or(0, |lines| start_of_last(&text, lines));
    text.drain(..start);
    if start == 0 && gone > 0 {
        let notice = format!("[dvs: {gone} bytes of this log are gone; the newest of it is kept]\n");
        text.splice(..0, notice.into_bytes());
    }
    Ok(text)
}

/// What programs say is for the node's root alone. Appending, so that it may be cut while it is written.
fn create(path: &Path) -> io::Result<File> {
    let _ = std::fs::remove_file(path);
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn path_of(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("{pid}.log"))
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

fn start_of_last(text: &[u8], lines: usize) -> usize {
    if lines == 0 {
        return text.len();
    }
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    ends.map(|(at, _)| at + 1).nth(lines - 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_half_is_kept_no_more_than_the_limit_and_what_is_gone_is_said() {
        let dir = tempfile::tempdir().expect("directory");
        let total = Total::default();
        let mut log = Log::create(dir.path(), 7, &total).expect("log");
        let line = |at: u32| format!("{at:09}\n").into_bytes();
        (0..1_000_000).for_each(|at| log.append(&line(at)));
        assert!((TURN_BYTES..=BYTES_MAX).contains(&log.bytes()), "{}", log.bytes());
        assert_eq!((log.bytes() + log.gone(), log.bytes()), (10_000_000, total.get()));
        let text = log.tail(None).expect("tail");
        let notice = format!("[dvs: {} bytes of this log are gone; the newest of it is kept]\n", log.gone());
        assert!(text.starts_with(notice.as_bytes()));
        assert_eq!(text.len() as u64, log.bytes() + notice.len() as u64);
        assert_eq!(log.tail(Some(2)).expect("tail"), b"000999998\n000999999\n");
        assert_eq!(log.tail(Some(0)).expect("tail"), b"");
        let again = Log::left(dir.path(), 7, log.gone(), &Total::default());
        assert_eq!((again.bytes(), again.tail(None).expect("tail")), (log.bytes(), text));
        log.cut();
        assert!(log.bytes() < TURN_BYTES && total.get() == log.bytes());
        log.cut();
        log.append(b"more\n");
        assert_eq!((log.bytes(), total.get(), log.gone()), (5, 5, 10_000_000));
        assert!(log.tail(None).expect("tail").ends_with(b"kept]\nmore\n"));
        log.remove();
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    #[test]
    fn last_lines_are_counted_with_and_without_a_final_newline() {
        assert_eq!(start_of_last(b"a\nb\nc", 1), 4);
        assert_eq!(start_of_last(b"a\nb\nc\n", 1), 4);
        assert_eq!(start_of_last(b"a\nb\nc\n", 9), 0);
    }
}
