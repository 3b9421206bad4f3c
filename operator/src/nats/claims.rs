//! JSON Web Tokens of NATS, version 2, signed with ed25519 nkeys (ADR-14,
//! <https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-14.md>). Pure: time
//! and keys are arguments.

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use nkeys::KeyPair;
use serde::Serialize;
use sha2::{Digest as _, Sha512_256};

const HEADER: &str = r#"{"typ":"JWT","alg":"ed25519-nkey"}"#;
const VERSION: u8 = 2;
/// Line before a user's token in a credentials file.
const BEGIN_USER: &str = "-----BEGIN NATS USER JWT-----";
/// Value of a limit that is not set.
pub const NO_LIMIT: i64 = -1;

/// A token could not be built or parsed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimsError {
    /// The signing key has no private part, or is unusable.
    #[error("signing NATS claims")]
    Sign(#[source] nkeys::error::Error),
    /// The claims cannot be encoded as JSON.
    #[error("encoding NATS claims")]
    Encode(#[source] serde_json::Error),
    /// The token is malformed.
    #[error("parsing NATS claims")]
    Malformed,
}

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

/// Claims of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UserClaims {
    /// Permissions. All default for a user of a scoped key, where the key's template applies.
    #[serde(flatten)]
    pub limits: UserLimits,
    /// Public key of the account, since a signing key of the account signs the token.
    pub issuer_account: String,
    #[serde(flatten)]
    kind: Kind,
}

impl UserClaims {
    /// Claims of a user of `account`.
    pub fn new(account: String, limits: UserLimits) -> Self {
        Self {
            limits,
            issuer_account: account,
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
    /// JetStream: bytes of all file streams, over all replicas.
    pub disk_storage: i64,
    /// JetStream: number of streams.
    pub streams: i64,
    /// JetStream: number of consumers.
    pub consumer: i64,
    /// JetStream: refuse a stream without a size.
    pub max_bytes_required: bool,
}

/// Claims of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccountClaims {
    /// Limits of the account.
    pub limits: AccountLimits,
    /// Keys that may sign users of the account.
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

/// Standard fields of a token, beside its claims.
#[derive(Clone, Debug)]
pub struct Envelope<'a> {
    /// Public key of the subject.
    pub subject: &'a str,
    /// A readable name; `{{name()}}` in a scope.
    pub name: &'a str,
    /// Unix time of issue.
    pub issued: i64,
    /// Unix time of expiry.
    pub expires: Option<i64>,
}

#[derive(Serialize)]
struct Token<'a, C> {
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<i64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    jti: &'a str,
    iat: i64,
    iss: &'a str,
    name: &'a str,
    sub: &'a str,
    nats: &'a C,
}

/// Signs `claims` with `signer`.
pub fn sign<C: Serialize>(claims: &C, envelope: &Envelope<'_>, signer: &KeyPair) -> Result<String, ClaimsError> {
    let issuer = signer.public_key();
    let mut token = Token {
        exp: envelope.expires,
        jti: "",
        iat: envelope.issued,
        iss: &issuer,
        name: envelope.name,
        sub: envelope.subject,
        nats: claims,
    };
    let unnamed = serde_json::to_vec(&token).map_err(ClaimsError::Encode)?;
    let jti = BASE32_NOPAD.encode(&Sha512_256::digest(&unnamed));
    token.jti = &jti;
    let payload = serde_json::to_vec(&token).map_err(ClaimsError::Encode)?;
    let signed = format!(
        "{}.{}",
        BASE64URL_NOPAD.encode(HEADER.as_bytes()),
        BASE64URL_NOPAD.encode(&payload)
    );
    let signature = signer.sign(signed.as_bytes()).map_err(ClaimsError::Sign)?;
    Ok(format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature)))
}

