//! Who asks something of a cluster that sleeps. Pure.
//!
//! Guarantees: a certificate counts only if the cluster's own intermediate has signed it; a token only if the cluster itself has
//! issued it. What is not verified here, as the tokens of an OIDC provider are not, is nobody.

use k8s_openapi::jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use yoke_pki::ParsedCertificate;
use yoke_pki::inspect::{Purpose, verify_chain};

use crate::model::Route;
use crate::token::{self, TokenError};

/// Kubernetes' own users and groups: nodes, controllers, bootstrap tokens.
const SYSTEM: &str = "system:";
/// The operator's and the control plane's.
const YOKE: [&str; 3] = ["yoke:operator", "yoke:apiserver", "yoke:konnectivity-server"];
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
const KUBE_SYSTEM: &str = "system:serviceaccount:kube-system:";

/// Somebody whom the cluster knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// By a client certificate.
    Certificate {
        /// The user, as Kubernetes names it.
        user: String,
        /// Its groups.
        groups: Vec<String>,
    },
    /// By a token of the cluster's: its subject.
    Account(String),
}

/// Why somebody is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// Neither certificate nor token.
    Nothing,
    /// The certificate is not of this cluster, or not valid.
    Certificate,
    /// The token is not believed.
    Token(TokenError),
    /// The token is none of this cluster's service accounts. Whether it is good the cluster alone can say.
    Unverified,
}

impl Identity {
    /// Whether its needs are the cluster's users': machines, controllers and what belongs to the cluster itself wait until
    /// somebody else wakes it.
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

/// Who it is, by the certificates of the connection, or by a token.
pub fn identify(
    route: &Route,
    client_ca: &str,
    certificates: &[CertificateDer<'_>],
    bearer: Option<&str>,
    now: Timestamp,
) -> Result<Identity, Stranger> {
    let shown = (!certificates.is_empty()).then(|| verify_certificates(client_ca, certificates, now));
    if let Some(Some(identity)) = shown {
        return Ok(identity);
    }
    let Some(bearer) = bearer else {
        return Err(match shown {
            None => Stranger::Nothing,
            Some(_) => Stranger::Certificate,
        });
    };
    let find = |issuer: &str| (issuer == route.tokens.issuer).then_some(route);
    let verified = token::verify(bearer, now, find, |route| &route.tokens);
    verified
        .map(|verified| Identity::Account(verified.subject))
        .map_err(|error| match error {
            TokenError::Issuer | TokenError::TooLong => Stranger::Unverified,
            TokenError::Malformed if is_bootstrap_token(bearer) => Stranger::Unverified,
            error => Stranger::Token(error),
        })
}

/// `abcdef.0123456789abcdef`: a worker's that joins. Its Secret is in the cluster.
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
    // The rest of what is shown is not looked at: of some CAs of one name that a stranger has made there are thousands of paths.
    let leaf = ParsedCertificate::from_der(certificates.first()?.to_vec()).ok()?;
    let anchors = ParsedCertificate::from_pem(client_ca).ok()?;
    verify_chain(std::slice::from_ref(&leaf), &anchors, Purpose::Client, now).ok()?;
    let subject = leaf.subject;
    Some(Identity::Certificate {
        user: subject.common_name.filter(|user| !user.is_empty())?,
        groups: subject.organizations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_and_controllers_are_no_users() {
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
