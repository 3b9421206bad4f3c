//! Parses certificate requests (PKCS#10), and checks that an issued certificate matches its
//! request.
//!
//! Requests come from untrusted clients, and the issuer's parser reads them again. So everything
//! that is not needed is an error here. [`ParsedRequest::is_answered_by`] compares the issued
//! certificate with what was parsed, in case the two parsers differ.

use std::net::IpAddr;

use jiff::Timestamp;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{ExtendedKeyUsage, GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::inspect::{InspectError, Name, ParsedCertificate, to_address};

const TAGS: [&str; 2] = ["CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"];
/// Maximum size of a request, in bytes: enough for an RSA key of 8192 bits and a page of names.
pub const SIZE_MAX: usize = 16 << 10;
/// Maximum number of alternative names.
const NAMES_MAX: usize = 64;

/// A parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedRequest {
    /// Subject of the request.
    pub subject: Name,
    /// Number of attributes in the subject, of any type.
    pub subject_parts: usize,
    /// Alternative names of type DNS.
    pub dns_names: Vec<String>,
    /// Alternative names of type IP address.
    pub ip_addresses: Vec<IpAddr>,
    raw_subject: Vec<u8>,
    public_key: Vec<u8>,
}

/// Purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// TLS client only.
    Client,
    /// TLS server only.
    Server,
}

impl ParsedRequest {
    /// Parses one request in PEM. It may request alternative names of type DNS and IP address, and
    /// no other extension.
    pub fn from_pem(text: &[u8]) -> Result<Self, InspectError> {
        let wrong = |what: &str| InspectError::Certificate(what.to_owned());
        if text.len() > SIZE_MAX {
            return Err(wrong("the request is too large"));
        }
        let mut blocks = pem::parse_many(text).map_err(InspectError::Pem)?;
        let block = match (blocks.pop(), blocks.is_empty()) {
            (Some(block), true) => block,
            (None, _) => return Err(InspectError::Empty),
            (Some(_), false) => return Err(wrong("more than one PEM block")),
        };
        if !TAGS.contains(&block.tag()) {
            return Err(wrong("the PEM block is not a certificate request"));
        }
        let (rest, parsed) = X509CertificationRequest::from_der(block.contents())
            .map_err(|_| wrong("the request is not valid PKCS#10"))?;
        if !rest.is_empty() {
            return Err(wrong("trailing bytes after the request"));
        }
        let info = &parsed.certification_request_info;
        let mut request = Self {
            subject: Name::read(&info.subject),
            subject_parts: info.subject.iter_attributes().count(),
            dns_names: vec![],
            ip_addresses: vec![],
            raw_subject: info.subject.as_raw().to_vec(),
            public_key: info.subject_pki.raw.to_vec(),
        };
        let mut attributes = info.iter_attributes();
        match (attributes.next(), attributes.next()) {
            (None, _) => {}
            (Some(only), None) => match only.parsed_attribute() {
                ParsedCriAttribute::ExtensionRequest(asked) => {
                    let mut extensions = asked.extensions.iter().map(|each| each.parsed_extension());
                    match (extensions.next(), extensions.next()) {
                        (None, _) => {}
                        (Some(ParsedExtension::SubjectAlternativeName(names)), None) => {
                            request.read_names(&names.general_names)?;
                        }
                        _ => return Err(wrong("the request has an extension other than alternative names")),
                    }
                }
                _ => return Err(wrong("the request has an attribute other than extensions")),
            },
            _ => return Err(wrong("the request has more than one attribute")),
        }
        Ok(request)
    }

