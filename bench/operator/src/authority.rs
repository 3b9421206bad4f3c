//! Issues certificates in place of cert-manager, with keys from a pool.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints,
};
use yoke_operator::testing::cluster::resources::secrets::Data;
use yoke_pki::cert_manager::{Certificate, Usage};
use yoke_pki::plan::{ROOT, SELF_SIGNED_ISSUER};

/// Number of keys in the pool. cert-manager generates a key for each certificate.
const KEYS: usize = 64;

/// The certificate authority with its key pool.
pub(crate) struct Authority {
    keys: Vec<(KeyPair, String)>,
    next: AtomicUsize,
    params: CertificateParams,
    /// The root certificate as PEM.
    pub(crate) root: String,
}

/// Certificates of one Cluster, by the name of their Secret.
pub(crate) type Issued = BTreeMap<String, Data>;

impl Authority {
    /// Generates the keys and the root certificate.
    pub(crate) fn new() -> Result<Self> {
        let mut keys = Vec::new();
        for _ in 0..KEYS {
            let key = KeyPair::generate()?;
            let text = key.serialize_pem();
            keys.push((key, text));
        }
        let params = to_authority(ROOT);
        let root = params.self_signed(&keys[0].0)?.pem();
        Ok(Self {
            keys,
            next: AtomicUsize::new(0),
            params,
            root,
        })
    }

    /// The data of the root Secret, as cert-manager stores it.
    pub(crate) fn root_data(&self) -> Data {
        to_data(&self.root, &self.keys[0].1, &self.root)
    }

    /// Issues the requested certificates. A CA must come before the certificates that it issues.
    pub(crate) fn issue(&self, asked: &[Certificate]) -> Result<Issued> {
        let mut authorities = BTreeMap::new();
        let mut issued = Issued::new();
        for certificate in asked {
            let (spec, number) = (&certificate.spec, self.next.fetch_add(1, Ordering::Relaxed));
            let (key, key_text) = &self.keys[number % KEYS];
            let params = to_params(certificate)?;
            let (own, chain, ca) = match spec.issuer_ref.name.as_str() {
                SELF_SIGNED_ISSUER => {
                    let own = params.self_signed(key)?.pem();
                    (own.clone(), own.clone(), own)
                }
                ROOT => {
                    let own = params
                        .signed_by(key, &Issuer::from_params(&self.params, &self.keys[0].0))?
                        .pem();
                    (own.clone(), own, self.root.clone())
                }
                name => {
                    let (params_above, key_above, above): &(CertificateParams, usize, String) =
                        authorities.get(name).context("an issuer that is not issued")?;
                    let issuer = Issuer::from_params(params_above, &self.keys[*key_above].0);
                    let own = params.signed_by(key, &issuer)?.pem();
                    (own.clone(), format!("{own}{above}"), above.clone())
                }
            };
            if spec.is_ca {
                authorities.insert(spec.secret_name.clone(), (params, number % KEYS, own));
            }
            issued.insert(spec.secret_name.clone(), to_data(&chain, key_text, &ca));
        }
        Ok(issued)
    }
}

fn to_data(chain: &str, key: &str, ca: &str) -> Data {
    let texts = [("tls.crt", chain), ("tls.key", key), ("ca.crt", ca)];
    texts
        .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
        .into()
}

fn to_authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn to_params(certificate: &Certificate) -> Result<CertificateParams> {
    let spec = &certificate.spec;
    if spec.is_ca {
        let mut params = to_authority(&spec.secret_name);
        if let Some(constraints) = &spec.name_constraints {
            let permitted = constraints.permitted.iter().flat_map(|item| &item.dns_domains);
            params.name_constraints = Some(NameConstraints {
                permitted_subtrees: permitted.cloned().map(GeneralSubtree::DnsName).collect(),
                excluded_subtrees: vec![
                    GeneralSubtree::IpAddress(CidrSubnet::V4([0; 4], [0; 4])),
                    GeneralSubtree::IpAddress(CidrSubnet::V6([0; 16], [0; 16])),
                ],
            });
        }
        return Ok(params);
    }
    let mut params = CertificateParams::new(spec.dns_names.clone())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(name) = &spec.common_name {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    for organization in spec.subject.iter().flat_map(|subject| &subject.organizations) {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = match spec.usages.contains(&Usage::ServerAuth) {
        true => vec![ExtendedKeyUsagePurpose::ServerAuth],
        false => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    Ok(params)
}
