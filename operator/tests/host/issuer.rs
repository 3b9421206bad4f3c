//! A fake cert-manager that issues one Secret for each Certificate.

use std::collections::BTreeMap;
use std::sync::Mutex;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use yoke_pki::cert_manager::{Certificate, CertificateRequest, Usage};

use crate::harness::PKI;

const ROOT: &str = "yoke-root";
const SELF_SIGNED: &str = "yoke-selfsigned";

/// Issues certificates.
pub(crate) struct CertManager {
    /// CAs by the name of their Issuer, which is also the name of their Secret.
    cas: Mutex<BTreeMap<String, Ca>>,
}

struct Ca {
    params: rcgen::CertificateParams,
    key: String,
    certificate: String,
}

impl CertManager {
    /// Creates the root CA, as the chart does.
    pub(crate) async fn start(client: &Client) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = ca_params(ROOT);
        let certificate = params.self_signed(&key).unwrap().pem();
        let root = Ca {
            params,
            key: key.serialize_pem(),
            certificate,
        };
        write(client, ROOT, &BTreeMap::new(), &root.certificate, &root.key).await;
        Self {
            cas: Mutex::new([(ROOT.to_owned(), root)].into()),
        }
    }

    /// Issues all requested certificates that are missing.
    pub(crate) async fn issue(&self, client: &Client) {
        let secrets = Api::<Secret>::namespaced(client.clone(), PKI);
        let requested = Api::<Certificate>::namespaced(client.clone(), PKI)
            .list(&Default::default())
            .await
            .unwrap();
        let (cas, others): (Vec<_>, Vec<_>) = requested.items.into_iter().partition(|each| each.spec.is_ca);
        for certificate in cas.into_iter().chain(others) {
            let name = &certificate.spec.secret_name;
            if secrets.get_opt(name).await.unwrap().is_some() {
                continue;
            }
            let labels = certificate.spec.secret_template.clone().unwrap_or_default().labels;
            let Some((chain, key)) = self.sign(&certificate) else {
                continue;
            };
            write(client, name, &labels, &chain, &key).await;
        }
    }

    /// Answers requests with private keys that are stored elsewhere.
    pub(crate) async fn issue_requests(&self, client: &Client) {
        let api = Api::<CertificateRequest>::namespaced(client.clone(), PKI);
        for request in api.list(&Default::default()).await.unwrap() {
            let Some(chain) = request.issued().is_none().then(|| self.sign_request(&request)) else {
                continue;
            };
            let patch = serde_json::json!({"status": {"certificate": ByteString(chain.into_bytes())}});
            // The request may be deleted by now.
            let params = PatchParams::default();
            let _ = api.patch(&request.name_any(), &params, &Patch::Merge(patch)).await;
        }
    }

    fn sign_request(&self, request: &CertificateRequest) -> String {
        let cas = self.cas.lock().unwrap();
        let issuer = &cas[&request.spec.issuer_ref.name];
        let key = rcgen::KeyPair::from_pem(&issuer.key).unwrap();
        let text = String::from_utf8(request.spec.request.0.clone()).unwrap();
        let mut parsed = rcgen::CertificateSigningRequestParams::from_pem(&text).unwrap();
        let seconds = request.spec.duration.as_deref().unwrap().strip_suffix('s').unwrap();
        let end = std::time::SystemTime::now() + std::time::Duration::from_secs(seconds.parse().unwrap());
        parsed.params.not_after = end.into();
        parsed.params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        parsed.params.extended_key_usages = match request.spec.usages.contains(&Usage::ServerAuth) {
            true => vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth],
            false => vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth],
        };
        let signer = rcgen::Issuer::from_params(&issuer.params, &key);
        parsed.signed_by(&signer).unwrap().pem()
    }

    fn sign(&self, certificate: &Certificate) -> Option<(String, String)> {
        let mut cas = self.cas.lock().unwrap();
        let (spec, name) = (&certificate.spec, certificate.name_any());
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = match spec.is_ca {
            true => ca_params(&name),
            false => rcgen::CertificateParams::new(spec.dns_names.clone()).unwrap(),
        };
        // The common name differs from that of the CA.
        if let Some(common) = spec.common_name.as_deref().filter(|_| !spec.is_ca) {
            params.distinguished_name.push(rcgen::DnType::CommonName, common);
        }
        let (own, parent) = if spec.issuer_ref.name == SELF_SIGNED {
            (params.self_signed(&key).unwrap().pem(), String::new())
        } else {
            let issuer = cas.get(&spec.issuer_ref.name)?;
            let issuer_key = rcgen::KeyPair::from_pem(&issuer.key).unwrap();
            let signer = rcgen::Issuer::from_params(&issuer.params, &issuer_key);
            let parent = if spec.issuer_ref.name == ROOT {
                String::new()
            } else {
                issuer.certificate.clone()
            };
            (params.signed_by(&key, &signer).unwrap().pem(), parent)
        };
        if spec.is_ca {
            let ca = Ca {
                params,
                key: key.serialize_pem(),
                certificate: own.clone(),
            };
            cas.insert(spec.secret_name.clone(), ca);
        }
        Some((format!("{own}{parent}"), key.serialize_pem()))
    }
}

fn ca_params(name: &str) -> rcgen::CertificateParams {
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params
}

async fn write(client: &Client, name: &str, labels: &BTreeMap<String, String>, certificate: &str, key: &str) {
    let secret = Secret {
        metadata: kube::api::ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(PKI.to_owned()),
            labels: Some(labels.clone()),
            ..Default::default()
        },
        data: Some(
            [("tls.crt", certificate), ("tls.key", key)]
                .map(|(name, text)| (name.to_owned(), ByteString(text.as_bytes().to_vec())))
                .into(),
        ),
        type_: Some("kubernetes.io/tls".into()),
        ..Secret::default()
    };
    Api::<Secret>::namespaced(client.clone(), PKI)
        .create(&PostParams::default(), &secret)
        .await
        .unwrap();
}
