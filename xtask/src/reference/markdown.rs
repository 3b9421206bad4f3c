//! Markdown of a generated page.

/// Command that writes the pages.
pub(super) const COMMAND: &str = "cargo xtask reference";

/// The beginning of a page: a comment that names its source, and the title.
pub(super) fn head(title: &str, source: &str) -> String {
    format!("<!-- Made from {source} by `{COMMAND}`; change that and run it again. -->\n\n# {title}\n\n")
}

/// Escapes characters outside of code spans that Markdown or HTML would interpret.
pub(super) fn escape(line: &str) -> String {
    let mut text = String::new();
    for (index, part) in line.split('`').enumerate() {
        if index > 0 {
            text.push('`');
        }
        let part = part.replace('|', "\\|");
        match index % 2 {
            0 => text.push_str(&part.replace('<', "&lt;").replace('>', "&gt;").replace("[`", "`")),
            _ => text.push_str(&part),
        }
    }
    text
}
