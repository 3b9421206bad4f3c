//! Metrics of the signer. Label values are closed sets.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use yoke_runtime::Metrics;

use crate::csr_signer::refusal::Refusal;

/// Label of a certificate's purpose.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PurposeLabel {
    purpose: &'static str,
}

/// Label of the reason why a certificate is refused.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabel {
    reason: &'static str,
}

/// Signed, refused and failed requests for certificates.
#[derive(Clone, Debug)]
pub struct SignerMetrics {
    signed: Family<PurposeLabel, Counter>,
    sign_refusals: Family<RefusalLabel, Counter>,
    sign_failures: Counter,
}

impl SignerMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            signed: Family::default(),
            sign_refusals: Family::default(),
            sign_failures: Counter::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "certificates_signed",
                "Certificates signed for kubelets and users, by purpose",
                own.signed.clone(),
            );
            registry.register(
                "certificates_refused",
                "Certificate requests that were refused, by reason",
                own.sign_refusals.clone(),
            );
            registry.register(
                "certificate_failures",
                "Failed watches or answers of a cluster's certificate requests, each retried",
                own.sign_failures.clone(),
            );
        });
        own
    }

    /// Counts a certificate that was issued to a kubelet or a user.
    ///
    /// `purpose` is one of `user`, `client` and `server`.
    pub fn signed(&self, purpose: &'static str) {
        self.signed.get_or_create(&PurposeLabel { purpose }).inc();
    }

    /// Counts a refused certificate request.
    pub fn refused_to_sign(&self, refusal: Refusal) {
        let reason = refusal.as_str();
        self.sign_refusals.get_or_create(&RefusalLabel { reason }).inc();
    }

    /// Counts a failure to list or answer the certificate requests of a cluster.
    pub fn signing_failed(&self) {
        self.sign_failures.inc();
    }
}
