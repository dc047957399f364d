//! What the manual pages of the C library tell a newcomer to do: their programs, compiled, brought into a container and
//! run on two of its nodes.

use std::path::{Path, PathBuf};
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
        make(&format!("{role}-{page}"), &text, linked, library, programs);
    }
}

fn make(name: &str, text: &str, linked: &[&str], library: &Path, programs: &Path) {
    let file = library.join(format!("{name}.c"));
    std::fs::write(&file, text).expect("written");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror"]).arg(&file).arg("-I").arg(source("include"));
    ok(cc.arg("-L").arg(library).args(linked).arg("-o").arg(programs.join(name)));
}

/// A directory that has one for the library, which is linked there, and one for programs.
fn workshop() -> (tempfile::TempDir, [PathBuf; 2]) {
    let place = tempfile::tempdir().expect("a directory");
    let [library, programs] = ["lib", "programs"].map(|name| place.path().join(name));
    std::fs::create_dir(&programs).expect("a directory");
    link_into(&library);
    (place, [library, programs])
}

/// A container over two nodes that has them.
fn shop_with(programs: &Path) -> Cluster {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    cluster.ok(&["import", "shop", programs.to_str().expect("UTF-8"), "/programs"]);
    cluster
}

#[test]
fn echo_server_and_client_of_the_manual_pages_talk_from_node_to_node() {
    if !has_compiler() {
        return;
    }
    let (_place, [library, programs]) = workshop();
    std::fs::copy(library.join("libm3ipc.so.0"), programs.join("libm3ipc.so.0")).expect("copied");
    PAGES.iter().for_each(|page| compile(page, &library, &programs));

    let cluster = shop_with(&programs);
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

/// A child here that ends as the program there does; what it writes comes through a pipe of the caller's.
const JOBS: &str = r#"
#include <assert.h>
#include <errno.h>
#include <m3ipc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *words[] = { "sh", "-c", "hostname; echo \"$WORD\"; exit 7", NULL };

int main(void)
{
    char *environment[] = { "PATH=/usr/bin:/bin", "WORD=a  word", NULL };
    char *forever[] = { "sleep", "1000", NULL }, *none[] = { NULL }, text[64] = "";
    posix_spawn_file_actions_t actions;
    int ends[2], status;
    pid_t pid = -1;

    assert(pipe(ends) == 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    assert(m3_job_start("n2", &actions, words, environment, &pid) == 0);
    close(ends[1]);
    for (size_t at = 0; at < sizeof text - 1;) {
        ssize_t got = read(ends[0], text + at, sizeof text - 1 - at);
        if (got <= 0)
            break;
        at += (size_t)got;
    }
    assert(waitpid(pid, &status, 0) == pid);
    printf("%s%d\n", text, WEXITSTATUS(status));

    assert(m3_job_start("any", NULL, forever, NULL, &pid) == 0);
    assert(kill(pid, SIGTERM) == 0 && waitpid(pid, &status, 0) == pid);
    printf("%d\n", WTERMSIG(status));

    assert(m3_job_start("nowhere", NULL, forever, NULL, &pid) == 0);
    assert(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 125);

    assert(m3_job_start("--list", NULL, forever, NULL, &pid) == M3_EINVALID);
    assert(m3_job_start("", NULL, forever, NULL, &pid) == M3_EINVALID);
    assert(m3_job_start("n2", NULL, none, NULL, &pid) == M3_EINVALID);
    assert(m3_job_start(NULL, NULL, forever, NULL, &pid) == M3_EINVALID);
    assert(m3_job_start("n2", NULL, NULL, NULL, &pid) == M3_EINVALID);
    assert(m3_job_start("n2", NULL, forever, NULL, NULL) == M3_EINVALID);
    return 0;
}
"#;

#[test]
fn program_starts_programs_on_other_nodes() {
    if !has_compiler() {
        return;
    }
    let (_place, [library, programs]) = workshop();
    make("jobs", JOBS, &["-l:libm3ipc.a"], &library, &programs);
    let cluster = shop_with(&programs);
    let said = cluster.ok(&["run", "shop", "--node", "n1", "--", "/dc/programs/jobs"]);
    assert_eq!(said, "n2\na  word\n7\n15\n");
}
