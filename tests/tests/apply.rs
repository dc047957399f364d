//! Containers that become as files describe them.

use std::path::PathBuf;

use end_to_end::Cluster;

const FIRST: &str = r#"
[[dc]]
name = "shop"
nodes = ["n1", "n2"]
env = ["COLOUR=red"]
[dc.limits]
pids = 500
[[dc.ports]]
published = 18080
port = 80
[[dc.services]]
name = "web"
command = ["/usr/bin/python3", "-m", "http.server", "80"]
node = "n2"
health = { tcp = 80, interval_ms = 200 }

[[dc]]
name = "other"
nodes = ["n1"]
[dc.limits]
memory_bytes = 134217728
"#;

struct Files {
    cluster: Cluster,
    path: PathBuf,
}

impl Files {
    fn write(&self, text: &str) -> &str {
        std::fs::write(&self.path, text).expect("written");
        self.path.to_str().expect("text")
    }

    fn plan(&self, text: &str) -> serde_json::Value {
        self.cluster.json(&["plan", "-f", self.write(text), "-o", "json"])
    }

    fn requests(&self, text: &str) -> Vec<String> {
        let plan = self.plan(text);
        let steps = plan["dcs"].as_array().expect("a list").iter().flat_map(|dc| dc["steps"].as_array().cloned());
        steps.flatten().map(|step| step["request"].as_str().expect("text").to_owned()).collect()
    }

    fn apply(&self, text: &str) {
        self.cluster.ok(&["apply", "-f", self.write(text)]);
    }
}

#[test]
fn file_is_planned_applied_changed_and_exported() {
    let cluster = Cluster::up(3);
    let files = Files { path: cluster.state_dir().join("shop.toml"), cluster };
    let cluster = &files.cluster;
    assert_eq!(files.requests(FIRST), ["dc-create", "dc-create"]);
    assert_eq!(cluster.ok(&["dc", "ls", "-o", "name"]), "", "a plan changes nothing");
    files.apply(FIRST);
    // It is answered when the services are well.
    let get = "import urllib.request as u; print(u.urlopen('http://n2/', timeout=5).status)";
    assert_eq!(cluster.ok(&["run", "shop", "-n", "n1", "--", "python3", "-c", get]), "200\n");
    let shown = cluster.ok(&["plan", "-f", files.write(FIRST)]);
    assert_eq!(shown, "shop: as described\nother: as described\n");
    files.apply(FIRST);

    // What it is by now describes itself.
    let exported = cluster.ok(&["dc", "export", "shop"]);
    assert_eq!(files.requests(&exported), Vec::<String>::new(), "{exported}");

    let second = FIRST
        .replace("\"n1\", \"n2\"", "\"n1\", \"n2\", \"n3\"")
        .replace("COLOUR=red", "COLOUR=blue")
        .replace("pids = 500", "pids = 400")
        .replace("18080", "18081")
        .replace("\"80\"]", "\"80\", \"--directory\", \"/dc\"]");
    let expected = ["dc-node-add", "dc-change", "service-remove", "service-add"];
    assert_eq!(files.requests(&second), expected);
    let shown = cluster.ok(&["plan", "-f", files.write(&second)]);
    for line in ["node n3: comes", "pids: 500 -> 400", "variable COLOUR: set", "port 18081:80/tcp: published"] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    files.apply(&second);
    assert_eq!(files.requests(&second), Vec::<String>::new());
    assert_eq!(cluster.sh("shop", "n3", "echo $COLOUR; ls /dc >/dev/null && echo there"), "blue\nthere\n");
    assert_eq!(cluster.ok(&["port", "ls", "shop", "-o", "name"]).trim(), "18081:80/tcp");

    // The file of before is of another container than there is now.
    let guarded = exported.replace("# generation", "generation").replace("COLOUR=red", "COLOUR=green");
    let (status, said) = cluster.fails(&["apply", "-f", files.write(&guarded)]);
    assert!(status == 1 && said.contains("another one by now"), "{said}");
    let fresh = cluster.ok(&["dc", "export", "shop"]).replace("# generation", "generation");
    files.apply(&fresh.replace("COLOUR=blue", "COLOUR=green"));
    assert_eq!(cluster.sh("shop", "n1", "echo $COLOUR"), "green\n");
}

#[test]
fn what_is_refused_changes_nothing_of_the_file() {
    let cluster = Cluster::up(1);
    let files = Files { path: cluster.state_dir().join("shop.toml"), cluster };
    let cluster = &files.cluster;
    let first = "[[dc]]\nname = 'a'\nnodes = ['n1']\nenv = ['X=1']\n";
    files.apply(first);
    let cases = [
        ("name = 'b'\nnodes = ['n9']", "no node"),
        ("name = 'b'\nnodes = ['n1']\n[dc.limits]\nmemory_bytes = 1000000000000000", "cannot promise"),
        ("name = 'b'\nnodes = ['n1']\nsubnet = 'here'", "network"),
        ("name = 'a'\nnodes = ['n1']", "twice"),
        ("name = 'b'\nnods = ['n1']", "nods"),
    ];
    for (second, why) in cases {
        let text = format!("{}\n[[dc]]\n{second}\n", first.replace("X=1", "X=2"));
        let (status, said) = cluster.fails(&["apply", "-f", files.write(&text)]);
        assert!(status == 1 && said.contains(why) && said.contains("try:"), "{why}: {said}");
        assert_eq!(cluster.ok(&["dc", "ls", "-o", "name"]), "a\n", "{why}");
        assert_eq!(cluster.sh("a", "n1", "echo $X"), "1\n", "{why}");
    }
    let moved = "name = 'a'\nnodes = ['n1']\nenv = ['X=1']\nsubnet = '10.77.0.0/24'";
    let (status, said) = cluster.fails(&["plan", "-f", files.write(moved)]);
    assert!(status == 1 && said.is_empty(), "a refused plan is an answer: {said}");
    let shown = cluster.output(&["plan", "-f", files.write(moved)]).stdout;
    assert!(String::from_utf8_lossy(&shown).contains("decided when it was made: subnet"));
    // A service that does not come up.
    let lame = "name = 'a'\nnodes = ['n1']\n[[services]]\nname = 'lame'\ncommand = ['/bin/sleep', '100']\n\
        health = { tcp = 81 }";
    let (status, said) = cluster.fails(&["apply", "-f", files.write(lame), "--timeout", "3s"]);
    assert!(status == 1 && said.contains("after 3 s") && said.contains("waiting for service lame"), "{said}");
}
