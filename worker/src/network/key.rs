//! The worker's WireGuard key, and public keys of other workers.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::str::FromStr;

use data_encoding::BASE64;
use gotatun::x25519::{PublicKey, StaticSecret};

use crate::host::files::{self, FileError};

/// Upper bound in bytes, larger than any key file.
const FILE_MAX: u64 = 1 << 10;
const BYTES: usize = 32;

/// A WireGuard public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key([u8; BYTES]);

/// The text is not a key.
#[derive(Debug, thiserror::Error)]
#[error("not a WireGuard key: expected 32 bytes in base64")]
pub(crate) struct KeyError;

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        match parse(text) {
            // The private key of the all-zero public key is known to everyone.
            Some(bytes) if bytes != [0; BYTES] => Ok(Self(bytes)),
            _ => Err(KeyError),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&BASE64.encode(&self.0))
    }
}

impl From<&StaticSecret> for Key {
    fn from(secret: &StaticSecret) -> Self {
        Self(PublicKey::from(secret).to_bytes())
    }
}

impl From<Key> for PublicKey {
    fn from(key: Key) -> Self {
        key.0.into()
    }
}

fn parse(text: &str) -> Option<[u8; BYTES]> {
    if text.len() != BASE64.encode_len(BYTES) {
        return None;
    }
    BASE64.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// Reads the private key from a file. Generates a new one if the file is missing or incomplete;
/// other workers learn its public key from the Node.
pub(crate) fn load_or_generate(path: &Path) -> Result<StaticSecret, FileError> {
    let mut text = String::new();
    match fs::File::open(path).and_then(|file| file.take(FILE_MAX).read_to_string(&mut text)) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => {
            return Err(FileError::new("read", path, error));
        }
        _ => {}
    }
    if let Some(bytes) = parse(text.trim()) {
        return Ok(bytes.into());
    }
    let bytes: [u8; BYTES] = rand::random();
    files::write(path, format!("{}\n", BASE64.encode(&bytes)), files::SECRET)?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_generated_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let first = Key::from(&load_or_generate(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, files::SECRET);
        assert_eq!(Key::from(&load_or_generate(&path).unwrap()), first);
        assert_eq!(first.to_string().parse::<Key>().unwrap(), first);
        for torn in ["", "x\n", "\u{ff}"] {
            fs::write(&path, torn).unwrap();
            let next = Key::from(&load_or_generate(&path).unwrap());
            assert_ne!(next, first, "{torn:?}");
            assert_eq!(Key::from(&load_or_generate(&path).unwrap()), next, "{torn:?}");
        }
    }

    #[test]
    fn the_public_key_is_that_of_wireguard() {
        // RFC 7748, section 6.1
        let text = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let secret = StaticSecret::from(parse(text).unwrap());
        assert_eq!(
            Key::from(&secret).to_string(),
            "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="
        );
    }

    #[test]
    fn an_invalid_key_is_rejected() {
        let zero = BASE64.encode(&[0; BYTES]);
        let long = BASE64.encode(&[1; BYTES + 1]);
        for text in ["", "x", &zero, &long, "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTm?="] {
            assert!(text.parse::<Key>().is_err(), "{text:?}");
        }
    }
}
