//! Limits of one tenant, one pod and one credential: reachable and unreachable targets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ListParams};
use kube::config::Kubeconfig;
use yoke_api::Cluster;
use yoke_e2e::network;
use yoke_e2e::tenant::hosted_namespace;
use yoke_e2e::{Stack, TenantFixture, wait_for};
use yoke_pki::inspect::ParsedCertificate;

fn server_name(cluster: &Cluster) -> Result<String> {
    let endpoint = cluster.status.as_ref().and_then(|status| status.endpoint.as_ref());
    Ok(endpoint.context("no endpoint in status")?.server_name.clone())
}

/// Client certificate chain of a kubeconfig's user.
fn client_chain(kubeconfig: &Path) -> Result<Vec<ParsedCertificate>> {
    let config = Kubeconfig::read_from(kubeconfig)?;
    let user = config.auth_infos.into_iter().next().and_then(|user| user.auth_info);
    let data = user
        .and_then(|user| user.client_certificate_data)
        .context("no client certificate")?;
    let pem: ByteString = serde_json::from_value(data.into())?;
    Ok(ParsedCertificate::from_pem(&String::from_utf8(pem.0)?)?)
}

#[tokio::test]
async fn credentials_of_one_tenant_are_rejected_by_another() -> Result<()> {
    let stack = Stack::connect().await?;
    let (one, two) = tokio::try_join!(
        TenantFixture::create(&stack, "cred-a"),
        TenantFixture::create(&stack, "cred-b")
    )?;
    let ((a, a_config), (_, b_config)) = tokio::try_join!(one.ready_cluster("a"), two.ready_cluster("b"))?;
    stack.kubectl(&a_config, &["get", "namespaces"]).await?.ok()?;
    // Sends B's client certificate with its whole chain to A's API server. This chain is the
    // dangerous one: if A's client CAs included the root, B's own intermediate would lead there.
    let chain = client_chain(&b_config)?;
    ensure!(
        matches!(&chain[..], [leaf, authority] if leaf.subject.text != authority.subject.text
            && leaf.issuer.text == authority.subject.text && authority.is_ca && !leaf.is_ca),
        "not a leaf and its authority: {chain:?}"
    );
    stack.kubectl(&b_config, &["get", "namespaces"]).await?.ok()?;
    let name = format!("--tls-server-name={}", server_name(&a)?);
    let refusal = stack
        .kubectl(&b_config, &[&name, "get", "namespaces"])
        .await?
        .refused()?;
    ensure!(
        refusal.contains("Unauthorized") || refusal.contains("must be logged in"),
        "{refusal}"
    );

    // Sends a service-account token of B to A.
    let token = wait_for("B's first service account", Duration::from_secs(30), || async {
        stack
            .kubectl(&b_config, &["create", "token", "default"])
            .await?
            .ok()
            .map(Some)
    })
    .await?;
    let token = format!("--token={}", token.trim());
    let url = format!("--server=https://{}", stack.ingress()?);
    let empty = tempfile::NamedTempFile::new()?;
    let arguments = [
        token.as_str(),
        url.as_str(),
        name.as_str(),
        "--insecure-skip-tls-verify=true",
        "auth",
        "whoami",
    ];
    let refusal = stack.kubectl(empty.path(), &arguments).await?.refused()?;
    ensure!(
        refusal.contains("Unauthorized") || refusal.contains("must be logged in"),
        "{refusal}"
    );
    tokio::try_join!(one.remove(), two.remove())?;
    Ok(())
}

/// A private key in the forms in which it could be stored: the first line of its PEM body, and its
/// bytes.
struct Key {
    name: String,
    forms: [Vec<u8>; 2],
}

impl Key {
    fn read(name: &str, pem: &[u8]) -> Result<Self> {
        let (_, block) = x509_parser::pem::parse_x509_pem(pem).with_context(|| format!("the key of {name}"))?;
        let text = std::str::from_utf8(pem)?;
        let line = text.lines().nth(1).context("a PEM block of one line")?;
        Ok(Self {
            name: name.to_owned(),
            forms: [line.as_bytes().to_vec(), block.contents],
        })
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        self.forms
            .iter()
            .any(|form| bytes.windows(form.len()).any(|window| window == form.as_slice()))
    }
}

/// Maximum size of files to search, in bytes. Longer files are programs and libraries.
const LONGEST: u64 = 256 << 10;

