//! Pure: builds NATS claims as JWTs signed with nkeys.
//!
//! The format is `nats-io/jwt` version 2: a header, the claims and an Ed25519 signature over both,
//! each in base64url without padding. The server verifies the chain operator → account → user
//! offline.

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use nkeys::KeyPair;
use serde_json::{Value, json};
use sha2::{Digest, Sha512_256};

/// The kinds of claims.
#[derive(Debug, Clone)]
pub enum Claims {
    /// The root of trust: the keys that may sign accounts, and the system account.
    Operator {
        /// Public keys that may sign accounts on behalf of the operator.
        signing_keys: Vec<String>,
        /// Public key of the system account.
        system_account: String,
    },
    /// A NATS account.
    Account {
        /// File storage for JetStream, in bytes. `None` disables JetStream (the system account must
        /// not have it).
        disk_storage: Option<u64>,
    },
    /// A user with all permissions in its account.
    User,
}

/// Signing failed because the issuer has no seed.
#[derive(Debug, thiserror::Error)]
#[error("signing claims with a key that cannot sign")]
pub struct SigningError(#[source] nkeys::error::Error);

/// Builds and signs claims about `subject` (a public key). `issued_at` is in seconds since 1970.
pub fn sign(
    claims: &Claims,
    name: &str,
    subject: &str,
    issuer: &KeyPair,
    issued_at: i64,
) -> Result<String, SigningError> {
    let mut body = json!({
        "iat": issued_at,
        "iss": issuer.public_key(),
        "name": name,
        "nats": claims.to_json(),
        "sub": subject,
    });
    // The identifier is a hash of the claims without the identifier.
    body["jti"] = Value::String(BASE32_NOPAD.encode(&Sha512_256::digest(body.to_string())));
    let header = json!({"alg": "ed25519-nkey", "typ": "JWT"});
    let signed = [header, body]
        .map(|part| BASE64URL_NOPAD.encode(part.to_string().as_bytes()))
        .join(".");
    let signature = issuer.sign(signed.as_bytes()).map_err(SigningError)?;
    Ok(format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature)))
}

/// A credentials file for NATS clients: a user's JWT and seed.
pub fn to_creds(jwt: &str, seed: &str) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

impl Claims {
    fn to_json(&self) -> Value {
        const NO_LIMIT: i64 = -1;
        match self {
            Self::Operator {
                signing_keys,
                system_account,
            } => json!({
                "signing_keys": signing_keys,
                "system_account": system_account,
                "type": "operator",
                "version": 2,
            }),
            Self::Account { disk_storage } => {
                let mut limits = json!({
                    "subs": NO_LIMIT, "data": NO_LIMIT, "payload": NO_LIMIT,
                    "imports": NO_LIMIT, "exports": NO_LIMIT, "wildcards": true, "conn": NO_LIMIT, "leaf": NO_LIMIT,
                });
                if let Some(bytes) = disk_storage {
                    limits["disk_storage"] = json!(bytes);
                    limits["streams"] = json!(NO_LIMIT);
                    limits["consumer"] = json!(NO_LIMIT);
                }
                json!({
                    "limits": limits,
                    "default_permissions": {"pub": {}, "sub": {}},
                    "type": "account",
                    "version": 2,
                })
            }
            Self::User => json!({
                "pub": {}, "sub": {},
                "subs": NO_LIMIT, "data": NO_LIMIT, "payload": NO_LIMIT,
                "type": "user",
                "version": 2,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(part: &str) -> Value {
        serde_json::from_slice(&BASE64URL_NOPAD.decode(part.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn claims_are_signed_over_header_and_body() {
        let issuer = KeyPair::new_operator();
        let account = KeyPair::new_account().public_key();
        let claims = Claims::Account {
            disk_storage: Some(1 << 30),
        };
        let jwt = sign(&claims, "host", &account, &issuer, 1_700_000_000).unwrap();
        let parts: Vec<&str> = jwt.split('.').collect();
        assert_eq!(decode(parts[0]), json!({"typ": "JWT", "alg": "ed25519-nkey"}));
        let body = decode(parts[1]);
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
        let claims = Claims::Account { disk_storage: None }.to_json();
        assert_eq!(claims["limits"].get("disk_storage"), None);
        assert_eq!(claims["limits"]["conn"], -1);
    }

    #[test]
    fn a_public_key_cannot_sign() {
        let public = KeyPair::from_public_key(&KeyPair::new_operator().public_key()).unwrap();
        assert!(sign(&Claims::User, "x", "U", &public, 0).is_err());
    }
}
