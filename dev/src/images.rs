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

use crate::command::Command;
use crate::host_cluster::{KUBERNETES_VERSION, find_program};
use crate::images::oci::ImageFile;
use crate::kubectl::Kubectl;
use crate::layout::Layout;
use crate::recipes::rust::{self, Profile};
use crate::releases::{self, Releases};
use crate::workers;

pub mod oci;
pub mod worker;

/// CoreDNS.
pub const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.15.0";
/// cert-manager's controller.
pub const CERT_MANAGER: &str = "quay.io/jetstack/cert-manager-controller:v1.21.2";
/// Envoy.
pub const ENVOY: &str = "docker.io/envoyproxy/envoy:v1.40.0";
/// konnectivity server, a container of a tenant's control plane.
pub const KONNECTIVITY_SERVER: &str = "registry.k8s.io/kas-network-proxy/proxy-server:v0.34.0";
/// konnectivity agent, for workers of tenants.
pub const KONNECTIVITY_AGENT: &str = "registry.k8s.io/kas-network-proxy/proxy-agent:v0.34.0";
/// metrics-server, for workers of tenants.
pub const METRICS_SERVER: &str = "registry.k8s.io/metrics-server/metrics-server:v0.9.0";
/// kube-proxy, for workers of tenants.
pub const KUBE_PROXY: &str = "kube-proxy";
/// HTTP echo server for tests.
pub const ECHO: &str = "docker.io/yoke/echo:dev";
/// Folder of the binary in every image except [`AT_ROOT`].
const BIN: &str = "usr/local/bin";
/// Binary at the root of its image, because people call it by its path.
const AT_ROOT: &str = "echo";
const TAG_DIGITS: usize = 12;

/// Images of third-party binaries, except control planes: image name, binary.
const RELEASED: &[(&str, &str)] = &[
    (crate::host_cluster::PAUSE_IMAGE, "pause"),
    (COREDNS, "coredns"),
    (CERT_MANAGER, "cert-manager-controller"),
    (KONNECTIVITY_SERVER, "proxy-server"),
    (KONNECTIVITY_AGENT, "proxy-agent"),
    (ECHO, "echo"),
    (ENVOY, "envoy"),
];

/// Image for workers that exists only if its binary was built: image name, binary.
const IF_MADE: (&str, &str) = (METRICS_SERVER, "metrics-server");

/// Binaries of the images that workers of tenants run.
const OF_WORKERS: &[&str] = &["pause", "coredns", "proxy-agent", "echo", KUBE_PROXY];

/// The binary whose image also contains `yoke-worker`, and the folder that the chart configures for
/// it.
const GIVES: &str = "yoke-ssh-ui";
const WORKERS: &str = "usr/share/yoke/workers";
/// The binary that workers download from the SSH server.
pub const GIVEN: &str = worker::PROGRAM;

/// Programs of this computer that a binary calls: binary, program.
const RUNS: &[(&str, &str)] = &[
    (KUBE_PROXY, "nft"),
    (worker::PROGRAM, "ip"),
    (worker::PROGRAM, "mount"),
    (worker::PROGRAM, "nft"),
    (worker::PROGRAM, "nsenter"),
    (worker::PROGRAM, "setpriv"),
    (worker::PROGRAM, "umount"),
    (worker::PROGRAM, "unshare"),
];

