//! How the web servers that are measured are configured.

/// One worker, which keeps connections. `server` is what its one server says of locations; `name` tells its files.
pub fn configuration(name: &str, port: u16, server: &str) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path /tmp/bench-{name}-{kind};\n"))
        .concat();
    format!(
        "user root;\ndaemon off;\nworker_processes 1;\npid /tmp/bench-{name}.pid;\nerror_log stderr crit;\nevents {{}}
http {{\n{temporary}access_log off;\nsendfile on;\nkeepalive_requests 100000000;
server {{ listen {port}; {server} }}\n}}\n"
    )
}
