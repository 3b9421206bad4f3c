//! Names derived from a cluster's identity. Names of different kinds have different types, so they
//! cannot be confused.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};

/// Name of the ConfigMap in a control-plane namespace with the ingress's configuration of the
/// cluster.
pub const INGRESS_CONFIG_MAP: &str = "yoke-ingress";
/// Namespace of all certificate authorities.
pub const PKI_NAMESPACE: &str = "yoke-pki";
/// ServiceAccount in a Tenant's namespace as which the SSH server acts for the Tenant's keys. It is
/// only a name in RBAC: no such object exists, so no client can obtain a token for it.
pub const SSH_SERVICE_ACCOUNT: &str = "yoke-ssh";
/// Prefix of the names of control-plane namespaces.
pub const HOSTED_NAMESPACE_PREFIX: &str = "yoke-";
/// Name of the API port in a control plane's Service.
pub const API_PORT_NAME: &str = "https";
/// Port of a tenant's kube-apiserver, in the Pod and in the Service.
pub const API_PORT: u16 = 6443;
/// Name of the port for konnectivity agents in a control plane's Service.
pub const KONNECTIVITY_PORT_NAME: &str = "konnectivity";
/// Port on which a tenant's konnectivity-server listens for agents, in the Pod and in the Service.
pub const KONNECTIVITY_PORT: u16 = 8132;
/// Key of the kubeconfig in its Secret, as Cluster API defines it. Other tools read this key.
pub const KUBECONFIG_KEY: &str = "value";
/// Maximum length of an accepted Cluster name, in characters. With `-` and eight characters of the
/// identity, it fits in one DNS label with room to spare. The schema accepts any DNS label, so that
/// the operator can explain why a longer name is refused.
pub const CLUSTER_NAME_MAX: usize = 40;

const ID_LENGTH: usize = 10;
// Kubernetes' alphabet for generated names: no vowels, so that no words occur, and no 0, 1 and 3,
// which look like letters.
const ID_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const ID_FIRST: &[u8] = b"bcdfghjklmnpqrstvwxz";

/// The text is not a valid name.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// The text is not ten lowercase letters and digits that begin with a letter.
    #[error("cluster identity {0:?} is not 10 lowercase letters and digits beginning with a letter")]
    Identity(String),
}

/// Identity of a Cluster: ten characters, set once. All names that must be unique are derived from
/// it.
///
/// The identity does not derive from the object's UID, so a Cluster that is restored on another host
/// keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterId(String);

impl ClusterId {
    /// Generates a new identity of about 46 bits. Among 100,000 clusters, the probability of a
    /// collision is 1 in 14,000; the operator refuses an identity that is in use.
    pub fn random() -> Self {
        let mut random = rand::rng();
        let mut pick = |from: &[u8]| char::from(from[random.random_range(0..from.len())]);
        let mut id = String::with_capacity(ID_LENGTH);
        id.push(pick(ID_FIRST));
        while id.len() < ID_LENGTH {
            id.push(pick(ID_ALPHABET));
        }
        Self(id)
    }

    /// The identity as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Part of the identity that is in the public name: the first eight characters.
    pub fn short(&self) -> &str {
        &self.0[..8]
    }

    /// Namespace on the host that holds the control plane.
    pub fn hosted_namespace(&self) -> HostedNamespace {
        HostedNamespace(format!("{HOSTED_NAMESPACE_PREFIX}{}", self.0))
    }

    /// JetStream stream with the log of the cluster's store.
    pub fn stream(&self) -> String {
        format!("KINE_{}", self.0)
    }

    /// JetStream stream with snapshots of the cluster's store.
    pub fn snapshot_stream(&self) -> String {
        format!("KINE_SNAP_{}", self.0)
    }

    /// JetStream stream with every other snapshot of a store without replicas.
    pub fn spare_stream(&self) -> String {
        format!("KINE_SPARE_{}", self.0)
    }

    /// The only subject of the log stream.
    pub fn log_subject(&self) -> String {
        format!("kine.{}.log", self.0)
    }

    /// Subjects of the snapshot stream.
    pub fn snapshot_subjects(&self) -> String {
        format!("kine.{}.snap.>", self.0)
    }

    /// Subjects of the stream with every other snapshot.
    pub fn spare_subjects(&self) -> String {
        format!("kine.{}.spare.>", self.0)
    }

    /// Prefix of the inboxes of the cluster's NATS user. The user may subscribe to no other
    /// inboxes.
    pub fn inbox_prefix(&self) -> String {
        format!("_INBOX_{}", self.0)
    }

    /// Public name of the cluster under `base_domain`. It adds exactly one label, see
    /// [`Self::public_label`].
    pub fn public_name(&self, cluster: &str, base_domain: &str) -> PublicName {
        PublicName(format!("{}.{base_domain}", self.public_label(cluster)))
    }

