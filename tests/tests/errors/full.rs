//! A disk that is full: where commands write files, where a daemon keeps what it knows, and where output goes.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use end_to_end::{Cluster, eventually, fill};

use crate::table::{Needs, Row, Short, TABLE, Well};
use crate::world::{Files, Tried, World, demand_none, listed};

const SOON: Duration = Duration::from_secs(60);
const PAGE: u64 = 4096;

/// A small file system in memory.
struct Small {
    at: PathBuf,
    pages: u64,
}

impl Small {
    fn mount(at: PathBuf, pages: u64) -> Small {
        fs::create_dir_all(&at).expect("a directory");
        let size = format!("size={}", pages * PAGE);
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&at).status().expect("mount");
        assert!(done.success());
        Small { at, pages }
    }

    /// Leaves so many pages.
    fn leave(&self, pages: u64) {
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(self.at.join("filler"));
        let mut file = file.expect("a file");
        let used = listed(&self.at).values().map(|content| (content.len() as u64).div_ceil(PAGE)).sum::<u64>();
        let bytes = self.pages.saturating_sub(used + pages) * PAGE;
        file.write_all(&vec![7; usize::try_from(bytes).expect("small")]).expect("as counted");
    }

    fn files(&self) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
        let mut files = listed(&self.at);
        files.remove(&self.at.join("filler"));
        files
    }

    fn clear(&self) {
        for path in self.files().into_keys() {
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

fn row(typed: &str) -> &'static Row {
    TABLE.iter().find(|row| row.typed == typed).expect("a command")
}

/// With room for nothing, for one page, for two … until it succeeds: each write of the command fails once. Each time
/// nothing is left of it, and the first time that there is room the same line succeeds.
fn fails_at_each_write(
    small: &Small,
    typed: &str,
    line: &[String],
    command: impl Fn(&[String]) -> Command,
) -> Result<(), String> {
    small.clear();
    let mut failed = 0;
    for pages in 0..small.pages {
        // By single pages at first, then by leaps: large files have writes that are alike.
        if pages > 12 && !pages.is_power_of_two() {
            continue;
        }
        small.leave(pages);
        let tried = Tried::of(row(typed), line.to_vec(), command(line));
        if tried.done.status.success() {
            return if failed > 0 { Ok(()) } else { Err(format!("{}: it writes nothing there", tried.words())) };
        }
        failed += 1;
        tried.demand_refusal(1, "No space left on device").map_err(|fault| format!("with {pages} pages, {fault}"))?;
        let left = small.files().into_keys().collect::<Vec<_>>();
        if !left.is_empty() {
            return Err(format!("{}: with {pages} pages it left {left:?}", tried.words()));
        }
    }
    Err(format!("{typed}: it never succeeds"))
}

#[test]
fn file_for_which_there_is_no_room_is_not_left_by_half_and_what_belongs_to_it_is_taken_back() {
    let mut files = Files::new();
    let small = Small::mount(files.path("full"), 512);
    files.words.insert("full", small.at.display().to_string());
    let alone = |typed: &str, line: &[&str]| {
        let line = files.fill(line);
        let command = |line: &[String]| {
            files.dvs(&typed.split(' ').map(str::to_owned).chain(line.iter().cloned()).collect::<Vec<_>>())
        };
        fails_at_each_write(&small, typed, &line, command).err()
    };
    let mut faults: Vec<String> = [
        alone("node ca", &["home", "--out", "{full}/ca"]),
        alone("node ca", &["home", "--out", "{full}"]),
        alone("access key", &["eve", "--out", "{full}"]),
        alone("doctor report", &["--out", "{full}/report.tar"]),
    ]
    .into_iter()
    .flatten()
    .collect();
    // The machines see what was mounted before they were made.
    let mut world = World::begin(Cluster::up(2), "n1", "n2");
    world.files.words.insert("full", small.at.display().to_string());
    let decided = world.decided("n1");
    let asking = |typed: &str, line: &[&str]| {
        let line = world.files.fill(line);
        fails_at_each_write(&small, typed, &line, |line| world.at("n1", typed, line)).err()
    };
    faults.extend(asking("cluster backup", &["{full}/copy"]));
    for means in ["access token", "access certificate"] {
        faults.extend(asking(means, &["eve", "--role", "viewer", "--out", "{full}/eve.access"]));
        let words = world.files.fill(&["eve"]);
        assert!(world.at("n1", "access rm", &words).output().expect("dvs starts").status.success());
    }
    // On the machine of somebody elsewhere.
    let access = world.files.path("ada.access").display().to_string();
    let config = small.at.join("config");
    let elsewhere = |typed: &str, line: &[String]| {
        let mut command = world.at("n1", "dev exec n2 --", &[]);
        command.env_remove("DVS_SOCKET").env("XDG_CONFIG_HOME", &config).arg(end_to_end::dvs_binary());
        command.args(typed.split(' ')).args(line);
        command
    };
    let add = ["far", "--token-file", &access].map(str::to_owned);
    // Directories may stay: they hold nothing, and are made once.
    fs::create_dir_all(config.join("dvs/contexts")).expect("directories");
    let places = small.files();
    let mut pages = 0;
    loop {
        small.leave(pages);
        let tried = Tried::of(row("context add"), add.to_vec(), elsewhere("context add", &add));
        if tried.done.status.success() {
            break;
        }
        faults.extend(tried.demand_refusal(1, "No space left on device").err());
        if small.files() != places {
            faults.push(format!("context add: with {pages} pages it left {:?}", small.files().into_keys()));
        }
        pages += 1;
        assert!(pages < 20, "{faults:?}");
    }
    assert!(pages >= 2, "a context, and which one is used");
    let before = small.files();
    small.leave(0);
    let again = [&add[..], &["--replace".to_owned()]].concat();
    let tried = Tried::of(row("context add"), again.clone(), elsewhere("context add", &again));
    faults.extend(tried.demand_refusal(1, "No space left on device").err());
    let tried = Tried::of(row("context use"), vec!["far".to_owned()], elsewhere("context use", &["far".to_owned()]));
    faults.extend(tried.demand_refusal(1, "No space left on device").err());
    assert!(small.files() == before, "the context that was there is another one");
    demand_none("no room for a file", faults);
    assert_eq!(world.decided("n1"), decided);
}

#[test]
fn node_for_whose_certificates_there_is_no_room_has_those_it_had() {
    let mut files = Files::new();
    let small = Small::mount(files.path("full"), 64);
    files.words.insert("full", small.at.display().to_string());
    let line = files.fill(&["n1", "--ca", "{dir}/ca", "--out", "{full}/tls"]);
    let run = || {
        let words: Vec<String> = ["node", "cert"].map(str::to_owned).into_iter().chain(line.clone()).collect();
        Tried::of(row("node cert"), line.clone(), files.dvs(&words))
    };
    assert!(run().done.status.success());
    let is_whole = || {
        let key = fs::read_to_string(small.at.join("tls/node.key")).expect("a key");
        let pair = fs::read_to_string(small.at.join("tls/node.pair")).expect("a pair");
        let certificate = fs::read_to_string(small.at.join("tls/node.crt")).expect("a certificate");
        // What the daemon mends by the pair when it reads them.
        pair.starts_with(&key) && pair.ends_with(&certificate)
    };
    assert!(is_whole());
    // Only what is replaced at the time needs a page more: with one all succeed.
    small.leave(0);
    let before = small.files();
    run().demand_refusal(1, "No space left on device").unwrap_or_else(|fault| panic!("{fault}"));
    assert!(small.files() == before && is_whole());
    small.leave(1);
    assert!(run().done.status.success() && is_whole());
}

/// What is done so far is kept for the same again, and without settings it is no node.
#[test]
fn machine_that_has_no_room_to_become_a_node_is_none_and_becomes_one_when_there_is_room() {
    let mut files = Files::new();
    let small = Small::mount(files.path("full"), 64);
    files.words.insert("full", small.at.display().to_string());
    let own = ["--config", "{full}/dvsd.toml", "--data", "{full}/state", "--run", "{full}/run", "--node", "n1"];
    let line = files.fill(&[&["home", "--engine", "local", "--advertise", "192.0.2.9"], &own[..]].concat());
    let mut failed = 0;
    for pages in 0..32 {
        small.leave(pages);
        let words: Vec<String> = ["cluster", "init"].map(str::to_owned).into_iter().chain(line.clone()).collect();
        let tried = Tried::of(row("cluster init"), line.clone(), files.dvs_at("192.0.2.9", &words));
        if tried.done.status.success() {
            break;
        }
        failed += 1;
        tried.demand_refusal(1, "No space left on device").unwrap_or_else(|fault| panic!("{pages} pages: {fault}"));
        let left = small.files();
        assert!(!left.contains_key(&small.at.join("dvsd.toml")), "{pages} pages: settings without a node");
        let draft = left.keys().find(|path| path.to_string_lossy().ends_with(".new"));
        assert!(draft.is_none(), "{pages} pages: {draft:?}");
    }
    assert!((3..32).contains(&failed), "{failed}");
    assert!(small.at.join("dvsd.toml").exists());
}

#[test]
fn development_cluster_for_which_there_is_no_room_is_not_made_by_half() {
    let files = Files::new();
    let small = Small::mount(files.path("full"), 4096);
    for pages in [0, 4, 64, 512] {
        small.leave(pages);
        let words = ["--state-dir", &small.at.display().to_string(), "dev", "up", "--nodes", "1"].map(str::to_owned);
        let tried = Tried::of(row("dev up"), words.to_vec(), files.dvs(&words));
        tried.demand_refusal(1, "").unwrap_or_else(|fault| panic!("{pages} pages: {fault}"));
        let left = small.files().into_keys().filter(|path| path.is_file()).collect::<Vec<_>>();
        assert!(left.is_empty(), "{pages} pages: {left:?}");
        let left = processes_of(&small.at);
        assert!(left.is_empty(), "{pages} pages: processes {left:?}");
    }
}

/// Those that have the directory in their arguments or environment.
fn processes_of(directory: &Path) -> Vec<PathBuf> {
    let name = directory.display().to_string();
    let processes = fs::read_dir("/proc").expect("a list").flatten().map(|entry| entry.path());
    let is_of = |process: &PathBuf| {
        ["cmdline", "environ"].iter().any(|file| {
            let text = fs::read(process.join(file)).unwrap_or_default();
            String::from_utf8_lossy(&text).contains(&name)
        })
    };
    processes.filter(is_of).collect()
}

/// Whoever sent the output to a full disk hears it, whatever was printed.
#[test]
fn output_that_cannot_be_written_is_an_error_of_every_command_that_prints() {
    let world = World::begin(Cluster::up(2), "n1", "n2");
    let mut faults = Vec::new();
    for row in TABLE.iter().filter(|row| row.well == Well::Succeeds) {
        let words = world.files.fill(row.line);
        let mut command = world.at("n1", row.typed, &words);
        if !matches!(row.typed, "run" | "exec" | "service add") {
            command.args(["--output", "json"]);
        }
        let script = "exec \"$0\" \"$@\" >/dev/full";
        let mut full = Command::new("sh");
        full.args(["-c", script]).arg(command.get_program()).args(command.get_args());
        world.files.environment(&mut full);
        full.env("DVS_STATE_DIR", world.cluster.state_dir()).env("DVS_SOCKET", world.cluster.socket_of("n1"));
        full.current_dir(world.files.path(""));
        let tried = Tried::of(row, words, full);
        // These print nothing.
        let is_silent =
            matches!(row.typed, "run" | "exec" | "kill" | "cp" | "doctor report" | "ds pipe" | "logs" | "service logs");
        let outcome = if is_silent { tried.demand_success() } else { with_notes(&tried) };
        faults.extend(outcome.err());
    }
    demand_none("output to a full disk", faults);
}

/// What was done is told before it is printed for programs.
fn with_notes(tried: &Tried) -> Result<(), String> {
    let said = tried.said();
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("dvs: ")).collect();
    let is_told = said.contains("No space left on device") && said.contains("\n  try: ");
    match (errors.as_slice(), is_told, tried.done.status.code()) {
        ([error], true, Some(1)) if error.contains("written") || error.contains("cannot write") => Ok(()),
        _ => Err(format!("{}: status {:?}\n{said}", tried.words(), tried.done.status.code())),
    }
}

