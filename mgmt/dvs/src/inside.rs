//! This command as a program of a container: which container it is, and its name where people leave it out
//! (`docs/design/inside.md`).
//!
//! Inside, the daemon answers at `/run/dvs/dvsd.sock` as on a node, for the own container alone. So that is the one
//! that is meant: where a command takes a container first and what was typed begins with something else, the own one's
//! name is put there. Whoever names a daemon or a context means something else, and gets nothing put in.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use clap::{Arg, Command};
use client::contexts::{CONTEXT_VARIABLE, LOCAL};
use client::places::{SOCKET_VARIABLE, STATE_DIR_VARIABLE};
use client::{Contexts, Places};

use crate::cli::CLUSTER_VARIABLE;

/// Only programs of containers have it.
pub const ON: &str = "/run/dvs/bin/on";
/// Set for every program of a container that did not take it away.
pub const DC_VARIABLE: &str = "DVS_DC";
/// Names of the container's nodes.
const HOSTS: &str = "/run/dvs/hosts";
/// Of the options by which somebody says which daemon is meant.
const WHICH_DAEMON: [&str; 5] = ["socket", "context", "cluster", "at", "state_dir"];
/// Of the argument that is a container, in all commands.
const CONTAINER: &str = "dc";

/// Whether this process is a program of a container.
pub fn is_here() -> bool {
    Path::new(ON).exists()
}

/// The container of which this process is a program, unless its surroundings name a daemon or a cluster elsewhere.
pub fn own_container() -> Option<String> {
    let is_named = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_elsewhere =
        [SOCKET_VARIABLE, STATE_DIR_VARIABLE, CLUSTER_VARIABLE, CONTEXT_VARIABLE].into_iter().any(is_named);
    let context = || Contexts::of_this_person().ok()?.current().filter(|name| name != LOCAL);
    if !is_here() || is_elsewhere || context().is_some() {
        return None;
    }
    let name = std::env::var(DC_VARIABLE).ok().or_else(|| name_in(&std::fs::read_to_string(HOSTS).ok()?));
    name.filter(|name| mgmt_api::valid_name(name))
}

/// Whether this process may have programs started by the daemon: root of the container, where the daemon listens.
pub fn daemon_starts_programs() -> bool {
    rustix::process::geteuid().is_root() && UnixStream::connect(Places::system().system_socket()).is_ok()
}

/// Of lines `ADDRESS NAME NAME.CONTAINER.dvs`.
fn name_in(hosts: &str) -> Option<String> {
    let full = hosts.split_whitespace().find_map(|word| word.strip_suffix(".dvs"))?;
    Some(full.rsplit_once('.')?.1.to_owned())
}

/// What was typed, with the container's own name where it is left out. `None`: nothing is left out.
pub fn with_container(typed: &[OsString], own: &str, mut command: Command) -> Option<Vec<OsString>> {
    command.build();
    let (mut command, mut place, mut next) = (&command, 1, 1);
    let mut first = None;
    while let Some(word) = typed.get(next) {
        next += 1;
        match word.as_bytes() {
            // What follows are positions.
            b"--" => {
                first = typed.get(next);
                break;
            }
            [b'-', b'-', ..] => {
                let (option, has_value) = long(command, word);
                if option.is_some_and(|option| WHICH_DAEMON.contains(&option.get_id().as_str())) {
                    return None;
                }
                next += usize::from(!has_value && option.is_some_and(takes_value));
            }
            [b'-', letters @ ..] if !letters.is_empty() => next += usize::from(value_follows(command, letters)),
            _ => match word.to_str().and_then(|word| command.find_subcommand(word)) {
                Some(found) => (command, place) = (found, next),
                None => {
                    first = Some(word);
                    break;
                }
            },
        }
    }
    let takes_container = command.get_positionals().next().is_some_and(|arg| arg.get_id() == CONTAINER);
    if !takes_container || first.is_some_and(|first| first == OsStr::new(own)) {
        return None;
    }
    let mut whole = typed.to_vec();
    whole.insert(place, own.into());
    Some(whole)
}

