//! Pure: builds an OCI image layout with one layer, as a tar. Equal files give equal bytes.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const DIRECTORY_MODE: u32 = 0o755;
const SHARED_DIRECTORY_MODE: u32 = 0o1777;
const FILE_MODE: u32 = 0o755;
/// Programs expect this folder, and an official image would contain it.
const TMP: &str = "tmp";

/// A file in an image.
#[derive(Debug, Clone)]
pub struct ImageFile {
    /// Path, without the leading slash.
    pub path: String,
    /// Content.
    pub content: Vec<u8>,
}

/// An image without a name.
#[derive(Debug, Clone)]
pub struct Image {
    layer: Blob,
    config: Blob,
    manifest: Blob,
}

#[derive(Debug, Clone)]
struct Blob {
    digest: String,
    bytes: Vec<u8>,
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            digest: HEXLOWER.encode(&Sha256::digest(&bytes)),
            bytes,
        }
    }

    fn describe(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": format!("sha256:{}", self.digest), "size": self.bytes.len()})
    }
}

impl Image {
    /// Builds an image of `files`. `entrypoint` is found on the image's `PATH`. `volume` is the
    /// path of a volume.
    pub fn build(files: &[ImageFile], entrypoint: &str, volume: Option<&str>) -> io::Result<Self> {
        let layer = Blob::new(build_layer(files)?);
        let mut config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": [entrypoint],
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"],
            },
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", layer.digest)]},
        });
        if let Some(volume) = volume {
            config["config"]["Volumes"] = json!({volume: {}});
        }
        let config = Blob::new(config.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.describe(CONFIG),
            "layers": [layer.describe(LAYER)],
        });
        let manifest = Blob::new(manifest.to_string().into_bytes());
        Ok(Self {
            layer,
            config,
            manifest,
        })
    }

    /// SHA-256 of the layer, in hexadecimal.
    pub fn layer_digest(&self) -> &str {
        &self.layer.digest
    }

    /// The tar that `ctr images import` and registry tools read, with the image under each of
    /// `names`.
    pub fn to_archive(&self, names: &[String]) -> io::Result<Vec<u8>> {
        let manifests: Vec<Value> = names
            .iter()
            .map(|name| {
                let mut descriptor = self.manifest.describe(MANIFEST);
                // containerd reads the first annotation, other tools the second, which holds only
                // the tag.
                let tag = name.rsplit(':').next();
                descriptor["annotations"] =
                    json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
                descriptor
            })
            .collect();
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        let mut archive = tar::Builder::new(Vec::with_capacity(self.layer.bytes.len() + (1 << 16)));
        append(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
        append(&mut archive, "index.json", index.to_string().as_bytes(), 0o644)?;
        for blob in [&self.config, &self.manifest, &self.layer] {
            append(
                &mut archive,
                &format!("blobs/sha256/{}", blob.digest),
                &blob.bytes,
                0o644,
            )?;
        }
        archive.into_inner()
    }
}

fn build_layer(files: &[ImageFile]) -> io::Result<Vec<u8>> {
    let mut files: Vec<&ImageFile> = files.iter().collect();
    files.sort_by(|one, two| one.path.cmp(&two.path));
    let directories: BTreeSet<&Path> = files
        .iter()
        .flat_map(|file| Path::new(&file.path).ancestors().skip(1))
        .filter(|directory| !directory.as_os_str().is_empty())
        .collect();
    let mut layer = tar::Builder::new(Vec::new());
    for directory in directories.into_iter().chain([Path::new(TMP)]) {
        let mode = if directory == Path::new(TMP) {
            SHARED_DIRECTORY_MODE
        } else {
            DIRECTORY_MODE
        };
        let mut header = header(0, mode);
        header.set_entry_type(tar::EntryType::Directory);
        layer.append_data(&mut header, directory, io::empty())?;
    }
    for file in files {
        append(&mut layer, &file.path, &file.content, FILE_MODE)?;
    }
    layer.into_inner()
}

fn append(archive: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8], mode: u32) -> io::Result<()> {
    let mut header = header(content.len() as u64, mode);
    header.set_entry_type(tar::EntryType::Regular);
    archive.append_data(&mut header, path, content)
}

/// Owner root, time 1970: nothing depends on the computer or the time of the build.
fn header(size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn file(path: &str, content: &str) -> ImageFile {
        ImageFile {
            path: path.into(),
            content: content.into(),
        }
    }

    fn entries(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().display().to_string(), content)
        });
        entries.collect()
    }

    #[test]
    fn the_same_files_in_any_order_give_the_same_bytes() {
        let (one, two) = (file("usr/local/bin/a", "A"), file("lib/b.so", "B"));
        let names = ["docker.io/yoke/a:dev".to_owned()];
        let first = Image::build(&[one.clone(), two.clone()], "a", None)
            .unwrap()
            .to_archive(&names)
            .unwrap();
        let second = Image::build(&[two, one], "a", None)
            .unwrap()
            .to_archive(&names)
            .unwrap();
        assert_eq!(first, second);
    }

    #[test]
    fn another_content_is_another_digest() {
        let digest = |content| {
            Image::build(&[file("a", content)], "a", None)
                .unwrap()
                .layer_digest()
                .to_owned()
        };
        assert_ne!(digest("A"), digest("B"));
    }

    #[test]
    fn a_layer_has_its_folders_before_its_files() {
        let layer = build_layer(&[file("usr/local/bin/a", "A"), file("lib64/l.so", "L")]).unwrap();
        let paths: Vec<String> = entries(&layer).into_iter().map(|(path, _)| path).collect();
        assert_eq!(
            paths,
            [
                "lib64",
                "usr",
                "usr/local",
                "usr/local/bin",
                "tmp",
                "lib64/l.so",
                "usr/local/bin/a"
            ]
        );
    }

    #[test]
    fn every_name_leads_to_the_manifest_and_every_blob_is_named_by_its_hash() {
        let image = Image::build(&[file("a", "A")], "a", Some("/v")).unwrap();
        let archive = image.to_archive(&["x/a:1".to_owned(), "x/a:2".to_owned()]).unwrap();
        let entries = entries(&archive);
        let index: Value = serde_json::from_slice(&entries[1].1).unwrap();
        let named: Vec<(&Value, &Value)> = index["manifests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| (&entry["annotations"]["io.containerd.image.name"], &entry["digest"]))
            .collect();
        let config: Value = serde_json::from_slice(&image.config.bytes).unwrap();
        assert_eq!(config["config"]["Volumes"], json!({"/v": {}}));
        let digest = json!(format!("sha256:{}", image.manifest.digest));
        assert_eq!(named, [(&json!("x/a:1"), &digest), (&json!("x/a:2"), &digest)]);
        for (path, content) in &entries[2..] {
            assert_eq!(
                path,
                &format!("blobs/sha256/{}", HEXLOWER.encode(&Sha256::digest(content)))
            );
        }
    }
}
