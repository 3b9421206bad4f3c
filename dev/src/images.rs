//! Container images, made without an engine or a registry: one binary, the shared libraries that it names, nothing else.
//! They are loaded straight into containerd under the names that a registry would serve them by.

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
/// What konnectivity agents connect to, in a control plane.
pub const KONNECTIVITY_SERVER: &str = "registry.k8s.io/kas-network-proxy/proxy-server:v0.34.0";
/// konnectivity's agent, for workers of tenants.
pub const KONNECTIVITY_AGENT: &str = "registry.k8s.io/kas-network-proxy/proxy-agent:v0.34.0";
/// What answers `kubectl top`, for workers of tenants.
pub const METRICS_SERVER: &str = "registry.k8s.io/metrics-server/metrics-server:v0.9.0";
/// kube-proxy, for workers of tenants.
pub const KUBE_PROXY: &str = "kube-proxy";
/// A server for tests.
pub const ECHO: &str = "docker.io/yoke/echo:dev";
/// The folder of the binary in every image, but for that of [`AT_ROOT`].
const BIN: &str = "usr/local/bin";
/// A binary that people call by its path.
const AT_ROOT: &str = "echo";
const TAG_DIGITS: usize = 12;

/// Images of binaries that others release, but for control planes: name, binary.
const RELEASED: &[(&str, &str)] = &[
    (crate::host_cluster::PAUSE_IMAGE, "pause"),
    (COREDNS, "coredns"),
    (CERT_MANAGER, "cert-manager-controller"),
    (KONNECTIVITY_SERVER, "proxy-server"),
    (KONNECTIVITY_AGENT, "proxy-agent"),
    (ECHO, "echo"),
    (ENVOY, "envoy"),
];

/// An image of workers, if its binary was made: name, binary.
const IF_MADE: (&str, &str) = (METRICS_SERVER, "metrics-server");

/// Binaries of the images that workers of tenants run.
const OF_WORKERS: &[&str] = &["pause", "coredns", "proxy-agent", "echo", KUBE_PROXY];

/// What gives `yoke-worker` out, and the folder of its image that the chart names for that.
const GIVES: &str = "yoke-ssh-ui";
const WORKERS: &str = "usr/share/yoke/workers";
/// What it gives out.
pub const GIVEN: &str = worker::PROGRAM;

/// What a program runs, which is of this machine.
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

/// What is in the image of another of this workspace's binaries.
const WITH: &[(&str, &str)] = &[("kine-nats", "yoke-launch")];

/// Images of this workspace's binaries: repository, binary. Each gets the tag `dev` and one that names its content, so
/// that a Deployment rolls exactly when its image has changed.
const OWN: &[(&str, &str)] = &[
    ("docker.io/yoke/operator", "yoke-operator"),
    ("docker.io/yoke/ingress-xds", "yoke-ingress-xds"),
    ("docker.io/yoke/ssh-ui", "yoke-ssh-ui"),
    ("docker.io/yoke/kine-nats", "kine-nats"),
];

/// What is known of a binary's image without reading the binary again.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Known {
    stamp: String,
    /// The SHA-256 of the layer, which is the image's content.
    layer: String,
}

/// The images in containerd.
#[derive(Debug)]
pub struct Images<'a> {
    layout: &'a Layout,
    known: BTreeMap<String, Known>,
}

impl<'a> Images<'a> {
    /// Reads what is known of the images.
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

    /// Loads the images of released binaries. Returns how many were loaded.
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