/// The option of this name, and whether its value stands beside it.
fn long<'a>(command: &'a Command, word: &OsStr) -> (Option<&'a Arg>, bool) {
    let text = word.to_string_lossy();
    let (name, value) =
        text.trim_start_matches('-').split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value)));
    let name = name.trim_start_matches('-');
    let is_it = |arg: &&Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    (command.get_arguments().find(is_it), value.is_some())
}

/// Whether the last of `-abc` takes the next word.
fn value_follows(command: &Command, letters: &[u8]) -> bool {
    for (index, letter) in letters.iter().enumerate() {
        let letter = char::from(*letter);
        let is_it = |arg: &&Arg| {
            arg.get_short() == Some(letter) || arg.get_all_short_aliases().is_some_and(|all| all.contains(&letter))
        };
        // The rest of the word is its value.
        if command.get_arguments().find(is_it).is_some_and(takes_value) {
            return index + 1 == letters.len();
        }
    }
    false
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values() && arg.get_num_args().is_none_or(|values| values.min_values() > 0)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn completed(line: &str) -> Option<String> {
        let typed: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let whole = with_container(&typed, "shop", Cli::command())?;
        Some(whole.join(OsStr::new(" ")).into_string().unwrap())
    }

    #[test]
    fn own_container_is_put_where_one_is_left_out() {
        for (typed, meant) in [
            ("dvs ps", "dvs ps shop"),
            ("dvs -o json ps --all", "dvs -o json ps shop --all"),
            ("dvs kill 65600", "dvs kill shop 65600"),
            ("dvs kill -s KILL 65600", "dvs kill shop -s KILL 65600"),
            ("dvs run --node n2 -- uname -a", "dvs run shop --node n2 -- uname -a"),
            ("dvs run -n n2 hostname", "dvs run shop -n n2 hostname"),
            ("dvs run -it -n n2 -- bash", "dvs run shop -it -n n2 -- bash"),
            ("dvs logs -f 65600", "dvs logs shop -f 65600"),
            ("dvs inspect", "dvs inspect shop"),
            ("dvs inspect web", "dvs inspect shop web"),
            ("dvs dc inspect", "dvs dc inspect shop"),
            ("dvs fs df", "dvs fs df shop"),
            ("dvs fs snapshot ls", "dvs fs snapshot ls shop"),
            ("dvs fs snapshot create now", "dvs fs snapshot create shop now"),
            ("dvs ds put key shop", "dvs ds put shop key shop"),
            ("dvs ds get -o json key", "dvs ds get shop -o json key"),
            ("dvs service ls", "dvs service ls shop"),
            ("dvs port ls", "dvs port ls shop"),
            ("dvs events", "dvs events shop"),
            ("dvs stats", "dvs stats shop"),
        ] {
            assert_eq!(completed(typed).as_deref(), Some(meant), "{typed}");
        }
    }

    #[test]
    fn nothing_is_put_where_it_is_named_or_none_is_wanted() {
        for typed in [
            "dvs ps shop",
            "dvs run --node n2 shop -- uname",
            "dvs run -n n2 shop hostname",
            "dvs ds get shop key",
            "dvs kill -s 9 shop 65600",
            "dvs version",
            "dvs node ls",
            "dvs dc create store --nodes n1",
            "dvs dc ls",
            "dvs",
            "dvs fs",
            "dvs --socket /x ps",
            "dvs ps --context=home",
        ] {
            assert_eq!(completed(typed), None, "{typed}");
        }
    }

    #[test]
    fn container_is_known_by_the_names_of_its_nodes() {
        let hosts = "127.0.0.1\tlocalhost\n10.1.0.1\tn1 n1.shop.dvs\n10.1.0.2\tn2 n2.shop.dvs\n";
        assert_eq!(name_in(hosts).as_deref(), Some("shop"));
        assert_eq!(name_in("127.0.0.1\tlocalhost\n"), None);
    }
}
