//! Texts from the host, made safe and short. Pure.

use yoke_view::plain::plain;

/// Maximum length of a stored text from the host, in characters.
pub(super) const TEXT_MAX: usize = 300;

/// Limits the length of a text from the host, and replaces its control characters.
pub(super) fn clip(text: &str) -> String {
    plain(&text.chars().take(TEXT_MAX).collect::<String>())
}
