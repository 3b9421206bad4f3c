//! Keys of a Tenant's account and the tokens made with them. Pure but for [`AccountKeys::generate`] and
//! [`ClusterUser::mint`], which draw keys.

use std::collections::{BTreeMap, BTreeSet};

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
/// Key of the account's public key, in the place of its seed where that was lost.
pub const ACCOUNT_PUBLIC: &str = "account.pub";
/// Prefix of the keys that hold revocations: `revoked.<public key>` is the Unix time of the revocation, with
/// [`RETAINED`] behind it if what the user could reach is still there.
pub const REVOKED_PREFIX: &str = "revoked.";
/// Prefix of the keys that name scoped keys that were lost, and signed users that live.
const FORMER_PREFIX: &str = "former.";
/// Mark of a revocation that is kept for ever.
const RETAINED: &str = "retained";
/// How long other revocations are kept. A Cluster's user reaches nothing but its Cluster's streams, and they are gone; this
/// is for a machine that was lost, comes back, and finds a Cluster with the same identity restored.
const REVOKED_SECONDS: i64 = 30 * 24 * 3600;

/// Name of the scope of Clusters' users.
const CLUSTER_ROLE: &str = "control-plane";
/// Life of the operator's own users. Their connections are used for a part of it.
pub(super) const PROVISIONER_SECONDS: i64 = 3600;

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

/// The three keys of an account. Of the first the public half is enough: the operator signs for accounts.
pub struct AccountKeys {
    account: KeyPair,
    provisioner: KeyPair,
    cluster: KeyPair,
    /// Public keys of scoped keys that were lost.
    former: BTreeSet<String>,
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
            former: BTreeSet::new(),
        }
    }

    /// New keys for an account whose keys were lost, from its token at the server; and its revocations. Users that were
    /// signed before stay good.
    pub fn recover(account: &str, jwt: &str) -> Result<(Self, BTreeMap<String, i64>), ClaimsError> {
        let facts = claims::read_account(jwt)?;
        if facts.subject != account {
            return Err(ClaimsError::Malformed);
        }
        let keys = Self {
            account: KeyPair::from_public_key(account).map_err(ClaimsError::Sign)?,
            former: facts.scoped_keys,
            ..Self::generate()
        };
        Ok((keys, facts.revocations))
    }

    /// Keys from the data of a Secret.
    pub fn from_data(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, KeyError> {
        let key = |name: &'static str| {
            let bytes = data.get(name).ok_or(KeyError::Missing(name))?;
            let text = std::str::from_utf8(bytes).map_err(|error| KeyError::Malformed(name, error.into()))?;
            KeyPair::from_seed(text.trim()).map_err(|error| KeyError::Malformed(name, error.into()))
        };
        let account = match (data.contains_key(ACCOUNT_SEED), data.get(ACCOUNT_PUBLIC)) {
            (false, Some(public)) => std::str::from_utf8(public)
                .map_err(|error| KeyError::Malformed(ACCOUNT_PUBLIC, error.into()))
                .and_then(|text| {
                    let read = KeyPair::from_public_key(text.trim());
                    read.map_err(|error| KeyError::Malformed(ACCOUNT_PUBLIC, error.into()))
                })?,
            _ => key(ACCOUNT_SEED)?,
        };
        let former = data.keys().filter_map(|key| key.strip_prefix(FORMER_PREFIX));
        Ok(Self {
            account,
            former: former.map(str::to_owned).collect(),
            provisioner: key(PROVISIONER_SEED)?,
            cluster: key(CLUSTER_SEED)?,
        })
    }

    /// The keys as the data of a Secret.
    pub fn to_data(&self) -> BTreeMap<String, Vec<u8>> {
        let seed = |key: &KeyPair| {
            key.seed()
                .expect("drawn or made from a seed, so it has one")
                .into_bytes()
        };
        let account = match self.account.seed() {
            Ok(seed) => (ACCOUNT_SEED.to_owned(), seed.into_bytes()),
            Err(_) => (ACCOUNT_PUBLIC.to_owned(), self.public_key().into_bytes()),
        };
        let mut data: BTreeMap<_, _> = [
            account,
            (PROVISIONER_SEED.to_owned(), seed(&self.provisioner)),
            (CLUSTER_SEED.to_owned(), seed(&self.cluster)),
        ]
        .into();
        let former = self
            .former
            .iter()
            .map(|key| (format!("{FORMER_PREFIX}{key}"), Vec::new()));
        data.extend(former);
        data
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
        let scope = |key| {
            let scope = UserScope::new(key, CLUSTER_ROLE, permissions::cluster_scope());
            SigningKey::Scoped(Box::new(scope))
        };
        let mut keys = vec![
            SigningKey::Plain(self.provisioner.public_key()),
            scope(self.cluster.public_key()),
        ];
        keys.extend(self.former.iter().cloned().map(scope));
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

    /// Public key of the key that signs the operator's own users.
    pub fn provisioner_key(&self) -> String {
        self.provisioner.public_key()
    }

    /// Credentials of a user of an hour that may make and delete streams.
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
            let time = std::str::from_utf8(value)
                .ok()?
                .split_whitespace()
                .next()?
                .parse()
                .ok()?;
            Some((user.to_owned(), time))
        })
        .collect()
}