/// Adds every short file under `dir`, including mounts, except kernel file systems.
fn collect_files(dir: &Path, root: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if ["proc", "sys", "dev"].iter().any(|kernel| dir == root.join(kernel)) {
        return Ok(());
    }
    for entry in std::fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect_files(&entry.path(), root, files)?;
        } else if kind.is_file() && entry.metadata()?.len() <= LONGEST {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Private keys of all CAs, and the root certificate.
async fn authorities(stack: &Stack) -> Result<(Vec<Key>, String)> {
    let secrets: Api<Secret> = Api::namespaced(stack.host.clone(), "yoke-pki");
    let (mut keys, mut root) = (Vec::new(), None);
    for secret in secrets.list(&ListParams::default()).await?.items {
        let name = secret.metadata.name.unwrap_or_default();
        let data = secret.data.unwrap_or_default();
        let (Some(certificate), Some(key)) = (data.get("tls.crt"), data.get("tls.key")) else {
            continue;
        };
        let (_, pem) = x509_parser::pem::parse_x509_pem(&certificate.0)?;
        if pem.parse_x509()?.is_ca() {
            keys.push(Key::read(&name, &key.0)?);
        }
        if name == "yoke-root" {
            root = Some(String::from_utf8(certificate.0.clone())?.trim().to_owned());
        }
    }
    ensure!(
        keys.len() >= 4,
        "expected the root and three authorities of the cluster, found {}",
        keys.len()
    );
    Ok((keys, root.context("no Secret yoke-root")?))
}

#[tokio::test]
async fn no_ca_key_near_a_control_plane_and_no_root_among_client_cas() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "keys").await?;
    let (cluster, _) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;
    let (ca_keys, root) = authorities(&stack).await?;
    let absent = |place: &str, bytes: &[u8]| -> Result<()> {
        let found = ca_keys.iter().find(|key| key.is_in(bytes));
        ensure!(
            found.is_none(),
            "the private key of {} is in {place}",
            found.map_or("", |key| &key.name)
        );
        Ok(())
    };

    // In the API: the control-plane namespace.
    let secrets: Api<Secret> = Api::namespaced(stack.host.clone(), &hosted);
    let mut leaf = None;
    for secret in secrets.list(&ListParams::default()).await?.items {
        let name = secret.metadata.name.unwrap_or_default();
        for (key, value) in secret.data.iter().flatten() {
            absent(&format!("the Secret {name} under {key}"), &value.0)?;
            if name == "kube-apiserver" && key == "tls.key" {
                leaf = Some(Key::read(&name, &value.0)?);
            }
        }
    }
    let leaf = leaf.context("no key of kube-apiserver: this test looks at the wrong place")?;
    let configs: Api<ConfigMap> = Api::namespaced(stack.host.clone(), &hosted);
    for config in configs.list(&ListParams::default()).await?.items {
        for (key, value) in config.data.iter().flatten() {
            absent(&format!("a ConfigMap under {key}"), value.as_bytes())?;
        }
    }

    // In the pod: the files, environment and command line of each container.
    let pod = network::pod(&stack, &hosted, "yoke.drzzl.io/cluster=a").await?;
    let spec = pod.spec.clone().context("a pod without a spec")?;
    let mut found_leaf = false;
    for container in spec.containers.into_iter().map(|container| container.name) {
        let pid = network::container_pid(&stack, &pod, &container).await?;
        let process = PathBuf::from(format!("/proc/{pid}"));
        let file_root = process.join("root");
        let mut files = vec![process.join("environ"), process.join("cmdline")];
        collect_files(&file_root, &file_root, &mut files)?;
        for file in files {
            let bytes = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            absent(&format!("{container}: {}", file.display()), &bytes)?;
            found_leaf |= leaf.is_in(&bytes);
        }
    }
    ensure!(
        found_leaf,
        "the key of kube-apiserver was not found either: this test looks at the wrong files"
    );

    // The client CAs of the running API server, read in its mount namespace.
    let pid = network::container_pid(&stack, &pod, "kube-apiserver").await?;
    let command = String::from_utf8(std::fs::read(format!("/proc/{pid}/cmdline"))?)?;
    let file = command
        .split('\0')
        .find_map(|argument| argument.strip_prefix("--client-ca-file="))
        .context("no --client-ca-file")?;
    let bundle = std::fs::read_to_string(format!("/proc/{pid}/root{file}"))?;
    ensure!(!bundle.contains(&root), "the root is among the client CAs");
    for certificate in ParsedCertificate::from_pem(&bundle)? {
        ensure!(!certificate.self_issued, "{} is self-signed", certificate.subject.text);
    }
    tenant.remove().await
}