#[test]
fn on_a_node_whose_disk_is_full_every_command_does_it_or_says_why_not_and_works_when_there_is_room() {
    let Some(cluster) = Cluster::up_on_disk(2, 512 << 20) else {
        eprintln!("SKIPPED: this machine mounts no loop device");
        return;
    };
    let world = World::begin(cluster, "n1", "n2");
    let filler = world.cluster.state_dir().join("filler");
    fill(&filler);
    let mut faults = Vec::new();
    let lines =
        || TABLE.iter().filter(|row| matches!(row.needs, Needs::Daemon(_)) && !matches!(row.well, Well::Elsewhere(_)));
    let mut refused = Vec::new();
    for row in lines() {
        let before = world.decided("n1");
        let words = world.files.fill(row.line);
        let command = crate::world::bounded(row, world.at("n1", row.typed, &words));
        let tried = Tried::of(row, words, command);
        faults.extend(tried.demand(Short::Either, "").err());
        if tried.demand_success().is_err() {
            refused.push(row.typed);
            let after = world.decided("n1");
            if after != before {
                faults.push(format!("{}: refused, and yet\n{before}became\n{after}", tried.words()));
            }
        }
    }
    println!("refused while the disk was full: {refused:?}");
    demand_none("full disk of a node", faults);
    fs::remove_file(&filler).expect("room");
    eventually("the node is well again", SOON, || {
        let node = world.cluster.json(&["node", "inspect", "n1", "-o", "json"]);
        // It measures every ten seconds what it has, and may have done so while there was nothing.
        let [has, promised] = ["capacity", "promised"].map(|what| node[what]["disk_bytes"].as_u64());
        let has_room = has.is_none_or(|has| has.saturating_sub(promised.unwrap_or(0)) >= 64 << 20);
        (node["state"] == "ready" && has_room).then_some(())
    });
    // What was taken away meanwhile is there again.
    let names = world.cluster.ok(&["dc", "ls", "-o", "name"]);
    if !names.lines().any(|name| name == "idle") {
        world.cluster.ok(&["dc", "create", "idle", "--nodes", "n1", "--disk", "64M"]);
    }
    if !world.cluster.ok(&["service", "ls", "idle", "-o", "name"]).lines().any(|name| name == "clock/0") {
        world.cluster.ok(&["service", "add", "idle", "clock", "--", "true"]);
    }
    let ports = world.cluster.ok(&["port", "ls", "idle", "-o", "name"]);
    if ports.lines().any(|name| name == "18080:80/tcp") {
        world.cluster.ok(&["port", "rm", "idle", "18080"]);
    }
    if !ports.lines().any(|name| name == "18079:18079/tcp") {
        world.cluster.ok(&["port", "add", "idle", "18079"]);
    }
    if !world.cluster.ok(&["access", "ls", "-o", "name"]).lines().any(|name| name == "ada") {
        let out = world.files.path("ada2.access").display().to_string();
        world.cluster.ok(&["access", "token", "ada", "--role", "viewer", "--out", &out]);
    }
    let mut faults = Vec::new();
    for row in lines() {
        let words = world.files.fill(row.line);
        let command = crate::world::bounded(row, world.at("n1", row.typed, &words));
        faults.extend(Tried::of(row, words, command).demand_success().err());
    }
    demand_none("room again", faults);
}
