//! The library as a C program sees it: compiled against the shared object and against the archive, talking over a
//! broker.

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use broker::DcOptions;
use common::{Container, Library, Linked, has, ok, source, text};
use ipc::{Endpoint, Message, Peers, Privileges, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(10));
const C99: &[&str] = &["-std=gnu99"];

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(Library::link)
}

/// Compiles a test program both ways and runs it in a container of its own.
fn passes_both_ways(file: &str) {
    for linked in [Linked::Shared, Linked::Archive] {
        let program = library().compile("cc", C99, file, linked);
        Container::open().run(&program, &[]);
    }
}

#[test]
fn messages_from_c() {
    passes_both_ways("tests/c/messages.c");
}

#[test]
fn copies_from_c() {
    passes_both_ways("tests/c/copies.c");
}

#[test]
fn rings_from_c() {
    passes_both_ways("tests/c/rings.c");
}

#[test]
fn info_from_c() {
    passes_both_ways("tests/c/info.c");
}

#[test]
fn published_names_from_c() {
    passes_both_ways("tests/c/dvk.c");
}

#[test]
fn structures_of_the_headers_are_those_of_the_library() {
    let strict = library().compile("cc", &["-std=c99"], "tests/c/layout.c", Linked::Shared);
    ok(&mut Command::new(strict));
    let cpp = library().compile("c++", &["-x", "c++", "-std=c++11"], "tests/c/layout.c", Linked::Shared);
    ok(&mut Command::new(cpp));
}

#[test]
fn program_without_any_shared_object_works() {
    let program = library().compile("cc", C99, "tests/c/messages.c", Linked::Static);
    Container::open().run(&program, &[]);
}

/// Names that a header declares: followed by a parenthesis, outside comments and macros.
fn declared(header: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(source(header)).unwrap();
    let code: String = text.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let lines = code.lines().filter(|line| !line.starts_with('#'));
    let code: String = lines.flat_map(|line| [line, "\n"]).collect();
    let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let before_parentheses = code.split('(').filter_map(|part| part.rsplit(|char| !is_name(char)).next());
    let names = before_parentheses.filter(|name| name.starts_with("m3_") || name.starts_with("dvk_"));
    names.map(str::to_owned).collect()
}

#[test]
fn library_exports_what_its_headers_declare_and_nothing_else() {
    let of_headers: BTreeSet<String> =
        ["include/m3ipc.h", "include/m3ipc_dvk.h"].iter().flat_map(|header| declared(header)).collect();
    assert!(of_headers.len() > 60 && of_headers.contains("m3_sendrec") && of_headers.contains("dvk_rcvrqst_T"));
    for (file, flag) in [("libm3ipc.so", "-gD"), ("libm3ipc.a", "-g")] {
        let listed = text(&ok(Command::new("nm").args([flag, "--defined-only"]).arg(library().lib().join(file))));
        let symbols = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
        let exported: BTreeSet<String> = symbols
            .map(|symbol| symbol.split('@').next().unwrap().to_owned())
            .filter(|name| !name.starts_with("M3IPC_"))
            .collect();
        assert_eq!(exported, of_headers, "{file}");
    }
}

#[test]
fn shared_object_has_a_versioned_name_and_needs_nothing_but_the_c_library() {
    let shown = text(&ok(Command::new("readelf").arg("-dW").arg(library().lib().join("libm3ipc.so"))));
    let of_tag = |tag: &str| -> Vec<String> {
        let lines = shown.lines().filter(|line| line.contains(tag));
        lines.filter_map(|line| Some(line.split_once('[')?.1.split(']').next()?.to_owned())).collect()
    };
    assert_eq!(of_tag("(SONAME)"), ["libm3ipc.so.0"]);
    let needed: BTreeSet<String> = of_tag("(NEEDED)").into_iter().collect();
    let allowed = ["libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"].map(str::to_owned).into();
    assert!(needed.is_subset(&allowed) && needed.contains("libc.so.6"), "{needed:?}");
    assert!(!shown.contains("TEXTREL"), "{shown}");
}

