//! Reads the issued certificates and credentials of one cluster.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use k8s_openapi::jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use yoke_pki::bundle::Trust;
use yoke_pki::inspect::{Purpose, verify_chain};
use yoke_pki::plan::{AuthorityRole, LeafRole, Plan};
use yoke_pki::service_account::ServiceAccountKey;
use yoke_pki::{Bundle, ParsedCertificate};

use crate::cluster::resources::names::{CERTIFICATE, CLIENT_CA, FRONT_PROXY_CA, KEY};
use crate::error::MaterialError;

/// Decoded data of a Secret.
pub type Data = BTreeMap<String, Vec<u8>>;

/// A certificate chain and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The chain, own certificate first.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// All certificates and credentials of one cluster.
#[derive(Clone)]
pub struct Materials {
    pub(super) leaves: BTreeMap<LeafRole, Leaf>,
    /// The cluster's own intermediate CAs, which verify client certificates and, in the ingress,
    /// the API server.
    pub client_ca: String,
    /// The root CA, with which clients verify the API server.
    pub root_ca: String,
    /// CA of kubelets' serving certificates.
    pub kubelet_ca: String,
    /// CA of the front proxy.
    pub front_proxy_ca: String,
    pub(super) service_account: ServiceAccountKey,
    /// Public half of the service-account key.
    pub service_account_public: String,
    /// Credentials of the store's user.
    pub store_credentials: String,
    /// NATS's own CA.
    pub nats_ca: String,
    /// Expiry of the signing CA.
    pub ca_not_after: Timestamp,
    /// Names of certificates that a lost CA signed; the CA was since issued again with another key.
    pub former: Vec<String>,
}

/// Sources of materials: Secrets in the PKI namespace, by name, and values from elsewhere.
#[derive(Debug)]
pub struct Sources<'a, F: Fn(&str) -> Option<Data>> {
    /// Reads the data of a Secret.
    pub secret: F,
    /// The root certificate, PEM.
    pub root: &'a str,
    /// The service-account key, PEM.
    pub service_account: &'a str,
    /// Credentials of the store's user.
    pub store_credentials: &'a str,
    /// NATS's own CA.
    pub nats_ca: &'a str,
    /// The present Secret of kube-apiserver: it shows which CAs were trusted before.
    pub copied: &'a Data,
    /// The present time.
    pub now: Timestamp,
}

impl std::fmt::Debug for Materials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Materials").finish_non_exhaustive()
    }
}

impl Materials {
    /// Reads issued certificates and credentials. `Ok(Err(names))` are Secrets that are not issued
    /// yet.
    pub fn read<F: Fn(&str) -> Option<Data>>(
        plan: &Plan,
        sources: &Sources<'_, F>,
    ) -> Result<Result<Self, Vec<String>>, MaterialError> {
        let mut missing: Vec<String> = Vec::new();
        let mut take = |name: &str| -> Result<Option<Leaf>, MaterialError> {
            let issued = read_leaf(name, (sources.secret)(name))?;
            if issued.is_none() {
                missing.push(name.to_owned());
            }
            Ok(issued)
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
        // The sleeper's certificate is optional: nothing that runs depends on it.
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

    /// An issued certificate. Materials have all of them, except for the sleeper's.
    pub fn leaf(&self, role: LeafRole) -> &Leaf {
        self.leaves
            .get(&role)
            .expect("`read` returns all these certificates of the plan or none")
    }

    /// Whether the API server's certificate has a DNS name.
    pub fn serves(&self, name: &str) -> bool {
        let chain = ParsedCertificate::from_pem(&self.leaf(LeafRole::ApiServer).certificate);
        let leaf = chain.ok().and_then(|chain| chain.into_iter().next());
        leaf.is_some_and(|leaf| leaf.dns_names.iter().any(|own| own == name))
    }

    /// Digest of the files that a running control plane reads only once: a change of it requires a
    /// restart.
    ///
    /// Certificates are not in it, nor the bundles that kube-apiserver reloads by itself. The
    /// exception is the serving certificate of a konnectivity-server: that server loads it at its
    /// start and never again (as of v0.34.0).
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

/// Reads a certificate and its key from the data of a Secret; `None` if it is not issued yet.
fn read_leaf(name: &str, data: Option<Data>) -> Result<Option<Leaf>, MaterialError> {
    let text = |key: &str| {
        data.as_ref()
            .and_then(|data| data.get(key))
            .filter(|bytes| !bytes.is_empty())
    };
    let (Some(certificate), Some(key)) = (text(CERTIFICATE), text(KEY)) else {
        return Ok(None);
    };
    let utf8 = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| MaterialError::Text(name.to_owned()));
    Ok(Some(Leaf {
        certificate: utf8(certificate)?,
        key: utf8(key)?,
    }))
}

/// Adds CAs that an issued certificate still needs, and returns the names of these certificates.
///
/// A CA whose Secret is lost is issued again with another key, but the certificates that it signed
/// are not. Until the new key renews them, the old CA certificate is trusted too; a copy of it
/// exists. A certificate that no known CA signed stops the copying.
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

/// Whether one of these CAs signed a certificate, at a time when it was valid: only the signer
/// matters here, not expiry.
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

/// The first PEM block of a chain, which is the certificate itself. A CA's Secret has the whole
/// chain.
fn first_certificate(chain: &str) -> &str {
    const END: &str = "-----END CERTIFICATE-----";
    chain.find(END).map_or(chain, |at| &chain[..at + END.len()])
}
