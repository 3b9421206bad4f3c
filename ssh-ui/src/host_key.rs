//! The server's own key: kept in a Secret, so that clients meet the same one after a restart and at every replica.
//!
//! The Secret is the installation's to make; this process may fill it and no more. A key that the host's owner put there stays.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};

/// The Secret's key under which the private key is, in OpenSSH's form.
pub const PRIVATE: &str = "ssh_host_ed25519_key";
/// The Secret's key under which the public key is, for `known_hosts`.
pub const PUBLIC: &str = "ssh_host_ed25519_key.pub";
const ATTEMPTS: usize = 5;

/// There is no host key.
#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    /// The Secret cannot be read or filled.
    #[error("{doing} Secret {name} with the SSH host key")]
    Secret {
        /// What was being done.
        doing: &'static str,
        /// The Secret.
        name: String,
        /// Why not.
        #[source]
        source: kube::Error,
    },
    /// What the Secret holds is no key.
    #[error("reading {PRIVATE} of Secret {name}")]
    Key {
        /// The Secret.
        name: String,
        /// Why not.
        #[source]
        source: russh::keys::ssh_key::Error,
    },
    /// It cannot be read without its passphrase, which is not here.
    #[error("{PRIVATE} of Secret {0} has a passphrase: take it away with ssh-keygen -p")]
    Encrypted(String),
    /// It is of a kind that is not served with.
    #[error("{PRIVATE} of Secret {name} is of kind {kind}: make an ed25519 or ECDSA key with ssh-keygen -t ed25519")]
    Kind {
        /// The Secret.
        name: String,
        /// The kind.
        kind: String,
    },
    /// Others write to it all the time.
    #[error("filling Secret {0}: it changes all the time")]
    Contended(String),
}

/// The key in the Secret of this name; drawn now if there is none yet.
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
        // With the resource version that was read: of several that begin at once, one draws the key of all.
        match api.replace(name, &PostParams::default(), &secret).await {
            Ok(_) => {
                tracing::info!(secret = name, "SSH host key drawn");
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
