//! JSON values as YAML. Every JSON text is YAML already; this only makes it pleasant to read, so anything that a YAML
//! reader could take for something else is quoted as JSON quotes it.

use std::io::{self, Write};

use serde_json::Value;

pub fn print(out: &mut impl Write, value: &Value) -> io::Result<()> {
    let mut text = String::new();
    block(&mut text, value, 0);
    out.write_all(text.as_bytes())
}

/// Writes `value` at the current position, which is the beginning of a line indented by `indent`.
fn block(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            for (position, item) in items.iter().enumerate() {
                pad(text, if position == 0 { 0 } else { indent });
                text.push_str("- ");
                block(text, item, indent + 2);
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            for (position, (key, field)) in fields.iter().enumerate() {
                pad(text, if position == 0 { 0 } else { indent });
                scalar(text, key);
                text.push(':');
                if is_nested(field) {
                    text.push('\n');
                    pad(text, indent + 2);
                    block(text, field, indent + 2);
                } else {
                    text.push(' ');
                    block(text, field, indent);
                }
            }
        }
        Value::Array(_) => text.push_str("[]\n"),
        Value::Object(_) => text.push_str("{}\n"),
        Value::String(string) => {
            scalar(text, string);
            text.push('\n');
        }
        other => {
            text.push_str(&other.to_string());
            text.push('\n');
        }
    }
}

fn is_nested(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

fn pad(text: &mut String, indent: usize) {
    text.extend(std::iter::repeat_n(' ', indent));
}

fn scalar(text: &mut String, string: &str) {
    if is_plain(string) {
        text.push_str(string);
    } else {
        text.push_str(&Value::String(string.to_owned()).to_string());
    }
}

/// Letters first, no character with a meaning, and none of the words that older readers take for a truth value.
fn is_plain(string: &str) -> bool {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    string.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && string.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
        && !WORDS.contains(&string.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_values_are_indented_and_doubtful_words_quoted() {
        let value = serde_json::json!({
            "a": [], "b": {"c": "on", "d": [1, [2, 3], {"e": null}]}, "f": "10.1.0.0/24", "g": "x: y", "h": "/usr/bin"
        });
        let mut out = Vec::new();
        print(&mut out, &value).unwrap();
        let expected = "a: []\nb:\n  c: \"on\"\n  d:\n    - 1\n    - - 2\n      - 3\n    - e: null\nf: \"10.1.0.0/24\"\ng: \"x: y\"\nh: /usr/bin\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
