//! What each command prints with `-o json`, as schemas: `docs/output.schema.json`. `DVS_WRITE_SNAPSHOTS=1 cargo test -p
//! dvs shapes` writes it anew; without that the test compares.
//!
//! The command's own types say it themselves. Those of the API are in `docs/openapi.json`, from which what is needed is
//! copied, so that the file stands alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::commands::{
    Gone, access, alone, cluster, context, dc, dev, disk, doctor, ds, fs, import, info, logs, node, ps, stats, version,
    wait,
};
use crate::help_tests::commands;
use crate::installed::NewNode;

const DEFS: &str = "#/$defs/";

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn of_api(name: &str) -> Schema {
    json_schema!({ "$ref": format!("{DEFS}{name}") })
}

/// Fields of the command's own types that are of the API.
macro_rules! fields {
    ($($function:ident $name:literal)*) => {
        $(pub fn $function(_: &mut SchemaGenerator) -> Schema {
            of_api($name)
        })*
    };
}

fields! {
    access_role "AccessRole"
    bytes "Bytes"
    capacity "Capacity"
    dc "Dc"
    disk_copy_state "DiskCopyState"
    disk_store "DiskStore"
    disk_verification "DiskVerification"
    log_stream "LogStream"
    node_usage "NodeUsage"
    process "Process"
    promise "Promise"
}

fn or_null(name: &str) -> Schema {
    json_schema!({ "anyOf": [of_api(name), { "type": "null" }] })
}

pub fn access_role_or_null(_: &mut SchemaGenerator) -> Schema {
    or_null("AccessRole")
}

pub fn version_or_null(_: &mut SchemaGenerator) -> Schema {
    or_null("Version")
}

pub fn versions_by_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": of_api("Versions") })
}

pub fn channels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": of_api("ChannelInfo") })
}

/// What a command prints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Printed {
    One,
    List,
    /// A line for each, as it comes.
    Lines,
}

/// Collects the schemas of commands.
struct Outputs {
    generator: SchemaGenerator,
    commands: Map<String, Value>,
}

impl Outputs {
    fn add(&mut self, words: &[&str], printed: Printed, what: Schema) {
        let schema = match printed {
            Printed::One => what.to_value(),
            Printed::List => json!({ "type": "array", "items": what }),
            Printed::Lines => json!({ "description": "Of each line.", "anyOf": [what] }),
        };
        for word in words {
            assert!(self.commands.insert((*word).to_owned(), schema.clone()).is_none(), "{word} is there twice");
        }
    }

    fn own<T: JsonSchema>(&mut self, words: &[&str], printed: Printed) {
        let schema = self.generator.subschema_for::<T>();
        self.add(words, printed, schema);
    }

    fn api(&mut self, words: &[&str], printed: Printed, name: &str) {
        self.add(words, printed, of_api(name));
    }
}

