//! The two output streams: data on standard output, everything else on standard error.

use std::io::Write as _;

/// Writes data to standard output, unchanged.
pub(crate) fn print_data(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Prints a progress line to standard error. A failed write is ignored: it is no reason to stop.
pub(crate) fn progress(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
