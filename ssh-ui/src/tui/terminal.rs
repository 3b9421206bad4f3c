//! Translates cells into bytes for a remote terminal. Pure: the bytes are collected, and the caller
//! sends them.
//!
//! Only sequences that terminals support since the VT100 are used, besides eight colors and the
//! alternate screen: cursor, clear, bold and reverse.

use std::convert::Infallible;
use std::fmt::Write as _;

use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};
use ratatui::text::Span;

/// Enters the alternate screen, so that the earlier content can be restored.
pub const ENTER: &str = "\x1b[?1049h\x1b[2J\x1b[H\x1b[?25l";
/// Restores the terminal.
pub const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
/// Maximum columns and rows. A client may claim any size, and a session stores each cell twice.
const SIZE_MAX: (u32, u32) = (250, 80);
/// Maximum length of a value from the client's environment, in characters.
const WORD_MAX: usize = 64;

/// The client's description of its terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TerminalProfile {
    term: String,
    locale: [Option<String>; 3],
    no_colour: bool,
}

/// Capabilities of a terminal that the output uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalCapabilities {
    /// Colors. No information is expressed by color alone.
    pub colour: bool,
    /// Characters beyond ASCII.
    pub unicode: bool,
}

/// A ratatui backend that writes into memory.
#[derive(Clone, Debug)]
pub struct Terminal {
    size: Size,
    capabilities: TerminalCapabilities,
    cursor: Position,
    output: String,
}

impl TerminalProfile {
    /// Sets the name of the terminal (`TERM`).
    pub fn set_term(&mut self, term: &str) {
        self.term = term.chars().take(WORD_MAX).collect();
    }

    /// Sets a variable of the client's environment. Unknown variables are ignored.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        let value = Some(value.chars().take(WORD_MAX).collect::<String>()).filter(|value| !value.is_empty());
        match name {
            "LC_ALL" => self.locale[0] = value,
            "LC_CTYPE" => self.locale[1] = value,
            "LANG" => self.locale[2] = value,
            "NO_COLOR" => self.no_colour = value.is_some(),
            _ => {}
        }
    }

    /// Returns whether the terminal can show a screen. One without a name, or a dumb one, may not
    /// support cursor movement.
    pub fn has_screen(&self) -> bool {
        !matches!(self.term.as_str(), "" | "dumb" | "unknown" | "network" | "emacs")
    }

    /// Returns the capabilities. Without a locale the terminal is assumed to use UTF-8, as all
    /// current ones do.
    pub fn capabilities(&self) -> TerminalCapabilities {
        let locale = self.locale.iter().flatten().next().map(|locale| locale.to_lowercase());
        let is_plain = self.term.starts_with("vt") || self.term.ends_with("-m") || self.term.ends_with("-mono");
        TerminalCapabilities {
            colour: !self.no_colour && !is_plain,
            unicode: locale.is_none_or(|locale| locale.contains("utf-8") || locale.contains("utf8")),
        }
    }
}

/// Returns the size that a client reports, within limits; 80x24 if it reports none.
pub fn to_size(columns: u32, rows: u32) -> Size {
    let within = |said: u32, usual: u16, most: u32| match said {
        0 => usual,
        said => u16::try_from(said.min(most)).unwrap_or(usual),
    };
    Size::new(within(columns, 80, SIZE_MAX.0), within(rows, 24, SIZE_MAX.1))
}

impl Terminal {
    /// Creates a terminal of this size.
    pub fn new(size: Size, capabilities: TerminalCapabilities) -> Self {
        Self {
            size,
            capabilities,
            cursor: Position::ORIGIN,
            output: String::new(),
        }
    }

    /// Returns the output since the last call.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.output)
    }

    /// Sets the size.
    pub fn resize(&mut self, size: Size) {
        self.size = size;
    }

    fn write(&mut self, sequence: std::fmt::Arguments<'_>) {
        // Writing to a string never fails.
        let _ = self.output.write_fmt(sequence);
    }

    fn set_style(&mut self, cell: &Cell) {
        self.output += "\x1b[0";
        for (modifier, code) in [(Modifier::BOLD, ";1"), (Modifier::REVERSED, ";7")] {
            if cell.modifier.contains(modifier) {
                self.output += code;
            }
        }
        if let (true, Some(code)) = (self.capabilities.colour, to_code(cell.fg)) {
            self.write(format_args!(";{code}"));
        }
        self.output += "m";
    }

    fn put_symbol(&mut self, symbol: &str) {
        if self.capabilities.unicode || symbol.is_ascii() {
            self.output += symbol;
            return;
        }
        self.output += match symbol {
            "─" => "-",
            "│" => "|",
            "┌" | "┐" | "└" | "┘" => "+",
            "·" => ".",
            "▸" => ">",
            "…" => "~",
            "↑" => "^",
            "↓" => "v",
            // Use a replacement of the same width.
            other if Span::raw(other).width() > 1 => "? ",
            _ => "?",
        };
    }
}

