//! Certificates that tests create.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme};
use yoke_pki::cert_manager;

pub const CLIENT: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ClientAuth;
pub const SERVER: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ServerAuth;

pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
    chain: String,
}

#[derive(Clone)]
pub struct Leaf {
    pub certificate: String,
    pub key: String,
}

impl Ca {
    pub fn new(name: &str) -> Self {
        let params = params(name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
            chain: String::new(),
        }
    }

    /// An intermediate CA. Its certificates include its own in their chain.
    pub fn under(&self, name: &str) -> Self {
        self.sign(params(name))
    }

    /// An intermediate CA that may sign only for these names and this address, as in the chart.
    pub fn permitting(&self, name: &str, names: &[&str], address: IpAddr) -> Self {
        let mut params = params(name);
        let names = names.iter().map(|name| GeneralSubtree::DnsName((*name).to_owned()));
        let address = CidrSubnet::from_addr_prefix(address, 32);
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: names.chain([GeneralSubtree::IpAddress(address)]).collect(),
            excluded_subtrees: vec![],
        });
        self.sign(params)
    }

    /// An intermediate CA with the name constraints of a cert-manager Certificate.
    pub fn limited(&self, name: &str, limits: &cert_manager::NameConstraints) -> Self {
        let to_subtrees = |item: &Option<cert_manager::NameConstraintItem>| {
            let (names, ranges) = item.iter().fold((vec![], vec![]), |_, item| {
                (item.dns_domains.clone(), item.ip_ranges.clone())
            });
            let names = names.into_iter().map(GeneralSubtree::DnsName);
            let ranges = ranges.into_iter().map(|range| {
                let (address, bits) = range.split_once('/').unwrap();
                let address = address.parse().unwrap();
                GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(address, bits.parse().unwrap()))
            });
            names.chain(ranges).collect()
        };
        let mut params = params(name);
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: to_subtrees(&limits.permitted),
            excluded_subtrees: to_subtrees(&limits.excluded),
        });
        self.sign(params)
    }

    /// Signs any request, as a signer without validation would. The key is the requester's.
    pub fn sign_request(&self, request: &str, key: String) -> Leaf {
        let request = CertificateSigningRequestParams::from_pem(request).unwrap();
        Leaf {
            certificate: request.signed_by(&self.issuer).unwrap().pem() + &self.chain,
            key,
        }
    }

    /// A client that trusts this CA, and verifies `name` whatever name it dials.
    pub fn client_of(&self, name: &str) -> ClientConfig {
        let inner = WebPkiServerVerifier::builder(Arc::new(self.roots())).build().unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let verifier = Arc::new(Believer { inner, name });
        let builder = ClientConfig::builder().dangerous();
        builder.with_custom_certificate_verifier(verifier).with_no_client_auth()
    }

    fn sign(&self, params: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            chain: pem.clone(),
            pem,
        }
    }

    /// A certificate for one usage, valid for twenty years from the start of a year.
    pub fn valid(&self, common_name: &str, year: i32, usage: ExtendedKeyUsagePurpose) -> Leaf {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![usage];
        params.not_before = rcgen::date_time_ymd(year, 1, 1);
        params.not_after = rcgen::date_time_ymd(year + 20, 1, 1);
        let key = KeyPair::generate().unwrap();
        Leaf {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem() + &self.chain,
            key: key.serialize_pem(),
        }
    }

    /// A certificate for a server or a client with these DNS names and addresses.
    pub fn leaf(&self, common_name: &str, names: &[&str]) -> Leaf {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        Leaf {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem() + &self.chain,
            key: key.serialize_pem(),
        }
    }

    fn roots(&self) -> RootCertStore {
        to_roots(&self.pem)
    }

    pub fn client(&self, leaf: Option<&Leaf>) -> ClientConfig {
        match leaf {
            None => trust(&self.pem),
            Some(leaf) => {
                let builder = ClientConfig::builder().with_root_certificates(self.roots());
                let (chain, key) = leaf.parts();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        }
    }

    /// A server that requests a client certificate of this CA, and also serves clients without one,
    /// like an API server.
    pub fn server(&self, leaf: &Leaf) -> ServerConfig {
        let verifier = WebPkiClientVerifier::builder(Arc::new(self.roots()));
        let verifier = verifier.allow_unauthenticated().build().unwrap();
        let (chain, key) = leaf.parts();
        let builder = ServerConfig::builder().with_client_cert_verifier(verifier);
        builder.with_single_cert(chain, key).unwrap()
    }
}

/// Verifies another name than the dialed one: a client that was routed to the wrong server.
#[derive(Debug)]
struct Believer {
    inner: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
}

impl ServerCertVerifier for Believer {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _dialled: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.inner.verify_server_cert(leaf, chain, &self.name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

impl Leaf {
    fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        (chain.collect::<Result<_, _>>().unwrap(), key)
    }
}

/// A client that trusts a CA, and has no certificate.
pub fn trust(ca: &str) -> ClientConfig {
    let builder = ClientConfig::builder().with_root_certificates(to_roots(ca));
    builder.with_no_client_auth()
}

fn to_roots(ca: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(ca.as_bytes()).unwrap();
    roots.add(certificate).unwrap();
    roots
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Writes `tls.crt`, `tls.key` and `ca.crt` as a kubelet does: links into a directory that is
/// replaced atomically.
pub fn write_secret(directory: &Path, leaf: &Leaf, ca: &str) {
    let version = format!("..{}", rand::random::<u64>());
    let target = directory.join(&version);
    std::fs::create_dir_all(&target).unwrap();
    for (name, text) in [
        ("tls.crt", leaf.certificate.as_str()),
        ("tls.key", leaf.key.as_str()),
        ("ca.crt", ca),
    ] {
        std::fs::write(target.join(name), text).unwrap();
        let link = directory.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(format!("..data/{name}"), link).unwrap();
        }
    }
    let temporary = directory.join("..data_tmp");
    std::os::unix::fs::symlink(version, &temporary).unwrap();
    std::fs::rename(temporary, directory.join("..data")).unwrap();
}
