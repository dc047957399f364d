//! A program's output on disk: two files that take turns, so that at most [`BYTES_MAX`] are kept and the newest half
//! always is. All logs of a keeper together have a budget ([`LOGS_BYTES_MAX`]); who keeps to it is `kept`.
//!
//! Beside the text of each half lie its *marks*: from where on it is of which stream, and when that came. A file of
//! text without marks (of an earlier release, or of a keeper that was killed while the halves took turns) is of no
//! known time.
//!
//! A log outlives its program and the keeper. What of it is gone is counted, and said where the log is read from its
//! beginning.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use mgmt_api::{LogForm, LogPiece, LogStream};

/// Bytes kept of one program.
pub const BYTES_MAX: u64 = 4 << 20;
const TURN_BYTES: u64 = BYTES_MAX / 2;
/// Bytes kept of all programs of a container on a node.
pub const LOGS_BYTES_MAX: u64 = 64 << 20;
const _: () = assert!(LOGS_BYTES_MAX >= 2 * BYTES_MAX, "one program must not push out all others");
/// Milliseconds since 1970, little-endian; where in the text; which stream.
const MARK_BYTES: usize = 16;
/// What comes sooner after a mark is of its time.
const MARK_MS: u64 = 10;

/// Bytes of all logs there are.
pub type Total = Rc<Cell<u64>>;

/// Which part of a log is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// The last so many lines.
    pub tail_lines: Option<usize>,
    /// What came then or later, in milliseconds since 1970; what is of no known time is not left out.
    pub since_ms: Option<u64>,
}

#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    /// `None` when it was read from what an earlier keeper left, and is written no more.
    files: Option<Files>,
    newer: Half,
    older: Half,
    /// Of the newer half.
    last: Option<Mark>,
    gone: u64,
    broken: bool,
    total: Total,
}

#[derive(Debug)]
struct Files {
    text: File,
    /// `None` when they could not be made: times are unknown.
    marks: Option<File>,
}

/// Bytes of it.
#[derive(Clone, Copy, Debug, Default)]
struct Half {
    text: u64,
    marks: u64,
}

