//! Every command of the guide, typed as it stands there.

use std::path::{Path, PathBuf};
use std::process::Command;

use end_to_end::dvs_binary;

/// No page takes longer.
const LIMIT_SECONDS: &str = "240";

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands in blocks of the shell, line by line.
fn commands(page: &str) -> Vec<&str> {
    let mut commands = Vec::new();
    let mut lines = page.lines();
    while lines.by_ref().any(|line| line == "```sh") {
        commands.extend(lines.by_ref().take_while(|line| *line != "```"));
    }
    commands
}

/// A place where `dvs` makes clusters of its own, and nothing else is.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        let desk = Desk(tempfile::Builder::new().prefix("dvs-g").tempdir_in("/tmp").expect("a directory"));
        std::fs::create_dir_all(desk.path("bin")).expect("a directory");
        std::os::unix::fs::symlink(dvs_binary(), desk.path("bin/dvs")).expect("a link");
        std::fs::create_dir_all(desk.path("work")).expect("a directory");
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// One shell types all of it, and stops at the first that fails.
    fn types(&self, commands: &[&str]) {
        let script = commands.join("\n");
        let mut shell = Command::new("timeout");
        shell.args(["--kill-after=5", LIMIT_SECONDS, "bash", "-exo", "pipefail", "-c", &script]);
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap_or_default());
        shell.env("PATH", path).env("DVS_STATE_DIR", self.path("state")).env("XDG_CONFIG_HOME", self.path("config"));
        shell.env_remove("DVS_SOCKET").env_remove("DVS_CONTEXT").current_dir(self.path("work"));
        let done = shell.output().expect("a shell");
        let said = [done.stdout, done.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(done.status.success(), "{}\n{}\n{}", done.status, said[0], said[1]);
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let mut down = Command::new(dvs_binary());
        let _ = down.args(["dev", "down"]).env("DVS_STATE_DIR", self.path("state")).output();
    }
}

#[test]
fn tutorial_is_typed_from_its_beginning_to_its_end() {
    let page = page("tutorial.md");
    let commands = commands(&page);
    assert!(commands.len() > 20, "{commands:?}");
    Desk::new().types(&commands);
}

#[test]
fn small_shop_comes_up_outlives_losses_and_is_restored() {
    let page = page("shop.md");
    let commands = commands(&page);
    assert!(commands.len() > 100, "{commands:?}");
    Desk::new().types(&commands);
}

#[test]
fn each_task_is_done_as_it_is_described() {
    let page = page("tasks.md");
    let begin = ["dvs dev up --nodes 3 --volume $PWD/media=1000", "dvs dc create shop --nodes n1,n2,n3 --start"];
    let commands = [&begin[..], &commands(&page), &["dvs dev down"]].concat();
    assert!(commands.len() > 30, "{commands:?}");
    Desk::new().types(&commands);
}

#[test]
fn pages_lead_to_pages_that_are_there() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let guide = std::fs::read_dir(docs.join("guide")).expect("the guide").flatten().map(|entry| entry.path());
    let mut links = 0;
    for page in guide.chain([docs.join("habits.md"), docs.join("index.md")]) {
        let text = std::fs::read_to_string(&page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.starts_with("http") {
                let target = page.parent().expect("a directory").join(path);
                assert!(target.exists(), "{} leads to {link}", page.display());
                links += 1;
            }
        }
    }
    assert!(links > 20, "{links}");
}
