//! The two streams: data goes to standard output, everything else to standard error.

use std::io::Write as _;

use serde::Serialize;
use yoke_view::plain::plain_lines;

use crate::Error;
use crate::arguments::ObjectFormat;

/// Writes data unchanged.
pub(crate) fn put(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::Output)
}

/// Writes text for a person. Control characters are removed, because parts of the text come from
/// other users.
pub(crate) fn put_plain(text: &str) -> Result<(), Error> {
    put(&plain_lines(text))
}

/// Writes a message to standard error, also without control characters. A failure of standard error
/// is ignored.
pub(crate) fn print_message(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", plain_lines(text));
}

/// Formats an object for kubectl's `-o`.
pub(crate) fn show<T: Serialize>(format: ObjectFormat, name: &str, object: &T) -> Result<String, Error> {
    Ok(match format {
        ObjectFormat::Name => format!("{name}\n"),
        ObjectFormat::Json => to_json(object)?,
        ObjectFormat::Yaml => to_yaml(object)?,
    })
}

/// Returns indented JSON.
pub(crate) fn to_json<T: Serialize>(object: &T) -> Result<String, Error> {
    Ok(serde_json::to_string_pretty(object)? + "\n")
}

/// Returns block-style YAML. The object is converted to JSON first, the format that Kubernetes'
/// types define exactly.
pub(crate) fn to_yaml<T: Serialize>(object: &T) -> Result<String, Error> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let mut text = serde_saphyr::to_string_with_options(&serde_json::to_value(object)?, options)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}
