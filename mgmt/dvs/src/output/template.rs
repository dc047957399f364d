//! `--format`: people say what is printed of each thing, as they do with docker: `{{.name}}\t{{.state}}`.
//!
//! A field is one of JSON's (`{{.pid}}`, `{{.spec.nodes}}`), else a column of the table (`{{.PROMISED}}`), however
//! its letters and `_` are typed; and `{{.Name}}` what `-o name` prints. `table ` before it makes columns with
//! headings, and so do names alone: `pid,node,state`. `json` is each thing in a line. There is nothing else: no
//! conditions, loops and functions but `json`; whoever needs more has `-o json`.

use std::io::{self, Write};
use std::str::FromStr;

use serde_json::Value;

use super::{Row, Table, printable};

/// Longer ones are nobody's.
const TEXT_BYTES_MAX: usize = 4096;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template {
    /// As it was typed.
    text: String,
    parts: Vec<Part>,
    layout: Layout,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    Lines,
    /// Tabs part columns.
    Columns,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(String),
    Field { path: Vec<String>, form: Form },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Plain,
    Json,
}

impl FromStr for Template {
    type Err = String;

    fn from_str(typed: &str) -> Result<Template, String> {
        if typed.len() > TEXT_BYTES_MAX {
            return Err(format!("it has more than {TEXT_BYTES_MAX} bytes"));
        }
        let (body, layout) = match typed.trim_start().strip_prefix("table ") {
            Some(body) => (body.trim_start().to_owned(), Layout::Columns),
            None if typed == "json" => ("{{json .}}".to_owned(), Layout::Lines),
            None if is_list_of_names(typed) => {
                let fields: Vec<String> = typed.split(',').map(|name| format!("{{{{.{name}}}}}")).collect();
                (fields.join("\t"), Layout::Columns)
            }
            None => (typed.to_owned(), Layout::Lines),
        };
        let parts = parse(&body)?;
        if !parts.iter().any(|part| matches!(part, Part::Field { .. })) {
            return Err("it names no field: {{.name}}, or name,state".to_owned());
        }
        Ok(Template { text: typed.to_owned(), parts, layout })
    }
}

/// `pid,node`: what can be nothing else.
fn is_list_of_names(text: &str) -> bool {
    let is_name = |name: &str| {
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        !name.is_empty() && !name.starts_with('.') && name.bytes().all(is_usual)
    };
    text.split(',').all(is_name)
}

fn parse(body: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = body;
    while let Some((before, behind)) = rest.split_once("{{") {
        let (inner, after) = behind.split_once("}}").ok_or("a '{{' has no '}}'")?;
        if !before.is_empty() {
            parts.push(Part::Text(unescaped(before)));
        }
        parts.push(field(inner.trim())?);
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(unescaped(rest)));
    }
    Ok(parts)
}

fn field(inner: &str) -> Result<Part, String> {
    let (form, path) = match inner.strip_prefix("json ") {
        Some(path) => (Form::Json, path.trim()),
        None => (Form::Plain, inner),
    };
    let bad = || format!("'{{{{{inner}}}}}' is not understood: {{{{.name}}}} or {{{{json .name}}}}; for more: -o json");
    let path = path.strip_prefix('.').ok_or_else(bad)?;
    let is_odd = |name: &str| name.is_empty() || name.contains(|c: char| c.is_whitespace() || "|(){}\"".contains(c));
    let path: Vec<String> = match path {
        "" => Vec::new(),
        _ => path.split('.').map(str::to_owned).collect(),
    };
    match path.iter().any(|name| is_odd(name)) {
        true => Err(bad()),
        false => Ok(Part::Field { path, form }),
    }
}

/// A shell passes `\t` on as two letters.
fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

/// A thing of a list.
struct Item {
    json: Value,
    headings: Vec<&'static str>,
    cells: Vec<String>,
    name: String,
}

impl Template {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Prints each thing; what nothing has of what is asked for, with what there is.
    pub fn print<T: Row>(&self, out: &mut impl Write, items: &[T]) -> io::Result<Option<String>> {
        let items: Vec<Item> = items.iter().map(Item::of).collect::<io::Result<_>>()?;
        match self.layout {
            Layout::Lines => {
                for item in &items {
                    writeln!(out, "{}", self.filled(item))?;
                }
            }
            Layout::Columns => {
                let headings = self.headings();
                let mut table = Table::new(&headings.split('\t').collect::<Vec<_>>());
                let cells = |item| self.filled(item).split('\t').map(str::to_owned).collect();
                items.iter().for_each(|item| table.push(cells(item)));
                table.print(out)?;
            }
        }
        Ok(self.unknown(&items))
    }

