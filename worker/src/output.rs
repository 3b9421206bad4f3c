//! The two streams: data to standard output, everything else to standard error.

use std::io::Write as _;

/// Writes data, as it is.
pub(crate) fn put(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Tells the person something. Failing to is no reason to stop.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
