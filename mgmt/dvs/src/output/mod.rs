//! The four forms in which every answer can be printed. Data goes to standard output, everything else to standard
//! error.
//!
//! `json` is for programs and stable: it is the REST API's own form. `yaml` says the same. `name` is one name in a
//! line, for shells. `table` is for people and may change.

mod human;
mod table;
mod yaml;

use std::io::{self, Write};

use serde::Serialize;

pub use human::{bytes, clock, cpu_time, duration};
pub use table::Table;

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
}

impl Format {
    /// As on a command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Table => "table",
            Format::Json => "json",
            Format::Yaml => "yaml",
            Format::Name => "name",
        }
    }
}

/// Something that is shown as a row of a list.
pub trait Row: Serialize {
    const HEADINGS: &'static [&'static str];
    fn cells(&self) -> Vec<String>;
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
        Format::Table => view(item, out),
        Format::Name => writeln!(out, "{}", printable(&item.name())),
        Format::Json | Format::Yaml => structured(out, format, item),
    }
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
    fn one_list_in_four_forms() {
        assert_eq!(printed(Format::Table), "NAME  GRAMS\nfig   50\nno    7\n");
        assert_eq!(printed(Format::Name), "fig\nno\n");
        assert_eq!(printed(Format::Yaml), "- grams: 50\n  name: fig\n- grams: 7\n  name: \"no\"\n");
        let json: serde_json::Value = serde_json::from_str(&printed(Format::Json)).unwrap();
        assert_eq!(json[1]["grams"], 7);
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
