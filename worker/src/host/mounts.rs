//! Parses `/proc/self/mountinfo`. Pure.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// Parses bytes, because the path of an unrelated mount need not be UTF-8.
pub(crate) fn parse_mounts(mountinfo: &[u8], root: &Path) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let points = lines
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(unescape);
    points
        .filter(|point| point.starts_with(root) && point != root)
        .collect()
}

/// Decodes a path of mountinfo: the kernel writes space, tab, newline and backslash as `\` and
/// three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        let (byte, after) = match more {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), after)
            }
            _ => (*first, more),
        };
        plain.push(byte);
        rest = after;
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_in_the_folder_are_found() {
        const MOUNTS: &[u8] = b"\
1 0 0:1 / / rw - ext4 /dev/vda rw
2 1 0:2 / /w rw - ext4 /dev/vdb rw
3 2 0:3 / /w/kubelet/pods/a\\040b rw - tmpfs tmpfs rw
4 1 0:4 / /w-other/\xff rw - tmpfs tmpfs rw
5 2 0:5 / /w/\\134040 rw - overlay overlay rw
";
        let expected = ["/w/kubelet/pods/a b", "/w/\\040"].map(PathBuf::from);
        assert_eq!(parse_mounts(MOUNTS, Path::new("/w")), expected);
    }
}