    /// Loads the images of this workspace's binaries. Returns each one's full name by its binary, and how many were
    /// loaded.
    pub async fn load_own(&mut self) -> Result<(BTreeMap<&'static str, String>, usize)> {
        let (mut names, mut loaded) = (BTreeMap::new(), 0);
        for (repository, binary) in OWN {
            let tagged = |layer: &str| format!("{repository}:dev-{}", &layer[..TAG_DIGITS]);
            // The name that says the content comes last: once it is there, both are.
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

    /// Loads the image of one binary, which is called `program` in it, under the names that `names` gives for its
    /// layer's digest. True when it was not there.
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

/// Writes the images of this workspace's binaries to `.dev/images`, each as an OCI archive that a registry's tools read. Returns
/// the files, and the digests of `yoke-worker` that the chart wants to know.
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

/// The SHA-256 of `yoke-worker`, by architecture, as the chart has it.
pub fn digests(worker: &Path) -> Result<BTreeMap<String, String>> {
    let content = fs::read(worker).with_context(|| format!("reading {}", worker.display()))?;
    let digest = HEXLOWER.encode(&Sha256::digest(content));
    Ok(BTreeMap::from([(architecture().to_owned(), digest)]))
}

/// This machine's, as Debian calls it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// An image that is not built yet.
pub struct Plan {
    /// The binary that it is of.
    pub binary: &'static str,
    name: String,
    contents: Contents,
}

impl Plan {
    /// What it is built of.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.contents.paths()
    }

    /// Writes it to a file, for `ctr images import`.
    pub async fn write(&self, file: &Path) -> Result<()> {
        let image = build(self.binary, &self.contents).await?;
        let archive = image
            .to_archive(slice::from_ref(&self.name))
            .with_context(|| format!("packing the image of {}", self.binary))?;
        fs::write(file, archive).with_context(|| format!("writing {}", file.display()))
    }
}

/// The images for workers of tenants, which reach no registry.
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

/// What is in an image: programs by their names there, the first one its own, the shared libraries of them all, and other files
/// by their paths there, some of which nobody has.
struct Contents {
    programs: Vec<(String, PathBuf)>,
    libraries: BTreeSet<PathBuf>,
    others: Vec<(String, PathBuf)>,
    texts: &'static [(&'static str, &'static str)],
    /// Where what it writes is kept.
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

/// Builds the image of a binary, which is called `program` in it.
async fn build(program: &str, contents: &Contents) -> Result<oci::Image> {
    let files = contents.read()?;
    let (entrypoint, volume) = (program.to_owned(), contents.volume);
    tokio::task::spawn_blocking(move || oci::Image::build(&files, &entrypoint, volume))
        .await
        .context("building an image")?
        .with_context(|| format!("building the image of {program}"))
}

/// `ctr` on the kubelet's images and containers.
pub fn ctr(layout: &Layout) -> Result<Command> {
    let program = find_program("ctr").context("ctr is not installed")?;
    Ok(Command::new(program)
        .arg("--address")
        .arg(layout.containerd_socket())
        .args(["--namespace", "k8s.io"]))
}

/// Gives another node the images that the first one has, and takes those away that it has no more. Returns how many it got.
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

/// The names of a node's images, each with its digest; without those that the kubelet's side of containerd adds by itself.
async fn list(layout: &Layout) -> Result<BTreeSet<(String, String)>> {
    let listing = ctr(layout)?.args(["images", "ls"]).output().await?;
    let to_pair = |line: &str| {
        let mut columns = line.split_whitespace();
        Some((columns.next()?.to_owned(), columns.nth(1)?.to_owned()))
    };
    let named = |(name, _): &(String, String)| !name.starts_with("sha256:");
    Ok(listing.lines().skip(1).filter_map(to_pair).filter(named).collect())
}

/// Removes the images of this workspace's binaries that were built earlier and that nothing in the host cluster names any
/// more. Returns how many.
pub async fn prune(layout: &Layout) -> Result<usize> {
    // What will be made into a pod counts as much as a pod: an image cannot be pulled again.
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

/// The names to remove out of what `ctr images ls` prints: all the names of an image, and only if all are either tags by
/// content that nothing uses, or the plain digests under which the kubelet's side of containerd keeps every image.
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

/// Whether a name is a tag that names the content of one of this workspace's binaries.
fn is_own_tag(name: &str) -> bool {
    OWN.iter().any(|(repository, _)| {
        name.strip_prefix(repository)
            .is_some_and(|tag| tag.starts_with(":dev-"))
    })
}

/// The shared libraries that a binary names, by the paths it looks for them at; none for a static one.
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
        // The kernel's own, such as linux-vdso.so.1, has no path.
        if target.starts_with('/') {
            let path = target.split_once(" (").map_or(target, |(path, _)| path);
            libraries.push(PathBuf::from(path));
        }
    }
    libraries.sort();
    Ok(libraries)
}

/// Changes with the files.
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
