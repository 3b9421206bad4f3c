//! Host objects for tests of this crate and of other crates.

use std::sync::OnceLock;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256};
use data_encoding::BASE64URL_NOPAD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use yoke_api::ClusterId;
use yoke_api::ingress::{Asleep, CONFIG_KEY, IngressConfig, Upstream};
use yoke_api::labels;
use yoke_api::names::{INGRESS_CONFIG_MAP, PKI_NAMESPACE};
use yoke_pki::plan::{INGRESS_LEAF, SLEEPER_LEAF};

/// Base domain of all tests.
pub const BASE_DOMAIN: &str = "yoke.test";

/// A cluster on the host; modifiers change it, and methods convert it to its objects.
#[derive(Clone, Debug)]
pub struct ClusterFixture {
    /// The ingress configuration that the operator would write.
    pub config: IngressConfig,
    /// Creation time of its ConfigMap, in seconds since the epoch.
    pub created: i64,
    /// Addresses of its control plane.
    pub addresses: Vec<String>,
    /// Port of its control plane.
    pub port: u16,
}

/// Time at which clusters fell asleep or began to wake.
pub const SINCE: &str = "2026-01-01T00:00:00Z";

/// [`SINCE`] as a Kubernetes time.
pub fn since() -> Time {
    Time(SINCE.parse().expect("a time"))
}

/// The sleep state of a cluster that is waking.
pub fn waking(since: Time, problem: Option<&str>) -> Asleep {
    Asleep::Waking {
        since,
        problem: problem.map(str::to_owned),
    }
}

/// The cluster `name` with the ID `id`, at 10.0.0.1:6443, as the operator would describe it.
pub fn cluster(name: &str, id: &str) -> ClusterFixture {
    let id: ClusterId = id.parse().expect("tests use valid identities");
    let public_name = id.public_name(name, BASE_DOMAIN);
    let (ca, key) = pems();
    ClusterFixture {
        config: IngressConfig {
            tenant: "tenant".into(),
            cluster: name.into(),
            extra_names: vec![],
            konnectivity: false,
            allowed_sources: None,
            issuer: public_name.issuer(),
            audiences: vec![public_name.issuer()],
            service_account_keys: vec![key.clone()],
            client_ca: ca.clone(),
            upstream: Upstream {
                server_name: id.hosted_namespace().upstream_name(name),
                ca: ca.clone(),
                service: name.into(),
            },
            asleep: None,
            public_name,
            id,
        },
        created: 1000,
        addresses: vec!["10.0.0.1".into()],
        port: 6443,
    }
}

impl ClusterFixture {
    /// Sets extra names.
    pub fn with_extra_names(mut self, names: &[&str]) -> Self {
        self.config.extra_names = names.iter().map(ToString::to_string).collect();
        self
    }

    /// Adds a konnectivity-server.
    pub fn with_konnectivity(mut self) -> Self {
        self.config.konnectivity = true;
        self
    }

    /// Allows only these source ranges.
    pub fn reached_from(mut self, ranges: &[&str]) -> Self {
        let ranges = ranges.iter().map(|text| text.parse().expect("tests use valid ranges"));
        self.config.allowed_sources = Some(ranges.collect());
        self
    }

    /// Sets the sleep state.
    pub fn asleep(mut self, state: Asleep) -> Self {
        self.config.asleep = Some(state);
        self
    }

    /// Sets the addresses and the port.
    pub fn at(mut self, addresses: &[&str], port: u16) -> Self {
        self.addresses = addresses.iter().map(ToString::to_string).collect();
        self.port = port;
        self
    }

    /// Sets the creation time.
    pub fn created_at(mut self, seconds: i64) -> Self {
        self.created = seconds;
        self
    }

    /// The control-plane namespace of the cluster.
    pub fn namespace(&self) -> String {
        self.config.id.hosted_namespace().as_str().to_owned()
    }

    /// The SNI name under the base domain.
    pub fn public_name(&self) -> String {
        self.config.public_name.as_str().to_owned()
    }

    /// The SNI name of its konnectivity agents.
    pub fn konnectivity_name(&self) -> String {
        self.config.public_name.konnectivity()
    }

    /// The ConfigMap that the operator writes.
    pub fn config_map(&self) -> ConfigMap {
        let text = serde_json::to_string(&self.config).expect("the contract is JSON");
        ConfigMap {
            metadata: self.metadata(INGRESS_CONFIG_MAP, labels::component::INGRESS),
            data: Some([(CONFIG_KEY.to_owned(), text)].into()),
            ..Default::default()
        }
    }

    /// The EndpointSlice that Kubernetes writes for the control plane's Service.
    pub fn slice(&self) -> EndpointSlice {
        let name = format!("{}-x1", self.config.upstream.service);
        let mut metadata = self.metadata(&name, labels::component::CONTROL_PLANE);
        let service = self.config.upstream.service.clone();
        let labels = metadata.labels.get_or_insert_default();
        labels.insert("kubernetes.io/service-name".into(), service);
        EndpointSlice {
            metadata,
            address_type: "IPv4".into(),
            endpoints: self.addresses.iter().map(|address| endpoint(address)).collect(),
            ports: Some(vec![EndpointPort {
                name: Some("https".into()),
                port: Some(self.port.into()),
                protocol: Some("TCP".into()),
                ..Default::default()
            }]),
        }
    }

