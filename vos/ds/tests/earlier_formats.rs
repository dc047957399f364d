//! Stores that earlier versions wrote open, and have what was in them (`tests/formats`).

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use ds::{FileStore, Limits, Store};

/// A copy, because opening may write.
fn file(version: &str) -> File {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats").join(version).join("ds.store.gz");
    let copy = tempfile::tempfile().expect("a temporary file");
    let into = copy.try_clone().expect("a descriptor");
    let done = Command::new("gzip").arg("-dc").arg(file).stdout(into).status().expect("gzip runs");
    assert!(done.success());
    copy
}

#[test]
fn store_of_november_2026_has_its_keys_and_their_revisions() {
    let store = Store::open(FileStore::new(file("2026-11").into()), Limits::default()).expect("the store opens");
    store.load().expect("everything in it is read");
    let value = |key: &str| store.get(key.as_bytes()).expect("read");
    assert_eq!(value("greeting"), Some((1, b"hello".to_vec())));
    assert_eq!(value("second"), Some((2, b"two words".to_vec())));
    assert_eq!(value("third"), None);
}
