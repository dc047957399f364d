//! The third act: the node that holds the file server and its disk is switched off in the middle of a transfer.

use std::time::{Duration, Instant};

use super::dvs::{Dvs, ended};
use super::site::{ADDRESS, Site};
use crate::run::Outcome;

const DC: &str = "g";
/// Where file server and disk begin; the other copy, which a disk has unless told otherwise, is on one of the two
/// others, the web server on the first.
const NODE: &str = "n2";
/// The transfer is slowed so that the loss falls into it.
const BYTES_PER_SECOND: u32 = 40_000_000;
const INTO_IT: Duration = Duration::from_millis(700);
const SOON: Duration = Duration::from_secs(60);

/// Reads no faster than it is told, and says what it was and how long it waited at most for a piece of it.
const READER: &str = r"
import hashlib, sys, time, urllib.request
rate, url = int(sys.argv[1]), sys.argv[2]
known, longest, done, begun = hashlib.sha256(), 0.0, 0, time.monotonic()
with urllib.request.urlopen(url) as page:
    while True:
        asked = time.monotonic()
        piece = page.read(65536)
        longest = max(longest, time.monotonic() - asked)
        if not piece: break
        known.update(piece); done += len(piece)
        time.sleep(max(0.0, begun + done / rate - time.monotonic()))
print(known.hexdigest(), longest)
";

pub fn transfer_survives_node(dvs: &Dvs, site: &Site) -> Outcome {
    let create = ["dc", "create", DC, "--nodes", "n1,n2,n3", "--start"];
    dvs.run(&[&create[..], &["--fs-node", NODE, "--disk-node", NODE]].concat())?;
    await_disk(dvs, "its copies have everything", has_all)?;
    // Nothing of it is in the memory of the node whose web server reads it.
    site.import(dvs, DC, "site/large")?;
    site.start_nginx(dvs, DC)?;

    let (rate, url) = (BYTES_PER_SECOND.to_string(), format!("http://{ADDRESS}/large/0"));
    let transfer = dvs.start(&["run", DC, "--node", "n3", "--", "python3", "-c", READER, &rate, &url])?;
    std::thread::sleep(INTO_IT);
    let lost = Instant::now();
    dvs.run(&["dev", "kill", NODE])?;
    let printed = ended(transfer, "the transfer")?;
    let took = lost.elapsed().as_secs_f64();
    let (sum, pause) = printed.trim().split_once(' ').ok_or_else(|| format!("the reader said: {printed}"))?;
    if sum != site.large_sum() {
        return Err(format!("the transfer ended with the wrong checksum: {printed}"));
    }
    let pause: f64 = pause.parse().map_err(|_| format!("the reader said: {printed}"))?;
    let node = await_disk(dvs, "the disk stands on another node", |disk| disk["node"] != NODE)?;
    println!(
        "  {NODE}, with fs, disk and one of its two copies, was switched off {:.1} s into the transfer: a pause of \
         {pause:.2} s; 100 MB complete {took:.1} s later with the right SHA-256, from {node}",
        INTO_IT.as_secs_f64()
    );
    dvs.run(&["dev", "restart", NODE])?;
    let back = Instant::now();
    await_disk(dvs, "the copy of the lost node caught up", has_all)?;
    println!("  {NODE} is back, and its copy has everything again after {:.1} s", back.elapsed().as_secs_f64());
    dvs.run(&["dc", "delete", DC, "--force"])
}

/// Each of its copies.
fn has_all(disk: &serde_json::Value) -> bool {
    let copies = disk["copies"].as_array().into_iter().flatten();
    copies.into_iter().all(|copy| copy["state"] == "primary" || copy["state"] == "current")
}

/// Where it stands by then.
fn await_disk(dvs: &Dvs, what: &str, is_it: impl Fn(&serde_json::Value) -> bool) -> Outcome<String> {
    let begun = Instant::now();
    loop {
        let disk = dvs.json(&["disk", "inspect", DC, "-o", "json"])?;
        if is_it(&disk) {
            return Ok(disk["node"].as_str().unwrap_or_default().to_owned());
        }
        if begun.elapsed() > SOON {
            return Err(format!("not within {} s: {what}: {disk}", SOON.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
