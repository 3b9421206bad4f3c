//! Keys of a Tenant's account and the tokens made with them. Pure but for [`AccountKeys::generate`] and
//! [`ClusterUser::mint`], which draw keys.

use std::collections::BTreeMap;

use nkeys::KeyPair;
use yoke_api::ClusterId;

use super::claims::{
    self, AccountClaims, AccountLimits, ClaimsError, Envelope, SigningKey, UserClaims, UserLimits, UserScope,
};
use super::permissions;

/// Key of the account's seed in its Secret.
pub const ACCOUNT_SEED: &str = "account.seed";
/// Key of the seed of the key that signs the operator's own users.
pub const PROVISIONER_SEED: &str = "provisioner.seed";
/// Key of the seed of the scoped key that signs Clusters' users.
pub const CLUSTER_SEED: &str = "cluster.seed";
/// Prefix of the keys that hold revocations: `revoked.<public key>` is the Unix time of the revocation.
pub const REVOKED_PREFIX: &str = "revoked.";

/// Name of the scope of Clusters' users.
const CLUSTER_ROLE: &str = "control-plane";
/// Life of the operator's own users: long enough for one reconciliation.
const PROVISIONER_SECONDS: i64 = 300;

/// The keys in a Secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A key is not there.
    #[error("the Secret of the NATS account has no {0}")]
    Missing(&'static str),
    /// A key is not a seed of the expected kind.
    #[error("{0} in the Secret of the NATS account is not a seed")]
    Malformed(&'static str, #[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The three keys of an account.
pub struct AccountKeys {
    account: KeyPair,
    provisioner: KeyPair,
    cluster: KeyPair,
}

impl std::fmt::Debug for AccountKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccountKeys")
            .field("account", &self.public_key())
            .finish_non_exhaustive()
    }
}

impl AccountKeys {
    /// Draws new keys.
    pub fn generate() -> Self {
        Self {
            account: KeyPair::new_account(),
            provisioner: KeyPair::new_account(),
            cluster: KeyPair::new_account(),
        }
    }

    /// Keys from the data of a Secret.
    pub fn from_data(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, KeyError> {
        let key = |name: &'static str| {
            let bytes = data.get(name).ok_or(KeyError::Missing(name))?;
            let text = std::str::from_utf8(bytes).map_err(|error| KeyError::Malformed(name, error.into()))?;
            KeyPair::from_seed(text.trim()).map_err(|error| KeyError::Malformed(name, error.into()))
        };
        Ok(Self {
            account: key(ACCOUNT_SEED)?,
            provisioner: key(PROVISIONER_SEED)?,
            cluster: key(CLUSTER_SEED)?,
        })
    }

    /// The keys as the data of a Secret.
    pub fn to_data(&self) -> BTreeMap<String, Vec<u8>> {
        [
            (ACCOUNT_SEED, &self.account),
            (PROVISIONER_SEED, &self.provisioner),
            (CLUSTER_SEED, &self.cluster),
        ]
        .into_iter()
        .map(|(name, key)| {
            let seed = key.seed().expect("made from a seed, so it has one");
            (name.to_owned(), seed.into_bytes())
        })
        .collect()
    }

    /// Public key of the account, `A…`.
    pub fn public_key(&self) -> String {
        self.account.public_key()
    }

    /// The account's token, signed by the operator's signing key.
    pub fn account_jwt(
        &self,
        tenant: &str,
        limits: AccountLimits,
        revocations: BTreeMap<String, i64>,
        now: i64,
        operator: &KeyPair,
    ) -> Result<String, ClaimsError> {
        let scope = UserScope::new(self.cluster.public_key(), CLUSTER_ROLE, permissions::cluster_scope());
        let keys = vec![
            SigningKey::Plain(self.provisioner.public_key()),
            SigningKey::Scoped(Box::new(scope)),
        ];
        let claims = AccountClaims::new(limits, keys, revocations);
        let subject = self.public_key();
        let envelope = Envelope {
            subject: &subject,
            name: tenant,
            issued: now,
            expires: None,
        };
        claims::sign(&claims, &envelope, operator)
    }

    /// Credentials of a user of minutes that may make and delete streams.
    pub fn provisioner_credentials(&self, now: i64) -> Result<String, ClaimsError> {
        let user = KeyPair::new_user();
        let claims = UserClaims::new(self.public_key(), permissions::provisioner());
        let subject = user.public_key();
        let envelope = Envelope {
            subject: &subject,
            name: "yoke-operator",
            issued: now,
            expires: Some(now + PROVISIONER_SECONDS),
        };
        let jwt = claims::sign(&claims, &envelope, &self.provisioner)?;
        let seed = user.seed().map_err(ClaimsError::Sign)?;
        Ok(claims::to_credentials(&jwt, &seed))
    }
}

/// Revocations in the data of an account's Secret.
pub fn revocations_of(data: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, i64> {
    data.iter()
        .filter_map(|(name, value)| {
            let user = name.strip_prefix(REVOKED_PREFIX)?;
            let time = std::str::from_utf8(value).ok()?.trim().parse().ok()?;
            Some((user.to_owned(), time))
        })
        .collect()
}

/// The user of one Cluster's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterUser {
    /// Public key, `U…`.
    pub public_key: String,
    /// Credentials file.
    pub credentials: String,
}

impl ClusterUser {
    /// The user that a credentials file is of.
    pub fn from_credentials(credentials: &str) -> Option<Self> {
        let seed = claims::seed_of(credentials)?;
        let public_key = KeyPair::from_seed(seed).ok()?.public_key();
        Some(Self {
            credentials: credentials.to_owned(),
            public_key,
        })
    }

    /// Draws a key and signs a token without end for it: the operator's absence must not stop a store. It ends by
    /// revocation.
    pub fn mint(id: &ClusterId, keys: &AccountKeys, now: i64) -> Result<Self, ClaimsError> {
        let user = KeyPair::new_user();
        let public_key = user.public_key();
        let claims = UserClaims::new(keys.public_key(), UserLimits::default());
        let envelope = Envelope {
            subject: &public_key,
            name: id.as_str(),
            issued: now,
            expires: None,
        };
        let jwt = claims::sign(&claims, &envelope, &keys.cluster)?;
        let seed = user.seed().map_err(ClaimsError::Sign)?;
        Ok(Self {
            credentials: claims::to_credentials(&jwt, &seed),
            public_key,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_the_secret() {
        let keys = AccountKeys::generate();
        let again = AccountKeys::from_data(&keys.to_data()).unwrap();
        assert_eq!(keys.to_data(), again.to_data());
        assert!(matches!(
            AccountKeys::from_data(&BTreeMap::new()),
            Err(KeyError::Missing(ACCOUNT_SEED))
        ));
        let mut broken = keys.to_data();
        broken.insert(CLUSTER_SEED.into(), b"SA".to_vec());
        assert!(matches!(
            AccountKeys::from_data(&broken),
            Err(KeyError::Malformed(CLUSTER_SEED, _))
        ));
    }

    #[test]
    fn revocations_are_read_by_key() {
        let data = BTreeMap::from([
            ("revoked.UABC".to_owned(), b"1700000000".to_vec()),
            ("revoked.UDEF".to_owned(), b"soon".to_vec()),
            (ACCOUNT_SEED.to_owned(), b"x".to_vec()),
        ]);
        assert_eq!(
            revocations_of(&data),
            BTreeMap::from([("UABC".to_owned(), 1_700_000_000)])
        );
    }
}
