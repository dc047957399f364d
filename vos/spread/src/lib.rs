//! Which programs are put on other nodes when they are executed, without knowing of it (`docs/design/jobs.md`): rules,
//! and the library with which programs are started to whom they apply.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

/// What `preloaded.rs` becomes.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libdvs-spread.so"));
/// Where it lies, in the directory that programs see as `/run/dvs`.
pub const LIBRARY_NAME: &str = "lib/libdvs-spread.so";
/// As programs see it.
pub const LIBRARY_INSIDE: &str = "/run/dvs/lib/libdvs-spread.so";
/// Has the rules, in the environment.
pub const VARIABLE: &str = "DVS_SPREAD";

/// Patterns of one set of rules, and bytes of each.
const PATTERNS_MAX: usize = 64;
const PATTERN_BYTES_MAX: usize = 255;

/// `cc,gcc,*-gcc;load=1;most=8`: patterns of names, and when.
#[derive(Clone, PartialEq, Debug)]
pub struct Rules {
    pub patterns: Vec<String>,
    /// As long as the own node has fewer threads to run for each CPU, programs stay.
    pub load: f64,
    /// On each other node at a time; 0: as many as there are.
    pub most: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadRules {
    #[error("there is no name of a program in '{0}'")]
    NoPattern(String),
    #[error("'{0}' is no name of a program: it has no slash, space or ';', and up to {PATTERN_BYTES_MAX} bytes")]
    BadPattern(String),
    #[error("more than {PATTERNS_MAX} names")]
    TooMany,
    #[error("'{0}' is neither load=NUMBER nor most=NUMBER")]
    BadSetting(String),
}

impl std::fmt::Display for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{};load={}", self.patterns.join(","), self.load)?;
        if self.most == 0 { Ok(()) } else { write!(f, ";most={}", self.most) }
    }
}

impl std::str::FromStr for Rules {
    type Err = BadRules;

    fn from_str(text: &str) -> Result<Rules, BadRules> {
        let mut parts = text.split(';');
        let patterns: Vec<String> =
            parts.next().unwrap_or_default().split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect();
        if patterns.is_empty() {
            return Err(BadRules::NoPattern(text.to_owned()));
        }
        if patterns.len() > PATTERNS_MAX {
            return Err(BadRules::TooMany);
        }
        let is_bad =
            |one: &&String| one.len() > PATTERN_BYTES_MAX || one.contains(|c: char| c == '/' || c.is_whitespace());
        if let Some(bad) = patterns.iter().find(is_bad) {
            return Err(BadRules::BadPattern(bad.clone()));
        }
        let mut rules = Rules { patterns, load: 1.0, most: 0 };
        for setting in parts {
            let bad = || BadRules::BadSetting(setting.to_owned());
            match setting.split_once('=').ok_or_else(bad)? {
                ("load", value) => {
                    rules.load =
                        value.parse().ok().filter(|load: &f64| load.is_finite() && *load >= 0.0).ok_or_else(bad)?;
                }
                ("most", value) => rules.most = value.parse().ok().filter(|most| *most > 0).ok_or_else(bad)?,
                _ => return Err(bad()),
            }
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_or_refused() {
        let rules: Rules = "cc,*-gcc;load=0.5;most=8".parse().expect("rules");
        assert_eq!(rules, Rules { patterns: vec!["cc".into(), "*-gcc".into()], load: 0.5, most: 8 });
        assert_eq!(rules.to_string().parse(), Ok(rules));
        assert_eq!("cc".parse::<Rules>().map(|rules| (rules.load, rules.most)), Ok((1.0, 0)));
        for bad in [
            "",
            ",",
            ";load=1",
            "a/b",
            "a b",
            "cc;load",
            "cc;load=x",
            "cc;load=-1",
            "cc;load=inf",
            "cc;most=0",
            "cc;x=1",
        ] {
            assert!(bad.parse::<Rules>().is_err(), "{bad}");
        }
        assert_eq!("x,".repeat(65).parse::<Rules>(), Err(BadRules::TooMany));
    }

    #[test]
    fn library_is_one_that_needs_no_other() {
        assert_eq!(LIBRARY.get(..4), Some(&b"\x7fELF"[..]));
        assert!(LIBRARY.len() < 64 << 10, "{} bytes", LIBRARY.len());
    }
}