fn outputs() -> Outputs {
    use Printed::{Lines, List, One};
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.meta_schema = None;
    let mut all = Outputs { generator: settings.into_generator(), commands: Map::new() };
    let processes = {
        let with_dc = all.generator.subschema_for::<ps::Placed>();
        json_schema!({ "anyOf": [with_dc, of_api("Process")] })
    };
    all.add(&["ps"], List, processes);
    let anything = {
        let (whole, disk) =
            (all.generator.subschema_for::<dc::view::Whole>(), all.generator.subschema_for::<disk::DiskView>());
        let parts = ["Node", "ServiceInfo", "ServiceInstance", "PortInfo", "Instance"].map(of_api);
        let processes = json_schema!({ "type": "array", "items": of_api("Process") });
        let all: Vec<Schema> = [whole, disk, processes].into_iter().chain(parts).collect();
        json_schema!({ "anyOf": all })
    };
    all.add(&["inspect"], One, anything);
    // Of what was started without a connection to it.
    all.api(&["run", "exec"], One, "RunResponse");
    all.own::<wait::Ended>(&["wait"], List);
    all.own::<stats::Stats>(&["stats"], List);
    all.own::<stats::Busy>(&["top"], List);
    all.own::<info::Info>(&["info"], One);
    all.own::<version::Versions>(&["version"], One);
    all.own::<doctor::examined::Examined>(&["doctor"], List);
    all.own::<import::Imported>(&["import"], One);
    all.own::<logs::Line>(&["logs", "service logs"], Lines);
    all.api(&["events"], Lines, "EventInfo");
    all.api(&["audit"], Lines, "AuditEntry");
    all.api(&["plan", "apply"], One, "ApplyPlan");
    let changed = ["create", "start", "stop", "rename", "set", "add-node", "remove-node"].map(|it| format!("dc {it}"));
    all.api(&changed.each_ref().map(String::as_str), One, "Dc");
    all.api(&["start", "stop", "restart", "pause", "unpause", "rename"], One, "Dc");
    all.api(&["disk create", "disk resize", "disk delete", "disk export", "disk unexport"], One, "Dc");
    all.api(&["disk replica add", "disk replica remove", "disk replica promote", "server move"], One, "Dc");
    all.api(&["fs snapshot restore"], One, "Dc");
    all.api(&["dc ls"], List, "Dc");
    all.api(&["dc export"], One, "DcSpec");
    all.own::<dc::view::Whole>(&["dc inspect"], One);
    all.own::<dc::backup::Contents>(&["dc backup", "dc restore"], One);
    all.own::<disk::DiskView>(&["disk ls"], List);
    all.own::<disk::DiskView>(&["disk inspect", "disk verify"], One);
    all.own::<fs::inside::Space>(&["fs df"], List);
    all.own::<fs::quota::QuotaView>(&["fs quota ls", "fs quota set"], List);
    all.own::<fs::inside::SnapshotView>(&["fs snapshot ls"], List);
    all.own::<fs::inside::SnapshotView>(&["fs snapshot create"], One);
    all.own::<fs::scrub::Scrubbed>(&["fs scrub"], List);
    all.own::<fs::diff::Difference>(&["fs diff", "diff"], List);
    all.api(&["service ls"], List, "ServiceInfo");
    let changed = ["add", "start", "stop", "restart", "move"].map(|it| format!("service {it}"));
    all.api(&changed.each_ref().map(String::as_str), One, "ServiceInfo");
    all.api(&["port ls"], List, "PortInfo");
    all.api(&["port add"], One, "PortInfo");
    all.own::<ds::request::Entry>(&["ds ls"], List);
    all.own::<ds::request::Entry>(&["ds get"], One);
    all.own::<ds::request::Changed>(&["ds put", "ds cas", "ds delete"], One);
    all.own::<ds::request::Published>(&["ds publish"], One);
    all.own::<ds::request::Event>(&["ds watch"], Lines);
    all.api(&["node ls"], List, "Node");
    all.api(&["node inspect", "node label", "node cordon", "node uncordon"], One, "Node");
    all.api(&["node token"], One, "NewToken");
    all.api(&["node token ls"], List, "TokenInfo");
    all.own::<node::upgrade::Upgraded>(&["node upgrade"], One);
    all.own::<node::certificate::Made>(&["node ca", "node cert"], One);
    all.own::<NewNode>(&["node join", "cluster init"], One);
    all.api(&["cluster level"], List, "ClusterLevel");
    all.api(&["cluster authority", "cluster rotate-ca"], List, "AuthorityState");
    all.own::<cluster::backup::Written>(&["cluster backup"], One);
    all.api(&["access ls"], List, "AccessInfo");
    all.own::<access::Made>(&["access token", "access certificate", "access key"], One);
    all.own::<context::Line>(&["context ls"], List);
    all.own::<context::Shown>(&["context show"], One);
    all.own::<context::Used>(&["context add", "context use"], One);
    all.own::<dev::Place>(&["dev ls", "dev up"], List);
    all.own::<dev::Place>(&["dev restart", "dev kill", "dev wire"], One);
    all.own::<alone::Served>(&["alone disk"], One);
    all.own::<alone::Mounted>(&["alone fs"], One);
    all.own::<alone::ShownFile>(&["alone file", "disk mount"], One);
    all.own::<alone::Checked>(&["alone check"], One);
    let gone = ["rm", "dc delete", "fs quota rm", "fs snapshot rm", "service rm", "port rm", "node remove"];
    all.own::<Gone>(&gone, One);
    all.own::<Gone>(&["node token rm", "access rm", "context rm", "dev down"], One);
    all
}

