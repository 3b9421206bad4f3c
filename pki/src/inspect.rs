//! Parses certificates, compares them with private keys, and verifies chains as another process
//! would.
//!
//! The input is PEM text and `now`; the output is facts, or why the text is invalid. The operator
//! uses it before it copies a certificate and for the status; tests use it too. rustls-webpki
//! verifies the chains, with one additional rule: an anchor that is not valid at `now` is not used.
//! webpki ignores an anchor's validity, but Go checks it, and kube-apiserver is written in Go.

use std::net::IpAddr;

use jiff::Timestamp;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::X509Name;
use yoke_api::names::is_within;

const CERTIFICATE_TAG: &str = "CERTIFICATE";

/// A PEM text could not be parsed.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The text is not PEM.
    #[error("parsing PEM")]
    Pem(#[source] pem::PemError),
    /// A PEM block is not a certificate but, for example, a key.
    #[error("PEM block {0:?} where a certificate is expected")]
    NotACertificate(String),
    /// The text contains no certificate.
    #[error("no certificate in the PEM text")]
    Empty,
    /// A PEM block is not a valid X.509 certificate.
    #[error("parsing a certificate: {0}")]
    Certificate(String),
    /// The text is not a private key.
    #[error("parsing a private key")]
    Key(#[source] rustls_pki_types::pem::Error),
    /// The type of the private key is not supported.
    #[error("loading a private key")]
    UnsupportedKey(#[source] rustls::Error),
}

/// A chain does not verify.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The chain has no certificate.
    #[error("the chain is empty")]
    EmptyChain,
    /// No trust anchor is valid now.
    #[error("none of {given} trust anchors is valid now")]
    NoValidAnchor {
        /// Number of anchors passed.
        given: usize,
    },
    /// A trust anchor cannot be parsed.
    #[error("parsing a trust anchor")]
    Anchor(#[source] webpki::Error),
    /// The name to verify is not a DNS name or IP address.
    #[error("{0:?} is not a server name")]
    ServerName(String),
    /// The chain does not lead to a trust anchor.
    #[error("verifying the chain")]
    Chain(#[source] webpki::Error),
    /// The chain is valid, but the certificate is for other names.
    #[error("verifying the name {name:?}")]
    Name {
        /// The name to verify.
        name: String,
        /// Reason of the verifier.
        #[source]
        source: webpki::Error,
    },
}

/// How a peer uses its certificate.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// As a TLS server that is reached under this name.
    Server(&'a str),
    /// As a TLS client.
    Client,
}

/// Subject or issuer of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// The complete name, in the notation of RFC 4514.
    pub text: String,
    /// Common name. Kubernetes reads it as the user.
    pub common_name: Option<String>,
    /// Organizations. Kubernetes reads them as groups.
    pub organizations: Vec<String>,
}

/// A certificate and its parsed fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedCertificate {
    der: CertificateDer<'static>,
    public_key: Vec<u8>,
    /// Subject of the certificate.
    pub subject: Name,
    /// Issuer of the certificate.
    pub issuer: Name,
    /// Whether subject and issuer are equal.
    pub self_issued: bool,
    /// Start of the validity.
    pub not_before: Timestamp,
    /// End of the validity, inclusive.
    pub not_after: Timestamp,
    /// Whether the certificate may sign others.
    pub is_ca: bool,
    /// Alternative names of type DNS.
    pub dns_names: Vec<String>,
    /// Alternative names of type IP address.
    pub ip_addresses: Vec<IpAddr>,
    /// DNS names for which a CA may sign. `None` if they are not restricted.
    pub permitted_dns: Option<Vec<String>>,
}

impl ParsedCertificate {
    /// Parses all certificates of a PEM text, in order. At least one is required; any other PEM
    /// block is an error.
    pub fn from_pem(text: &str) -> Result<Vec<Self>, InspectError> {
        let blocks = pem::parse_many(text).map_err(InspectError::Pem)?;
        if blocks.is_empty() {
            return Err(InspectError::Empty);
        }
        blocks
            .into_iter()
            .map(|block| match block.tag() {
                CERTIFICATE_TAG => Self::from_der(block.into_contents()),
                other => Err(InspectError::NotACertificate(other.to_owned())),
            })
            .collect()
    }

    /// Parses one certificate in DER.
    pub fn from_der(der: Vec<u8>) -> Result<Self, InspectError> {
        let (rest, parsed) =
            X509Certificate::from_der(&der).map_err(|error| InspectError::Certificate(error.to_string()))?;
        if !rest.is_empty() {
            return Err(InspectError::Certificate("trailing bytes after the certificate".into()));
        }
        let mut certificate = Self {
            public_key: parsed.public_key().raw.to_vec(),
            subject: Name::read(parsed.subject()),
            issuer: Name::read(parsed.issuer()),
            self_issued: parsed.subject().as_raw() == parsed.issuer().as_raw(),
            not_before: to_timestamp(parsed.validity().not_before.timestamp())?,
            not_after: to_timestamp(parsed.validity().not_after.timestamp())?,
            is_ca: parsed.is_ca(),
            dns_names: vec![],
            ip_addresses: vec![],
            permitted_dns: None,
            der: CertificateDer::from(vec![]),
        };
        for extension in parsed.extensions() {
            certificate.read_extension(extension.parsed_extension())?;
        }
        certificate.der = CertificateDer::from(der);
        Ok(certificate)
    }

    /// The certificate in DER.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The certificate as PEM, with LF line endings.
    pub fn to_pem(&self) -> String {
        crate::bundle::to_pem(CERTIFICATE_TAG, &self.der)
    }

    /// Whether the certificate is valid at `now`.
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// Whether the name constraints permit the CA to sign for the DNS name `name`.
    pub fn permits_dns(&self, name: &str) -> bool {
        self.permitted_dns
            .as_ref()
            .is_none_or(|domains| domains.iter().any(|domain| is_within(name, domain)))
    }

    /// Whether this private key (PEM: PKCS#8, PKCS#1 or SEC1) belongs to the certificate.
    pub fn matches_key(&self, key_pem: &str) -> Result<bool, InspectError> {
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(InspectError::Key)?;
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).map_err(InspectError::UnsupportedKey)?;
        Ok(key
            .public_key()
            .is_some_and(|public_key| public_key.as_ref() == self.public_key))
    }

    fn read_extension(&mut self, extension: &ParsedExtension<'_>) -> Result<(), InspectError> {
        match extension {
            ParsedExtension::SubjectAlternativeName(names) => {
                for name in &names.general_names {
                    match name {
                        GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
                        GeneralName::IPAddress(bytes) => self.ip_addresses.push(to_address(bytes)?),
                        _ => {}
                    }
                }
            }
            ParsedExtension::NameConstraints(constraints) => {
                let permitted = constraints.permitted_subtrees.iter().flatten();
                let domains: Vec<_> = permitted
                    .filter_map(|subtree| match subtree.base {
                        GeneralName::DNSName(name) => Some(name.to_owned()),
                        _ => None,
                    })
                    .collect();
                self.permitted_dns = (!domains.is_empty()).then_some(domains);
            }
            ParsedExtension::ParseError { error } => return Err(InspectError::Certificate(error.to_string())),
            _ => {}
        }
        Ok(())
    }
}

