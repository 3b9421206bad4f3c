//! The host's processes: command line and health probe of each.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use yoke_supervisor::programs::find_program;

use super::node::Node;
use super::{HostStore, config};
use crate::credentials::nats;
use crate::layout::Layout;
use crate::names::HOST_API_PORT;
use crate::network::Network;
use crate::supervisor::{Probe, Service};

const STORE_CLIENT: &str = "127.0.0.1:2379";
const STORE_METRICS: &str = "127.0.0.1:2381";
const HOST_STREAM: &str = "KINE_host";
/// Maximum size of one audit log. A test that creates a thousand Clusters writes less.
const AUDIT_MEGABYTES: u32 = 256;

/// Builds the services of one node.
#[derive(Debug, Clone, Copy)]
pub struct Services<'a> {
    /// The clone's folders, for files that are not the node's own.
    pub layout: &'a Layout,
    /// Addresses of the stack.
    pub network: &'a Network,
    /// The node.
    pub node: &'a Node,
}

impl Services<'_> {
    /// nats-server. The probe uses `js-server-only`: the full health check visits every account,
    /// and waits two seconds for each deleted one.
    pub fn nats(&self) -> Result<Service> {
        let config = nats::file(self.layout, nats::CONFIG);
        let probe = http(
            &format!("127.0.0.1:{}", nats::MONITOR_PORT),
            "/healthz?js-server-only=true",
        );
        self.service("nats-server", "nats-server", flag("-c", &config), probe, &[&config])
    }

    /// Datastore of the host API.
    pub fn store(&self, store: HostStore) -> Result<Service> {
        match store {
            HostStore::KineNats => self.kine_nats(),
            HostStore::Etcd => self.etcd(),
        }
    }

    fn kine_nats(&self) -> Result<Service> {
        let creds = nats::file(self.layout, nats::HOST_CREDS);
        let ca = nats::file(self.layout, nats::CA);
        let socket = self.layout.run().join("kine-nats.sock");
        let args = vec![
            format!("--listen=unix://{}", socket.display()),
            format!("--listen=http://{STORE_CLIENT}"),
            format!("--nats=tls://{}:{}", self.network.node_ip(), nats::PORT),
            format!("--creds={}", creds.display()),
            format!("--nats-ca={}", ca.display()),
            format!("--stream={HOST_STREAM}"),
            "--create".to_owned(),
            "--replicas=1".to_owned(),
            format!("--metrics={STORE_METRICS}"),
        ];
        self.service(
            "kine-nats",
            "kine-nats",
            args,
            http(STORE_METRICS, "/readyz"),
            &[&creds, &ca],
        )
    }

    fn etcd(&self) -> Result<Service> {
        let args = vec![
            format!("--data-dir={}", self.layout.dev().join("etcd").display()),
            format!("--listen-client-urls=http://{STORE_CLIENT}"),
            format!("--advertise-client-urls=http://{STORE_CLIENT}"),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            format!("--listen-metrics-urls=http://{STORE_METRICS}"),
        ];
        self.service("etcd", "etcd", args, http(STORE_METRICS, "/health"), &[])
    }

    /// kube-apiserver.
    pub fn api_server(&self) -> Result<Service> {
        let pki = self.layout.pki();
        let file = |name: &str| pki.join(name).display().to_string();
        let audit = self.layout.config().join(config::AUDIT_POLICY);
        let args = vec![
            format!("--etcd-servers=http://{STORE_CLIENT}"),
            format!("--secure-port={HOST_API_PORT}"),
            "--bind-address=0.0.0.0".to_owned(),
            format!("--advertise-address={}", self.network.node_ip()),
            format!("--service-cluster-ip-range={}", self.network.plan.services),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--kubelet-certificate-authority={}", file("ca.crt")),
            format!("--kubelet-client-certificate={}", file("apiserver-kubelet-client.crt")),
            format!("--kubelet-client-key={}", file("apiserver-kubelet-client.key")),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!("--requestheader-client-ca-file={}", file("front-proxy-ca.crt")),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            format!("--proxy-client-cert-file={}", file("front-proxy-client.crt")),
            format!("--proxy-client-key-file={}", file("front-proxy-client.key")),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--shutdown-delay-duration=0s".to_owned(),
            format!("--audit-policy-file={}", audit.display()),
            format!("--audit-log-path={}", self.layout.log().join("audit.log").display()),
            format!("--audit-log-maxsize={AUDIT_MEGABYTES}"),
            "--audit-log-maxbackup=1".to_owned(),
        ];
        let reads = ["apiserver.crt", "ca.crt", "sa.pub", "front-proxy-ca.crt"].map(|name| pki.join(name));
        let reads = reads.into_iter().chain([audit]).collect::<Vec<_>>();
        let probe = self.kubectl(&["get", "--raw", "/readyz"]);
        self.service(
            "kube-apiserver",
            "kube-apiserver",
            args,
            probe,
            &reads.iter().map(PathBuf::as_path).collect::<Vec<_>>(),
        )
    }

    /// kube-controller-manager.
    pub fn controller_manager(&self) -> Result<Service> {
        let pki = self.layout.pki();
        let file = |name: &str| pki.join(name).display().to_string();
        let mut args = self.component_args("kube-controller-manager", 10257);
        args.extend([
            "--use-service-account-credentials=true".to_owned(),
            format!("--root-ca-file={}", file("ca.crt")),
            format!("--service-account-private-key-file={}", file("sa.key")),
            format!("--cluster-signing-cert-file={}", file("ca.crt")),
            format!("--cluster-signing-key-file={}", file("ca.key")),
            // Deleting a namespace takes more than a hundred requests. The default limit is 20 per
            // second.
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
        ]);
        let kubeconfig = self.layout.kubeconfig("kube-controller-manager");
        let reads = [kubeconfig.as_path(), &pki.join("ca.crt"), &pki.join("sa.key")];
        self.service(
            "kube-controller-manager",
            "kube-controller-manager",
            args,
            self.component_probe(10257),
            &reads,
        )
    }

    /// kube-scheduler.
    pub fn scheduler(&self) -> Result<Service> {
        let args = self.component_args("kube-scheduler", 10259);
        let kubeconfig = self.layout.kubeconfig("kube-scheduler");
        self.service(
            "kube-scheduler",
            "kube-scheduler",
            args,
            self.component_probe(10259),
            &[&kubeconfig],
        )
    }

    /// containerd. Its shims and the pods outlive it.
    pub fn containerd(&self) -> Result<Service> {
        let config = self.node.layout.config().join(config::CONTAINERD);
        let program = find_program("containerd").context("containerd is not installed")?;
        let ctr = find_program("ctr").context("ctr is not installed")?;
        let socket = self.node.layout.containerd_socket().display().to_string();
        let probe = Probe::Command(vec![
            ctr.display().to_string(),
            "--address".into(),
            socket,
            "version".into(),
        ]);
        let mut command = vec![program.display().to_string()];
        command.extend(flag("--config", &config));
        Ok(Service {
            name: "containerd".to_owned(),
            command,
            env: BTreeMap::new(),
            probe,
            stamp: stamp(&[&program, &config])?,
        })
    }

    /// kubelet.
    pub fn kubelet(&self) -> Result<Service> {
        let layout = &self.node.layout;
        let config = layout.config().join(config::KUBELET);
        let kubeconfig = layout.kubeconfig("kubelet");
        let args = vec![
            format!("--config={}", config.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--root-dir={}", layout.kubelet().display()),
            format!("--hostname-override={}", self.node.name),
            format!("--node-ip={}", self.node.plan.ip),
        ];
        let reads = [
            config.as_path(),
            kubeconfig.as_path(),
            &layout.pki().join("kubelet.crt"),
        ];
        self.service("kubelet", "kubelet", args, http("127.0.0.1:10248", "/healthz"), &reads)
    }

    /// kube-proxy.
    pub fn kube_proxy(&self) -> Result<Service> {
        let config = self.node.layout.config().join(config::KUBE_PROXY);
        let kubeconfig = self.node.layout.kubeconfig("kube-proxy");
        let args = vec![
            format!("--config={}", config.display()),
            format!("--hostname-override={}", self.node.name),
        ];
        self.service(
            "kube-proxy",
            "kube-proxy",
            args,
            http("127.0.0.1:10256", "/healthz"),
            &[&config, &kubeconfig],
        )
    }

    /// kube-router, used only for NetworkPolicy.
    pub fn kube_router(&self) -> Result<Service> {
        let kubeconfig = self.node.layout.kubeconfig("kube-router");
        let args = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            "--run-firewall=true".to_owned(),
            "--run-router=false".to_owned(),
            "--run-service-proxy=false".to_owned(),
            format!("--hostname-override={}", self.node.name),
            format!("--service-cluster-ip-range={}", self.network.plan.services),
            "--iptables-sync-period=60s".to_owned(),
            "--health-port=20244".to_owned(),
        ];
        self.service(
            "kube-router",
            "kube-router",
            args,
            http("127.0.0.1:20244", "/healthz"),
            &[&kubeconfig],
        )
    }

    /// Flags common to kube-controller-manager and kube-scheduler. Each runs once, so leader
    /// election is off and a restart need not wait for it.
    fn component_args(&self, name: &str, port: u16) -> Vec<String> {
        let kubeconfig = self.layout.kubeconfig(name).display().to_string();
        let pki = self.layout.pki();
        vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--tls-cert-file={}", pki.join("component.crt").display()),
            format!("--tls-private-key-file={}", pki.join("component.key").display()),
            "--leader-elect=false".to_owned(),
        ]
    }

    fn component_probe(&self, port: u16) -> Probe {
        self.kubectl(&[
            "--server",
            &format!("https://127.0.0.1:{port}"),
            "get",
            "--raw",
            "/healthz",
        ])
    }

    fn kubectl(&self, args: &[&str]) -> Probe {
        let mut command = vec![
            self.layout.binary("kubectl").display().to_string(),
            "--kubeconfig".to_owned(),
            self.layout.host_kubeconfig().display().to_string(),
            "--cache-dir".to_owned(),
            self.layout.kubectl_cache().display().to_string(),
            "--request-timeout=3s".to_owned(),
        ];
        command.extend(args.iter().map(ToString::to_string));
        Probe::Command(command)
    }

    fn service(&self, name: &str, binary: &str, args: Vec<String>, probe: Probe, reads: &[&Path]) -> Result<Service> {
        let program = self.layout.binary(binary);
        let mut files = vec![program.as_path()];
        files.extend(reads);
        let mut command = vec![program.display().to_string()];
        command.extend(args);
        Ok(Service {
            name: name.to_owned(),
            command,
            env: BTreeMap::new(),
            probe,
            stamp: stamp(&files)?,
        })
    }
}

fn http(address: &str, path: &str) -> Probe {
    Probe::Http {
        address: address.to_owned(),
        path: path.to_owned(),
    }
}

fn flag(name: &str, file: &Path) -> Vec<String> {
    vec![name.to_owned(), file.display().to_string()]
}

/// Hash of a service's files: the content of small files, size and modification time of binaries.
/// Binaries are links into the build cache, where no file changes in place.
fn stamp(files: &[&Path]) -> Result<String> {
    const SMALL: u64 = 1 << 20;
    let mut hash = Sha256::new();
    for file in files {
        let meta = fs::metadata(file).with_context(|| format!("reading the metadata of {}", file.display()))?;
        if meta.len() <= SMALL {
            hash.update(fs::read(file).with_context(|| format!("reading {}", file.display()))?);
        } else {
            hash.update(meta.len().to_be_bytes());
            hash.update(format!("{:?}", meta.modified().context("reading a file's time")?));
        }
    }
    Ok(HEXLOWER.encode(&hash.finalize()[..8]))
}
