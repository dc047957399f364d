//! The audit log: an entry for each change and each refusal, as lines of JSON in `STATE_DIR/audit`.
//!
//! `audit.jsonl` is written to, `audit.1.jsonl` is the one before, and so on; each has at most [`FILE_BYTES_MAX`], and
//! there are [`FILES_MAX`]. One thread owns them. Whoever answers a request puts its entry into a queue and waits for
//! nothing: a disk that is full or stands still stops no daemon. What could not be written is counted, said in the
//! node's health until entries can be written again, and noted in the next entry.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use mgmt_api::AuditEntry;
use parking_lot::Mutex;
use tokio::sync::{broadcast, oneshot};

use crate::state;

const FILE_BYTES_MAX: u64 = 8 << 20;
const FILES_MAX: usize = 8;
/// Entries that wait for the disk.
const QUEUE_MAX: usize = 4096;
/// Lines that a follower may be behind.
const FOLLOWED_MAX: usize = 1024;
/// Lines of one answer.
pub const TAIL_MAX: usize = 100_000;
/// Unless asked otherwise.
pub const TAIL: usize = 1000;

const CURRENT: &str = "audit.jsonl";

pub struct Audit {
    queue: Mutex<Option<SyncSender<Message>>>,
    lost: Arc<AtomicU64>,
    problem: Arc<Mutex<Option<String>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Message {
    Entry(Box<AuditEntry>),
    Look { lines: usize, answer: oneshot::Sender<io::Result<Look>> },
}

/// What there is, and what will be.
pub struct Look {
    pub lines: Vec<u8>,
    pub following: broadcast::Receiver<Arc<[u8]>>,
}

impl Audit {
    /// Its files lie in `dir`, which is made for root alone.
    pub fn start(dir: &Path) -> io::Result<Audit> {
        let (sender, messages) = sync_channel(QUEUE_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let problem = Arc::new(Mutex::new(None));
        let mut writer = Writer {
            files: Files::new(dir, FILE_BYTES_MAX),
            lost: Arc::clone(&lost),
            problem: Arc::clone(&problem),
            followers: broadcast::Sender::new(FOLLOWED_MAX),
        };
        let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(&messages))?;
        Ok(Audit { queue: Mutex::new(Some(sender)), lost, problem, thread: Mutex::new(Some(thread)) })
    }

