//! `CertificateRequest`: a request for one certificate. The private key stays with its holder.
//!
//! Facts about cert-manager that callers rely on, read in its source at v1.21.2:
//!
//! - The subject and the alternative names come from the request's PKCS#10; usages, lifetime and
//!   `isCA` come from the spec.
//! - The spec of a request is immutable. cert-manager's own approver approves it, unless the host
//!   has another one.
//! - A certificate of a CA issuer may outlive the CA: the lifetime is not limited.

use k8s_openapi::ByteString;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{Condition, IssuerRef, READY, Usage};

/// Types of conditions with which a request has failed permanently.
const FAILED: [&str; 2] = ["Denied", "InvalidRequest"];

/// The certificate to issue.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cert-manager.io",
    version = "v1",
    kind = "CertificateRequest",
    namespaced,
    status = "CertificateRequestStatus",
    schema = "disabled",
    doc = "A request for one certificate.",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct CertificateRequestSpec {
    /// PKCS#10, PEM.
    #[serde(default)]
    pub request: ByteString,
    /// Lifetime, in Go's notation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Whether the certificate may sign others.
    #[serde(default, rename = "isCA")]
    pub is_ca: bool,
    /// Key usages and extended key usages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usages: Vec<Usage>,
    /// The issuer that signs.
    pub issuer_ref: IssuerRef,
}

/// Observed state of a request, written by cert-manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateRequestStatus {
    /// Conditions of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The certificate with its chain, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<ByteString>,
}

impl CertificateRequest {
    /// The certificate with its chain, PEM, if it has been issued.
    pub fn issued(&self) -> Option<&str> {
        let bytes = self.status.as_ref()?.certificate.as_ref()?;
        std::str::from_utf8(&bytes.0).ok().filter(|text| !text.is_empty())
    }

    /// Message of a permanent failure. `None` while a certificate may still be issued.
    pub fn failure(&self) -> Option<&str> {
        let conditions = self.status.as_ref().map(|status| status.conditions.as_slice());
        let failed = conditions.unwrap_or_default().iter().find(|condition| {
            let is_over = condition.type_ == READY
                && condition.status == "False"
                && matches!(condition.reason.as_deref(), Some("Failed" | "Denied"));
            is_over || FAILED.contains(&condition.type_.as_str()) && condition.status == "True"
        })?;
        Some(failed.message.as_deref().unwrap_or("the request failed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_of_a_request_is_read() {
        let request = |conditions: serde_json::Value, certificate: Option<&str>| -> CertificateRequest {
            let value = serde_json::json!({"apiVersion": "cert-manager.io/v1", "kind": "CertificateRequest",
                "metadata": {"name": "a"}, "spec": {"request": "YQ==", "issuerRef": {"name": "i"}},
                "status": {"conditions": conditions, "certificate": certificate}});
            serde_json::from_value(value).unwrap()
        };
        let condition = |type_: &str, status: &str, reason: &str| serde_json::json!([{"type": type_, "status": status, "reason": reason, "message": "m"}]);
        for (rule, request, issued, failure) in [
            ("new", request(serde_json::json!([]), None), None, None),
            (
                "pending",
                request(condition("Ready", "False", "Pending"), None),
                None,
                None,
            ),
            (
                "issued",
                request(condition("Ready", "True", "Issued"), Some("YWI=")),
                Some("ab"),
                None,
            ),
            (
                "failed",
                request(condition("Ready", "False", "Failed"), None),
                None,
                Some("m"),
            ),
            (
                "denied",
                request(condition("Denied", "True", "x"), None),
                None,
                Some("m"),
            ),
            (
                "not denied",
                request(condition("Denied", "False", "x"), None),
                None,
                None,
            ),
            (
                "invalid",
                request(condition("InvalidRequest", "True", "x"), None),
                None,
                Some("m"),
            ),
        ] {
            assert_eq!((request.issued(), request.failure()), (issued, failure), "{rule}");
        }
    }
}
