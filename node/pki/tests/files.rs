//! Files that cannot be written leave nothing behind: the same again is as if it were the first time.

use std::fs;
use std::path::Path;

use pki::{Authority, PkiError};

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn authority_whose_certificate_cannot_be_written_leaves_no_key_that_is_taken_for_one() {
    let dir = tempfile::tempdir().expect("a directory");
    // In the way of the second file that is written.
    let in_the_way = dir.path().join(format!("ca.crt.{}.new", std::process::id()));
    fs::create_dir(&in_the_way).expect("a directory");
    let refused = Authority::create(dir.path(), "home").err();
    assert!(matches!(refused, Some(PkiError::Write { .. })), "{refused:?}");
    fs::remove_dir(&in_the_way).expect("it is there");
    assert_eq!(names(dir.path()), Vec::<String>::new());
    Authority::create(dir.path(), "home").expect("nothing is in the way");
    assert_eq!(names(dir.path()), ["ca.crt", "ca.key"]);
}

#[test]
fn file_that_cannot_take_its_place_leaves_no_draft() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir_all(dir.path().join("ca.crl/in the way")).expect("directories");
    let refused = pki::write_public(&dir.path().join("ca.crl"), "text");
    assert!(matches!(refused, Err(PkiError::Write { .. })), "{refused:?}");
    assert_eq!(names(dir.path()), ["ca.crl"]);
}
