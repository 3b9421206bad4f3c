//! What the operator tells the ingress about one cluster: a ConfigMap [`crate::names::INGRESS_CONFIG_MAP`] in the hosted
//! namespace, labelled [`crate::labels::COMPONENT`] = `ingress`, with one key [`CONFIG_KEY`] holding [`IngressConfig`] as
//! JSON. All of it is public: keys and certificates to verify with, no secret.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::names::{ClusterId, PublicName};
use crate::network::Cidr;

/// The ConfigMap's one key.
pub const CONFIG_KEY: &str = "ingress.json";

/// Ranges in [`IngressConfig::allowed_sources`] at most: as many as two lists of `spec.endpoint.allowedCIDRs` have in common.
pub const MAX_SOURCES: usize = 128;

/// How to reach, verify and recognise one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressConfig {
    /// The cluster's identity.
    pub id: ClusterId,
    /// The Tenant's name, which is also the namespace of the Cluster.
    pub tenant: String,
    /// The Cluster's name.
    pub cluster: String,
    /// The name under the base domain that clients send as SNI.
    pub public_name: PublicName,
    /// Further names that clients may send as SNI (`spec.endpoint.extraSANs`), sorted.
    #[serde(default)]
    pub extra_names: Vec<String>,
    /// Whether konnectivity agents are let in, by [`PublicName::konnectivity`] at [`crate::names::KONNECTIVITY_PORT`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub konnectivity: bool,
    /// From where the cluster may be reached (`spec.endpoint.allowedCIDRs`); from everywhere if absent, from nowhere if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_sources: Option<Vec<Cidr>>,
    /// Issuer (`iss`) of the cluster's service-account tokens, unique to it.
    pub issuer: String,
    /// Audiences (`aud`) that the cluster's API server accepts.
    pub audiences: Vec<String>,
    /// Every public key (PEM, SubjectPublicKeyInfo) by which a valid service-account token may be signed.
    pub service_account_keys: Vec<String>,
    /// The CA bundle (PEM) of the cluster's client certificates: its own intermediates, never the root.
    pub client_ca: String,
    /// How to verify the control plane when the ingress opens TLS to it.
    pub upstream: Upstream,
    /// What those are told who connect while no API answers, as asked for; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asleep: Option<Asleep>,
}

/// A cluster whose API is not to answer now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Asleep {
    /// It wakes for who connects.
    OnConnect {
        /// Who that is.
        callers: Callers,
        /// By which clients they wake nothing all the same.
        #[serde(default, skip_serializing_if = "IgnoredAgents::is_empty")]
        ignored_agents: IgnoredAgents,
        /// Since when it sleeps: who wakes it names a later time.
        since: Time,
        /// The Cluster object that is woken, and no other of its name.
        uid: String,
    },
    /// It wakes for nobody who connects.
    Held {
        /// Why, and what to do: a sentence for those who have an identity of the cluster.
        why: String,
    },
    /// It is being woken.
    Waking {
        /// Since when.
        since: Time,
        /// Why that takes longer than it should, and what is known of it: a sentence for those who have an identity of the cluster.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
}

/// Who wakes a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Callers {
    /// Those with an identity of the cluster.
    Authenticated,
    /// Everybody.
    Any,
}

/// Clients whose requests do not count (`spec.sleep.ignoreUserAgents`): a whole `User-Agent` each, or the beginning of one with a
/// `*` after it. A `User-Agent` is what a client says of itself, so nobody may do more by one.
///
/// The cluster's store goes by the same rule (`--ignore-user-agent` of kine-nats), in four lines of its own: it is built without
/// the types of Kubernetes, which come with this crate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IgnoredAgents(pub BTreeSet<String>);

impl IgnoredAgents {
    /// Whether none is ignored.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a client is ignored that says this of itself.
    pub fn has(&self, agent: &[u8]) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => agent.starts_with(beginning.as_bytes()),
            None => agent == pattern.as_bytes(),
        })
    }
}

/// The far side of a connection that the ingress opens to a control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Upstream {
    /// The exact DNS name that the certificate must carry: `<cluster>.<hosted-ns>.svc`.
    pub server_name: String,
    /// CA bundle (PEM) of the serving certificate: the cluster's own intermediates.
    pub ca: String,
    /// Name of the Service whose EndpointSlices are the addresses; it is in the same namespace as the ConfigMap.
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
    fn clients_are_ignored_by_what_they_say() {
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
    fn foreign_identity_is_refused() {
        assert!(serde_json::from_str::<ClusterId>("\"../../etc\"").is_err());
    }
}