/// Further binaries of this workspace in an image: image's binary, further binary.
const WITH: &[(&str, &str)] = &[("kine-nats", "yoke-launch")];

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
    pub async fn load_released(&mut self, releases: &Releases) -> Result<usize> {
        let mut loaded = 0;
        for (name, binary) in RELEASED {
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

/// Writes the images of this workspace's binaries to `.dev/images` as OCI archives that registry
/// tools can read. Returns the files, and the digests of `yoke-worker` for the chart.
pub async fn export(layout: &Layout, profile: Profile) -> Result<(Vec<PathBuf>, BTreeMap<String, String>)> {
    let built = rust::build(layout, profile).await?;
    let folder = layout.dev().join("images");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let mut files = Vec::new();
    let bundle = workers::pack(layout).await?;
    for (repository, binary) in OWN.iter().chain([&worker::IMAGE]) {
        let path = built.join(binary);
        let image = match *binary {
            worker::PROGRAM => worker::build(path, &bundle).await?,
            _ => build(binary, &Contents::find(binary, path).await?).await?,
        };
        let name = repository.rsplit('/').next().unwrap_or(repository);
        let archive = image
            .to_archive(&[format!("{repository}:{}", env!("CARGO_PKG_VERSION"))])
            .with_context(|| format!("packing the image of {binary}"))?;
        let file = folder.join(format!("{name}.tar"));
        fs::write(&file, archive).with_context(|| format!("writing {}", file.display()))?;
        files.push(file);
    }
    Ok((files, digests(&built.join(GIVEN))?))
}

/// SHA-256 of `yoke-worker` by architecture, as a value of the chart.
pub fn digests(worker: &Path) -> Result<BTreeMap<String, String>> {
    let content = fs::read(worker).with_context(|| format!("reading {}", worker.display()))?;
    let digest = HEXLOWER.encode(&Sha256::digest(content));
    Ok(BTreeMap::from([(architecture().to_owned(), digest)]))
}

/// Architecture of this computer, in Debian's spelling.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// An image that is not built yet.
pub struct Plan {
    /// The image's binary.
    pub binary: &'static str,
    name: String,
    contents: Contents,
}

impl Plan {
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
pub async fn plan_for_workers(layout: &Layout) -> Result<Vec<Plan>> {
    let mut plans = Vec::new();
    let more = layout.binary(IF_MADE.1).exists().then_some(&IF_MADE.1);
    for binary in OF_WORKERS.iter().chain(more) {
        let released = RELEASED.iter().chain([&IF_MADE]).find(|(_, of)| of == binary);
        plans.push(Plan {
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

/// Contents of an image: programs by name (the entry point first), the shared libraries of all
/// programs, other files by path, and texts by path.
struct Contents {
    programs: Vec<(String, PathBuf)>,
    libraries: BTreeSet<PathBuf>,
    others: Vec<(String, PathBuf)>,
    texts: &'static [(&'static str, &'static str)],
    /// Path of the image's volume.
    volume: Option<&'static str>,
}

impl Contents {
    async fn find(program: &str, path: PathBuf) -> Result<Self> {
        let given = (program == GIVES).then(|| {
            (
                format!("{WORKERS}/{GIVEN}-{}", architecture()),
                path.with_file_name(GIVEN),
            )
        });
        let mut programs = vec![(program.to_owned(), path.clone())];
        for (_, with) in WITH.iter().filter(|(by, _)| *by == program) {
            programs.push(((*with).to_owned(), path.with_file_name(with)));
        }
        for (_, run) in RUNS.iter().filter(|(by, _)| *by == program) {
            let path = find_program(run).with_context(|| format!("{run} is not installed"))?;
            programs.push(((*run).to_owned(), path));
        }
        let mut libraries = BTreeSet::new();
        for (_, path) in &programs {
            libraries.extend(shared_libraries(path).await?);
        }
        Ok(Self {
            programs,
            libraries,
            others: given.into_iter().collect(),
            texts: &[],
            volume: None,
        })
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let named = self.programs.iter().chain(&self.others);
        named.map(|(_, path)| path).chain(&self.libraries)
    }

    fn read(&self) -> Result<Vec<ImageFile>> {
        let place = |name: &String| match name.as_str() {
            AT_ROOT => name.clone(),
            _ => format!("{BIN}/{name}"),
        };
        let programs = self.programs.iter().map(|(name, path)| (place(name), path));
        let in_place = |path: &Path| path.to_string_lossy().trim_start_matches('/').to_owned();
        let libraries = self.libraries.iter().map(|path| (in_place(path), path));
        let read = |(path, file): (String, &PathBuf)| {
            let content = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            Ok(ImageFile { path, content })
        };
        let others = self.others.iter().map(|(place, path)| (place.clone(), path));
        let texts = self.texts.iter().map(|(path, text)| {
            Ok(ImageFile {
                path: (*path).to_owned(),
                content: text.as_bytes().to_vec(),
            })
        });
        programs.chain(libraries).chain(others).map(read).chain(texts).collect()
    }
}

/// Builds the image of a binary, called `program` in it.
async fn build(program: &str, contents: &Contents) -> Result<oci::Image> {
    let files = contents.read()?;
    let (entrypoint, volume) = (program.to_owned(), contents.volume);
    tokio::task::spawn_blocking(move || oci::Image::build(&files, &entrypoint, volume))
        .await
        .context("building an image")?
        .with_context(|| format!("building the image of {program}"))
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

/// Shared libraries of a binary, by the paths at which it looks for them. A static binary has none.
async fn shared_libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let script = r#"LC_ALL=C ldd "$0" 2>&1 || true"#;
    let text = Command::new("sh").args(["-c", script]).arg(binary).output().await?;
    parse_ldd(&text).with_context(|| format!("finding the shared libraries of {}", binary.display()))
}

fn parse_ldd(text: &str) -> Result<Vec<PathBuf>> {
    if text.contains("not a dynamic executable") || text.contains("statically linked") {
        return Ok(Vec::new());
    }
    let mut libraries = Vec::new();
    for line in text.lines().map(str::trim) {
        let target = line.split_once(" => ").map_or(line, |(_, target)| target);
        if target.starts_with("not found") {
            anyhow::bail!("{line}");
        }
        // Kernel-provided libraries, such as linux-vdso.so.1, have no path.
        if target.starts_with('/') {
            let path = target.split_once(" (").map_or(target, |(path, _)| path);
            libraries.push(PathBuf::from(path));
        }
    }
    libraries.sort();
    Ok(libraries)
}

/// Hash that changes when one of the files changes.
pub(crate) fn stamp<'a>(files: impl Iterator<Item = &'a PathBuf>) -> Result<String> {
    let mut hash = Sha256::new();
    for file in files {
        let meta = fs::metadata(file).with_context(|| format!("looking at {}", file.display()))?;
        hash.update(format!("{} {} {:?}\n", file.display(), meta.len(), meta.modified()?));
    }
    Ok(HEXLOWER.encode(&hash.finalize()[..8]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_removed_when_all_its_names_are_out_of_use() {
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

    #[test]
    fn libraries_are_taken_by_the_path_they_are_looked_for_at() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(parse_ldd(text).unwrap(), expected);
        assert!(parse_ldd("\tnot a dynamic executable\n").unwrap().is_empty());
        assert!(parse_ldd("\tlibx.so => not found\n").is_err());
    }
}
