//! The part of cert-manager's API (`cert-manager.io/v1`, as of v1.21) that Yoke uses, typed for
//! [`kube::Api`] and server-side apply.
//!
//! Fields that Yoke does not set are left out of the types. So an apply does not own them, and a
//! read drops them. cert-manager brings its own CRDs; this module generates no schema.
//!
//! Facts about cert-manager that callers rely on, read in its source at v1.21.2:
//!
//! - `nameConstraints` works without a feature flag, though the CRD's description still calls it
//!   alpha.
//! - A change of `nameConstraints` alone does **not** reissue a Certificate. cert-manager compares
//!   only the key, names, subject, usages, `isCA`, `duration` and `issuerRef` with the last
//!   request. A new generation or a forced renewal is needed.
//! - `rotationPolicy` defaults to `Always`: a renewal generates a new key. Yoke always sets the
//!   field.
//! - `tls.crt` is the certificate with its chain, without a self-signed root. `ca.crt` is the
//!   highest certificate of the chain; for a certificate signed by an intermediate, that is the
//!   intermediate.
//! - The Secret of a deleted Certificate remains.
//! - Every part of cert-manager treats an `issuerRef` without `group` as its own. With `group`, the
//!   controller of self-signed issuers examines all CertificateRequests of the namespace for each
//!   change of a Secret, and the log data that it collects grows with each. Work and memory then
//!   grow with the square of their number (`selfsigned/checks.go`). Without `group`, it skips them.

mod request;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

pub use request::{CertificateRequest, CertificateRequestSpec, CertificateRequestStatus};

/// Condition type: a certificate has been issued, or an issuer can issue.
pub const READY: &str = "Ready";

/// The certificate to issue, and the Secret for it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cert-manager.io",
    version = "v1",
    kind = "Certificate",
    namespaced,
    status = "CertificateStatus",
    schema = "disabled",
    doc = "A request for a certificate that cert-manager keeps issued.",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSpec {
    /// Secret that cert-manager writes `tls.crt`, `tls.key` and `ca.crt` to.
    pub secret_name: String,
    /// Labels of that Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_template: Option<SecretTemplate>,
    /// Whether the certificate may sign others.
    #[serde(default, rename = "isCA")]
    pub is_ca: bool,
    /// Common name of the subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_name: Option<String>,
    /// Other parts of the subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// Alternative names of type DNS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns_names: Vec<String>,
    /// Lifetime, in Go's notation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Time before expiry at which the certificate is reissued, in Go's notation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_before: Option<String>,
    /// Algorithm and rotation of the private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<PrivateKey>,
    /// Key usages and extended key usages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usages: Vec<Usage>,
    /// Names for which a CA may sign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_constraints: Option<NameConstraints>,
    /// The issuer that signs.
    pub issuer_ref: IssuerRef,
    /// Number of CertificateRequests that cert-manager retains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
}

/// Metadata of the Secret that cert-manager writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretTemplate {
    /// Labels of the Secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Parts of the subject other than the common name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// Organizations. Kubernetes reads them as groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub organizations: Vec<String>,
}

/// Algorithm and rotation of a private key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrivateKey {
    /// Algorithm of the key.
    pub algorithm: KeyAlgorithm,
    /// Size in bits.
    pub size: i32,
    /// Whether a reissue generates a new key.
    pub rotation_policy: RotationPolicy,
}

/// Algorithm of a private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyAlgorithm {
    /// ECDSA on a NIST curve.
    ECDSA,
    /// RSA.
    RSA,
    /// Ed25519.
    Ed25519,
}

/// Whether a reissue generates a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RotationPolicy {
    /// The key stays the same.
    Never,
    /// Each reissue generates a new key.
    Always,
}

/// A key usage or extended key usage. Only those that Yoke requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Usage {
    /// Signatures other than on certificates.
    #[serde(rename = "digital signature")]
    DigitalSignature,
    /// Encryption of keys (RSA key exchange).
    #[serde(rename = "key encipherment")]
    KeyEncipherment,
    /// Signatures on certificates.
    #[serde(rename = "cert sign")]
    CertSign,
    /// Signatures on revocation lists.
    #[serde(rename = "crl sign")]
    CrlSign,
    /// TLS server.
    #[serde(rename = "server auth")]
    ServerAuth,
    /// TLS client.
    #[serde(rename = "client auth")]
    ClientAuth,
}

/// Names for which a CA may sign (RFC 5280, section 4.2.1.10).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NameConstraints {
    /// Whether a verifier that does not support the constraints must reject the chain.
    #[serde(default)]
    pub critical: bool,
    /// Allowed names. A type of name that does not occur here is not restricted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permitted: Option<NameConstraintItem>,
    /// Forbidden names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<NameConstraintItem>,
}

