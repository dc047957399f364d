//! The table of calls in `docs/design/processes.md` is the one in the code. `DVS_WRITE_SNAPSHOTS=1 cargo test -p
//! proc-core --test documentation` writes it there.

use std::path::Path;

const BEGIN: &str = "<!-- calls: made by proc-core, tests/documentation.rs -->\n";
const END: &str = "<!-- end of calls -->\n";

#[test]
fn page_has_the_table_of_calls() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/processes.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (before, rest) = page.split_once(BEGIN).expect("a place for the table");
    let (table, after) = rest.split_once(END).expect("an end of the table");
    let expected = proc_core::calls::documentation();
    if std::env::var_os("DVS_WRITE_SNAPSHOTS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}")).expect("the page can be written");
        return;
    }
    assert!(
        table == expected,
        "the table is not that of the code; DVS_WRITE_SNAPSHOTS=1 cargo test -p proc-core --test documentation"
    );
}
