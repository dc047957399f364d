//! Who has an access: `/access/NAME`. Of a token the engine keeps a hash of the secret, of a certificate its
//! fingerprint: who reads them comes in with none.

use cluster::{Compare, Engine, EngineError, Lookup, Op, Outcome};
use mgmt_api::{AccessInfo, AccessRole, AccessToken, Means};
use serde::{Deserialize, Serialize};

use crate::joining::tokens::{hash, random_hex};
use crate::records::{self, encode, now_s};

pub const ACCESS: &str = "/access/";
/// Those that have ended make room.
const ACCESSES_MAX: usize = 256;
/// Of a secret: no searching finds it.
const SECRET_BYTES: usize = 32;
/// Others may be faster this often; each time one of them has got on.
const ATTEMPTS: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("there is an access '{0}' already")]
    Taken(String),
    #[error("access '{0}' has the same certificate")]
    SameCertificate(String),
    #[error("there are {ACCESSES_MAX} accesses that have not ended")]
    TooMany,
    #[error("the system gives no random numbers")]
    NoRandom,
    #[error("others were faster {ATTEMPTS} times")]
    Contended,
    #[error(transparent)]
    Engine(#[from] EngineError),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AccessRecord {
    pub role: AccessRole,
    pub ends_s: u64,
    pub made_s: u64,
    pub made_by: String,
    pub proof: Proof,
}

/// What whoever has the access shows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Proof {
    /// SHA-256, in hexadecimal digits.
    Token { secret_hash: String },
    /// SHA-256 of the certificate, in hexadecimal digits.
    Certificate { fingerprint: String },
}

impl AccessRecord {
    pub fn means(&self) -> Means {
        match self.proof {
            Proof::Token { .. } => Means::Token,
            Proof::Certificate { .. } => Means::Certificate,
        }
    }

    fn fingerprint(&self) -> Option<&str> {
        match &self.proof {
            Proof::Token { .. } => None,
            Proof::Certificate { fingerprint } => Some(fingerprint),
        }
    }

    fn info(self, name: &str) -> AccessInfo {
        AccessInfo {
            name: name.to_owned(),
            role: self.role,
            by: self.means(),
            made_s: self.made_s,
            fingerprint: self.fingerprint().map(str::to_owned),
            made_by: self.made_by,
            ends_s: self.ends_s,
        }
    }
}

pub fn key(name: &str) -> String {
    format!("{ACCESS}{name}")
}

pub fn new_token(name: &str) -> Result<(AccessToken, Proof), AccessError> {
    let secret = random_hex(SECRET_BYTES).map_err(|_| AccessError::NoRandom)?;
    let proof = Proof::Token { secret_hash: hash(secret.as_bytes()) };
    Ok((AccessToken { name: name.to_owned(), secret }, proof))
}

pub fn create(engine: &dyn Engine, name: &str, record: &AccessRecord) -> Result<(), AccessError> {
    for _ in 0..ATTEMPTS {
        let now = now_s();
        let (mut there, mut ended) = (0, Vec::new());
        let mut compare = Compare::Absent { key: key(name) };
        for entry in engine.list(ACCESS)?.entries {
            let other = entry.key.trim_start_matches(ACCESS);
            let kept = records::decode::<AccessRecord>(&entry).ok().filter(|kept| kept.ends_s > now);
            match kept {
                Some(_) if other == name => return Err(AccessError::Taken(name.to_owned())),
                Some(kept) if record.fingerprint().is_some() && kept.fingerprint() == record.fingerprint() => {
                    return Err(AccessError::SameCertificate(other.to_owned()));
                }
                Some(_) => there += 1,
                None if other == name => compare = Compare::Modified { key: key(name), at: entry.modified },
                None => ended.push(Op::delete(&*entry.key)),
            }
        }
        if there >= ACCESSES_MAX {
            return Err(AccessError::TooMany);
        }
        for some in ended.chunks(32) {
            engine.transact(&[], some)?;
        }
        if let Outcome::Done(_) = engine.transact(&[compare], &[Op::put(key(name), encode(record))])? {
            return Ok(());
        }
    }
    Err(AccessError::Contended)
}

/// Also those that have ended: people want to know why somebody does not come in.
pub fn list(engine: &dyn Lookup) -> Result<Vec<AccessInfo>, EngineError> {
    let entries = engine.list(ACCESS)?.entries;
    let all = entries.iter().map(|entry| {
        let record: AccessRecord = records::decode(entry)?;
        Ok(record.info(entry.key.trim_start_matches(ACCESS)))
    });
    all.collect()
}

/// False: there was none.
pub fn remove(engine: &dyn Engine, name: &str) -> Result<bool, EngineError> {
    let exists = engine.read(&key(name))?.is_some();
    engine.transact(&[], &[Op::delete(key(name))])?;
    Ok(exists)
}

/// Why somebody does not come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is none of the name, or the secret is another one: both look alike from outside.
    Unknown,
    /// It was right, and is over.
    Ended { ends_s: u64 },
}

