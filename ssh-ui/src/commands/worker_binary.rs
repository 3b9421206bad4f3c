//! Sends `yoke-worker` to machines that will be workers, from the files
//! `yoke-worker-<architecture>` of one directory. An adapter.
//!
//! The program is not secret. The machine that runs it verifies it by the digest in the join
//! command.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use bytes::BytesMut;
use tokio::fs::{self, File};
use tokio::io::AsyncReadExt as _;
use tokio::sync::oneshot;

use crate::Error;
use crate::commands::session::ClientSession;
use crate::limits::slots::DownloadSlot;
use crate::ssh::channel_output::ChannelOutput;

const PREFIX: &str = "yoke-worker-";
/// Size of a piece: how much of a file is in memory at a time.
const PIECE: usize = 64 << 10;
/// Limit for the directory listing; it exceeds the number of architectures.
const FILES_MAX: usize = 64;
/// Debian's names for the architectures that `uname -m` prints.
const ALIASES: &[(&str, &str)] = &[("x86_64", "amd64"), ("aarch64", "arm64")];

/// Sends the program for an architecture, until it is complete or the channel is `closed`.
pub async fn send(
    client: &ClientSession,
    architecture: &str,
    output: &ChannelOutput,
    closed: oneshot::Receiver<()>,
) -> Result<(), Error> {
    if output.is_terminal() {
        return Err(Error::BinaryNotPrintable);
    }
    let folder = client.shared().worker_binaries.as_deref().ok_or(Error::NoBinaries)?;
    let name = choose(architecture, &list(folder).await?)?;
    let slot = DownloadSlot::take(client.shared(), &client.identity().tenant);
    let _held = slot.ok_or(Error::TooManyDownloads)?;
    let file = File::open(folder.join(name)).await.map_err(Error::Binary)?;
    tokio::select! {
        biased;
        // A receive error also means that the channel is closed.
        _ = closed => Err(Error::DownloadAbandoned),
        sent = pour(file, output) => sent,
    }
}

async fn pour(mut file: File, output: &ChannelOutput) -> Result<(), Error> {
    loop {
        let mut piece = BytesMut::with_capacity(PIECE);
        if file.read_buf(&mut piece).await.map_err(Error::Binary)? == 0 {
            return Ok(());
        }
        if !output.send(piece).await {
            return Err(Error::DownloadAbandoned);
        }
    }
}

/// Returns the architectures for which there is a program.
async fn list(folder: &Path) -> Result<BTreeSet<String>, Error> {
    let mut entries = match fs::read_dir(folder).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Error::NoBinaries),
        entries => entries.map_err(Error::Binary)?,
    };
    let mut found = BTreeSet::new();
    for _ in 0..FILES_MAX {
        let Some(entry) = entries.next_entry().await.map_err(Error::Binary)? else {
            break;
        };
        let name = entry.file_name();
        found.extend(
            name.to_str()
                .and_then(|name| name.strip_prefix(PREFIX))
                .map(str::to_owned),
        );
    }
    Ok(found)
}

/// Returns the file name for the requested architecture. Only names from the directory listing are
/// returned.
fn choose(asked: &str, there: &BTreeSet<String>) -> Result<String, Error> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == asked);
    let architecture = alias.map_or(asked, |(_, architecture)| architecture);
    match there.get(architecture) {
        Some(architecture) => Ok(format!("{PREFIX}{architecture}")),
        None if there.is_empty() => Err(Error::NoBinaries),
        None => Err(Error::NoArchitecture {
            asked: asked.to_owned(),
            there: there.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_opened() {
        let there = BTreeSet::from(["amd64", "arm64"].map(str::to_owned));
        for (asked, expected) in [
            ("amd64", Some("yoke-worker-amd64")),
            ("x86_64", Some("yoke-worker-amd64")),
            ("aarch64", Some("yoke-worker-arm64")),
            ("riscv64", None),
            ("", None),
            ("../../etc/passwd", None),
        ] {
            let chosen = choose(asked, &there);
            assert_eq!(chosen.as_ref().ok().map(String::as_str), expected, "{asked:?}");
            if expected.is_none() {
                assert!(
                    matches!(&chosen, Err(Error::NoArchitecture { there, .. }) if there == "amd64, arm64"),
                    "{chosen:?}"
                );
            }
        }
        assert!(matches!(choose("amd64", &BTreeSet::new()), Err(Error::NoBinaries)));
    }
}
