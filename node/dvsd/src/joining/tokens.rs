//! Tokens: each lets one machine in. The engine keeps a hash of the secret: who reads it comes in with none.

use cluster::{Compare, Engine, EngineError, Lookup, Op, Outcome, Revision};
use mgmt_api::TokenInfo;
use pki::hex;
use serde::{Deserialize, Serialize};

use crate::records::{self, encode, now_s};

pub const TOKENS: &str = "/tokens/";
/// Those that have ended are forgotten when a new one is made.
const TOKENS_MAX: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("there are {TOKENS_MAX} tokens that have not ended")]
    TooMany,
    #[error("the system gives no random numbers")]
    NoRandom,
    #[error(transparent)]
    Engine(#[from] EngineError),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenRecord {
    /// SHA-256, in hexadecimal digits.
    pub secret_hash: String,
    pub ends_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Used>,
}

/// Who came with a token.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Used {
    pub node: String,
    /// Hash of the request for the certificate, which is signed with the node's key.
    pub request_hash: String,
}

/// Number and secret of a new token.
pub struct Secret {
    pub id: String,
    pub secret: String,
}

pub fn key(id: &str) -> String {
    format!("{TOKENS}{id}")
}

pub fn create(engine: &dyn Engine, ends_s: u64, node: Option<String>) -> Result<Secret, TokenError> {
    let now = now_s();
    let entries = engine.list(TOKENS)?.entries;
    let (mut ended, mut there) = (Vec::new(), 0);
    for entry in &entries {
        match records::decode::<TokenRecord>(entry) {
            Ok(token) if token.ends_s > now => there += 1,
            _ => ended.push(Op::delete(&*entry.key)),
        }
    }
    if there >= TOKENS_MAX {
        return Err(TokenError::TooMany);
    }
    for some in ended.chunks(32) {
        engine.transact(&[], some)?;
    }
    loop {
        let (id, secret) = (random_hex(4)?, random_hex(16)?);
        let record = TokenRecord { secret_hash: hash(secret.as_bytes()), ends_s, node: node.clone(), used: None };
        let absent = Compare::Absent { key: key(&id) };
        if let Outcome::Done(_) = engine.transact(&[absent], &[Op::put(key(&id), encode(&record))])? {
            return Ok(Secret { id, secret });
        }
    }
}

pub fn list(engine: &dyn Lookup) -> Result<Vec<TokenInfo>, EngineError> {
    let (now, entries) = (now_s(), engine.list(TOKENS)?.entries);
    let all = entries.iter().map(|entry| {
        let record: TokenRecord = records::decode(entry)?;
        let id = entry.key.trim_start_matches(TOKENS).to_owned();
        Ok(TokenInfo { id, ends_s: record.ends_s, node: record.node, used_by: record.used.map(|used| used.node) })
    });
    let all: Result<Vec<TokenInfo>, EngineError> = all.collect();
    Ok(all?.into_iter().filter(|token| token.ends_s > now).collect())
}

/// False: there was none.
pub fn remove(engine: &dyn Engine, id: &str) -> Result<bool, EngineError> {
    let exists = engine.read(&key(id))?.is_some();
    engine.transact(&[], &[Op::delete(key(id))])?;
    Ok(exists)
}

/// Why a token lets nobody in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is none, or the secret is another one: both look alike from outside.
    Unknown,
    Ended,
    Used,
    ForAnother,
}

/// Whether a machine with this name and request comes in with what is kept of its token.
pub fn judge(
    kept: Option<&TokenRecord>,
    secret: &str,
    node: &str,
    request_hash: &str,
    now: u64,
) -> Result<(), Refusal> {
    let kept = kept.filter(|kept| kept.secret_hash == hash(secret.as_bytes())).ok_or(Refusal::Unknown)?;
    if kept.ends_s <= now {
        return Err(Refusal::Ended);
    }
    match (&kept.used, &kept.node) {
        (Some(used), _) if used.node == node && used.request_hash == request_hash => Ok(()),
        (Some(_), _) => Err(Refusal::Used),
        (None, Some(wanted)) if wanted != node => Err(Refusal::ForAnother),
        (None, _) => Ok(()),
    }
}

pub fn read(engine: &dyn Lookup, id: &str) -> Result<Option<(TokenRecord, Revision)>, EngineError> {
    records::read(engine, &key(id))
}

pub fn hash(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

pub fn random_hex(count: usize) -> Result<String, TokenError> {
    let mut bytes = vec![0; count];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes).map_err(|_| TokenError::NoRandom)?;
    Ok(hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_lets_one_key_in_until_it_ends() {
        let fresh = TokenRecord { secret_hash: hash(b"s"), ends_s: 10, node: None, used: None };
        let of = |kept: &TokenRecord, secret, node, request, now| judge(Some(kept), secret, node, request, now);
        assert_eq!(of(&fresh, "s", "n1", "r", 9), Ok(()));
        assert_eq!(of(&fresh, "s", "n1", "r", 10), Err(Refusal::Ended));
        assert_eq!(of(&fresh, "S", "n1", "r", 9), Err(Refusal::Unknown));
        assert_eq!(judge(None, "s", "n1", "r", 9), Err(Refusal::Unknown));
        let used = Used { node: "n1".to_owned(), request_hash: "r".to_owned() };
        let used = TokenRecord { used: Some(used), ..fresh.clone() };
        assert_eq!(of(&used, "s", "n1", "r", 9), Ok(()), "its answer was lost");
        assert_eq!(of(&used, "s", "n1", "other", 9), Err(Refusal::Used));
        assert_eq!(of(&used, "s", "n2", "r", 9), Err(Refusal::Used));
        let for_one = TokenRecord { node: Some("n2".to_owned()), ..fresh };
        assert_eq!(of(&for_one, "s", "n1", "r", 9), Err(Refusal::ForAnother));
        assert_eq!(of(&for_one, "s", "n2", "r", 9), Ok(()));
    }
}
