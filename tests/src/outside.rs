//! A client outside of a container that asks over HTTP all the time (`outside.py` says how).

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::Value;

use crate::Cluster;

const PROGRAM: &str = include_str!("outside.py");

/// A server that says who it is, over connections that stay.
pub const SERVER: &str = "import http.server as h, os, sys
class Answer(h.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = os.uname().nodename.encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
h.ThreadingHTTPServer.request_queue_size = 64
h.ThreadingHTTPServer(('', int(sys.argv[1])), Answer).serve_forever()";

pub struct Outside {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// How it went.
#[derive(Debug)]
pub struct Asked {
    pub answered: u64,
    pub failed: Vec<Value>,
    pub longest_ms: f64,
    /// How often each node answered.
    pub by: Value,
}

impl Outside {
    /// On a node's machine, and so outside of all containers.
    pub fn begin(cluster: &Cluster, node: &str, urls: &[String]) -> Outside {
        let words = ["dev", "exec", node, "--", "python3", "-c", PROGRAM];
        let words: Vec<&str> = words.into_iter().chain(urls.iter().map(String::as_str)).collect();
        let mut command = cluster.command_without_limit(&words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("it says that it begins");
        assert_eq!(line, "begun\n");
        Outside { child, output }
    }

    pub fn end(mut self) -> Asked {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("its last word");
        assert!(self.child.wait().expect("it ends").success());
        let told: Value = serde_json::from_str(&text).expect("JSON");
        Asked {
            answered: told["answered"].as_u64().expect("a number"),
            failed: told["failed"].as_array().expect("a list").clone(),
            longest_ms: told["longest_ms"].as_f64().expect("a number"),
            by: told["bodies"].clone(),
        }
    }
}
