//! The room rule: which of our crates may import which, and where unsafe code may live.
//!
//! `xtask/rooms.txt` lists every allowed edge, a crate a line: `crate: imports | imports of its tests`. A new edge fails until the line is
//! changed, which is the moment to think about the layers of `docs/design`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::run::{Outcome, workspace};

/// What works alike in a test, in a simulation and behind rings: no road leads from here to [`IPC`].
const CORES: &[&str] = &["disk-core", "fs-core", "ipc-core", "sessions"];

/// Where processes talk to each other.
const IPC: &[&str] = &["sys", "ipc-shm", "ipc"];

/// Crates that may contain unsafe code.
const UNSAFE_ROOMS: &[&str] = &["sys", "ipc-shm", "ipc-c"];

#[derive(Default, PartialEq, Eq)]
struct Imports {
    code: BTreeSet<String>,
    tests: BTreeSet<String>,
}

pub fn check() -> Outcome {
    let root = workspace();
    let members = members(&root)?;
    let allowed = allowed(&read(&root.join("xtask/rooms.txt"))?)?;
    let names: BTreeSet<String> = members.keys().cloned().collect();
    let mut faults = Vec::new();
    for (name, folder) in &members {
        let imports = imports(&read(&root.join(folder).join("Cargo.toml"))?, &names);
        match allowed.get(name) {
            None => faults.push(format!("{name} has no line in xtask/rooms.txt")),
            Some(line) => {
                faults.extend(imports.code.difference(&line.code).map(|to| format!("{name} must not import {to}")));
                faults.extend(
                    imports.tests.difference(&line.tests).map(|to| format!("tests of {name} must not import {to}")),
                );
                faults.extend(
                    line.code
                        .difference(&imports.code)
                        .map(|to| format!("rooms.txt allows {name} → {to}, which is not used")),
                );
            }
        }
        if !UNSAFE_ROOMS.contains(&name.as_str()) {
            faults.extend(unsafe_fault(&root.join(folder), name));
        }
    }
    faults.extend(CORES.iter().filter_map(|core| core_fault(core, &allowed)));
    if faults.is_empty() { Ok(()) } else { Err(format!("the room rule is broken:\n  {}", faults.join("\n  "))) }
}

fn core_fault(core: &str, allowed: &BTreeMap<String, Imports>) -> Option<String> {
    let mut reached = BTreeSet::from([core]);
    let mut open = vec![core];
    while let Some(name) = open.pop() {
        let Some(line) = allowed.get(name) else { return Some(format!("{name} has no line in xtask/rooms.txt")) };
        open.extend(line.code.iter().map(String::as_str).filter(|to| reached.insert(to)));
    }
    let found = IPC.iter().find(|ipc| reached.contains(*ipc))?;
    Some(format!("{core} is a core without IPC and must not reach {found}"))
}

fn unsafe_fault(folder: &Path, name: &str) -> Option<String> {
    let head = ["src/lib.rs", "src/main.rs"].iter().find_map(|file| fs::read_to_string(folder.join(file)).ok())?;
    let forbidden = head.contains("#![forbid(unsafe_code)]") || head.contains("#![deny(unsafe_code)]");
    (!forbidden).then(|| format!("{name} does not forbid unsafe code, which belongs to {}", UNSAFE_ROOMS.join(", ")))
}

/// Name → folder, from the workspace's `members`.
fn members(root: &Path) -> Outcome<BTreeMap<String, String>> {
    let manifest = read(&root.join("Cargo.toml"))?;
    let list = manifest
        .split("members = [")
        .nth(1)
        .and_then(|rest| rest.split(']').next())
        .ok_or("Cargo.toml has no members")?;
    let folders = list.split('"').skip(1).step_by(2).map(str::to_owned);
    folders
        .map(|folder| {
            let name = read(&root.join(&folder).join("Cargo.toml"))?
                .lines()
                .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"').map(str::to_owned))
                .ok_or_else(|| format!("{folder}/Cargo.toml has no name"))?;
            Ok((name, folder))
        })
        .collect()
}

fn imports(manifest: &str, ours: &BTreeSet<String>) -> Imports {
    let mut imports = Imports::default();
    let mut section = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line.trim();
            continue;
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if !ours.contains(name) {
            continue;
        }
        match section {
            "[dependencies]" => imports.code.insert(name.to_owned()),
            "[dev-dependencies]" => imports.tests.insert(name.to_owned()),
            _ => false,
        };
    }
    imports
}

fn allowed(text: &str) -> Outcome<BTreeMap<String, Imports>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, edges) = line.split_once(':').ok_or_else(|| format!("rooms.txt: no colon in '{line}'"))?;
            let (code, tests) = edges.split_once('|').unwrap_or((edges, ""));
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
            Ok((name.trim().to_owned(), Imports { code: words(code), tests: words(tests) }))
        })
        .collect()
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_of_code_and_of_tests_are_told_apart() {
        let ours = ["abi", "sys"].map(str::to_owned).into();
        let found = imports(
            "[dependencies]\nabi.workspace = true\nlibc = \"1\"\n[dev-dependencies]\nsys = { path = \"x\" }\n",
            &ours,
        );
        assert_eq!(found.code, ["abi".to_owned()].into());
        assert_eq!(found.tests, ["sys".to_owned()].into());
    }

    #[test]
    fn core_reaches_no_ipc_over_others_either() {
        let rule = allowed("abi:\nipc: abi\nlibvos: abi ipc\nfs-core: abi\n").unwrap();
        assert_eq!(core_fault("fs-core", &rule), None);
        let rule = allowed("abi:\nipc: abi\nlibvos: abi ipc\nfs-core: abi libvos\n").unwrap();
        assert!(core_fault("fs-core", &rule).is_some_and(|fault| fault.contains("must not reach ipc")));
    }

    #[test]
    fn line_of_the_rule_has_two_halves() {
        let rule = allowed("# comment\nfs: abi libvos | broker\n").unwrap();
        assert_eq!(rule["fs"].code, ["abi".to_owned(), "libvos".to_owned()].into());
        assert_eq!(rule["fs"].tests, ["broker".to_owned()].into());
    }
}
