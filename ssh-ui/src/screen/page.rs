//! Answers that are for the person's own shell: printed where the interface was called, as they are to be copied. Pure.

use serde::Deserialize;

const BACK: &str = "\nPress a key to go back, Ctrl-C to leave.\n";

/// What is below the screen while the interface is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) text: String,
    /// The JoinToken whose line it shows.
    pub(super) token: Option<Token>,
}

/// A JoinToken that somebody was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) name: String,
    /// How it stays if it is not taken back.
    pub(super) kept: String,
}

/// The answer to `join --json`.
#[derive(Deserialize)]
struct Invitation {
    name: String,
    line: String,
    expires: Option<String>,
}

/// An answer as it is.
pub(super) fn build_plain(answer: &str) -> Page {
    Page {
        text: format!("{answer}{BACK}"),
        token: None,
    }
}

/// The line by which a worker joins. Nothing breaks it but the terminal, which knows it for one.
pub(super) fn build_join(answer: &str) -> Page {
    let Ok(Invitation { name, line, expires }) = serde_json::from_str(answer) else {
        return build_plain(answer);
    };
    let until = expires.map(|time| format!(" until {time}")).unwrap_or_default();
    Page {
        text: format!(
            "{line}\n\nThat is one line, for the machine that is to join, as root.\nIt holds{until}.\n\
             x takes it back. Another key keeps it and goes back, Ctrl-C keeps it and leaves.\n"
        ),
        token: Some(Token {
            kept: format!("It holds{until}; to take it back: revoke {name}"),
            name,
        }),
    }
}