    fn metadata(&self, name: &str, component: &str) -> ObjectMeta {
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        ObjectMeta {
            name: Some(name.into()),
            namespace: Some(self.namespace()),
            creation_timestamp: Timestamp::from_second(self.created).ok().map(Time),
            labels: Some(
                [
                    label(labels::ID, self.config.id.as_str()),
                    label(labels::CLUSTER, &self.config.cluster),
                    label(labels::TENANT, &self.config.tenant),
                    label(labels::COMPONENT, component),
                ]
                .into(),
            ),
            ..Default::default()
        }
    }
}

/// The EndpointSlice that Kubernetes writes for the Service of ingress-xds.
pub fn replica_slice(addresses: &[&str]) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some("yoke-ingress-xds-x1".into()),
            namespace: Some("yoke-system".into()),
            ..Default::default()
        },
        address_type: "IPv4".into(),
        endpoints: addresses.iter().map(|address| endpoint(address)).collect(),
        ports: None,
    }
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        addresses: vec![address.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(true),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// An intermediate CA certificate and a public key, as PEM.
pub fn pems() -> &'static (String, String) {
    static PEMS: OnceLock<(String, String)> = OnceLock::new();
    PEMS.get_or_init(|| {
        let ca = |name: &str| {
            let mut params = CertificateParams::new(vec![]).expect("no names are valid names");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params
        };
        let key = || KeyPair::generate().expect("the system gives randomness");
        let root = Issuer::new(ca("root"), key());
        let intermediate = key();
        let signed = ca("intermediate").signed_by(&intermediate, &root);
        let account = key();
        let key_pem = pem::encode(&pem::Pem::new("PUBLIC KEY", account.subject_public_key_info()));
        (signed.expect("rcgen signs what it made").pem(), key_pem)
    })
}

/// The Secret that cert-manager writes for the ingress.
pub fn certificate_secret(chain: &str, key: &str) -> Secret {
    secret(PKI_NAMESPACE, INGRESS_LEAF, chain, key)
}

/// The Secret with an activator certificate: for all clusters, or in a control-plane namespace for
/// the extra names of its cluster.
pub fn activator_secret(namespace: &str, chain: &str, key: &str) -> Secret {
    secret(namespace, SLEEPER_LEAF, chain, key)
}

fn secret(namespace: &str, name: &str, chain: &str, key: &str) -> Secret {
    let field = |name: &str, text: &str| (name.to_owned(), ByteString(text.as_bytes().to_vec()));
    Secret {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some(namespace.into()),
            ..Default::default()
        },
        data: Some([field("tls.crt", chain), field("tls.key", key)].into()),
        ..Default::default()
    }
}

/// A new certificate and its key, as PEM.
pub fn ingress_pems() -> (String, String) {
    let key = KeyPair::generate().expect("the system gives randomness");
    let params = CertificateParams::new(vec!["kubernetes".into()]).expect("a label is a name");
    let leaf = params.self_signed(&key).expect("rcgen signs what it made");
    (leaf.pem(), key.serialize_pem())
}

/// A service account signing key of a cluster.
pub struct Signer {
    key: SigningKey,
    /// The public key, PEM.
    pub pem: String,
    /// Kubernetes' ID of the key.
    pub id: String,
}

enum SigningKey {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
}

impl Signer {
    /// A new RSA key.
    pub fn rsa(size: KeySize) -> Self {
        let pair = RsaKeyPair::generate(size).expect("the system gives randomness");
        let public = pair.public_key().as_der().expect("a public key has a DER form");
        let public = public.as_ref().to_vec();
        Self::new(SigningKey::Rsa(pair), public)
    }

    /// A new key on the curve P-256.
    pub fn p256() -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("the system gives randomness");
        let public = pair.public_key().as_der().expect("a public key has a DER form");
        let public = public.as_ref().to_vec();
        Self::new(SigningKey::P256(pair), public)
    }

    fn new(key: SigningKey, public: Vec<u8>) -> Self {
        Self {
            key,
            id: BASE64URL_NOPAD.encode(&Sha256::digest(&public)),
            pem: pem::encode(&pem::Pem::new("PUBLIC KEY", public)),
        }
    }

    /// The token header that kube-apiserver writes.
    pub fn header(&self) -> Value {
        let name = match self.key {
            SigningKey::Rsa(_) => "RS256",
            SigningKey::P256(_) => "ES256",
        };
        json!({"alg": name, "kid": self.id})
    }

    /// A signed token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        self.sign(&self.header().to_string(), &claims.to_string())
    }

    /// A signed token with any header and claims.
    pub fn sign(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", to_part(header), to_part(claims));
        let (random, message) = (SystemRandom::new(), signed.as_bytes());
        let signature = match &self.key {
            SigningKey::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let done = pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature);
                done.expect("RSA signs anything");
                signature
            }
            SigningKey::P256(pair) => {
                let signature = pair.sign(&random, message).expect("ECDSA signs anything");
                signature.as_ref().to_vec()
            }
        };
        format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
    }
}

/// Claims as kube-apiserver writes them into the token of a pod, valid for one hour from `now`.
pub fn claims(issuer: &str, audiences: &[&str], now: i64) -> Value {
    json!({
        "iss": issuer,
        "aud": audiences,
        "exp": now + 3600,
        "nbf": now,
        "iat": now,
        "jti": "b8b5ee8a-5b3a-4b1f-9a3c-3d9c0a5d3a0e",
        "sub": "system:serviceaccount:default:default",
        "kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "default", "uid": "1"}},
    })
}

/// Encodes one part of a token.
pub fn to_part(text: &str) -> String {
    BASE64URL_NOPAD.encode(text.as_bytes())
}
