//! Numbers nobody else has: node ids, container ids.
//!
//! A space keeps `/ids/SPACE/of/OWNER` = number, `/ids/SPACE/used/NUMBER` = owner, and `/ids/SPACE/last`, from which the search goes
//! on, so that a number that was given back is not given out again soon.

use std::ops::RangeInclusive;

use crate::engine::{Compare, Engine, EngineError, Entry, Op, Outcome};

/// Others may win a race this often; each time one of them has made progress.
const ATTEMPTS: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    #[error("all numbers of {space:?} are used")]
    Exhausted { space: String },
    #[error("others were faster {ATTEMPTS} times at taking a number of {space:?}")]
    Contended { space: String },
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The owner's number: the one it has, or a new one.
pub fn number(engine: &dyn Engine, space: &str, owner: &str, range: RangeInclusive<u32>) -> Result<u32, AllocateError> {
    let (of, last_key) = (format!("/ids/{space}/of/{owner}"), format!("/ids/{space}/last"));
    for _ in 0..ATTEMPTS {
        if let Some(entry) = engine.read(&of)? {
            return Ok(parse(&entry)?);
        }
        let last = engine.read(&last_key)?;
        let used = used(engine, space)?;
        let from = match &last {
            Some(entry) => parse(entry)?.saturating_add(1),
            None => *range.start(),
        };
        let Some(chosen) =
            (from..=*range.end()).chain(range.clone()).find(|number| range.contains(number) && !used.contains(number))
        else {
            return Err(AllocateError::Exhausted { space: space.to_owned() });
        };
        let used_key = format!("/ids/{space}/used/{chosen}");
        let unchanged = match last {
            Some(entry) => Compare::Modified { key: last_key.clone(), at: entry.modified },
            None => Compare::Absent { key: last_key.clone() },
        };
        let compares = [unchanged, Compare::Absent { key: of.clone() }, Compare::Absent { key: used_key.clone() }];
        let text = chosen.to_string();
        let ops = [Op::put(&*last_key, &*text), Op::put(&*of, &*text), Op::put(used_key, owner)];
        if let Outcome::Done(_) = engine.transact(&compares, &ops)? {
            return Ok(chosen);
        }
    }
    Err(AllocateError::Contended { space: space.to_owned() })
}

/// Gives the owner's number back. Repeatable.
pub fn release(engine: &dyn Engine, space: &str, owner: &str) -> Result<(), AllocateError> {
    let of = format!("/ids/{space}/of/{owner}");
    let Some(entry) = engine.read(&of)? else { return Ok(()) };
    let used_key = format!("/ids/{space}/used/{}", parse(&entry)?);
    // A conflict: somebody else gave it back.
    engine.transact(
        &[Compare::Modified { key: of.clone(), at: entry.modified }],
        &[Op::delete(of), Op::delete(used_key)],
    )?;
    Ok(())
}

fn used(engine: &dyn Engine, space: &str) -> Result<std::collections::HashSet<u32>, EngineError> {
    let prefix = format!("/ids/{space}/used/");
    let entries = engine.list(&prefix)?.entries;
    Ok(entries.iter().filter_map(|entry| entry.key.strip_prefix(&prefix)?.parse().ok()).collect())
}

fn parse(entry: &Entry) -> Result<u32, EngineError> {
    let text = std::str::from_utf8(&entry.value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| EngineError::BadValue(entry.key.clone()))
}
