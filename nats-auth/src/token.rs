//! Signs and reads tokens. Pure: time and keys are arguments.

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use nkeys::KeyPair;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha512_256};

const HEADER: Header = Header {
    typ: "JWT",
    alg: "ed25519-nkey",
};

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

/// Order of the keys in the JSON of a token. It decides the bytes of the token, and therefore its ID
/// and signature. NATS accepts any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyOrder {
    /// The order in which the fields are declared.
    Declared,
    /// Alphabetical order.
    Sorted,
}

#[derive(Serialize)]
struct Header {
    typ: &'static str,
    alg: &'static str,
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

impl KeyOrder {
    fn to_json(self, value: &impl Serialize) -> Result<Vec<u8>, ClaimsError> {
        let json = match self {
            Self::Declared => serde_json::to_vec(value),
            // The map of a `Value` is a `BTreeMap`.
            Self::Sorted => serde_json::to_value(value).and_then(|value| serde_json::to_vec(&value)),
        };
        json.map_err(ClaimsError::Encode)
    }
}

/// Signs `claims` with `signer`. The keys of the JSON are in the order of their declaration.
pub fn sign<C: Serialize>(claims: &C, envelope: &Envelope<'_>, signer: &KeyPair) -> Result<String, ClaimsError> {
    sign_ordered(claims, envelope, signer, KeyOrder::Declared)
}

/// Like [`sign`], but the keys of the JSON are in alphabetical order.
pub fn sign_sorted<C: Serialize>(claims: &C, envelope: &Envelope<'_>, signer: &KeyPair) -> Result<String, ClaimsError> {
    sign_ordered(claims, envelope, signer, KeyOrder::Sorted)
}

fn sign_ordered<C: Serialize>(
    claims: &C,
    envelope: &Envelope<'_>,
    signer: &KeyPair,
    order: KeyOrder,
) -> Result<String, ClaimsError> {
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
    // The ID is a hash of the content without the ID.
    let jti = BASE32_NOPAD.encode(&Sha512_256::digest(order.to_json(&token)?));
    token.jti = &jti;
    let signed = format!(
        "{}.{}",
        BASE64URL_NOPAD.encode(&order.to_json(&HEADER)?),
        BASE64URL_NOPAD.encode(&order.to_json(&token)?)
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
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some((text(&claims["nats"]["issuer_account"])?, text(&claims["iss"])?))
}

/// Returns the claims and standard fields of a token. Its signature is not checked.
pub fn payload_of(token: &str) -> Result<Value, ClaimsError> {
    let payload = token.split('.').nth(1).ok_or(ClaimsError::Malformed)?;
    let payload = BASE64URL_NOPAD
        .decode(payload.as_bytes())
        .map_err(|_| ClaimsError::Malformed)?;
    serde_json::from_slice(&payload).map_err(|_| ClaimsError::Malformed)
}

fn comparable(token: &str) -> Result<Value, ClaimsError> {
    let mut claims = payload_of(token)?;
    let fields = claims.as_object_mut().ok_or(ClaimsError::Malformed)?;
    fields.remove("iat");
    fields.remove("jti");
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use nkeys::KeyPairType;
    use serde_json::json;

    use super::*;
    use crate::claims::{
        AccountClaims, AccountLimits, DeleteClaims, JetStreamLimits, OperatorClaims, SigningKey, UserClaims,
        UserLimits, UserScope,
    };

    /// The tokens were signed by earlier versions. The ID of a token is a hash of its bytes, so other
    /// bytes are another token.
    #[test]
    fn tokens_are_the_bytes_of_the_committed_ones() {
        let key = |kind, byte| KeyPair::new_from_raw(kind, [byte; 32]).unwrap();
        let operator = key(KeyPairType::Operator, 1);
        let account = key(KeyPairType::Account, 2);
        let [operator_key, account_key] = [&operator, &account].map(KeyPair::public_key);
        let user_key = key(KeyPairType::User, 3).public_key();
        let user_limits = UserLimits::of(vec!["a.{{name()}}".into()], vec!["_INBOX.>".into()]);
        let cluster_limits = |disk_storage| AccountLimits {
            imports: 0,
            exports: 0,
            conn: 16,
            leaf: 0,
            ..AccountLimits::unlimited(Some(JetStreamLimits {
                disk_storage,
                streams: 3,
                consumer: 5,
                max_bytes_required: true,
            }))
        };
        let host_limits = AccountLimits::unlimited(Some(JetStreamLimits::of_storage(64 << 30)));
        let unlimited = UserLimits::unlimited();
        let plain = || SigningKey::Plain("APLAIN".into());
        let scope = UserScope::new("ASCOPED".into(), "store", user_limits.clone());
        let scoped = SigningKey::Scoped(Box::new(scope));
        let envelope = |subject, name| Envelope {
            subject,
            name,
            issued: 1_700_000_000,
            expires: None,
        };
        let provisioner = Envelope {
            expires: Some(1_700_000_600),
            ..envelope(&user_key, "yoke-operator")
        };
        let account_of = |limits, keys| AccountClaims::new(limits, keys);
        let in_account = envelope(&account_key, "bcdf");
        let tokens = [
            (
                "cluster account",
                sign(
                    &account_of(cluster_limits(1 << 30), vec![plain(), scoped]),
                    &in_account,
                    &operator,
                ),
            ),
            (
                "cluster account without storage",
                sign(&account_of(cluster_limits(0), vec![plain()]), &in_account, &operator),
            ),
            (
                "user of a scoped key",
                sign(
                    &UserClaims::new(account_key.clone(), UserLimits::default()),
                    &envelope(&user_key, "bcdf"),
                    &account,
                ),
            ),
            (
                "provisioner",
                sign(
                    &UserClaims::new(account_key.clone(), user_limits),
                    &provisioner,
                    &account,
                ),
            ),
            (
                "deletion",
                sign(
                    &DeleteClaims::new(vec![account_key.clone()]),
                    &envelope(&operator_key, "x"),
                    &operator,
                ),
            ),
            (
                "host operator",
                sign_sorted(
                    &OperatorClaims::new(vec![operator_key.clone()], account_key.clone()),
                    &envelope(&operator_key, "yoke-dev"),
                    &operator,
                ),
            ),
            (
                "host system account",
                sign_sorted(
                    &account_of(AccountLimits::unlimited(None), vec![]),
                    &envelope(&account_key, "SYS"),
                    &operator,
                ),
            ),
            (
                "host account",
                sign_sorted(
                    &account_of(host_limits, vec![]),
                    &envelope(&account_key, "host"),
                    &operator,
                ),
            ),
            (
                "host user",
                sign_sorted(
                    &UserClaims::signed_by_account(unlimited),
                    &envelope(&user_key, "host-store"),
                    &account,
                ),
            ),
        ];
        let committed = include_str!("../testdata/tokens.txt");
        assert_eq!(committed.lines().count(), tokens.len());
        for ((name, token), committed) in tokens.into_iter().zip(committed.lines()) {
            assert_eq!(format!("{name}: {}", token.unwrap()), committed);
        }
    }

    #[test]
    fn user_of_a_scoped_key_carries_no_permissions() {
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
            json!({
                "iat": 1_700_000_000, "iss": signer.public_key(), "name": "bcdfghjk24", "sub": "UABC",
                "nats": {"pub": {}, "sub": {}, "issuer_account": account.public_key(), "type": "user", "version": 2},
            })
        );
    }

    #[test]
    fn signature_covers_header_and_payload() {
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
    fn time_of_issue_makes_no_difference() {
        let signer = KeyPair::new_account();
        let make = |issued, name| {
            let envelope = Envelope {
                subject: "U",
                name,
                issued,
                expires: None,
            };
            sign(&UserClaims::new("A".into(), UserLimits::default()), &envelope, &signer).unwrap()
        };
        assert!(same_claims(&make(1, "a"), &make(2, "a")));
        assert!(!same_claims(&make(1, "a"), &make(1, "b")));
        assert!(!same_claims("", ""));
    }

    #[test]
    fn claims_are_signed_over_header_and_body() {
        let issuer = KeyPair::new_operator();
        let account = KeyPair::new_account().public_key();
        let storage = JetStreamLimits::of_storage(1 << 30);
        let claims = AccountClaims::new(AccountLimits::unlimited(Some(storage)), vec![]);
        let envelope = Envelope {
            subject: &account,
            name: "host",
            issued: 1_700_000_000,
            expires: None,
        };
        let jwt = sign_sorted(&claims, &envelope, &issuer).unwrap();
        let parts: Vec<&str> = jwt.split('.').collect();
        let header = BASE64URL_NOPAD.decode(parts[0].as_bytes()).unwrap();
        assert_eq!(header, br#"{"alg":"ed25519-nkey","typ":"JWT"}"#);
        let body = payload_of(&jwt).unwrap();
        assert_eq!(body["sub"], account);
        assert_eq!(body["iss"], issuer.public_key());
        assert_eq!(body["iat"], 1_700_000_000);
        assert_eq!(body["nats"]["limits"]["disk_storage"], 1 << 30);
        let signature = BASE64URL_NOPAD.decode(parts[2].as_bytes()).unwrap();
        issuer
            .verify(format!("{}.{}", parts[0], parts[1]).as_bytes(), &signature)
            .unwrap();
    }

    #[test]
    fn the_system_account_has_no_storage() {
        let claims = serde_json::to_value(AccountClaims::new(AccountLimits::unlimited(None), vec![])).unwrap();
        assert_eq!(claims["limits"].get("disk_storage"), None);
        assert_eq!(claims["limits"]["conn"], -1);
    }

    #[test]
    fn a_public_key_cannot_sign() {
        let public = KeyPair::from_public_key(&KeyPair::new_operator().public_key()).unwrap();
        let envelope = Envelope {
            subject: "U",
            name: "x",
            issued: 0,
            expires: None,
        };
        let claims = UserClaims::signed_by_account(UserLimits::unlimited());
        assert!(matches!(sign(&claims, &envelope, &public), Err(ClaimsError::Sign(_))));
    }
}
