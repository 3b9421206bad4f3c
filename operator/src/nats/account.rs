//! The account of one Cluster's store, its user, and their tokens. Pure, apart from functions that
//! generate keys: [`Account::draw`], [`Account::renew_user`] and [`provisioner_credentials`].
//!
//! No private key of an account is persisted. The operator signs for accounts, and a signed user
//! does not need its signer any more. The key for the operator's own users is derived from the
//! operator's signing key. Thus no account key can be lost.

use std::collections::BTreeMap;

use nkeys::{KeyPair, KeyPairType};
use sha2::{Digest as _, Sha512_256};
use yoke_api::ClusterId;
use yoke_nats_auth::credentials::{jwt_of, to_credentials};
use yoke_nats_auth::token::read_user;
use yoke_nats_auth::{AccountClaims, ClaimsError, Envelope, SigningKey, UserClaims, UserLimits, UserScope, sign};

use crate::nats::{limits, permissions};

/// Secret key: the account's public key.
pub const ACCOUNT: &str = "account.pub";
/// Secret key: the credentials of the store's user.
pub const CREDENTIALS: &str = "user.creds";
/// Secret key: the last storage quota of the account in bytes.
pub const QUOTA: &str = "quota";
/// Secret key: the last number of replicas.
pub const REPLICAS: &str = "replicas";

/// Name of the scope of the store's user.
const ROLE: &str = "control-plane";
/// Lifetime of the operator's own users in seconds. Their connections are used for seconds.
const PROVISIONER_SECONDS: i64 = 600;

/// The Secret of a store does not describe an account.
#[derive(Debug, thiserror::Error)]
#[error("the Secret of the store has no usable key {0}")]
pub struct AccountError(pub &'static str);

/// Storage requirements of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Size {
    /// The store's quota in bytes.
    pub quota: i64,
    /// Replicas, by class.
    pub replicas: usize,
}

/// The account of one Cluster's store: all inputs of its claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Public key, `A…`.
    pub public_key: String,
    /// The store's user. Without one, only the operator can connect.
    pub user: Option<ClusterUser>,
    /// Storage requirements.
    pub size: Size,
}

/// The user of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterUser {
    /// Credentials file. From the watch cache, only its [`yoke_nats_auth::credentials::outline`].
    pub credentials: String,
    /// Public key of its account.
    account: String,
    /// Public key of the scoped key that signed it. The account accepts the user for as long as its
    /// claims contain this key.
    signer: String,
}

impl Account {
    /// Generates an account and its user.
    pub fn draw(id: &ClusterId, size: Size, now: i64) -> Result<Self, ClaimsError> {
        let mut account = Self {
            public_key: KeyPair::new_account().public_key(),
            user: None,
            size,
        };
        account.renew_user(id, now)?;
        Ok(account)
    }

    /// Generates a new user. The account no longer accepts the previous one.
    pub fn renew_user(&mut self, id: &ClusterId, now: i64) -> Result<(), ClaimsError> {
        self.user = Some(ClusterUser::mint(id, &self.public_key, now)?);
        Ok(())
    }

    /// Returns the account of a user.
    pub fn of_user(user: ClusterUser, size: Size) -> Self {
        Self {
            public_key: user.account.clone(),
            user: Some(user),
            size,
        }
    }

    /// Returns the same account without a user, so that only the operator can connect.
    pub fn closed(self) -> Self {
        Self { user: None, ..self }
    }

    /// Returns all inputs of the claims. They do not depend on the seed of the user.
    pub fn terms(&self) -> (&str, Option<&str>, Size) {
        let signer = self.user.as_ref().map(|user| user.signer.as_str());
        (&self.public_key, signer, self.size)
    }

    /// Reads the account from the data of a Secret.
    pub fn from_data(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, AccountError> {
        let text = |key: &str| std::str::from_utf8(data.get(key)?).ok();
        let public_key = text(ACCOUNT).filter(|key| KeyPair::from_public_key(key).is_ok());
        let user = match text(CREDENTIALS) {
            Some(credentials) => Some(ClusterUser::from_credentials(credentials).ok_or(AccountError(CREDENTIALS))?),
            None => None,
        };
        Ok(Self {
            public_key: public_key.ok_or(AccountError(ACCOUNT))?.to_owned(),
            user,
            size: Size {
                quota: text(QUOTA)
                    .and_then(|text| text.parse().ok())
                    .ok_or(AccountError(QUOTA))?,
                replicas: text(REPLICAS)
                    .and_then(|text| text.parse().ok())
                    .ok_or(AccountError(REPLICAS))?,
            },
        })
    }

    /// Returns the account as data of a Secret.
    pub fn to_data(&self) -> BTreeMap<String, String> {
        let user = self.user.iter();
        user.map(|user| (CREDENTIALS.to_owned(), user.credentials.clone()))
            .chain([
                (ACCOUNT.to_owned(), self.public_key.clone()),
                (QUOTA.to_owned(), self.size.quota.to_string()),
                (REPLICAS.to_owned(), self.size.replicas.to_string()),
            ])
            .collect()
    }

    /// Signs the account's token with the operator's signing key. Its name is the Cluster's
    /// identity, and `disk_storage` its storage limit in bytes.
    pub fn jwt(
        &self,
        id: &ClusterId,
        disk_storage: i64,
        provisioner: &str,
        now: i64,
        operator: &KeyPair,
    ) -> Result<String, ClaimsError> {
        let scope = |user: &ClusterUser| {
            let scope = UserScope::new(user.signer.clone(), ROLE, permissions::cluster_scope());
            SigningKey::Scoped(Box::new(scope))
        };
        let own = SigningKey::Plain(provisioner.to_owned());
        let keys = [own].into_iter().chain(self.user.as_ref().map(scope)).collect();
        let claims = AccountClaims::new(limits::account_limits(disk_storage), keys);
        let envelope = Envelope {
            subject: &self.public_key,
            name: id.as_str(),
            issued: now,
            expires: None,
        };
        sign(&claims, &envelope, operator)
    }
}

impl ClusterUser {
    /// Reads the user from a credentials file.
    pub fn from_credentials(credentials: &str) -> Option<Self> {
        let (account, signer) = read_user(jwt_of(credentials)?)?;
        Some(Self {
            credentials: credentials.to_owned(),
            account,
            signer,
        })
    }

