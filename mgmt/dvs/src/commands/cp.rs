//! `dvs cp`: files and directories between this machine and containers, or from one container to another.
//!
//! All ways are one tar stream with one file or directory at its top. Out of a container it comes from a process there
//! that packs (`import/pack.rs`); into one it goes to a process there that unpacks (`import/unpack.rs`), so each can do
//! what a program of its container can do. Here both are threads of this process.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use client::{Client, Unpacked};
use mgmt_api::{in_tree, valid_name};
use tokio::sync::mpsc;

use super::import::pack;
use super::import::unpack::{self, Attributes, Owners, Target};
use super::tree::{Counted, Progress, ended_without_a_word, judge, receive, transfer};
use super::{Outcome, block_on, daemon, names, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::pump;

/// Copy files between this machine and containers
#[derive(Args, Debug)]
#[command(after_help = "\
In a container it is the file tree that is meant: shop:/www and shop:/dc/www are the same place. What is copied becomes DEST, \
or goes into it when DEST is a directory. Copies belong to root in a container, and to you on this machine, without set-user-id; with -a all of it is \
as the original, owners by number. The container must run. A local path with a colon begins with ./ or /. On a terminal it is shown how \
far it is.

Examples:
  dvs cp ./site shop:/www                 /www is the copy, or /www/site when there was a /www
  dvs cp shop:/var/log/web.log .
  dvs cp shop:/data other:/data           from container to container, through this machine
  dvs cp shop:/data - | tar tv            a tar archive on standard output
  tar c dir | dvs cp - shop:/             and one from standard input")]
pub struct Options {
    /// Keep owners.
    #[arg(short, long)]
    archive: bool,
    /// Node of the container through which the data goes [default: its first one].
    #[arg(short, long, add = names::nodes())]
    node: Option<String>,
    /// DC:PATH, a path of this machine, or - for a tar archive on standard input.
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// DC:PATH, a path of this machine, or - for a tar archive on standard output.
    #[arg(value_name = "DEST")]
    destination: OsString,
}

/// One side of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    /// As programs see it, and whether it was typed with a slash at its end: then it is a directory.
    Inside {
        dc: String,
        path: String,
        is_directory: bool,
    },
    Here(PathBuf),
    /// Standard input or output.
    Archive,
}

impl FromStr for Place {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Place, Failure> {
        if text == "-" {
            return Ok(Place::Archive);
        }
        let Some((dc, path)) = text.split_once(':').filter(|(dc, _)| valid_name(dc)) else {
            return Ok(Place::Here(text.into()));
        };
        let is_directory = path.ends_with('/');
        let path = in_tree(path)
            .ok_or_else(|| Failure::usage(format!("'{path}' leaves the tree")).hint("a path such as shop:/www"))?;
        Ok(Place::Inside { dc: dc.to_owned(), path, is_directory })
    }
}

fn place(text: &OsStr) -> Result<Place, Failure> {
    text.to_str().map_or_else(|| Ok(Place::Here(text.into())), str::parse)
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let (source, destination) = (place(&options.source)?, place(&options.destination)?);
    let progress = Arc::new(Progress::default());
    match (&source, &destination) {
        (Place::Inside { dc, path, .. }, Place::Inside { .. }) => {
            let daemon = daemon(global)?;
            between(&daemon, options, dc, path, &destination)?;
        }
        (Place::Inside { dc, path, .. }, _) => block_on(out(&daemon(global)?, options, dc, path, &destination))??,
        (_, Place::Inside { .. }) => {
            let daemon = daemon(global)?;
            let (chunks, packing, top) = from_here(&source, &progress)?;
            let done = block_on(into(&daemon, options, &destination, top.as_deref(), chunks, &progress))?;
            let packed = packing
                .map(|thread| thread.join().map_err(|_| failed(options).because_text("the packing thread failed")));
            match packed.transpose()? {
                // Why there was nothing to send says more than that the other side missed the end.
                Some(Err(cause @ pack::PackError::Read { .. })) => {
                    return Err(failed(options).because(&cause).hint("what is copied must be there"));
                }
                Some(Err(cause @ pack::PackError::Closed(_))) => {
                    done?;
                    return Err(failed(options).because(&cause).hint("again"));
                }
                Some(Ok(notes)) => notes.lines().iter().for_each(|line| say(line)),
                None => {}
            }
            done?;
        }
        _ => {
            return Err(Failure::usage("neither side is in a container")
                .hint("DC:PATH on one side at least, as in: dvs cp ./site shop:/www"));
        }
    }
    Ok(0.into())
}

fn failed(options: &Options) -> Failure {
    let (from, to) = (options.source.to_string_lossy(), options.destination.to_string_lossy());
    Failure::new(format!("{from} was not copied completely to {to}"))
}

type Sent =
    (mpsc::Receiver<Vec<u8>>, Option<std::thread::JoinHandle<Result<pack::Notes, pack::PackError>>>, Option<String>);

