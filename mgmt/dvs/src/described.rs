//! What people describe in TOML files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::errors::Failure;

/// Longest that is read: a container has at most 63 nodes, 32 disks and 64 services.
const FILE_BYTES_MAX: u64 = 6 << 20;

/// `-` is standard input. `help`: the command that tells how a description looks.
pub fn read<T: DeserializeOwned>(path: &Path, help: &str) -> Result<T, Failure> {
    let failed = |what: &str| Failure::new(format!("{what} {}", path.display()));
    let text = read_text(path)
        .map_err(|cause| failed("cannot read").because(&cause).hint("a TOML file, or - for standard input"))?;
    toml::from_str(&text).map_err(|cause| {
        failed("cannot understand").because_text(cause.message()).because_text(place(&text, cause.span())).hint(help)
    })
}

fn read_text(path: &Path) -> io::Result<String> {
    let source: Box<dyn Read> =
        if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    let mut text = String::new();
    source.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

/// Where in the text: people look for lines.
fn place(text: &str, span: Option<std::ops::Range<usize>>) -> String {
    let before = span.and_then(|span| text.get(..span.start));
    before.map_or("somewhere in the file".to_owned(), |before| format!("line {}", before.matches('\n').count() + 1))
}
