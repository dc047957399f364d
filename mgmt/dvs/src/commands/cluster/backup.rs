//! `dvs cluster backup`: a copy of what the engine holds, in a file.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::cli::Global;
use crate::commands::{Outcome, block_on, daemon, done, kept, say};
use crate::errors::Failure;
use crate::installed::not_written;
use crate::output::Row;

/// Keep a copy of all that the cluster decided
#[derive(Args, Debug)]
#[command(after_help = "\
It has nodes, containers and where they stand, names, the authority with its key, and what programs agreed on: all of one \
moment. It does not have the containers' files: those lie on their disks. Whoever reads the file can make himself a node: \
keep it as a secret.

Examples:
  dvs cluster backup /root/home.backup
  dvs cluster backup - | gpg -e -r admin > home.backup.gpg")]
pub struct Options {
    /// Where to write it; - is standard output.
    file: PathBuf,
    /// Replace a file that is there.
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "ClusterBackup"))]
pub struct Written {
    file: PathBuf,
    bytes: u64,
}

impl Row for Written {
    const HEADINGS: &'static [&'static str] = &["FILE", "BYTES"];

    fn cells(&self) -> Vec<String> {
        vec![self.file.display().to_string(), self.bytes.to_string()]
    }

    fn name(&self) -> String {
        self.file.display().to_string()
    }
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global)?;
    if options.file == Path::new("-") {
        let mut out = io::stdout().lock();
        let mut last = Last::default();
        block_on(copy(&daemon, &mut out, &mut last, Failure::from))??;
        last.demand_end()?;
        return Ok(std::process::ExitCode::SUCCESS);
    }
    let bytes = kept::whole(&options.file, options.force, |file| {
        let mut last = Last::default();
        block_on(copy(&daemon, file, &mut last, |error| not_written(&options.file, &error)))??;
        last.demand_end()?;
        Ok(last.bytes)
    })?;
    say("keep it as a secret: the cluster's authority is in it");
    done(global.output, &Written { file: options.file.clone(), bytes })
}

async fn copy(
    daemon: &client::Client,
    out: &mut impl Write,
    last: &mut Last,
    not_written: impl Fn(io::Error) -> Failure,
) -> Result<(), Failure> {
    let mut stream = daemon.backup().await?;
    while let Some(piece) = stream.next().await? {
        out.write_all(&piece).map_err(&not_written)?;
        last.take(&piece);
    }
    out.flush().map_err(&not_written)
}

/// The last line says that it is all.
#[derive(Default)]
struct Last {
    line: Vec<u8>,
    bytes: u64,
}

impl Last {
    fn take(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        let line_begins = |bytes: &[u8]| {
            let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            bytes.iter().rposition(|byte| *byte == b'\n').map(|place| place + 1)
        };
        self.line.extend_from_slice(piece);
        if let Some(begin) = line_begins(&self.line) {
            self.line.drain(..begin);
        }
    }

    fn demand_end(&self) -> Result<(), Failure> {
        if self.line.starts_with(b"{\"entries\"") && self.line.ends_with(b"\n") {
            return Ok(());
        }
        Err(Failure::new("the backup is not whole")
            .because_text("the daemon ended the answer early")
            .hint("the same again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_is_found_however_it_comes() {
        let whole = b"{\"dvs_backup\":1}\n{\"key\":\"/a\"}\n{\"entries\":1,\"sha256\":\"00\"}\n";
        for size in 1..whole.len() {
            let mut last = Last::default();
            whole.chunks(size).for_each(|piece| last.take(piece));
            assert!(last.demand_end().is_ok() && last.bytes == whole.len() as u64, "{size}");
            let mut cut = Last::default();
            whole[..whole.len() - size].chunks(7).for_each(|piece| cut.take(piece));
            assert!(cut.demand_end().is_err(), "{size}");
        }
    }
}
