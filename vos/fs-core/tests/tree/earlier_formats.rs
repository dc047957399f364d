//! Volumes that earlier versions wrote open, and have what was in them (`tests/formats`).

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use crate::common::Client;
use fs_core::device::{BLOCK64, BlockDevice};
use fs_core::testing::MemoryDevice;
use fs_core::{Depth, Fs, Options, Reply};
use vos_api::fs as api;

/// A volume as it was when it was copied.
fn volume(version: &str) -> Arc<MemoryDevice> {
    let file =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats").join(version).join("volume.img.gz");
    let unpacked = Command::new("gzip").arg("-dc").arg(file).output().expect("gzip runs");
    assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    let device = MemoryDevice::new(unpacked.stdout.len() as u64);
    for (at, block) in unpacked.stdout.chunks_exact(BLOCK64 as usize).enumerate() {
        if block.iter().any(|byte| *byte != 0) {
            device.write(at as u64 * BLOCK64, block).expect("written");
        }
    }
    Arc::new(device)
}

/// Follows names from the root.
fn walk(client: &Client, path: &str) -> Option<u64> {
    path.split('/').try_fold(1, |parent, name| client.lookup(parent, name))
}

fn ok(reply: Reply) -> Reply {
    assert_eq!(reply.status, 0);
    reply
}

/// It was copied while it ran: `mkdir -p a/b`, a file with a second name, a link and an attribute, 300 files of which
/// every other was removed, a sparse file, 20,000 numbers of another owner, a FIFO, `sync`; then, without one, some
/// changes more.
#[test]
fn volume_of_november_2026_has_everything_that_was_written() {
    let fs = Fs::open(volume("2026-11"), Options::inline(1)).expect("the volume opens");
    assert_eq!(fs.check(Depth::Data).expect("a readable volume"), Vec::<String>::new());
    let client = Client::new(&fs, 0);
    let ino = |path: &str| walk(&client, path).unwrap_or_else(|| panic!("{path} is there"));
    let greeting = ino("a/b/greeting");
    assert_eq!((client.read_all(greeting), ino("a/second")), (b"hello\n".to_vec(), greeting));
    assert_eq!((client.attr(greeting).links.get(), client.attr(greeting).mode.get()), (2, 0o100_640));
    assert_eq!(ok(client.read_call(api::READLINK, [ino("a/link"), 0, 0], &[])).data, b"b/greeting");
    assert_eq!(ok(client.read_call(api::GETXATTR, [greeting, 0, 0], b"user.color")).data, b"red");
    let numbers: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(client.read_all(ino("numbers")), numbers.into_bytes());
    let attr = client.attr(ino("numbers"));
    assert_eq!((attr.uid.get(), attr.mtime_ns.get()), (1000, 1_000_000_000_000_000_000));
    let sparse = client.read_all(ino("sparse"));
    assert_eq!((sparse.len(), sparse.iter().any(|byte| *byte != 0)), (3_000_000, false));
    assert_eq!(client.attr(ino("pipe")).mode.get(), 0o010_644);
    // Without `sync`, in the log alone.
    assert_eq!(client.read_all(ino("a/late")), b"late\n");
    assert_eq!(client.read_all(ino("log")), b"1\n2\n3\n4\n5\n");
    assert_eq!((walk(&client, "many/file-1"), walk(&client, "many/file-3")), (None, None));
    assert_eq!(client.read_all(ino("many/renamed")), b"1\n");
    assert_eq!(client.list(ino("many")).len(), 149);
}

/// What the log said is in the metadata then, and the log is written anew.
#[test]
fn volume_of_november_2026_takes_a_checkpoint() {
    let volume = volume("2026-11");
    let open = || Fs::open(volume.clone(), Options::inline(1)).expect("the volume opens");
    open().checkpoint().expect("written");
    let client = Client::new(&open(), 0);
    assert_eq!(client.fs.check(Depth::Data).expect("a readable volume"), Vec::<String>::new());
    assert_eq!(walk(&client, "a/late").map(|ino| client.read_all(ino)), Some(b"late\n".to_vec()));
}
