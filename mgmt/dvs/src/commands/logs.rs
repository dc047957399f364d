//! `dvs logs`: what programs wrote, also after they ended.

mod all;

use std::collections::VecDeque;
use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use client::{LogQuery, Media, TextStream};
use mgmt_api::{Bytes, LogPiece, LogStream};
use serde::Serialize;

use super::follow::Entries;
use super::{Outcome, block_on, daemon, names, service};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::Format;
use crate::units::{parse_moment, parse_pid};

/// Show what programs wrote
#[derive(Args, Debug)]
#[command(after_help = "\
The node keeps a bounded log of every program that `dvs run` started; the oldest part goes first, and a line on standard error \
says so. What the program wrote to its standard error comes out on standard error. With -o json each line is an object: \
{\"time_ms\": 1764192600120, \"stream\": \"stdout\", \"line\": \"text\"}, or {..., \"line\": {\"hex\": \"ff00\"}} when it is no \
UTF-8. Times are those of the program's node, to a hundredth of a second. Without a program it is all of them, on all nodes: \
before each line stands the instance of a service, or the PID, and with -o json each line has both.

Examples:
  dvs logs shop 65600              all there is
  dvs logs shop web                of a service's only instance, or web/1: dvs service logs
  dvs logs -f --tail 10 shop       of all programs, and those that begin
  dvs logs --tail 20 -f shop 65600 the last 20 lines, and what follows
  dvs logs -t --since 10m shop 65600
  dvs logs --since 2026-11-26T21:30:00Z shop 65600 2> errors")]
pub struct Options {
    #[command(flatten)]
    pub look: Look,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Process, from `dvs ps --all`, or service [default: all that there are].
    #[arg(value_name = "PID|SERVICE", value_parser = parse_of, add = names::programs())]
    of: Option<Of>,
}

/// Whose log it is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Of {
    Process(u32),
    /// Or one of its instances: `web/1`.
    Service(String),
}

fn parse_of(text: &str) -> Result<Of, String> {
    match text.starts_with(|first: char| first.is_ascii_alphabetic()) {
        true => Ok(Of::Service(text.to_owned())),
        false => parse_pid(text).map(Of::Process),
    }
}

/// What of a log is shown, and how.
#[derive(Args, Debug)]
pub struct Look {
    /// Go on until the program ends.
    #[arg(short, long)]
    follow: bool,
    /// Only the last lines.
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<u64>,
    /// Only what was written then or later: 10m (ago), 2026-11-26, 2026-11-26T21:30:00Z, seconds since 1970.
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    since: Option<u64>,
    /// Only what was written until then.
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    until: Option<u64>,
    /// Say of each line when it was written (UTC).
    #[arg(short, long)]
    timestamps: bool,
}

/// Longest line of a log that is one object; longer ones are several.
const LINE_BYTES_MAX: usize = 1 << 20;

pub fn execute(global: &Global, options: &Options) -> Outcome {
    match &options.of {
        Some(Of::Process(pid)) => show(global, &options.dc, *pid, &options.look),
        Some(Of::Service(service)) => service::show_log(global, &options.dc, service, &options.look),
        None => all::show(global, &options.dc, &options.look),
    }
}

/// What a program wrote, as it is asked for.
pub fn show(global: &Global, dc: &str, pid: u32, look: &Look) -> Outcome {
    let daemon = daemon(global)?;
    let query = LogQuery { follow: look.follow, tail: look.tail_there() };
    block_on(async {
        let log = daemon.logs(dc, pid, query, look.since).await?;
        // A daemon of an earlier release leaves nothing out.
        let needs_times = look.since.or(look.until).is_some() || look.timestamps && global.output != Format::Json;
        if log.media() == Media::Text && needs_times {
            return Err(Failure::new("the program runs since an earlier release, whose logs know no times")
                .hint("without --since, --until and --timestamps; or stop and start the container"));
        }
        match (global.output, look.timestamps) {
            (Format::Json, _) => tell(log, look, Objects::default()).await?,
            (_, true) => tell(log, look, Timed::default()).await?,
            (_, false) => tell(log, look, Plain).await?,
        }
        Ok::<ExitCode, Failure>(ExitCode::SUCCESS)
    })?
}

