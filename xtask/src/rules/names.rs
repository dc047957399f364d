//! One word, one thing: a public type name belongs to one crate.
//!
//! Public is what another crate can name: declared in a public module, or exported by one. `xtask/names.txt` lists what
//! may be two things, and why: `NAME: crate crate …: reason`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{Metadata, Package};

use crate::rules::sources;
use crate::run::{Outcome, read, workspace};

const KINDS: &[&str] = &["struct ", "enum ", "union ", "trait ", "type "];
/// What only tests and builds are made with may call things as it likes.
const TOOLS: &[&str] = &["end-to-end", "difftest", "histories", "fuzz", "xtask"];

type Owners = BTreeMap<String, BTreeSet<String>>;

pub fn check(packages: &Metadata) -> Outcome {
    let mut owners = Owners::new();
    for package in packages.workspace_packages() {
        if TOOLS.contains(&package.name.as_str()) {
            continue;
        }
        for name in public_types(package)? {
            owners.entry(name).or_default().insert(package.name.to_string());
        }
    }
    let faults = faults(&owners, &allowed(&read(&workspace().join("xtask/names.txt"))?)?);
    if faults.is_empty() { Ok(()) } else { Err(format!("one word, one thing:\n  {}", faults.join("\n  "))) }
}

/// A program has none.
fn public_types(package: &Package) -> Outcome<BTreeSet<String>> {
    let Some(library) = package.targets.iter().find(|target| target.is_lib()) else { return Ok(BTreeSet::new()) };
    let root = library.src_path.clone().into_std_path_buf();
    // What is exported on behalf of another crate is that one's.
    let mut own = BTreeSet::new();
    for file in root.parent().map(sources).transpose()?.unwrap_or_default() {
        own.extend(declared(&read(&file)?).map(str::to_owned));
    }
    let (mut found, mut open) = (BTreeSet::new(), vec![root]);
    while let Some(file) = open.pop() {
        let text = read(&file)?;
        found.extend(declared(&text).chain(exported(&text)).filter(|name| own.contains(*name)).map(str::to_owned));
        open.extend(public_modules(&text).filter_map(|name| module_file(&file, name)));
    }
    Ok(found)
}

fn module_file(parent: &Path, name: &str) -> Option<PathBuf> {
    let folder = match parent.file_name()?.to_str()? {
        "lib.rs" | "mod.rs" => parent.parent()?.to_owned(),
        _ => parent.with_extension(""),
    };
    [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")].into_iter().find(|file| file.exists())
}

fn public_modules(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
}

/// Types begin with a capital and go on in small letters; constants and functions do not.
fn exported(text: &str) -> impl Iterator<Item = &str> {
    let uses = text.split("\npub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let items = uses.flat_map(|path| path.split(['{', '}', ',']));
    let names = items.filter_map(|item| item.rsplit([':', ' ', '\n']).find(|word| !word.is_empty()));
    names.filter(|name| {
        name.starts_with(|first: char| first.is_ascii_uppercase())
            && name.contains(|letter: char| letter.is_ascii_lowercase())
    })
}

fn faults(owners: &Owners, allowed: &Owners) -> Vec<String> {
    let shown = |crates: &BTreeSet<String>| crates.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let several = owners.iter().filter(|(_, crates)| crates.len() > 1);
    let new = several.filter(|(name, crates)| allowed.get(*name) != Some(crates));
    let gone = allowed.iter().filter(|(name, _)| owners.get(*name).is_none_or(|crates| crates.len() < 2));
    let new = new.map(|(name, crates)| format!("{name} is public in {}: rename, or say why", shown(crates)));
    new.chain(gone.map(|(name, _)| format!("names.txt allows {name} twice, which is not used"))).collect()
}

fn declared(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let declared = line.strip_prefix("pub ")?;
        let declared = declared.strip_prefix("unsafe ").unwrap_or(declared);
        let name = KINDS.iter().find_map(|kind| declared.strip_prefix(kind))?;
        name.split(|letter: char| !letter.is_alphanumeric()).next()
    })
}

fn allowed(list: &str) -> Outcome<Owners> {
    let lines = list.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let parsed = lines.map(|line| {
        let mut parts = line.splitn(3, ':');
        match (parts.next(), parts.next(), parts.next().map(str::trim)) {
            (Some(name), Some(crates), Some(reason)) if !reason.is_empty() => {
                Ok((name.to_owned(), crates.split_whitespace().map(str::to_owned).collect()))
            }
            _ => Err(format!("names.txt: '{line}' is not NAME: crate crate: reason")),
        }
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(of: &[(&str, &[&str])]) -> Owners {
        let set = |crates: &[&str]| crates.iter().map(|name| (*name).to_owned()).collect();
        of.iter().map(|(name, crates)| ((*name).to_owned(), set(crates))).collect()
    }

    #[test]
    fn what_other_crates_can_name_is_found() {
        let text =
            "pub struct Slot<T>(T);\nstruct Own;\npub(crate) enum Inner {}\npub unsafe trait Plain {}\npub mod gate;\n";
        assert_eq!(declared(text).collect::<Vec<_>>(), ["Slot", "Plain"]);
        assert_eq!(public_modules(text).collect::<Vec<_>>(), ["gate"]);
        let text = "use a::Bit;\npub use c::{Dot, Eel as Fox,\n    g::Hat, i, LIMIT};\npub use j::Key;\n";
        assert_eq!(exported(text).collect::<Vec<_>>(), ["Dot", "Fox", "Hat", "Key"]);
    }

    #[test]
    fn second_owner_needs_a_reason_and_a_reason_needs_a_second_owner() {
        let found = owners(&[("Slot", &["ipc", "wire"]), ("Port", &["ipc"])]);
        assert_eq!(faults(&found, &Owners::new()).len(), 1);
        assert!(faults(&found, &allowed("Slot: ipc wire: as their models call it\n").unwrap()).is_empty());
        assert_eq!(faults(&found, &allowed("Slot: ipc wire: x\nPort: ipc wire: x\n").unwrap()).len(), 1);
        assert!(allowed("Slot: ipc wire\n").is_err());
    }
}
