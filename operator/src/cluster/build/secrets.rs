//! Secrets: what each component of a control plane may know, and the tenant's kubeconfig.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use yoke_api::labels::component;
use yoke_api::names::{API_PORT, KUBECONFIG_KEY, kubeconfig_secret};
use yoke_pki::bundle::{BundleError, Trust};
use yoke_pki::inspect::{InspectError, Purpose, verify_chain};
use yoke_pki::kubeconfig::{Authority, Credential, KubeconfigError};
use yoke_pki::plan::{AuthorityRole, LeafRole, Plan, SLEEPER_LEAF};
use yoke_pki::service_account::{KeyError, ServiceAccountKey};
use yoke_pki::{Bundle, Kubeconfig, ParsedCertificate};

use super::arguments::PKI;
use crate::cluster::identity::Identity;
use crate::config::Config;

/// Secret of kube-apiserver.
pub(in crate::cluster) const API_SERVER: &str = "kube-apiserver";
/// Secret of kube-controller-manager.
pub(super) const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// Secret of kube-scheduler.
pub(super) const SCHEDULER: &str = "kube-scheduler";
/// Secret of konnectivity-server.
pub(in crate::cluster) const KONNECTIVITY: &str = "konnectivity-server";
/// Secret of kine-nats.
pub(in crate::cluster) const STORE: &str = "kine-nats";

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// What konnectivity-server shows to agents.
pub(super) const SERVING_CERTIFICATE: &str = "serving.crt";
pub(super) const SERVING_KEY: &str = "serving.key";
const CLIENT_CA: &str = "client-ca.crt";
const FRONT_PROXY_CA: &str = "front-proxy-ca.crt";

/// Data of a Secret.
pub type Data = BTreeMap<String, Vec<u8>>;

/// What was issued cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// A bundle cannot be composed.
    #[error("composing a trust bundle")]
    Bundle(#[from] BundleError),
    /// A certificate cannot be read.
    #[error("reading an issued certificate")]
    Inspect(#[from] InspectError),
    /// The service-account key cannot be read.
    #[error("reading the service-account key")]
    ServiceAccount(#[from] KeyError),
    /// A kubeconfig cannot be written.
    #[error("composing a kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// A text is not UTF-8.
    #[error("the Secret of {0} does not hold text")]
    Text(String),
    /// A certificate is not of the CA that it should be of.
    #[error(
        "the certificate of {0} is not signed by the cluster's present CA, whose key must have been lost; restore the CA's \
         Secret, or delete the Secret {0} to have it issued again"
    )]
    Stray(String),
    /// A certificate and its key do not belong together.
    #[error("the certificate and the key of {0} do not belong together")]
    Mismatch(String),
}

/// A certificate chain and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Chain, leaf first.
    pub certificate: String,
    /// Key.
    pub key: String,
}

/// All that was issued and drawn for one cluster.
#[derive(Clone)]
pub struct Materials {
    leaves: BTreeMap<LeafRole, Leaf>,
    /// Own intermediates: whom client certificates, and the ingress upstream, are verified by.
    pub client_ca: String,
    /// The root, for those who verify the API server.
    pub root_ca: String,
    /// CA of kubelets' serving certificates.
    pub kubelet_ca: String,
    /// CA of the front proxy.
    pub front_proxy_ca: String,
    service_account: ServiceAccountKey,
    /// Public half of the service-account key.
    pub service_account_public: String,
    /// Credentials of the store's user.
    pub store_credentials: String,
    /// NATS's own CA.
    pub nats_ca: String,
    /// End of the signing CA's life.
    pub ca_not_after: Timestamp,
    /// Leaves of a CA that was lost and issued anew with another key.
    pub former: Vec<String>,
}

/// Where materials come from: data of Secrets by name in the namespace of certificate authorities.
#[derive(Debug)]
pub struct Sources<'a, F: Fn(&str) -> Option<Data>> {
    /// Data of a Secret.
    pub secret: F,
    /// The root certificate, PEM.
    pub root: &'a str,
    /// The service-account key, PEM.
    pub service_account: &'a str,
    /// Credentials of the store's user.
    pub store_credentials: &'a str,
    /// NATS's own CA.
    pub nats_ca: &'a str,
    /// What kube-apiserver was given last: it tells which CAs were trusted.
    pub copied: &'a Data,
    /// The time.
    pub now: Timestamp,
}

impl std::fmt::Debug for Materials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Materials").finish_non_exhaustive()
    }
}

