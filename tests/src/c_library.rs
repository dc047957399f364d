//! The C library of M3-IPC, as the containers of tests get it.

use std::path::{Path, PathBuf};
use std::process::Command;

pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel/ipc-c").join(path)
}

pub fn ok(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Cargo puts it beside this test, under a name of its own for each selection of features. All are of the same sources.
fn archive() -> PathBuf {
    let this_test = std::env::current_exe().expect("a test has a path");
    let beside = this_test.parent().expect("a directory").read_dir().expect("listed").flatten();
    let archives = beside.filter(|entry| {
        let name = entry.file_name().into_string().unwrap_or_default();
        name.starts_with("libipc_c-") && name.ends_with(".a")
    });
    let newest = archives.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
    newest.expect("cargo builds the archive with this test").path()
}

/// Links the library into a directory. A test that calls this imports `ipc_c`, so that cargo builds the archive.
pub fn link_into(directory: &Path) {
    ok(Command::new(source("library.sh")).arg("link").arg(archive()).arg(directory));
}

/// Without one, what is left out is said.
pub fn has_compiler() -> bool {
    let is_there = Command::new("cc").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("SKIPPED: there is no C compiler (cc): nothing that needs the C library of M3-IPC was run");
    }
    is_there
}

/// A directory with the shared object and the Python module. `None`: there is no compiler.
pub fn built() -> Option<tempfile::TempDir> {
    if !has_compiler() {
        return None;
    }
    let (place, module) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    link_into(place.path());
    std::fs::create_dir(module.path().join("m3ipc")).expect("a directory");
    for file in source("python/m3ipc").read_dir().expect("listed").flatten().map(|entry| entry.path()) {
        if file.extension().is_some_and(|extension| extension == "py") {
            std::fs::copy(&file, module.path().join("m3ipc").join(file.file_name().expect("a name"))).expect("copied");
        }
    }
    std::fs::copy(place.path().join("libm3ipc.so.0"), module.path().join("libm3ipc.so.0")).expect("copied");
    Some(module)
}
