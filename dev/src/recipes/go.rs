//! Builds binaries from Go modules. Each has a small module in `dev/go/<name>`, which pins the
//! versions. Its `go.sum` pins the content.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Made, cache_key, cached};
use crate::command::Command;
use crate::files::link;
use crate::layout::Layout;
use crate::versions::KUBERNETES_VERSION;

/// A Go module and its binaries.
#[derive(Debug)]
pub struct Recipe {
    /// Folder below `dev/go`.
    pub module: &'static str,
    /// Packages, and the binary name of each.
    pub binaries: &'static [(&'static str, &'static str)],
    /// Kubernetes version to set in the binaries, if they need one.
    kubernetes: Option<&'static str>,
}

/// Every module that is built by default.
pub const RECIPES: &[Recipe] = &[
    Recipe {
        module: "workloads",
        binaries: &[("./pause", "pause"), ("./echo", "echo")],
        kubernetes: None,
    },
    Recipe {
        module: "kubernetes",
        binaries: &[
            ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver"),
            (
                "k8s.io/kubernetes/cmd/kube-controller-manager",
                "kube-controller-manager",
            ),
            ("k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler"),
            ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
            ("k8s.io/kubernetes/cmd/kube-proxy", "kube-proxy"),
            ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
        ],
        kubernetes: Some(KUBERNETES_VERSION),
    },
    Recipe {
        module: "nats-server",
        binaries: &[("github.com/nats-io/nats-server/v2", "nats-server")],
        kubernetes: None,
    },
    Recipe {
        module: "konnectivity",
        binaries: &[
            ("sigs.k8s.io/apiserver-network-proxy/cmd/server", "proxy-server"),
            ("sigs.k8s.io/apiserver-network-proxy/cmd/agent", "proxy-agent"),
        ],
        kubernetes: None,
    },
    Recipe {
        module: "cni-plugins",
        binaries: &[
            ("github.com/containernetworking/plugins/plugins/main/bridge", "bridge"),
            (
                "github.com/containernetworking/plugins/plugins/main/loopback",
                "loopback",
            ),
            (
                "github.com/containernetworking/plugins/plugins/ipam/host-local",
                "host-local",
            ),
            ("github.com/containernetworking/plugins/plugins/meta/portmap", "portmap"),
        ],
        kubernetes: None,
    },
    Recipe {
        module: "kube-router",
        binaries: &[("github.com/cloudnativelabs/kube-router/cmd/kube-router", "kube-router")],
        kubernetes: None,
    },
    Recipe {
        module: "device-plugin",
        binaries: &[(".", "device-plugin")],
        kubernetes: None,
    },
    Recipe {
        module: "coredns",
        binaries: &[(".", "coredns")],
        kubernetes: None,
    },
    Recipe {
        module: "cert-manager",
        binaries: &[(".", "cert-manager-controller")],
        kubernetes: None,
    },
    Recipe {
        module: "helm",
        binaries: &[("helm.sh/helm/v4/cmd/helm", "helm")],
        kubernetes: None,
    },
    // etcdctl queries the stores, in tests and by hand. etcdutl reads snapshots. etcd is the host's
    // datastore with `HOST_STORE=etcd`.
    Recipe {
        module: "etcd",
        binaries: &[
            ("go.etcd.io/etcd/server/v3", "etcd"),
            ("go.etcd.io/etcd/etcdctl/v3", "etcdctl"),
            ("go.etcd.io/etcd/etcdutl/v3", "etcdutl"),
        ],
        kubernetes: None,
    },
];

/// metrics-server, which serves `kubectl top`. It is built only on request: it uses another version
/// of the Kubernetes libraries, so its build takes minutes.
pub const METRICS_SERVER: Recipe = Recipe {
    module: "metrics-server",
    binaries: &[("sigs.k8s.io/metrics-server/cmd/metrics-server", "metrics-server")],
    kubernetes: None,
};

/// Control planes and kubelets of other Kubernetes versions, for tests that upgrade a cluster. Each
/// binary's name ends in the version.
const CONTROL_PLANES: &[Recipe] = &[Recipe {
    module: "kubernetes-1.35.5",
    binaries: &[
        ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver-1.35.5"),
        (
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "kube-controller-manager-1.35.5",
        ),
        ("k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler-1.35.5"),
        ("k8s.io/kubernetes/cmd/kubelet", "kubelet-1.35.5"),
    ],
    kubernetes: Some("1.35.5"),
}];

