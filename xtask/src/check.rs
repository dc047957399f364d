//! The doors a change passes.
//!
//! Everything is compiled once: each step builds the same selection, the whole workspace with its tests. Another
//! selection (`--package`, `--exclude`) would mean other features of shared crates, and with them a second build of
//! nearly everything.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use serde_json::Value;

use crate::rules;
use crate::run::{Outcome, finish, run, shown, workspace};

/// Tests of whole clusters, which need root.
const SYSTEM: &str = "end-to-end";
/// Programs full of tests that run at the same time: most of the time each waits.
const AT_ONCE: usize = 3;
/// The same in a long run, where each does much more.
const AT_ONCE_WHEN_LONG: usize = 2;
/// Arguments of a long run.
const LONG: &[&str] = &["--include-ignored", "--test-threads=1"];
/// The longest, those of whole clusters, and the same in their long form: begun first, none runs alone in the end.
const LONGEST: &[&str] = &["gate-", "etcd-", "conformance-", "replicated-", "difftest-", "dvsd-"];
const LONGEST_SYSTEM: &[&str] = &["errors-", "robustness-", "failover-", "recovery-", "joining-", "space-"];
const LONGEST_WHEN_LONG: &[&str] = &["kills-", "robustness-"];

const LINTS: [&str; 9] = ["-n19", "cargo", "clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];

/// The package that measures a hundred daemons.
const SCALE: &str = "dvsd";

/// Format, rules, fast tests, and beside them lints, which leave the processors to whoever else wants them.
pub fn check() -> Outcome {
    step("format", || run("cargo", ["fmt", "--all", "--check"]))?;
    step("rules", rules::check)?;
    let mut programs = step("build", build_tests)?;
    put_first(&mut programs, LONGEST);
    // Examples in the documentation are texts, none is a test.
    let fast = programs.iter().filter(|program| program.package != SYSTEM);
    all(std::thread::scope(|scope| {
        let lints = scope.spawn(|| step("lints", || run("nice", LINTS)));
        let tests = step("tests", || run_all(fast, AT_ONCE, &[]));
        [tests, lints.join().expect("nobody panicked")]
    }))
}

/// Whole clusters on this machine, few at a time.
pub fn test_system() -> Outcome {
    step("system tests", || {
        let mut programs = build_tests()?;
        put_first(&mut programs, LONGEST_SYSTEM);
        run_all(programs.iter().filter(|program| program.package == SYSTEM), AT_ONCE, &["--test-threads=1"])
    })
}

/// What exceeds minutes: tests marked `ignored`, and the seeded ones with many more seeds. Whole clusters two at a
/// time, because they wait for daemons to come back; the others one at a time, because they compute, and measure time.
/// `only`: with what the names of test programs begin; none for all.
pub fn test_long(only: &[&str]) -> Outcome {
    if only.is_empty() {
        step("the benchmark compiles", bench_compiles)?;
    }
    let mut programs = build_tests()?;
    programs.retain(|program| only.is_empty() || only.iter().any(|name| program.name().starts_with(name)));
    if programs.is_empty() {
        return Err(format!("no test program's name begins with {}", only.join(" or ")));
    }
    put_first(&mut programs, LONGEST_WHEN_LONG);
    let (clusters, others): (Vec<_>, Vec<_>) = programs.iter().partition(|program| program.package == SYSTEM);
    let measures_scale = only.is_empty() || only.iter().any(|name| SCALE.starts_with(name));
    let outcomes = [
        step("long system tests", || run_all(clusters.into_iter(), AT_ONCE_WHEN_LONG, LONG)),
        step("long tests", || run_all(others.into_iter(), 1, LONG)),
        if measures_scale { step("scale, as it is released", scale) } else { Ok(()) },
    ];
    all(outcomes)
}

/// A hundred daemons on this machine's CPUs: without optimisation they would wait for each other.
fn scale() -> Outcome {
    let test = ["test", "--release", "--quiet", "--package", SCALE, "--lib", "--"];
    run("cargo", test.into_iter().chain(["--ignored", "--nocapture", "--test-threads=1", "api::scale"]))
}

/// It is a workspace of its own, which nothing else here compiles.
fn bench_compiles() -> Outcome {
    let mut cargo = Command::new("cargo");
    finish(cargo.args(["check", "--quiet", "--tests"]).current_dir(workspace().join("bench")))
}

/// A program full of tests.
struct TestProgram {
    package: String,
    /// Of the package: where its tests expect to be started.
    directory: PathBuf,
    executable: PathBuf,
}

impl TestProgram {
    fn name(&self) -> String {
        self.executable.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Builds all tests, and with them the binary `dvs`, because tests of its own package use it.
fn build_tests() -> Outcome<Vec<TestProgram>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    cargo.current_dir(workspace()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let done = cargo.output().map_err(|error| format!("{} did not start: {error}", shown(&cargo)))?;
    if !done.status.success() {
        return Err(format!("{} failed ({})", shown(&cargo), done.status));
    }
    let lines = String::from_utf8_lossy(&done.stdout);
    Ok(lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|message| program(&message))
        .collect())
}

/// `None`: the message is about something else.
fn program(message: &Value) -> Option<TestProgram> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?.to_owned();
    let package = directory.strip_prefix(workspace()).ok()?;
    // The system tests' folder is not named after their package.
    let package = if package == Path::new("tests") { SYSTEM } else { package.file_name()?.to_str()? };
    Some(TestProgram { package: package.to_owned(), directory, executable: message["executable"].as_str()?.into() })
}

fn put_first(programs: &mut [TestProgram], names: &[&str]) {
    let place = |program: &TestProgram| names.iter().position(|name| program.name().starts_with(name));
    programs.sort_by_key(|program| place(program).unwrap_or(names.len()));
}

/// Runs them all, also after a failure, some at a time; what a program said is shown when it has ended.
fn run_all<'a>(programs: impl Iterator<Item = &'a TestProgram>, at_once: usize, arguments: &[&str]) -> Outcome {
    let (waiting, failed) = (Mutex::new(programs.collect::<Vec<_>>().into_iter()), Mutex::new(Vec::new()));
    // A guard that lives through the run would make it one at a time.
    let next = || waiting.lock().expect("nobody panicked").next();
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let outcome = run_program(program, arguments);
                    failed.lock().expect("nobody panicked").extend(outcome.err());
                }
            });
        }
    });
    let failed = failed.into_inner().expect("nobody panicked");
    all(failed.into_iter().map(Err))
}

