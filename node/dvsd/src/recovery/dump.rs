//! A copy of what the engine holds, as a file: lines of JSON.
//!
//! ```text
//! {"dvs_backup":1,"cluster":{…},"records":2,"revision":4711,"taken_s":…,"by":"dvs 0.1.0, node n1"}
//! {"key":"/dcs/shop","value":"{…}"}            in the order of keys, each once
//! {"key":"/programs/7/…","hex":"00ff…"}        a value that is no text
//! {"entries":2,"sha256":"…"}                   of all bytes before this line
//! ```
//!
//! All is of one moment. Keys that hang on leases are not in it: they say what lives, and that says so itself again.
//! It has the cluster's secrets: the authority's key, and hashes of tokens.

use std::io::{self, BufRead, Read, Write};

use cluster::{Engine, EngineError, KEY_BYTES_MAX, LIST_ENTRIES_MAX, Revision, VALUE_BYTES_MAX, check_key};
use pki::{hex, unhex};
use ring::digest::{Context as Hash, SHA256};
use serde::{Deserialize, Serialize};

use crate::identity::{CLUSTER, ClusterRecord, FILLING};
use crate::records::{self, now_s};

/// Of the file.
const FORMAT: u32 = 1;
/// A value of which each byte is six in JSON, and its key.
const LINE_BYTES_MAX: usize = 6 * (VALUE_BYTES_MAX + KEY_BYTES_MAX) + 1024;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    dvs_backup: u32,
    pub cluster: ClusterRecord,
    /// Format of the records (`records::FORMAT`).
    pub records: u64,
    pub revision: u64,
    pub taken_s: u64,
    /// For people.
    pub by: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dump {
    pub header: Header,
    /// In the order of keys.
    pub entries: Vec<(String, Vec<u8>)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Footer {
    entries: usize,
    sha256: String,
}

#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    #[error("this is no backup of a cluster")]
    NoBackup,
    #[error("the backup has format {0}, this dvs knows {FORMAT}: it needs a later dvs")]
    LaterFile(u32),
    #[error("the backup's records have format {0}, this dvs knows up to {known}: it needs a later dvs", known = records::FORMAT)]
    LaterRecords(u64),
    #[error("line {line} of the backup makes no sense: {why}")]
    BadLine { line: usize, why: String },
    #[error("the backup ends too early: it was not written to its end")]
    Truncated,
    #[error("the backup is damaged: its checksum does not fit")]
    Damaged,
    #[error("the engine does not say which cluster it is of")]
    NoCluster,
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the backup cannot be read or written")]
    Io(#[from] io::Error),
}

/// What the engine holds now. `by`: who says so, for people.
pub fn take(engine: &dyn Engine, by: String) -> Result<Dump, DumpError> {
    let listing = engine.list("/")?;
    let mut cluster = None;
    let mut records = 1;
    let mut entries = Vec::new();
    for entry in listing.entries {
        match entry.key.as_str() {
            CLUSTER => cluster = Some(records::decode::<ClusterRecord>(&entry)?),
            FILLING => return Err(DumpError::NoCluster),
            _ if entry.lease.is_some() => (),
            key => {
                if key == records::FORMAT_KEY {
                    records = records::decode(&entry)?;
                }
                entries.push((entry.key, entry.value));
            }
        }
    }
    let cluster = cluster.ok_or(DumpError::NoCluster)?;
    let Revision(revision) = listing.revision;
    Ok(Dump { header: Header { dvs_backup: FORMAT, cluster, records, revision, taken_s: now_s(), by }, entries })
}

impl Dump {
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        let place = self.entries.binary_search_by(|(other, _)| other.as_str().cmp(key)).ok()?;
        self.entries.get(place).map(|(_, value)| value.as_slice())
    }

    pub fn write(&self, out: &mut impl Write) -> Result<(), DumpError> {
        let mut hash = Hash::new(&SHA256);
        let mut line = |text: String| {
            let text = text + "\n";
            hash.update(text.as_bytes());
            out.write_all(text.as_bytes())
        };
        line(text(&self.header)?)?;
        for (key, value) in &self.entries {
            let (value, hex) = match std::str::from_utf8(value) {
                Ok(text) => (Some(text.to_owned()), None),
                Err(_) => (None, Some(hex(value))),
            };
            line(text(&Line { key: key.clone(), value, hex })?)?;
        }
        let footer = Footer { entries: self.entries.len(), sha256: hex(hash.finish().as_ref()) };
        writeln!(out, "{}", text(&footer)?)?;
        Ok(())
    }

    /// All of it, or what is wrong with it.
    pub fn read(input: &mut impl BufRead) -> Result<Dump, DumpError> {
        let (mut hash, mut number) = (Hash::new(&SHA256), 0);
        let first = next_line(input, &mut number)?.ok_or(DumpError::NoBackup)?;
        let header = header(&first)?;
        hash.update(&first);
        let mut entries: Vec<(String, Vec<u8>)> = Vec::new();
        loop {
            let bytes = next_line(input, &mut number)?.ok_or(DumpError::Truncated)?;
            let bad = |why: String| DumpError::BadLine { line: number, why };
            // Nothing but the last line has the first bytes of a footer.
            if bytes.starts_with(b"{\"entries\"") {
                let footer: Footer = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
                if footer.entries != entries.len() || footer.sha256 != hex(hash.finish().as_ref()) {
                    return Err(DumpError::Damaged);
                }
                if next_line(input, &mut number)?.is_some() {
                    return Err(DumpError::BadLine { line: number, why: "something follows the end".to_owned() });
                }
                return Ok(Dump { header, entries });
            }
            let line: Line = match serde_json::from_slice(&bytes) {
                Err(_) if !bytes.ends_with(b"\n") => return Err(DumpError::Truncated),
                line => line.map_err(|error| bad(error.to_string()))?,
            };
            let entry = entry(line).map_err(bad)?;
            if entries.last().is_some_and(|(before, _)| *before >= entry.0) {
                return Err(DumpError::BadLine { line: number, why: "the keys are not in their order".to_owned() });
            }
            if entries.len() >= LIST_ENTRIES_MAX {
                return Err(DumpError::BadLine { line: number, why: format!("more than {LIST_ENTRIES_MAX} keys") });
            }
            hash.update(&bytes);
            entries.push(entry);
        }
    }
}