/// Whether a token's secret is the one that is kept, in a time that does not tell how much of it is right.
pub fn judge_token(kept: Option<&AccessRecord>, secret: &str, now: u64) -> Result<(), Refusal> {
    let shown = hash(secret.as_bytes());
    // Of a name that nobody has the work is the same.
    let nobody = "0".repeat(shown.len());
    let of_token = kept.and_then(|kept| match &kept.proof {
        Proof::Token { secret_hash } => Some(secret_hash.as_str()),
        Proof::Certificate { .. } => None,
    });
    let is_same = equal(of_token.unwrap_or(&nobody).as_bytes(), shown.as_bytes());
    let kept = kept.filter(|_| is_same && of_token.is_some()).ok_or(Refusal::Unknown)?;
    end_of(kept, now)
}

pub fn end_of(kept: &AccessRecord, now: u64) -> Result<(), Refusal> {
    if kept.ends_s > now { Ok(()) } else { Err(Refusal::Ended { ends_s: kept.ends_s }) }
}

/// In a time that depends on the lengths alone.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |differences, (one, other)| differences | (one ^ other));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use cluster::local::{LocalConfig, LocalEngine};

    use super::*;

    fn engine() -> (tempfile::TempDir, LocalEngine) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).unwrap();
        (dir, engine)
    }

    fn record(proof: Proof, ends_s: u64) -> AccessRecord {
        AccessRecord { role: AccessRole::Viewer, ends_s, made_s: 1, made_by: "root".to_owned(), proof }
    }

    #[test]
    fn token_is_known_by_its_secret_until_it_ends() {
        let (token, proof) = new_token("ada").unwrap();
        let kept = record(proof, 10);
        assert!(!format!("{kept:?}").contains(&token.secret), "only the hash is kept");
        assert_eq!(token.to_string().parse(), Ok(token.clone()));
        assert_eq!(judge_token(Some(&kept), &token.secret, 9), Ok(()));
        assert_eq!(judge_token(Some(&kept), &token.secret, 10), Err(Refusal::Ended { ends_s: 10 }));
        let other = new_token("ada").unwrap().0;
        assert_eq!(judge_token(Some(&kept), &other.secret, 9), Err(Refusal::Unknown));
        // Whoever does not know the secret does not learn that it has ended.
        assert_eq!(judge_token(Some(&kept), &other.secret, 11), Err(Refusal::Unknown));
        assert_eq!(judge_token(None, &token.secret, 9), Err(Refusal::Unknown));
        assert_eq!(judge_token(None, "", 9), Err(Refusal::Unknown));
        let certificate = record(Proof::Certificate { fingerprint: hash(token.secret.as_bytes()) }, 10);
        assert_eq!(judge_token(Some(&certificate), &token.secret, 9), Err(Refusal::Unknown), "it is no token");
    }

    #[test]
    fn equal_is_what_is_equal() {
        assert!(equal(b"abc", b"abc") && equal(b"", b""));
        assert!(!equal(b"abc", b"abd") && !equal(b"ab", b"abc") && !equal(b"abc", b""));
    }

    #[test]
    fn name_is_had_by_one_until_it_ends_or_is_taken_back() {
        let (_dir, engine) = engine();
        let made = |name: &str, ends_s| create(&engine, name, &record(new_token(name).unwrap().1, ends_s));
        made("ada", now_s() + 100).unwrap();
        assert!(matches!(made("ada", now_s() + 100), Err(AccessError::Taken(name)) if name == "ada"));
        made("bob", now_s()).unwrap();
        made("bob", now_s() + 100).expect("the one before had ended");
        let certificate = |name: &str| {
            create(&engine, name, &record(Proof::Certificate { fingerprint: "f".to_owned() }, now_s() + 100))
        };
        certificate("eve").unwrap();
        assert!(matches!(certificate("fay"), Err(AccessError::SameCertificate(name)) if name == "eve"));
        let names: Vec<String> = list(&engine).unwrap().into_iter().map(|access| access.name).collect();
        assert_eq!(names, ["ada", "bob", "eve"]);
        assert!(remove(&engine, "eve").unwrap() && !remove(&engine, "eve").unwrap());
        certificate("fay").expect("nobody has it any more");
    }

    #[test]
    fn there_is_a_bound_and_what_has_ended_makes_room() {
        let (_dir, engine) = engine();
        let made = |name: &str, ends_s| create(&engine, name, &record(new_token(name).unwrap().1, ends_s));
        for index in 0..ACCESSES_MAX {
            made(&format!("p{index}"), if index < 3 { now_s() } else { now_s() + 100 }).unwrap();
        }
        for name in ["q1", "q2", "q3"] {
            made(name, now_s() + 100).unwrap();
        }
        assert!(matches!(made("q4", now_s() + 100), Err(AccessError::TooMany)));
        assert_eq!(list(&engine).unwrap().len(), ACCESSES_MAX);
    }
}
