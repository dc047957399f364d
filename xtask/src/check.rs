//! The doors a change passes.

use crate::rooms;
use crate::run::{Outcome, run};

/// Format, room rule, lints, fast tests.
pub fn check() -> Outcome {
    step("format", || run("cargo", ["fmt", "--all", "--check"]))?;
    step("room rule", rooms::check)?;
    step("lints", || run("cargo", ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    step("tests", || run("cargo", ["test", "--workspace", "--exclude", "end-to-end", "--no-fail-fast"]))
}

/// Whole clusters on this machine. One at a time: they measure time and share two CPUs.
pub fn test_system() -> Outcome {
    run("cargo", ["build", "--package", "dvs", "--bin", "dvs"])?;
    step("system tests", || {
        run("cargo", ["test", "--package", "end-to-end", "--no-fail-fast", "--", "--test-threads=1"])
    })
}

/// What exceeds minutes: tests marked `ignored`, and the seeded ones with many more seeds.
pub fn test_long() -> Outcome {
    run("cargo", ["build", "--package", "dvs", "--bin", "dvs"])?;
    step("long tests", || {
        run(
            "env",
            [
                "DVS_TEST_LONG=1",
                "cargo",
                "test",
                "--workspace",
                "--no-fail-fast",
                "--",
                "--include-ignored",
                "--test-threads=1",
            ],
        )
    })
}

fn step(name: &str, work: impl FnOnce() -> Outcome) -> Outcome {
    eprintln!("xtask: {name}");
    work()
}
