//! What a program can check about the source beside what the compiler does.
//!
//! - `rooms.rs`: which crate may import which.
//! - `names.rs`: a public type name has one owner.
//! - `width.rs`: no comment is wider than the code.

mod names;
mod rooms;
mod width;

use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{Metadata, MetadataCommand};

use crate::run::{Outcome, workspace};

pub fn check() -> Outcome {
    let packages = packages()?;
    let outcomes = [rooms::check(&packages), names::check(&packages), width::check()];
    let failed: Vec<String> = outcomes.into_iter().filter_map(Outcome::err).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

fn packages() -> Outcome<Metadata> {
    let mut command = MetadataCommand::new();
    command.manifest_path(workspace().join("Cargo.toml")).no_deps();
    command.exec().map_err(|error| format!("cargo does not say what the workspace has: {error}"))
}

/// Every Rust file in a folder, also of what is no member of the workspace.
fn sources(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    let (mut found, mut open) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() {
                let is_ours = name != "target" && !name.as_encoded_bytes().starts_with(b".");
                open.extend(is_ours.then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