impl Half {
    fn bytes(self) -> u64 {
        self.text + self.marks
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mark {
    time_ms: u64,
    /// In the text of its half.
    at: u32,
    stream: LogStream,
}

impl Mark {
    fn to_bytes(self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        let stream = u32::from(self.stream == LogStream::Stderr);
        let (time, place) = bytes.split_at_mut(8);
        time.copy_from_slice(&self.time_ms.to_le_bytes());
        let (at, which) = place.split_at_mut(4);
        at.copy_from_slice(&self.at.to_le_bytes());
        which.copy_from_slice(&stream.to_le_bytes());
        bytes
    }

    fn of(bytes: &[u8; MARK_BYTES]) -> Mark {
        let [t0, t1, t2, t3, t4, t5, t6, t7, a0, a1, a2, a3, stream, ..] = *bytes;
        let stream = if stream == 0 { LogStream::Stdout } else { LogStream::Stderr };
        let time_ms = u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        Mark { time_ms, at: u32::from_le_bytes([a0, a1, a2, a3]), stream }
    }
}

impl Log {
    pub fn create(dir: &Path, pid: u32, total: &Total) -> io::Result<Log> {
        let path = path_of(dir, pid);
        for left in [older(&path), marks_of(&path), marks_of(&older(&path))] {
            let _ = std::fs::remove_file(left);
        }
        let files = Some(Files { text: create(&path)?, marks: create(&marks_of(&path)).ok() });
        Ok(Log { files, ..Log::nothing(path, 0, total) })
    }

    /// What an earlier keeper left of a program.
    pub fn left(dir: &Path, pid: u32, gone: u64, total: &Total) -> Log {
        let path = path_of(dir, pid);
        let bytes_of = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        let half = |path: &Path| Half { text: bytes_of(path), marks: bytes_of(&marks_of(path)) };
        let (newer, older) = (half(&path), half(&older(&path)));
        total.set(total.get() + newer.bytes() + older.bytes());
        Log { newer, older, ..Log::nothing(path, gone, total) }
    }

    fn nothing(path: PathBuf, gone: u64, total: &Total) -> Log {
        let (newer, older) = (Half::default(), Half::default());
        Log { path, files: None, newer, older, last: None, gone, broken: false, total: Rc::clone(total) }
    }

    /// A full disk must not stop the program; what cannot be written is lost, and said once here, and in the log.
    pub fn append(&mut self, stream: LogStream, bytes: &[u8], now_ms: u64) {
        let before = self.bytes();
        let written = self.try_append(stream, bytes, now_ms);
        self.total.set((self.total.get() + self.bytes()).saturating_sub(before));
        match written {
            Ok(()) => self.broken = false,
            Err(cause) => {
                if !std::mem::replace(&mut self.broken, true) {
                    tracing::warn!(%cause, path = %self.path.display(), "output of a program is not logged any more");
                }
            }
        }
    }

    fn try_append(&mut self, stream: LogStream, bytes: &[u8], now_ms: u64) -> io::Result<()> {
        if self.newer.bytes() + bytes.len() as u64 > TURN_BYTES
            && let Err(cause) = self.turn()
        {
            self.gone += bytes.len() as u64;
            return Err(cause);
        }
        self.mark(stream, now_ms);
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = self.files.as_mut().map_or(Ok(0), |files| files.text.write(rest));
            match written {
                Ok(written) if written > 0 => {
                    self.newer.text += written as u64;
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

    /// Says of what comes next whose it is, unless the last mark does.
    fn mark(&mut self, stream: LogStream, time_ms: u64) {
        let is_said = |last: Mark| last.stream == stream && time_ms.abs_diff(last.time_ms) < MARK_MS;
        let Some(marks) = self.files.as_mut().and_then(|files| files.marks.as_mut()) else { return };
        if self.last.is_some_and(is_said) {
            return;
        }
        let mark = Mark { time_ms, at: self.newer.text as u32, stream };
        // One that is cut off in the middle would shift all that follow.
        if marks.write(&mark.to_bytes()).is_ok_and(|written| written == MARK_BYTES) {
            self.newer.marks += MARK_BYTES as u64;
            self.last = Some(mark);
        } else {
            let _ = marks.set_len(self.newer.marks);
        }
    }

    /// What is written becomes the older half. Whatever ends it in between: no text gets marks of another.
    fn turn(&mut self) -> io::Result<()> {
        let aside = self.path.with_extension("log.2");
        let _ = std::fs::remove_file(marks_of(&older(&self.path)));
        std::fs::rename(&self.path, &aside)?;
        let text = match create(&self.path) {
            Ok(text) => text,
            Err(cause) => {
                // As before, and tried again at the next write.
                std::fs::rename(&aside, &self.path)?;
                return Err(cause);
            }
        };
        self.files = None;
        std::fs::rename(&aside, older(&self.path))?;
        let _ = std::fs::rename(marks_of(&self.path), marks_of(&older(&self.path)));
        self.files = Some(Files { text, marks: create(&marks_of(&self.path)).ok() });
        self.gone += self.older.text;
        (self.older, self.newer, self.last) = (self.newer, Half::default(), None);
        Ok(())
    }

    /// Lets go of the older half, or of everything when there is none.
    pub fn cut(&mut self) {
        let cut = if self.older.text > 0 {
            let path = older(&self.path);
            let _ = std::fs::remove_file(marks_of(&path));
            let _ = std::fs::remove_file(path);
            std::mem::take(&mut self.older)
        } else {
            self.last = None;
            for path in [marks_of(&self.path), self.path.clone()] {
                let _ = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0));
            }
            std::mem::take(&mut self.newer)
        };
        self.gone += cut.text;
        self.total.set(self.total.get().saturating_sub(cut.bytes()));
    }

    /// Of text and marks.
    pub fn bytes(&self) -> u64 {
        self.newer.bytes() + self.older.bytes()
    }

    /// Bytes that were written and are not there any more, or never were.
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// What is kept of that part.
    pub fn read(&self, part: Part) -> io::Result<Vec<Piece>> {
        read(&self.path, self.gone, part)
    }

    pub fn remove(self) {
        self.total.set(self.total.get().saturating_sub(self.bytes()));
        for path in [older(&self.path), self.path.clone()] {
            let _ = std::fs::remove_file(marks_of(&path));
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What is kept of a part of the log of a program in `dir`, of which `gone` bytes are missing.
pub fn read_of(dir: &Path, pid: u32, gone: u64, part: Part) -> io::Result<Vec<Piece>> {
    read(&path_of(dir, pid), gone, part)
}

/// Something that was said at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Milliseconds since 1970; `None`: unknown.
    pub time_ms: Option<u64>,
    pub stream: LogStream,
    pub bytes: Vec<u8>,
}

/// What a client hears of pieces.
pub fn encode(pieces: Vec<Piece>, form: LogForm) -> Vec<u8> {
    let mut said = Vec::new();
    for Piece { time_ms, stream, bytes } in pieces {
        match form {
            LogForm::Text => said.extend(bytes),
            LogForm::Pieces => {
                for part in bytes.chunks(LogPiece::TEXT_BYTES_MAX) {
                    let piece = LogPiece { time_ms, stream, text: part.to_vec().into() };
                    // Nothing in it can fail.
                    if serde_json::to_writer(&mut said, &piece).is_ok() {
                        said.push(b'\n');
                    }
                }
            }
        }
    }
    said
}

/// Where something of one stream and one time begins in the text of both halves.
struct Stretch {
    at: usize,
    time_ms: Option<u64>,
    stream: LogStream,
}

fn read(path: &Path, gone: u64, part: Part) -> io::Result<Vec<Piece>> {
    let (mut text, mut stretches) = (Vec::new(), Vec::new());
    for path in [older(path), path.to_owned()] {
        let base = text.len();
        text.extend(contents(&path)?);
        stretches.push(Stretch { at: base, time_ms: None, stream: LogStream::Stdout });
        let marks = contents(&marks_of(&path))?;
        stretches.extend(marks.as_chunks().0.iter().map(Mark::of).map(|Mark { time_ms, at, stream }| Stretch {
            at: base + at as usize,
            time_ms: Some(time_ms),
            stream,
        }));
    }
    let tail = part.tail_lines.map_or(0, |lines| start_of_last(&text, lines));
    let start = tail.max(part.since_ms.map_or(0, |since_ms| start_since(&stretches, since_ms).unwrap_or(text.len())));
    let mut pieces = Vec::new();
    if start == 0 && gone > 0 {
        let notice = format!("[dvs: {gone} bytes of this log are gone; the newest of it is kept]\n");
        pieces.push(Piece { time_ms: None, stream: LogStream::Stderr, bytes: notice.into_bytes() });
    }
    let ends = stretches.iter().skip(1).map(|next| next.at).chain([text.len()]);
    for (Stretch { at, time_ms, stream }, end) in stretches.iter().zip(ends) {
        // Of one that is replaced at once, or whose text was cut, there is nothing.
        let bytes = text.get(start.max(*at)..end.min(text.len())).unwrap_or_default();
        if !bytes.is_empty() {
            pieces.push(Piece { time_ms: *time_ms, stream: *stream, bytes: bytes.to_vec() });
        }
    }
    Ok(pieces)
}

/// Behind the last that is known to be older; `None`: all is.
fn start_since(stretches: &[Stretch], since_ms: u64) -> Option<usize> {
    let is_older = |stretch: &Stretch| stretch.time_ms.is_some_and(|time_ms| time_ms < since_ms);
    let first = stretches.iter().rposition(is_older).map_or(0, |last| last + 1);
    stretches.get(first).map(|stretch| stretch.at)
}

/// Empty when there is no such file.
fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => _ = file.take(BYTES_MAX).read_to_end(&mut bytes)?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => (),
        Err(cause) => return Err(cause),
    }
    Ok(bytes)
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

/// Of the half whose text is there.
fn marks_of(text: &Path) -> PathBuf {
    let mut path = text.as_os_str().to_owned();
    path.push(".marks");
    path.into()
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
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
    use LogStream::{Stderr, Stdout};

    fn text(log: &Log, tail_lines: Option<usize>) -> Vec<u8> {
        encode(log.read(Part { tail_lines, since_ms: None }).expect("read"), LogForm::Text)
    }

    #[test]
    fn newest_half_is_kept_no_more_than_the_limit_and_what_is_gone_is_said() {
        let dir = tempfile::tempdir().expect("directory");
        let total = Total::default();
        let mut log = Log::create(dir.path(), 7, &total).expect("log");
        // A mark each second line: they count.
        (0..1_000_000_u64).for_each(|at| log.append(Stdout, format!("{at:09}\n").as_bytes(), at * MARK_MS / 2));
        assert!((TURN_BYTES..=BYTES_MAX).contains(&log.bytes()), "{}", log.bytes());
        let on_disk = || {
            let files = std::fs::read_dir(dir.path()).expect("list");
            files.map(|file| file.expect("a file").metadata().expect("stat").len()).sum::<u64>()
        };
        assert_eq!((log.bytes(), total.get()), (on_disk(), on_disk()));
        let all = text(&log, None);
        let notice = format!("[dvs: {} bytes of this log are gone; the newest of it is kept]\n", log.gone());
        assert!(all.starts_with(notice.as_bytes()));
        assert_eq!((all.len() - notice.len()) as u64 + log.gone(), 10_000_000);
        assert_eq!(text(&log, Some(2)), b"000999998\n000999999\n");
        assert_eq!(text(&log, Some(0)), b"");
        let pieces = log.read(Part::default()).expect("read");
        let is_of = |piece: &Piece| {
            piece.bytes.starts_with(format!("{:09}\n", piece.time_ms.unwrap_or(0) * 2 / MARK_MS).as_bytes())
        };
        assert!(pieces.iter().skip(1).all(is_of));
        let again = Log::left(dir.path(), 7, log.gone(), &Total::default());
        assert_eq!((again.bytes(), text(&again, None)), (log.bytes(), all));
        log.cut();
        assert!(log.bytes() < TURN_BYTES && total.get() == log.bytes());
        log.cut();
        log.append(Stdout, b"more\n", 9);
        assert_eq!((log.bytes(), total.get(), log.gone()), (5 + MARK_BYTES as u64, on_disk(), 10_000_000));
        assert!(text(&log, None).ends_with(b"kept]\nmore\n"));
        log.remove();
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    fn piece(time_ms: Option<u64>, stream: LogStream, text: &str) -> Piece {
        Piece { time_ms, stream, bytes: text.as_bytes().to_vec() }
    }

    #[test]
    fn streams_and_times_are_told_apart() {
        let dir = tempfile::tempdir().expect("directory");
        let mut log = Log::create(dir.path(), 7, &Total::default()).expect("log");
        for (stream, said, now_ms) in
            [(Stdout, "a\n", 100), (Stdout, "b\n", 105), (Stderr, "c\n", 106), (Stdout, "d\n", 200), (Stdout, "e", 199)]
        {
            log.append(stream, said.as_bytes(), now_ms);
        }
        let all =
            [piece(Some(100), Stdout, "a\nb\n"), piece(Some(106), Stderr, "c\n"), piece(Some(200), Stdout, "d\ne")];
        let read = |tail_lines, since_ms| log.read(Part { tail_lines, since_ms }).expect("read");
        assert_eq!(read(None, None), all);
        assert_eq!(read(None, Some(101)), all[1..]);
        assert_eq!(read(None, Some(201)), []);
        assert_eq!(read(Some(1), Some(50)), [piece(Some(200), Stdout, "e")]);
        assert_eq!(read(Some(3), Some(200)), all[2..]);
        // Marks that are gone, or of which a part is.
        let marks = dir.path().join("7.log.marks");
        let bytes = std::fs::read(&marks).expect("marks");
        std::fs::write(&marks, &bytes[..2 * MARK_BYTES + 5]).expect("cut");
        assert_eq!(read(None, None), [all[0].clone(), piece(Some(106), Stderr, "c\nd\ne")]);
        std::fs::remove_file(&marks).expect("removed");
        let unknown = [piece(None, Stdout, "a\nb\nc\nd\ne")];
        assert_eq!((read(None, None), read(None, Some(999))), (unknown.to_vec(), unknown.to_vec()));
    }

    #[test]
    fn last_lines_are_counted_with_and_without_a_final_newline() {
        assert_eq!(start_of_last(b"a\nb\nc", 1), 4);
        assert_eq!(start_of_last(b"a\nb\nc\n", 1), 4);
        assert_eq!(start_of_last(b"a\nb\nc\n", 9), 0);
    }
}
