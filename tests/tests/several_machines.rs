//! README's section "Several machines", word for word: its commands, in clean Debian systems of two releases, with the
//! package installed and a network of their own between them.

use std::process::Output;
use std::time::{Duration, Instant};

use end_to_end::clock::{self, CLOCK, LONGEST_GAP};
use end_to_end::debian::{BURY, Root, SYSTEMD, System, WITH_SYSTEMD, Wires, package, text};
use end_to_end::eventually;
use serde_json::Value;

/// A cluster that has not come to rest by then never will.
const SOON: Duration = Duration::from_secs(90);
/// A program is said not to notice what interrupts its writing for less.
const GAP_MS_MAX: u64 = 3000;
const README: &str = include_str!("../../README.md");
/// Of the examples in README.
const ADDRESSES: [&str; 3] = ["192.0.2.11", "192.0.2.12", "192.0.2.13"];
const NAMES: [&str; 3] = ["n1", "n2", "n3"];
/// One beside the file server, and one whose every write crosses all three nodes.
const PROGRAMS: [&str; 2] = ["n1", "n3"];
const DAEMON: &str = "/usr/bin/dvs daemon ";
/// Not the one that Debian's package starts for itself.
const MEMBER: &str = "etcd --name=";
/// What README's section tells people to do.
struct Instructions {
    install_etcd: String,
    /// On the first machine.
    init: String,
    token: String,
    join: String,
    /// With a service manager, and without one.
    start: String,
    start_by_hand: String,
}

impl Instructions {
    fn read() -> Instructions {
        let section = README.split("\n## Several machines\n").nth(1).expect("the section");
        let section = section.split("\n## ").next().expect("its end");
        let blocks: Vec<&str> = section.split("\n```\n").skip(1).step_by(2).collect();
        let commands = |block: &str| -> Vec<(String, String)> {
            let lines = block.lines().filter(|line| !line.is_empty());
            let parts = lines.map(|line| line.split_once(" # ").unwrap_or((line, "")));
            parts.map(|(command, comment)| (command.trim().to_owned(), comment.trim().to_owned())).collect()
        };
        let [first, further, ..] = blocks.as_slice() else { panic!("no commands: {section}") };
        let (first, further) = (commands(first), commands(further));
        let [init, start, token] = first.as_slice() else { panic!("{first:?}") };
        let [join, start_again] = further.as_slice() else { panic!("{further:?}") };
        assert_eq!(start.0, start_again.0);
        let quoted = |word: &str| section.split('`').find(|quoted| quoted.starts_with(word)).expect(word).to_owned();
        Instructions {
            install_etcd: quoted("apt-get install "),
            init: init.0.clone(),
            token: token.0.clone(),
            join: join.0.clone(),
            start: start.0.clone(),
            start_by_hand: start.1.strip_prefix("or: ").expect("another way").to_owned(),
        }
    }
}

struct Site {
    told: Instructions,
    machines: Vec<System>,
    wires: Wires,
}

impl Site {
    /// `None`: there is no network to fetch the systems from. The systemd of Debian 13 wants version 2 of the control
    /// groups, which not every machine has: there is one without, whose daemon is started by hand.
    fn build() -> Option<Site> {
        let told = Instructions::read();
        let place = tempfile::tempdir().expect("a directory");
        let package = package(place.path());
        let bookworm = Root::make("bookworm", &[WITH_SYSTEMD])?;
        let trixie = Root::make("trixie", &[])?;
        let wanted: Vec<&str> = told.install_etcd.split_whitespace().skip(2).collect();
        for root in [&bookworm, &trixie] {
            root.fetch_packages(&wanted);
            std::fs::copy(&package, root.path().join("root/dvs.deb")).expect("copied");
        }
        let mut wires = Wires::lay();
        let roots = [(bookworm.copy(), SYSTEMD), (trixie, BURY), (bookworm, SYSTEMD)];
        let boot = |((root, first), name): ((Root, &str), &str)| root.boot(name, first);
        let machines: Vec<System> = roots.into_iter().zip(NAMES).map(boot).collect();
        for (machine, address) in machines.iter().zip(ADDRESSES) {
            wires.connect(machine, &format!("{address}/24"));
        }
        let site = Site { told, machines, wires };
        for node in 0..3 {
            site.await_boot(node);
            site.sh(node, "dpkg -i /root/dvs.deb >&2");
            site.sh(node, &format!("{} >&2", site.told.install_etcd.replace("install", "install --yes")));
        }
        Some(site)
    }

