//! What the manual pages of the C library tell a newcomer to do: their programs, compiled, brought into a container and
//! run on two of its nodes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use end_to_end::c_library::{has_compiler, link_into, ok, source};
use end_to_end::{Cluster, eventually};
// Cargo builds the archive of the library together with what imports it.
use ipc_c as _;

const SOON: Duration = Duration::from_secs(20);
const PAGES: [&str; 2] = ["m3ipc.7", "dvk.3"];

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
    if !has_compiler() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let [library, programs] = ["lib", "programs"].map(|name| place.path().join(name));
    std::fs::create_dir(&programs).expect("a directory");
    link_into(&library);
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