impl Look {
    /// Lines that the node keeps back: it knows no end, so with one all are asked for, and the last ones kept here.
    fn tail_there(&self) -> Option<u64> {
        self.tail.filter(|_| self.until.is_none())
    }

    fn tail_here(&self) -> Option<u64> {
        self.tail.filter(|_| self.until.is_some())
    }

    fn until_ms(&self) -> u64 {
        self.until.unwrap_or(u64::MAX)
    }
}

async fn tell(mut log: TextStream, look: &Look, mut teller: impl Teller) -> Result<(), Failure> {
    if log.media() == Media::Text {
        while let Some(bytes) = log.next().await? {
            teller.piece(LogPiece { time_ms: None, stream: LogStream::Stdout, text: bytes.to_vec().into() })?;
        }
    } else {
        let (mut pieces, mut last) = (Entries::<LogPiece>::of(log), look.tail_here().map(LastLines::new));
        while let Some(piece) = pieces.next().await?.filter(|piece| piece.time_ms.unwrap_or(0) <= look.until_ms()) {
            match &mut last {
                Some(last) => last.push(piece)?,
                None => teller.piece(piece)?,
            }
        }
        last.map_or_else(VecDeque::new, LastLines::into_pieces)
            .into_iter()
            .try_for_each(|piece| teller.piece(piece))?;
    }
    teller.end()
}

/// The last lines of what came so far.
struct LastLines {
    wanted: u64,
    /// Each with the lines that end in it.
    pieces: VecDeque<(LogPiece, Vec<u8>, u64)>,
    lines: u64,
}

impl LastLines {
    fn new(wanted: u64) -> LastLines {
        LastLines { wanted, pieces: VecDeque::new(), lines: 0 }
    }

    fn push(&mut self, piece: LogPiece) -> Result<(), Failure> {
        let text = text_of(&piece)?;
        let ends = text.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.lines += ends;
        self.pieces.push_back((piece, text, ends));
        // A line that has not ended yet is one more.
        while self.pieces.front().is_some_and(|(_, _, ends)| self.lines - ends > self.wanted) {
            self.lines -= self.pieces.pop_front().map_or(0, |(_, _, ends)| ends);
        }
        Ok(())
    }

    fn into_pieces(mut self) -> VecDeque<LogPiece> {
        let has_rest = self.pieces.back().is_some_and(|(_, text, _)| text.last().is_some_and(|byte| *byte != b'\n'));
        let mut skipped = (self.lines + u64::from(has_rest)).saturating_sub(self.wanted);
        for (piece, text, _) in &mut self.pieces {
            let mut cut = 0;
            while skipped > 0 && cut < text.len() {
                let line = text.get(cut..).unwrap_or_default().iter().position(|byte| *byte == b'\n');
                cut = line.map_or(text.len(), |end| cut + end + 1);
                skipped -= u64::from(line.is_some());
            }
            piece.text = text.split_off(cut).into();
            if skipped == 0 {
                break;
            }
        }
        self.pieces.into_iter().map(|(piece, _, _)| piece).collect()
    }
}

/// How a log is shown.
trait Teller {
    fn piece(&mut self, piece: LogPiece) -> Result<(), Failure>;

