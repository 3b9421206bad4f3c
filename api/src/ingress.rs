//! Configuration of the ingress for one cluster. The operator writes it to the ConfigMap
//! [`crate::names::INGRESS_CONFIG_MAP`] in the control-plane namespace, with the label
//! [`crate::labels::COMPONENT`] = `ingress`. The key [`CONFIG_KEY`] holds an [`IngressConfig`] as
//! JSON. All of it is public: it contains public keys and certificates, and no secret.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::names::{ClusterId, PublicName};
use crate::network::Cidr;

/// The only key of the ConfigMap.
pub const CONFIG_KEY: &str = "ingress.json";

/// Maximum length of [`IngressConfig::allowed_sources`]: the intersection of two lists of
/// `spec.endpoint.allowedCIDRs` has at most so many ranges.
pub const MAX_SOURCES: usize = 128;

/// How to reach, verify and recognize one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressConfig {
    /// Identity of the cluster.
    pub id: ClusterId,
    /// Name of the Tenant, which is also the namespace of the Cluster.
    pub tenant: String,
    /// Name of the Cluster.
    pub cluster: String,
    /// Name under the base domain that clients send as SNI.
    pub public_name: PublicName,
    /// Additional names that clients may send as SNI (`spec.endpoint.extraSANs`), sorted.
    #[serde(default)]
    pub extra_names: Vec<String>,
    /// Whether konnectivity agents may connect, with the SNI [`PublicName::konnectivity`] and port
    /// [`crate::names::KONNECTIVITY_PORT`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub konnectivity: bool,
    /// Ranges from which clients may connect (`spec.endpoint.allowedCIDRs`). If absent, any address
    /// may connect; if empty, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_sources: Option<Vec<Cidr>>,
    /// Issuer (`iss`) of the cluster's service-account tokens, unique to the cluster.
    pub issuer: String,
    /// Audiences (`aud`) that the cluster's API server accepts.
    pub audiences: Vec<String>,
    /// Public keys (PEM, SubjectPublicKeyInfo) that may have signed a valid service-account token.
    pub service_account_keys: Vec<String>,
    /// CA bundle (PEM) for client certificates of the cluster: its own intermediates, never the
    /// root.
    pub client_ca: String,
    /// How to verify the control plane when the ingress opens a TLS connection to it.
    pub upstream: Upstream,
    /// How to answer clients while no API runs, as requested. Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asleep: Option<Asleep>,
}

/// State of a cluster whose API is not requested to run, or is being woken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Asleep {
    /// A connection wakes the cluster.
    OnConnect {
        /// Clients that wake the cluster.
        callers: Callers,
        /// User agents whose requests do not wake the cluster.
        #[serde(default, skip_serializing_if = "IgnoredAgents::is_empty")]
        ignored_agents: IgnoredAgents,
        /// Time since which the cluster sleeps. A wake request must have a later time.
        since: Time,
        /// UID of the Cluster object to wake. Another object of the same name is not woken.
        uid: String,
    },
    /// No connection wakes the cluster.
    Held {
        /// Why, and what to do: a sentence for authenticated clients of the cluster.
        why: String,
    },
    /// The cluster is being woken.
    Waking {
        /// Time since which the cluster is being woken.
        since: Time,
        /// Why waking takes longer than usual: a sentence for authenticated clients of the cluster.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
}

/// Clients that wake a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Callers {
    /// Clients that are authenticated by the cluster.
    Authenticated,
    /// All clients.
    Any,
}

/// User agents whose requests do not count as use (`spec.sleep.ignoreUserAgents`). Each entry is a
/// complete `User-Agent`, or a prefix followed by `*`. A client chooses its own `User-Agent`, so an
/// entry must never grant anything.
///
/// The cluster's store applies the same rule (`--ignore-user-agent` of kine-nats), with its own
/// four lines of code. kine-nats is built without the Kubernetes types that this crate depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IgnoredAgents(pub BTreeSet<String>);

impl IgnoredAgents {
    /// Whether no user agent is ignored.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the user agent `agent` is ignored.
    pub fn has(&self, agent: &[u8]) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => agent.starts_with(beginning.as_bytes()),
            None => agent == pattern.as_bytes(),
        })
    }
}