    fn has_systemd(&self, node: usize) -> bool {
        node != 1
    }

    fn await_boot(&self, node: usize) {
        if !self.has_systemd(node) {
            return;
        }
        eventually("systemd runs", SOON, || {
            let said = self.run(node, "systemctl is-system-running");
            ["running\n", "degraded\n"].contains(&text(&said).as_str()).then_some(())
        });
    }

    fn run(&self, node: usize, script: &str) -> Output {
        self.machines[node].command(script).output().expect("it runs")
    }

    fn sh(&self, node: usize, script: &str) -> String {
        let output = self.run(node, script);
        assert!(
            output.status.success(),
            "on {}, {script}: {output:?}\n{}",
            NAMES[node],
            text(&self.run(
                node,
                "tail -n 30 /root/daemon.log; journalctl -u dvsd -n 30; tail -n 20 /var/lib/dvs/log/etcd.log"
            ))
        );
        text(&output)
    }

    fn fails(&self, node: usize, script: &str) -> String {
        self.machines[node].fails(script)
    }

    /// As README says.
    fn start_daemon(&self, node: usize) {
        if self.has_systemd(node) {
            self.sh(node, &self.told.start);
        } else {
            let by_hand = &self.told.start_by_hand;
            self.sh(node, &format!("setsid {by_hand} </dev/null >>/root/daemon.log 2>&1 &"));
        }
    }

    fn stop_daemon(&self, node: usize) {
        if self.has_systemd(node) {
            self.sh(node, "systemctl stop dvsd");
        } else {
            let pids = self.machines[node].pids(&self.told.start_by_hand);
            pids.iter().for_each(|pid| drop(self.sh(node, &format!("kill {pid}"))));
        }
        eventually("the daemon has ended", SOON, || self.daemon(node).is_none().then_some(()));
    }

    /// By its number there; by hand it is started by its short name.
    fn daemon(&self, node: usize) -> Option<u32> {
        let pids = |line: &str| self.machines[node].pids(line).first().copied();
        pids(DAEMON).or_else(|| pids(&self.told.start_by_hand))
    }

    fn member(&self, node: usize) -> Option<u32> {
        self.machines[node].pids(MEMBER).first().copied()
    }

    /// Nodes that run a member, as a machine's own file has them.
    fn members(&self, node: usize) -> Vec<String> {
        let file = self.run(node, "cat /var/lib/dvs/engine.json");
        let file: Value = serde_json::from_slice(&file.stdout).unwrap_or_default();
        file["members"].as_object().map(|members| members.keys().cloned().collect()).unwrap_or_default()
    }

    /// States of all nodes as one sees them, and what is not well.
    fn states(&self, node: usize) -> Vec<(String, String, Vec<String>)> {
        let listed = self.run(node, "dvs node ls -o json");
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let problems = |one: &Value| one["problems"].as_array().map(|all| all.iter().map(word).collect());
        let all = listed.as_array().cloned().unwrap_or_default();
        all.iter().map(|one| (word(&one["name"]), word(&one["state"]), problems(one).unwrap_or_default())).collect()
    }

    fn await_ready(&self, seen_from: &[usize], names: &[&str]) {
        for &node in seen_from {
            let mut seen = Vec::new();
            let began = Instant::now();
            let is_so = |seen: &[(String, String, Vec<String>)]| {
                let ready = seen.iter().filter(|(_, state, _)| state == "ready").map(|(name, ..)| name.as_str());
                ready.eq(names.iter().copied()) && seen.len() == names.len()
            };
            while !is_so(&seen) {
                assert!(began.elapsed() < SOON, "as {} sees them: {seen:?}", NAMES[node]);
                std::thread::sleep(Duration::from_millis(100));
                seen = self.states(node);
            }
        }
    }

    fn await_members(&self, names: &[&str]) {
        eventually(&format!("members on {names:?}"), SOON, || {
            let all_know = (0..3).all(|node| self.members(node) == names);
            let all_run = NAMES.iter().enumerate().filter(|(_, name)| names.contains(name));
            (all_know && all_run.into_iter().all(|(node, _)| self.member(node).is_some())).then_some(())
        });
    }

