//! Which releases talk with each other: those of one series (`0.2.0`, `0.2.7`), and those of two series of which one
//! follows the other. Every release says which series it follows, so an older one need not know the names of those that
//! came after it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The series before this one: the last that this release talks with. Changes with the second number of the version.
const FOLLOWS: &str = "0.1";
/// Bytes of a release's name: three numbers and a word.
pub(crate) const RELEASE_BYTES_MAX: usize = 32;

/// A release, and the series that it follows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Release {
    /// `0.2.1`.
    pub release: String,
    /// `0.1`; empty: it is the first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub follows: String,
}

/// Who says nothing is of the first, or was built before it.
impl Default for Release {
    fn default() -> Release {
        Release { release: "0.1.0".to_owned(), follows: String::new() }
    }
}

/// Why two releases are not in one cluster, or one does not take the place of the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReleaseError {
    /// There are releases between the two.
    Apart { one: String, other: String },
    /// The text is none.
    Malformed(String),
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReleaseError::Apart { one, other } => {
                write!(out, "releases {one} and {other} do not talk: only those that follow one another do")
            }
            ReleaseError::Malformed(text) => write!(out, "{text:?} is no release"),
        }
    }
}

impl std::error::Error for ReleaseError {}

impl Release {
    /// Of this source.
    pub const NAME: &str = env!("CARGO_PKG_VERSION");

    pub fn own() -> Release {
        Release { release: Release::NAME.to_owned(), follows: FOLLOWS.to_owned() }
    }

    /// `0.2` of `0.2.1`.
    pub fn series(&self) -> &str {
        let end = self.release.match_indices('.').nth(1).map_or(self.release.len(), |(at, _)| at);
        self.release.get(..end).unwrap_or_default()
    }

    /// Series and number within it.
    fn numbers(&self) -> Result<[u32; 3], ReleaseError> {
        let malformed = || ReleaseError::Malformed(self.release.chars().take(RELEASE_BYTES_MAX).collect());
        // `0.2.0-rc1` is before `0.2.0`, and talks with the same.
        let numbers = self.release.split('-').next().unwrap_or_default();
        let numbers: Vec<u32> = numbers.split('.').map_while(|number| number.parse().ok()).collect();
        numbers.try_into().map_err(|_| malformed())
    }

    /// Whether both can be in one cluster.
    ///
    /// # Errors
    /// There are releases between them, or one is none.
    pub fn talks_with(&self, other: &Release) -> Result<(), ReleaseError> {
        self.numbers().and(other.numbers())?;
        let (own, their) = (self.series(), other.series());
        if own == their || self.follows == their || other.follows == own {
            return Ok(());
        }
        Err(ReleaseError::Apart { one: self.release.clone(), other: other.release.clone() })
    }

    /// Whether it came before the other.
    pub fn is_before(&self, other: &Release) -> Result<bool, ReleaseError> {
        Ok(self.numbers()? < other.numbers()?)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(release: &str, follows: &str) -> Release {
        Release { release: release.to_owned(), follows: follows.to_owned() }
    }

    #[test]
    fn releases_talk_with_those_of_their_series_and_of_the_series_beside_it() {
        let all = [
            release("0.1.0", ""),
            release("0.1.7", ""),
            release("0.2.0", "0.1"),
            release("0.3.1", "0.2"),
            release("1.0.0", "0.3"),
        ];
        let series = [0, 0, 1, 2, 3_i32];
        for (one, at) in all.iter().zip(series) {
            for (other, there) in all.iter().zip(series) {
                assert_eq!(one.talks_with(other).is_ok(), (at - there).abs() <= 1, "{one} {other}");
            }
        }
        let why = all[0].talks_with(&all[3]).unwrap_err().to_string();
        assert!(why.contains("0.1.0") && why.contains("0.3.1"), "{why}");
    }

    #[test]
    fn what_is_no_release_talks_with_nobody() {
        for bad in ["", "0.1", "x.y.z", "0.1.0.0", &"9".repeat(1000)] {
            let bad = release(bad, "");
            assert!(matches!(bad.talks_with(&Release::own()), Err(ReleaseError::Malformed(_))), "{bad}");
            assert!(Release::own().talks_with(&bad).is_err());
        }
    }

    #[test]
    fn this_release_is_one_and_does_not_follow_itself() {
        let own = Release::own();
        own.talks_with(&own).unwrap();
        assert_ne!(own.series(), own.follows);
        if !own.follows.is_empty() {
            let before = release(&format!("{}.0", own.follows), "");
            assert_eq!(before.is_before(&own), Ok(true));
            own.talks_with(&before).unwrap();
        }
    }
}