impl Name {
    pub(crate) fn read(name: &X509Name<'_>) -> Self {
        let texts = |values: &mut dyn Iterator<Item = &x509_parser::x509::AttributeTypeAndValue<'_>>| -> Vec<String> {
            values
                .filter_map(|value| value.as_str().ok())
                .map(str::to_owned)
                .collect()
        };
        Self {
            text: name.to_string(),
            common_name: texts(&mut name.iter_common_name()).into_iter().next(),
            organizations: texts(&mut name.iter_organization()),
        }
    }
}

/// Verifies `chain` (the peer's certificate first, then intermediates) against `anchors` as a TLS
/// peer would at `now`.
pub fn verify_chain(
    chain: &[ParsedCertificate],
    anchors: &[ParsedCertificate],
    purpose: Purpose<'_>,
    now: Timestamp,
) -> Result<(), VerifyError> {
    let (leaf, intermediates) = chain.split_first().ok_or(VerifyError::EmptyChain)?;
    let valid: Vec<_> = anchors.iter().filter(|anchor| anchor.is_valid_at(now)).collect();
    if valid.is_empty() {
        return Err(VerifyError::NoValidAnchor { given: anchors.len() });
    }
    let anchors = valid
        .iter()
        .map(|anchor| anchor_from_trusted_cert(&anchor.der))
        .collect::<Result<Vec<_>, _>>()
        .map_err(VerifyError::Anchor)?;
    let intermediates: Vec<_> = intermediates
        .iter()
        .map(|certificate| certificate.der.clone())
        .collect();
    let leaf = EndEntityCert::try_from(&leaf.der).map_err(VerifyError::Chain)?;
    let usage = match purpose {
        Purpose::Server(_) => KeyUsage::server_auth(),
        Purpose::Client => KeyUsage::client_auth(),
    };
    leaf.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &anchors,
        &intermediates,
        to_unix_time(now),
        usage,
        None,
        None,
    )
    .map_err(VerifyError::Chain)?;
    if let Purpose::Server(name) = purpose {
        let server_name = ServerName::try_from(name).map_err(|_| VerifyError::ServerName(name.to_owned()))?;
        leaf.verify_is_valid_for_subject_name(&server_name)
            .map_err(|source| VerifyError::Name {
                name: name.to_owned(),
                source,
            })?;
    }
    Ok(())
}

fn to_unix_time(now: Timestamp) -> UnixTime {
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
}

fn to_timestamp(seconds: i64) -> Result<Timestamp, InspectError> {
    Timestamp::from_second(seconds).map_err(|error| InspectError::Certificate(error.to_string()))
}

pub(crate) fn to_address(bytes: &[u8]) -> Result<IpAddr, InspectError> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let sixteen = <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    four.or(sixteen)
        .map_err(|_| InspectError::Certificate(format!("an IP address of {} bytes", bytes.len())))
}

#[cfg(test)]
mod tests;
