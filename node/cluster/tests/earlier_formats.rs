//! Engines that earlier versions wrote open, and have what was in them (`tests/formats`).

use std::path::PathBuf;

use cluster::local::{LocalConfig, LocalEngine};
use cluster::{Engine, Lookup, Op, Outcome};

#[test]
fn engine_of_november_2026_has_its_keys_and_takes_new_ones() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats/2026-11/engine.db");
    std::fs::copy(file, dir.path().join("engine.db")).expect("copied");
    let open = || LocalEngine::open(LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile")));
    let engine = open().expect("the engine opens");
    // What had a lease went with the machine that held it.
    let keys: Vec<String> =
        engine.list("/members/").expect("read").entries.into_iter().map(|entry| entry.key).collect();
    assert_eq!(keys, ["/members/n1", "/members/n2"]);
    let shop = engine.read("/dcs/shop").expect("read").expect("a container");
    assert!(shop.value.starts_with(br#"{"id":1,"spec":{"name":"shop","nodes":["n1","n2"]"#));
    let done = engine.transact(&[], &[Op::put("/new", b"value".to_vec())]).expect("written");
    assert!(matches!(done, Outcome::Done(_)), "{done:?}");
    drop(engine);
    assert_eq!(open().expect("again").read("/new").expect("read").expect("there").value, b"value");
}
