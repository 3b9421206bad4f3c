//! Makes untrusted text safe to print on a terminal. Pure.

/// Replaces each control and format character with a space. A terminal would execute such a
/// character, draw nothing for it, or change the text direction.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|character| match is_obeyed(character) {
            true => ' ',
            false => character,
        })
        .collect()
}

/// Does the same as [`plain`] for text of several lines; the line breaks stay.
pub fn plain_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(plain).collect();
    lines.join("\n")
}

fn is_obeyed(character: char) -> bool {
    // Besides the control characters: Unicode's characters for direction, joining, line ends,
    // annotations and tags.
    matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    ) || character.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        for (text, expected) in [
            ("ready ✓ 準備", "ready ✓ 準備"),
            ("\u{1b}[31mred\u{7}", " [31mred "),
            ("\u{9b}2J\u{7f}", " 2J "),
            ("a\u{202e}b\u{200d}c\u{e0041}", "a b c "),
            ("one\r\ntwo\tthree", "one  two three"),
        ] {
            assert_eq!(plain(text), expected, "{text:?}");
        }
        assert_eq!(plain_lines("a\u{1b}\r\n\tb\n"), "a  \n b\n");
    }
}
