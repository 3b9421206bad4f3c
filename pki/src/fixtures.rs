//! A host that issues the Certificates of a plan like cert-manager: with rcgen, from a given `now`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType,
};
use yoke_api::ClusterId;

use crate::cert_manager::{Certificate, CertificateSpec, Usage};
use crate::inspect::ParsedCertificate;
use crate::plan::{AuthorityRole, ClusterFacts, Generations, LeafRole, Lifetimes, Plan, ROOT, SELF_SIGNED_ISSUER};

pub(crate) const TENANT_DOMAIN: &str = "clusters.example.com";

/// A Secret of type TLS.
#[derive(Clone)]
pub(crate) struct Issued {
    /// `tls.crt`: the certificate and its chain, without a root.
    pub(crate) chain: String,
    /// `tls.key`.
    pub(crate) key: String,
}

/// The Secrets in the namespace of the CAs.
pub(crate) struct Host {
    now: Timestamp,
    secrets: BTreeMap<String, Issued>,
}

pub(crate) fn now() -> Timestamp {
    "2026-11-21T00:00:00Z".parse().unwrap()
}

/// Cluster `demo` with this identity, of a tenant that owns [`TENANT_DOMAIN`].
pub(crate) fn facts(id: &str) -> ClusterFacts {
    let id: ClusterId = id.parse().unwrap();
    ClusterFacts {
        tenant: "acme".into(),
        cluster: "demo".into(),
        public_name: id.public_name("demo", "yoke.test"),
        extra_sans: vec!["api.clusters.example.com".into()],
        allowed_domains: vec![TENANT_DOMAIN.into()],
        konnectivity: true,
        lifetimes: Lifetimes {
            ca: Duration::from_hours(8760),
            overlap: Duration::from_hours(2880),
            leaf: Duration::from_hours(720),
        },
        generations: Generations::first(),
        id,
    }
}

impl Host {
    /// A host with a root.
    pub(crate) fn new(now: Timestamp) -> Self {
        let mut host = Self {
            now,
            secrets: BTreeMap::new(),
        };
        let mut root = CertificateSpec {
            secret_name: ROOT.into(),
            is_ca: true,
            common_name: Some(ROOT.into()),
            duration: Some("87600h".into()),
            usages: vec![Usage::CertSign],
            ..CertificateSpec::default()
        };
        root.issuer_ref.name = SELF_SIGNED_ISSUER.into();
        host.issue(&Certificate::new(ROOT, root));
        host
    }

    /// Issues all Certificates in the plan of `facts`.
    pub(crate) fn with(mut self, facts: &ClusterFacts) -> Self {
        for certificate in Plan::new(facts).unwrap().certificates {
            if !self.secrets.contains_key(&certificate.spec.secret_name) {
                self.issue(&certificate);
            }
        }
        self
    }

    pub(crate) fn root(&self) -> &Issued {
        &self.secrets[ROOT]
    }

    pub(crate) fn authority(&self, facts: &ClusterFacts, role: AuthorityRole) -> &Issued {
        &self.secrets[&role.object_name(&facts.id, facts.generations.signing())]
    }

    pub(crate) fn leaf(&self, facts: &ClusterFacts, role: LeafRole) -> &Issued {
        &self.secrets[&role.object_name(&facts.id)]
    }

    /// A certificate of the cluster's I for any alternative names, regardless of the plan.
    pub(crate) fn rogue_leaf(&self, facts: &ClusterFacts, names: &[&str]) -> Issued {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.set_validity(&mut params, "720h");
        let key = KeyPair::generate().unwrap();
        self.sign(&params, &key, self.authority(facts, AuthorityRole::Cluster))
    }

