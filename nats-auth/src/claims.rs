//! Claims about operators, accounts and users, as types. Pure.
//!
//! Fields are declared in the order in which the JSON has them.

use serde::Serialize;

const VERSION: u8 = 2;
/// Value of a limit that is not set.
pub const NO_LIMIT: i64 = -1;

/// Allowed subjects. An empty list in a permission allows all, so lists here are never empty by
/// accident.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Permission {
    /// Subjects, with wildcards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

/// Permissions of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UserLimits {
    /// Subjects to publish to.
    #[serde(rename = "pub")]
    pub publish: Permission,
    /// Subjects to subscribe to.
    #[serde(rename = "sub")]
    pub subscribe: Permission,
    /// Number of subscriptions. 0 is omitted, as a user of a scoped key requires.
    #[serde(rename = "subs", skip_serializing_if = "is_zero")]
    pub subscriptions: i64,
    /// Total bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub data: i64,
    /// Bytes per message.
    #[serde(skip_serializing_if = "is_zero")]
    pub payload: i64,
}

impl UserLimits {
    /// All permissions, without limits.
    pub fn unlimited() -> Self {
        Self::of(vec![], vec![])
    }

    /// Permissions for these subjects, without other limits.
    pub fn of(publish: Vec<String>, subscribe: Vec<String>) -> Self {
        Self {
            publish: Permission { allow: publish },
            subscribe: Permission { allow: subscribe },
            subscriptions: NO_LIMIT,
            data: NO_LIMIT,
            payload: NO_LIMIT,
        }
    }
}

/// Claims of an operator, which is the root of trust.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperatorClaims {
    /// Public keys that may sign accounts on behalf of the operator.
    pub signing_keys: Vec<String>,
    /// Public key of the system account.
    pub system_account: String,
    #[serde(flatten)]
    kind: Kind,
}

impl OperatorClaims {
    /// Claims of an operator with these signing keys and this system account.
    pub fn new(signing_keys: Vec<String>, system_account: String) -> Self {
        Self {
            signing_keys,
            system_account,
            kind: Kind::new("operator"),
        }
    }
}

/// Claims of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UserClaims {
    /// Permissions. All default for a user of a scoped key, where the key's template applies.
    #[serde(flatten)]
    pub limits: UserLimits,
    /// Public key of the account, if a signing key of the account signs the token. `None` if the
    /// account's own key signs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer_account: Option<String>,
    #[serde(flatten)]
    kind: Kind,
}

impl UserClaims {
    /// Claims of a user that a signing key of `account` signs.
    pub fn new(account: String, limits: UserLimits) -> Self {
        Self {
            issuer_account: Some(account),
            ..Self::signed_by_account(limits)
        }
    }

    /// Claims of a user that the account's own key signs.
    pub fn signed_by_account(limits: UserLimits) -> Self {
        Self {
            limits,
            issuer_account: None,
            kind: Kind::new("user"),
        }
    }
}

/// A key that may sign users of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SigningKey {
    /// Users carry their own permissions.
    Plain(String),
    /// Users have the permissions of the template, and carry none.
    Scoped(Box<UserScope>),
}

/// A signing key with the permissions of every user that it signs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UserScope {
    kind: &'static str,
    /// The public key.
    pub key: String,
    /// Name of the role.
    pub role: String,
    /// Permissions; `{{name()}}` stands for the user's name.
    pub template: UserLimits,
    description: &'static str,
}

impl UserScope {
    /// Creates a scope for `key`.
    pub fn new(key: String, role: &str, template: UserLimits) -> Self {
        Self {
            kind: "user_scope",
            key,
            role: role.to_owned(),
            template,
            description: "",
        }
    }
}

/// Limits of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccountLimits {
    /// Number of subscriptions.
    pub subs: i64,
    /// Total bytes.
    pub data: i64,
    /// Bytes per message.
    pub payload: i64,
    /// Number of imports.
    #[serde(skip_serializing_if = "is_zero")]
    pub imports: i64,
    /// Number of exports.
    #[serde(skip_serializing_if = "is_zero")]
    pub exports: i64,
    /// Whether exports may have wildcards.
    pub wildcards: bool,
    /// Number of connections.
    pub conn: i64,
    /// Number of NATS leafnodes.
    #[serde(skip_serializing_if = "is_zero")]
    pub leaf: i64,
    /// Limits of JetStream. `None` disables JetStream, which the system account must not have.
    #[serde(flatten)]
    pub jetstream: Option<JetStreamLimits>,
}

impl AccountLimits {
    /// Limits that limit nothing but JetStream.
    pub fn unlimited(jetstream: Option<JetStreamLimits>) -> Self {
        Self {
            subs: NO_LIMIT,
            data: NO_LIMIT,
            payload: NO_LIMIT,
            imports: NO_LIMIT,
            exports: NO_LIMIT,
            wildcards: true,
            conn: NO_LIMIT,
            leaf: NO_LIMIT,
            jetstream,
        }
    }
}

/// Limits of an account in JetStream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JetStreamLimits {
    /// Bytes of all file streams, over all replicas.
    pub disk_storage: i64,
    /// Number of streams.
    pub streams: i64,
    /// Number of consumers.
    pub consumer: i64,
    /// Refuse a stream without a size.
    #[serde(skip_serializing_if = "is_false")]
    pub max_bytes_required: bool,
}

impl JetStreamLimits {
    /// A limit of the bytes in all file streams, and no other.
    pub fn of_storage(disk_storage: i64) -> Self {
        Self {
            disk_storage,
            streams: NO_LIMIT,
            consumer: NO_LIMIT,
            max_bytes_required: false,
        }
    }
}

/// Claims of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccountClaims {
    /// Limits of the account.
    pub limits: AccountLimits,
    /// Keys that may sign users of the account, beside the account's own key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signing_keys: Vec<SigningKey>,
    default_permissions: UserPermissions,
    #[serde(flatten)]
    kind: Kind,
}

impl AccountClaims {
    /// Claims of an account with these limits and keys.
    pub fn new(limits: AccountLimits, signing_keys: Vec<SigningKey>) -> Self {
        Self {
            limits,
            signing_keys,
            default_permissions: UserPermissions::default(),
            kind: Kind::new("account"),
        }
    }
}

/// A request to delete accounts, in the form of claims of the operator about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeleteClaims {
    /// Public keys of the accounts.
    pub accounts: Vec<String>,
    #[serde(flatten)]
    kind: Kind,
}

impl DeleteClaims {
    /// A request to delete `accounts`.
    pub fn new(accounts: Vec<String>) -> Self {
        Self {
            accounts,
            kind: Kind::new("generic"),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct UserPermissions {
    #[serde(rename = "pub")]
    publish: Permission,
    #[serde(rename = "sub")]
    subscribe: Permission,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Kind {
    r#type: &'static str,
    version: u8,
}

impl Kind {
    fn new(kind: &'static str) -> Self {
        Self {
            r#type: kind,
            version: VERSION,
        }
    }
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}