/// The control plane, as the server of a TLS connection from the ingress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Upstream {
    /// Exact DNS name that the certificate must have: `<cluster>.<control-plane namespace>.svc`.
    pub server_name: String,
    /// CA bundle (PEM) for the serving certificate: the cluster's own intermediates.
    pub ca: String,
    /// Name of the Service whose EndpointSlices have the addresses. It is in the namespace of the
    /// ConfigMap.
    pub service: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_form_is_stable() {
        let id: ClusterId = "bcdfghjk24".parse().unwrap();
        let config = IngressConfig {
            public_name: id.public_name("a", "yoke.test"),
            id,
            tenant: "t".into(),
            cluster: "a".into(),
            extra_names: vec![],
            konnectivity: false,
            allowed_sources: None,
            issuer: "https://a-bcdfghjk.yoke.test".into(),
            audiences: vec!["https://a-bcdfghjk.yoke.test".into()],
            service_account_keys: vec!["PEM".into()],
            client_ca: "PEM".into(),
            upstream: Upstream {
                server_name: "a.yoke-bcdfghjk24.svc".into(),
                ca: "PEM".into(),
                service: "a".into(),
            },
            asleep: None,
        };
        let wire = r#"{"id":"bcdfghjk24","tenant":"t","cluster":"a","publicName":"a-bcdfghjk.yoke.test","extraNames":[],"issuer":"https://a-bcdfghjk.yoke.test","audiences":["https://a-bcdfghjk.yoke.test"],"serviceAccountKeys":["PEM"],"clientCa":"PEM","upstream":{"serverName":"a.yoke-bcdfghjk24.svc","ca":"PEM","service":"a"}}"#;
        assert_eq!(serde_json::to_string(&config).unwrap(), wire);
        assert_eq!(serde_json::from_str::<IngressConfig>(wire).unwrap(), config);
        let sources = |text: &str| {
            let text = wire.replace("\"issuer\"", &format!("\"allowedSources\":[{text}],\"issuer\""));
            serde_json::from_str::<IngressConfig>(&text).map(|config| config.allowed_sources)
        };
        let range = "192.0.2.0/24".parse().unwrap();
        assert_eq!(sources("\"192.0.2.0/24\"").unwrap(), Some(vec![range]));
        assert_eq!(sources("").unwrap(), Some(vec![]));
        assert!(sources("\"192.0.2.1/24\"").is_err());
        let since = Time("2026-01-01T00:00:00Z".parse().unwrap());
        let callers = Callers::Authenticated;
        for (asleep, text) in [
            (
                Asleep::Waking {
                    since: since.clone(),
                    problem: None,
                },
                r#"{"waking":{"since":"2026-01-01T00:00:00Z"}}"#,
            ),
            (
                Asleep::Waking {
                    since: since.clone(),
                    problem: Some("No room.".into()),
                },
                r#"{"waking":{"since":"2026-01-01T00:00:00Z","problem":"No room."}}"#,
            ),
            (Asleep::Held { why: "No.".into() }, r#"{"held":{"why":"No."}}"#),
            (
                Asleep::OnConnect {
                    callers,
                    ignored_agents: IgnoredAgents(["k9s/*".into(), "Headlamp".into()].into()),
                    since: since.clone(),
                    uid: "u-1".into(),
                },
                r#"{"onConnect":{"callers":"Authenticated","ignoredAgents":["Headlamp","k9s/*"],"since":"2026-01-01T00:00:00Z","uid":"u-1"}}"#,
            ),
            (
                Asleep::OnConnect {
                    callers,
                    ignored_agents: IgnoredAgents::default(),
                    since,
                    uid: "u-1".into(),
                },
                r#"{"onConnect":{"callers":"Authenticated","since":"2026-01-01T00:00:00Z","uid":"u-1"}}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&asleep).unwrap(), text);
            assert_eq!(serde_json::from_str::<Asleep>(text).unwrap(), asleep);
        }
        let with_agents = IngressConfig {
            konnectivity: true,
            ..config
        };
        let wire = wire.replace("\"issuer\"", "\"konnectivity\":true,\"issuer\"");
        assert_eq!(serde_json::to_string(&with_agents).unwrap(), wire);
        assert_eq!(serde_json::from_str::<IngressConfig>(&wire).unwrap(), with_agents);
    }

    #[test]
    fn user_agents_match_ignore_patterns() {
        let long = [b"k9s/".as_slice(), &[b'a'; 100_000]].concat();
        for (pattern, agent, expected) in [
            ("kubectl/*", &b"kubectl/v1.35.4 (linux/amd64)"[..], true),
            ("kubectl/v1.35.4 (linux/amd64)", b"kubectl/v1.35.4 (linux/amd64)", true),
            ("kubectl", b"kubectl/v1.35.4 (linux/amd64)", false),
            ("k9s/*", b"kubectl/v1.35.4 (linux/amd64)", false),
            ("k9s/*", b"K9s/v0.50", false),
            ("k9s/*", b" k9s/v0.50", false),
            ("k9s/*", b"k9s/", true),
            ("k9s/*", b"k9s/\xff\0", true),
            ("k9s/*", b"\xffk9s/", false),
            ("k9s/*", &long, true),
            ("Headlamp", b"", false),
        ] {
            let ignored = IgnoredAgents([pattern.to_owned()].into());
            let agent_text = String::from_utf8_lossy(&agent[..agent.len().min(40)]);
            assert_eq!(ignored.has(agent), expected, "{pattern} {agent_text}");
        }
        assert!(!IgnoredAgents::default().has(b""));
    }

    #[test]
    fn malformed_identity_is_refused() {
        assert!(serde_json::from_str::<ClusterId>("\"../../etc\"").is_err());
    }
}
