//! Installs Yoke on the host cluster: its CRDs, its chart, and the chart's values.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::command::Command;
use crate::credentials::nats;
use crate::images;
use crate::images::contents::{KUBE_PROXY, WORKER_BINARY};
use crate::kubectl::{CACHE_VARIABLE, Kubectl};
use crate::layout::Layout;
use crate::names::{BASE_DOMAIN, HOST_API_PORT, INGRESS_PORT, NAMESPACE, NODE_NAME};
use crate::network::Network;
use crate::releases::{self, Releases};
use crate::ssh;
use crate::versions::{self, KUBERNETES_VERSION};

const PKI_NAMESPACE: &str = "yoke-pki";
const RELEASE: &str = "yoke";
const READY_LIMIT: Duration = Duration::from_secs(180);

/// Installs or upgrades the chart with these images (by binary). The values stay in
/// `.dev/yoke-values.yaml`.
pub async fn install(
    layout: &Layout,
    network: &Network,
    names: &BTreeMap<&'static str, String>,
    releases: &Releases,
) -> Result<()> {
    let kubectl = Kubectl::new(layout);
    kubectl
        .apply(build_prerequisites(layout)?)
        .await
        .context("creating Yoke's namespaces, Secret and Issuer")?;
    install_crds(layout, &kubectl).await?;

    remove_interrupted_release(&kubectl).await?;
    let values = values_file(layout);
    let digests = images::digests(&layout.binary(WORKER_BINARY))?;
    let content = build_values(network.node_ip(), names, &digests, releases);
    fs::write(&values, format!("{content:#}\n")).context("writing the chart's values")?;
    Command::new(layout.binary("helm"))
        .env(CACHE_VARIABLE, layout.kubectl_cache())
        .args(["upgrade", "--install", RELEASE])
        .arg(layout.root().join("charts/yoke"))
        .args(["--namespace", NAMESPACE, "--values"])
        .arg(&values)
        .env("KUBECONFIG", layout.host_kubeconfig())
        .env("HELM_CACHE_HOME", layout.dev().join("helm/cache"))
        .env("HELM_CONFIG_HOME", layout.dev().join("helm/config"))
        .env("HELM_DATA_HOME", layout.dev().join("helm/data"))
        .run()
        .await
        .context("installing the chart")?;

    let names = kubectl
        .command(&[
            "--namespace",
            NAMESPACE,
            "get",
            "deployments",
            "--output=jsonpath={.items[*].metadata.name}",
        ])
        .output()
        .await?;
    for name in names.split_whitespace() {
        kubectl.wait_rollout(NAMESPACE, name, READY_LIMIT).await?;
    }
    ssh::write_known(layout, network).await
}

/// Applies Yoke's CRDs, and waits until the API server serves them.
async fn install_crds(layout: &Layout, kubectl: &Kubectl<'_>) -> Result<()> {
    let crds = layout.root().join("crds");
    let mut manifest = String::new();
    for entry in fs::read_dir(&crds)
        .with_context(|| format!("reading {}", crds.display()))?
        .flatten()
    {
        let path = entry.path();
        manifest.push_str(&fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?);
        manifest.push_str("\n---\n");
    }
    kubectl.apply(manifest).await.context("installing Yoke's CRDs")?;
    let established = [
        "wait",
        "--for=condition=Established",
        "crd/clusters.yoke.drzzl.io",
        "--timeout=2s",
    ];
    kubectl
        .until("Yoke's CRDs to be served", &established, READY_LIMIT)
        .await
        .map(drop)
}

/// Removes the record of a release that a killed helm left pending, which would block every later
/// one. helm adopts the objects that it created.
async fn remove_interrupted_release(kubectl: &Kubectl<'_>) -> Result<()> {
    kubectl
        .command(&[
            "--namespace",
            NAMESPACE,
            "delete",
            "secrets",
            &format!(
                "--selector=owner=helm,name={RELEASE},status in (pending-install,pending-upgrade,pending-rollback)"
            ),
        ])
        .run()
        .await
        .context("removing the record of an interrupted chart installation")
}

/// The values of the chart. They are also an example for other hosts.
pub fn values_file(layout: &Layout) -> PathBuf {
    layout.dev().join("yoke-values.yaml")
}

fn build_values(
    node: Ipv4Addr,
    names: &BTreeMap<&'static str, String>,
    digests: &BTreeMap<String, String>,
    releases: &Releases,
) -> Value {
    let image = |binary: &str| names.get(binary).cloned().unwrap_or_default();
    let host = format!("{node}/32");
    // The ingress address belongs to the first node. Loss of another node must affect only control
    // planes.
    let first = json!({"kubernetes.io/hostname": NODE_NAME});
    json!({
        "namespaces": {"create": false},
        "crds": {"enabled": false},
        "baseDomain": BASE_DOMAIN,
        "images": {
            "operator": image("yoke-operator"),
            "ingressXds": image("yoke-ingress-xds"),
            "sshUi": image("yoke-ssh-ui"),
            "kineNats": image("kine-nats"),
            "envoy": versions::ENVOY_IMAGE,
            "konnectivityServer": versions::KONNECTIVITY_SERVER_IMAGE,
            "konnectivityAgent": versions::KONNECTIVITY_AGENT_IMAGE,
            "pullPolicy": "IfNotPresent",
        },
        "versions": releases.all().map(build_version).collect::<Vec<_>>(),
        "nats": {
            "urls": [format!("tls://{node}:{}", nats::PORT)],
            "cidrs": [host],
            "port": nats::PORT,
            "secretName": "yoke-nats",
            "replicas": 1,
        },
        "hostAPI": {"cidrs": [host], "port": HOST_API_PORT},
        "ingress": {
            "address": node,
            "port": INGRESS_PORT,
            // Local preserves client addresses, which the ingress rate-limits.
            "service": {"type": "ClusterIP", "externalIPs": [node], "externalTrafficPolicy": "Local"},
            "replicas": 1,
            "nodeSelector": first,
        },
        "operator": {"replicas": 1, "logLevel": "info", "nodeSelector": first},
        "ingressXds": {"replicas": 1, "logLevel": "info", "nodeSelector": first},
        "pricePerHour": "0.02 EUR",
        "worker": {"digests": digests},
        "ssh": build_ssh_values(node),
    })
}