/// A program of a test that runs beside it, and is killed with it.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(container: &Container, program: &Path) -> (Running, Endpoint) {
        let mut running = Running::begin(&mut container.command(program));
        let first = running.line();
        let number = first.strip_prefix("endpoint ").and_then(|number| number.parse().ok());
        (running, Endpoint::new(number.unwrap()).unwrap())
    }

    fn begin(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn ends_well(mut self) {
        assert!(self.child.wait().unwrap().success());
        assert!(self.lines.next().is_none());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // `timeout` passes it on to the program.
        if let Ok(None) = self.child.try_wait() {
            let _ = Command::new("kill").arg(self.child.id().to_string()).status();
            let _ = self.child.wait();
        }
    }
}

#[test]
fn echo_example_is_built_with_pkg_config_from_an_installed_library() {
    if !has("pkg-config") {
        eprintln!("SKIPPED: pkg-config is not installed");
        return;
    }
    let root = library().install();
    let flags = |what: &[&str]| -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", root.join("usr/lib/pkgconfig")).env("PKG_CONFIG_SYSROOT_DIR", &root);
        let shown = text(&ok(command.args(what).arg("m3ipc")));
        shown.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(flags(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let programs = ["echo_server", "echo_client"].map(|name| {
        let program = library().path(name);
        let mut command = Command::new("cc");
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c99", "-o"]).arg(&program);
        command.arg(source(&format!("examples/{name}.c"))).args(flags(&["--cflags", "--libs"]));
        ok(&mut command);
        program
    });
    let container = Container::open();
    let with_library = |command: &mut Command| {
        command.env("LD_LIBRARY_PATH", root.join("usr/lib"));
    };
    let mut server = container.command(&programs[0]);
    with_library(server.arg("4711").stdout(Stdio::null()));
    let mut server = server.spawn().unwrap();
    let mut client = container.command(&programs[1]);
    with_library(client.args(["4711", "hello", "world"]));
    assert_eq!(text(&ok(&mut client)), "hello\nworld\n");
    assert!(server.wait().unwrap().success());
}

#[test]
fn event_loop_example_sees_messages_and_notifications_through_its_descriptor() {
    let program = library().compile("cc", &["-std=gnu99"], "examples/event_loop.c", Linked::Shared);
    let container = Container::open();
    let (running, server) = Running::start(&container, &program);
    let mut client = container.program();
    for count in 1..=20 {
        client.notify(server, 1).unwrap();
        let mut seen = 0;
        // A notification is taken before a message that comes with it, or with one that came before.
        while seen < count {
            seen = client.sendrec(server, &Message::new(1), SOON).unwrap().word(0);
        }
        assert_eq!(seen, count);
    }
    client.sendrec(server, &Message::new(0), SOON).unwrap();
    running.ends_well();
}

#[test]
fn counter_example_hands_itself_over_and_counts_on() {
    let program = library().compile("cc", C99, "examples/counter.c", Linked::Shared);
    let container = Container::open();
    let run = |arguments: &[&str]| text(&ok(container.command(&program).args(arguments)));
    let mut first = Running::begin(&mut container.command(&program));
    let line = first.line();
    let said: Vec<&str> = line.split([' ', ',']).collect();
    let ["endpoint", counter, "", "process", owner, "", "count", "0"] = said[..] else { panic!("{line}") };
    assert_eq!(run(&["ask", counter]), format!("1 from process {owner}\n"));
    let mut backup = Running::begin(container.command(&program).args(["after", counter]));
    let line = backup.line();
    let said: Vec<&str> = line.split(' ').collect();
    let ["process", next, "takes", "the", "count", "at", place] = said[..] else { panic!("{line}") };
    // Nobody has this place, so the counter goes on where it is.
    run(&["move", counter, "1", next, "8000"]);
    assert_eq!(run(&["ask", counter]), format!("2 from process {owner}\n"));
    run(&["move", counter, "1", next, place]);
    first.ends_well();
    assert_eq!(backup.line(), format!("endpoint {counter}, process {next}, count 2"));
    assert_eq!(run(&["ask", counter]), format!("3 from process {next}\n"));
}

#[test]
fn manager_binds_over_the_socket_it_is_handed_wakes_programs_and_confines_them() {
    let program = library().compile("cc", C99, "tests/c/woken.c", Linked::Shared);
    let container = Container::open();
    let socket = container.server_socket(Endpoint::new(5).unwrap());
    ok(container.command(&program).stdin(Stdio::from(socket)));
}

#[test]
fn server_passes_requests_on_speaks_for_others_and_binds_another_process() {
    let program = library().compile("cc", C99, "tests/c/delegating.c", Linked::Shared);
    let container = Container::open();
    let socket = container.server_socket(Endpoint::new(5).unwrap());
    ok(container.command(&program).stdin(Stdio::from(socket)));
}

#[test]
fn what_a_program_may_not_do_has_its_own_numbers() {
    let program = library().compile("cc", C99, "tests/c/refused.c", Linked::Shared);
    let strict = Privileges { to: Peers::servers(), rings: Peers::none(), ..Privileges::program() };
    let options = DcOptions { program_endpoints: 256..258, program_privileges: strict, ..DcOptions::default() };
    let container = Container::with(options);
    let _server = container.server(Endpoint::DS);
    container.run(&program, &[]);
}

/// The programs that a manual page shows whole.
fn programs_of(page: &str) -> Vec<String> {
    let page = std::fs::read_to_string(source(page)).unwrap();
    let blocks = page.split(".Bd -literal -offset indent\n").skip(1).filter_map(|rest| rest.split("\n.Ed").next());
    blocks.filter(|block| block.contains("int main")).map(|block| block.replace("\\e", "\\") + "\n").collect()
}

#[test]
fn programs_of_the_manual_pages_are_a_server_and_its_client() {
    for name in ["m3ipc.7", "dvk.3"] {
        let programs = programs_of(&format!("man/{name}"));
        let [server, client] = [0, 1].map(|index| {
            let file = library().path(&format!("{name}.{index}.c"));
            std::fs::write(&file, &programs[index]).unwrap();
            library().compile("cc", &["-std=c99"], file.to_str().unwrap(), Linked::Shared)
        });
        let container = Container::open();
        let (_server, number) = Running::start(&container, &server);
        assert_eq!(text(&container.run(&client, &[&number.to_string()])), "42 came back\n");
    }
}

#[test]
fn manual_pages_have_no_faults() {
    let pages = std::fs::read_dir(source("man")).unwrap().map(|entry| entry.unwrap().path());
    let pages: Vec<_> = pages.collect();
    assert!(pages.len() >= 7, "{pages:?}");
    if !has("mandoc") {
        eprintln!("SKIPPED: mandoc is not installed");
        return;
    }
    let checked = Command::new("mandoc").args(["-T", "lint", "-W", "style"]).args(&pages).output().unwrap();
    let said = text(&checked);
    // What it cannot know of: pages of other sections that are not installed.
    let faults: Vec<&str> = said.lines().filter(|line| !line.contains("referenced manual not found")).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_function_is_described_by_a_manual_page_under_its_name() {
    let root = library().install();
    for name in ["include/m3ipc.h", "include/m3ipc_dvk.h"].iter().flat_map(|header| declared(header)) {
        let page = root.join("usr/share/man/man3").join(format!("{name}.3"));
        assert!(page.exists(), "{} is missing", page.display());
        let shown = std::fs::read_to_string(&page).unwrap();
        assert!(shown.contains(&format!(".Fn {name}")) || shown.contains(&format!(".Fo {name}")), "{name}");
    }
}
