//! What people and daemons say: bodies of the REST API, frames of a program's stream, packets of a keeper's socket.

use mgmt_api::stream::session::{Incoming, Keeping, Outgoing};
use mgmt_api::stream::{BadFrame, Decoder, Kind, header};
use mgmt_api::{
    AccessFile, AccessRequest, AccessToken, AuditEntry, Dc, DcSpec, ErrorBody, ExecRequest, Node, Process, RootFs,
    RunRequest, SignalRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What is read as a body is written, and read again.
pub fn bodies(data: &[u8]) {
    body::<DcSpec>(data);
    body::<Dc>(data);
    body::<Node>(data);
    body::<Process>(data);
    body::<ErrorBody>(data);
    body::<SignalRequest>(data);
    body::<AccessRequest>(data);
    body::<AccessFile>(data);
    if let Some(entry) = body::<AuditEntry>(data) {
        let _ = mgmt_api::utc(entry.at_ms);
    }
    if let Some(Ok(token)) = std::str::from_utf8(data).ok().map(str::parse::<AccessToken>) {
        assert_eq!(token.to_string().as_bytes(), data);
    }
    body::<ExecRequest>(data);
    let Some(run) = body::<RunRequest>(data) else { return };
    for one in run.argv.iter().chain(&run.env).chain(&run.workdir) {
        let _ = (one.bytes(), one.lossy());
    }
    if let RootFs::Tree(path) = &run.root {
        assert!(mgmt_api::in_tree(path).is_none_or(|path| path.split('/').all(|part| part != "..")));
    }
}

fn body<T: Serialize + DeserializeOwned>(data: &[u8]) -> Option<T> {
    let read: T = serde_json::from_slice(data).ok()?;
    let written = serde_json::to_vec(&read).expect("what was read can be written");
    assert!(serde_json::from_slice::<T>(&written).is_ok(), "{}", String::from_utf8_lossy(&written));
    Some(read)
}

/// The first byte is the length of the pieces in which the rest arrives: the frames are the same as in one piece, and a
/// session that hears them keeps what was not confirmed and no more.
pub fn streams(data: &[u8]) {
    let Some((length, stream)) = data.split_first() else { return };
    let (whole, pieces) = (frames([stream]), frames(stream.chunks(usize::from(*length).max(1))));
    assert_eq!(whole, pieces);
    let (mut said, mut heard) = (Outgoing::new(Keeping::UntilConfirmed), Incoming::default());
    for (kind, payload) in &whole.0 {
        let number = payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        match kind {
            Kind::Heard => _ = said.confirm(number),
            Kind::Session => _ = said.resume(number, Some(heard.heard())),
            Kind::Leave => said.forget_sent(),
            _ => said.say(*kind, payload),
        }
        heard.count(payload.len());
        let taken = said.unsent().len().min(payload.len() + 1);
        said.advance(taken);
        assert!(said.kept_bytes() <= stream.len());
    }
}

type Frames = (Vec<(Kind, Vec<u8>)>, Option<BadFrame>);

fn frames<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Frames {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.pop() {
                Ok(Some((kind, payload))) => frames.push((kind, payload.to_vec())),
                Ok(None) => break,
                Err(bad) => return (frames, Some(bad)),
            }
        }
    }
    (frames, None)
}

/// What is read as a packet, and plan of a program, is written and read again.
pub fn keeper(data: &[u8]) {
    for written in ::keeper::read_packet(data).into_iter().flatten() {
        let again = ::keeper::read_packet(&written);
        assert!(again.contains(&Some(written)), "{}", String::from_utf8_lossy(data));
    }
}

const SPEC: &str = r#"{"name":"shop","nodes":["n1","n2"],"subnet":"10.1.0.0/24","with_opt":true,"wait":"park",
    "limits":{"cpus":"0-1,3","cpu_weight":100,"cpu_max":1.5,"memory_bytes":1073741824,"pids":10,"open_files":100,"terminals":1},
    "servers":[{"kind":"fs","node":"n1"},{"kind":"ds"}],"disks":[{"name":"root","node":"n1","bytes":1073741824,"store":"sparse"}]}"#;
const RUN: &str = r#"{"argv":["/bin/sh",{"hex":"ff00"}],"node":"n1","env":["K=V","=",{"hex":"3d3d"}],"workdir":"/a/../b",
    "root":{"kind":"tree","path":"/a/./b"},"uid":1,"gid":2,"terminal":{"rows":24,"columns":80},"interactive":true,"detach":false}"#;

pub fn body_corpus() -> Vec<Vec<u8>> {
    let exec = format!(r#"{{"pid":65536,"run":{RUN}}}"#);
    let error = r#"{"kind":"not-found","message":"no","because":["of"],"hint":"try"}"#;
    let access = r#"{"name":"ada","role":"viewer","ttl_s":60,"certificate_pem":"x"}"#;
    let entry = r#"{"at_ms":1,"node":"n1","who":{"name":"ada","by":"token"},"operation":"run","method":"POST","path":"/v1","took_ms":1}"#;
    let token = format!("dvs_ada_{}", "5e".repeat(32));
    [SPEC, RUN, &exec, error, r#"{"signal":15}"#, access, entry, &token].map(|text| text.as_bytes().to_vec()).into()
}

pub fn stream_corpus() -> Vec<Vec<u8>> {
    let frame = |kind, payload: &[u8]| [&header(kind, payload.len())[..], payload].concat();
    let number = |number: u64| number.to_le_bytes();
    let stream = [
        frame(Kind::Session, &number(0)),
        frame(Kind::Stdin, b"input"),
        frame(Kind::Resize, &[24, 0, 80, 0]),
        frame(Kind::Stdout, &[7; 300]),
        frame(Kind::Heard, &number(2)),
        frame(Kind::Session, &number(3)),
        frame(Kind::Exit, &[0]),
        frame(Kind::Leave, &[]),
        frame(Kind::Stderr, b"no"),
    ];
    [1_u8, 3, 200].map(|length| [&[length][..], &stream.concat()].concat()).into()
}

pub fn keeper_corpus() -> Vec<Vec<u8>> {
    let requests = [
        r#"{"Hello":{"oldest":1,"newest":2}}"#,
        r#""Status""#,
        &format!(r#"{{"Run":{{"run":{RUN},"pending":[1,2],"session":7}}}}"#),
        &format!(r#"{{"Exec":{{"exec":{{"pid":65536,"run":{RUN}}},"pending":[]}}}}"#),
        r#"{"Attach":{"pid":65536,"pending":[]}}"#,
        r#"{"Resume":{"pid":65536,"pending":[],"session":7,"heard":3}}"#,
        r#"{"Signal":{"pid":65536,"signal":15}}"#,
        r#"{"Logs":{"pid":65536,"tail_lines":3,"follow":"Yes"}}"#,
        r#"{"Logs":{"pid":65536,"tail_lines":null,"follow":"No","since_ms":1764192600000,"form":"pieces"}}"#,
        r#"{"Stop":{"grace_ms":1000}}"#,
        r#"{"Store":{"key":"fuse"}}"#,
        r#"{"FetchAll":{"after":"fuse"}}"#,
        r#"{"MountFuse":{"max_read_bytes":1048576,"read_ahead_kib":4096}}"#,
        r#"{"OtherVersion":{"oldest":1,"newest":2}}"#,
        r#"{"Started":{"pid":65536}}"#,
        r#"{"Stored":{"keys":["fuse"],"more":true}}"#,
        r#""Namespaces""#,
    ];
    requests.map(|json| [&[0][..], json.as_bytes()].concat()).into()
}
