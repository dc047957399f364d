//! Streams of files into the tree of a container and out of it: tar, to and from a process of the container.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::{Client, Stream, Unpacked};
use mgmt_api::{RunRequest, TREE};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::ds::ourselves;
use super::say;
use super::session::new_session;
use crate::errors::Failure;
use crate::output;
use crate::pump::{self, DetachKeys, Ended, Ends, Output, Post};

/// How often a person looks at progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// Of a terminal, the one on which the cursor is.
const CLEAR_LINE: &str = "\r\x1b[K";
/// Lines of the process in the container that are shown.
pub const COMPLAINTS_SHOWN: usize = 8;
const COMPLAINTS_BYTES_MAX: usize = 4096;

/// What has gone so far; shared with the thread that packs.
#[derive(Default)]
pub struct Progress {
    pub entries: AtomicU64,
    pub bytes: AtomicU64,
    /// Whoever sends the same bytes shows how far it is.
    is_told_elsewhere: bool,
}

impl Progress {
    pub fn told_elsewhere() -> Progress {
        Progress { is_told_elsewhere: true, ..Progress::default() }
    }
}

/// Sends an archive; how its unpacking ended, and what that complained about.
pub async fn transfer(
    daemon: &Client,
    dc: &str,
    destination: &str,
    how: &Unpacked<'_>,
    chunks: mpsc::Receiver<Vec<u8>>,
    progress: &Progress,
) -> Result<(Ended, String), Failure> {
    feed(daemon.import(dc, destination, how).await?, chunks, progress).await
}

/// Sends an archive of what changed in a whole tree; likewise.
pub async fn transfer_changes(
    daemon: &Client,
    dc: &str,
    chunks: mpsc::Receiver<Vec<u8>>,
    progress: &Progress,
) -> Result<(Ended, String), Failure> {
    transfer_faithfully(daemon, dc, &["--changes"], chunks, progress).await
}

/// Sends the archive of a backup to a whole tree; likewise.
pub async fn transfer_whole(
    daemon: &Client,
    dc: &str,
    chunks: mpsc::Receiver<Vec<u8>>,
    progress: &Progress,
) -> Result<(Ended, String), Failure> {
    transfer_faithfully(daemon, dc, &[], chunks, progress).await
}

async fn transfer_faithfully(
    daemon: &Client,
    dc: &str,
    more: &[&str],
    chunks: mpsc::Receiver<Vec<u8>>,
    progress: &Progress,
) -> Result<(Ended, String), Failure> {
    let words = ["internal", "unpack", TREE, "--faithful"];
    let words = words.into_iter().chain(more.iter().copied());
    let run = RunRequest { interactive: true, unlogged: true, ..ourselves(words) };
    feed(daemon.run(dc, &run, new_session()?).await?, chunks, progress).await
}

/// Sends what goes onto such a disk; likewise.
pub async fn transfer_disk(
    daemon: &Client,
    (dc, disk): (&str, &str),
    chunks: mpsc::Receiver<Vec<u8>>,
    progress: &Progress,
) -> Result<(Ended, String), Failure> {
    feed(daemon.fill_disk(dc, disk).await?, chunks, progress).await
}

async fn feed(
    stream: Stream,
    chunks: mpsc::Receiver<Vec<u8>>,
    progress: &Progress,
) -> Result<(Ended, String), Failure> {
    stream.notes.iter().for_each(|note| say(&format!("dvs: {}", output::printable(note))));
    shown(listen(stream, Some(chunks), io::sink()), progress).await
}

/// Somebody at a terminal sees how far it is, as long as it goes on.
async fn shown<T>(work: impl Future<Output = T>, progress: &Progress) -> T {
    let done = tokio::select! {
        done = work => done,
        never = show(progress) => match never {},
    };
    if io::stderr().is_terminal() && !progress.is_told_elsewhere {
        eprint!("{CLEAR_LINE}");
    }
    done
}

/// Stays with a process that nobody sits at, to its end; how it ended, and what it complained about.
pub async fn listen(
    stream: Stream,
    input: Option<mpsc::Receiver<Vec<u8>>>,
    output: impl Write + Send + 'static,
) -> Result<(Ended, String), Failure> {
    let (events_in, events) = pump::event_queue();
    let complaints = Complaints::default();
    let ends = Ends {
        input,
        events,
        events_in,
        closed_output: pump::Event::Signal(pump::SIGPIPE),
        stdout: Output::to(output),
        stderr: Output::to(complaints.clone()),
        detach_keys: DetachKeys::Passed,
    };
    let ended = pump::run(stream, ends, &Cell::new(None), &NoSignals).await?;
    Ok((ended, complaints.text()))
}

