//! The result tables: a row for each phase, a column for each store. Each cell is the median of all
//! rounds.

use crate::stores::Store;

/// If the load uses a larger share of its core than this, the load limits the rate.
const LOAD_BOUND: f64 = 0.9;

/// The meaning of a cell's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Requests per second; their median and 99th percentile in milliseconds; CPU time of each in
    /// microseconds; the share of a core that the load used.
    Requests,
    /// Median and 99th percentile of a lag in milliseconds; CPU time of each write in microseconds.
    Lag,
    /// One number with this number of decimals.
    Number(usize),
}

/// The result of one phase for one store.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub(crate) form: Form,
    /// The numbers, in the order that `form` describes.
    pub(crate) numbers: Vec<f64>,
    /// Number of failed requests or missing events.
    pub(crate) problems: u64,
}

impl Cell {
    /// A cell of one number with this number of decimals.
    pub(crate) fn number(value: f64, digits: usize) -> Self {
        Self {
            form: Form::Number(digits),
            numbers: vec![value],
            problems: 0,
        }
    }

    fn median(cells: &[&Self]) -> Option<Self> {
        let first = cells.first()?;
        let median = |index: usize| {
            let mut values: Vec<_> = cells.iter().map(|cell| cell.numbers[index]).collect();
            values.sort_by(f64::total_cmp);
            let middle = values.len() / 2;
            (values[middle] + values[values.len() - 1 - middle]) / 2.0
        };
        Some(Self {
            form: first.form,
            numbers: (0..first.numbers.len()).map(median).collect(),
            problems: cells.iter().map(|cell| cell.problems).sum(),
        })
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match (self.form, self.numbers.as_slice()) {
            (Form::Requests, [rate, median, slowest, cpu, busy]) => {
                let bound = if *busy > LOAD_BOUND { "≥ " } else { "" };
                write!(f, "{bound}{rate:.0}/s, {median:.1} / {slowest:.1} ms, {cpu:.0} µs")?;
                "failed"
            }
            (Form::Lag, [median, slowest, cpu]) => {
                write!(f, "{median:.1} / {slowest:.1} ms, {cpu:.0} µs")?;
                "events missing"
            }
            (Form::Number(digits), [number]) => {
                write!(f, "{number:.digits$}")?;
                "failed"
            }
            (form, numbers) => unreachable!("{numbers:?} as {form:?}"),
        };
        match self.problems {
            0 => Ok(()),
            problems => write!(f, ", **{problems} {what}**"),
        }
    }
}

/// All results, in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Table {
    seen: Vec<(Store, String, Result<Cell, String>)>,
}

impl Table {
    /// Adds the result of a phase.
    pub(crate) fn add(&mut self, store: Store, row: &str, cell: Cell) {
        self.add_or_refuse(store, row, Ok(cell));
    }

    /// Adds the result of a phase, or the reason why the phase does not work with the store.
    pub(crate) fn add_or_refuse(&mut self, store: Store, row: &str, cell: Result<Cell, String>) {
        match &cell {
            Ok(cell) => eprintln!("{}: {row}: {cell}", store.name()),
            Err(reason) => eprintln!("{}: {row}: {reason}", store.name()),
        }
        self.seen.push((store, row.to_owned(), cell));
    }

    /// The table of the stores of one class of durability, in Markdown; empty if there are none.
    pub(crate) fn print(&self, durable: bool) -> String {
        let is_shown = |store: &Store| store.durable == durable && self.seen.iter().any(|(seen, ..)| seen == store);
        let stores: Vec<_> = Store::ALL.into_iter().filter(is_shown).collect();
        let mut rows = Vec::<&str>::new();
        for (store, row, _) in &self.seen {
            if stores.contains(store) && !rows.contains(&row.as_str()) {
                rows.push(row);
            }
        }
        if rows.is_empty() {
            return String::new();
        }
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let names = stores.iter().map(|store| store.name().to_owned());
        let mut text = line(std::iter::once(String::new()).chain(names).collect());
        text += &format!("|{}\n", "---|".repeat(stores.len() + 1));
        for row in rows {
            let cells = stores.iter().map(|store| {
                let cells: Vec<_> = self.of(*store, row).filter_map(|cell| cell.as_ref().ok()).collect();
                Cell::median(&cells).map_or("–".to_owned(), |cell| cell.to_string())
            });
            text += &line(std::iter::once(row.to_owned()).chain(cells).collect());
        }
        text + &self.refusals(&stores)
    }

    /// A line for each reason why phases do not work with one of `stores`. Each line lists the
    /// phases.
    fn refusals(&self, stores: &[Store]) -> String {
        let mut seen = Vec::<(Store, &str, Vec<&str>)>::new();
        for (store, row, cell) in &self.seen {
            let Err(reason) = cell else { continue };
            match seen.iter_mut().find(|(of, why, _)| of == store && why == reason) {
                Some((.., rows)) if rows.contains(&row.as_str()) => {}
                Some((.., rows)) => rows.push(row),
                None => seen.push((*store, reason, vec![row])),
            }
        }
        let shown = seen.iter().filter(|(store, ..)| stores.contains(store));
        shown
            .map(|(store, reason, rows)| format!("\n{}, {}: \"{reason}\"\n", store.name(), rows.join("; ")))
            .collect()
    }

    fn of<'a>(&'a self, store: Store, row: &'a str) -> impl Iterator<Item = &'a Result<Cell, String>> {
        let is_it = move |(of, name, _): &&(Store, String, _)| *of == store && name == row;
        self.seen.iter().filter(is_it).map(|(.., cell)| cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_the_median_of_its_rounds_and_counts_all_problems() {
        let mut table = Table::default();
        let [etcd, other] = [Store::ALL[0], Store::ALL[2]];
        for (rate, problems) in [(100.0, 0), (300.0, 2), (200.0, 1)] {
            let numbers = vec![rate, 1.25, 10.0, 50.4, 0.5];
            let form = Form::Requests;
            table.add(
                etcd,
                "get",
                Cell {
                    form,
                    numbers,
                    problems,
                },
            );
        }
        table.add(other, "boot", Cell::number(0.126, 2));
        let expected = "|  | etcd | kine-nats, single |\n|---|---|---|\n\
            | get | 200/s, 1.2 / 10.0 ms, 50 µs, **3 failed** | – |\n| boot | – | 0.13 |\n";
        assert_eq!(table.print(true), expected);
        assert_eq!(table.print(false), "");
    }

    #[test]
    fn a_reason_why_phases_do_not_work_stands_below_the_table_once() {
        let mut table = Table::default();
        for row in ["put", "txn-put", "put"] {
            table.add_or_refuse(Store::ALL[1], row, Err("not supported".to_owned()));
        }
        let expected = "|  | Go kine + NATS |\n|---|---|\n| put | – |\n| txn-put | – |\n\n\
            Go kine + NATS, put; txn-put: \"not supported\"\n";
        assert_eq!(table.print(true), expected);
    }
}
