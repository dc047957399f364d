//! The second act: one process table. A line of a shell over three nodes, `ps` and `kill` across them, a build whose
//! compilers run everywhere; a service that moves when its node is lost.

use std::process::Command;
use std::time::{Duration, Instant};

use super::dvs::Dvs;
use crate::run::Outcome;

const LINE: &str = "seq 1 200000 | {2}awk '{ s += $1; print s }' | {3}md5sum";
const TIMES: usize = 21;
const FILES: usize = 24;
const SOON: Duration = Duration::from_secs(60);

pub fn one_process_table(dvs: &Dvs, dc: &str) -> Outcome {
    let line = |second: &str, third: &str| LINE.replace("{2}", second).replace("{3}", third);
    let (here, over) = (line("", ""), line("on n2 -- ", "on n3 -- "));
    let (native, spread) = (dvs.sh(dc, "n1", &here)?, dvs.sh(dc, "n1", &over)?);
    if native != spread {
        return Err(format!("over three nodes the line says {spread}, on one {native}"));
    }
    println!("  {over}\n    the same sum as on one node: {}", spread.trim());

    let script = format!(
        "on n3 -- sleep 1000 & job=$!
         until far=$(pgrep -x sleep); do sleep 0.05; done
         echo \"ps on n1: $(ps -ef | awk '$2 < 131072' | wc -l) lines of n1, $(ps -ef | awk '$2 >= 131072' | wc -l) of others; \
         the sleep of n3 is $far\"
         kill $far; wait $job || echo \"kill $far on n1 ended it, and its deputy with status $?\"
         for i in $(seq {TIMES}); do s=$(date +%s%N); on n2 -- true; echo $(( ($(date +%s%N) - s) / 1000 )); done | sort -n |
         sed -n '{middle}s/.*/on n2 -- true: & us, the median of {TIMES}/p'",
        middle = TIMES / 2 + 1
    );
    for line in dvs.sh(dc, "n1", &script)?.lines() {
        println!("  {line}");
    }
    build(dvs, dc)
}

/// On a node on which nothing of the container's tree stands.
pub fn service_moves(dvs: &Dvs, dc: &str, node: &str) -> Outcome {
    let server = "import http.server as h, time; time.sleep(0.1); \
                  h.ThreadingHTTPServer(('', 8080), h.SimpleHTTPRequestHandler).serve_forever()";
    dvs.run(&["service", "add", "--health-http", "8080/", dc, "web", "--", "python3", "-c", server])?;
    await_service(dvs, dc, |at| !at.is_empty())?;
    dvs.run(&["service", "move", dc, "web", "--to", node])?;
    await_service(dvs, dc, |at| at == node)?;
    let begun = Instant::now();
    dvs.run(&["dev", "kill", node])?;
    let at = await_service(dvs, dc, |at| !at.is_empty() && at != node)?;
    println!("  {node} was switched off: its web server is well on {at} after {:.2} s", begun.elapsed().as_secs_f64());
    dvs.run(&["service", "rm", dc, "web"])?;
    dvs.run(&["dev", "restart", node])
}

/// Where its check passes.
fn await_service(dvs: &Dvs, dc: &str, is_it: impl Fn(&str) -> bool) -> Outcome<String> {
    let begun = Instant::now();
    loop {
        let services = dvs.json(&["service", "ls", dc, "-o", "json"])?;
        let one = &services[0]["instances"][0];
        let at = one["node"].as_str().filter(|_| one["state"] == "healthy").unwrap_or_default();
        if is_it(at) {
            return Ok(at.to_owned());
        }
        if begun.elapsed() > SOON {
            return Err(format!("the service is not where it is awaited: {services}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn build(dvs: &Dvs, dc: &str) -> Outcome {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !has("make") || !has("cc") {
        println!("  SKIPPED: there is no make, or no C compiler");
        return Ok(());
    }
    // Each file takes a compiler a moment; where it ran it says by a file of its own.
    let project = format!(
        "mkdir -p /dc/build; cd /dc/build; rm -f *
         for i in $(seq {FILES}); do {{ for j in $(seq 400); do echo \"int f${{i}}_$j(int x) {{ return x * $j + $i; }}\"; done; }} > f$i.c; done
         echo 'int main(void) {{ return 0; }}' > main.c
         printf 'all: main.o $(patsubst %%.c,%%.o,$(wildcard f*.c))\\n\\tcc -o $@ $^\\n%%.o: %%.c\\n\\t./compile $< $@\\n' > Makefile
         printf '#!/bin/sh\\ncc -O2 -c -o $2 $1 && hostname > $1.where\\n' > compile; chmod +x compile"
    );
    dvs.sh(dc, "n1", &project)?;
    let make = ["run", "--spread", "compile;load=0.5", "-w", "/dc/build", dc, "--node", "n1", "--"];
    let script = ["bash", "-c", "make -j8 >/dev/null && cat *.where | sort | uniq -c | tr -s ' ' | tr '\\n' ','"];
    let said = dvs.output(&[&make[..], &script].concat())?;
    println!(
        "  dvs run --spread compile … make -j8 of {} files, compiled on:{}",
        FILES + 1,
        said.trim_end_matches(',')
    );
    Ok(())
}
