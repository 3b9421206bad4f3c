//! Generated parts of the book, compared with what a crate's code makes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Compares one section of a page of the book, between `<!-- begin NAME -->` and `<!-- end NAME -->`, with `text`. With `UPDATE` in the
/// environment, writes it. `command` is what the failure names to do that.
pub fn check_section(page: &str, name: &str, text: &str, command: &str) {
    let file = format!("{}/../docs/book/src/{page}", env!("CARGO_MANIFEST_DIR"));
    let present = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let parts = present
        .split_once(&begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(&end)?)));
    let Some((before, (inside, after))) = parts else {
        panic!("{page} has no section {name}");
    };
    let wanted = format!("\n{}\n\n", text.trim());
    if inside == wanted {
        return;
    }
    assert!(
        std::env::var_os("UPDATE").is_some(),
        "{page}, section {name} is stale: run `UPDATE=1 {command}`"
    );
    let updated = format!("{before}{begin}{wanted}{end}{after}");
    std::fs::write(&file, updated).unwrap_or_else(|error| panic!("{file}: {error}"));
}

/// A Markdown table of the metrics in an OpenMetrics text: name, kind, labels, meaning. A family without samples is not in such a text.
pub fn metrics_table(text: &str) -> String {
    let mut helps = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            helps.insert(name, help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            kinds.insert(name, kind);
        } else if let Some((name, rest)) = line.split_once('{') {
            let rest = rest.rsplit_once('}').map_or(rest, |(inside, _)| inside);
            // Every second part between quotes is a value; before it is the name of a label.
            let names = rest.split('"').step_by(2);
            let names = names
                .map(|part| part.trim_matches([',', '=', ' ']))
                .filter(|part| !part.is_empty() && *part != "le");
            labels.entry(name).or_default().extend(names);
        }
    }
    let mut table = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for (name, kind) in &kinds {
        let shown = match *kind {
            "counter" => format!("{name}_total"),
            _ => (*name).to_owned(),
        };
        let of_family = labels.iter().filter(|(sample, _)| {
            let suffix = sample.strip_prefix(name);
            suffix.is_some_and(|suffix| ["", "_total", "_bucket", "_sum", "_count", "_info"].contains(&suffix))
        });
        let names: BTreeSet<_> = of_family
            .flat_map(|(_, names)| names.iter().map(|name| format!("`{name}`")))
            .collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let help = helps.get(name).copied().unwrap_or_default();
        let _ = writeln!(table, "| `{shown}` | {kind} | {names} | {} |", help.replace('|', "\\|"));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_kinds_labels_and_meanings() {
        let text = "# HELP a_b Things.\n# TYPE a_b counter\na_b_total{x=\"1,2\",y=\"z\"} 1\n# HELP a_c Time.\n# TYPE a_c histogram\n\
                    a_c_bucket{le=\"1\"} 0\n# EOF\n";
        let table = metrics_table(text);
        assert!(
            table.contains("| `a_b_total` | counter | `x`, `y` | Things. |"),
            "{table}"
        );
        assert!(table.contains("| `a_c` | histogram |  | Time. |"), "{table}");
    }
}
