//! The API's own description, and whether an answer is as it says; that of what commands print likewise.

use std::collections::BTreeSet;

use serde_json::Value;

/// `docs/openapi.json`.
pub struct Description(Document);

/// `docs/output.schema.json`.
pub struct Outputs(Document);

impl Outputs {
    pub fn checked_in() -> Outputs {
        Outputs(Document::checked_in("output.schema.json"))
    }

    /// Commands of which it says what they print, by their words.
    pub fn commands(&self) -> BTreeSet<String> {
        self.0.0["properties"].as_object().expect("commands").keys().cloned().collect()
    }

    /// Why what a command printed is not as described.
    pub fn check(&self, command: &str, printed: &Value) -> Result<(), String> {
        let schema = self.0.0["properties"].get(command).ok_or_else(|| format!("'{command}' is not described"))?;
        self.0.matches(printed, schema).map_err(|why| format!("dvs {command}: {why}"))
    }
}

/// A JSON document with schemas in it.
struct Document(Value);

/// One way to ask.
pub struct Way {
    pub operation: String,
    /// `GET`
    pub method: String,
    pub path: String,
    /// `viewer`, `node` …
    pub least: String,
    /// Which programs of a container may: `all`, `root`, `none`.
    pub inside: String,
    pub is_audited: bool,
}

impl Description {
    pub fn checked_in() -> Description {
        Description(Document::checked_in("openapi.json"))
    }

    pub fn ways(&self) -> Vec<Way> {
        let mut ways = Vec::new();
        for (path, methods) in self.0.0["paths"].as_object().expect("paths") {
            for (method, operation) in methods.as_object().expect("methods") {
                let text = |key: &str| operation[key].as_str().expect("text").to_owned();
                ways.push(Way {
                    operation: text("operationId"),
                    method: method.to_uppercase(),
                    path: path.clone(),
                    least: text("x-dvs-least"),
                    inside: text("x-dvs-inside"),
                    is_audited: operation["x-dvs-audited"].as_bool().expect("yes or no"),
                });
            }
        }
        ways
    }

    /// Why an answer is not as the description says.
    pub fn check(&self, way: &Way, status: u16, body: &str) -> Result<(), String> {
        let responses = &self.0.0["paths"][&way.path][way.method.to_lowercase()]["responses"];
        let response = match &responses[status.to_string()] {
            Value::Null => &responses["default"],
            response => response,
        };
        let response = self.0.resolve(response);
        let place = format!("{} {} answered {status}: {body}", way.method, way.path);
        let Some(content) = response.get("content").and_then(Value::as_object) else {
            return if body.is_empty() { Ok(()) } else { Err(format!("{place}: there should be no body")) };
        };
        if responses[status.to_string()].is_null() && status < 400 {
            return Err(format!("{place}: the description has no such status"));
        }
        let (media, described) = content.iter().next().expect("a media type");
        if media != "application/json" {
            return Ok(());
        }
        let value = serde_json::from_str(body).map_err(|error| format!("{place}: {error}"))?;
        self.0.matches(&value, &described["schema"]).map_err(|why| format!("{place}: {why}"))
    }
}

impl Document {
    fn checked_in(name: &str) -> Document {
        let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read(path).expect("the description");
        Document(serde_json::from_slice(&text).expect("JSON"))
    }

    fn resolve<'a>(&'a self, part: &'a Value) -> &'a Value {
        match part.get("$ref").and_then(Value::as_str) {
            Some(reference) => self.0.pointer(reference.trim_start_matches('#')).expect("what is referred to"),
            None => part,
        }
    }

    /// Of JSON Schema what the description uses; a word that is not known here is an error, so that nothing is passed
    /// over.
    fn matches(&self, value: &Value, schema: &Value) -> Result<(), String> {
        self.matches_beside(value, schema, &BTreeSet::new())
    }

