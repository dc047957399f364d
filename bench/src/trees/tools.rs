//! Programs of others, on the pass-through and in the container's tree.

use std::path::Path;

use super::Place;
use crate::Outcome;
use crate::containers::program::Classes;
use crate::containers::read;
use crate::containers::results::{Manner, Results, Subject};

/// How long pgbench counts.
const SECONDS: &str = "3";

pub fn database(results: &mut Results, place: &Place, round: u32) -> Outcome<()> {
    let program = |at: &Path| {
        let directory = at.join(format!("database{round}")).to_string_lossy().into_owned();
        let user = if at == place.mounted.point { "mapped" } else { "own" };
        ["database", &directory, SECONDS, user].map(str::to_owned).to_vec()
    };
    let [theirs, ours] = place.both(program)?;
    results.add(Subject::Transactions, Manner::PassThrough, round, read(&theirs)?);
    results.add(Subject::Transactions, Manner::Container, round, read(&ours)?);
    Ok(())
}

pub fn classes(results: &mut Results, place: &Place, round: u32) -> Outcome<()> {
    let program = |at: &Path| {
        let directory = at.join(format!("classes{round}")).to_string_lossy().into_owned();
        ["classes".to_owned(), directory].into_iter().chain(SUBJECTS.map(|(class, _)| class.to_owned())).collect()
    };
    let [theirs, ours] = place.both(program)?;
    for (manner, said) in [(Manner::PassThrough, theirs), (Manner::Container, ours)] {
        for (class, rate) in read::<Classes>(&said)? {
            let subject = SUBJECTS.iter().find(|known| known.0 == class);
            let (_, subject) = subject.ok_or_else(|| format!("nobody asked for {class}"))?;
            results.add(*subject, manner, round, rate);
        }
    }
    Ok(())
}

/// As stress-ng names them.
const SUBJECTS: [(&str, Subject); 7] = [
    ("fcntl", Subject::StressFcntl),
    ("flock", Subject::StressFlock),
    ("utime", Subject::StressUtime),
    ("chmod", Subject::StressChmod),
    ("dentry", Subject::StressDentry),
    ("lease", Subject::StressLease),
    ("seek", Subject::StressSeek),
];
