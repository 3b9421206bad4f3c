//! The two streams: data to standard output, everything else to standard error.

use std::io::Write as _;

use serde::Serialize;
use yoke_view::plain::plain_lines;

use crate::Error;
use crate::arguments::ObjectFormat;

/// Writes data, as it is.
pub(crate) fn put(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::Output)
}

/// Writes text for a person, without what a terminal would obey: parts of it are the words of others.
pub(crate) fn put_plain(text: &str) -> Result<(), Error> {
    put(&plain_lines(text))
}

/// Tells the person something, in the same way. Failing to is no reason to stop.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", plain_lines(text));
}

/// An object in the words of kubectl's `-o`.
pub(crate) fn show<T: Serialize>(format: ObjectFormat, name: &str, object: &T) -> Result<String, Error> {
    Ok(match format {
        ObjectFormat::Name => format!("{name}\n"),
        ObjectFormat::Json => to_json(object)?,
        ObjectFormat::Yaml => to_yaml(object)?,
    })
}

/// Indented JSON.
pub(crate) fn to_json<T: Serialize>(object: &T) -> Result<String, Error> {
    Ok(serde_json::to_string_pretty(object)? + "\n")
}

/// Block-style YAML. It goes through JSON, where Kubernetes' types have their well-defined form.
pub(crate) fn to_yaml<T: Serialize>(object: &T) -> Result<String, Error> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let mut text = serde_saphyr::to_string_with_options(&serde_json::to_value(object)?, options)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}