    /// First label of the cluster's public name: `<name>-<first 8 characters of the identity>`.
    pub fn public_label(&self, cluster: &str) -> String {
        format!("{cluster}-{}", self.short())
    }
}

/// Allows lookups by text in maps that are keyed by identity.
impl Borrow<str> for ClusterId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let good = text.len() == ID_LENGTH
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError::Identity(text.to_owned()))
        }
    }
}

impl TryFrom<String> for ClusterId {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Namespace on the host that holds one cluster's control plane. Tenants cannot read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostedNamespace(String);

impl HostedNamespace {
    /// Name of the namespace.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// DNS name of the control plane's Service: `<cluster>.<control-plane namespace>.svc`. The
    /// ingress and the operator verify that its serving certificate has this name.
    pub fn upstream_name(&self, cluster: &str) -> String {
        format!("{cluster}.{}.svc", self.0)
    }
}

impl fmt::Display for HostedNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name under which external clients reach a cluster: their TLS server name (SNI).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PublicName(String);

impl PublicName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Issuer of the cluster's service-account tokens, and the audience unique to the cluster:
    /// `https://<public name>`.
    pub fn issuer(&self) -> String {
        format!("https://{}", self.0)
    }

    /// Name that konnectivity agents send as SNI: `konnectivity.<public name>`. No other cluster
    /// can have it: a public name is one label under the base domain, and an extra name is never
    /// under the base domain.
    pub fn konnectivity(&self) -> String {
        format!("konnectivity.{}", self.0)
    }
}

impl fmt::Display for PublicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name of the Secret in the tenant's namespace with a cluster's kubeconfig.
pub fn kubeconfig_secret(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

/// Whether a text is a lowercase DNS label (RFC 1123).
pub fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether a text is a lowercase DNS name of at least two labels whose last label begins with a
/// letter. So it is neither a wildcard nor an IP address.
pub fn is_domain(text: &str) -> bool {
    text.len() <= 253
        && text.contains('.')
        && text.split('.').all(is_label)
        && text
            .rsplit('.')
            .next()
            .is_some_and(|last| last.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// Whether `name` is `domain` or a subdomain of it.
pub fn is_within(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_identities_are_valid_and_differ() {
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|_| ClusterId::random()).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            assert!(id.as_str().parse::<ClusterId>().is_ok(), "{id}");
        }
    }

    #[test]
    fn identity_is_checked() {
        for (text, good) in [
            ("bcdfghjklm", true),
            ("b234567890", true),
            ("1bcdfghjkl", false),
            ("bcdfghjkl", false),
            ("bcdfghjklmn", false),
            ("bcdfghjkl-", false),
            ("Bcdfghjklm", false),
            ("bcdfghjkl*", false),
            ("", false),
        ] {
            assert_eq!(text.parse::<ClusterId>().is_ok(), good, "{text:?}");
        }
    }

    #[test]
    fn names_are_derived_from_the_identity() {
        let id: ClusterId = "bcdfghjk24".parse().unwrap();
        assert_eq!(id.hosted_namespace().as_str(), "yoke-bcdfghjk24");
        assert_eq!(id.hosted_namespace().upstream_name("a"), "a.yoke-bcdfghjk24.svc");
        assert_eq!(id.stream(), "KINE_bcdfghjk24");
        assert_eq!(id.public_name("demo", "yoke.test").as_str(), "demo-bcdfghjk.yoke.test");
        assert_eq!(
            id.public_name("demo", "yoke.test").issuer(),
            "https://demo-bcdfghjk.yoke.test"
        );
    }

    #[test]
    fn domains_are_checked() {
        for (text, good) in [
            ("yoke.test", true),
            ("a.b-c.example", true),
            ("test", false),
            ("*.example.org", false),
            ("10.0.0.1", false),
            ("Example.org", false),
            ("-a.org", false),
            ("a..org", false),
            ("a.org.", false),
        ] {
            assert_eq!(is_domain(text), good, "{text:?}");
        }
        for (name, domain, within) in [
            ("a.example.org", "example.org", true),
            ("example.org", "example.org", true),
            ("badexample.org", "example.org", false),
            ("example.org", "a.example.org", false),
        ] {
            assert_eq!(is_within(name, domain), within, "{name} {domain}");
        }
    }

    #[test]
    fn longest_public_label_is_a_dns_label() {
        let id = ClusterId::random();
        let name = "n".repeat(CLUSTER_NAME_MAX);
        let public = id.public_name(&name, "yoke.test");
        assert!(public.as_str().split('.').next().unwrap().len() <= 63);
    }
}
