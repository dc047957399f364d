//! The table as a description in OpenAPI 3.1, `docs/openapi.json`. `DVS_WRITE_SNAPSHOTS=1 cargo test -p mgmt-api
//! openapi` writes it anew; without that the test compares.

use std::path::{Path, PathBuf};

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::{Answer, Impact, Least, Query, ROUTES, Route, Shape};
use crate::ErrorKind;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
}

/// Every type that the table names.
fn schemas() -> Map<String, Value> {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    macro_rules! add {
        ($($name:ident)*) => {
            $(generator.subschema_for::<crate::$name>();)*
        };
    }
    add! {
        AccessFile AccessInfo AccessRequest AuditEntry AuthorityState ChannelInfo ClusterLevel Dc DcChange
        ApplyPlan ApplyRequest DcNodeRequest DcRename DcSpec DiskChange DiskSpec ErrorBody EventInfo Examination NodeUsage
        ExecRequest Health LogPiece JoinAnswer JoinRequest Myself NewToken Node NodeChange MoveRequest NodeFacts Process RunRequest
        PortInfo PortSpec RunResponse ServerMoveRequest ServiceInfo ServiceSpec SignalRequest TokenInfo TokenRequest UpgradeState Version
    }
    generator.take_definitions(true)
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn body(name: &str) -> Value {
    json!({ "application/json": { "schema": reference(name) } })
}

fn answers(route: &Route) -> Map<String, Value> {
    let mut answers = Map::new();
    let mut add = |status: u16, answer: Value| answers.insert(status.to_string(), answer);
    let switching = json!({ "description": "The connection is a dvs-stream from here on." });
    match route.answer {
        Answer::One(name) => drop(add(200, json!({ "description": "It is so.", "content": body(name) }))),
        Answer::Made(name) => drop(add(201, json!({ "description": "It is made.", "content": body(name) }))),
        Answer::Many(name) => {
            let list = json!({ "application/json": { "schema": { "type": "array", "items": reference(name) } } });
            add(200, json!({ "description": "All of them.", "content": list }));
        }
        Answer::Health(name) => {
            add(200, json!({ "description": "All is well.", "content": body(name) }));
            add(503, json!({ "description": "Something is not, as it says.", "content": body(name) }));
        }
        Answer::Probe => {
            let text = json!({ "text/plain": { "schema": { "type": "string" } } });
            add(200, json!({ "description": "All is well.", "content": text }));
            add(503, json!({ "description": "Something is not, as it says.", "content": text }));
        }
        Answer::Object => {
            let object = json!({ "application/json": { "schema": { "type": "object" } } });
            add(200, json!({ "description": "An object.", "content": object }));
        }
        Answer::Text(media) => {
            let text = json!({ media: { "schema": { "type": "string" } } });
            add(200, json!({ "description": "Text, as long as there is some.", "content": text }));
        }
        Answer::Nothing => drop(add(204, json!({ "description": "It is done." }))),
        Answer::Stream => drop(add(101, switching)),
        Answer::StreamOr(name) => {
            add(101, switching);
            add(200, json!({ "description": "Without the header Upgrade.", "content": body(name) }));
        }
    }
    answers.insert("default".to_owned(), json!({ "$ref": "#/components/responses/Error" }));
    answers
}

fn parameters(route: &Route) -> Vec<Value> {
    let name = |name: &str| {
        let schema = match name {
            "pid" => json!({ "type": "integer", "minimum": 0 }),
            _ => json!({ "type": "string" }),
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    };
    let query = |query: &Query| {
        let kind = match query.shape {
            Shape::Text => json!({ "type": "string" }),
            Shape::Number => json!({ "type": "integer", "minimum": 0 }),
            Shape::Truth => json!({ "type": "boolean" }),
        };
        json!({
            "name": query.name, "in": "query", "required": query.is_required, "description": query.means,
            "schema": kind,
        })
    };
    let mut all: Vec<Value> = route.names().map(name).chain(route.query.iter().map(query)).collect();
    if matches!(route.answer, Answer::Stream | Answer::StreamOr(_)) {
        let is_required = route.answer == Answer::Stream;
        all.push(json!({
            "name": "Upgrade", "in": "header", "required": is_required,
            "description": "Asks for a stream, with Connection: upgrade.",
            "schema": { "type": "string", "const": crate::stream::PROTOCOL },
        }));
    }
    all
}

fn operation(route: &Route) -> Value {
    let least = match route.least {
        Least::Anyone => "anyone".to_owned(),
        Least::Person(role) => role.to_string(),
        Least::Node => "node".to_owned(),
    };
    let mut operation = json!({
        "operationId": route.operation.name(),
        "summary": route.what,
        "x-dvs-least": least,
        "x-dvs-inside": route.operation.inhabitants().name(),
        "x-dvs-audited": route.effect == Impact::Changes,
        "responses": answers(route),
    });
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(name) = route.takes {
        operation["requestBody"] = json!({ "required": true, "content": body(name) });
    }
    if route.least == Least::Anyone {
        operation["security"] = json!([]);
    }
    operation
}

fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let methods = paths.entry(route.path).or_insert_with(|| json!({}));
        methods[route.method.name().to_lowercase()] = operation(route);
    }
    let kinds: Vec<String> = ErrorKind::ALL
        .iter()
        .map(|kind| format!("{} {}", kind.http_status(), json!(kind).as_str().unwrap_or_default()))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "DVS",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "The management API of a node daemon: containers that span machines. Over the Unix socket \
                of a node it is open to root; over TLS, port 7420, to people who have an access (dvs access) and to \
                nodes. x-dvs-least is the least role that may ask; x-dvs-inside says which programs of a container may ask at \
                its hatch, for that container alone; what x-dvs-audited marks, and every refusal, is in the audit log.",
        },
        "servers": [{ "url": "https://{node}:7420", "variables": { "node": { "default": "192.0.2.11" } } }],
        "security": [{ "token": [] }, { "certificate": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "From dvs access token." },
                "certificate": { "type": "mutualTLS", "description": "From dvs access certificate." },
            },
            "responses": {
                "Error": {
                    "description": format!("What failed, because of what, and what to try. {}.", kinds.join(", ")),
                    "content": body("ErrorBody"),
                },
            },
            "schemas": schemas(),
        },
    })
}

#[test]
fn openapi_description_is_that_of_the_table() {
    let text = format!("{:#}\n", document());
    if std::env::var_os("DVS_WRITE_SNAPSHOTS").is_some() {
        std::fs::write(file(), &text).unwrap();
    }
    let there = std::fs::read_to_string(file()).unwrap_or_default();
    assert!(
        there == text,
        "docs/openapi.json is not what the table says; DVS_WRITE_SNAPSHOTS=1 cargo test -p mgmt-api openapi"
    );
}

#[test]
fn every_type_that_the_table_names_is_described() {
    let schemas = schemas();
    for route in ROUTES {
        let answer = match route.answer {
            Answer::One(name) | Answer::Made(name) | Answer::Many(name) | Answer::Health(name) => Some(name),
            Answer::StreamOr(name) => Some(name),
            Answer::Probe | Answer::Object | Answer::Text(_) | Answer::Nothing | Answer::Stream => None,
        };
        for name in route.takes.into_iter().chain(answer) {
            assert!(schemas.contains_key(name), "{name} of {:?}", route.operation);
        }
    }
    // What is referred to is there.
    let text = document().to_string();
    for found in text.split("#/components/schemas/").skip(1) {
        let name = found.split('"').next().unwrap_or_default();
        assert!(schemas.contains_key(name), "{name}");
    }
}