    /// Never waits.
    pub fn write(&self, entry: AuditEntry) {
        let queue = self.queue.lock();
        let sent = queue.as_ref().map(|queue| queue.try_send(Message::Entry(Box::new(entry))));
        if !matches!(sent, Some(Ok(()))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// For people.
    pub fn problem(&self) -> Option<String> {
        let problem = self.problem.lock().clone();
        let lost = self.lost.load(Ordering::Relaxed);
        match (problem, lost) {
            (None, 0) => None,
            (None, lost) => Some(format!("audit: {lost} entries are lost; the disk is too slow for them")),
            (Some(problem), lost) => Some(format!("audit: entries cannot be written, {lost} are lost: {problem}")),
        }
    }

    /// The last lines, and those that are written from then on.
    pub async fn look(&self, lines: usize) -> io::Result<Look> {
        let (answer, answered) = oneshot::channel();
        let queue = self.queue.lock().clone();
        let asked = queue.map(|queue| queue.try_send(Message::Look { lines: lines.min(TAIL_MAX), answer }));
        match asked {
            Some(Ok(())) => answered.await.map_err(|_| io::Error::other("the log's thread ended"))?,
            Some(Err(TrySendError::Full(_))) => Err(io::Error::other("the log's disk stands still")),
            Some(Err(TrySendError::Disconnected(_))) | None => Err(io::Error::other("the daemon ends")),
        }
    }

    /// What is in the queue is written; nothing after it.
    pub fn stop(&self) {
        drop(self.queue.lock().take());
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the audit log had panicked");
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Writer {
    files: Files,
    lost: Arc<AtomicU64>,
    problem: Arc<Mutex<Option<String>>>,
    followers: broadcast::Sender<Arc<[u8]>>,
}

impl Writer {
    fn run(&mut self, messages: &Receiver<Message>) {
        while let Ok(message) = messages.recv() {
            match message {
                Message::Entry(entry) => self.write(*entry),
                Message::Look { lines, answer } => {
                    let following = self.followers.subscribe();
                    // Whoever asked may have gone.
                    let _ = answer.send(self.files.tail(lines).map(|lines| Look { lines, following }));
                }
            }
        }
    }

    fn write(&mut self, mut entry: AuditEntry) {
        let lost = self.lost.load(Ordering::Relaxed);
        entry.lost += lost;
        let Ok(mut line) = serde_json::to_vec(&entry) else { return };
        line.push(b'\n');
        match self.files.append(&line) {
            Ok(()) => {
                self.lost.fetch_sub(lost, Ordering::Relaxed);
                if self.problem.lock().take().is_some() {
                    tracing::info!(lost, "the audit log can be written again");
                }
                // Nobody may be following.
                let _ = self.followers.send(line.into());
            }
            Err(error) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                if self.problem.lock().replace(error.to_string()).is_none() {
                    tracing::error!(%error, "the audit log cannot be written");
                }
            }
        }
    }
}

/// The files, the newest of which is open.
struct Files {
    dir: PathBuf,
    bytes_max: u64,
    current: Option<(File, u64)>,
}

impl Files {
    fn new(dir: &Path, bytes_max: u64) -> Files {
        Files { dir: dir.to_owned(), bytes_max, current: None }
    }

    fn path(&self, age: usize) -> PathBuf {
        self.dir.join(if age == 0 { CURRENT.to_owned() } else { format!("audit.{age}.jsonl") })
    }

    /// All of the line, or nothing.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let wanted = line.len() as u64;
        if self.open()? + wanted > self.bytes_max {
            self.rotate()?;
        }
        self.open()?;
        let Some((file, bytes)) = &mut self.current else { return Err(io::Error::other("no file is open")) };
        let written = file.write_all(line);
        if written.is_err() {
            // What a full disk took of it would be the beginning of the next line.
            let _ = file.set_len(*bytes);
            self.current = None;
        } else {
            *bytes += wanted;
        }
        written
    }

    /// Bytes in the current file.
    fn open(&mut self) -> io::Result<u64> {
        if let Some((_, bytes)) = &self.current {
            return Ok(*bytes);
        }
        state::make_private(&self.dir)?;
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(self.path(0))?;
        let bytes = whole_lines(&mut file)?;
        self.current = Some((file, bytes));
        Ok(bytes)
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.current = None;
        for age in (0..FILES_MAX - 1).rev() {
            match fs::rename(self.path(age), self.path(age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => (),
            }
        }
        Ok(())
    }

    /// The last lines of all files, the oldest first.
    fn tail(&self, lines: usize) -> io::Result<Vec<u8>> {
        let (mut parts, mut missing) = (VecDeque::new(), lines);
        for age in 0..FILES_MAX {
            if missing == 0 {
                break;
            }
            let text = match fs::read(self.path(age)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                text => text?,
            };
            let part = last_lines(&text, missing);
            missing = missing.saturating_sub(part.iter().filter(|byte| **byte == b'\n').count());
            parts.push_front(part.to_vec());
        }
        Ok(parts.into_iter().flatten().collect())
    }
}

/// Takes away what a machine that lost its power left of a last line. Bytes that remain.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
    if whole < text.len() as u64 {
        file.set_len(whole)?;
    }
    Ok(whole)
}

fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    let ends = text.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    // Before the line that is too much ends another one.
    let from = ends.take(lines + 1).nth(lines).map_or(0, |end| end + 1);
    text.get(from..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use mgmt_api::{AuditWho, Means};

    use super::*;

    fn entry(took_ms: u64) -> AuditEntry {
        let who =
            AuditWho { name: "ada".to_owned(), role: None, by: Means::Token, address: None, uid: None, pid: None };
        AuditEntry {
            at_ms: 1,
            node: "n1".to_owned(),
            who,
            operation: "run".to_owned(),
            method: "POST".to_owned(),
            path: "/v1".to_owned(),
            status: Some(200),
            error: None,
            took_ms,
            omitted: 0,
            lost: 0,
        }
    }

    fn parsed(text: &[u8]) -> Vec<AuditEntry> {
        text.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    fn writer(dir: &Path, bytes_max: u64) -> Writer {
        Writer {
            files: Files::new(dir, bytes_max),
            lost: Arc::default(),
            problem: Arc::default(),
            followers: broadcast::Sender::new(4),
        }
    }

    #[test]
    fn files_are_bounded_and_the_last_lines_are_found_over_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), 1000);
        let line = serde_json::to_vec(&entry(100)).unwrap().len() as u64 + 1;
        for number in 0..200 {
            writer.write(entry(100 + number));
        }
        let sizes: Vec<u64> =
            fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).collect();
        assert_eq!(sizes.len(), FILES_MAX);
        assert!(sizes.iter().all(|size| *size <= 1000), "{sizes:?}");
        let of =
            |lines| parsed(&writer.files.tail(lines).unwrap()).iter().map(|entry| entry.took_ms).collect::<Vec<_>>();
        assert_eq!(of(3), [297, 298, 299]);
        assert_eq!(of(0), [0; 0]);
        let many = (1000 / line) as usize + 2;
        assert_eq!(of(many), (300 - many as u64..300).collect::<Vec<_>>(), "over two files");
        let all = of(100_000);
        assert!(all.len() < 200 && all.windows(2).all(|pair| pair[0] + 1 == pair[1]) && all.last() == Some(&299));
    }

