//! Reads names and their doc comments from a source file of yoke-api.

use super::markdown::escape;

/// The names of a list in a source file, each with the comment before it. `parse` finds the name in
/// a line.
pub(super) fn documented<'a>(text: &'a str, parse: impl Fn(&'a str) -> Option<&'a str>) -> Vec<(&'a str, String)> {
    let mut comment = Vec::new();
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(part) = line.strip_prefix("///") {
            comment.push(part.trim());
        } else {
            if let Some(name) = parse(line) {
                found.push((name, to_comment(&comment)));
            }
            comment.clear();
        }
    }
    found
}

/// A doc comment as one line. Replaces links to items with their names.
fn to_comment(lines: &[&str]) -> String {
    let text = lines.join(" ").replace("[`", "`").replace("`]", "`");
    escape(&text.replace("crate::", ""))
        .replace("&lt;https", "<https")
        .replace("&gt;", ">")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_belong_to_the_name_behind_them() {
        let text = "/// One [`A`],\n/// and more.\nFirst,\n\n/// Lost.\nfn x() {}\n/// Two `a|b` <c>.\nSecond,\n";
        assert_eq!(
            documented(text, |line| line.strip_suffix(',')),
            [
                ("First", "One `A`, and more.".to_owned()),
                ("Second", "Two `a\\|b` &lt;c>.".to_owned())
            ]
        );
    }
}
