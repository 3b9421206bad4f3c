//! Builds container images without an engine or a registry. An image holds one binary, the shared
//! libraries that it needs, and nothing else. Images are imported into containerd under the names
//! that a registry would serve.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::slice;

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use yoke_supervisor::programs::find_program;

use crate::command::Command;
use crate::images::contents::{Contents, KUBE_PROXY, architecture, build, stamp};
use crate::kubectl::Kubectl;
use crate::layout::Layout;
use crate::releases::{self, Releases};
use crate::versions::{
    CERT_MANAGER_IMAGE, COREDNS_IMAGE, ECHO_IMAGE, ENVOY_IMAGE, KONNECTIVITY_AGENT_IMAGE, KONNECTIVITY_SERVER_IMAGE,
    KUBERNETES_VERSION, METRICS_SERVER_IMAGE, PAUSE_IMAGE,
};

pub(crate) mod contents;
pub mod export;
pub mod oci;
pub mod worker;

const TAG_DIGITS: usize = 12;

/// Images of third-party binaries, except control planes: image name, binary.
const THIRD_PARTY: &[(&str, &str)] = &[
    (PAUSE_IMAGE, "pause"),
    (COREDNS_IMAGE, "coredns"),
    (CERT_MANAGER_IMAGE, "cert-manager-controller"),
    (KONNECTIVITY_SERVER_IMAGE, "proxy-server"),
    (KONNECTIVITY_AGENT_IMAGE, "proxy-agent"),
    (ECHO_IMAGE, "echo"),
    (ENVOY_IMAGE, "envoy"),
];

/// Image for workers that exists only if its binary was built: image name, binary.
const OPTIONAL: (&str, &str) = (METRICS_SERVER_IMAGE, "metrics-server");

/// Binaries of the images that workers of tenants run.
const WORKER_BINARIES: &[&str] = &["pause", "coredns", "proxy-agent", "echo", KUBE_PROXY];

/// Images of this workspace's binaries: repository, binary. Each image gets the tag `dev` and a tag
/// with its content hash. So a Deployment rolls out exactly when its image has changed.
const OWN: &[(&str, &str)] = &[
    ("docker.io/yoke/operator", "yoke-operator"),
    ("docker.io/yoke/ingress-xds", "yoke-ingress-xds"),
    ("docker.io/yoke/ssh-ui", "yoke-ssh-ui"),
    ("docker.io/yoke/kine-nats", "kine-nats"),
];

/// Cached facts about a binary's image, so that the binary need not be read again.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Known {
    stamp: String,
    /// SHA-256 of the layer. It identifies the image's content.
    layer: String,
}

/// The images in containerd.
#[derive(Debug)]
pub struct Images<'a> {
    layout: &'a Layout,
    known: BTreeMap<String, Known>,
}

impl<'a> Images<'a> {
    /// Reads the cached facts about images.
    pub fn open(layout: &'a Layout) -> Self {
        let known = fs::read(Self::file(layout))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self {
            layout,
            known: known.unwrap_or_default(),
        }
    }

    fn file(layout: &Layout) -> PathBuf {
        layout.dev().join("images.json")
    }

    /// Imports the images of third-party binaries. Returns how many were imported.
    pub async fn load_third_party(&mut self, releases: &Releases) -> Result<usize> {
        let mut loaded = 0;
        for (name, binary) in THIRD_PARTY {
            loaded += usize::from(self.load(binary, binary, |_| vec![(*name).to_owned()]).await?);
        }
        let names = |_: &str| vec![releases::to_image(KUBE_PROXY, KUBERNETES_VERSION)];
        loaded += usize::from(self.load(KUBE_PROXY, KUBE_PROXY, names).await?);
        for release in releases.all() {
            for program in releases::PROGRAMS {
                let binary = releases::to_binary(program, release);
                let names = |_: &str| vec![releases::to_image(program, release)];
                loaded += usize::from(self.load(&binary, program, names).await?);
            }
        }
        Ok(loaded)
    }