fn header(bytes: &[u8]) -> Result<Header, DumpError> {
    #[derive(Deserialize)]
    struct Version {
        dvs_backup: u32,
    }
    if !bytes.starts_with(b"{") {
        return Err(DumpError::NoBackup);
    }
    let version: Version = serde_json::from_slice(bytes).map_err(|_| DumpError::NoBackup)?;
    if version.dvs_backup != FORMAT {
        return Err(DumpError::LaterFile(version.dvs_backup));
    }
    let header: Header =
        serde_json::from_slice(bytes).map_err(|error| DumpError::BadLine { line: 1, why: error.to_string() })?;
    if header.records > records::FORMAT {
        return Err(DumpError::LaterRecords(header.records));
    }
    Ok(header)
}

fn entry(line: Line) -> Result<(String, Vec<u8>), String> {
    check_key(&line.key).map_err(|error| error.to_string())?;
    if line.key == CLUSTER || line.key == FILLING {
        return Err(format!("{} is said in the first line", line.key));
    }
    let value = match (line.value, line.hex) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(digits)) => unhex(&digits).ok_or("no hexadecimal digits")?,
        _ => return Err("one value is needed".to_owned()),
    };
    if value.len() > VALUE_BYTES_MAX {
        return Err(format!("a value of {} bytes; {VALUE_BYTES_MAX} are possible", value.len()));
    }
    Ok((line.key, value))
}