    /// Names of properties that a schema describes, also by others that hold as well.
    fn described(&self, schema: &Value, names: &mut BTreeSet<String>) {
        names.extend(schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()));
        if schema.get("$ref").is_some() {
            self.described(self.resolve(schema), names);
        }
        schema["allOf"].as_array().into_iter().flatten().for_each(|part| self.described(part, names));
    }

    /// `beside`: what is described by schemas that hold as well.
    fn matches_beside(&self, value: &Value, schema: &Value, beside: &BTreeSet<String>) -> Result<(), String> {
        let mut described = beside.clone();
        self.described(schema, &mut described);
        let Some(schema) = schema.as_object() else {
            return if schema == &Value::Bool(true) { Ok(()) } else { Err(format!("{value}: nothing is allowed")) };
        };
        for (word, means) in schema {
            match word.as_str() {
                "description" | "default" | "title" | "format" | "deprecated" | "examples" => (),
                "$ref" => {
                    let reference = means.as_str().expect("a reference");
                    let meant = self.0.pointer(reference.trim_start_matches('#')).expect("what is referred to");
                    self.matches_beside(value, meant, &described)?;
                }
                "type" => {
                    let names = means.as_array().cloned().unwrap_or_else(|| vec![means.clone()]);
                    if !names.iter().any(|name| is_a(value, name.as_str().unwrap_or_default())) {
                        return Err(format!("{value} is no {means}"));
                    }
                }
                "const" if value != means => return Err(format!("{value} is not {means}")),
                "enum" if !means.as_array().expect("a list").contains(value) => {
                    return Err(format!("{value} is none of {means}"));
                }
                "const" | "enum" => (),
                "minimum" if value.is_number() && value.as_f64() < means.as_f64() => {
                    return Err(format!("{value} is below {means}"));
                }
                "maximum" if value.is_number() && value.as_f64() > means.as_f64() => {
                    return Err(format!("{value} is above {means}"));
                }
                "minimum" | "maximum" => (),
                "items" => {
                    for item in value.as_array().into_iter().flatten() {
                        self.matches(item, means)?;
                    }
                }
                "required" => {
                    for name in means.as_array().expect("a list") {
                        let name = name.as_str().expect("a name");
                        if value.is_object() && value.get(name).is_none() {
                            return Err(format!("{value} has no '{name}'"));
                        }
                    }
                }
                "properties" => {
                    for (name, part) in value.as_object().into_iter().flatten() {
                        match means.get(name) {
                            Some(means) => self.matches(part, means).map_err(|why| format!("{name}: {why}"))?,
                            None if described.contains(name) => (),
                            // What is said must be described, whatever else a reader has to bear with.
                            None if schema.get("additionalProperties").is_none() && !schema.contains_key("oneOf") => {
                                return Err(format!("'{name}' is not described"));
                            }
                            None => (),
                        }
                    }
                }
                "additionalProperties" => {
                    for (name, part) in value.as_object().into_iter().flatten() {
                        if !described.contains(name) {
                            self.matches(part, means).map_err(|why| format!("{name}: {why}"))?;
                        }
                    }
                }
                "allOf" => {
                    for part in means.as_array().expect("a list") {
                        self.matches_beside(value, part, &described)?;
                    }
                }
                "anyOf" | "oneOf" => {
                    let parts = means.as_array().expect("a list");
                    let failure = |part| self.matches_beside(value, part, &described).err();
                    let failures: Vec<String> = parts.iter().filter_map(failure).collect();
                    if failures.len() == parts.len() {
                        return Err(format!("{value} is none of several: {failures:?}"));
                    }
                }
                other => return Err(format!("the word '{other}' of the description is not understood here")),
            }
        }
        Ok(())
    }
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_differs_from_its_description_is_found() {
        let outputs = Outputs::checked_in();
        let process = serde_json::json!({
            "pid": 65600, "parent": 0, "node": "n1", "uid": 0, "state": "sleeping", "cpu_ms": 0, "memory_bytes": 0,
            "start_ms": 0, "command": ["sleep", "1"], "terminal": false,
        });
        let mut busy = process.clone();
        busy["cpu_percent"] = 1.5.into();
        let check = |command: &str, value: &Value| outputs.check(command, &serde_json::json!([value]));
        assert_eq!((check("ps", &process), check("top", &busy)), (Ok(()), Ok(())));
        assert!(check("top", &process).is_err() && check("ps", &busy).is_err());
        busy["more"] = 1.into();
        assert!(check("top", &busy).is_err_and(|why| why.contains("'more'")));
        assert!(outputs.check("ps", &process).is_err() && outputs.check("no such", &process).is_err());
    }

    #[test]
    fn answer_that_differs_from_its_description_is_found() {
        let description = Description::checked_in();
        let ways = description.ways();
        let way = ways.iter().find(|way| way.operation == "version").expect("it is described");
        let good = r#"{"version":"0.1.0","node":"n1","cluster":"home"}"#;
        assert_eq!(description.check(way, 200, good), Ok(()));
        assert_eq!(description.check(way, 401, r#"{"kind":"unauthenticated","what":"x","try":"y"}"#), Ok(()));
        for (status, bad) in [
            (200, r#"{"version":"0.1.0","node":"n1"}"#),
            (200, r#"{"version":1,"node":"n1","cluster":"home"}"#),
            (200, r#"{"version":"0.1.0","node":"n1","cluster":"home","more":1}"#),
            (200, "[]"),
            (201, good),
            (401, good),
            (401, r#"{"kind":"unknown","what":"x"}"#),
        ] {
            assert!(description.check(way, status, bad).is_err(), "{status} {bad}");
        }
    }
}