    /// Imports the images of this workspace's binaries. Returns each image's full name by its
    /// binary, and how many were imported.
    pub async fn load_own(&mut self) -> Result<(BTreeMap<&'static str, String>, usize)> {
        let (mut names, mut loaded) = (BTreeMap::new(), 0);
        for (repository, binary) in OWN {
            let tagged = |layer: &str| format!("{repository}:dev-{}", &layer[..TAG_DIGITS]);
            // The tag with the content hash comes last: if it exists, both tags do.
            loaded += usize::from(
                self.load(binary, binary, |layer| vec![format!("{repository}:dev"), tagged(layer)])
                    .await?,
            );
            let known = self
                .known
                .get(*binary)
                .context("an image that was just loaded is known")?;
            names.insert(*binary, tagged(&known.layer));
        }
        Ok((names, loaded))
    }

    /// Imports the image of one binary, called `program` in the image, unless it exists. `names`
    /// maps the layer's digest to the image names. Returns true if it imported the image.
    async fn load(&mut self, binary: &str, program: &str, names: impl Fn(&str) -> Vec<String>) -> Result<bool> {
        let contents = Contents::find(program, self.layout.binary(binary)).await?;
        let stamp = stamp(contents.paths())?;
        let mut present = ctr(self.layout)?.args(["images", "ls", "--quiet"]).output().await?;
        present.push('\n');
        if let Some(known) = self.known.get(binary)
            && known.stamp == stamp
            && names(&known.layer)
                .iter()
                .all(|name| present.contains(&format!("{name}\n")))
        {
            return Ok(false);
        }
        let image = build(program, &contents).await?;
        let layer = image.layer_digest().to_owned();
        let archive = image
            .to_archive(&names(&layer))
            .with_context(|| format!("packing the image of {binary}"))?;
        ctr(self.layout)?
            .args(["images", "import", "-"])
            .input(archive)
            .run()
            .await
            .with_context(|| format!("loading the image of {binary}"))?;
        self.known.insert(binary.to_owned(), Known { stamp, layer });
        fs::write(Self::file(self.layout), serde_json::to_vec_pretty(&self.known)?).context("recording the images")?;
        Ok(true)
    }
}

/// SHA-256 of `yoke-worker` by architecture, as a value of the chart.
pub fn digests(worker: &Path) -> Result<BTreeMap<String, String>> {
    let content = fs::read(worker).with_context(|| format!("reading {}", worker.display()))?;
    let digest = HEXLOWER.encode(&Sha256::digest(content));
    Ok(BTreeMap::from([(architecture().to_owned(), digest)]))
}

/// An image that is not built yet.
pub struct PlannedImage {
    /// The image's binary.
    pub binary: &'static str,
    name: String,
    contents: Contents,
}

impl PlannedImage {
    /// The files that the image is built from.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.contents.paths()
    }

    /// Writes the image to a file, for `ctr images import`.
    pub async fn write(&self, file: &Path) -> Result<()> {
        let image = build(self.binary, &self.contents).await?;
        let archive = image
            .to_archive(slice::from_ref(&self.name))
            .with_context(|| format!("packing the image of {}", self.binary))?;
        fs::write(file, archive).with_context(|| format!("writing {}", file.display()))
    }
}

/// Plans the images for workers of tenants, which cannot reach a registry.
pub async fn plan_for_workers(layout: &Layout) -> Result<Vec<PlannedImage>> {
    let mut plans = Vec::new();
    let more = layout.binary(OPTIONAL.1).exists().then_some(&OPTIONAL.1);
    for binary in WORKER_BINARIES.iter().chain(more) {
        let released = THIRD_PARTY.iter().chain([&OPTIONAL]).find(|(_, of)| of == binary);
        plans.push(PlannedImage {
            binary,
            name: released.map_or_else(
                || releases::to_image(KUBE_PROXY, KUBERNETES_VERSION),
                |(name, _)| (*name).to_owned(),
            ),
            contents: Contents::find(binary, layout.binary(binary)).await?,
        });
    }
    Ok(plans)
}

/// `ctr` for the kubelet's images and containers.
pub fn ctr(layout: &Layout) -> Result<Command> {
    let program = find_program("ctr").context("ctr is not installed")?;
    Ok(Command::new(program)
        .arg("--address")
        .arg(layout.containerd_socket())
        .args(["--namespace", "k8s.io"]))
}