impl Materials {
    /// Reads what was issued; `Ok(Err(names))` are those that are not issued yet.
    pub fn read<F: Fn(&str) -> Option<Data>>(
        plan: &Plan,
        sources: &Sources<'_, F>,
    ) -> Result<Result<Self, Vec<String>>, MaterialError> {
        let mut missing: Vec<String> = Vec::new();
        let mut take = |name: &str| -> Result<Option<Leaf>, MaterialError> {
            let data = (sources.secret)(name);
            let text = |key: &str| {
                data.as_ref()
                    .and_then(|data| data.get(key))
                    .filter(|bytes| !bytes.is_empty())
            };
            let (Some(certificate), Some(key)) = (text(CERTIFICATE), text(KEY)) else {
                missing.push(name.to_owned());
                return Ok(None);
            };
            let utf8 =
                |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| MaterialError::Text(name.to_owned()));
            Ok(Some(Leaf {
                certificate: utf8(certificate)?,
                key: utf8(key)?,
            }))
        };
        let mut leaves = BTreeMap::new();
        for leaf in &plan.leaves {
            if let Some(issued) = take(&leaf.name)? {
                check_pair(&leaf.name, &issued)?;
                leaves.insert(leaf.role, issued);
            }
        }
        let mut authorities: BTreeMap<AuthorityRole, Vec<String>> = BTreeMap::new();
        for authority in &plan.authorities {
            if let Some(issued) = take(&authority.name)? {
                authorities.entry(authority.role).or_default().push(issued.certificate);
            }
        }
        // Nothing that runs waits for what is shown in its place by further names.
        let sleeper = plan.leaves.iter().find(|leaf| leaf.role == LeafRole::Sleeper);
        missing.retain(|name| sleeper.is_none_or(|sleeper| sleeper.name != *name));
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        let former = trust_former(plan, sources, &leaves, &mut authorities)?;
        let bundle = |trust, role| {
            let certificates = authorities.get(&role).map(Vec::as_slice).unwrap_or_default();
            Bundle::new(trust, certificates.iter().map(|chain| first_certificate(chain)))
        };
        let client = bundle(Trust::Client, AuthorityRole::Cluster)?;
        let ends = client.certificates().iter().map(|certificate| certificate.not_after);
        let service_account = ServiceAccountKey::from_pem(sources.service_account)?;
        Ok(Ok(Self {
            leaves,
            ca_not_after: ends.max().unwrap_or(Timestamp::MIN),
            client_ca: client.to_pem(),
            root_ca: Bundle::new(Trust::Root, [first_certificate(sources.root)])?.to_pem(),
            kubelet_ca: bundle(Trust::KubeletServing, AuthorityRole::KubeletServing)?.to_pem(),
            front_proxy_ca: bundle(Trust::FrontProxy, AuthorityRole::FrontProxy)?.to_pem(),
            service_account_public: service_account.public_pem().to_owned(),
            service_account,
            store_credentials: sources.store_credentials.to_owned(),
            nats_ca: sources.nats_ca.to_owned(),
            former,
        }))
    }

    /// A leaf. All are there but for the sleeper's, or there would be no materials.
    pub fn leaf(&self, role: LeafRole) -> &Leaf {
        self.leaves
            .get(&role)
            .expect("`read` gives all these leaves of the plan or none")
    }

    /// Whether the API server's certificate carries a name.
    pub fn serves(&self, name: &str) -> bool {
        let chain = ParsedCertificate::from_pem(&self.leaf(LeafRole::ApiServer).certificate);
        let leaf = chain.ok().and_then(|chain| chain.into_iter().next());
        leaf.is_some_and(|leaf| leaf.dns_names.iter().any(|own| own == name))
    }

    /// Digest of what a running control plane reads once: it must start again when this changes. Certificates are not in
    /// it, nor the bundles that kube-apiserver reads again by itself, but for what a konnectivity-server shows: that loads
    /// its certificate when it starts, and never again (as of v0.34.0).
    pub fn restart_digest(&self, konnectivity: bool) -> String {
        let mut hasher = Sha256::new();
        let shown = konnectivity.then(|| self.leaf(LeafRole::ApiServer).certificate.as_str());
        let parts = [
            self.service_account.private_pem(),
            &self.root_ca,
            &self.kubelet_ca,
            &self.store_credentials,
            &self.nats_ca,
        ];
        for part in parts.into_iter().chain(shown) {
            hasher.update(part.len().to_be_bytes());
            hasher.update(part);
        }
        HEXLOWER.encode(&hasher.finalize()[..16])
    }
}