/// With its end; `None` at the end of all.
fn next_line(input: &mut impl BufRead, number: &mut usize) -> Result<Option<Vec<u8>>, DumpError> {
    *number += 1;
    let mut bytes = Vec::new();
    let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
    input.by_ref().take(limit).read_until(b'\n', &mut bytes)?;
    if bytes.len() >= LINE_BYTES_MAX && !bytes.ends_with(b"\n") {
        return Err(DumpError::BadLine { line: *number, why: "it is too long".to_owned() });
    }
    Ok((!bytes.is_empty()).then_some(bytes))
}

fn text(value: &impl Serialize) -> Result<String, DumpError> {
    serde_json::to_string(value).map_err(|error| DumpError::Io(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump() -> Dump {
        let cluster = ClusterRecord { id: "ab".repeat(16), name: "home".to_owned(), born_s: 1, generation: 1 };
        let header = Header {
            dvs_backup: FORMAT,
            cluster,
            records: records::FORMAT,
            revision: 77,
            taken_s: 2,
            by: "a test".to_owned(),
        };
        let entries = vec![
            ("/a".to_owned(), b"{\"x\":\"\\n\xc3\xa4\"}".to_vec()),
            ("/b/c".to_owned(), vec![0, 255, 10]),
            ("/d".to_owned(), Vec::new()),
        ];
        Dump { header, entries }
    }

    fn bytes() -> Vec<u8> {
        let mut out = Vec::new();
        dump().write(&mut out).unwrap();
        out
    }

    #[test]
    fn what_is_written_is_read_back() {
        let read = Dump::read(&mut bytes().as_slice()).unwrap();
        assert_eq!(read, dump());
        assert_eq!(read.value("/b/c"), Some(&[0, 255, 10][..]));
        assert_eq!(read.value("/b"), None);
    }

    #[test]
    fn each_byte_that_is_missing_or_another_is_noticed() {
        let good = bytes();
        for length in 0..good.len() - 1 {
            assert!(Dump::read(&mut &good[..length]).is_err(), "cut after {length}");
        }
        for place in 0..good.len() {
            let mut bad = good.clone();
            bad[place] ^= 1;
            assert!(Dump::read(&mut bad.as_slice()).is_err(), "byte {place}");
        }
        let twice = [good.as_slice(), &good].concat();
        assert!(matches!(Dump::read(&mut twice.as_slice()), Err(DumpError::BadLine { .. })));
    }

    /// What an earlier version wrote (`tests/formats`).
    #[test]
    fn backup_of_november_2026_is_read() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats/2026-11/home.backup");
        let dump = Dump::read(&mut io::BufReader::new(std::fs::File::open(path).unwrap())).unwrap();
        assert_eq!((dump.header.revision, dump.header.cluster.generation, dump.entries.len()), (17, 1, 18));
        assert_eq!(dump.value("/ids/dc/of/shop"), Some(&b"1"[..]));
        crate::recovery::revision::revised(&dump, 1).unwrap();
    }

    #[test]
    fn other_files_and_later_ones_are_told_apart() {
        for text in ["", "\n", "hello\n", "{}\n", "[1]\n"] {
            assert!(matches!(Dump::read(&mut text.as_bytes()), Err(DumpError::NoBackup)), "{text:?}");
        }
        let later = b"{\"dvs_backup\":2,\"more\":1}\n";
        assert!(matches!(Dump::read(&mut later.as_slice()), Err(DumpError::LaterFile(2))));
        let mut dump = dump();
        dump.header.records = records::FORMAT + 1;
        let mut out = Vec::new();
        dump.write(&mut out).unwrap();
        assert!(matches!(Dump::read(&mut out.as_slice()), Err(DumpError::LaterRecords(_))));
        let endless = vec![b'a'; LINE_BYTES_MAX + 10];
        assert!(matches!(Dump::read(&mut endless.as_slice()), Err(DumpError::BadLine { .. })));
    }
}