    fn filled(&self, item: &Item) -> String {
        let mut line = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => line.push_str(text),
                Part::Field { path, form: Form::Plain } => {
                    line.push_str(&printable(&item.find(path).map_or_else(String::new, |value| plain(&value))));
                }
                Part::Field { path, form: Form::Json } => {
                    line.push_str(&item.find(path).unwrap_or_default().to_string());
                }
            }
        }
        line
    }

    /// Names of fields in place of their values.
    fn headings(&self) -> String {
        let heading = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Field { path, .. } => path.last().map_or_else(String::new, |name| name.to_uppercase()),
        };
        self.parts.iter().map(heading).collect()
    }

    fn unknown(&self, items: &[Item]) -> Option<String> {
        let first = items.first()?;
        let is_nowhere = |path: &[String]| items.iter().all(|item| item.find(path).is_none());
        let path = self.parts.iter().find_map(|part| match part {
            Part::Field { path, .. } if is_nowhere(path) => Some(path),
            _ => None,
        })?;
        let known: Vec<&str> = first.json.as_object()?.keys().map(String::as_str).collect();
        Some(format!("nothing that is shown has '{}': {}", path.join("."), known.join(", ")))
    }
}

impl Item {
    fn of<T: Row>(item: &T) -> io::Result<Item> {
        let headings = [T::HEADINGS, T::MORE_HEADINGS].concat();
        let cells = item.cells().into_iter().chain(item.more_cells()).collect();
        Ok(Item { json: serde_json::to_value(item)?, headings, cells, name: item.name() })
    }

    fn find(&self, path: &[String]) -> Option<Value> {
        let mut found = Some(&self.json);
        for name in path {
            found = found.and_then(|within| below(within, name));
        }
        if let Some(value) = found {
            return Some(value.clone());
        }
        let [name] = path else { return None };
        let wanted = normal(name);
        let column = |wanted: &str| self.headings.iter().position(|heading| normal(heading) == wanted);
        let cell = |column: Option<usize>| self.cells.get(column?).cloned().map(Value::String);
        cell(column(&wanted)).or_else(|| match wanted.as_str() {
            "name" | "names" | "id" => Some(Value::String(self.name.clone())),
            "status" => cell(column("state")),
            _ => None,
        })
    }
}

fn below<'a>(within: &'a Value, name: &str) -> Option<&'a Value> {
    match within {
        Value::Object(fields) => fields.get(name).or_else(|| {
            let wanted = normal(name);
            fields.iter().find_map(|(key, value)| (normal(key) == wanted).then_some(value))
        }),
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => None,
    }
}

/// `memory_bytes`, `MemoryBytes` and `MEMORY BYTES` are one name.
fn normal(name: &str) -> String {
    name.chars().filter(|symbol| symbol.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;
    use serde_json::json;

    #[derive(Serialize)]
    struct Program(Value);

    impl Row for Program {
        const HEADINGS: &'static [&'static str] = &["PID", "STATE", "CPU %"];

        fn cells(&self) -> Vec<String> {
            vec![self.0["pid"].to_string(), "exited (7)".to_owned(), "1.5".to_owned()]
        }

        fn name(&self) -> String {
            self.0["pid"].to_string()
        }
    }

    fn printed(text: &str) -> String {
        let first =
            json!({ "pid": 7, "memory_bytes": 9, "command": ["sleep", "1"], "of": { "a": [1, { "b": true }] } });
        let programs = [Program(first), Program(json!({ "pid": 80, "exit": 3, "bad": "\u{1b}[31m" }))];
        let mut out = Vec::new();
        let unknown = text.parse::<Template>().unwrap().print(&mut out, &programs).unwrap();
        String::from_utf8(out).unwrap() + &unknown.unwrap_or_default()
    }

    #[test]
    fn fields_are_found_in_json_then_in_the_table() {
        for (template, expected) in [
            ("{{.pid}}:{{ .exit }}", "7:\n80:3\n"),
            ("{{.Names}} {{.Status}} {{.CPU}}", "7 exited (7) 1.5\n80 exited (7) 1.5\n"),
            ("{{.MemoryBytes}}\\t{{.Command}}", "9\tsleep 1\n\t\n"),
            ("{{.of.a.1.b}}{{json .of}}", "true{\"a\":[1,{\"b\":true}]}\nnull\n"),
            ("{{.bad}}x", "x\n\\u{1b}[31mx\n"),
            ("table {{.PID}}\\t{{.State}}", "PID  STATE\n7    exited (7)\n80   exited (7)\n"),
            ("pid,of.a.0", "PID  0\n7    1\n80\n"),
        ] {
            assert_eq!(printed(template), expected, "{template}");
        }
        assert!(printed("json").starts_with("{\"command\":[\"sleep\",\"1\"],"));
        assert!(printed("{{.colour}}").ends_with("nothing that is shown has 'colour': command, memory_bytes, of, pid"));
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for bad in ["", "plain text", "{{.a", "{{range .a}}", "{{if .a}}x{{end}}", "{{.a | upper}}", "{{a}}", "{{..}}"]
        {
            assert!(bad.parse::<Template>().is_err(), "{bad}");
        }
        assert!("x".repeat(5000).parse::<Template>().is_err());
    }
}
