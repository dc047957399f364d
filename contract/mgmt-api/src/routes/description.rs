//! What a file may say that describes containers, as a schema for editors: `docs/dc.schema.json`, which `dvs dc schema`
//! prints. `DVS_WRITE_SNAPSHOTS=1 cargo test -p mgmt-api description` writes it anew; without that the test compares.

use std::path::{Path, PathBuf};

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::DcSpec;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/dc.schema.json")
}

fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let one = generator.subschema_for::<DcSpec>();
    let mut definitions = generator.take_definitions(true);
    let dc = &mut definitions["DcSpec"];
    // Of a file it is asked less than of the API: its command adds what it does not say.
    dc["required"] = json!(["name"]);
    dc["properties"]["generation"] = json!({
        "type": "integer", "minimum": 0,
        "description": "dvs apply does nothing when the container has another one by now.",
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Containers of DVS",
        "description": "One container, or several, each below [[dc]].",
        "anyOf": [one, {
            "type": "object", "required": ["dc"], "additionalProperties": false,
            "properties": { "dc": { "type": "array", "items": one } },
        }],
        "$defs": definitions,
    })
}

#[test]
fn description_of_containers_has_a_schema() {
    let text = format!("{:#}\n", schema());
    if std::env::var_os("DVS_WRITE_SNAPSHOTS").is_some() {
        std::fs::write(file(), &text).unwrap();
    }
    let there = std::fs::read_to_string(file()).unwrap_or_default();
    assert!(
        there == text,
        "docs/dc.schema.json is not what DcSpec says; DVS_WRITE_SNAPSHOTS=1 cargo test -p mgmt-api description"
    );
}

#[test]
fn schema_knows_all_that_a_description_may_say() {
    let said = json!({
        "name": "shop", "nodes": ["n1"], "with_opt": true, "proc": "node", "wait": "adaptive", "env": ["A=1"],
        "limits": { "pids": 100 }, "servers": [{ "kind": "fs" }], "disks": [{ "name": "root", "bytes": 4096 }],
        "services": [{ "name": "web", "command": ["true"] }], "egress": {}, "nbd": {}, "ports": [{ "published": 80, "port": 80 }],
        "volumes": [{ "host": "/srv/data", "path": "/data", "read_only": true, "nodes": ["n1"] }],
        "subnet": "10.1.0.0/24",
    });
    let dc = schema()["$defs"]["DcSpec"].clone();
    assert_eq!(dc["additionalProperties"], json!(false));
    let spec: DcSpec = serde_json::from_value(said).unwrap();
    let Value::Object(written) = serde_json::to_value(spec).unwrap() else { panic!("an object") };
    for name in written.keys() {
        assert!(dc["properties"].get(name).is_some(), "{name}");
    }
    let text = schema().to_string();
    for found in text.split("#/$defs/").skip(1) {
        let name = found.split('"').next().unwrap_or_default();
        assert!(schema()["$defs"].get(name).is_some(), "{name}");
    }
}
