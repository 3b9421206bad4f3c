//! Errors of the configuration.

use std::path::PathBuf;

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("reading {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The file is not YAML of the expected shape.
    #[error("parsing the configuration")]
    Parse(#[source] Box<serde_saphyr::Error>),
    /// A value is wrong.
    #[error("{field}: {problem}")]
    Value {
        /// Path of the field.
        field: String,
        /// Problem and expected value.
        problem: String,
    },
}
