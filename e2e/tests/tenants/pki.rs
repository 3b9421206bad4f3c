//! Certificates that a cluster's real intermediate can sign, and which of them clients that trust
//! the root accept.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use yoke_e2e::{Stack, TenantFixture};
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