    fn read_names(&mut self, names: &[GeneralName<'_>]) -> Result<(), InspectError> {
        let wrong = |what: &str| InspectError::Certificate(what.to_owned());
        if names.len() > NAMES_MAX {
            return Err(wrong("the request has too many alternative names"));
        }
        for name in names {
            match name {
                GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => self.ip_addresses.push(to_address(bytes)?),
                _ => {
                    return Err(wrong(
                        "the request has an alternative name that is neither a DNS name nor an IP address",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether a certificate contains exactly what was requested: the key, the subject, the names
    /// and this use. It must not expire after `latest`.
    pub fn is_answered_by(&self, leaf: &ParsedCertificate, what_for: Use, latest: Timestamp) -> bool {
        let Ok((_, parsed)) = X509Certificate::from_der(leaf.der()) else {
            return false;
        };
        let usage = parsed.extended_key_usage().ok().flatten();
        let may_sign = parsed.key_usage().map_or(true, |usage| {
            usage.is_some_and(|usage| usage.value.key_cert_sign() || usage.value.crl_sign())
        });
        !leaf.is_ca
            && !may_sign
            && parsed.public_key().raw == self.public_key
            && parsed.subject().as_raw() == self.raw_subject
            && leaf.dns_names == self.dns_names
            && leaf.ip_addresses == self.ip_addresses
            && usage.is_some_and(|usage| is_only(usage.value, what_for))
            && leaf.not_after <= latest
    }
}

fn is_only(usage: &ExtendedKeyUsage<'_>, what_for: Use) -> bool {
    let others = usage.any
        || usage.code_signing
        || usage.email_protection
        || usage.time_stamping
        || usage.ocsp_signing
        || !usage.other.is_empty();
    !others && usage.client_auth == (what_for == Use::Client) && usage.server_auth == (what_for == Use::Server)
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType};

    use super::*;

    fn params() -> CertificateParams {
        let mut params = CertificateParams::new(vec!["node-1".into()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, "system:node:node-1");
        let address = SanType::IpAddress([192, 0, 2, 1].into());
        params.subject_alt_names.push(address);
        params
    }

    fn request(params: &CertificateParams, key: &KeyPair) -> String {
        params.serialize_request(key).unwrap().pem().unwrap()
    }

    #[test]
    fn a_request_is_read() {
        let key = KeyPair::generate().unwrap();
        let read = ParsedRequest::from_pem(request(&params(), &key).as_bytes()).unwrap();
        assert_eq!(read.subject.common_name.as_deref(), Some("system:node:node-1"));
        assert_eq!(read.subject.organizations, ["system:nodes"]);
        assert_eq!(
            (read.subject_parts, read.dns_names.as_slice()),
            (2, ["node-1".to_owned()].as_slice())
        );
        assert_eq!(read.ip_addresses, [IpAddr::from([192, 0, 2, 1])]);
    }

    #[test]
    fn unneeded_parts_are_refused() {
        let key = KeyPair::generate().unwrap();
        let good = request(&params(), &key);
        let changed = |change: &dyn Fn(&mut CertificateParams)| {
            let mut params = params();
            change(&mut params);
            request(&params, &key)
        };
        let bytes = |der: &[u8]| pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", der));
        let der = pem::parse(&good).unwrap().into_contents();
        for (rule, text) in [
            ("nothing", String::new()),
            ("twice", format!("{good}{good}")),
            ("another block", good.replace("CERTIFICATE REQUEST", "CERTIFICATE")),
            ("cut off", bytes(&der[..der.len() - 9])),
            ("more behind it", bytes(&[der.as_slice(), b"x"].concat())),
            ("no DER", bytes(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff])),
            ("too large", format!("{good}{}", " ".repeat(SIZE_MAX))),
            (
                "a CA",
                changed(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            ),
            (
                "a use of its own",
                changed(&|params| params.extended_key_usages.push(ExtendedKeyUsagePurpose::Any)),
            ),
            (
                "a mail address",
                changed(&|params| {
                    let name = SanType::Rfc822Name("a@b.test".try_into().unwrap());
                    params.subject_alt_names.push(name);
                }),
            ),
            (
                "names without end",
                changed(&|params| {
                    let names = (0..NAMES_MAX).map(|at| SanType::DnsName(format!("n{at}").try_into().unwrap()));
                    params.subject_alt_names.extend(names);
                }),
            ),
        ] {
            assert!(ParsedRequest::from_pem(text.as_bytes()).is_err(), "{rule}");
        }
    }

    #[test]
    fn only_a_matching_certificate_is_accepted() {
        let (key, other, ca_key) = (
            KeyPair::generate().unwrap(),
            KeyPair::generate().unwrap(),
            KeyPair::generate().unwrap(),
        );
        let mut ca = CertificateParams::new(vec![]).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let signer = rcgen::Issuer::from_params(&ca, &ca_key);
        let read = ParsedRequest::from_pem(request(&params(), &key).as_bytes()).unwrap();
        let end = rcgen::date_time_ymd(2030, 1, 1);
        let latest = Timestamp::from_second(end.unix_timestamp()).unwrap();
        let server = |params: &mut CertificateParams| {
            params.not_after = rcgen::date_time_ymd(2030, 1, 1);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        };
        type Change<'a> = &'a dyn Fn(&mut CertificateParams);
        let cases: [(&str, &KeyPair, Change<'_>, bool); 9] = [
            ("as requested", &key, &|_| {}, true),
            ("another key", &other, &|_| {}, false),
            (
                "another subject",
                &key,
                &|params| params.distinguished_name.push(DnType::CountryName, "x"),
                false,
            ),
            (
                "one more name",
                &key,
                &|params| params.subject_alt_names.push(SanType::DnsName("x".try_into().unwrap())),
                false,
            ),
            (
                "one name less",
                &key,
                &|params| drop(params.subject_alt_names.pop()),
                false,
            ),
            (
                "one more use",
                &key,
                &|params| params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth),
                false,
            ),
            ("no use", &key, &|params| params.extended_key_usages.clear(), false),
            (
                "too long",
                &key,
                &|params| params.not_after = rcgen::date_time_ymd(2030, 1, 2),
                false,
            ),
            (
                "a CA",
                &key,
                &|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained),
                false,
            ),
        ];
        for (rule, key, change, expected) in cases {
            let mut asked = params();
            server(&mut asked);
            change(&mut asked);
            let leaf = asked.signed_by(key, &signer).unwrap();
            let leaf = ParsedCertificate::from_der(leaf.der().to_vec()).unwrap();
            assert_eq!(read.is_answered_by(&leaf, Use::Server, latest), expected, "{rule}");
            assert!(!read.is_answered_by(&leaf, Use::Client, latest), "{rule}");
        }
    }
}
