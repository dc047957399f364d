//! Aligned columns, two spaces between, no boxes: easy to read and to cut. On a terminal rows are cut at its width.

use std::io::{self, Write};

use rustix::termios;

use super::printable;

pub struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(headings: &[&str]) -> Table {
        Table { headings: headings.iter().map(|text| (*text).to_owned()).collect(), rows: Vec::new() }
    }

    /// Cells beyond the headings are dropped, missing ones stay empty.
    pub fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.print_within(out, terminal_width())
    }

    /// However wide the terminal is.
    pub fn print_whole(&self, out: &mut impl Write) -> io::Result<()> {
        self.print_within(out, None)
    }

    fn print_within(&self, out: &mut impl Write, width_max: Option<usize>) -> io::Result<()> {
        let widths = self.widths();
        for row in std::iter::once(&self.headings).chain(&self.rows) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count()));
            }
            let line = line.trim_end();
            match width_max {
                Some(width) if line.chars().count() > width => {
                    writeln!(out, "{}…", line.chars().take(width.saturating_sub(1)).collect::<String>())?;
                }
                _ => writeln!(out, "{line}")?,
            }
        }
        Ok(())
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.headings.iter().map(|text| text.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

/// Columns of the terminal that standard output is, if it is one.
fn terminal_width() -> Option<usize> {
    let stdout = io::stdout();
    if !termios::isatty(&stdout) {
        return None;
    }
    termios::tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_rows_are_cut_at_the_width_of_the_terminal_only() {
        let mut table = Table::new(&["A", "B"]);
        table.push(vec!["1".to_owned(), "long command line".to_owned()]);
        let shown = |width| {
            let mut out = Vec::new();
            table.print_within(&mut out, width).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown(None), "A  B\n1  long command line\n");
        assert_eq!(shown(Some(8)), "A  B\n1  long…\n");
    }
}