    /// Signs whatever a request contains with `issuer`, like a signer without checks. Returns the
    /// chain.
    pub(crate) fn sign_request(&self, issuer: &Issued, request: &str) -> String {
        let mut request = CertificateSigningRequestParams::from_pem(request).unwrap();
        self.set_validity(&mut request.params, "720h");
        let signer = Issuer::from_ca_cert_pem(&issuer.chain, KeyPair::from_pem(&issuer.key).unwrap()).unwrap();
        request.signed_by(&signer).unwrap().pem() + &issuer.chain
    }

    fn issue(&mut self, certificate: &Certificate) {
        let spec = &certificate.spec;
        let params = self.to_params(spec);
        let key = KeyPair::generate().unwrap();
        let issued = match spec.issuer_ref.name.as_str() {
            SELF_SIGNED_ISSUER => Issued {
                chain: params.self_signed(&key).unwrap().pem(),
                key: key.serialize_pem(),
            },
            issuer => self.sign(&params, &key, &self.secrets[issuer]),
        };
        self.secrets.insert(spec.secret_name.clone(), issued);
    }

    fn sign(&self, params: &CertificateParams, key: &KeyPair, issuer: &Issued) -> Issued {
        let parsed = ParsedCertificate::from_pem(&issuer.chain).unwrap();
        let signer = Issuer::from_ca_cert_pem(&issuer.chain, KeyPair::from_pem(&issuer.key).unwrap()).unwrap();
        let mut chain = params.signed_by(key, &signer).unwrap().pem();
        if !parsed[0].self_issued {
            chain.push_str(&issuer.chain);
        }
        Issued {
            chain,
            key: key.serialize_pem(),
        }
    }

    fn to_params(&self, spec: &CertificateSpec) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(common_name) = &spec.common_name {
            params.distinguished_name.push(DnType::CommonName, common_name);
        }
        for organization in spec.subject.iter().flat_map(|subject| &subject.organizations) {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        params.subject_alt_names = spec
            .dns_names
            .iter()
            .map(|name| SanType::DnsName(name.as_str().try_into().unwrap()))
            .collect();
        if spec.is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        for usage in &spec.usages {
            match usage {
                Usage::CertSign => params.key_usages.push(KeyUsagePurpose::KeyCertSign),
                Usage::CrlSign => params.key_usages.push(KeyUsagePurpose::CrlSign),
                Usage::DigitalSignature => params.key_usages.push(KeyUsagePurpose::DigitalSignature),
                Usage::KeyEncipherment => params.key_usages.push(KeyUsagePurpose::KeyEncipherment),
                Usage::ServerAuth => params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth),
                Usage::ClientAuth => params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth),
            }
        }
        params.name_constraints = spec.name_constraints.as_ref().map(|constraints| NameConstraints {
            permitted_subtrees: to_subtrees(constraints.permitted.as_ref()),
            excluded_subtrees: to_subtrees(constraints.excluded.as_ref()),
        });
        self.set_validity(&mut params, spec.duration.as_deref().unwrap());
        params
    }

    fn set_validity(&self, params: &mut CertificateParams, duration: &str) {
        let hours = duration.strip_suffix('h').unwrap().parse().unwrap();
        let since_epoch = Duration::from_secs(self.now.as_second().try_into().unwrap());
        params.not_before = rcgen::date_time_ymd(1970, 1, 1) + since_epoch;
        params.not_after = params.not_before + Duration::from_hours(hours);
    }
}

fn to_subtrees(item: Option<&crate::cert_manager::NameConstraintItem>) -> Vec<GeneralSubtree> {
    let dns = item
        .iter()
        .flat_map(|item| &item.dns_domains)
        .cloned()
        .map(GeneralSubtree::DnsName);
    let ip = item.iter().flat_map(|item| &item.ip_ranges).map(|range| {
        GeneralSubtree::IpAddress(match range.as_str() {
            "0.0.0.0/0" => CidrSubnet::V4([0; 4], [0; 4]),
            "::/0" => CidrSubnet::V6([0; 16], [0; 16]),
            other => panic!("range {other}"),
        })
    });
    dns.chain(ip).collect()
}