/// What is sent, and what it is called in the archive; nothing of an archive that somebody else made.
fn from_here(source: &Place, progress: &Arc<Progress>) -> Result<Sent, Failure> {
    let Place::Here(path) = source else {
        let counted = Counted { sink: io::stdin(), progress: Arc::clone(progress) };
        return Ok((pump::input_from(counted), None, None));
    };
    let unreadable = |cause: io::Error| {
        Failure::new(format!("cannot read {}", path.display())).because(&cause).hint("a file or directory")
    };
    let whole = path.canonicalize().map_err(unreadable)?;
    let name = path.file_name().or_else(|| whole.file_name()).unwrap_or(OsStr::new("root"));
    let top = name.to_str().ok_or_else(|| {
        Failure::new(format!("the name of {} is not UTF-8", path.display())).hint("another name for the copy: tar")
    })?;
    let (chunks, packing) = pack::one(whole.clone(), top.into(), Arc::clone(progress));
    Ok((chunks, Some(packing), Some(top.to_owned())))
}

/// A stream of this side into a container.
async fn into(
    daemon: &Client,
    options: &Options,
    destination: &Place,
    top: Option<&str>,
    chunks: mpsc::Receiver<Vec<u8>>,
    progress: &Progress,
) -> Result<(), Failure> {
    let Place::Inside { dc, path, is_directory } = destination else { return Err(failed(options)) };
    let node = options.node.as_deref();
    let how = Unpacked { node, top: top.filter(|_| !is_directory), mine: !options.archive };
    let (ended, complaints) = transfer(daemon, dc, path, &how, chunks, progress).await?;
    judge(|| failed(options), dc, ended, &complaints)
}

/// The last part of a path inside.
fn name_of(path: &str) -> &str {
    path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("dc")
}

async fn out(daemon: &Client, options: &Options, dc: &str, path: &str, destination: &Place) -> Result<(), Failure> {
    let Place::Here(to) = destination else {
        if io::IsTerminal::is_terminal(&io::stdout()) {
            return Err(Failure::usage("standard output is a terminal").hint("dvs cp DC:PATH - | tar tv"));
        }
        let (ended, complaints) =
            receive(daemon, (dc, path, name_of(path)), options.node.as_deref(), io::stdout()).await?;
        return judge(|| failed(options), dc, ended, &complaints);
    };
    let cannot = |cause: io::Error| {
        Failure::new(format!("cannot write {}", to.display()))
            .because(&cause)
            .hint("a directory that is there, or a name in one")
    };
    let (base, top) = if to.is_dir() {
        (to.canonicalize().map_err(cannot)?, OsString::from(name_of(path)))
    } else {
        let name = to.file_name().ok_or_else(|| cannot(io::ErrorKind::InvalidInput.into()))?;
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        (parent.canonicalize().map_err(cannot)?, name.to_owned())
    };
    let owners = if options.archive { Owners::AsPacked } else { Owners::Mine };
    let target = Target {
        base,
        inside: PathBuf::new(),
        top: Some(top),
        owners,
        changes: false,
        attributes: Attributes::AsFarAsPossible,
    };
    let (reader, writer) = io::pipe().map_err(cannot)?;
    let unpacking = tokio::task::spawn_blocking(move || unpack::unpack(reader, &target));
    let received = receive(daemon, (dc, path, name_of(path)), options.node.as_deref(), writer).await;
    let unpacked = unpacking.await.map_err(|_| failed(options).because_text("the unpacking thread failed"))?;
    let (ended, complaints) = received?;
    if unpacked.is_ok() || !ended_without_a_word(&ended, &complaints) {
        judge(|| failed(options), dc, ended, &complaints)?;
    }
    match unpacked {
        Ok(0) => Ok(()),
        Ok(count) => {
            Err(failed(options).because_text(format!("{count} entries failed")).hint("see above; -a needs root"))
        }
        Err(cause) => Err(failed(options).because(&cause).hint("again")),
    }
}

/// Each side on a thread of its own: one that waits for its output must not hold up the other.
fn between(daemon: &Client, options: &Options, dc: &str, path: &str, destination: &Place) -> Result<(), Failure> {
    let (reader, writer) = io::pipe().map_err(|cause| failed(options).because(&cause).hint("again"))?;
    let (name, progress) = (name_of(path), Progress::told_elsewhere());
    let (sent, taken) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| block_on(receive(daemon, (dc, path, name), options.node.as_deref(), writer)));
        let taken = block_on(into(daemon, options, destination, Some(name), pump::input_from(reader), &progress));
        (sending.join(), taken)
    });
    let (ended, complaints) = sent.map_err(|_| failed(options).because_text("the packing side failed"))???;
    let taken = taken?;
    if taken.is_ok() || !ended_without_a_word(&ended, &complaints) {
        judge(|| failed(options), dc, ended, &complaints)?;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_is_in_a_container_when_it_begins_with_its_name() {
        let inside = |dc: &str, path: &str, is_directory| Place::Inside {
            dc: dc.to_owned(),
            path: path.to_owned(),
            is_directory,
        };
        for (text, place) in [
            ("shop:/www", inside("shop", "/dc/www", false)),
            ("shop:/dc/www/", inside("shop", "/dc/www", true)),
            ("shop:www", inside("shop", "/dc/www", false)),
            ("./shop:/www", Place::Here("./shop:/www".into())),
            ("/a:b", Place::Here("/a:b".into())),
            ("C:x", Place::Here("C:x".into())),
            ("-", Place::Archive),
        ] {
            assert_eq!(text.parse::<Place>().unwrap(), place, "{text}");
        }
        assert!("shop:/../etc".parse::<Place>().is_err());
        assert_eq!((name_of("/dc/www"), name_of("/dc")), ("www", "dc"));
    }
}
