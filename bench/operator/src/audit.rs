//! Counts the operator's requests from the host API's audit log.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Verbs that do not change anything.
const READS: [&str; 3] = ["get", "list", "watch"];

/// Number of requests by verb and resource.
pub(crate) type Requests = BTreeMap<String, u64>;

/// The part of the audit log that is written after a moment.
pub(crate) struct Audit {
    path: PathBuf,
    begin: u64,
}

impl Audit {
    /// Starts at the current end of the log.
    pub(crate) fn begin(path: &Path) -> Result<Self> {
        // The file does not exist before the first request.
        let begin = std::fs::metadata(path).map_or(0, |meta| meta.len());
        Ok(Self {
            path: path.to_owned(),
            begin,
        })
    }

    /// Counts the requests since then: reads, and writes.
    pub(crate) fn count(&self) -> Result<(Requests, Requests)> {
        let mut file = std::fs::File::open(&self.path).context("opening the host's audit log")?;
        file.seek(SeekFrom::Start(self.begin))?;
        count(BufReader::new(file).lines().map_while(Result::ok))
    }
}

fn count(lines: impl Iterator<Item = String>) -> Result<(Requests, Requests)> {
    let (mut reads, mut writes) = (Requests::new(), Requests::new());
    // The last line may be incomplete because the API server is still writing it.
    for event in lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()) {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (verb, resource, part) = (
            text("/verb"),
            text("/objectRef/resource"),
            text("/objectRef/subresource"),
        );
        let slash = if part.is_empty() { "" } else { "/" };
        let counts = if READS.contains(&verb) { &mut reads } else { &mut writes };
        *counts.entry(format!("{verb} {resource}{slash}{part}")).or_default() += 1;
    }
    Ok((reads, writes))
}

/// The total number of requests, and the number of each kind.
pub(crate) fn describe(requests: &Requests) -> String {
    let all: u64 = requests.values().sum();
    let kinds: Vec<_> = requests.iter().map(|(what, count)| format!("{count} {what}")).collect();
    match all {
        0 => "none".to_owned(),
        _ => format!("{all}: {}", kinds.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_told_from_writes() {
        let line = |verb: &str, part: &str| {
            format!(r#"{{"verb":"{verb}","objectRef":{{"resource":"clusters","subresource":"{part}"}}}}"#)
        };
        let log = [
            line("patch", "status"),
            line("get", ""),
            line("patch", "status"),
            "{\"verb\":\"pa".into(),
        ];
        let (reads, writes) = count(log.into_iter()).unwrap();
        assert_eq!(describe(&reads), "1: 1 get clusters");
        assert_eq!(describe(&writes), "2: 2 patch clusters/status");
        assert_eq!(describe(&Requests::new()), "none");
    }
}
