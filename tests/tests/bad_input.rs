//! One clear error, with what to try, and nothing half-made.

use end_to_end::Cluster;

#[test]
fn mistakes_get_one_clear_error_and_leave_nothing_half_made() {
    let cluster = Cluster::up(1);
    let refused = |arguments: &[&str], part: &str| {
        let (code, message) = cluster.fails(arguments);
        assert_ne!(code, 0, "{arguments:?}");
        assert!(message.starts_with("dvs: ") && message.contains(part), "{arguments:?}: {message}");
        assert!(message.contains("\n  try: "), "{arguments:?} does not say what to try: {message}");
    };
    refused(&["dc", "create", "shop", "--nodes", "n1,n7"], "n7");
    refused(&["dc", "create", "Bad Name", "--nodes", "n1"], "Bad Name");
    refused(&["dc", "create", "shop", "--nodes", "n1,n1"], "n1");
    refused(&["dc", "create", "shop", "--nodes", "n1", "--subnet", "10.1.0.0/40"], "10.1.0.0/40");
    refused(&["dc", "start", "shop"], "shop");
    refused(&["dev", "up"], "dev");
    assert_eq!(cluster.json(&["dc", "ls", "-o", "json"]).as_array().map(Vec::len), Some(0));
    cluster.ok(&["dc", "create", "shop", "--nodes", "n1"]);
    refused(&["dc", "create", "shop", "--nodes", "n1"], "shop");
    refused(&["run", "shop", "--", "true"], "shop");
}