    fn join(&self, node: usize, from: usize) {
        let said = self.sh(from, &format!("{} 2>&1", self.told.token));
        // README's command, with what was printed in the place of the example.
        let printed = said.split_whitespace().find(|word| word.contains('@')).expect("TOKEN@ADDRESS");
        assert!(printed.ends_with(ADDRESSES[from]), "{said}");
        let (command, _) = self.told.join.rsplit_once(' ').expect("an operand");
        assert!(said.contains(&format!("{command} {printed}")), "it prints the command: {said}");
        self.sh(node, &format!("{command} {printed}"));
        self.start_daemon(node);
    }

    /// Lines that the program of a node wrote, and the longest time between two of them.
    fn ticks(&self, program: &str) -> (u64, u64) {
        let script = quoted(&on_clock_of(program, LONGEST_GAP));
        clock::ticks(&self.sh(0, &format!("dvs run shop --node n1 -- sh -c {script}")))
    }

    fn assert_unnoticed(&self, programs: &[&str], what: &str) {
        for program in programs {
            let (lines, gap) = self.ticks(program);
            eprintln!("{what}: program on {program}: {lines} lines, the longest gap {gap} ms");
            assert!(lines > 10 && gap < GAP_MS_MAX, "{what}, {program}: {lines} lines, {gap} ms");
        }
    }

    fn kill_members_and_daemons(&self) {
        for (node, name) in NAMES.into_iter().enumerate() {
            let killed = self.member(node).expect("each runs a member");
            self.sh(node, &format!("kill -9 {killed}"));
            let other = (node + 1) % 3;
            self.sh(other, &format!("dvs dc create m{node} --nodes {} >&2; dvs dc delete m{node} >&2", NAMES[other]));
            eventually("the member is started again", SOON, || self.member(node).filter(|pid| *pid != killed));
            self.assert_unnoticed(&PROGRAMS, &format!("{name}'s member of etcd was killed"));
        }
        for (node, name) in NAMES.into_iter().enumerate() {
            let (killed, member) = (self.daemon(node).expect("it runs"), self.member(node));
            self.sh(node, &format!("kill -9 {killed}"));
            let other = (node + 1) % 3;
            self.sh(other, &format!("dvs ps shop -o json; dvs run shop --node {} -- true", NAMES[other]));
            if !self.has_systemd(node) {
                self.start_daemon(node);
            }
            eventually("another daemon runs", SOON, || self.daemon(node).filter(|pid| *pid != killed));
            self.await_ready(&[node, other], &NAMES);
            assert_eq!(self.member(node), member, "it takes the member over");
            self.assert_unnoticed(&PROGRAMS, &format!("{name}'s daemon was killed"));
        }
    }

    /// Two of three members go, and come back.
    fn lose_the_majority(&self, pid: &str) {
        for node in [1, 2] {
            self.stop_daemon(node);
            let member = self.member(node).expect("it goes on without its daemon");
            self.sh(node, &format!("kill -9 {member}"));
        }
        let began = Instant::now();
        let refused = self.fails(0, "dvs dc create late --nodes n1");
        assert!(refused.contains("too few members of the engine") && refused.contains("\n  try: "), "{refused}");
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        for program in PROGRAMS {
            let (before, _) = self.ticks(program);
            eventually("the program goes on", SOON, || (self.ticks(program).0 > before + 10).then_some(()));
        }
        assert!(self.sh(0, "dvs ps shop").contains(pid));
        for node in [1, 2] {
            self.start_daemon(node);
        }
        eventually("changes are possible again", SOON, || {
            self.run(0, "dvs dc create late --nodes n1").status.success().then_some(())
        });
        self.await_ready(&[0, 1, 2], &NAMES);
        self.assert_unnoticed(&PROGRAMS, "most members of etcd were away");
    }

    /// A machine that has neither the file server nor a disk of the container.
    fn lose_a_machine(&mut self, node: usize) {
        self.machines[node].off();
        eventually("it is seen to be down", SOON, || {
            self.states(0).iter().any(|(name, state, _)| name == NAMES[node] && state == "down").then_some(())
        });
        self.sh(0, "dvs dc create later --nodes n1 >&2; dvs dc delete later >&2");
        self.assert_unnoticed(&PROGRAMS[..1], "a machine was lost");
        self.machines[node].on();
        let machine = &self.machines[node];
        self.wires.connect(machine, &format!("{}/24", ADDRESSES[node]));
        self.await_boot(node);
        if !self.has_systemd(node) {
            self.start_daemon(node);
        }
        self.await_ready(&[0, 1, 2], &NAMES);
    }