/// Names, by type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NameConstraintItem {
    /// DNS names, each with all its subdomains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns_domains: Vec<String>,
    /// IP address ranges (CIDR).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_ranges: Vec<String>,
}

/// Reference to an issuer of cert-manager in the same namespace, without a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuerRef {
    /// Name of the issuer.
    pub name: String,
    /// Kind of the issuer. If absent, `Issuer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Observed state of a Certificate, written by cert-manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// Conditions; see [`READY`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Start of the issued certificate's validity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
    /// End of the issued certificate's validity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
    /// Time at which the certificate will be reissued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewal_time: Option<Time>,
    /// Number of times the certificate has been issued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// Number of failed attempts since the last success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_issuance_attempts: Option<i64>,
}

/// A condition as cert-manager writes it. Unlike in Kubernetes' own type, times and generation may
/// be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Reason, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Message for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Time of the last change of the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// `metadata.generation` of the spec that the condition describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// How an issuer signs: with the key of a CA in a Secret, or with each certificate's own key.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cert-manager.io",
    version = "v1",
    kind = "Issuer",
    namespaced,
    status = "IssuerStatus",
    schema = "disabled",
    doc = "A signer of the Certificates in its namespace.",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct IssuerSpec {
    /// Set for an issuer that signs with a CA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<CaIssuer>,
    /// Set for an issuer that signs each certificate with its own key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_signed: Option<SelfSignedIssuer>,
}

/// An issuer that signs with a CA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CaIssuer {
    /// Secret with the CA's `tls.crt` and `tls.key`.
    pub secret_name: String,
}

/// An issuer that signs each certificate with its own key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfSignedIssuer {}

/// Observed state of an Issuer, written by cert-manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuerStatus {
    /// Conditions; see [`READY`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl Certificate {
    /// Whether the certificate of the current spec has been issued.
    pub fn is_ready(&self) -> bool {
        let conditions = self.status.as_ref().map(|status| status.conditions.as_slice());
        is_ready(conditions.unwrap_or_default(), self.metadata.generation)
    }
}

impl Issuer {
    /// Whether the issuer of the current spec can sign.
    pub fn is_ready(&self) -> bool {
        let conditions = self.status.as_ref().map(|status| status.conditions.as_slice());
        is_ready(conditions.unwrap_or_default(), self.metadata.generation)
    }
}

fn is_ready(conditions: &[Condition], generation: Option<i64>) -> bool {
    conditions.iter().any(|condition| {
        condition.type_ == READY && condition.status == "True" && condition.observed_generation == generation
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUED: &str = r#"{
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate",
        "metadata": {"name": "a", "namespace": "yoke-pki", "generation": 2},
        "spec": {"secretName": "a", "issuerRef": {"name": "i"}, "keystores": {}, "duration": "24h0m0s"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2, "reason": "Ready",
                "lastTransitionTime": "2026-11-01T00:00:00Z", "message": "Certificate is up to date and has not expired"}],
            "notBefore": "2026-11-01T00:00:00Z", "notAfter": "2026-11-02T00:00:00Z",
            "renewalTime": "2026-11-01T16:00:00Z", "revision": 3
        }
    }"#;

    #[test]
    fn issued_certificate_is_read() {
        let certificate: Certificate = serde_json::from_str(ISSUED).unwrap();
        let status = certificate.status.clone().unwrap();
        assert!(certificate.is_ready());
        assert_eq!(status.revision, Some(3));
        assert_eq!(status.not_after.unwrap().0.to_string(), "2026-11-02T00:00:00Z");
    }

    #[test]
    fn ready_speaks_of_the_present_spec() {
        let condition = |status: &str, observed| Condition {
            type_: READY.into(),
            status: status.into(),
            observed_generation: observed,
            ..Condition::default()
        };
        for (rule, conditions, generation, expected) in [
            ("no condition", vec![], Some(1), false),
            ("true", vec![condition("True", Some(1))], Some(1), true),
            ("false", vec![condition("False", Some(1))], Some(1), false),
            ("of an older spec", vec![condition("True", Some(1))], Some(2), false),
            ("of no known spec", vec![condition("True", None)], Some(2), false),
        ] {
            assert_eq!(is_ready(&conditions, generation), expected, "{rule}");
        }
    }

    #[test]
    fn absent_fields_are_not_written() {
        let certificate = Certificate::new(
            "a",
            CertificateSpec {
                secret_name: "a".into(),
                issuer_ref: IssuerRef {
                    name: "i".into(),
                    ..IssuerRef::default()
                },
                ..CertificateSpec::default()
            },
        );
        assert_eq!(
            serde_json::to_string(&certificate).unwrap(),
            r#"{"apiVersion":"cert-manager.io/v1","kind":"Certificate","metadata":{"name":"a"},"spec":{"secretName":"a","isCA":false,"issuerRef":{"name":"i"}}}"#
        );
    }
}
