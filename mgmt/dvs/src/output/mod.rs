//! The forms in which every answer can be printed. Data goes to standard output, everything else to standard error.
//!
//! `json` is for programs and stable: it is the REST API's own form, and `docs/output.schema.json` describes it of each
//! command. `yaml` says the same. `name` is one name in a line, for shells. `table` is for people and may change;
//! `wide` has columns more, and is not cut at the width of a terminal. `--format` is whatever people want of it.

mod human;
mod table;
mod template;
mod yaml;

use std::io::{self, Write};

use serde::Serialize;

pub use human::{bytes, clock, cpu_time, duration};
pub use table::Table;
pub use template::Template;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    Yaml,
    /// Names only, one in a line.
    Name,
    /// For people: all columns, whole.
    Wide,
    /// As `--format` says. One command line has one, which stays to the end of the process.
    #[value(skip)]
    Template(&'static Template),
}

impl Format {
    pub fn of_template(template: Template) -> Format {
        Format::Template(Box::leak(Box::new(template)))
    }

    /// Whether a person reads it.
    pub fn is_for_people(self) -> bool {
        matches!(self, Format::Table | Format::Wide)
    }

    /// As on a command line: of a process in a container that prints for us.
    pub fn words(self) -> [&'static str; 2] {
        let output = |form| ["--output", form];
        match self {
            // What it prints is no list with columns more.
            Format::Table | Format::Wide => output("table"),
            Format::Json => output("json"),
            Format::Yaml => output("yaml"),
            Format::Name => output("name"),
            Format::Template(template) => ["--format", template.as_str()],
        }
    }
}

/// Something that is shown as a row of a list.
pub trait Row: Serialize {
    const HEADINGS: &'static [&'static str];
    /// Further columns, of `-o wide`, before the last one.
    const MORE_HEADINGS: &'static [&'static str] = &[];
    fn cells(&self) -> Vec<String>;
    /// What is in these.
    fn more_cells(&self) -> Vec<String> {
        Vec::new()
    }
    fn name(&self) -> String;
}

/// Prints a list.
pub fn list<T: Row>(out: &mut impl Write, format: Format, items: &[T]) -> io::Result<()> {
    match format {
        Format::Table => {
            let mut table = Table::new(T::HEADINGS);
            items.iter().for_each(|item| table.push(item.cells()));
            table.print(out)
        }
        Format::Wide => {
            let mut table = Table::new(&before_last(T::HEADINGS.to_vec(), T::MORE_HEADINGS.to_vec()));
            items.iter().for_each(|item| table.push(before_last(item.cells(), item.more_cells())));
            table.print_whole(out)
        }
        Format::Template(template) => filled(out, template, items),
        Format::Name => items.iter().try_for_each(|item| writeln!(out, "{}", printable(&item.name()))),
        Format::Json | Format::Yaml => structured(out, format, &items),
    }
}

/// Prints one thing; `view` says how people like to see it.
pub fn one<T: Row, W: Write>(
    out: &mut W,
    format: Format,
    item: &T,
    view: fn(&T, &mut W) -> io::Result<()>,
) -> io::Result<()> {
    match format {
        Format::Table | Format::Wide => view(item, out),
        Format::Template(template) => filled(out, template, std::slice::from_ref(item)),
        Format::Name => writeln!(out, "{}", printable(&item.name())),
        Format::Json | Format::Yaml => structured(out, format, item),
    }
}

/// What is longest stands last: a command line, a reason.
fn before_last<T>(mut columns: Vec<T>, more: Vec<T>) -> Vec<T> {
    let last = columns.pop();
    columns.into_iter().chain(more).chain(last).collect()
}

/// A field that nothing has is most likely a mistake, and no error: many are there only sometimes.
fn filled<T: Row>(out: &mut impl Write, template: &Template, items: &[T]) -> io::Result<()> {
    if let Some(unknown) = template.print(out, items)? {
        // Standard error may be closed; then nobody wants to know.
        let _ = writeln!(io::stderr(), "dvs: {}", printable(&unknown));
    }
    Ok(())
}

fn structured(out: &mut impl Write, format: Format, value: &impl Serialize) -> io::Result<()> {
    if format == Format::Yaml {
        return yaml::print(out, &serde_json::to_value(value)?);
    }
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Text from outside, made harmless for a terminal: control characters are escaped.
pub fn printable(text: &str) -> String {
    let dangerous = |symbol: char| symbol.is_control() || ('\u{202a}'..='\u{202e}').contains(&symbol);
    text.chars().fold(String::with_capacity(text.len()), |mut out, symbol| {
        if dangerous(symbol) {
            out.extend(symbol.escape_default())
        } else {
            out.push(symbol)
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Fruit {
        name: &'static str,
        grams: u32,
    }

    impl Row for Fruit {
        const HEADINGS: &'static [&'static str] = &["NAME", "GRAMS"];
        fn cells(&self) -> Vec<String> {
            vec![self.name.to_owned(), self.grams.to_string()]
        }
        const MORE_HEADINGS: &'static [&'static str] = &["OUNCES"];
        fn more_cells(&self) -> Vec<String> {
            vec![(self.grams / 28).to_string()]
        }
        fn name(&self) -> String {
            self.name.to_owned()
        }
    }

    fn printed(format: Format) -> String {
        let mut out = Vec::new();
        list(&mut out, format, &[Fruit { name: "fig", grams: 50 }, Fruit { name: "no", grams: 7 }]).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn one_list_in_all_forms() {
        assert_eq!(printed(Format::Table), "NAME  GRAMS\nfig   50\nno    7\n");
        assert_eq!(printed(Format::Name), "fig\nno\n");
        assert_eq!(printed(Format::Yaml), "- grams: 50\n  name: fig\n- grams: 7\n  name: \"no\"\n");
        let json: serde_json::Value = serde_json::from_str(&printed(Format::Json)).unwrap();
        assert_eq!(json[1]["grams"], 7);
        assert_eq!(printed(Format::Wide), "NAME  OUNCES  GRAMS\nfig   1       50\nno    0       7\n");
        assert_eq!(printed(Format::of_template("{{.grams}} g".parse().unwrap())), "50 g\n7 g\n");
    }

    #[test]
    fn empty_list_is_still_a_list_for_programs() {
        let mut out = Vec::new();
        list::<Fruit>(&mut out, Format::Json, &[]).unwrap();
        list::<Fruit>(&mut out, Format::Yaml, &[]).unwrap();
        list::<Fruit>(&mut out, Format::Name, &[]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "[]\n[]\n");
    }
}