struct NoSignals;

impl Post for NoSignals {
    async fn signal(&self, _: u32, _: u8) -> bool {
        false
    }
}

/// A line on a terminal's standard error, written over itself; nothing when nobody watches.
async fn show(progress: &Progress) -> Infallible {
    if !io::stderr().is_terminal() || progress.is_told_elsewhere {
        return std::future::pending().await;
    }
    let begun = Instant::now();
    let mut ticks = tokio::time::interval(PROGRESS_EVERY);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let bytes = progress.bytes.load(Ordering::Relaxed);
        let rate = bytes.saturating_mul(1000) / (begun.elapsed().as_millis() as u64).max(1);
        eprint!("{CLEAR_LINE}{}, {}/s\r", output::bytes(bytes), output::bytes(rate));
    }
}

/// The first bytes of what the unpacking process complains about.
#[derive(Clone, Default)]
struct Complaints(Arc<Mutex<Vec<u8>>>);

impl io::Write for Complaints {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = self.0.lock();
        let room = COMPLAINTS_BYTES_MAX.saturating_sub(text.len()).min(bytes.len());
        text.extend_from_slice(bytes.get(..room).unwrap_or_default());
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Complaints {
    fn text(&self) -> String {
        let text = self.0.lock();
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Counts what is written, or read.
pub struct Counted<W> {
    pub sink: W,
    pub progress: Arc<Progress>,
}

impl<R: io::Read> io::Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.sink.read(buffer)?;
        self.progress.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.sink.write(bytes)?;
        self.progress.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// A stream out of a container, to whatever takes it; how the process that sends it ended, and what it said.
pub async fn receive(
    daemon: &Client,
    (dc, path, top): (&str, &str, &str),
    node: Option<&str>,
    sink: impl Write + Send + 'static,
) -> Result<(Ended, String), Failure> {
    take(daemon.export(dc, path, top, node).await?, sink).await
}

/// Of a snapshot what is not as it was in an earlier one; likewise.
pub async fn receive_changes(
    daemon: &Client,
    (dc, path, since): (&str, &str, &str),
    node: Option<&str>,
    sink: impl Write + Send + 'static,
) -> Result<(Ended, String), Failure> {
    let words = ["internal", "pack", path, ".", "--since", since];
    let run = RunRequest { node: node.map(str::to_owned), unlogged: true, ..ourselves(words.into_iter()) };
    take(daemon.run(dc, &run, new_session()?).await?, sink).await
}

/// What is on a disk without a file tree; likewise.
pub async fn receive_disk(
    daemon: &Client,
    (dc, disk): (&str, &str),
    sink: impl Write + Send + 'static,
) -> Result<(Ended, String), Failure> {
    take(daemon.read_disk(dc, disk).await?, sink).await
}

async fn take(stream: Stream, sink: impl Write + Send + 'static) -> Result<(Ended, String), Failure> {
    stream.notes.iter().for_each(|note| say(&format!("dvs: {}", output::printable(note))));
    let progress = Arc::new(Progress::default());
    let sink = Counted { sink, progress: Arc::clone(&progress) };
    shown(listen(stream, None, sink), &progress).await
}

/// A process that sends and ends so only lost whoever took what it sent: the other side says why.
pub fn ended_without_a_word(ended: &Ended, complaints: &str) -> bool {
    complaints.is_empty() && matches!(ended, Ended::Exit(_))
}

/// How the process in a container ended, and what it said.
pub fn judge(failed: impl Fn() -> Failure, dc: &str, ended: Ended, complaints: &str) -> Result<(), Failure> {
    let lines = || complaints.lines().take(COMPLAINTS_SHOWN);
    let mut failure = match ended {
        Ended::Exit(0) => {
            lines().for_each(|line| say(&output::printable(line)));
            return Ok(());
        }
        Ended::Exit(status) => failed().because_text(format!("the process in '{dc}' ended with {status}")),
        Ended::Refused(body) => body.into(),
        Ended::Detached | Ended::GivenUp => failed(),
    };
    failure.because.extend(lines().map(str::to_owned));
    let is_known = failure.hint.is_some();
    Err(if is_known { failure } else { failure.hint(format!("look there: dvs run {dc} -- ls -l /dc")) })
}
