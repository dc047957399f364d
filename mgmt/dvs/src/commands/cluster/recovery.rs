//! `dvs cluster restore`, `recover`, `move-engine`: the engine is begun anew, on this machine, whose daemon does not
//! run.

use std::path::PathBuf;

use clap::Args;

use crate::installed::Where;

/// Begin the cluster's engine anew of a copy
#[derive(Args, Debug)]
#[command(after_help = "\
For a cluster whose engine is lost: most of its members' machines, or their data. On one of its nodes, whose daemon is \
stopped; or on a new machine, which becomes a node by this. The other nodes find the engine where they knew a member of it; \
one that does not joins anew: dvs node join --again. Containers go on meanwhile.

What was decided after the copy was made is forgotten: containers that were made since are put aside on their nodes \
(STATE_DIR/kept), nodes that were removed since are there again. Tokens have ended. What this machine has of the engine is put \
aside.

If the data of a member are left, dvs cluster recover forgets less.

Examples:
  systemctl stop dvsd && dvs cluster restore home.backup && systemctl start dvsd
  dvs cluster restore home.backup --node n4 --advertise 192.0.2.14      on a new machine")]
pub struct RestoreOptions {
    /// What dvs cluster backup wrote.
    #[cfg_attr(not(feature = "machinery"), allow(dead_code, reason = "this binary cannot"))]
    file: PathBuf,
    #[command(flatten)]
    #[cfg_attr(not(feature = "machinery"), allow(dead_code, reason = "this binary cannot"))]
    place: Where,
}

/// Begin the cluster's engine anew of what one member of it has
#[derive(Args, Debug)]
#[command(after_help = "\
For a cluster that has lost most of the members of its engine for good, or all of whose certificates have expired. On a node \
that ran a member, whose daemon is stopped. What the lost members decided and this one did not hear of is forgotten. A copy is \
written to the state directory first; the member's data are put aside, not removed.

Examples:
  systemctl stop dvsd && dvs cluster recover && systemctl start dvsd")]
pub struct RecoverOptions {
    /// Settings of the daemon.
    #[cfg_attr(not(feature = "machinery"), allow(dead_code, reason = "this binary cannot"))]
    #[arg(long, value_name = "FILE", default_value = "/etc/dvs/dvsd.toml")]
    config: PathBuf,
}

/// Move the cluster's engine from a file of this machine to etcd
#[derive(Args, Debug)]
#[command(after_help = "\
Then other machines can join. The daemon is stopped for it; containers go on. Its settings get a table [etcd], and the file \
is kept as engine.db.old.

Examples:
  systemctl stop dvsd && dvs cluster move-engine && systemctl start dvsd")]
pub struct MoveOptions {
    /// Settings of the daemon.
    #[cfg_attr(not(feature = "machinery"), allow(dead_code, reason = "this binary cannot"))]
    #[arg(long, value_name = "FILE", default_value = "/etc/dvs/dvsd.toml")]
    config: PathBuf,
}

#[cfg(feature = "machinery")]
pub use here::{move_engine, recover, restore};

#[cfg(feature = "machinery")]
mod here {
    use std::fs::{self, File};
    use std::io::{BufReader, BufWriter, Write};
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::{Path, PathBuf};

    use dvsd::recovery::{self, BegunAnew, Dump, RecoveryError};
    use dvsd::{Config, Settings};
    use serde::Serialize;

    use super::{MoveOptions, RecoverOptions, RestoreOptions};
    use crate::cli::Global;
    use crate::commands::{Outcome, done, now_ms, say};
    use crate::errors::Failure;
    use crate::installed::{self, EtcdTable, SettingsFile, Where};
    use crate::output::Row;

    /// What came of it.
    #[derive(Serialize)]
    struct BegunEngine {
        cluster: String,
        node: String,
        keys: usize,
        /// Of the copy: milliseconds since 1970.
        copy_made_ms: u64,
        new_certificate: bool,
    }

    impl Row for BegunEngine {
        const HEADINGS: &'static [&'static str] = &["CLUSTER", "NODE", "KEYS"];

        fn cells(&self) -> Vec<String> {
            vec![self.cluster.clone(), self.node.clone(), self.keys.to_string()]
        }

