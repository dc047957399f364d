//! The project's own tasks: `cargo xtask check | rules | demo | deb | test-system | test-long`.
//!
//! `check` is the one door that every change passes: format, rules, lints, fast tests. It needs no root.

#![forbid(unsafe_code)]

mod check;
mod deb;
mod demo;
mod rules;
mod run;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask TASK

  check          format, rules, lints, unit and simulation tests
  rules          who may import whom, one owner for each name, width of comments
  demo [--keep]  three nodes, one container, an unmodified web server, figures; --keep leaves it up
  deb [--binary FILE] [--out DIRECTORY]
                 a Debian package of the one binary, built for release unless one is given
  test-system    tests that start whole clusters (root)
  test-long [NAME]...
                 everything that takes longer than minutes (root), or the test programs whose names begin so
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["check"] => check::check(),
        ["rules"] => rules::check(),
        ["demo"] => demo::demo(demo::After::TakeDown),
        ["demo", "--keep"] => demo::demo(demo::After::Keep),
        ["tcp-serve", connections] => {
            connections.parse().map_err(|_| "not a number".to_owned()).and_then(demo::tcp_serve)
        }
        ["tcp-fetch", address] => demo::tcp_fetch(address),
        ["deb", options @ ..] => deb::Wanted::parse(options).and_then(|wanted| deb::build(&wanted)),
        ["test-system"] => check::test_system(),
        ["test-long", only @ ..] => check::test_long(only),
        ["help" | "--help" | "-h"] | [] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprintln!("xtask: unknown task '{}'\n  try: cargo xtask help", other.join(" "));
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