/// Commands that print nothing in these forms, or what is a form of its own.
const OTHERS: [&str; 14] = [
    "attach",
    "cluster move-engine",
    "cluster recover",
    "cluster restore",
    "completion",
    "cp",
    "daemon",
    "dc schema",
    "dev exec",
    "doctor report",
    "ds pipe",
    "kill",
    "metrics",
    "",
];

/// The API's types that these name, and those that those name.
fn named(schema: &Value, found: &mut BTreeSet<String>, api: &Map<String, Value>) {
    match schema {
        Value::Object(fields) => {
            for (key, field) in fields {
                let name = field.as_str().filter(|_| key == "$ref").and_then(|text| text.strip_prefix(DEFS));
                match name {
                    Some(name) if api.contains_key(name) && found.insert(name.to_owned()) => {
                        named(&api[name], found, api);
                    }
                    _ => named(field, found, api),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| named(item, found, api)),
        _ => (),
    }
}

fn document() -> Value {
    let api = std::fs::read_to_string(docs("openapi.json")).unwrap().replace("#/components/schemas/", DEFS);
    let api: Value = serde_json::from_str(&api).unwrap();
    let api = api["components"]["schemas"].as_object().unwrap();
    let mut outputs = outputs();
    let mut definitions = outputs.generator.take_definitions(true);
    let mut found = BTreeSet::new();
    named(&json!([outputs.commands, definitions]), &mut found, api);
    for name in found {
        let taken = definitions.insert(name.clone(), api[&name].clone());
        assert!(taken.is_none(), "a type of the command is called like one of the API: {name}");
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What the commands of dvs print with -o json",
        "description": "An object with what each command prints, by its words; #/properties/ps is what dvs ps prints. \
            Further fields may come.",
        "type": "object",
        "properties": outputs.commands,
        "$defs": definitions,
    })
}

#[test]
fn shapes_of_all_output_are_the_reviewed_ones() {
    let text = format!("{:#}\n", document());
    if std::env::var_os("DVS_WRITE_SNAPSHOTS").is_some() {
        std::fs::write(docs("output.schema.json"), &text).unwrap();
    }
    let there = std::fs::read_to_string(docs("output.schema.json")).unwrap_or_default();
    assert!(
        there == text,
        "docs/output.schema.json is not what the commands print; DVS_WRITE_SNAPSHOTS=1 cargo test -p dvs shapes"
    );
    for found in text.split(DEFS).skip(1) {
        let name = found.split('"').next().unwrap_or_default();
        assert!(document()["$defs"].get(name).is_some(), "{name}");
    }
}

#[test]
fn shapes_are_of_every_command_that_people_type() {
    let known = outputs().commands;
    let typed = commands().into_iter().filter(|(name, command)| {
        let is_leaf = command.get_subcommands().next().is_none() || known.contains_key(&words(name));
        let is_of_the_machinery = ["dvs-internal", "dvs-gate", "dvs-server"].iter().any(|of| name.starts_with(of));
        is_leaf && !command.is_hide_set() && !is_of_the_machinery
    });
    let typed: BTreeSet<String> = typed.map(|(name, _)| words(&name)).collect();
    for one in &typed {
        assert!(known.contains_key(one) != OTHERS.contains(&one.as_str()), "what does dvs {one} print?");
    }
    for one in known.keys().filter(|one| *one != "server move") {
        assert!(typed.contains(one), "there is no dvs {one}");
    }
}

/// `dvs-dc-add-node` is `dc add-node`.
fn words(name: &str) -> String {
    const OF_TWO_WORDS: [&str; 3] = ["add-node", "remove-node", "move-engine"];
    let mut words = name.trim_start_matches("dvs").trim_start_matches('-').replace('-', " ");
    for one in OF_TWO_WORDS.into_iter().chain(["rotate-ca"]) {
        words = words.replace(&one.replace('-', " "), one);
    }
    words
}