/// Adds to the CAs those that a leaf still needs; says which leaves these are.
///
/// A CA whose Secret is lost is issued anew with another key, and its leaves are not: until they are renewed, by the new
/// key, the old certificate, of which there is a copy, is trusted too. A leaf that no CA signed stops the copying.
fn trust_former<F: Fn(&str) -> Option<Data>>(
    plan: &Plan,
    sources: &Sources<'_, F>,
    leaves: &BTreeMap<LeafRole, Leaf>,
    authorities: &mut BTreeMap<AuthorityRole, Vec<String>>,
) -> Result<Vec<String>, MaterialError> {
    let issued = authorities.clone();
    let mut former = Vec::new();
    for planned in &plan.leaves {
        let Some(leaf) = leaves.get(&planned.role) else {
            continue;
        };
        let chain = ParsedCertificate::from_pem(&leaf.certificate)?;
        let role = planned.role.authority();
        let mut anchors = Vec::new();
        for text in issued.get(&role).into_iter().flatten() {
            anchors.extend(ParsedCertificate::from_pem(first_certificate(text))?);
        }
        if is_signed(&chain, &anchors, sources.now) {
            continue;
        }
        let copied = match role {
            AuthorityRole::FrontProxy => FRONT_PROXY_CA,
            AuthorityRole::Cluster | AuthorityRole::KubeletServing => CLIENT_CA,
        };
        let copied = sources
            .copied
            .get(copied)
            .and_then(|bytes| std::str::from_utf8(bytes).ok());
        let copied = copied
            .and_then(|text| ParsedCertificate::from_pem(text).ok())
            .unwrap_or_default();
        let signer = copied
            .iter()
            .find(|one| is_signed(&chain, std::slice::from_ref(one), sources.now))
            .ok_or_else(|| MaterialError::Stray(planned.name.clone()))?;
        let (trusted, text) = (authorities.entry(role).or_default(), signer.to_pem());
        if !trusted.contains(&text) {
            trusted.push(text);
        }
        former.push(planned.name.clone());
    }
    Ok(former)
}

/// Whether one of these CAs signed a leaf. One that has expired is as good as one that will: it is about whose it is.
fn is_signed(chain: &[ParsedCertificate], anchors: &[ParsedCertificate], now: Timestamp) -> bool {
    let Some(leaf) = chain.first() else {
        return false;
    };
    let purpose = match leaf.dns_names.first() {
        Some(name) => Purpose::Server(name),
        None => Purpose::Client,
    };
    let then = now.max(leaf.not_before).min(leaf.not_after);
    verify_chain(chain, anchors, purpose, then).is_ok()
}

fn check_pair(name: &str, leaf: &Leaf) -> Result<(), MaterialError> {
    let chain = ParsedCertificate::from_pem(&leaf.certificate)?;
    let matches = match chain.first() {
        Some(certificate) => certificate.matches_key(&leaf.key)?,
        None => false,
    };
    if matches {
        Ok(())
    } else {
        Err(MaterialError::Mismatch(name.to_owned()))
    }
}

/// Whether a Secret holds a certificate and its key.
pub fn is_issued(secret: &Secret) -> bool {
    let has = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        value.is_some_and(|value| !value.0.is_empty())
    };
    has(CERTIFICATE) && has(KEY)
}

/// Names of what [`build_component_secrets`] builds of these leaves.
pub fn component_secrets(leaves: impl Iterator<Item = LeafRole>) -> Vec<&'static str> {
    let optional = leaves.filter_map(|role| match role {
        LeafRole::Konnectivity => Some(KONNECTIVITY),
        LeafRole::Sleeper => Some(SLEEPER_LEAF),
        _ => None,
    });
    [API_SERVER, CONTROLLER_MANAGER, SCHEDULER, STORE]
        .into_iter()
        .chain(optional)
        .collect()
}