/// Names each that failed.
fn all(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let failed: Vec<String> = outcomes.into_iter().filter_map(Outcome::err).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Its output goes to a file, because what it leaves running might hold a pipe open for ever.
fn run_program(program: &TestProgram, arguments: &[&str]) -> Outcome {
    let (log, begun) = (program.executable.with_extension("log"), Instant::now());
    let output = |error: std::io::Error| format!("cannot write {}: {error}", log.display());
    let (stdout, stderr) = File::create(&log).and_then(|file| Ok((file.try_clone()?, file))).map_err(output)?;
    let mut command = Command::new(&program.executable);
    command.args(arguments).current_dir(&program.directory).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    if arguments == LONG {
        command.env("DVS_TEST_LONG", "1");
        eprintln!("xtask: {} begins, and writes {}", program.package, log.display());
    }
    let outcome = finish(&mut command);
    let said = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    eprintln!("xtask: {} {}, {:.1} s\n{said}", program.package, program.name(), begun.elapsed().as_secs_f64());
    outcome
}

fn step<T>(name: &str, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    eprintln!("xtask: {name}");
    let begun = Instant::now();
    let outcome = work();
    eprintln!("xtask: {name}: {:.0} s", begun.elapsed().as_secs_f64());
    outcome
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn programs_full_of_tests_are_told_from_everything_else_that_cargo_builds() {
        let manifest = |folder: &str| workspace().join(folder).join("Cargo.toml");
        let artifact = |folder: &str, test: bool| json!({ "reason": "compiler-artifact", "manifest_path": manifest(folder), "profile": { "test": test }, "executable": "/t" });
        let found = |message: &Value| program(message).map(|program| program.package);
        assert_eq!(found(&artifact("kernel/ipc", true)).as_deref(), Some("ipc"));
        assert_eq!(found(&artifact("tests", true)).as_deref(), Some(SYSTEM));
        assert_eq!(found(&artifact("mgmt/dvs", false)), None);
        assert_eq!(found(&json!({ "reason": "build-finished", "success": true })), None);
    }
}