/// Returns whether two tokens have the same claims, apart from the time of issue and the token's
/// ID. Signatures are not checked.
pub fn same_claims(one: &str, other: &str) -> bool {
    match (comparable(one), comparable(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Returns the name in a token that came from the server, which has checked the signature.
pub fn name_of(token: &str) -> Result<String, ClaimsError> {
    let name = payload_of(token)?["name"].as_str().map(str::to_owned);
    name.ok_or(ClaimsError::Malformed)
}

/// Returns the storage limit in the token of an account; 0 if there is none.
pub fn disk_storage_of(token: &str) -> i64 {
    let claims = payload_of(token).unwrap_or_default();
    claims["nats"]["limits"]["disk_storage"].as_i64().unwrap_or(0)
}

/// Returns the public keys in a user's token: of its account, and of its signer.
pub fn read_user(token: &str) -> Option<(String, String)> {
    let claims = payload_of(token).ok()?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    Some((text(&claims["nats"]["issuer_account"])?, text(&claims["iss"])?))
}

pub(super) fn payload_of(token: &str) -> Result<serde_json::Value, ClaimsError> {
    let payload = token.split('.').nth(1).ok_or(ClaimsError::Malformed)?;
    let payload = BASE64URL_NOPAD
        .decode(payload.as_bytes())
        .map_err(|_| ClaimsError::Malformed)?;
    serde_json::from_slice(&payload).map_err(|_| ClaimsError::Malformed)
}

fn comparable(token: &str) -> Result<serde_json::Value, ClaimsError> {
    let mut claims = payload_of(token)?;
    let fields = claims.as_object_mut().ok_or(ClaimsError::Malformed)?;
    fields.remove("iat");
    fields.remove("jti");
    Ok(claims)
}

/// Builds a credentials file in the format of all NATS clients.
pub fn to_credentials(jwt: &str, seed: &str) -> String {
    format!(
        "{BEGIN_USER}\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

/// Reduces a credentials file to the fields that [`read_user`] reads. The result names the owner
/// but authenticates no client: it contains neither seed nor signature.
pub fn outline(credentials: &str) -> Option<String> {
    let (account, signer) = read_user(jwt_of(credentials)?)?;
    let claims = serde_json::json!({"iss": signer, "nats": {"issuer_account": account}});
    let payload = BASE64URL_NOPAD.encode(claims.to_string().as_bytes());
    Some(format!("{BEGIN_USER}\n.{payload}.\n"))
}

/// Returns the token in a credentials file.
pub fn jwt_of(credentials: &str) -> Option<&str> {
    let (_, rest) = credentials.split_once(BEGIN_USER)?;
    rest.lines().map(str::trim).find(|line| !line.is_empty())
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_a_scoped_key_has_no_permissions() {
        let (account, signer) = (KeyPair::new_account(), KeyPair::new_account());
        let claims = UserClaims::new(account.public_key(), UserLimits::default());
        let envelope = Envelope {
            subject: "UABC",
            name: "bcdfghjk24",
            issued: 1_700_000_000,
            expires: None,
        };
        let token = sign(&claims, &envelope, &signer).unwrap();
        let mut payload = payload_of(&token).unwrap();
        assert_eq!(payload["jti"].as_str().unwrap().len(), 52);
        payload.as_object_mut().unwrap().remove("jti");
        assert_eq!(
            payload,
            serde_json::json!({
                "iat": 1_700_000_000, "iss": signer.public_key(), "name": "bcdfghjk24", "sub": "UABC",
                "nats": {"pub": {}, "sub": {}, "issuer_account": account.public_key(), "type": "user", "version": 2},
            })
        );
    }

    #[test]
    fn the_signature_covers_header_and_payload() {
        let signer = KeyPair::new_operator();
        let envelope = Envelope {
            subject: "X",
            name: "x",
            issued: 1,
            expires: Some(2),
        };
        let token = sign(&DeleteClaims::new(vec!["A".into()]), &envelope, &signer).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap();
        signer.verify(signed.as_bytes(), &signature).unwrap();
        assert_eq!(payload_of(&token).unwrap()["exp"], 2);
    }

    #[test]
    fn the_time_of_issue_makes_no_difference() {
        let signer = KeyPair::new_account();
        let sign_claims = |issued, name| {
            let envelope = Envelope {
                subject: "U",
                name,
                issued,
                expires: None,
            };
            sign(&UserClaims::new("A".into(), UserLimits::default()), &envelope, &signer).unwrap()
        };
        assert!(same_claims(&sign_claims(1, "a"), &sign_claims(2, "a")));
        assert!(!same_claims(&sign_claims(1, "a"), &sign_claims(1, "b")));
        assert!(!same_claims("", ""));
    }
}
