//! Disk space of folders.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Unit of [`std::os::unix::fs::MetadataExt::blocks`], in bytes.
const BLOCK: u64 = 512;

/// Disk space of the files in a folder, in bytes. A file that is deleted meanwhile counts as empty.
pub fn used_by(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += metadata.blocks() * BLOCK;
        if metadata.is_dir() {
            bytes += used_by(&entry.path()).unwrap_or(0);
        }
    }
    Ok(bytes)
}
