//! `dvs internal man`: a manual page for each command that people type, from what `--help` says.
//!
//! Examples stay as they are typed: lines that are indented in the help are not filled.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::{Outcome, print};
use crate::cli::Cli;
use crate::errors::Failure;

const SECTION: &str = "1";
const MANUAL: &str = "DVS";

#[derive(Args, Debug)]
pub struct Options {
    /// Directory for the pages; made when it is not there.
    directory: PathBuf,
    /// Day that the pages show: YYYY-MM-DD.
    #[arg(long, value_name = "DAY", default_value = "")]
    date: String,
}

pub fn execute(options: &Options) -> Outcome {
    let failed = |path: &Path, cause: io::Error| {
        Failure::new(format!("cannot write {}", path.display())).because(&cause).hint("another directory")
    };
    std::fs::create_dir_all(&options.directory).map_err(|cause| failed(&options.directory, cause))?;
    for (name, page) in pages(&options.date)? {
        let path = options.directory.join(format!("{name}.{SECTION}"));
        std::fs::write(&path, page).map_err(|cause| failed(&path, cause))?;
        print(|out| writeln!(out, "{}", path.display()))?;
    }
    Ok(std::process::ExitCode::SUCCESS)
}

/// By name, without those of the machinery.
fn pages(date: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let (mut pages, mut open) = (Vec::new(), vec![root]);
    while let Some(command) = open.pop() {
        open.extend(command.get_subcommands().filter(|child| !child.is_hide_set()).cloned());
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        pages.push((name, page(command, date)?));
    }
    pages.sort();
    Ok(pages)
}

fn page(command: Command, date: &str) -> io::Result<Vec<u8>> {
    // What a short help leaves out has its place in a manual.
    let command = command.mut_args(|argument| argument.hide_short_help(false));
    let mut page = Vec::new();
    let after = command.get_after_long_help().or_else(|| command.get_after_help()).map(ToString::to_string);
    let has_commands = command.get_subcommands().any(|child| !child.is_hide_set());
    let source = concat!("dvs ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).section(SECTION).manual(MANUAL).source(source).date(date);
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    let rest = after.map(|text| sections(&text)).unwrap_or_default();
    rest.to_writer(&mut page)?;
    Ok(page)
}

/// A line that ends with a colon heads what is indented below it.
fn sections(text: &str) -> Roff {
    let mut page = Roff::new();
    let mut before = Line::Nothing;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let heads = lines.peek().is_some_and(|next| next.starts_with(' '));
        let kind = match line {
            "" if before == Line::Literal => Line::Literal,
            "" => Line::Blank,
            line if line.starts_with(' ') => Line::Literal,
            line if line.ends_with(':') && heads => Line::Heading,
            _ => Line::Text,
        };
        match (before, kind) {
            (Line::Literal, Line::Literal) => (),
            (Line::Literal, _) => drop(page.control("fi", [])),
            (Line::Nothing, Line::Text) => drop(page.control("SH", ["NOTES"])),
            (Line::Blank, Line::Text) => drop(page.control("PP", [])),
            (_, Line::Literal) => drop(page.control("nf", [])),
            _ => (),
        }
        match kind {
            Line::Heading => drop(page.control("SH", [line.trim_end_matches(':').to_uppercase().as_str()])),
            Line::Literal | Line::Text => drop(page.text([roman(line)])),
            Line::Blank | Line::Nothing => (),
        }
        before = kind;
    }
    if before == Line::Literal {
        page.control("fi", []);
    }
    page
}

/// What a line of a help text is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Nothing,
    Blank,
    Heading,
    /// Shown as it is, blank lines in between too.
    Literal,
    Text,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_people_type_has_a_page_with_its_examples_as_they_are_typed() {
        let pages = pages("2026-01-01").unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert!(["dvs", "dvs-run", "dvs-dc-create", "dvs-daemon"].iter().all(|name| names.contains(name)), "{names:?}");
        assert!(names.iter().all(|name| !name.contains("internal") && !name.contains("keeper")), "{names:?}");
        let run = pages.iter().find(|(name, _)| name == "dvs-run").unwrap();
        let run = String::from_utf8(run.1.clone()).unwrap();
        assert!(run.contains(".SH EXAMPLES\n.nf\n"), "{run}");
        assert!(run.contains(".SH OPTIONS") && run.contains("Socket of the daemon to talk to"), "{run}");
    }

    #[test]
    fn text_is_filled_and_what_is_indented_is_not() {
        let page = sections("Some words.\nMore.\n\nExamples:\n  dvs ps\n  dvs run\n\nA line at the end").to_roff();
        let expected =
            ".SH NOTES\nSome words.\nMore.\n.SH EXAMPLES\n.nf\n  dvs ps\n  dvs run\n\n.fi\nA line at the end\n";
        assert_eq!(page, expected);
    }
}
