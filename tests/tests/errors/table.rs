//! Every command that people type: a line that would be carried out, lines that make no sense, and whom it needs.
//!
//! In lines: `{node}` where the container `shop` is, `{other}` another node, `{pid}` a program of `shop`, `{id}` a
//! token, `{dir}` a directory of the test, `{new}` a name that nobody has.

/// Whom a command needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// A daemon, which does it for who has at least this role.
    Daemon(Role),
    /// This machine, as root.
    Machine,
    /// Files alone.
    Files,
    /// Nobody: it tells what there is, also that there is nothing.
    Nobody,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub enum Role {
    Viewer,
    Operator,
    Administrator,
    /// Root on a node.
    Node,
}

/// What comes of its line while too few members of the engine run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Short {
    Refused,
    /// From what the node knows, or because no decision is needed.
    Answers,
    /// Refused, unless it finds that it is so already.
    Either,
}

/// What comes of its line when nothing is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Well {
    Succeeds,
    /// Goes on until it is ended.
    Endless,
    /// Not tried among the others: why, or where it is.
    Elsewhere(&'static str),
}

pub type Wrong = (&'static [&'static str], i32, &'static str);

pub struct Row {
    pub typed: &'static str,
    pub line: &'static [&'static str],
    pub wrong: &'static [Wrong],
    pub needs: Needs,
    pub short: Short,
    pub well: Well,
}

impl Row {
    /// Of the command when it is not done: what `dvs --help` says.
    pub fn status(&self) -> i32 {
        if self.is_of_programs() { 125 } else { 1 }
    }

    /// When its command line makes no sense.
    pub fn usage_status(&self) -> i32 {
        if self.is_of_programs() { 125 } else { 2 }
    }

    fn is_of_programs(&self) -> bool {
        matches!(self.typed, "run" | "exec" | "attach")
    }
}

const fn row(
    typed: &'static str,
    line: &'static [&'static str],
    needs: Needs,
    short: Short,
    well: Well,
    wrong: &'static [Wrong],
) -> Row {
    Row { typed, line, wrong, needs, short, well }
}

use Needs::{Daemon, Files, Machine, Nobody};
use Role::{Administrator, Node, Operator, Viewer};
use Short::{Answers, Either, Refused};
use Well::{Elsewhere, Endless, Succeeds};

const OF_MACHINE: Well = Elsewhere("joining.rs and recovery.rs have machines of their own for it");
const OF_DEV: Well = Elsewhere("every test does it");
const BOTH: Well = Elsewhere("stop and start are tried, and this is one after the other");
const THE_SAME: Well = Elsewhere("it is dc delete");
const BY_HAND: Well = Elsewhere("this cluster's certificates are made by hand; joining.rs has one with an authority");

