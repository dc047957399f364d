//! A program's output on disk: two files that take turns, so that at most [`BYTES_MAX`] are kept and the newest half
//! always is.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Bytes kept of one program.
pub const BYTES_MAX: u64 = 4 << 20;
const TURN_BYTES: u64 = BYTES_MAX / 2;

#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
    broken: bool,
}

impl Log {
    pub fn create(dir: &Path, pid: u32) -> io::Result<Log> {
        let path = dir.join(format!("{pid}.log"));
        let _ = std::fs::remove_file(older(&path));
        let file = File::create(&path)?;
        Ok(Log { path, file, bytes: 0, broken: false })
    }

    /// A full disk must not stop the program; what cannot be written is lost, and said once.
    pub fn append(&mut self, bytes: &[u8]) {
        if let Err(cause) = self.try_append(bytes)
            && !std::mem::replace(&mut self.broken, true)
        {
            tracing::warn!(%cause, path = %self.path.display(), "output of a program is not logged any more");
        }
    }

    fn try_append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.bytes + bytes.len() as u64 > TURN_BYTES {
            std::fs::rename(&self.path, older(&self.path))?;
            self.file = File::create(&self.path)?;
            self.bytes = 0;
        }
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// What is kept, or its last lines.
    pub fn tail(&self, lines: Option<usize>) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        if let Ok(file) = File::open(older(&self.path)) {
            file.take(BYTES_MAX).read_to_end(&mut text)?;
        }
        File::open(&self.path)?.take(BYTES_MAX).read_to_end(&mut text)?;
        if let Some(lines) = lines {
            text.drain(..start_of_last(&text, lines));
        }
        Ok(text)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(older(&self.path));
        let _ = std::fs::remove_file(&self.path);
    }
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
    fn newest_half_is_kept_and_no_more_than_the_limit() {
        let dir = tempfile::tempdir().expect("directory");
        let mut log = Log::create(dir.path(), 7).expect("log");
        let line = |at: u32| format!("{at:09}\n").into_bytes();
        (0..1_000_000).for_each(|at| log.append(&line(at)));
        let text = log.tail(None).expect("tail");
        assert!(text.len() as u64 <= BYTES_MAX && text.len() as u64 >= TURN_BYTES, "{}", text.len());
        assert_eq!(log.tail(Some(2)).expect("tail"), b"000999998\n000999999\n");
        assert_eq!(log.tail(Some(0)).expect("tail"), b"");
        drop(log);
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    #[test]
    fn last_lines_are_counted_with_and_without_a_final_newline() {
        assert_eq!(start_of_last(b"a\nb\nc", 1), 4);
        assert_eq!(start_of_last(b"a\nb\nc\n", 1), 4);
        assert_eq!(start_of_last(b"a\nb\nc\n", 9), 0);
    }
}