/// Keys in the data of an account's Secret of the revocations that need not be kept any longer: older than 30 days, and of
/// users whose streams were deleted with their Cluster.
pub fn expired_revocations(data: &BTreeMap<String, Vec<u8>>, now: i64) -> Vec<String> {
    let revocations = revocations_of(data);
    let old = revocations.into_iter().filter(|(_, time)| now - time > REVOKED_SECONDS);
    old.map(|(user, _)| format!("{REVOKED_PREFIX}{user}"))
        .filter(|key| !data.get(key).is_some_and(|value| value.ends_with(RETAINED.as_bytes())))
        .collect()
}

/// A revocation as data of an account's Secret.
pub fn to_revocation(user: &str, time: i64) -> (String, Vec<u8>) {
    (format!("{REVOKED_PREFIX}{user}"), time.to_string().into_bytes())
}

/// A revocation that is kept for ever, as data of an account's Secret: what the user could reach is still there.
pub fn to_retained(user: &str, time: i64) -> (String, Vec<u8>) {
    (
        format!("{REVOKED_PREFIX}{user}"),
        format!("{time} {RETAINED}").into_bytes(),
    )
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
            ("revoked.UGHI".to_owned(), b"1700000000 retained".to_vec()),
            (ACCOUNT_SEED.to_owned(), b"x".to_vec()),
        ]);
        assert_eq!(
            revocations_of(&data),
            BTreeMap::from([("UABC".to_owned(), 1_700_000_000), ("UGHI".to_owned(), 1_700_000_000)])
        );
        let day = 24 * 3600;
        assert!(expired_revocations(&data, 1_700_000_000 + 30 * day).is_empty());
        assert_eq!(expired_revocations(&data, 1_700_000_001 + 30 * day), ["revoked.UABC"]);
    }

    #[test]
    fn lost_keys_are_followed_by_others_for_the_same_account() {
        let (operator, lost) = (KeyPair::new_operator(), AccountKeys::generate());
        let limits = super::super::limits::account_limits(1, 1 << 20, 1);
        let revoked = BTreeMap::from([("UABC".to_owned(), 7)]);
        let jwt = lost.account_jwt("a", limits, revoked.clone(), 1, &operator).unwrap();
        let (keys, revocations) = AccountKeys::recover(&lost.public_key(), &jwt).unwrap();
        assert_eq!((keys.public_key(), revocations), (lost.public_key(), revoked));
        assert_eq!(keys.former, BTreeSet::from([lost.cluster.public_key()]));
        let again = AccountKeys::from_data(&keys.to_data()).unwrap();
        assert_eq!(again.to_data(), keys.to_data());
        assert!(!keys.to_data().contains_key(ACCOUNT_SEED));
        assert!(AccountKeys::recover(&AccountKeys::generate().public_key(), &jwt).is_err());
    }
}
