//! Reports progress to the user.

/// Prints the next step for the user.
pub(crate) fn say(what: &str) {
    eprintln!("-- {what}");
}
