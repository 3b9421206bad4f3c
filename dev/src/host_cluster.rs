//! The host cluster: command lines of its processes, their configuration files, and the objects
//! that every cluster needs.

use std::fs;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use yoke_supervisor::cgroups::Cgroups;
use yoke_supervisor::programs::find_program;

use crate::host_cluster::node::Node;
use crate::layout::Layout;
use crate::network::Network;

mod config;
pub mod manifests;
pub mod node;
pub mod services;

/// Datastore of the host API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostStore {
    /// kine-nats, Yoke's own store.
    KineNats,
    /// etcd, to tell a fault of kine-nats from a fault of Kubernetes.
    Etcd,
}

impl HostStore {
    /// Name of the service, and value of `HOST_STORE`.
    pub fn name(self) -> &'static str {
        match self {
            Self::KineNats => "kine-nats",
            Self::Etcd => "etcd",
        }
    }

    /// Records the store of this clone and refuses another one, which would start with an empty
    /// host API under running pods.
    pub fn record_choice(self, layout: &Layout) -> Result<()> {
        let file = layout.dev().join("host-store");
        match fs::read_to_string(&file) {
            Ok(name) if name.trim() != self.name() => {
                bail!(
                    "this stack uses HOST_STORE={}, not {}: run `make down` first to change the store",
                    name.trim(),
                    self.name()
                )
            }
            Ok(_) => Ok(()),
            Err(_) => {
                fs::create_dir_all(layout.dev()).context("creating .dev")?;
                fs::write(&file, self.name()).context("recording the host store")
            }
        }
    }
}

impl FromStr for HostStore {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "kine-nats" => Ok(Self::KineNats),
            "etcd" => Ok(Self::Etcd),
            other => Err(format!("unknown host store {other:?}: choose kine-nats or etcd")),
        }
    }
}

/// Writes the configuration files of a node's containerd, CNI, kubelet and kube-proxy.
pub fn write_config(node: &Node, network: &Network, cgroups: &Cgroups) -> Result<()> {
    let layout = &node.layout;
    for dir in [layout.config(), layout.config().join("cni"), layout.run(), layout.log()] {
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let runc = find_program("runc").context("runc is not installed")?;
    let files = [
        (config::CONTAINERD, config::build_containerd(layout, &runc)),
        (config::CNI, config::build_cni(node, network)),
        (
            config::KUBELET,
            config::build_kubelet(node, network, &cgroups.pods_root()),
        ),
        (config::KUBE_PROXY, config::build_kube_proxy(layout, network)),
        (config::AUDIT_POLICY, config::build_audit_policy()),
        (
            config::RESOLV_CONF,
            "# A node of the development stack resolves nothing outside the cluster.\n".to_owned(),
        ),
    ];
    for (name, content) in files {
        let path = layout.config().join(name);
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
