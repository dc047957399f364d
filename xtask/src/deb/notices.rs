//! What the static binary contains of others: name, version, licence, and the notices that the licences want to be
//! passed on. From cargo's own list of what is linked, and the files of each crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, PackageId};

use crate::run::{Outcome, workspace};

const PROGRAM: &str = "dvs";
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// How files begin that hold a licence or a notice.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];
/// A longer file is no notice.
const NOTICE_BYTES_MAX: u64 = 256 << 10;

pub fn text() -> Outcome<String> {
    let mut asked = MetadataCommand::new();
    asked.current_dir(workspace()).features(CargoOpt::SomeFeatures(Vec::new()));
    asked.other_options(["--filter-platform".to_owned(), TARGET.to_owned(), "--offline".to_owned()]);
    let packages = asked.exec().map_err(|error| format!("cargo does not say what is linked: {error}"))?;
    let linked = linked(&packages)?;
    let mut by_notice: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut text = "What the binary of DVS contains of others. Below the list are the notices of each.\n\n".to_owned();
    for package in packages.packages.iter().filter(|package| linked.contains(&package.id) && package.source.is_some()) {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref().unwrap_or("see its notice");
        text.push_str(&format!("{name}: {licence}\n"));
        let home = package.manifest_path.parent().ok_or("a crate without a folder")?;
        for notice in notices(home.as_std_path()) {
            by_notice.entry(notice).or_default().insert(name.clone());
        }
    }
    for (notice, names) in by_notice {
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        text.push_str(&format!("\n{}\nof {names}:\n\n{}\n", "-".repeat(79), notice.trim()));
    }
    Ok(text)
}

/// What the program needs at run time, and what that needs.
fn linked(packages: &Metadata) -> Outcome<BTreeSet<PackageId>> {
    let graph = packages.resolve.as_ref().ok_or("cargo does not say what needs what")?;
    let program = packages.workspace_packages().into_iter().find(|package| package.name.as_str() == PROGRAM);
    let mut open = vec![program.ok_or("there is no program")?.id.clone()];
    let mut found = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !found.insert(id.clone()) {
            continue;
        }
        let needs = graph.nodes.iter().find(|node| node.id == id).into_iter().flat_map(|node| &node.deps);
        let is_linked = |kinds: &[cargo_metadata::DepKindInfo]| {
            kinds.is_empty() || kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
        };
        open.extend(needs.filter(|need| is_linked(&need.dep_kinds)).map(|need| need.pkg.clone()));
    }
    Ok(found)
}

fn notices(home: &Path) -> Vec<String> {
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    let is_notice = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let about = fs::metadata(path);
        NAMES.iter().any(|begin| name.starts_with(begin))
            && about.is_ok_and(|about| about.is_file() && about.len() <= NOTICE_BYTES_MAX)
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(|path| is_notice(path)).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
}
