//! The answer of an operation, as it is kept.

/// Bytes of reply data that a changing operation may answer; they are kept with the session.
pub const REPLY_BYTES_MAX: usize = 512;

const HEAD_BYTES: usize = 4 + 4 * 8;

/// The answer of an executed operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reply {
    /// 0 or a Linux errno.
    pub status: u32,
    pub results: [u64; 4],
    /// At most [`REPLY_BYTES_MAX`].
    pub data: Vec<u8>,
}

impl Reply {
    pub fn done(words: impl Into<[u64; 4]>) -> Reply {
        Reply { status: 0, results: words.into(), data: Vec::new() }
    }

    pub fn failed(errno: u32) -> Reply {
        Reply { status: errno, ..Reply::default() }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        Reply::encode(self.status, self.results, &self.data)
    }

    /// Form in the store: status, results, data, all little-endian.
    pub fn encode(status: u32, results: [u64; 4], data: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + data.len());
        out.extend_from_slice(&status.to_le_bytes());
        results.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out.extend_from_slice(data);
        out
    }

    /// `None` when the bytes are no reply.
    pub fn from_bytes(bytes: &[u8]) -> Option<Reply> {
        let (head, data) = bytes.split_at_checked(HEAD_BYTES)?;
        if data.len() > REPLY_BYTES_MAX {
            return None;
        }
        let (status, words) = head.split_at_checked(4)?;
        let mut results = [0; 4];
        for (result, word) in results.iter_mut().zip(words.chunks_exact(8)) {
            *result = u64::from_le_bytes(word.try_into().ok()?);
        }
        Some(Reply { status: u32::from_le_bytes(status.try_into().ok()?), results, data: data.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_survives_the_store_and_bytes_that_are_none_are_refused() {
        let reply = Reply { status: 17, results: [1, 2, 3, u64::MAX], data: vec![9; 72] };
        assert_eq!(Reply::from_bytes(&reply.to_bytes()), Some(reply));
        assert_eq!(Reply::from_bytes(&[0; 35]), None);
        assert_eq!(Reply::from_bytes(&[0; HEAD_BYTES + REPLY_BYTES_MAX + 1]), None);
    }
}
