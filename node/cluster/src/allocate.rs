//! Numbers nobody else has: node ids, container ids.
//!
//! A space keeps `/ids/SPACE/of/OWNER` = number, `/ids/SPACE/used/NUMBER` = owner, and `/ids/SPACE/last`, from which
//! the search goes on, so that a number that was given back is not given out again soon.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use crate::engine::{Compare, Engine, EngineError, Entry, Listing, Lookup, Op, Outcome, listed};

/// Others may win a race this often; each time one of them has made progress.
const ATTEMPTS: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    #[error("{used} numbers of {space:?} are used, and there are no more")]
    Exhausted { space: String, used: usize },
    #[error("others were faster {ATTEMPTS} times at taking a number of {space:?}")]
    Contended { space: String },
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A number that its owner has once a transaction with these comparisons and operations happened.
pub struct Choice {
    pub number: u32,
    pub compares: Vec<Compare>,
    pub ops: Vec<Op>,
}

/// The owner's number: the one it has, or a new one.
pub fn number(engine: &dyn Engine, space: &str, owner: &str, range: RangeInclusive<u32>) -> Result<u32, AllocateError> {
    for _ in 0..ATTEMPTS {
        let choice = choose(engine, space, owner, range.clone(), usize::MAX)?;
        if let Outcome::Done(_) = engine.transact(&choice.compares, &choice.ops)? {
            return Ok(choice.number);
        }
    }
    Err(AllocateError::Contended { space: space.to_owned() })
}

/// Whose a number is.
pub fn used_key(space: &str, number: u32) -> String {
    format!("/ids/{space}/used/{number}")
}

/// The same as a part of a larger transaction, of a space with at most so many owners. Two who choose at the same time
/// cannot both have the last number: what both compare is changed by each.
pub fn choose(
    engine: &dyn Engine,
    space: &str,
    owner: &str,
    range: RangeInclusive<u32>,
    owners_max: usize,
) -> Result<Choice, AllocateError> {
    let prefixes = prefixes(space, owner);
    let found = listed(engine, prefixes.each_ref().map(String::as_str))?;
    choose_of(space, owner, range, owners_max, &found)
}

/// What a choice is made of, in this order: what was given last is not read after what is used, because whoever takes a
/// number meanwhile changes it.
pub fn prefixes(space: &str, owner: &str) -> [String; 3] {
    [format!("/ids/{space}/of/{owner}"), format!("/ids/{space}/last"), format!("/ids/{space}/used/")]
}

/// The same for who has listed those together with something else.
pub fn choose_of(
    space: &str,
    owner: &str,
    range: RangeInclusive<u32>,
    owners_max: usize,
    [of, last, used]: &[Listing; 3],
) -> Result<Choice, AllocateError> {
    let [of_key, last_key, used_prefix] = prefixes(space, owner);
    let entry = |listing: &Listing, key: &str| listing.entries.iter().find(|entry| entry.key == key).cloned();
    if let Some(entry) = entry(of, &of_key) {
        let same = Compare::Modified { key: of_key, at: entry.modified };
        return Ok(Choice { number: parse(&entry)?, compares: vec![same], ops: Vec::new() });
    }
    let last = entry(last, &last_key);
    let numbers = used.entries.iter().filter_map(|entry| entry.key.strip_prefix(&used_prefix)?.parse::<u32>().ok());
    let used: HashSet<u32> = numbers.collect();
    let from = match &last {
        Some(entry) => parse(entry)?.saturating_add(1),
        None => *range.start(),
    };
    let is_free = |number: &u32| range.contains(number) && !used.contains(number);
    let free = (from..=*range.end()).chain(range.clone()).find(is_free);
    let Some(number) = free.filter(|_| used.len() < owners_max) else {
        return Err(AllocateError::Exhausted { space: space.to_owned(), used: used.len() });
    };
    let used_key = used_key(space, number);
    let unchanged = match last {
        Some(entry) => Compare::Modified { key: last_key.clone(), at: entry.modified },
        None => Compare::Absent { key: last_key.clone() },
    };
    let compares = vec![unchanged, Compare::Absent { key: of_key.clone() }, Compare::Absent { key: used_key.clone() }];
    let text = number.to_string();
    let ops = vec![Op::put(last_key, &*text), Op::put(of_key, &*text), Op::put(used_key, owner)];
    Ok(Choice { number, compares, ops })
}

/// Gives the owner's number back, as a part of a larger transaction; nothing when the owner has no number. A conflict:
/// somebody else gave it back.
pub fn releasing(engine: &dyn Lookup, space: &str, owner: &str) -> Result<(Vec<Compare>, Vec<Op>), EngineError> {
    let of = format!("/ids/{space}/of/{owner}");
    let Some(entry) = engine.read(&of)? else { return Ok((Vec::new(), Vec::new())) };
    let used_key = used_key(space, parse(&entry)?);
    let same = Compare::Modified { key: of.clone(), at: entry.modified };
    Ok((vec![same], vec![Op::delete(of), Op::delete(used_key)]))
}

/// Gives the owner's number to another owner, as a part of a larger transaction. A number that this one has is given
/// back: the caller knows that nothing has it.
pub fn renaming(engine: &dyn Lookup, space: &str, owner: &str, to: &str) -> Result<Choice, EngineError> {
    let (old, new) = (format!("/ids/{space}/of/{owner}"), format!("/ids/{space}/of/{to}"));
    let Some(entry) = engine.read(&old)? else { return Err(EngineError::BadValue(old)) };
    let number = parse(&entry)?;
    let mut compares = vec![Compare::Modified { key: old.clone(), at: entry.modified }];
    let mut ops = vec![Op::put(new.clone(), number.to_string()), Op::put(used_key(space, number), to), Op::delete(old)];
    match engine.read(&new)? {
        None => compares.push(Compare::Absent { key: new }),
        Some(left) => {
            ops.push(Op::delete(used_key(space, parse(&left)?)));
            compares.push(Compare::Modified { key: new, at: left.modified });
        }
    }
    Ok(Choice { number, compares, ops })
}

fn parse(entry: &Entry) -> Result<u32, EngineError> {
    let text = std::str::from_utf8(&entry.value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| EngineError::BadValue(entry.key.clone()))
}
