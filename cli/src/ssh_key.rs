//! `--ssh-key [NAME=]FILE`: the public keys with which users authenticate over SSH. The host checks
//! the type of a key.

use std::path::{Path, PathBuf};

use yoke_api::names::is_label;
use yoke_api::tenant::SshKey;

use crate::Error;

/// Maximum length of a key's name, in characters.
const NAME_MAX: usize = 63;

/// A file with a public key, and the name for the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyFile {
    name: String,
    path: PathBuf,
}

/// Parses `laptop=me.pub`, or `me.pub`, which names the key after the file.
pub(crate) fn parse_key_file(text: &str) -> Result<KeyFile, String> {
    let named = text.split_once('=').filter(|(name, _)| is_label(name));
    let (name, path) = match named {
        Some((name, path)) => (name.to_owned(), path),
        None => (to_name(Path::new(text)), text),
    };
    match is_label(&name) && !path.is_empty() {
        true => Ok(KeyFile {
            name,
            path: path.into(),
        }),
        false => Err("expected NAME=FILE, with a name of lower-case letters, digits and dashes".to_owned()),
    }
}

/// Reads the keys for the Tenant.
pub(crate) fn read_keys(files: &[KeyFile]) -> Result<Vec<SshKey>, Error> {
    let read = |file: &KeyFile| {
        let text = std::fs::read_to_string(&file.path).map_err(|source| Error::File {
            verb: "read",
            path: file.path.clone(),
            source,
        })?;
        Ok(SshKey {
            name: file.name.clone(),
            public_key: find_key(&text).map_err(|problem| Error::NoPublicKey {
                path: file.path.clone(),
                problem,
            })?,
        })
    };
    files.iter().map(read).collect()
}

/// Converts `/home/me/.ssh/id_ed25519.pub` to `id-ed25519`.
fn to_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let dashed = stem.replace(|character: char| !character.is_ascii_alphanumeric(), "-");
    dashed.trim_matches('-').chars().take(NAME_MAX).collect()
}

/// Returns the only key of a `.pub` file. A private key must not be sent to the host.
fn find_key(text: &str) -> Result<String, &'static str> {
    if text.contains("PRIVATE KEY") {
        return Err("it is a private key; give the .pub file beside it");
    }
    let mut lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(line), None) => Ok(line.to_owned()),
        (None, _) => Err("it is empty"),
        (Some(_), Some(_)) => Err("it has several lines; give a file for each key"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_by_word_or_file() {
        for (text, expected) in [
            ("me.pub", Some(("me", "me.pub"))),
            (
                "/home/me/.ssh/id_ed25519.pub",
                Some(("id-ed25519", "/home/me/.ssh/id_ed25519.pub")),
            ),
            ("laptop=a=b.pub", Some(("laptop", "a=b.pub"))),
            ("My_Key.pub", Some(("my-key", "My_Key.pub"))),
            ("A=b.pub", Some(("a-b", "A=b.pub"))),
            ("laptop=", None),
            ("", None),
            ("___.pub", None),
        ] {
            let expected = expected.map(|(name, path)| KeyFile {
                name: name.to_owned(),
                path: path.into(),
            });
            assert_eq!(parse_key_file(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn one_public_key_is_found() {
        for (text, expected) in [
            ("# mine\n\nssh-ed25519 AAAA me@home\n", Ok("ssh-ed25519 AAAA me@home")),
            ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", Err("private key")),
            ("\n", Err("empty")),
            ("ssh-ed25519 AAAA\nssh-ed25519 BBBB\n", Err("several lines")),
        ] {
            match (find_key(text), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(problem), Err(expected)) => assert!(problem.contains(expected), "{problem}"),
                other => panic!("{text:?}: {other:?}"),
            }
        }
    }
}
