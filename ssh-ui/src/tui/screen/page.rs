//! Answers for the user's own shell. They are printed below its earlier output, so that they can be
//! copied. Pure.

use serde::Deserialize;

const BACK: &str = "\nPress a key to go back, Ctrl-C to leave.\n";

/// A page that is shown while the interface is hidden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) text: String,
    /// The JoinToken whose join command is shown.
    pub(super) token: Option<Token>,
}

/// The JoinToken of a join command that the user has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) name: String,
    /// Text for the status line if the user does not revoke it.
    pub(super) kept: String,
}

/// The answer of `join --json`.
#[derive(Deserialize)]
struct JoinAnswer {
    name: String,
    line: String,
    expires: Option<String>,
}

/// Builds a page with the unchanged answer.
pub(super) fn build_plain(answer: &str) -> Page {
    Page {
        text: format!("{answer}{BACK}"),
        token: None,
    }
}

/// Builds the page of a join command. The command is one line; only the terminal wraps it, and
/// copies it as one line.
pub(super) fn build_join(answer: &str) -> Page {
    let Ok(JoinAnswer { name, line, expires }) = serde_json::from_str(answer) else {
        return build_plain(answer);
    };
    let until = expires.map(|time| format!(" until {time}")).unwrap_or_default();
    Page {
        text: format!(
            "{line}\n\nThis is one line. Run it as root on the machine that will join.\nIt is valid{until}.\n\
             x revokes it. Another key keeps it and goes back, Ctrl-C keeps it and leaves.\n"
        ),
        token: Some(Token {
            kept: format!("It is valid{until}; to revoke it: revoke {name}"),
            name,
        }),
    }
}