impl Recipe {
    /// Builds the binaries unless they are cached, and puts them into `.dev/bin`.
    pub async fn make(&self, layout: &Layout) -> Result<Made> {
        let source = layout.root().join("dev/go").join(self.module);
        let version = Command::new("go")
            .args(["env", "GOVERSION", "GOOS", "GOARCH"])
            .env("GOTOOLCHAIN", "local");
        let version = version.output().await?;
        let flags = self.to_linker_flags();
        let mut inputs = vec![
            version.into_bytes(),
            flags.clone().into_bytes(),
            format!("{:?}", self.binaries).into(),
        ];
        read_tree(&source, &mut inputs)?;
        let key = cache_key(self.module, inputs.iter().map(Vec::as_slice));
        let (result, made) = cached(layout, &key, |dir| async move {
            for (package, binary) in self.binaries {
                Command::new("go")
                    .args(["build", "-buildvcs=false", "-trimpath", "-ldflags", &flags, "-o"])
                    .arg(dir.join(binary))
                    .arg(package)
                    .dir(&source)
                    .env("CGO_ENABLED", "0")
                    .env("GOTOOLCHAIN", "local")
                    .env("GOFLAGS", "-mod=readonly")
                    .run()
                    .await?;
            }
            Ok(())
        })
        .await
        .with_context(|| format!("building {}", self.module))?;
        fs::create_dir_all(layout.bin()).context("creating .dev/bin")?;
        for (_, binary) in self.binaries {
            link(&result.join(binary), &layout.binary(binary))?;
        }
        Ok(made)
    }

    /// Linker flags that set the Kubernetes version. Clients cannot parse the version of a
    /// Kubernetes binary built without them.
    fn to_linker_flags(&self) -> String {
        let mut flags = "-s -w".to_owned();
        if let Some(version) = self.kubernetes {
            let mut parts = version.split('.');
            let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            for (name, value) in [
                ("gitVersion", format!("v{version}")),
                ("gitMajor", major.to_owned()),
                ("gitMinor", minor.to_owned()),
                ("gitTreeState", "clean".to_owned()),
                ("gitCommit", "unknown".to_owned()),
                ("buildDate", "1970-01-01T00:00:00Z".to_owned()),
            ] {
                flags.push_str(&format!(" -X k8s.io/component-base/version.{name}={value}"));
            }
        }
        flags
    }
}

/// Control plane and kubelet of a version other than the host's.
pub fn find_control_plane(release: &str) -> Option<&'static Recipe> {
    CONTROL_PLANES.iter().find(|recipe| recipe.kubernetes == Some(release))
}

/// Versions other than the host's that can be built.
pub fn other_releases() -> impl Iterator<Item = &'static str> {
    CONTROL_PLANES.iter().filter_map(|recipe| recipe.kubernetes)
}

/// Source folder of a required module, for files that are not Go.
pub async fn module_dir(layout: &Layout, module: &str, path: &str) -> Result<PathBuf> {
    let dir = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", path])
        .dir(layout.root().join("dev/go").join(module))
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "-mod=readonly")
        .output()
        .await?;
    Ok(PathBuf::from(dir.trim()))
}

/// Reads file names and contents below a folder, sorted by name.
fn read_tree(dir: &Path, into: &mut Vec<Vec<u8>>) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(dir)
        .with_context(|| format!("reading {}", dir.display()))?
        .flatten()
        .collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        into.push(entry.file_name().into_encoded_bytes());
        if entry.path().is_dir() {
            read_tree(&entry.path(), into)?;
        } else {
            into.push(fs::read(entry.path()).with_context(|| format!("reading {}", entry.path().display()))?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_gets_its_version_at_link_time() {
        let kubernetes = RECIPES.iter().find(|recipe| recipe.module == "kubernetes").unwrap();
        let flags = kubernetes.to_linker_flags();
        assert!(flags.contains("version.gitVersion=v1.35.4 "), "{flags}");
        assert!(flags.contains("version.gitMinor=35 "), "{flags}");
        let flags = find_control_plane("1.35.5").unwrap().to_linker_flags();
        assert!(flags.contains("version.gitVersion=v1.35.5 "), "{flags}");
        let other = RECIPES.iter().find(|recipe| recipe.kubernetes.is_none()).unwrap();
        assert_eq!(other.to_linker_flags(), "-s -w");
    }

    #[test]
    fn every_binary_is_made_by_one_recipe() {
        let mut names: Vec<_> = RECIPES
            .iter()
            .chain(CONTROL_PLANES)
            .chain([&METRICS_SERVER])
            .flat_map(|recipe| recipe.binaries)
            .map(|(_, binary)| binary)
            .collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