    #[test]
    fn half_a_line_that_a_dead_machine_left_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        writer(dir.path(), 100_000).write(entry(1));
        let path = dir.path().join(CURRENT);
        let mut text = fs::read(&path).unwrap();
        text.extend(b"{\"at_ms\":");
        fs::write(&path, &text).unwrap();
        writer(dir.path(), 100_000).write(entry(2));
        let took: Vec<u64> = parsed(&fs::read(&path).unwrap()).iter().map(|entry| entry.took_ms).collect();
        assert_eq!(took, [1, 2]);
    }

    #[test]
    fn what_is_lost_is_said_and_counted_in_the_next_entry() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("audit");
        // A file where the directory should be: nothing can be written.
        fs::write(&place, "").unwrap();
        let mut writer = writer(&place, 100_000);
        let audit = Audit {
            queue: Mutex::new(None),
            lost: Arc::clone(&writer.lost),
            problem: Arc::clone(&writer.problem),
            thread: Mutex::new(None),
        };
        assert_eq!(audit.problem(), None);
        writer.write(entry(1));
        writer.write(entry(2));
        let problem = audit.problem().unwrap();
        assert!(problem.contains("cannot be written, 2 are lost"), "{problem}");
        fs::remove_file(&place).unwrap();
        writer.write(entry(3));
        assert_eq!(audit.problem(), None);
        let found = parsed(&fs::read(place.join(CURRENT)).unwrap());
        assert_eq!(found.iter().map(|entry| (entry.took_ms, entry.lost)).collect::<Vec<_>>(), [(3, 2)]);
    }

    #[tokio::test]
    async fn follower_sees_each_line_once_from_where_the_tail_ends() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::start(&dir.path().join("audit")).unwrap();
        audit.write(entry(1));
        audit.write(entry(2));
        let Look { lines, mut following } = audit.look(1).await.unwrap();
        audit.write(entry(3));
        assert_eq!(parsed(&lines)[0].took_ms, 2);
        assert_eq!(parsed(&following.recv().await.unwrap())[0].took_ms, 3);
        audit.stop();
        assert!(audit.look(1).await.is_err());
        audit.write(entry(4));
        assert_eq!(audit.lost.load(Ordering::Relaxed), 1);
    }
}
