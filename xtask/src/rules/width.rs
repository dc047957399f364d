//! Comments end where code does: `rustfmt` wraps no comment, so this looks. `scripts/reflow.py` mends what is found.

use crate::rules::sources;
use crate::run::{Outcome, read, workspace};

/// As in `rustfmt.toml`.
const COLUMNS: usize = 120;

pub fn check() -> Outcome {
    let mut faults = Vec::new();
    for file in sources(&workspace())? {
        let text = read(&file)?;
        let wide = text.lines().enumerate().filter(|(_, line)| is_too_wide(line));
        let shown = file.strip_prefix(workspace()).unwrap_or(&file).display();
        faults.extend(wide.map(|(number, _)| format!("{shown}:{}", number + 1)));
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("comments wider than {COLUMNS} columns (try: scripts/reflow.py FILE…):\n  {}", faults.join("\n  ")))
}

/// A row of a table has no place to be broken, and neither has a single word.
fn is_too_wide(line: &str) -> bool {
    let comment = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).trim_start());
    let breakable = comment.is_some_and(|text| !text.starts_with('|') && text.contains(' '));
    breakable && line.chars().count() > COLUMNS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_count_in_characters_and_code_tables_and_single_words_do_not() {
        let words = "ä ".repeat(COLUMNS / 2 - 2);
        assert!(!is_too_wide(&format!("// {words}.")));
        assert!(is_too_wide(&format!("    //! {words}.")));
        assert!(!is_too_wide(&format!("    /// | {words} |")));
        assert!(!is_too_wide(&format!("let text = \"{words}{words}\";")));
        assert!(!is_too_wide(&format!("// https://{}", "x".repeat(COLUMNS))));
    }
}
