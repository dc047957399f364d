//! What the manual pages of the C library tell a newcomer to do: their programs, compiled, brought into a container and
//! run on two of its nodes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use end_to_end::{Cluster, eventually};
// Cargo builds the archive of the library together with what imports it.
use ipc_c as _;

const SOON: Duration = Duration::from_secs(20);
const PAGES: [&str; 2] = ["m3ipc.7", "dvk.3"];

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel/ipc-c").join(path)
}

fn ok(command: &mut Command) {
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

/// The server and the client that a page shows whole.
fn programs_of(page: &str) -> [String; 2] {
    let text = std::fs::read_to_string(source(&format!("man/{page}"))).expect("a page");
    let blocks = text.split(".Bd -literal -offset indent\n").skip(1).filter_map(|rest| rest.split("\n.Ed").next());
    let mut programs = blocks.filter(|block| block.contains("int main")).map(|block| block.replace("\\e", "\\") + "\n");
    [(); 2].map(|()| programs.next().expect("a page shows a server and a client"))
}

/// The servers take the shared object that lies beside them, the clients have the library in them.
fn compile(page: &str, library: &Path, programs: &Path) {
    let shared = ["-lm3ipc", "-Wl,-rpath,$ORIGIN"];
    let archive = ["-l:libm3ipc.a"];
    for (role, text, linked) in programs_of(page).into_iter().enumerate().map(|(index, text)| match index {
        0 => ("server", text, &shared[..]),
        _ => ("client", text, &archive[..]),
    }) {
        let file = library.join(format!("{role}-{page}.c"));
        std::fs::write(&file, text).expect("written");
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror"]).arg(&file).arg("-I").arg(source("include"));
        ok(cc.arg("-L").arg(library).args(linked).arg("-o").arg(programs.join(format!("{role}-{page}"))));
    }
}

#[test]
fn echo_server_and_client_of_the_manual_pages_talk_from_node_to_node() {
    if Command::new("cc").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no C compiler (cc): the programs of the manual pages were not run on two nodes");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let [library, programs] = ["lib", "programs"].map(|name| place.path().join(name));
    std::fs::create_dir(&programs).expect("a directory");
    ok(Command::new(source("library.sh")).arg("link").arg(archive()).arg(&library));
    std::fs::copy(library.join("libm3ipc.so.0"), programs.join("libm3ipc.so.0")).expect("copied");
    PAGES.iter().for_each(|page| compile(page, &library, &programs));

    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    cluster.ok(&["import", "shop", programs.to_str().expect("UTF-8"), "/programs"]);
    for page in PAGES {
        let server = format!("/dc/programs/server-{page}");
        let pid = cluster.ok(&["run", "-d", "shop", "--node", "n1", "--", &server]);
        let number = eventually("the server says its number", SOON, || {
            let log = cluster.ok(&["logs", "shop", pid.trim()]);
            Some(log.trim().strip_prefix("endpoint ")?.to_owned())
        });
        let client = format!("/dc/programs/client-{page}");
        let said = cluster.ok(&["run", "shop", "--node", "n2", "--", &client, &number]);
        assert_eq!(said, "42 came back\n", "{page}");
        cluster.ok(&["kill", "shop", pid.trim()]);
    }
}
