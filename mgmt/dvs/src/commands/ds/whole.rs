//! All of a container's store at once, as requests that would write it: one JSON object in a line.

use std::io::{self, Cursor};
use std::sync::Arc;

use client::Client;
use parking_lot::Mutex;
use serde::Deserialize;

use super::super::session::new_session;
use super::super::tree::{judge, listen};
use super::request::{Entry, Failed, Listed, Request};
use super::{speaker, written_down};
use crate::errors::Failure;
use crate::output::Format;
use crate::pump;

/// An answer to a request.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Failed(Failed),
    Listed(Listed),
    /// A key that was written.
    Changed(serde::de::IgnoredAny),
}

/// Every key and value; pages of it may be of different moments.
pub async fn read(daemon: &Client, dc: &str) -> Result<Vec<u8>, Failure> {
    let failed = || Failure::new(format!("the keys of '{dc}' were not read"));
    let (mut lines, mut after) = (Vec::new(), None);
    loop {
        let answer =
            ask(daemon, dc, written_down(&Request::List { prefix: Default::default(), after })?, failed).await?;
        let Listed { entries, more } = match serde_json::from_slice(&answer) {
            Ok(Answer::Listed(page)) => page,
            Ok(Answer::Failed(Failed { error })) => return Err(failed().because_text(error).hint("again")),
            Ok(Answer::Changed(_)) => return Err(failed().hint("again")),
            Err(cause) => return Err(failed().because(&cause).hint("again")),
        };
        after = entries.last().map(|entry| entry.key.clone());
        for Entry { key, value, revision: _ } in entries {
            lines.extend(written_down(&Request::Put { key, value, revision: None })?);
        }
        if !more || after.is_none() {
            return Ok(lines);
        }
    }
}

/// Writes what `read` read.
pub async fn write(daemon: &Client, dc: &str, lines: Vec<u8>) -> Result<(), Failure> {
    if lines.is_empty() {
        return Ok(());
    }
    let failed = || Failure::new(format!("the keys of '{dc}' were not written"));
    let mut count = 0;
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        count += 1;
        match serde_json::from_slice(line) {
            Ok(Request::Put { revision: None, .. }) => (),
            _ => return Err(failed().because_text("they cannot be understood").hint("another backup")),
        }
    }
    let answers = ask(daemon, dc, lines, failed).await?;
    let mut known = 0;
    for answer in serde_json::Deserializer::from_slice(&answers).into_iter::<Answer>() {
        known += 1;
        match answer {
            Ok(Answer::Failed(Failed { error })) => return Err(failed().because_text(error).hint("a larger store")),
            Ok(_) => (),
            Err(cause) => return Err(failed().because(&cause).hint("again")),
        }
    }
    match known == count {
        true => Ok(()),
        false => Err(failed().because_text(format!("{known} of {count} were answered")).hint("again")),
    }
}

/// What a process of the container answers to these lines.
async fn ask(daemon: &Client, dc: &str, lines: Vec<u8>, failed: impl Fn() -> Failure) -> Result<Vec<u8>, Failure> {
    let mut request = speaker(Format::Json, None);
    request.unlogged = true;
    let stream = daemon.run(dc, &request, new_session()?).await?;
    let answers = Collected::default();
    let input = pump::input_from(Cursor::new(lines));
    let (ended, complaints) = listen(stream, Some(input), answers.clone()).await?;
    judge(failed, dc, ended, &complaints)?;
    Ok(std::mem::take(&mut *answers.0.lock()))
}

#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<u8>>>);

impl io::Write for Collected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
