//! A site of many files: imported through one node, and fetched from a web server of another one, whose node has
//! neither the file server nor the disk.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use super::{DC, DISK};
use crate::Outcome;
use crate::containers::nginx;
use crate::containers::results::{Manner, Results, Subject};
use crate::containers::testbed::{NODES, Testbed, eventually};

const FILES: usize = 19_600;
const FILES_PER_DIRECTORY: usize = 100;
/// 400 MB together.
const BYTES: usize = 20_408;
const PORT: u16 = 8000;

pub fn measure(results: &mut Results, dvs: &Path, rounds: u32) -> Outcome<()> {
    let testbed = Testbed::up(dvs, &[])?;
    testbed.container(DC, &DISK)?;
    let site = testbed.path().join("site");
    make(&site)?;
    let configuration = testbed.path().join("nginx.conf");
    std::fs::write(&configuration, nginx::configuration("many", PORT, "root /dc;"))?;
    testbed.say(&["cp", &configuration.to_string_lossy(), &format!("{DC}:/dc/nginx.conf")])?;
    testbed.say(&["run", "-d", DC, "--node", NODES[1], "--", "nginx", "-c", "/dc/nginx.conf"])?;
    for round in 0..rounds {
        let at = format!("site{round}");
        let begun = Instant::now();
        testbed.say(&["import", DC, &site.to_string_lossy(), &format!("/{at}"), "--node", NODES[2]])?;
        results.add(Subject::Import, Manner::Container, round, begun.elapsed().as_secs_f64() * 1e3);
        results.add(Subject::Fetch, Manner::Container, round, fetch(&testbed, &at)?);
        testbed.say(&["run", DC, "--node", NODES[2], "--", "rm", "-rf", &format!("/dc/{at}")])?;
    }
    Ok(())
}

fn path(number: usize) -> String {
    format!("d{}/f{number}", number / FILES_PER_DIRECTORY)
}

fn make(site: &Path) -> Outcome<()> {
    for number in 0..FILES {
        let path = site.join(path(number));
        if number % FILES_PER_DIRECTORY == 0 {
            std::fs::create_dir_all(path.parent().unwrap_or(site))?;
        }
        let content: Vec<u8> =
            format!("line of file {number}\n").into_bytes().into_iter().cycle().take(BYTES).collect();
        std::fs::write(path, content)?;
    }
    Ok(())
}

/// Milliseconds for all of them, one after the other over one connection.
fn fetch(testbed: &Testbed, at: &str) -> Outcome<f64> {
    let server = format!("http://{}:{PORT}/{at}", NODES[1]);
    let on = |more: &[&str]| [&["run", "-i", DC, "--node", NODES[2], "--", "curl", "-sSf"], more].concat().join("\0");
    let command = |more: &[&str]| testbed.command(&on(more).split('\0').collect::<Vec<_>>());
    let first = format!("{server}/{}", path(0));
    eventually("nginx answers", || {
        let asked = command(&["-o", "/dev/null", &first]).stderr(Stdio::null()).status();
        asked.ok()?.success().then_some(())
    })?;
    let urls: String =
        (0..FILES).map(|number| format!("url = \"{server}/{}\"\noutput = \"/dev/null\"\n", path(number))).collect();
    let list = testbed.path().join("urls");
    std::fs::write(&list, urls)?;
    let begun = Instant::now();
    let done = command(&["-K", "-", "-w", "%{size_download}\n"]).stdin(std::fs::File::open(&list)?).output()?;
    let took = begun.elapsed().as_secs_f64() * 1e3;
    let sizes = String::from_utf8(done.stdout)?;
    let right = sizes.lines().filter(|size| size.parse() == Ok(BYTES)).count();
    if !done.status.success() || right != FILES {
        let why = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{right} of {FILES} files came whole ({}): {}", done.status, why.trim()).into());
    }
    Ok(took)
}
