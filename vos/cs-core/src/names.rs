//! What may be a name or a key.

use vos_api::Errno;
use vos_api::cs::{KEY_BYTES_MAX, NAME_BYTES_MAX, Race};

/// Of a lock, an election, a group, a member.
pub fn name(bytes: &[u8]) -> Result<String, Errno> {
    let is_name = (1..=NAME_BYTES_MAX).contains(&bytes.len())
        && bytes.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'/');
    text(bytes).filter(|_| is_name).ok_or(Errno::Invalid)
}

pub fn key(bytes: &[u8]) -> Result<String, Errno> {
    let is_key = !bytes.is_empty() && bytes.last() != Some(&b'/');
    prefix(bytes).ok().filter(|_| is_key).ok_or(Errno::Invalid)
}

/// The beginning of keys; empty for all.
pub fn prefix(bytes: &[u8]) -> Result<String, Errno> {
    let is_prefix = bytes.len() <= KEY_BYTES_MAX && bytes.iter().all(u8::is_ascii_graphic);
    text(bytes).filter(|_| is_prefix).ok_or(Errno::Invalid)
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

/// Under which all that want something lie.
pub fn queue_prefix(race: Race, name: &str) -> String {
    let kind = match race {
        Race::Lock => 'l',
        Race::Election => 'e',
    };
    format!("{kind}/{name}/")
}

/// Of one node's session, below a prefix.
pub fn of_session(prefix: &str, node: u8, session: u64) -> String {
    format!("{prefix}{node}.{session:016x}")
}

/// Node and session of the last part of a key.
pub fn session_of(key: &str) -> Option<(u8, u64)> {
    let (node, session) = key.rsplit('/').next()?.split_once('.')?;
    Some((node.parse().ok()?, u64::from_str_radix(session, 16).ok()?))
}

/// Race and name of a key of a queue.
pub fn race_of(key: &str) -> Option<(Race, &str)> {
    let (race, rest) = match key.split_at_checked(2)? {
        ("l/", rest) => (Race::Lock, rest),
        ("e/", rest) => (Race::Election, rest),
        _ => return None,
    };
    Some((race, rest.rsplit_once('/')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_could_reach_into_another_key_is_none() {
        for bad in ["", "a/b", "a b", "\u{e4}", "\n", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert_eq!(name(bad.as_bytes()), Err(Errno::Invalid), "{bad:?}");
        }
        for bad in ["", "a/", "a b", &"x".repeat(KEY_BYTES_MAX + 1)] {
            assert_eq!(key(bad.as_bytes()), Err(Errno::Invalid), "{bad:?}");
        }
        assert_eq!(key(b"../a//b").as_deref(), Ok("../a//b"), "dots mean nothing to the engine");
    }

    #[test]
    fn key_of_a_session_tells_its_race_name_node_and_session() {
        let key = of_session(&queue_prefix(Race::Election, "a.b"), 12, u64::MAX);
        assert_eq!(race_of(&key), Some((Race::Election, "a.b")));
        assert_eq!(session_of(&key), Some((12, u64::MAX)));
    }
}