    fn end(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

fn text_of(piece: &LogPiece) -> Result<Vec<u8>, Failure> {
    let text = piece.text.bytes().map_err(|error| Failure::new(format!("a log that cannot be read: {error}")))?;
    Ok(text.into_owned())
}

fn write(stream: LogStream, bytes: &[u8]) -> std::io::Result<()> {
    match stream {
        LogStream::Stdout => {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        }
        LogStream::Stderr => std::io::stderr().lock().write_all(bytes),
    }
}

/// As it was written.
struct Plain;

impl Teller for Plain {
    fn piece(&mut self, piece: LogPiece) -> Result<(), Failure> {
        Ok(write(piece.stream, &text_of(&piece)?)?)
    }
}

/// One of each stream.
#[derive(Default)]
struct Streams<T> {
    stdout: T,
    stderr: T,
}

impl<T> Streams<T> {
    fn of(&mut self, stream: LogStream) -> &mut T {
        match stream {
            LogStream::Stdout => &mut self.stdout,
            LogStream::Stderr => &mut self.stderr,
        }
    }
}

/// Before each line stands when it was begun.
#[derive(Default)]
struct Timed {
    is_within_line: Streams<bool>,
}

impl Teller for Timed {
    fn piece(&mut self, piece: LogPiece) -> Result<(), Failure> {
        let time = piece.time_ms.map_or_else(|| "-".to_owned(), mgmt_api::utc_ms);
        let is_within_line = self.is_within_line.of(piece.stream);
        let mut said = Vec::new();
        for line in text_of(&piece)?.split_inclusive(|byte| *byte == b'\n') {
            if !std::mem::replace(is_within_line, !line.ends_with(b"\n")) {
                said.extend_from_slice(time.as_bytes());
                said.push(b' ');
            }
            said.extend_from_slice(line);
        }
        Ok(write(piece.stream, &said)?)
    }
}

/// A line for programs.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "LogLine"))]
pub struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    time_ms: Option<u64>,
    /// Whose it is, where several are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::log_stream"))]
    stream: LogStream,
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::bytes"))]
    line: Bytes,
}

/// Each line as an object.
#[derive(Default)]
struct Objects {
    lines: Streams<Lines>,
}

impl Teller for Objects {
    fn piece(&mut self, piece: LogPiece) -> Result<(), Failure> {
        let lines = self.lines.of(piece.stream).push(&text_of(&piece)?, piece.time_ms);
        print_lines(piece.stream, lines)
    }

    fn end(&mut self) -> Result<(), Failure> {
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            print_lines(stream, std::mem::take(self.lines.of(stream)).rest())?;
        }
        Ok(())
    }
}

fn print_lines(stream: LogStream, lines: impl IntoIterator<Item = Begun>) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    for Begun { time_ms, bytes } in lines {
        let line = Line { time_ms, pid: None, service: None, stream, line: bytes.into() };
        serde_json::to_writer(&mut out, &line).map_err(std::io::Error::from)?;
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

/// A line, as far as it was heard.
#[derive(Default)]
struct Begun {
    time_ms: Option<u64>,
    bytes: Vec<u8>,
}

/// Takes lines out of a stream of bytes.
#[derive(Default)]
struct Lines {
    begun: Begun,
}

impl Lines {
    /// The lines that are whole.
    fn push(&mut self, bytes: &[u8], time_ms: Option<u64>) -> Vec<Begun> {
        let mut whole = Vec::new();
        let mut is_begun = !self.begun.bytes.is_empty();
        for byte in bytes {
            if !std::mem::replace(&mut is_begun, true) {
                self.begun.time_ms = time_ms;
            }
            if *byte != b'\n' {
                self.begun.bytes.push(*byte);
            }
            if *byte == b'\n' || self.begun.bytes.len() == LINE_BYTES_MAX {
                whole.push(std::mem::take(&mut self.begun));
                is_begun = false;
            }
        }
        whole
    }

    /// What came after the last end of a line.
    fn rest(self) -> Option<Begun> {
        Some(self.begun).filter(|begun| !begun.bytes.is_empty())
    }
}

#[cfg(test)]
mod last_lines {
    use super::*;

    fn last(wanted: u64, texts: &[&str]) -> String {
        let mut last = LastLines::new(wanted);
        for text in texts {
            let text = text.as_bytes().to_vec().into();
            last.push(LogPiece { time_ms: None, stream: LogStream::Stdout, text }).unwrap();
        }
        let pieces = last.into_pieces();
        pieces.iter().map(|piece| String::from_utf8(text_of(piece).unwrap()).unwrap()).collect()
    }

    #[test]
    fn lines_are_counted_over_pieces() {
        let texts = ["a\nb", "b\n", "c\nd\n"];
        assert_eq!(last(0, &texts), "");
        assert_eq!(last(1, &texts), "d\n");
        assert_eq!(last(3, &texts), "bb\nc\nd\n");
        assert_eq!(last(9, &texts), "a\nbb\nc\nd\n");
        assert_eq!(last(2, &["a\n", "b\n", "rest"]), "b\nrest", "a line without an end is one");
        assert_eq!(last(1, &["a\n", "b\nre", "st"]), "rest");
    }
}
