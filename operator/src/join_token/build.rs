//! Builds the Secret with the join data. Pure, apart from the random token.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use kube::{Resource as _, ResourceExt as _};
use rand::RngExt as _;
use yoke_api::JoinToken;
use yoke_api::join_token::line::{is_bootstrap_token, is_distant};
use yoke_api::join_token::{key, secret_name};
use yoke_api::labels::{self, component};

use crate::config::Config;
use crate::model::identity::Identity;
use crate::tenant_client::BootstrapToken;

const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Properties of a cluster that a worker needs.
#[derive(Clone, Debug)]
pub(super) struct Materials {
    /// The root certificate, PEM.
    pub(super) root: String,
    /// Certificate of the cluster's own CA, PEM.
    pub(super) client_ca: String,
    /// Kubernetes version of the cluster.
    pub(super) version: String,
    /// Whether workers set up the Pod network.
    pub(super) pod_network: bool,
}

/// Generates a bootstrap token with 82 bits of secret randomness.
pub(super) fn draw_token(expires: Timestamp) -> BootstrapToken {
    let mut random = rand::rng();
    let mut draw = |length: usize| -> String {
        (0..length)
            .map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]))
            .collect()
    };
    BootstrapToken {
        id: draw(6),
        secret: draw(16),
        expires,
    }
}

/// Parses a bootstrap token.
pub(super) fn read_token(text: &str, expires: Timestamp) -> Option<BootstrapToken> {
    let (id, secret) = text.split_once('.').filter(|_| is_bootstrap_token(text))?;
    Some(BootstrapToken {
        id: id.to_owned(),
        secret: secret.to_owned(),
        expires,
    })
}

/// Returns whether the operator created a Secret for this JoinToken.
pub(super) fn is_of(secret: &Secret, token: &JoinToken) -> bool {
    let uid = token.metadata.uid.as_deref();
    let mut owners = secret.owner_references().iter();
    is_ours(secret) && uid.is_some() && owners.any(|owner| Some(owner.uid.as_str()) == uid)
}

/// Returns whether the operator created a Secret for any JoinToken. A Secret with the right name
/// only is owned by another.
pub(super) fn is_ours(secret: &Secret) -> bool {
    let has = |key: &str, value: &str| secret.labels().get(key).map(String::as_str) == Some(value);
    let kind = JoinToken::kind(&());
    let mut owners = secret.owner_references().iter();
    has(labels::MANAGED_BY, labels::MANAGED_BY_OPERATOR)
        && has(labels::COMPONENT, component::JOIN)
        && owners.any(|owner| owner.kind == kind)
}

/// Returns whether the data of a Secret is for the Cluster with this identity.
pub(super) fn is_for(secret: &Secret, identity: &Identity) -> bool {
    let server = secret.data.as_ref().and_then(|data| data.get(key::SERVER));
    let server = server.and_then(|bytes| std::str::from_utf8(&bytes.0).ok()?.rsplit_once(':'));
    server.is_some_and(|(name, _)| *name == *identity.public_name.as_str())
}

