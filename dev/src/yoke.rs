//! Installs Yoke on the host cluster: its chart, the chart's values, and the demo tenant.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use data_encoding::BASE64;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::command::Command;
use crate::credentials::nats;
use crate::files::write_secret;
use crate::images;
use crate::images::contents::{KUBE_PROXY, WORKER_BINARY};
use crate::kubectl::{CACHE_VARIABLE, Kubectl};
use crate::layout::Layout;
use crate::names::{BASE_DOMAIN, DEMO, HOST_API_PORT, INGRESS_PORT, NAMESPACE, NODE_NAME};
use crate::network::Network;
use crate::releases::{self, Releases};
use crate::ssh;
use crate::versions::{self, KUBERNETES_VERSION};

const PKI_NAMESPACE: &str = "yoke-pki";
const RELEASE: &str = "yoke";
const READY_LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(300);

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
        .await?;

    // A release that a killed helm left pending would block every later one. helm adopts the
    // objects that it created.
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
        .context("removing the record of an interrupted chart installation")?;

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

/// Result of creating the demo cluster.
#[derive(Debug)]
pub struct Demo {
    /// Time until it was Ready.
    pub took: Duration,
    /// Whether it was asleep before.
    pub woken: bool,
    /// Output of `kubectl get namespaces`.
    pub namespaces: String,
}

/// Creates the demo tenant and cluster, wakes the cluster if it sleeps, and waits until its API
/// answers through the ingress.
pub async fn make_demo(layout: &Layout) -> Result<Demo> {
    let kubectl = Kubectl::new(layout);
    let spec = json!({"sshKeys": [{"name": "make-up", "publicKey": ssh::make_demo_key(layout).await?}]});
    let begun = Instant::now();
    let tenant =
        json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Tenant", "metadata": {"name": DEMO}, "spec": spec});
    kubectl.apply(tenant.to_string()).await?;
    // The operator creates the tenant's namespace.
    kubectl
        .until(
            "the tenant's namespace to appear",
            &["get", "namespace", DEMO],
            READY_LIMIT,
        )
        .await?;
    let cluster = json!({
        "apiVersion": "yoke.drzzl.io/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": DEMO, "namespace": DEMO},
        // Workers can join with `make worker`. They are behind NAT.
        "spec": {"konnectivity": "Enabled", "state": "Running"},
    });
    kubectl
        .apply(cluster.to_string())
        .await
        .context("creating the demo cluster")?;
    let timeout = format!("--timeout={}s", READY_LIMIT.as_secs());
    let cluster = format!("cluster.yoke.drzzl.io/{DEMO}");
    let woken = wake(&kubectl, &cluster).await.context("waking the demo cluster")?;
    let wait = ["--namespace", DEMO, "wait", "--for=condition=Ready", &cluster, &timeout];
    if let Err(error) = kubectl.command(&wait).run().await {
        let conditions =
            "--output=jsonpath={range .status.conditions[*]}  {.type}={.status} {.reason}: {.message}{'\\n'}{end}";
        let why = kubectl
            .command(&["--namespace", DEMO, "get", &cluster, conditions])
            .output()
            .await;
        return Err(error).context(format!(
            "the demo cluster is not Ready\n{}",
            why.unwrap_or_default().trim_end()
        ));
    }
    let took = begun.elapsed();
    let secret = format!("{DEMO}-kubeconfig");
    let encoded = kubectl
        .command(&[
            "--namespace",
            DEMO,
            "get",
            "secret",
            &secret,
            "--output=jsonpath={.data.value}",
        ])
        .output()
        .await
        .context("reading the demo cluster's kubeconfig")?;
    let kubeconfig = BASE64
        .decode(encoded.trim().as_bytes())
        .context("decoding the demo cluster's kubeconfig")?;
    let kubeconfig = String::from_utf8(kubeconfig).context("decoding the demo cluster's kubeconfig")?;
    write_secret(&layout.demo_kubeconfig(), &kubeconfig)?;
    Ok(Demo {
        took,
        woken,
        namespaces: demo_namespaces(layout).await?,
    })
}

/// Wakes a sleeping cluster. Returns whether it was asleep.
async fn wake(kubectl: &Kubectl<'_>, cluster: &str) -> Result<bool> {
    let state = "--output=jsonpath={.status.conditions[?(@.type=='Asleep')].status}";
    let asleep = kubectl
        .command(&["--namespace", DEMO, "get", cluster, state])
        .output()
        .await?;
    if asleep.trim() != "True" {
        return Ok(false);
    }
    let end = "yoke.drzzl.io/sleep=end";
    let annotate = ["--namespace", DEMO, "annotate", "--overwrite", cluster, end];
    kubectl.command(&annotate).run().await?;
    Ok(true)
}

/// Runs `kubectl get namespaces` as the tenant, through the ingress.
async fn demo_namespaces(layout: &Layout) -> Result<String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let answer = Kubectl::new(layout)
            .with(
                &layout.demo_kubeconfig(),
                &["--request-timeout=5s", "get", "namespaces"],
            )
            .output()
            .await;
        match answer {
            Ok(namespaces) => return Ok(namespaces),
            Err(error) if Instant::now() > deadline => {
                return Err(error).context("listing the demo cluster's namespaces");
            }
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
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
        "ssh": {
            "enabled": true,
            "port": ssh::PORT,
            "contact": "the user who ran `make up`",
            "host": format!("{node}:{}", ssh::PORT),
            "nodeSelector": first,
            "service": {"type": "ClusterIP", "externalIPs": [node], "externalTrafficPolicy": "Local"},
            "api": {
                "enabled": true,
                "host": ssh::API_HOST,
                "port": ssh::API_PORT,
                "tlsSecret": ssh::API_SECRET,
                "issuerRef": {"name": ssh::API_SECRET, "kind": "Issuer"},
            },
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
