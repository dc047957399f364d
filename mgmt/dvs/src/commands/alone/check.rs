//! `dvs alone check`: whether the file tree of an image is sound.

/// Look through the file tree of an image that nobody uses, and change nothing
#[derive(clap::Args, Debug)]
#[command(after_help = "\
All of the metadata are read and compared with one another, those of snapshots, too; with --data also every block of a \
file with its checksum. A tree that was not closed is looked at as its file server would recover it. The image of a \
container that is stopped is images/root.img of it on a node. While a container runs: dvs fs scrub.

Exit status: 0 it is sound, 1 it is not, or is none.

Examples:
  dvs alone check tree.img
  dvs alone check --data tree.img -o json")]
pub struct CheckOptions {
    /// A file, or a block device.
    pub image: std::path::PathBuf,
    /// Read what is in the files, too.
    #[arg(long)]
    pub data: bool,
}

#[cfg(all(test, feature = "machinery"))]
pub use checked::Checked;
#[cfg(feature = "machinery")]
pub use checked::check;

#[cfg(feature = "machinery")]
mod checked {
    use std::io::{self, Write};
    use std::process::ExitCode;

    use disk_core::ReadInto;
    use fs::examine::{ExamineError, Examined, Thoroughness, examine};
    use serde::Serialize;

    use super::CheckOptions;
    use crate::cli::Global;
    use crate::commands::alone::volume::{self, Changes};
    use crate::commands::{Outcome, print};
    use crate::errors::{self, Failure};
    use crate::output::{self, Row};

    #[derive(Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    pub struct Checked {
        image: String,
        inodes: u64,
        bytes: u64,
        snapshots: u64,
        data: bool,
        findings: Vec<String>,
    }

    impl Row for Checked {
        const HEADINGS: &'static [&'static str] = &["IMAGE", "FILES", "DATA", "SNAPSHOTS", "FINDINGS"];

        fn cells(&self) -> Vec<String> {
            let numbers = [self.inodes.to_string(), output::bytes(self.bytes), self.snapshots.to_string()];
            let image = std::iter::once(self.image.clone());
            image.chain(numbers).chain([self.findings.len().to_string()]).collect()
        }

        fn name(&self) -> String {
            self.image.clone()
        }
    }

    pub fn check(global: &Global, options: &CheckOptions) -> Outcome {
        let image = options.image.display().to_string();
        let volume = volume::open(&options.image, None, Changes::Never)?.volume;
        let failed = |error: &dyn std::error::Error| {
            let failure = Failure::new(format!("'{image}' cannot be checked")).because(error);
            failure.hint("the image of a file tree: images/root.img of a container that is stopped")
        };
        let bytes = volume.bytes();
        let read = move |offset: u64, out: &mut [u8]| {
            let bytes = out.len() as u64;
            volume.read(offset, bytes, &ReadInto::new(out)).map(drop).map_err(rustix::io::Errno::raw_os_error)
        };
        let extent = if options.data { Thoroughness::Everything } else { Thoroughness::Metadata };
        let examined = examine(bytes, read, extent).map_err(|error| match error {
            ExamineError::Blank => Failure::new(format!("'{image}' holds nothing yet"))
                .hint(format!("dvs alone fs {image} DIR makes a tree of it")),
            error => failed(&error),
        })?;
        let Examined { inodes, bytes, snapshots, findings } = examined;
        let is_sound = findings.is_empty();
        let checked = Checked { image, inodes, bytes, snapshots, data: options.data, findings };
        print(|out| output::one(out, global.output, &checked, view))?;
        Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::from(errors::GENERAL) })
    }

    fn view<W: Write>(checked: &Checked, out: &mut W) -> io::Result<()> {
        for finding in &checked.findings {
            writeln!(out, "{}", output::printable(finding))?;
        }
        let Checked { image, inodes, bytes, snapshots, .. } = checked;
        let verdict = match checked.findings.len() {
            0 => "is sound".to_owned(),
            1 => "is not sound: 1 finding".to_owned(),
            count => format!("is not sound: {count} findings"),
        };
        let amount = format!("{inodes} files and directories, {}, {snapshots} snapshots", output::bytes(*bytes));
        writeln!(out, "{} {verdict} ({amount})", output::printable(image))
    }
}