fn to_code(colour: Color) -> Option<u8> {
    Some(match colour {
        Color::Red => 31,
        Color::Green => 32,
        Color::Yellow => 33,
        Color::Blue => 34,
        Color::Magenta => 35,
        Color::Cyan => 36,
        _ => return None,
    })
}

impl Backend for Terminal {
    type Error = Infallible;

    fn draw<'a, I>(&mut self, content: I) -> Result<(), Infallible>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut style = None;
        let mut next = None;
        for (x, y, cell) in content {
            let symbol = cell.symbol();
            // The width of a character beyond ASCII depends on the terminal, so the position is set
            // again after it.
            if next != Some((x, y)) {
                self.write(format_args!("\x1b[{};{}H", y + 1, x + 1));
            }
            next = symbol.is_ascii().then_some((x + 1, y));
            let wanted = (cell.fg, cell.modifier);
            if style != Some(wanted) {
                self.set_style(cell);
                style = Some(wanted);
            }
            self.put_symbol(symbol);
        }
        if style.is_some() {
            self.output += "\x1b[0m";
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> Result<(), Infallible> {
        self.output += "\x1b[?25l";
        Ok(())
    }

    fn show_cursor(&mut self) -> Result<(), Infallible> {
        self.output += "\x1b[?25h";
        Ok(())
    }

    fn get_cursor_position(&mut self) -> Result<Position, Infallible> {
        Ok(self.cursor)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> Result<(), Infallible> {
        self.cursor = position.into();
        let Position { x, y } = self.cursor;
        self.write(format_args!("\x1b[{};{}H", y + 1, x + 1));
        Ok(())
    }

    fn clear(&mut self) -> Result<(), Infallible> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> Result<(), Infallible> {
        self.output += match region {
            ClearType::All => "\x1b[2J",
            ClearType::AfterCursor => "\x1b[J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[K",
        };
        Ok(())
    }

    fn size(&self) -> Result<Size, Infallible> {
        Ok(self.size)
    }

    fn window_size(&mut self) -> Result<WindowSize, Infallible> {
        Ok(WindowSize {
            columns_rows: self.size,
            pixels: Size::default(),
        })
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(term: &str, variables: &[(&str, &str)]) -> TerminalProfile {
        let mut profile = TerminalProfile::default();
        profile.set_term(term);
        for (name, value) in variables {
            profile.set_variable(name, value);
        }
        profile
    }

    #[test]
    fn sizes_are_limited() {
        for (columns, rows, expected) in [
            (80, 24, (80, 24)),
            (0, 0, (80, 24)),
            (1, 1, (1, 1)),
            (u32::MAX, 1, (250, 1)),
            (1, u32::MAX, (1, 80)),
        ] {
            assert_eq!(to_size(columns, rows), Size::from(expected));
        }
    }

    #[test]
    fn capabilities_follow_the_environment() {
        let capabilities = |colour, unicode| TerminalCapabilities { colour, unicode };
        for (term, variables, screen, expected) in [
            ("xterm-256color", &[][..], true, capabilities(true, true)),
            (
                "xterm",
                &[("NO_COLOR", "1"), ("LANG", "C.UTF-8")],
                true,
                capabilities(false, true),
            ),
            ("xterm", &[("NO_COLOR", "")], true, capabilities(true, true)),
            (
                "xterm",
                &[("LANG", "de_DE.utf8"), ("LC_ALL", "C")],
                true,
                capabilities(true, false),
            ),
            (
                "xterm",
                &[("LC_ALL", ""), ("LANG", "POSIX")],
                true,
                capabilities(true, false),
            ),
            ("vt220", &[], true, capabilities(false, true)),
            ("dumb", &[], false, capabilities(true, true)),
            ("", &[], false, capabilities(true, true)),
        ] {
            let profile = profile(term, variables);
            assert_eq!(
                (profile.has_screen(), profile.capabilities()),
                (screen, expected),
                "{term} {variables:?}"
            );
        }
    }

    #[test]
    fn cells_match_the_capabilities() {
        let mut cells = [Cell::new("a"), Cell::new("界"), Cell::new("─")];
        cells[0].fg = Color::Green;
        let written = |capabilities| {
            let mut terminal = Terminal::new(Size::new(80, 24), capabilities);
            let places = [(0, 0), (1, 0), (3, 0)];
            let content = places.iter().zip(&cells).map(|((x, y), cell)| (*x, *y, cell));
            let Ok(()) = terminal.draw(content);
            terminal.take()
        };
        let (colour, unicode) = (true, true);
        assert_eq!(
            written(TerminalCapabilities { colour, unicode }),
            "\x1b[1;1H\x1b[0;32ma\x1b[0m界\x1b[1;4H─\x1b[0m"
        );
        let (colour, unicode) = (false, false);
        assert_eq!(
            written(TerminalCapabilities { colour, unicode }),
            "\x1b[1;1H\x1b[0ma\x1b[0m? \x1b[1;4H-\x1b[0m"
        );
    }
}
