//! Plays the control plane for kubelets: approves and signs their certificate requests.

use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair,
};
use serde_json::json;

/// A certificate authority.
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(parameters, key),
        }
    }

    /// Issues a certificate, and returns it with its key.
    pub(crate) fn issue(
        &self,
        names: &[&str],
        subject: &[(DnType, &str)],
        usage: ExtendedKeyUsagePurpose,
    ) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        for (kind, value) in subject {
            parameters.distinguished_name.push(kind.clone(), *value);
        }
        parameters.extended_key_usages = vec![usage];
        (
            parameters.signed_by(&key, &self.issuer).unwrap().pem(),
            key.serialize_pem(),
        )
    }

    /// Issues an expired client certificate, and returns it with its key.
    pub(crate) fn issue_ended(&self, subject: &[(DnType, &str)]) -> String {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        for (kind, value) in subject {
            parameters.distinguished_name.push(kind.clone(), *value);
        }
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2021, 1, 1);
        parameters.signed_by(&key, &self.issuer).unwrap().pem() + &key.serialize_pem()
    }

    fn sign(&self, request: &str, usage: ExtendedKeyUsagePurpose, lifetime: Option<Duration>) -> String {
        let mut request = CertificateSigningRequestParams::from_pem(request).unwrap();
        request.params.extended_key_usages = vec![usage];
        if let Some(lifetime) = lifetime {
            let now = SystemTime::now();
            (request.params.not_before, request.params.not_after) = (now.into(), (now + lifetime).into());
        }
        request.signed_by(&self.issuer).unwrap().pem()
    }
}

/// Signs every request until dropped, with this lifetime if there is one.
pub(crate) async fn sign_all(client: Client, clients: &Authority, kubelets: &Authority, lifetime: Option<Duration>) {
    let api = Api::<CertificateSigningRequest>::all(client);
    loop {
        for request in api.list(&ListParams::default()).await.unwrap() {
            let status = request.status.clone().unwrap_or_default();
            if status.certificate.is_some() {
                continue;
            }
            let text = String::from_utf8(request.spec.request.0.clone()).unwrap();
            let certificate = match request.spec.signer_name.as_str() {
                "kubernetes.io/kube-apiserver-client-kubelet" => {
                    clients.sign(&text, ExtendedKeyUsagePurpose::ClientAuth, lifetime)
                }
                "kubernetes.io/kubelet-serving" => kubelets.sign(&text, ExtendedKeyUsagePurpose::ServerAuth, lifetime),
                other => panic!("no signer for {other}"),
            };
            let name = request.name_any();
            let approved = json!({"status": {"conditions": [
                {"type": "Approved", "status": "True", "reason": "Test", "message": "By the test."},
            ]}});
            let signed = json!({"status": {"certificate": ByteString(certificate.into_bytes())}});
            let params = PatchParams::default();
            api.patch_approval(&name, &params, &Patch::Merge(&approved))
                .await
                .unwrap();
            api.patch_status(&name, &params, &Patch::Merge(&signed)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
