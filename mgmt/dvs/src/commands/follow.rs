//! Entries that come one after the other, a line of JSON each.

use std::io::Write;
use std::marker::PhantomData;

use client::TextStream;
use mgmt_api::LogPiece;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::errors::Failure;
use crate::output::{self, Format, Row, printable};

/// Longer lines are nobody's: a piece of a log has room, each byte of which is escaped.
const LINE_BYTES_MAX: usize = 256 << 10;
const _: () = assert!(LINE_BYTES_MAX > 6 * LogPiece::TEXT_BYTES_MAX + 1024);

/// Lines of a log as entries. What is none is left out.
pub struct Entries<T> {
    log: TextStream,
    heard: Vec<u8>,
    /// So much of it was given out.
    taken: usize,
    of: PhantomData<T>,
}

impl<T: DeserializeOwned> Entries<T> {
    pub fn of(log: TextStream) -> Entries<T> {
        Entries { log, heard: Vec::new(), taken: 0, of: PhantomData }
    }

    /// None: the end.
    pub async fn next(&mut self) -> Result<Option<T>, Failure> {
        loop {
            let rest = self.heard.get(self.taken..).unwrap_or_default();
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let entry = serde_json::from_slice(rest.get(..end).unwrap_or_default());
                self.taken += end + 1;
                if let Ok(entry) = entry {
                    return Ok(Some(entry));
                }
                continue;
            }
            self.heard.drain(..self.taken);
            self.taken = 0;
            if self.heard.len() > LINE_BYTES_MAX {
                self.heard.clear();
            }
            match self.log.next().await? {
                Some(bytes) => self.heard.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

/// Shows entries as they come.
pub struct Show<T> {
    format: Format,
    /// Of the columns of a table that goes on for ever.
    widths: &'static [usize],
    is_begun: bool,
    of: PhantomData<T>,
}

impl<T: Row + Serialize> Show<T> {
    pub fn new(format: Format, widths: &'static [usize]) -> Show<T> {
        Show { format, widths, is_begun: false, of: PhantomData }
    }

    pub fn one(&mut self, entry: &T) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        match self.format {
            Format::Json => writeln!(out, "{}", serde_json::to_string(entry).unwrap_or_default())?,
            Format::Yaml | Format::Template(_) => output::list(&mut out, self.format, std::slice::from_ref(entry))?,
            Format::Name => writeln!(out, "{}", printable(&entry.name()))?,
            Format::Table | Format::Wide => {
                if !std::mem::replace(&mut self.is_begun, true) {
                    let headings: Vec<String> = T::HEADINGS.iter().map(ToString::to_string).collect();
                    writeln!(out, "{}", self.line(&headings))?;
                }
                writeln!(out, "{}", self.line(&entry.cells()))?;
            }
        }
        Ok(out.flush()?)
    }

    fn line(&self, cells: &[String]) -> String {
        let padded = cells.iter().zip(self.widths).map(|(cell, width)| format!("{:<width$}", printable(cell)));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}
