//! Writes the files that a control plane finds in its Secrets. One CA replaces the several real
//! ones.

use std::path::Path;

use anyhow::{Context as _, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::json;
use yoke_pki::service_account::ServiceAccountKey;

/// Client with all permissions. Unlike requests of the components, its requests count as use of the
/// cluster.
const OWNER: (&str, &str, &str) = ("owner", "owner", "system:masters");
/// Client certificates: file name, user and group.
const CLIENTS: [(&str, &str, &str); 3] = [
    ("kubelet-client", "yoke:kubelet-client", "yoke:kubelet-clients"),
    ("front-proxy-client", "front-proxy-client", "yoke"),
    OWNER,
];
/// Clients that have a kubeconfig in their own folder.
const COMPONENTS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];
/// CA bundles. All of them contain the one CA.
const BUNDLES: [&str; 4] = ["client-ca", "kubelet-ca", "front-proxy-ca", "root-ca"];

/// Writes all files into `dir`. Each component's folder gets a kubeconfig for `url`. Returns the
/// certificate and the key of the client with all permissions.
pub(super) fn write(dir: &Path, url: &str) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "ca");
    let ca = params.self_signed(&key)?.pem();
    let issuer = Issuer::from_params(&params, &key);
    let put = |name: &str, text: &str| std::fs::write(dir.join(name), text).with_context(|| format!("writing {name}"));
    for bundle in BUNDLES {
        put(&format!("{bundle}.crt"), &ca)?;
    }
    let account = ServiceAccountKey::generate()?;
    put("sa.key", account.private_pem())?;
    put("sa.pub", account.public_pem())?;
    let (certificate, key) = issue(&issuer, "127.0.0.1", "", ExtendedKeyUsagePurpose::ServerAuth)?;
    put("tls.crt", &certificate)?;
    put("tls.key", &key)?;
    let mut owner = Default::default();
    for client in CLIENTS {
        let (name, user, group) = client;
        let (certificate, key) = issue(&issuer, user, group, ExtendedKeyUsagePurpose::ClientAuth)?;
        put(&format!("{name}.crt"), &certificate)?;
        put(&format!("{name}.key"), &key)?;
        if client == OWNER {
            owner = (certificate, key);
        }
    }
    for name in COMPONENTS {
        let user = format!("system:{name}");
        let pair = issue(&issuer, &user, "yoke", ExtendedKeyUsagePurpose::ClientAuth)?;
        std::fs::create_dir(dir.join(name))?;
        put(&format!("{name}/kubeconfig"), &to_kubeconfig(url, &ca, &pair))?;
    }
    Ok(owner)
}

fn issue(
    issuer: &Issuer<'_, &KeyPair>,
    name: &str,
    group: &str,
    usage: ExtendedKeyUsagePurpose,
) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.extended_key_usages = vec![usage];
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

fn to_kubeconfig(url: &str, ca: &str, (certificate, key): &(String, String)) -> String {
    let data = |pem: &str| data_encoding::BASE64.encode(pem.as_bytes());
    let cluster = json!({"server": url, "certificate-authority-data": data(ca)});
    let user = json!({"client-certificate-data": data(certificate), "client-key-data": data(key)});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    });
    config.to_string()
}
