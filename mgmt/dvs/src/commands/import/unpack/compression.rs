//! Archives that are compressed: a program of the node makes them plain, and only that; what is in them is unpacked
//! here.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};

use super::super::compression;

/// Enough to see how it is compressed.
const FIRST_BYTES: u64 = 8;

/// The program that decompresses; it lives as long as the archive is read.
pub(super) struct Decompressor {
    program: &'static str,
    child: Child,
}

#[derive(Debug, thiserror::Error)]
pub enum DecompressError {
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    #[error("'{program}', which the archive needs, cannot be started on the container's node")]
    Start {
        program: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("'{program}' could not decompress all of the archive ({status})")]
    Failed { program: &'static str, status: std::process::ExitStatus },
}

/// The archive without its compression.
pub(super) fn plain(
    mut stream: impl Read + Send + 'static,
) -> Result<(Box<dyn Read>, Option<Decompressor>), DecompressError> {
    let mut first = Vec::new();
    stream.by_ref().take(FIRST_BYTES).read_to_end(&mut first).map_err(DecompressError::Read)?;
    let program = compression(&first);
    let mut whole = io::Cursor::new(first).chain(stream);
    let Some(program) = program else { return Ok((Box::new(whole), None)) };
    let start = |source| DecompressError::Start { program, source };
    let mut command = Command::new(program);
    let mut child = command.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(start)?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(start(io::ErrorKind::BrokenPipe.into()));
    };
    let feeding = std::thread::Builder::new().name("compressed".to_owned());
    // It ends with the stream, or when the program takes no more; then the program's own end says what was wrong.
    let feeding = feeding.spawn(move || {
        let _ = io::copy(&mut whole, &mut input);
    });
    feeding.map_err(start)?;
    Ok((Box::new(output), Some(Decompressor { program, child })))
}

impl Decompressor {
    /// After its output was read to the end.
    pub(super) fn end(mut self) -> Result<(), DecompressError> {
        let status = self.child.wait().map_err(DecompressError::Read)?;
        match status.success() {
            true => Ok(()),
            false => Err(DecompressError::Failed { program: self.program, status }),
        }
    }
}