fn build_ssh_values(node: Ipv4Addr) -> Value {
    json!({
        "enabled": true,
        "port": ssh::PORT,
        "contact": "the user who ran `make up`",
        "host": format!("{node}:{}", ssh::PORT),
        "nodeSelector": {"kubernetes.io/hostname": NODE_NAME},
        "service": {"type": "ClusterIP", "externalIPs": [node], "externalTrafficPolicy": "Local"},
        "api": {
            "enabled": true,
            "host": ssh::API_HOST,
            "port": ssh::API_PORT,
            "tlsSecret": ssh::API_SECRET,
            "issuerRef": {"name": ssh::API_SECRET, "kind": "Issuer"},
        },
    })
}

/// An entry of the version catalogue.
fn build_version(release: &str) -> Value {
    let [api_server, controller_manager, scheduler] =
        releases::PROGRAMS.map(|program| releases::to_image(program, release));
    json!({
        "version": release,
        "default": release == KUBERNETES_VERSION,
        "images": {
            "kubeAPIServer": api_server,
            "kubeControllerManager": controller_manager,
            "kubeScheduler": scheduler,
            "kubeProxy": releases::to_image(KUBE_PROXY, KUBERNETES_VERSION),
            "coreDNS": versions::COREDNS_IMAGE,
            "metricsServer": versions::METRICS_SERVER_IMAGE,
        },
    })
}

/// Builds the namespaces, the Secret with Yoke's access to NATS (a key that signs accounts, and a
/// user that pushes them), and the issuer for its HTTPS API.
fn build_prerequisites(layout: &Layout) -> Result<String> {
    let read = |name: &str| {
        let path = nats::file(layout, name);
        fs::read(&path)
            .map(|bytes| BASE64.encode(&bytes))
            .with_context(|| format!("reading {}", path.display()))
    };
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "yoke-nats", "namespace": NAMESPACE},
        "data": {
            "operator-signing.nk": read(nats::OPERATOR_SIGNING_SEED)?,
            "system.creds": read(nats::SYSTEM_CREDS)?,
            "ca.crt": read(nats::CA)?,
        },
    });
    let mut objects = vec![namespace(NAMESPACE), namespace(PKI_NAMESPACE), secret];
    objects.extend(build_api_issuer());
    let objects: Vec<_> = objects.iter().map(Value::to_string).collect();
    Ok(objects.join("\n---\n"))
}

/// Builds the CA that issues the certificate of the HTTPS API. A self-signed server certificate
/// would have no issuer name, and OpenSSL treats that as missing.
fn build_api_issuer() -> [Value; 3] {
    let root = format!("{}-root", ssh::API_SECRET);
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        })
    };
    let certificate = json!({
        "secretName": root,
        "isCA": true,
        "commonName": "HTTPS API of a development stack",
        "privateKey": {"algorithm": "ECDSA", "size": 256},
        "issuerRef": {"name": root, "kind": "Issuer"},
    });
    [
        object("Issuer", &root, json!({"selfSigned": {}})),
        object("Certificate", &root, certificate),
        object("Issuer", ssh::API_SECRET, json!({"ca": {"secretName": root}})),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_gets_the_images_that_were_built_and_the_node_as_every_address() {
        let names = BTreeMap::from([("kine-nats", "docker.io/yoke/kine-nats:dev-1".to_owned())]);
        let digests = BTreeMap::from([("amd64".to_owned(), "0".repeat(64))]);
        let values = build_values(
            Ipv4Addr::new(100, 64, 0, 2),
            &names,
            &digests,
            &"1.35.5".parse().unwrap(),
        );
        assert_eq!(values["worker"]["digests"]["amd64"], "0".repeat(64));
        assert_eq!(values["ssh"]["host"], "100.64.0.2:22");
        assert_eq!(values["ssh"]["api"]["host"], "ssh.yoke.test");
        assert_eq!(values["images"]["kineNats"], "docker.io/yoke/kine-nats:dev-1");
        assert_eq!(values["nats"]["urls"], json!(["tls://100.64.0.2:4222"]));
        assert_eq!(values["ingress"]["service"]["externalIPs"], json!(["100.64.0.2"]));
        assert_eq!(values["versions"][0]["default"], true);
        let older = json!({
            "version": "1.35.5",
            "default": false,
            "images": {
                "coreDNS": "registry.k8s.io/coredns/coredns:v1.15.0",
                "kubeAPIServer": "registry.k8s.io/kube-apiserver:v1.35.5",
                "kubeControllerManager": "registry.k8s.io/kube-controller-manager:v1.35.5",
                "kubeProxy": "registry.k8s.io/kube-proxy:v1.35.4",
                "kubeScheduler": "registry.k8s.io/kube-scheduler:v1.35.5",
                "metricsServer": "registry.k8s.io/metrics-server/metrics-server:v0.9.0",
            },
        });
        assert_eq!(values["versions"][1], older);
    }
}