    /// Generates a user with a token that never expires: a store must not depend on the operator.
    /// The token ends when the account's claims no longer contain the key that signed it. That key
    /// signs nothing else, and its private part is not stored.
    fn mint(id: &ClusterId, account: &str, now: i64) -> Result<Self, ClaimsError> {
        let (user, signer) = (KeyPair::new_user(), KeyPair::new_account());
        let claims = UserClaims::new(account.to_owned(), UserLimits::default());
        let credentials = sign_user(&claims, &user, id.as_str(), now, None, &signer)?;
        Ok(Self {
            credentials,
            account: account.to_owned(),
            signer: signer.public_key(),
        })
    }
}

/// Derives the key that signs the operator's own users in every account, from the seed of its
/// signing key.
pub fn derive_provisioner(signing_seed: &str) -> Result<KeyPair, ClaimsError> {
    let digest = Sha512_256::digest(format!("yoke-operator provisioner {signing_seed}"));
    KeyPair::new_from_raw(KeyPairType::Account, digest.into()).map_err(ClaimsError::Sign)
}

/// Generates credentials of a short-lived user that may create and change the streams of an
/// account.
pub fn provisioner_credentials(account: &str, provisioner: &KeyPair, now: i64) -> Result<String, ClaimsError> {
    let claims = UserClaims::new(account.to_owned(), permissions::provisioner());
    let expires = Some(now + PROVISIONER_SECONDS);
    sign_user(
        &claims,
        &KeyPair::new_user(),
        "yoke-operator",
        now,
        expires,
        provisioner,
    )
}

/// Signs a user's token with this validity, and returns its credentials file.
fn sign_user(
    claims: &UserClaims,
    user: &KeyPair,
    name: &str,
    issued: i64,
    expires: Option<i64>,
    signer: &KeyPair,
) -> Result<String, ClaimsError> {
    let envelope = Envelope {
        subject: &user.public_key(),
        name,
        issued,
        expires,
    };
    let jwt = sign(claims, &envelope, signer)?;
    let seed = user.seed().map_err(ClaimsError::Sign)?;
    Ok(to_credentials(&jwt, &seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size {
        quota: 1 << 20,
        replicas: 1,
    };

    fn id() -> ClusterId {
        "bcdfghjk24".parse().expect("valid")
    }

    fn to_bytes(account: &Account) -> BTreeMap<String, Vec<u8>> {
        let data = account.to_data().into_iter();
        data.map(|(key, text)| (key, text.into_bytes())).collect()
    }

    #[test]
    fn an_account_is_restored_from_its_secret() {
        let account = Account::draw(&id(), SIZE, 7).unwrap();
        assert_eq!(Account::from_data(&to_bytes(&account)).unwrap(), account);
        let user = account.user.clone().unwrap();
        assert_eq!(
            Account::of_user(user, SIZE),
            account,
            "the credentials name another account"
        );
        let closed = account.clone().closed();
        assert_eq!(Account::from_data(&to_bytes(&closed)).unwrap(), closed);
        for key in [ACCOUNT, QUOTA, REPLICAS] {
            let mut data = to_bytes(&account);
            data.insert(key.into(), b"x".to_vec());
            let error = Account::from_data(&data).unwrap_err();
            assert_eq!(error.0, key);
        }
    }

    #[test]
    fn an_account_rejects_its_replaced_user() {
        let operator = KeyPair::new_operator();
        let mut account = Account::draw(&id(), SIZE, 7).unwrap();
        let signer = |account: &Account| account.user.clone().unwrap().signer;
        let accepts = |account: &Account, key: &str| {
            let jwt = account.jwt(&id(), 0, "AP", 7, &operator).unwrap();
            yoke_nats_auth::token::payload_of(&jwt)
                .unwrap()
                .to_string()
                .contains(key)
        };
        let previous = signer(&account);
        assert!(accepts(&account, &previous));
        account.renew_user(&id(), 8).unwrap();
        assert!(accepts(&account, &signer(&account)) && !accepts(&account, &previous));
        let last = signer(&account);
        assert!(!accepts(&account.closed(), &last));
    }

    #[test]
    fn the_provisioner_key_is_derived_from_the_signing_key() {
        let key = |seed: &str| derive_provisioner(seed).unwrap().public_key();
        assert_eq!(key("SOA"), key("SOA"));
        assert_ne!(key("SOA"), key("SOB"));
    }
}
