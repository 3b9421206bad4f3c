//! Formats aligned columns of text. Pure.

use crate::plain::plain;

const GAP: usize = 3;

/// A header and rows of equal length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    widths: Vec<usize>,
}

impl Table {
    /// Returns a table without rows.
    pub fn new<const N: usize>(head: [&str; N]) -> Self {
        Self::from_head(head.map(str::to_owned).into())
    }

    /// Returns a table without rows from a header whose length is known only at run time.
    pub fn from_head(head: Vec<String>) -> Self {
        let widths = head.iter().map(|cell| width(cell)).collect();
        Self {
            head,
            rows: Vec::new(),
            widths,
        }
    }

    /// Adds a row. An empty cell is shown as `<none>`, so that scripts can also split the columns.
    pub fn push(&mut self, cells: Vec<String>) {
        let cells: Vec<_> = cells.into_iter().map(filled).collect();
        for (wide, cell) in self.widths.iter_mut().zip(&cells) {
            *wide = (*wide).max(width(cell));
        }
        self.rows.push(cells);
    }

    /// Removes the rows but keeps the column widths, so that later rows of a watch align with
    /// earlier ones.
    pub fn clear(&mut self) {
        self.rows.clear();
    }

    /// Formats the header and all rows.
    pub fn to_text(&self) -> String {
        let mut text = self.line(&self.head);
        text.push_str(&self.rows_to_text());
        text
    }

    /// Formats all rows without the header.
    pub fn rows_to_text(&self) -> String {
        self.rows.iter().map(|row| self.line(row)).collect()
    }

    fn line(&self, cells: &[String]) -> String {
        let mut line = String::new();
        for (index, (cell, wide)) in cells.iter().zip(&self.widths).enumerate() {
            line.push_str(cell);
            if index + 1 < cells.len() {
                line.extend(std::iter::repeat_n(' ', wide.saturating_sub(width(cell)) + GAP));
            }
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

/// Text from the host may contain line breaks and control characters, which would break the table
/// or the terminal.
fn filled(cell: String) -> String {
    let cell = plain(&cell);
    if cell.trim().is_empty() {
        "<none>".to_owned()
    } else {
        cell
    }
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
        cells.map(str::to_owned).into()
    }

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let mut table = Table::new(["NAME", "MESSAGE"]);
        table.push(cells(["a", "long enough"]));
        table.push(cells(["longer-name", ""]));
        table.push(cells(["ümlaut", "x\ny\u{1b}[31m"]));
        assert_eq!(
            table.to_text(),
            "NAME          MESSAGE\na             long enough\nlonger-name   <none>\nümlaut        x y [31m\n"
        );
    }

    #[test]
    fn rows_of_a_watch_keep_the_widths() {
        let mut table = Table::new(["NAME", "AGE"]);
        table.push(cells(["longer-name", "1s"]));
        table.clear();
        table.push(cells(["a", "2s"]));
        assert_eq!(table.rows_to_text(), "a             2s\n");
    }
}