/// Copies to another node the images that the first node has, and removes its other images. Returns
/// how many were copied.
pub async fn mirror(first: &Layout, other: &Layout) -> Result<usize> {
    let (wanted, found) = (list(first).await?, list(other).await?);
    let missing: Vec<_> = wanted.difference(&found).map(|(name, _)| name).collect();
    if !missing.is_empty() {
        let archive = other.run().join("images.tar");
        let exported = async {
            ctr(first)?
                .args(["images", "export"])
                .arg(&archive)
                .args(&missing)
                .run()
                .await?;
            ctr(other)?.args(["images", "import"]).arg(&archive).run().await?;
            anyhow::Ok(())
        };
        let done = exported.await.context("copying the images");
        let _ = fs::remove_file(&archive);
        done?;
    }
    let is_wanted = |name: &String| wanted.iter().any(|(wanted, _)| wanted == name);
    let stale: Vec<_> = found
        .iter()
        .map(|(name, _)| name)
        .filter(|name| !is_wanted(name))
        .collect();
    if !stale.is_empty() {
        ctr(other)?.args(["images", "rm"]).args(&stale).run().await?;
    }
    Ok(missing.len())
}

/// Names of a node's images, each with its digest. Skips the `sha256:` names that containerd's CRI
/// plugin adds.
async fn list(layout: &Layout) -> Result<BTreeSet<(String, String)>> {
    let listing = ctr(layout)?.args(["images", "ls"]).output().await?;
    let to_pair = |line: &str| {
        let mut columns = line.split_whitespace();
        Some((columns.next()?.to_owned(), columns.nth(1)?.to_owned()))
    };
    let named = |(name, _): &(String, String)| !name.starts_with("sha256:");
    Ok(listing.lines().skip(1).filter_map(to_pair).filter(named).collect())
}

/// Removes old images of this workspace's binaries that no object in the host cluster uses. Returns
/// how many.
pub async fn prune(layout: &Layout) -> Result<usize> {
    // A pod template counts as much as a pod: the image cannot be pulled again.
    let kinds = "pods,deployments,statefulsets";
    let args = ["get", kinds, "--all-namespaces", "--output=jsonpath={..image}"];
    let used = Kubectl::new(layout).command(&args).output().await?;
    let listing = ctr(layout)?.args(["images", "ls"]).output().await?;
    let stale = plan_prune(&listing, &used.split_whitespace().collect());
    let tags = stale.iter().filter(|name| is_own_tag(name)).count();
    if !stale.is_empty() {
        ctr(layout)?.args(["images", "rm"]).args(&stale).run().await?;
    }
    Ok(tags)
}

/// Chooses the names to remove from the output of `ctr images ls`. All names of an image are
/// removed, or none. Each name must be an unused content tag, or the plain digest under which
/// containerd's CRI plugin lists every image.
fn plan_prune<'a>(listing: &'a str, used: &BTreeSet<&str>) -> Vec<&'a str> {
    let mut images = BTreeMap::<&str, Vec<&str>>::new();
    for line in listing.lines().skip(1) {
        let mut columns = line.split_whitespace();
        if let (Some(name), Some(digest)) = (columns.next(), columns.nth(1)) {
            images.entry(digest).or_default().push(name);
        }
    }
    images
        .into_values()
        .filter(|names| {
            let stale = |name: &&str| is_own_tag(name) && !used.contains(*name);
            names.iter().any(|name| is_own_tag(name))
                && names.iter().all(|name| stale(name) || name.starts_with("sha256:"))
        })
        .flatten()
        .collect()
}

/// Whether a name is a content tag of one of this workspace's binaries.
fn is_own_tag(name: &str) -> bool {
    OWN.iter().any(|(repository, _)| {
        name.strip_prefix(repository)
            .is_some_and(|tag| tag.starts_with(":dev-"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_removed_when_none_of_its_names_is_used() {
        let listing = "\
REF TYPE DIGEST SIZE
docker.io/yoke/operator:dev m sha256:c 1
docker.io/yoke/operator:dev-3 m sha256:c 1
docker.io/yoke/operator:dev-2 m sha256:b 1
docker.io/yoke/operator:dev-1 m sha256:a 1
docker.io/yoke/echo:dev m sha256:e 1
registry.k8s.io/pause:3.10 m sha256:d 1
sha256:aaaa m sha256:a 1
sha256:bbbb m sha256:b 1
sha256:cccc m sha256:c 1
sha256:ffff m sha256:f 1
";
        let used = BTreeSet::from(["docker.io/yoke/operator:dev-2"]);
        assert_eq!(
            plan_prune(listing, &used),
            ["docker.io/yoke/operator:dev-1", "sha256:aaaa"],
            "dev-2 is used, dev-3 is the newest, others are not ours"
        );
    }
}
