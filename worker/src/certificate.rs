//! Checks whether the kubelet's client certificate exists and is still valid.

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use yoke_pki::inspect::ParsedCertificate;

use crate::layout::Layout;

/// Reports whether the worker was admitted, and needs no new admission. The kubelet writes its
/// kubeconfig before it has a certificate, so a missing certificate does not count as expired.
pub(crate) fn has_joined(layout: &Layout) -> bool {
    layout.kubeconfig().exists() && !is_expired(layout)
}

/// Reports whether there is a valid certificate.
pub(crate) fn has_valid_certificate(layout: &Layout) -> bool {
    layout.client_certificate().exists() && !is_expired(layout)
}

/// Reports whether there is an expired certificate: the machine was off for too long to renew it.
fn is_expired(layout: &Layout) -> bool {
    let read = || {
        // The file also contains the private key.
        let text = std::fs::read(layout.client_certificate()).ok()?;
        let own = CertificateDer::from_pem_slice(&text).ok()?;
        ParsedCertificate::from_der(own.to_vec()).ok()
    };
    read().is_some_and(|own| own.not_after < Timestamp::now())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::host::files;

    #[test]
    fn a_worker_with_an_expired_certificate_may_join_again() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        assert!(!has_joined(&layout) && !has_valid_certificate(&layout));
        for file in [layout.kubeconfig(), layout.client_certificate()] {
            files::make_folder(file.parent().unwrap()).unwrap();
        }
        files::write(&layout.kubeconfig(), "", files::SECRET).unwrap();
        assert!(
            has_joined(&layout) && !has_valid_certificate(&layout),
            "it waits for admission"
        );
        for (year, good) in [(2020, false), (4000, true)] {
            let key = KeyPair::generate().unwrap();
            let mut parameters = CertificateParams::default();
            parameters.not_before = rcgen::date_time_ymd(2019, 1, 1);
            parameters.not_after = rcgen::date_time_ymd(year, 1, 1);
            let text = key.serialize_pem() + &parameters.self_signed(&key).unwrap().pem();
            files::write(&layout.client_certificate(), text, files::SECRET).unwrap();
            assert_eq!(
                (has_joined(&layout), has_valid_certificate(&layout)),
                (good, good),
                "{year}"
            );
        }
    }
}
