//! Text styles of all pages and boxes.

use ratatui::style::{Modifier, Style};

pub(super) const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
