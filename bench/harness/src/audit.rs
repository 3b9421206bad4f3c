//! Counts requests in the audit log of a kube-apiserver.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Verbs that do not change anything.
const READS: [&str; 3] = ["get", "list", "watch"];

/// Number of requests by verb and resource.
pub type Requests = BTreeMap<String, u64>;

/// The part of the audit log that is written after a moment.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    /// Inode of the file at that moment. `None` if there was no file.
    inode: Option<u64>,
    /// Length of the file at that moment.
    begin: u64,
}

/// Requests that the audit log contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that change nothing.
    pub reads: Requests,
    /// All other requests.
    pub writes: Requests,
}

impl Audit {
    /// Starts at the current end of the log. The log may not exist before the first request.
    pub fn begin(path: &Path) -> Self {
        let found = std::fs::metadata(path).ok();
        Self {
            path: path.to_owned(),
            inode: found.as_ref().map(std::fs::Metadata::ino),
            begin: found.map_or(0, |meta| meta.len()),
        }
    }

    /// Counts the requests since then. Returns `None` if the API server has started another file
    /// meanwhile.
    pub fn count(&self) -> Result<Option<Counts>> {
        let mut file = std::fs::File::open(&self.path).context("opening the host's audit log")?;
        let found = file.metadata().context("looking at the host's audit log")?;
        if self.inode.is_some_and(|inode| inode != found.ino()) || found.len() < self.begin {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(self.begin))?;
        Ok(Some(count(BufReader::new(file).lines().map_while(Result::ok))))
    }
}

fn count(lines: impl Iterator<Item = String>) -> Counts {
    let mut counts = Counts::default();
    // The last line may be incomplete because the API server is still writing it.
    for event in lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()) {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (verb, resource, part) = (
            text("/verb"),
            text("/objectRef/resource"),
            text("/objectRef/subresource"),
        );
        let slash = if part.is_empty() { "" } else { "/" };
        let requests = if READS.contains(&verb) {
            &mut counts.reads
        } else {
            &mut counts.writes
        };
        *requests.entry(format!("{verb} {resource}{slash}{part}")).or_default() += 1;
    }
    counts
}

/// The total number of requests, and the number of each kind.
pub fn describe(requests: &Requests) -> String {
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
            line("create", ""),
            "{\"verb\":\"pa".into(),
        ];
        let counts = count(log.into_iter());
        assert_eq!(describe(&counts.reads), "1: 1 get clusters");
        assert_eq!(
            describe(&counts.writes),
            "3: 1 create clusters, 2 patch clusters/status"
        );
        assert_eq!(describe(&Requests::new()), "none");
    }

    #[test]
    fn a_new_log_is_not_taken_for_one_without_requests() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let line = "{\"verb\":\"get\",\"objectRef\":{\"resource\":\"pods\"}}\n";
        let before_the_first = Audit::begin(&path);
        std::fs::write(&path, line).unwrap();
        assert_eq!(before_the_first.count().unwrap().unwrap().reads.len(), 1);
        let audit = Audit::begin(&path);
        assert_eq!(audit.count().unwrap(), Some(Counts::default()));
        std::fs::rename(&path, folder.path().join("audit-1.log")).unwrap();
        std::fs::write(&path, line.repeat(2)).unwrap();
        assert_eq!(audit.count().unwrap(), None);
    }
}
