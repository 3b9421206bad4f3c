//! Credentials files: the token and the seed of a user, in the format of all NATS clients. Pure.

use data_encoding::BASE64URL_NOPAD;

use crate::token::read_user;

/// Line before the token.
const BEGIN_USER: &str = "-----BEGIN NATS USER JWT-----";

/// Builds a credentials file.
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
