//! What the real intermediate of a cluster can sign, and what anybody who trusts the root will then believe.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use yoke_e2e::stack::client;
use yoke_e2e::{Stack, TenantFixture, wait_for};
use yoke_pki::inspect::{ParsedCertificate, Purpose, VerifyError, verify_chain};

async fn secret(stack: &Stack, name: &str) -> Result<BTreeMap<String, String>> {
    let secrets: Api<Secret> = Api::namespaced(stack.host.clone(), "yoke-pki");
    let data = secrets
        .get(name)
        .await
        .with_context(|| format!("reading Secret {name}"))?
        .data
        .unwrap_or_default();
    data.into_iter()
        .map(|(key, value)| Ok((key, String::from_utf8(value.0)?)))
        .collect()
}

#[tokio::test]
async fn intermediate_signs_its_own_names_only() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "constraints").await?;
    let (cluster, _) = tenant.ready_cluster("a").await?;
    let id = cluster.id().context("no identity")?;
    let public = cluster
        .status
        .and_then(|status| status.endpoint)
        .context("no endpoint")?
        .server_name;

    let root = ParsedCertificate::from_pem(&secret(&stack, "yoke-root").await?["tls.crt"])?;
    let authority = secret(&stack, &format!("{id}-ca-g1")).await?;
    let (certificate, key) = (&authority["tls.crt"], &authority["tls.key"]);
    let intermediates = ParsedCertificate::from_pem(certificate)?;
    let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;

    let own = id.hosted_namespace().upstream_name("a");
    let ip = |text: &str| -> Result<SanType> { Ok(SanType::IpAddress(text.parse()?)) };
    let dns = |text: &str| -> Result<SanType> { Ok(SanType::DnsName(text.try_into()?)) };
    for (names, verify_as, is_own) in [
        (vec![dns(&own)?], own.as_str(), true),
        (vec![dns(&public)?], public.as_str(), true),
        (vec![dns("kubernetes.default.svc")?], "kubernetes.default.svc", false),
        (vec![dns("other.yoke.test")?], "other.yoke.test", false),
        (vec![dns(&own)?, dns("kubernetes")?], own.as_str(), false),
        (vec![ip("10.96.0.1")?], "10.96.0.1", false),
        (vec![dns(&own)?, ip("10.96.0.1")?], own.as_str(), false),
        (vec![dns(&own)?, ip("fd00::1")?], own.as_str(), false),
    ] {
        let what = format!("{names:?}");
        let mut parameters = CertificateParams::default();
        parameters.subject_alt_names = names;
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let leaf = parameters.signed_by(&KeyPair::generate()?, &issuer)?;
        let mut chain = vec![ParsedCertificate::from_der(leaf.der().to_vec())?];
        chain.extend(intermediates.iter().cloned());
        let now = std::time::SystemTime::now().try_into()?;
        let verdict = verify_chain(&chain, &root, Purpose::Server(verify_as), now);
        let expected = match &verdict {
            Ok(()) => is_own,
            Err(VerifyError::Chain(webpki::Error::NameConstraintViolation)) => !is_own,
            Err(_) => false,
        };
        ensure!(expected, "{what} as {verify_as}: {verdict:?}");
    }
    tenant.remove().await
}

/// Those that Kubernetes has built in, each with what it may be asked for.
const SIGNERS: [(&str, &str); 3] = [
    ("kubernetes.io/kube-apiserver-client", "client auth"),
    ("kubernetes.io/kube-apiserver-client-kubelet", "client auth"),
    ("kubernetes.io/kubelet-serving", "server auth"),
];
/// A signer signs within milliseconds of the approval.
const SIGNING: Duration = Duration::from_secs(10);

/// A tenant's administrator may ask for anything, and approve it. There is no key in the control plane to sign it with.
#[tokio::test]
async fn nobody_signs_what_a_tenant_approves() -> Result<()> {
    let stack = Stack::connect().await?;
    let (one, two) = tokio::try_join!(
        TenantFixture::create(&stack, "asks"),
        TenantFixture::create(&stack, "asked-for")
    )?;
    let ((_, kubeconfig), (other, _)) = tokio::try_join!(one.ready_cluster("a"), two.ready_cluster("b"))?;
    let foreign = other
        .status
        .and_then(|status| status.endpoint)
        .context("no endpoint")?
        .server_name;
    let requests: Api<CertificateSigningRequest> = Api::all(client(&kubeconfig).await?);
    for (number, (signer, usage)) in SIGNERS.into_iter().enumerate() {
        let mut parameters = CertificateParams::new(vec![
            "kubernetes.default.svc".into(),
            "10.96.0.1".into(),
            foreign.clone(),
        ])?;
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let request = CertificateSigningRequest {
            metadata: ObjectMeta {
                name: Some(format!("r{number}")),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(parameters.serialize_request(&KeyPair::generate()?)?.pem()?.into_bytes()),
                signer_name: signer.to_owned(),
                usages: Some(vec!["digital signature".into(), usage.into()]),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let made = requests.create(&PostParams::default(), &request).await;
        made.with_context(|| format!("asking {signer}"))?;
        let approve = ["certificate", "approve", &format!("r{number}")];
        stack.kubectl(&kubeconfig, &approve).await?.ok()?;
    }
    let signed = wait_for("a certificate that nobody should sign", SIGNING, || async {
        let found = requests.list(&ListParams::default()).await?.items;
        let with = |request: &CertificateSigningRequest| request.status.as_ref()?.certificate.clone();
        Ok(found.iter().find_map(with))
    })
    .await;
    ensure!(signed.is_err(), "a certificate was signed: {signed:?}");
    let found = requests.list(&ListParams::default()).await?.items;
    for request in &found {
        let status = request.status.clone().unwrap_or_default();
        let approved = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Approved");
        ensure!(approved && status.certificate.is_none(), "{request:?}");
    }
    ensure!(found.len() == SIGNERS.len(), "{} requests", found.len());
    tokio::try_join!(one.remove(), two.remove())?;
    Ok(())
}