/// The Secrets of the control plane's components, each for one container, and the one with what the ingress shows in their
/// place by further names.
pub fn build_component_secrets(identity: &Identity, materials: &Materials) -> Result<Vec<Secret>, KubeconfigError> {
    let leaf = |role| materials.leaf(role);
    let serving = leaf(LeafRole::ApiServer);
    let kubelet = leaf(LeafRole::ApiServerKubeletClient);
    let front = leaf(LeafRole::FrontProxyClient);
    let manager = leaf(LeafRole::ControllerManager);
    let scheduler = leaf(LeafRole::Scheduler);
    let kubeconfig = build_component_kubeconfig(identity)?;
    let private = materials.service_account.private_pem();
    let konnectivity = materials.leaves.get(&LeafRole::Konnectivity).map(|own| {
        build_hosted(
            identity,
            KONNECTIVITY,
            component::PKI,
            &[
                (CERTIFICATE, &own.certificate),
                (KEY, &own.key),
                (SERVING_CERTIFICATE, &serving.certificate),
                (SERVING_KEY, &serving.key),
                ("root-ca.crt", &materials.root_ca),
                ("kubeconfig", &kubeconfig),
            ],
        )
    });
    let sleeper = materials.leaves.get(&LeafRole::Sleeper).map(|own| {
        let data = [(CERTIFICATE, own.certificate.as_str()), (KEY, &own.key)];
        build_hosted(identity, SLEEPER_LEAF, component::PKI, &data)
    });
    let all = vec![
        build_hosted(
            identity,
            API_SERVER,
            component::PKI,
            &[
                (CERTIFICATE, &serving.certificate),
                (KEY, &serving.key),
                ("kubelet-client.crt", &kubelet.certificate),
                ("kubelet-client.key", &kubelet.key),
                ("front-proxy-client.crt", &front.certificate),
                ("front-proxy-client.key", &front.key),
                (CLIENT_CA, &materials.client_ca),
                ("kubelet-ca.crt", &materials.kubelet_ca),
                (FRONT_PROXY_CA, &materials.front_proxy_ca),
                ("sa.key", private),
                ("sa.pub", &materials.service_account_public),
            ],
        ),
        build_hosted(
            identity,
            CONTROLLER_MANAGER,
            component::PKI,
            &[
                (CERTIFICATE, &manager.certificate),
                (KEY, &manager.key),
                ("root-ca.crt", &materials.root_ca),
                ("sa.key", private),
                ("kubeconfig", &kubeconfig),
            ],
        ),
        build_hosted(
            identity,
            SCHEDULER,
            component::PKI,
            &[
                (CERTIFICATE, &scheduler.certificate),
                (KEY, &scheduler.key),
                ("root-ca.crt", &materials.root_ca),
                ("kubeconfig", &kubeconfig),
            ],
        ),
        build_hosted(
            identity,
            STORE,
            component::STORE,
            &[
                ("user.creds", &materials.store_credentials),
                ("ca.crt", &materials.nats_ca),
            ],
        ),
    ];
    Ok(all.into_iter().chain(konnectivity).chain(sleeper).collect())
}

/// The kubeconfig of a component: its own files, which client-go reads again when they change, and the API server beside it.
fn build_component_kubeconfig(identity: &Identity) -> Result<String, KubeconfigError> {
    Kubeconfig {
        context: identity.cluster.clone(),
        user: "component".into(),
        namespace: None,
        server: format!("https://127.0.0.1:{API_PORT}"),
        tls_server_name: Some(identity.upstream_name()),
        authority: Authority::File(format!("{PKI}/root-ca.crt")),
        credential: Credential::Files {
            certificate: format!("{PKI}/{CERTIFICATE}"),
            key: format!("{PKI}/{KEY}"),
        },
    }
    .to_yaml()
}

/// The kubeconfig that the tenant is given.
pub fn build_kubeconfig(
    identity: &Identity,
    config: &Config,
    materials: &Materials,
) -> Result<Secret, KubeconfigError> {
    let admin = materials.leaf(LeafRole::Admin);
    let text = Kubeconfig {
        context: identity.cluster.clone(),
        user: format!("{}-admin", identity.cluster),
        namespace: None,
        server: ingress_url(config),
        tls_server_name: Some(identity.public_name.to_string()),
        authority: Authority::Data(materials.root_ca.clone()),
        credential: Credential::Data {
            certificate: admin.certificate.clone(),
            key: admin.key.clone(),
        },
    }
    .to_yaml()?;
    Ok(Secret {
        metadata: identity.tenant_meta(&kubeconfig_secret(&identity.cluster), component::PKI),
        data: Some(to_data(&[(KUBECONFIG_KEY, &text)])),
        // The type is that of Cluster API's contract, which other tools look for.
        type_: Some("cluster.x-k8s.io/secret".into()),
        ..Secret::default()
    })
}

/// URL of the ingress by its address.
pub fn ingress_url(config: &Config) -> String {
    let address = &config.ingress.address;
    match address.parse::<std::net::Ipv6Addr>() {
        Ok(v6) => format!("https://[{v6}]:{}", config.ingress.port),
        Err(_) => format!("https://{address}:{}", config.ingress.port),
    }
}

fn build_hosted(identity: &Identity, name: &str, component: &str, data: &[(&str, &str)]) -> Secret {
    Secret {
        metadata: identity.hosted_meta(name, component),
        data: Some(to_data(data)),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

fn to_data(pairs: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
    pairs
        .iter()
        .map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())))
        .collect()
}

/// The first PEM block of a chain: the certificate itself. A CA's Secret holds its chain.
fn first_certificate(chain: &str) -> &str {
    const END: &str = "-----END CERTIFICATE-----";
    chain.find(END).map_or(chain, |at| &chain[..at + END.len()])
}