/// Builds the Secret. Its owner is the JoinToken, and a label names the Tenant, who may read it.
pub(super) fn build_secret(
    token: &JoinToken,
    identity: &Identity,
    config: &Config,
    materials: &Materials,
    bootstrap: &BootstrapToken,
) -> Secret {
    let owner = OwnerReference {
        api_version: JoinToken::api_version(&()).into_owned(),
        kind: JoinToken::kind(&()).into_owned(),
        name: token.name_any(),
        uid: token.uid().unwrap_or_default(),
        ..OwnerReference::default()
    };
    // Without a Cluster's label: this Secret does not requeue the Cluster.
    let labels = [
        (labels::TENANT, identity.tenant.as_str()),
        (labels::COMPONENT, component::JOIN),
        (labels::MANAGED_BY, labels::MANAGED_BY_OPERATOR),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(secret_name(&token.name_any())),
            namespace: Some(identity.tenant.clone()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(build_data(token, identity, config, materials, bootstrap)),
        type_: Some("yoke.drzzl.io/join".into()),
        ..Secret::default()
    }
}

/// Builds the join data.
fn build_data(
    token: &JoinToken,
    identity: &Identity,
    config: &Config,
    materials: &Materials,
    bootstrap: &BootstrapToken,
) -> BTreeMap<String, ByteString> {
    let server = format!("{}:{}", identity.public_name, config.ingress.port);
    let text = format!("{}.{}", bootstrap.id, bootstrap.secret);
    let mut data: BTreeMap<_, _> = [
        (key::SERVER, server.as_str()),
        (key::CA, &materials.root),
        (key::CLIENT_CA, &materials.client_ca),
        (key::TOKEN, &text),
        (key::VERSION, &materials.version),
    ]
    .map(|(key, text)| (key.to_owned(), ByteString(text.into())))
    .into();
    let spec = &token.spec;
    let labels_of_node = (!spec.node_labels.is_empty()).then(|| serde_json::to_vec(&spec.node_labels));
    let taints = (!spec.taints.is_empty()).then(|| serde_json::to_vec(&spec.taints));
    let worker = &config.worker;
    let digests = (!worker.digests.is_empty()).then(|| serde_json::to_vec(&worker.digests));
    let json = [
        (key::NODE_LABELS, labels_of_node),
        (key::TAINTS, taints),
        (key::DIGESTS, digests),
    ];
    for (key, json) in json {
        let json = json.map(|json| json.expect("maps and lists of strings are valid JSON"));
        data.extend(json.map(|json| (key.to_owned(), ByteString(json))));
    }
    if !worker.ssh.is_empty() {
        data.insert(key::SSH.into(), ByteString(worker.ssh.clone().into()));
    }
    // The default of this key is to set up the Pod network.
    if !materials.pod_network {
        data.insert(key::POD_NETWORK.into(), ByteString("false".into()));
    }
    // If the ingress has a name instead of an address, workers resolve the API's name through DNS.
    // A loopback address is useless for other machines.
    let address = config.ingress.address.parse().ok();
    if let Some(address) = address.filter(|address| is_distant(*address)) {
        data.insert(key::ADDRESS.into(), ByteString(address.to_string().into()));
    }
    data
}

#[cfg(test)]
mod tests {
    use yoke_api::ClusterId;
    use yoke_api::join_token::{JoinLine, JoinTokenSpec, Program};

    use super::*;

    /// Builds a Secret with this configuration, and returns the join line that a worker reads from
    /// it.
    fn build_join_line(config: &Config) -> JoinLine {
        build_join_line_with(config, true)
    }

    fn build_join_line_with(config: &Config, pod_network: bool) -> JoinLine {
        let id: ClusterId = "bcdfghjk24".parse().unwrap();
        let identity = Identity {
            public_name: id.public_name("demo", &config.base_domain),
            id,
            tenant: "t".into(),
            cluster: "demo".into(),
            uid: "u".into(),
        };
        let materials = Materials {
            root: "a".into(),
            client_ca: "b".into(),
            version: "v1.35.4".into(),
            pod_network,
        };
        let token = JoinToken::new("j", JoinTokenSpec::default());
        let bootstrap = draw_token(Timestamp::UNIX_EPOCH);
        let secret = build_secret(&token, &identity, config, &materials, &bootstrap);
        assert!(is_for(&secret, &identity));
        JoinLine::from_secret(&secret).unwrap()
    }

    #[test]
    fn only_a_distant_address_is_in_the_join_line() {
        let mut config = Config::parse(include_str!("../../testdata/config.yaml")).unwrap();
        for (configured, expected) in [
            ("203.0.113.7", Some("203.0.113.7")),
            ("2001:DB8::7", Some("2001:db8::7")),
            ("127.0.0.1", None),
            ("in.example.org", None),
        ] {
            config.ingress.address = configured.into();
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(build_join_line(&config).address, expected, "{configured}");
        }
    }

    #[test]
    fn the_join_line_has_the_digests_and_the_ssh_address() {
        let mut config = Config::parse(include_str!("../../testdata/config.yaml")).unwrap();
        assert_eq!(build_join_line(&config).program, Program::default());
        config.worker.digests = [("amd64".to_owned(), "0".repeat(64))].into();
        config.worker.ssh = "ssh.example.org:2022".into();
        let program = build_join_line(&config).program;
        assert_eq!(program.digests, config.worker.digests);
        assert_eq!(program.ssh.as_deref(), Some("ssh.example.org:2022"));
    }

    #[test]
    fn the_join_line_has_the_pod_network_setting() {
        let config = Config::parse(include_str!("../../testdata/config.yaml")).unwrap();
        for pod_network in [true, false] {
            assert_eq!(build_join_line_with(&config, pod_network).pod_network, pod_network);
        }
    }

    #[test]
    fn generated_tokens_have_the_format_of_kubernetes() {
        let generated = draw_token(Timestamp::UNIX_EPOCH);
        let text = format!("{}.{}", generated.id, generated.secret);
        assert!(is_bootstrap_token(&text), "{text}");
        assert!(read_token(&text, Timestamp::UNIX_EPOCH) == Some(generated.clone()));
        assert!(draw_token(Timestamp::UNIX_EPOCH) != generated);
        assert!(read_token("abc123", Timestamp::UNIX_EPOCH).is_none());
    }
}
