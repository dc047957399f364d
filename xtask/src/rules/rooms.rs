//! The room rule: which of our crates may import which, and where unsafe code may live.
//!
//! `xtask/rooms.txt` lists every allowed edge, a crate a line: `crate: imports | imports of its tests`. A new edge
//! fails until the line is changed, which is the moment to think about the layers of `docs/design`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use cargo_metadata::{DependencyKind, Metadata, Package};

use crate::run::{Outcome, read, workspace};

/// What works alike in a test, in a simulation and behind rings: no road leads from here to [`IPC`].
const CORES: &[&str] = &["disk-core", "fs-core", "ipc-core", "proc-core", "replica-core", "service-core", "sessions"];

/// Where processes talk to each other.
const IPC: &[&str] = &["sys", "ipc-shm", "ipc"];

/// Crates that may contain unsafe code.
const UNSAFE_ROOMS: &[&str] = &["sys", "ipc-shm", "ipc-c"];

#[derive(Default, PartialEq, Eq)]
struct Imports {
    code: BTreeSet<String>,
    tests: BTreeSet<String>,
}

pub fn check(packages: &Metadata) -> Outcome {
    let ours: BTreeMap<&str, &Package> =
        packages.workspace_packages().into_iter().map(|package| (package.name.as_str(), package)).collect();
    let allowed = allowed(&read(&workspace().join("xtask/rooms.txt"))?)?;
    let mut faults = Vec::new();
    for (name, package) in &ours {
        let imports = imports(package, &ours);
        match allowed.get(*name) {
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
        if !UNSAFE_ROOMS.contains(name) {
            faults.extend(unsafe_fault(package));
        }
    }
    faults.extend(CORES.iter().filter_map(|core| core_fault(core, &allowed)));
    if faults.is_empty() { Ok(()) } else { Err(format!("the room rule is broken:\n  {}", faults.join("\n  "))) }
}

fn imports(package: &Package, ours: &BTreeMap<&str, &Package>) -> Imports {
    let mut imports = Imports::default();
    for dependency in package.dependencies.iter().filter(|dependency| ours.contains_key(dependency.name.as_str())) {
        match dependency.kind {
            DependencyKind::Normal => imports.code.insert(dependency.name.clone()),
            DependencyKind::Development => imports.tests.insert(dependency.name.clone()),
            _ => false,
        };
    }
    imports
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

fn unsafe_fault(package: &Package) -> Option<String> {
    let root = package.targets.iter().find(|target| target.is_lib() || target.is_bin())?;
    let head = fs::read_to_string(&root.src_path).ok()?;
    let forbidden = head.contains("#![forbid(unsafe_code)]") || head.contains("#![deny(unsafe_code)]");
    let rooms = UNSAFE_ROOMS.join(", ");
    (!forbidden).then(|| format!("{} does not forbid unsafe code, which belongs to {rooms}", package.name))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_of_code_and_of_tests_are_told_apart() {
        let packages = crate::rules::packages().unwrap();
        let ours: BTreeMap<_, _> =
            packages.workspace_packages().into_iter().map(|package| (package.name.as_str(), package)).collect();
        let found = imports(ours["ds"], &ours);
        assert!(found.code.contains("sessions") && !found.code.contains("broker"));
        assert!(found.tests.contains("disk") && !found.code.contains("disk"));
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
