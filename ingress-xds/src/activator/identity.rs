//! Authenticates the caller of a sleeping cluster. Pure.
//!
//! Guarantees: a certificate counts only if the cluster's own intermediate CA has signed it; a
//! token counts only if the cluster itself has issued it. Credentials that cannot be verified here,
//! such as the tokens of an OIDC provider, do not authenticate anybody.

use k8s_openapi::jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use yoke_pki::ParsedCertificate;
use yoke_pki::inspect::{Purpose, verify_chain};

use crate::authz::token::{self, TokenError};
use crate::model::route::Route;

/// Prefix of Kubernetes' own users and groups: nodes, controllers, bootstrap tokens.
const SYSTEM: &str = "system:";
/// Users of the operator and of the control plane.
const YOKE: [&str; 3] = ["yoke:operator", "yoke:apiserver", "yoke:konnectivity-server"];
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
const KUBE_SYSTEM: &str = "system:serviceaccount:kube-system:";

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The caller has presented a client certificate.
    Certificate {
        /// The user name of the certificate (its common name).
        user: String,
        /// The groups of the certificate (its organizations).
        groups: Vec<String>,
    },
    /// The caller has presented a service account token of the cluster. The value is the token's
    /// subject.
    Account(String),
}

/// Why a caller is not authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unauthenticated {
    /// The caller has presented neither certificate nor token.
    NoCredentials,
    /// The certificate is not issued by this cluster, or is not valid.
    Certificate,
    /// The token was verified and is not valid.
    Token(TokenError),
    /// The token is not a service account token of this cluster. Only the cluster's API server can
    /// verify it.
    Unverified,
}

impl Identity {
    /// Whether the caller acts for a user of the cluster. Nodes, controllers and components of the
    /// cluster itself do not: they wait until a user wakes it.
    pub fn is_user(&self) -> bool {
        match self {
            Self::Account(subject) => is_users_account(subject),
            Self::Certificate { user, groups } => {
                (!user.starts_with(SYSTEM) || is_users_account(user))
                    && !YOKE.contains(&user.as_str())
                    && !groups.iter().any(|group| group.starts_with(SYSTEM))
            }
        }
    }
}

fn is_users_account(user: &str) -> bool {
    user.starts_with(SERVICE_ACCOUNT) && !user.starts_with(KUBE_SYSTEM)
}

/// Authenticates a caller by the certificates of its connection, or else by its token.
pub fn identify(
    route: &Route,
    client_ca: &str,
    certificates: &[CertificateDer<'_>],
    bearer: Option<&str>,
    now: Timestamp,
) -> Result<Identity, Unauthenticated> {
    let presented = (!certificates.is_empty()).then(|| verify_certificates(client_ca, certificates, now));
    if let Some(Some(identity)) = presented {
        return Ok(identity);
    }
    let Some(bearer) = bearer else {
        return Err(match presented {
            None => Unauthenticated::NoCredentials,
            Some(_) => Unauthenticated::Certificate,
        });
    };
    let find = |issuer: &str| (issuer == route.tokens.issuer).then_some(route);
    let verified = token::verify(bearer, now, find, |route| &route.tokens);
    verified
        .map(|verified| Identity::Account(verified.subject))
        .map_err(|error| match error {
            TokenError::Issuer | TokenError::TooLong => Unauthenticated::Unverified,
            TokenError::Malformed if is_bootstrap_token(bearer) => Unauthenticated::Unverified,
            error => Unauthenticated::Token(error),
        })
}

/// Whether a token has the form of a bootstrap token, `abcdef.0123456789abcdef`, which a joining
/// worker presents. Its Secret is stored in the cluster.
fn is_bootstrap_token(token: &str) -> bool {
    let is_part = |part: &str, length| {
        part.len() == length
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    token
        .split_once('.')
        .is_some_and(|(id, secret)| is_part(id, 6) && is_part(secret, 16))
}

fn verify_certificates(client_ca: &str, certificates: &[CertificateDer<'_>], now: Timestamp) -> Option<Identity> {
    // The issuers that the client sends are ignored: an attacker could send CA certificates of one
    // name, which form thousands of paths.
    let certificate = ParsedCertificate::from_der(certificates.first()?.to_vec()).ok()?;
    let anchors = ParsedCertificate::from_pem(client_ca).ok()?;
    verify_chain(std::slice::from_ref(&certificate), &anchors, Purpose::Client, now).ok()?;
    let subject = certificate.subject;
    Some(Identity::Certificate {
        user: subject.common_name.filter(|user| !user.is_empty())?,
        groups: subject.organizations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_controllers_are_not_users() {
        for (user, groups, expected) in [
            ("yoke:admin", &["yoke:cluster-admins"][..], true),
            ("alice", &[], true),
            ("system:serviceaccount:default:robot", &[], true),
            ("system:serviceaccount:kube-system:coredns", &[], false),
            ("system:serviceaccount:kube-systems:robot", &[], true),
            ("system:node:worker", &["system:nodes"], false),
            ("worker", &["system:nodes"], false),
            ("system:kube-controller-manager", &[], false),
            ("system:kube-scheduler", &[], false),
            ("yoke:operator", &["system:masters"], false),
            ("yoke:apiserver", &[], false),
            ("yoke:konnectivity-server", &[], false),
            ("system:anonymous", &[], false),
        ] {
            let identity = Identity::Certificate {
                user: user.into(),
                groups: groups.iter().map(ToString::to_string).collect(),
            };
            assert_eq!(identity.is_user(), expected, "{user} {groups:?}");
        }
        for (subject, expected) in [
            ("system:serviceaccount:default:robot", true),
            ("system:serviceaccount:kube-system:coredns", false),
            ("system:node:worker", false),
            ("alice", false),
            ("", false),
        ] {
            assert_eq!(Identity::Account(subject.into()).is_user(), expected, "{subject:?}");
        }
    }

    #[test]
    fn bootstrap_tokens_have_a_form() {
        for (token, expected) in [
            ("abcdef.0123456789abcdef", true),
            ("Abcdef.0123456789abcdef", false),
            ("abcdef.0123456789abcde", false),
            ("abcdef.0123456789abcde.", false),
            ("abcdef0123456789abcdef", false),
        ] {
            assert_eq!(is_bootstrap_token(token), expected, "{token}");
        }
    }
}