    /// Every machine is as it was before it became a node.
    fn forget_all(&self) {
        self.sh(0, "for dc in $(dvs dc ls -o name); do dvs dc delete --force $dc >&2; done");
        for node in 0..3 {
            self.stop_daemon(node);
            self.sh(node, "dpkg -P dvs >&2; dpkg -i /root/dvs.deb >&2");
            assert_eq!((self.member(node), self.daemon(node)), (None, None));
        }
    }

    /// The engine has one member, and everybody is told why and what to do.
    fn older_etcds_are_kept_out_and_told(&self) {
        self.sh(1, &self.told.init);
        self.start_daemon(1);
        eventually("it serves", SOON, || self.run(1, "dvs node ls").status.success().then_some(()));
        self.join(0, 1);
        self.join(2, 1);
        let told = |problems: &[String]| {
            let said = problems.join("; ");
            said.contains("1 of 3 members run") && said.contains("3.4.") && said.contains("install etcd 3.5 here")
        };
        for seen_from in 0..3 {
            eventually("n1 and n3 say that their etcd is too old", SOON, || {
                let states = self.states(seen_from);
                let of =
                    |name: &str| states.iter().find(|(one, ..)| one == name).map(|(_, _, problems)| told(problems));
                (of("n1")? && of("n3")? && !of("n2")?).then_some(())
            });
        }
        let shown = self.sh(0, "dvs node ls");
        assert!(shown.contains("let in none that is older"), "{shown}");
        let doctor = text(&self.run(1, "dvs doctor"));
        assert!(doctor.contains("n1: engine members") && doctor.contains("install etcd 3.5 here"), "{doctor}");
        assert_eq!(self.members(1), ["n2"]);
        assert_eq!((self.member(0), self.member(2)), (None, None), "nobody tries what cannot be");
        self.sh(0, "dvs dc create shop --nodes n1,n2,n3 --start >&2; dvs run shop --node n3 -- true");
    }
}

/// Each program has a clock of its own.
fn on_clock_of(program: &str, script: &str) -> String {
    script.replace("/dc/clock", &format!("/dc/clock-{program}"))
}

fn quoted(script: &str) -> String {
    format!("'{}'", script.replace('\'', r"'\''"))
}

#[test]
#[ignore = "fetches two Debian systems"]
fn several_machines_are_a_cluster_by_the_commands_of_the_readme_and_survive_each_of_their_parts() {
    let Some(mut site) = Site::build() else { return };
    let said = site.sh(0, &format!("{} 2>&1", site.told.init));
    assert!(
        said.contains("n1") && said.contains(ADDRESSES[0]),
        "its name and address are those of the machine: {said}"
    );
    site.start_daemon(0);
    site.join(1, 0);
    site.join(2, 0);
    // "Then `dvs node ls` shows them all, from each of them, and containers span them."
    site.await_ready(&[0, 1, 2], &NAMES);
    site.await_members(&NAMES);
    site.sh(1, "dvs dc create shop --nodes n1,n2,n3 --fs-node n1 --disk-node n2 --replicas 1 --start >&2");
    let start = |program: &str| {
        let script = quoted(&on_clock_of(program, CLOCK));
        site.sh(0, &format!("dvs run -d shop --node {program} -- sh -c {script}")).trim().to_owned()
    };
    let pids = PROGRAMS.map(start);
    for name in NAMES {
        site.sh(2, &format!("dvs run shop --node {name} -- sh -c 'echo $(hostname) >> /dc/names'"));
    }
    assert_eq!(site.sh(1, "dvs run shop --node n2 -- sh -c 'wc -l < /dc/names'").trim(), "3");

    site.kill_members_and_daemons();
    site.lose_the_majority(&pids[0]);
    site.lose_a_machine(2);
    let states = site.states(0);
    assert!(states.iter().all(|(_, _, problems)| problems.is_empty()), "{states:?}");

    site.forget_all();
    site.older_etcds_are_kept_out_and_told();
}
