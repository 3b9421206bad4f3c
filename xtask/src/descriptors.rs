//! Generates the descriptors of Envoy's messages. The ingress needs them to read the configuration
//! that a host owner adds. The input is the protocol files in the crate with Envoy's types, so that
//! descriptors and types have the same version.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use protox::Compiler;
use serde::Deserialize;

use crate::complaints::Complaints;
use crate::workspace::ask;

const COMMAND: &str = "cargo xtask descriptors";
const FILE: &str = "ingress-xds/envoy/descriptors.binpb";
/// The crate with Envoy's types, and its include folders for protocol files.
const CRATE: &str = "envoy-types";
const ROOTS: [&str; 8] = [
    "data-plane-api",
    "xds",
    "googleapis",
    "protoc-gen-validate",
    "opentelemetry-proto",
    "client_model",
    "cel-spec/proto",
    "ratelimit",
];
/// The resource types that an owner may add. The extensions below may be used in them.
const RESOURCES: [&str; 4] = [
    "envoy/config/listener/v3/listener.proto",
    "envoy/config/cluster/v3/cluster.proto",
    "envoy/config/endpoint/v3/endpoint.proto",
    "envoy/config/route/v3/route.proto",
];
/// Not included: in a dynamic forward proxy the client chooses the destination, so this
/// configuration must not be allowed here. (protox cannot compile this file either, because it
/// resolves relative names in more files than the imported ones.)
const OPEN: &str = "envoy/extensions/clusters/dynamic_forward_proxy/v3/cluster.proto";
const EXTENSIONS: [&str; 3] = ["envoy/extensions", "xds/type", "envoy/config"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
}

/// Writes the descriptors file.
pub(crate) fn write(root: &Path) -> Result<()> {
    std::fs::write(root.join(FILE), compile(root)?).with_context(|| format!("cannot write {FILE}"))
}

/// Compares the file with the protocol files.
pub(crate) fn check(root: &Path) -> Result<Complaints> {
    let same = std::fs::read(root.join(FILE)).is_ok_and(|bytes| compile(root).is_ok_and(|expected| bytes == expected));
    Ok(if same {
        vec![]
    } else {
        vec![format!("{FILE} is not of the {CRATE} in Cargo.lock: run `{COMMAND}`")]
    })
}

fn compile(root: &Path) -> Result<Vec<u8>> {
    let protocol = find(root)?.join("proto");
    let mut files: Vec<String> = RESOURCES.map(ToOwned::to_owned).into();
    for folder in ROOTS.map(|folder| protocol.join(folder)) {
        for extensions in EXTENSIONS {
            gather(&folder, &folder.join(extensions), &mut files)?;
        }
    }
    files.retain(|file| file != OPEN);
    files.sort_unstable();
    files.dedup();
    let roots = ROOTS.map(|folder| protocol.join(folder));
    let (mut set, mut seen) = (FileDescriptorSet::default(), BTreeSet::new());
    for file in &files {
        // A new compiler for each file, because protox resolves relative names in all files that it
        // has read.
        let mut compiler = Compiler::new(&roots)?;
        compiler.include_imports(true).open_file(file)?;
        let compiled = compiler.file_descriptor_set().file.into_iter();
        set.file
            .extend(compiled.filter(|file| seen.insert(file.name().to_owned())));
    }
    Ok(set.encode_to_vec())
}

/// Collects the files of version 3. Envoy no longer accepts earlier versions.
fn gather(root: &Path, folder: &Path, files: &mut Vec<String>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            gather(root, &path, files)?;
            continue;
        }
        let name = path.strip_prefix(root)?.to_str().context("a name is not UTF-8")?;
        if name.ends_with(".proto") && name.contains("/v3/") {
            files.push(name.to_owned());
        }
    }
    Ok(())
}

fn find(root: &Path) -> Result<PathBuf> {
    let arguments = ["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let metadata: Metadata = ask(&root.join("Cargo.toml"), &arguments)?;
    let Some(package) = metadata.packages.into_iter().find(|package| package.name == CRATE) else {
        bail!("{CRATE} is not in Cargo.lock");
    };
    package
        .manifest_path
        .parent()
        .map(Path::to_owned)
        .context("a manifest has no folder")
}
