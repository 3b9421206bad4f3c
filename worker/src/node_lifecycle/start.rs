//! Starts containerd and the kubelet: writes their configuration, and imports images.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::time::sleep;
use yoke_api::Cidr;
use yoke_supervisor::Runner;
use yoke_supervisor::cgroups::Cgroups;
use yoke_supervisor::programs::PATH;

use crate::config::{self, MachineFacts};
use crate::error::Error;
use crate::error_chain::format_chain;
use crate::host::resolv_conf::{RESOLV_CONF, find_resolv_conf};
use crate::host::{cgroups, etc_hosts, facts, files, nftables, sysctls};
use crate::layout::Layout;
use crate::output::progress;
use crate::process::own_status::has_sys_resource;
use crate::process::supervise::Service;
use crate::state::Worker;
use crate::upgrade::{self, Kubelet};

const CONTAINERD_LIMIT: Duration = Duration::from_secs(60);
/// Timeout for importing one image from disk.
const IMPORT_LIMIT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn start_containerd(layout: &Layout, worker: &Worker) -> Result<Runner, Error> {
    if worker.pod_network && !nftables::has_table(&worker.id.network()).await {
        // The machine has rebooted: connect no Pod before the packet filter table exists again.
        files::remove(&layout.network_config())?;
    }
    sysctls::load_bridge_filter().await;
    let cgroups = Cgroups::discover(&worker.id.cgroup())?;
    cgroups::enter(&cgroups)?;
    cgroups::set_limits(&cgroups, &worker.limits)?;
    // A sandbox has a hosts file of its own.
    if !worker.ephemeral {
        etc_hosts::write_entry(worker)?;
    }
    sysctls::save(layout)?;
    write_config(layout, worker, &observe_machine(&cgroups, layout, worker)?)?;
    Ok(build_service(layout, "containerd", containerd_arguments(layout)).supervise())
}

pub(super) fn observe_machine(cgroups: &Cgroups, layout: &Layout, worker: &Worker) -> Result<MachineFacts, Error> {
    Ok(MachineFacts {
        pods_cgroup: cgroups.pods_root(),
        cgroup_v1: !cgroups.is_v2(),
        may_raise_oom_score: has_sys_resource(),
        capacity: facts::read_capacity(Path::new("/"), &worker.limits)?,
        resolv_conf: match &worker.uplink {
            Some(_) => layout.replacement(RESOLV_CONF),
            None => find_resolv_conf().into(),
        },
        pods: None,
    })
}

fn write_config(layout: &Layout, worker: &Worker, machine: &MachineFacts) -> Result<(), Error> {
    for folder in layout.folders() {
        files::make_folder(&folder)?;
    }
    let containerd = config::build_containerd(layout, worker, machine);
    files::write(&layout.containerd_config(), &containerd, files::PUBLIC)?;
    let kubelet = config::build_kubelet(layout, worker, machine);
    files::write(&layout.kubelet_config(), &kubelet, files::PUBLIC)?;
    Ok(())
}

fn containerd_arguments(layout: &Layout) -> Vec<String> {
    vec!["--config".to_owned(), layout.containerd_config().display().to_string()]
}

fn build_service(layout: &Layout, name: &'static str, arguments: Vec<String>) -> Service {
    Service {
        name,
        program: layout.binary(name),
        arguments,
        bin: layout.bin(),
        log: layout.logs().join(format!("{name}.log")),
    }
}

pub(super) async fn start_kubelet(layout: &Layout, worker: &Worker) -> Result<Kubelet, Error> {
    // If the upgrade state cannot be applied, run the kubelet that is installed.
    if let Err(error) = upgrade::arrange_kubelet(layout) {
        progress(&format!(
            "cannot apply the kubelet upgrade; starting the installed kubelet: {}",
            format_chain(&error)
        ));
    }
    wait_containerd(layout).await?;
    for image in list_complete_images(&layout.images()) {
        import_image(layout, &image).await?;
    }
    Ok(Kubelet::new(build_kubelet_service(layout, worker, None)))
}

pub(super) fn build_kubelet_service(layout: &Layout, worker: &Worker, pods: Option<Cidr>) -> Service {
    build_service(layout, "kubelet", config::build_kubelet_arguments(layout, worker, pods))
}

async fn wait_containerd(layout: &Layout) -> Result<(), Error> {
    let answers = async {
        while UnixStream::connect(layout.containerd_socket()).await.is_err() {
            sleep(POLL_INTERVAL).await;
        }
    };
    let late = |_| Error::Containerd {
        limit: CONTAINERD_LIMIT,
        log: layout.logs().join("containerd.log"),
    };
    tokio::time::timeout(CONTAINERD_LIMIT, answers).await.map_err(late)
}

fn list_complete_images(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    // A partial copy, left by a killed worker, has a name that starts with a dot.
    let is_complete = |entry: &fs::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    let mut images: Vec<_> = entries.filter(is_complete).map(|entry| entry.path()).collect();
    images.sort();
    images
}

async fn import_image(layout: &Layout, image: &Path) -> Result<(), Error> {
    let mut command = Command::new(layout.binary("ctr"));
    command.arg("--address").arg(layout.containerd_socket());
    command.args(["--namespace", "k8s.io", "images", "import"]).arg(image);
    command
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let failed = |why: String| Error::Image {
        image: image.to_owned(),
        why,
    };
    match tokio::time::timeout(IMPORT_LIMIT, command.output()).await {
        Err(_) => Err(failed(format!("timed out after {IMPORT_LIMIT:?}"))),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => Err(failed(
            String::from_utf8_lossy(&output.stderr)
                .trim()
                .chars()
                .take(300)
                .collect(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_image_is_not_imported() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.tar", ".b.tar.partial", "a.tar"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let expected = ["a.tar", "b.tar"].map(|name| dir.path().join(name));
        assert_eq!(list_complete_images(dir.path()), expected);
    }
}
