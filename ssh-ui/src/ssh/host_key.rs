//! The server's host key. It is stored in a Secret, so that clients see the same key after a
//! restart and from every replica.
//!
//! The installation creates the Secret; this process may only fill it. A key that the host's owner
//! has put there is not replaced.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};

/// Key in the Secret of the private key, in OpenSSH's format.
pub const PRIVATE: &str = "ssh_host_ed25519_key";
/// Key in the Secret of the public key, for `known_hosts`.
pub const PUBLIC: &str = "ssh_host_ed25519_key.pub";
const ATTEMPTS: usize = 5;

/// Reason why there is no host key.
#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    /// The Secret cannot be read or filled.
    #[error("{doing} Secret {name} with the SSH host key")]
    Secret {
        /// Verb of the failed action.
        doing: &'static str,
        /// Name of the Secret.
        name: String,
        /// Cause.
        #[source]
        source: kube::Error,
    },
    /// The Secret does not contain a private key.
    #[error("reading {PRIVATE} of Secret {name}")]
    Key {
        /// Name of the Secret.
        name: String,
        /// Cause.
        #[source]
        source: russh::keys::ssh_key::Error,
    },
    /// The private key is encrypted, and the process has no passphrase.
    #[error("{PRIVATE} of Secret {0} has a passphrase: remove it with ssh-keygen -p")]
    Encrypted(String),
    /// The server does not support this type of key.
    #[error("{PRIVATE} of Secret {name} is of kind {kind}: make an ed25519 or ECDSA key with ssh-keygen -t ed25519")]
    Kind {
        /// Name of the Secret.
        name: String,
        /// Type of the key.
        kind: String,
    },
    /// Other clients change the Secret concurrently at each attempt.
    #[error("filling Secret {0}: other clients keep changing it")]
    Contended(String),
}

/// Returns the key of this Secret; generates it if the Secret is empty.
pub async fn load(client: Client, namespace: &str, name: &str) -> Result<PrivateKey, HostKeyError> {
    let api = Api::<Secret>::namespaced(client, namespace);
    let failed = |doing| {
        move |source| HostKeyError::Secret {
            doing,
            name: name.to_owned(),
            source,
        }
    };
    let unusable = |source| HostKeyError::Key {
        name: name.to_owned(),
        source,
    };
    for _ in 0..ATTEMPTS {
        let mut secret = api.get(name).await.map_err(failed("reading"))?;
        if let Some(found) = secret.data.as_ref().and_then(|data| data.get(PRIVATE)) {
            return to_key(&found.0, name);
        }
        let key = PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).map_err(unusable)?;
        let private = key.to_openssh(LineEnding::LF).map_err(unusable)?;
        let public = key.public_key().to_openssh().map_err(unusable)? + "\n";
        let data = secret.data.get_or_insert_default();
        data.insert(PRIVATE.to_owned(), ByteString(private.as_bytes().to_vec()));
        data.insert(PUBLIC.to_owned(), ByteString(public.into_bytes()));
        // The resource version makes the write conditional: of several processes that start at
        // once, one generates the key for all.
        match api.replace(name, &PostParams::default(), &secret).await {
            Ok(_) => {
                tracing::info!(secret = name, "SSH host key generated");
                return Ok(key);
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failed("filling")(error)),
        }
    }
    Err(HostKeyError::Contended(name.to_owned()))
}

fn to_key(text: &[u8], name: &str) -> Result<PrivateKey, HostKeyError> {
    let key = PrivateKey::from_openssh(text).map_err(|source| HostKeyError::Key {
        name: name.to_owned(),
        source,
    })?;
    if key.is_encrypted() {
        return Err(HostKeyError::Encrypted(name.to_owned()));
    }
    match key.algorithm() {
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } => Ok(key),
        kind => Err(HostKeyError::Kind {
            name: name.to_owned(),
            kind: kind.to_string(),
        }),
    }
}