/// In an order in which all of them can be carried out.
pub const TABLE: &[Row] = &[
    row(
        "run",
        &["shop", "--", "true"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[
            (&["nope", "--", "true"], 125, "nope"),
            (&["shop", "--node", "n9", "--", "true"], 125, "n9"),
            (&["shop", "--user", "nobody-knows", "--", "true"], 125, "nobody-knows"),
            (&["shop", "--root", "/none", "--", "true"], 125, "/none"),
            (&["shop", "--", "no-such-program"], 127, "no-such-program"),
            (&["shop", "--", "/etc/passwd"], 126, "/etc/passwd"),
            (&["idle", "--", "true"], 125, "not running"),
        ],
    ),
    row(
        "exec",
        &["shop", "--beside", "{pid}", "--", "true"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[
            (&["nope", "--", "true"], 125, "nope"),
            (&["shop", "--beside", "65999", "--", "true"], 125, "65999"),
            (&["shop", "--beside", "x", "--", "true"], 125, "x"),
        ],
    ),
    row(
        "attach",
        &["--no-input", "shop", "{pid}"],
        Daemon(Operator),
        Answers,
        Endless,
        &[(&["nope", "65600"], 125, "nope"), (&["shop", "65999"], 125, "65999"), (&["shop", "x"], 125, "x")],
    ),
    row("ps", &["shop"], Daemon(Viewer), Answers, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "logs",
        &["shop", "{pid}"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[
            (&["nope", "65600"], 1, "nope"),
            (&["shop", "65999"], 1, "65999"),
            (&["shop", "0"], 2, "0"),
            (&["shop", "{pid}", "--tail", "x"], 2, "x"),
        ],
    ),
    row(
        "kill",
        &["-s", "0", "shop", "{pid}"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[
            (&["nope", "65600"], 1, "nope"),
            (&["shop", "65999"], 1, "65999"),
            (&["shop", "65998", "65999"], 1, "65999"),
            (&["-s", "FOO", "shop", "{pid}"], 2, "FOO"),
        ],
    ),
    row(
        "import",
        &["shop", "{dir}/tree", "/imported"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[
            (&["nope", "{dir}/tree", "/x"], 1, "nope"),
            (&["shop", "/no/such/directory", "/x"], 1, "/no/such/directory"),
            (&["shop", "{dir}/tree", "/../x"], 2, "leaves the tree"),
            (&["shop", "/etc/passwd", "/x"], 1, "no tar archive"),
            (&["shop", "{dir}/tree", "/x", "--node", "n9"], 1, "n9"),
        ],
    ),
    row(
        "service add",
        &["-o", "json", "idle", "{new}", "--", "true"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[
            (&["idle"], 2, "NAME"),
            (&["nope", "x", "--", "true"], 1, "nope"),
            (&["shop", "clock", "--", "true"], 1, "clock"),
            (&["shop", "X", "--", "true"], 1, "is not a name"),
            (&["shop", "x"], 2, "COMMAND"),
            (&["--node", "n9", "shop", "x", "--", "true"], 1, "n9"),
            (&["--place", "near", "shop", "x", "--", "true"], 2, "near"),
            (&["--instances", "65", "shop", "x", "--", "true"], 1, "65"),
            (&["--health-tcp", "1", "--health-http", "1", "shop", "x", "--", "true"], 2, "health"),
            (&["--file", "/no/such/file", "shop"], 1, "/no/such/file"),
        ],
    ),
    row(
        "server move",
        &["shop", "fs", "{node}"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[
            (&["nope", "fs", "{node}"], 1, "nope"),
            (&["shop", "x", "{node}"], 1, "no server 'x'"),
            (&["shop", "fs", "n9"], 1, "n9"),
            (&["shop", "fs"], 2, "<NODE>"),
        ],
    ),
    row("service ls", &["shop"], Daemon(Viewer), Answers, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "service start",
        &["idle", "clock"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[(&["shop", "x"], 1, "no service 'x'"), (&["nope", "clock"], 1, "nope")],
    ),
    row(
        "service restart",
        &["idle", "clock"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[(&["shop", "x"], 1, "no service 'x'")],
    ),
    row(
        "service move",
        &["idle", "clock"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[
            (&["shop", "x"], 1, "no service 'x'"),
            (&["shop", "clock/9"], 1, "no instance 9"),
            (&["shop", "clock/x"], 2, "clock/x"),
            (&["--to", "n9", "shop", "clock"], 1, "n9"),
        ],
    ),
    row(
        "service stop",
        &["idle", "clock"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[(&["shop", "x"], 1, "no service 'x'")],
    ),
    row(
        "service logs",
        &["shop", "clock"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[
            (&["shop", "x"], 1, "no service 'x'"),
            (&["shop", "clock/9"], 1, "no instance 9"),
            (&["idle", "clock"], 1, "not started"),
        ],
    ),
    row(
        "service rm",
        &["idle", "clock"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[(&["shop", "x"], 1, "no service 'x'")],
    ),
    row(
        "port add",
        &["idle", "18080:80"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[
            (&["idle"], 2, "PORT"),
            (&["nope", "1:1"], 1, "nope"),
            (&["shop", "0:80"], 2, "8080:80"),
            (&["shop", "8080-8081:80"], 2, "range"),
            (&["shop", "8080:80/sctp"], 2, "sctp"),
            (&["--nodes", "n9", "shop", "1:1"], 1, "n9"),
            (&["shop", "192.0.2.1:18081:80"], 1, "192.0.2.1"),
        ],
    ),
    row("port ls", &["shop"], Daemon(Viewer), Answers, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "port rm",
        &["idle", "18079"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[(&["shop", "18079"], 1, "publishes no port"), (&["shop", "x"], 2, "8080:80"), (&["nope", "1"], 1, "nope")],
    ),
    row(
        "dc set",
        &["idle", "--pids", "99", "--env", "A={new}"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[
            (&["idle"], 2, "nothing"),
            (&["nope", "--pids", "99"], 1, "nope"),
            (&["shop", "--memory", "much"], 2, "much"),
            (&["shop", "--memory", "1K"], 1, "memory_bytes"),
            (&["shop", "--cpu-list", "999"], 1, "999"),
            (&["shop", "--env", "A"], 2, "A"),
            (&["shop", "--unset", "A=B"], 1, "A=B"),
            (&["shop", "--egress-allow", "10.0.0.1/8"], 2, "10.0.0.1/8"),
            (&["shop", "--egress", "--no-egress"], 2, "--no-egress"),
        ],
    ),
    row(
        "plan",
        &["-f", "{dir}/idle.toml"],
        Daemon(Viewer),
        Refused,
        Succeeds,
        &[(&[], 2, "--file"), (&["-f", "/no/such/file"], 1, "/no/such/file"), (&["-f", "/etc/passwd"], 1, "line 1")],
    ),
    row(
        "apply",
        &["-f", "{dir}/idle.toml", "--no-start"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[
            (&["-f", "/no/such/file"], 1, "/no/such/file"),
            (&["-f", "/etc/passwd"], 1, "line 1"),
            (&["-f", "{dir}/idle.toml", "--timeout", "3"], 2, "90s"),
        ],
    ),
    row(
        "cp",
        &["{dir}/tree", "shop:/copied"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[
            (&["{dir}/tree"], 2, "DEST"),
            (&["{dir}/tree", "nope:/x"], 1, "nope"),
            (&["/no/such/file", "shop:/x"], 1, "/no/such/file"),
            (&["shop:/no/such/file", "{dir}/out"], 1, "/dc/no/such/file"),
            (&["shop:/", "/no/such/directory/out"], 1, "/no/such/directory/out"),
            (&["{dir}/tree", "/x"], 2, "neither side"),
            (&["shop:/../etc", "{dir}/out"], 2, "leaves the tree"),
            (&["{dir}/tree", "shop:/x", "--node", "n9"], 1, "n9"),
        ],
    ),
    row("stats", &["shop", "--no-stream"], Daemon(Viewer), Answers, Succeeds, &[(&["nope"], 1, "nope")]),
    row("top", &["shop", "--no-stream"], Daemon(Viewer), Answers, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "wait",
        &["shop", "{pid}"],
        Daemon(Viewer),
        Answers,
        Endless,
        &[(&["shop"], 2, "PID"), (&["nope", "65600"], 1, "nope"), (&["shop", "65999"], 1, "65999")],
    ),
    row(
        "inspect",
        &["shop"],
        Daemon(Viewer),
        Answers,
        Succeeds,
        &[(&["nope"], 1, "nope"), (&["shop", "65999"], 1, "65999"), (&["shop", "x"], 1, "no service 'x'")],
    ),
    row("start", &["idle"], Daemon(Operator), Refused, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "stop",
        &["idle"],
        Daemon(Operator),
        Either,
        Succeeds,
        &[(&["nope"], 1, "nope"), (&["shop", "65999"], 1, "65999"), (&["shop", "x"], 2, "x")],
    ),
    row("restart", &["idle"], Daemon(Operator), Either, BOTH, &[(&["nope"], 1, "nope")]),
    row(
        "pause",
        &["shop"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[(&["nope"], 1, "nope"), (&["idle"], 1, "dvs start idle")],
    ),
    row(
        "unpause",
        &["shop"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[(&["nope"], 1, "nope"), (&["idle"], 1, "dvs start idle")],
    ),
    row("rm", &["idle"], Daemon(Operator), Refused, THE_SAME, &[(&["nope"], 1, "nope")]),
    row("events", &["shop"], Daemon(Viewer), Answers, Endless, &[(&["nope"], 1, "nope")]),
    row("info", &[], Daemon(Viewer), Answers, Succeeds, &[(&["--all"], 2, "--all")]),
    row("dc schema", &[], Nobody, Answers, Succeeds, &[(&["shop"], 2, "shop")]),
    row("dc export", &["shop"], Daemon(Viewer), Answers, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "dc backup",
        &["shop", "-"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[
            (&["shop"], 2, "FILE"),
            (&["nope", "{dir}/{new}"], 1, "nope"),
            (&["idle", "{dir}/{new}"], 1, "not running"),
            (&["shop", "{dir}/tree/file"], 1, "there already"),
            (&["shop", "/no/such/directory/file"], 1, "/no/such/directory"),
        ],
    ),
    row(
        "dc restore",
        &["{dir}/shop.backup", "--name", "{new}"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[
            (&[], 2, "FILE"),
            (&["{dir}/none"], 1, "{dir}/none"),
            (&["/etc/passwd"], 1, "no backup"),
            (&["{dir}/shop.backup"], 1, "there is a container 'shop'"),
            (&["{dir}/shop.backup", "--name", "{new}", "--nodes", "n9"], 1, "n9"),
            (&["{dir}/shop.backup", "--name", "Ä"], 1, "Ä"),
            (&["{dir}/shop.backup", "--check", "--no-ports"], 2, "--check"),
        ],
    ),
    row(
        "dc create",
        &["{new}", "--nodes", "{node}", "--disk", "32M"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[
            (&[], 2, "NAME"),
            (&["Bad", "--nodes", "{node}"], 2, "Bad"),
            (&["late", "--nodes", "n9"], 1, "n9"),
            (&["late", "--nodes", "{node},{node}"], 1, "{node}"),
            (&["shop", "--nodes", "{node}"], 1, "shop"),
            (&["shop", "--nodes", "{node}", "--start"], 1, "shop"),
            (&["late", "--subnet", "10.1.0.0/40"], 1, "10.1.0.0/40"),
            (&["late", "--disk", "16M"], 1, "32M"),
            (&["late", "--disk", "16M", "--start"], 1, "32M"),
            (&["late", "--disk", "huge"], 2, "huge"),
            (&["late", "--cpus", "x"], 2, "x"),
            (&["late", "--cpus", "0"], 1, "cpu_max"),
            (&["late", "--memory", "1K"], 1, "memory"),
            (&["late", "--cpu-list", "7000", "--start"], 1, "7000"),
            (&["late", "--fs-node", "n9"], 1, "n9"),
            (&["--file", "/no/such/file"], 1, "/no/such/file"),
        ],
    ),
    row("dc start", &["idle"], Daemon(Operator), Refused, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "dc stop",
        &["idle"],
        Daemon(Operator),
        Either,
        Succeeds,
        &[(&["nope"], 1, "nope"), (&["--grace", "x", "shop"], 2, "x")],
    ),
    row(
        "dc add-node",
        &["idle", "{other}"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[(&["nope", "{other}"], 1, "nope"), (&["shop", "n9"], 1, "n9")],
    ),
    row(
        "dc remove-node",
        &["idle", "{other}"],
        Daemon(Operator),
        Either,
        Succeeds,
        &[(&["nope", "{other}"], 1, "nope"), (&["shop", "n9"], 1, "n9"), (&["shop", "{node}"], 1, "last node")],
    ),
    row(
        "dc delete",
        &["idle"],
        Daemon(Operator),
        Refused,
        Succeeds,
        &[(&["nope"], 1, "nope"), (&["shop"], 1, "not stopped")],
    ),
    row("dc ls", &[], Daemon(Viewer), Answers, Succeeds, &[(&["more"], 2, "more")]),
    row("dc inspect", &["shop"], Daemon(Viewer), Answers, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "ds get",
        &["shop", "key"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[(&["nope", "key"], 1, "nope"), (&["shop", "none"], 1, "none"), (&["shop", ""], 1, "key")],
    ),
    row(
        "ds put",
        &["shop", "{new}", "value"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[(&["nope", "key", "v"], 1, "nope")],
    ),
    row(
        "ds cas",
        &["shop", "{new}", "0", "value"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[
            (&["nope", "key", "0", "v"], 1, "nope"),
            (&["shop", "key", "0", "v"], 1, "key"),
            (&["shop", "key", "x", "v"], 2, "x"),
        ],
    ),
    row(
        "ds delete",
        &["shop", "doomed"],
        Daemon(Operator),
        Either,
        Elsewhere("it is gone by then"),
        &[(&["nope", "key"], 1, "nope"), (&["shop", "none"], 1, "none"), (&["--revision", "0", "shop", "key"], 2, "0")],
    ),
    row("ds ls", &["shop"], Daemon(Operator), Answers, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "ds watch",
        &["shop"],
        Daemon(Operator),
        Answers,
        Endless,
        &[(&["nope"], 1, "nope"), (&["shop", "--after", "x"], 2, "x")],
    ),
    row(
        "ds publish",
        &["shop", "topic", "value"],
        Daemon(Operator),
        Answers,
        Succeeds,
        &[(&["nope", "t", "v"], 1, "nope")],
    ),
    row("ds pipe", &["shop"], Daemon(Operator), Answers, Succeeds, &[(&["nope"], 1, "nope")]),
    row("node ls", &[], Daemon(Viewer), Answers, Succeeds, &[(&["more"], 2, "more")]),
    row("node inspect", &["{node}"], Daemon(Viewer), Answers, Succeeds, &[(&["n9"], 1, "n9")]),
    row(
        "node label",
        &["{node}", "rack=a3"],
        Daemon(Administrator),
        Refused,
        Succeeds,
        &[(&["n9", "rack=a3"], 1, "n9"), (&["{node}", "=a3"], 2, "=a3")],
    ),
    row("node cordon", &["{other}"], Daemon(Administrator), Refused, Succeeds, &[(&["n9"], 1, "n9")]),
    row("node uncordon", &["{other}"], Daemon(Administrator), Refused, Succeeds, &[(&["n9"], 1, "n9")]),
    row("node remove", &["{other}"], Daemon(Administrator), Refused, OF_MACHINE, &[(&["n9"], 1, "n9")]),
    row(
        "node token",
        &[],
        Daemon(Administrator),
        Refused,
        BY_HAND,
        &[(&["--ttl", "x"], 2, "x"), (&["--ttl", "1"], 2, "1")],
    ),
    row("node token ls", &[], Daemon(Administrator), Either, Succeeds, &[(&["more"], 2, "more")]),
    row(
        "node token rm",
        &["00000000"],
        Daemon(Administrator),
        Refused,
        Elsewhere("there is none"),
        &[(&["nope"], 1, "nope")],
    ),
    row(
        "node upgrade",
        &[],
        Daemon(Node),
        Either,
        Succeeds,
        &[
            (&["--binary", "/no/such/file"], 1, "/no/such/file"),
            (&["--binary", "/bin/true"], 1, "/bin/true"),
            (&["--wait", "x"], 2, "x"),
        ],
    ),
    row(
        "node join",
        &["{token}@127.0.0.1:1", "{own}"],
        Machine,
        Either,
        OF_MACHINE,
        &[
            (&["x@n1"], 2, "x@n1"),
            (&["{token}"], 2, "TOKEN@ADDRESS"),
            (&["{token}@127.0.0.1:x"], 2, "x"),
            (&["{token}@127.0.0.1:1", "{own}", "--node", "Bad"], 2, "Bad"),
            (&["{token}@no-such-host.invalid", "{own}"], 1, "no-such-host.invalid"),
            (&["{token}@127.0.0.1:1", "{own}", "--advertise", "127.0.0.2"], 1, "127.0.0.1:1"),
            (&["{token}@127.0.0.1:1", "{own}", "--advertise", "192.0.2.9"], 1, "does not have the address 192.0.2.9"),
        ],
    ),
    row(
        "node ca",
        &["{new}", "--out", "{dir}/{new}"],
        Files,
        Answers,
        Succeeds,
        &[
            (&["Bad", "--out", "{dir}/ca-bad"], 1, "Bad"),
            (&["home", "--out", "{dir}/ca"], 1, "exists already"),
            (&["home", "--out", "/proc/none"], 1, "/proc/none"),
        ],
    ),
    row(
        "node cert",
        &["n1", "--ca", "{dir}/ca", "--out", "{dir}/{new}"],
        Files,
        Answers,
        Succeeds,
        &[
            (&["Bad", "--ca", "{dir}/ca", "--out", "{dir}/cert-bad"], 1, "Bad"),
            (&["n1", "--ca", "{dir}/none", "--out", "{dir}/cert-bad"], 1, "{dir}/none"),
            (&["n1", "--ca", "{dir}/ca", "--out", "{dir}/cert-bad", "--address", "x"], 2, "x"),
            (&["n1", "--ca", "{dir}/ca", "--out", "/proc/none"], 1, "/proc/none"),
        ],
    ),
    row(
        "cluster init",
        &["home", "{own}", "--node", "n1", "--advertise", "192.0.2.9"],
        Machine,
        Either,
        OF_MACHINE,
        &[
            (&["Bad", "{own}"], 2, "Bad"),
            (&["home", "{own}", "--node", "Bad"], 2, "Bad"),
            (&["home", "{own}", "--engine", "x"], 2, "x"),
            (&["home", "{own}", "--advertise", "x"], 2, "x"),
            (&["home", "{own}", "--advertise", "127.0.0.1"], 2, "cannot reach"),
            (&["home", "{own}", "--certificate-lifetime", "1s"], 2, "10 s"),
            (&["home", "{own}", "--engine", "local", "--etcd", "192.0.2.1:2379"], 2, "either"),
            (&["home", "{own}", "--etcd-tls", "/x"], 2, "--etcd"),
            (
                &["home", "{own}", "--engine", "local", "--advertise", "192.0.2.9"],
                1,
                "does not have the address 192.0.2.9",
            ),
            (&["home", "{own}", "--listen", "192.0.2.9"], 2, "--advertise"),
            (
                &["home", "{own}", "--engine", "local", "--advertise", "192.0.2.9", "--listen", "0.0.0.0"],
                2,
                "translated to 0.0.0.0",
            ),
        ],
    ),
    row(
        "cluster backup",
        &["{dir}/{new}"],
        Daemon(Node),
        Refused,
        Succeeds,
        &[(&["{dir}/ca/ca.crt"], 1, "there already"), (&["/no/such/directory/file"], 1, "/no/such/directory")],
    ),
    row(
        "cluster restore",
        &["{dir}/none", "{own}"],
        Machine,
        Either,
        OF_MACHINE,
        &[(&["{dir}/none", "{own}"], 1, "{dir}/none"), (&["/etc/passwd", "{own}"], 1, "/etc/passwd")],
    ),
    row(
        "cluster recover",
        &["--config", "{dir}/none"],
        Machine,
        Either,
        OF_MACHINE,
        &[(&["--config", "{dir}/none"], 1, "{dir}/none"), (&["--config", "/etc/passwd"], 1, "/etc/passwd")],
    ),
    row(
        "cluster move-engine",
        &["--config", "{dir}/none"],
        Machine,
        Either,
        OF_MACHINE,
        &[(&["--config", "{dir}/none"], 1, "{dir}/none"), (&["--config", "/etc/passwd"], 1, "/etc/passwd")],
    ),
    row("cluster level", &[], Daemon(Viewer), Either, Succeeds, &[(&["more"], 2, "more")]),
    row("cluster authority", &[], Daemon(Administrator), Either, BY_HAND, &[(&["more"], 2, "more")]),
    row("cluster rotate-ca", &[], Daemon(Administrator), Refused, BY_HAND, &[(&["--wait", "x"], 2, "x")]),
    row(
        "access token",
        &["{new}", "--role", "viewer", "--out", "{dir}/{new}"],
        Daemon(Administrator),
        Refused,
        Succeeds,
        &[
            (&["Bad", "--role", "viewer", "--out", "{dir}/bad"], 1, "Bad"),
            (&["eve", "--role", "king", "--out", "{dir}/bad"], 2, "king"),
            (&["eve", "--role", "viewer", "--ttl", "1s", "--out", "{dir}/bad"], 1, "10 seconds"),
            (&["ada", "--role", "viewer", "--out", "{dir}/bad"], 1, "ada"),
            (&["eve", "--role", "viewer", "--out", "{dir}/ca/ca.crt"], 1, "exists already"),
            (&["eve", "--role", "viewer", "--out", "/no/such/directory/file"], 1, "/no/such/directory"),
        ],
    ),
    row(
        "access certificate",
        &["{new}", "--role", "viewer", "--out", "{dir}/{new}"],
        Daemon(Administrator),
        Refused,
        Succeeds,
        &[
            (&["Bad", "--role", "viewer", "--out", "{dir}/bad"], 1, "Bad"),
            (&["eve", "--role", "viewer", "--of", "/no/such/file", "--out", "{dir}/bad"], 1, "/no/such/file"),
            (&["eve", "--role", "viewer", "--of", "/etc/passwd", "--out", "{dir}/bad"], 1, "cannot be a person's"),
        ],
    ),
    row(
        "access key",
        &["{new}", "--out", "{dir}"],
        Files,
        Answers,
        Succeeds,
        &[
            (&["Bad", "--out", "{dir}"], 1, "Bad"),
            (&["bob", "--out", "{dir}"], 1, "exists already"),
            (&["eve", "--out", "/no/such/directory"], 1, "/no/such/directory"),
            (&["eve", "--ttl", "x"], 2, "x"),
        ],
    ),
    row("access ls", &[], Daemon(Administrator), Either, Succeeds, &[(&["more"], 2, "more")]),
    row("access rm", &["ada"], Daemon(Administrator), Refused, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "context add",
        &["{new}", "--token-file", "{dir}/none"],
        Files,
        Answers,
        Elsewhere("people.rs"),
        &[
            (&["Bad", "--token-file", "{dir}/none"], 1, "Bad"),
            (&["local", "--token-file", "{dir}/none"], 1, "local"),
            (&["x", "--token-file", "{dir}/none"], 1, "{dir}/none"),
            (&["x", "--token-file", "/etc/passwd"], 1, "/etc/passwd"),
            (&["x", "127.0.0.1"], 2, "--ca"),
            (&["far", "--token-file", "{dir}/none"], 1, "already"),
        ],
    ),
    row(
        "context use",
        &["far"],
        Files,
        Answers,
        Elsewhere("people.rs"),
        &[(&["nope"], 1, "nope"), (&["Bad"], 1, "Bad")],
    ),
    row("context ls", &[], Nobody, Answers, Succeeds, &[(&["more"], 2, "more")]),
    row("context show", &["far"], Nobody, Answers, Succeeds, &[(&["nope"], 1, "nope")]),
    row(
        "context rm",
        &["far"],
        Files,
        Answers,
        Elsewhere("people.rs"),
        &[(&["nope"], 1, "nope"), (&["Bad"], 1, "Bad")],
    ),
    row(
        "audit",
        &["{node}"],
        Daemon(Administrator),
        Answers,
        Succeeds,
        &[(&["n9"], 1, "n9"), (&["--tail", "x"], 2, "x")],
    ),
    row(
        "dev up",
        &["--name", "{new}"],
        Machine,
        Either,
        OF_DEV,
        &[
            (&["--nodes", "0"], 2, "0"),
            (&["--nodes", "x"], 2, "x"),
            (&["--name", "Bad"], 2, "Bad"),
            (&["--engine", "x"], 2, "x"),
            (&["--name", "new", "--daemon", "/no/such/file"], 1, "no such program"),
            (&[], 1, "exists already"),
        ],
    ),
    row("dev down", &["--name", "nope"], Machine, Either, OF_DEV, &[(&["--name", "nope"], 1, "nope")]),
    row("dev ls", &[], Nobody, Answers, Succeeds, &[(&["more"], 2, "more")]),
    row(
        "dev exec",
        &["n9", "--", "true"],
        Machine,
        Either,
        OF_DEV,
        &[
            (&["n9", "--", "true"], 1, "n9"),
            (&["--name", "nope", "n1", "--", "true"], 1, "nope"),
            (&["{node}", "--", "no-such-program"], 127, "no-such-program"),
        ],
    ),
    row("dev kill", &["n9"], Machine, Either, OF_DEV, &[(&["n9"], 1, "n9"), (&["--name", "nope", "n1"], 1, "nope")]),
    row("dev restart", &["n9"], Machine, Either, OF_DEV, &[(&["n9"], 1, "n9"), (&["--name", "nope", "n1"], 1, "nope")]),
    row(
        "dev wire",
        &["n9", "up"],
        Machine,
        Either,
        OF_DEV,
        &[(&["n9", "up"], 1, "n9"), (&["{node}", "sideways"], 2, "sideways")],
    ),
    row("metrics", &["{node}"], Daemon(Viewer), Answers, Succeeds, &[(&["n9"], 1, "n9")]),
    row(
        "doctor",
        &[],
        Nobody,
        Answers,
        Elsewhere("doctor.rs: its status tells of the machine"),
        &[(&["--dry-run"], 2, "--clean"), (&["more"], 2, "more")],
    ),
    row(
        "doctor report",
        &["--out", "{dir}/{new}"],
        Files,
        Answers,
        Succeeds,
        &[(&["--out", "/no/such/directory/file"], 1, "/no/such/directory")],
    ),
    row("version", &[], Nobody, Answers, Succeeds, &[(&["more"], 2, "more")]),
    row("completion", &["bash"], Files, Answers, Succeeds, &[(&["tcl"], 2, "tcl")]),
    row(
        "daemon",
        &["--config", "{dir}/none"],
        Machine,
        Either,
        OF_DEV,
        &[
            (&["--config", "{dir}/none"], 1, "{dir}/none"),
            (&["--config", "/etc/passwd"], 1, "/etc/passwd"),
            (&["--advertise", "x"], 2, "x"),
            (&["--pairs", "0"], 2, "0"),
        ],
    ),
];