        fn name(&self) -> String {
            self.cluster.clone()
        }
    }

    pub fn restore(global: &Global, options: &RestoreOptions) -> Outcome {
        demand_root("restore a cluster")?;
        let cannot = |error: std::io::Error| {
            let failure = Failure::new(format!("cannot read {}", options.file.display())).because(&error);
            failure.hint("a file that dvs cluster backup wrote")
        };
        let file = File::open(&options.file).map_err(cannot)?;
        let dump = Dump::read(&mut BufReader::new(file)).map_err(|error| {
            Failure::new(format!("{} cannot be restored", options.file.display()))
                .because(&error)
                .hint("another file of dvs cluster backup")
        })?;
        let place = &options.place;
        let is_new = !place.config.exists() || installed::is_template(&place.config);
        if is_new {
            become_node(place, &dump)?;
        }
        let config = load(&place.config)?;
        let begun = recovery::begin_anew(&config, &dump, &say).map_err(failed("the cluster was not restored"))?;
        tell(global, &config, &dump, &begun, place)
    }

    pub fn recover(global: &Global, options: &RecoverOptions) -> Outcome {
        demand_root("recover a cluster")?;
        let config = load(&options.config)?;
        let dump = recovery::salvage(&config, &say).map_err(failed("nothing can be recovered here"))?;
        let copy = keep(&config, "recovered", &dump)?;
        say(&format!("what this member has is kept in {}", copy.display()));
        let begun = recovery::begin_anew(&config, &dump, &say).map_err(|error| {
            failed("the cluster was not recovered")(error).hint(format!("dvs cluster restore {}", copy.display()))
        })?;
        tell(global, &config, &dump, &begun, &where_of(&options.config))
    }

    pub fn move_engine(global: &Global, options: &MoveOptions) -> Outcome {
        demand_root("move the engine")?;
        let config = load(&options.config)?;
        if config.etcd.is_some() {
            return Err(Failure::new("the cluster's engine is etcd already").hint("dvs node ls"));
        }
        installed::demand_etcd()?;
        let dump = recovery::copy_of_local(&config).map_err(failed("the engine cannot be moved"))?;
        let nodes = dump.entries.iter().filter(|(key, _)| key.starts_with("/members/")).count();
        if nodes > 1 {
            return Err(Failure::new("the engine cannot be moved")
                .because_text(format!("daemons of {nodes} nodes of this machine share it"))
                .hint("a development cluster begins with etcd: dvs dev up --engine etcd"));
        }
        keep(&config, "moved", &dump)?;
        let text = fs::read_to_string(&options.config).map_err(|error| no_settings(&options.config, &error))?;
        let text =
            format!("{}\n\n# The cluster looks after its engine itself.\n[etcd]\nmanaged = true\n", text.trim_end());
        let moved = Settings::from_text(&options.config, &text)
            .and_then(Settings::settle)
            .map_err(|error| no_settings(&options.config, &error))?;
        let begun = recovery::begin_anew(&moved, &dump, &say).map_err(failed("the engine was not moved"))?;
        installed::write(&options.config, &text, 0o644)?;
        // The daemon would not use it any more: etcd says that it was begun after it.
        let old = config.engine.with_extension("db.old");
        fs::rename(&config.engine, &old).map_err(|error| {
            let failure = Failure::new(format!("cannot put {} aside", config.engine.display())).because(&error);
            failure.hint(format!("mv {0} {0}.old; the engine was moved all the same", config.engine.display()))
        })?;
        for end in ["db-wal", "db-shm"] {
            let _ = fs::remove_file(config.engine.with_extension(end));
        }
        tell(global, &moved, &dump, &begun, &where_of(&options.config))
    }

    fn tell(global: &Global, config: &Config, dump: &Dump, begun: &BegunAnew, place: &Where) -> Outcome {
        let age = now_ms() / 1000 - dump.header.taken_s.min(now_ms() / 1000);
        let certificate = if begun.has_new_certificate { "\nthis node got a new certificate" } else { "" };
        say(&format!(
            "the engine of cluster '{}' begins anew with {} keys, as they were {} ago{certificate}\nnow, here: {}",
            dump.header.cluster.name,
            begun.keys,
            crate::output::duration(age),
            place.next()
        ));
        let result = BegunEngine {
            cluster: dump.header.cluster.name.clone(),
            node: config.node.clone(),
            keys: begun.keys,
            copy_made_ms: dump.header.taken_s * 1000,
            new_certificate: begun.has_new_certificate,
        };
        done(global.output, &result)
    }

    /// A machine without settings becomes a node by what the copy has.
    fn become_node(place: &Where, dump: &Dump) -> Result<(), Failure> {
        installed::demand_etcd()?;
        let address = place.advertise.or_else(installed::own_address).ok_or_else(|| {
            Failure::usage("other machines cannot reach this one")
                .hint("an address of this machine (ip addr): --advertise 192.0.2.11")
        })?;
        if dump.value("/authority").is_none() {
            return Err(Failure::new("this machine cannot become a node of that cluster")
                .because_text("its certificates are made by hand: the copy has no authority")
                .hint("on one of its nodes; or write the daemon's settings and certificates first"));
        }
        place.demand_own(address)?;
        place.demand_free_for_daemon()?;
        place.demand_free_for_member(address)?;
        place.make_data_dir()?;
        let (node, cluster) = (place.name()?, dump.header.cluster.name.clone());
        let settings = SettingsFile {
            node: &node,
            cluster: &cluster,
            advertise: address,
            listen: place.listen,
            state_dir: &place.data,
            run_dir: &place.run,
            etcd: Some(EtcdTable { managed: true, ..EtcdTable::default() }),
        };
        place.write_settings(&settings, "dvs cluster restore")?;
        say(&format!("this machine becomes node '{node}' at {address}"));
        Ok(())
    }

    /// A copy in the state directory, for root alone.
    fn keep(config: &Config, what: &str, dump: &Dump) -> Result<PathBuf, Failure> {
        let path = config.state_dir.join(format!("{what}-{}.backup", now_ms() / 1000));
        let cannot = |error: &dyn std::error::Error| {
            Failure::new(format!("cannot write {}", path.display())).because(error).hint("room in the state directory")
        };
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut out = BufWriter::new(file.map_err(|error| cannot(&error))?);
        let written = dump
            .write(&mut out)
            .map_err(|error| cannot(&error))
            .and_then(|()| out.flush().and_then(|()| out.get_ref().sync_all()).map_err(|error| cannot(&error)));
        // Half a copy is none.
        written.inspect_err(|_| drop(fs::remove_file(&path)))?;
        Ok(path)
    }

    fn load(path: &Path) -> Result<Config, Failure> {
        Config::load(Some(path), Settings::default()).map_err(|error| no_settings(path, &error))
    }

    fn no_settings(path: &Path, error: &dyn std::error::Error) -> Failure {
        Failure::new(format!("this machine's settings cannot be used: {}", path.display()))
            .because(error)
            .hint("--config FILE; on a machine that is no node: dvs cluster init, dvs node join")
    }

    fn where_of(config: &Path) -> Where {
        let nowhere = PathBuf::new;
        let (data, run) = (nowhere(), nowhere());
        Where { config: config.to_owned(), data, run, node: None, advertise: None, listen: None }
    }

    fn demand_root(to: &str) -> Result<(), Failure> {
        if rustix::process::geteuid().is_root() {
            return Ok(());
        }
        Err(Failure::new(format!("only root may {to}")).hint("run it as root"))
    }

    fn failed(what: &'static str) -> impl Fn(RecoveryError) -> Failure {
        move |error| Failure::new(what).because(&error).hint(error.hint())
    }
}

#[cfg(not(feature = "machinery"))]
pub use elsewhere::{move_engine, recover, restore};

#[cfg(not(feature = "machinery"))]
mod elsewhere {
    use super::{MoveOptions, RecoverOptions, RestoreOptions};
    use crate::cli::Global;
    use crate::commands::Outcome;
    use crate::errors::Failure;

    fn without() -> Outcome {
        Err(Failure::new("this binary was built without the daemon"))
    }

    pub fn restore(_: &Global, _: &RestoreOptions) -> Outcome {
        without()
    }

    pub fn recover(_: &Global, _: &RecoverOptions) -> Outcome {
        without()
    }

    pub fn move_engine(_: &Global, _: &MoveOptions) -> Outcome {
        without()
    }
}
