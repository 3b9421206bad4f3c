//! A worker's life: containerd and the kubelet are kept running until it is to end.
//!
//! ```text
//!  control group ─▶ files ─▶ containerd ─▶ images ─▶ kubelet ─▶ Node has addresses for Pods ─▶ CNI
//!                                                       │
//!    end, for good: drain ─▶ kubelet ─▶ Pods off the network ─▶ containerd ─▶ Node
//!    end, for a while:       kubelet ─▶ containerd; Pods run on
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::process::Command;

use crate::cgroups::Cgroups;
use crate::children::{Keeper, Service};
use crate::config::{self, Machine};
use crate::layout::Layout;
use crate::machine::{PATH, has_sys_resource};
use crate::output::say;
use crate::state::Worker;
use crate::{Error, cni, drain, files, node};

const CONTAINERD_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// Of one image, from a disk.
const IMPORT_LIMIT: Duration = Duration::from_secs(300);

/// What systemd-resolved writes for those who cannot ask the stub that `/etc/resolv.conf` names.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Runs the worker until `end` comes.
pub(crate) async fn live(layout: &Layout, worker: &Worker, end: impl Future<Output = ()>) -> Result<(), Error> {
    let cgroups = Cgroups::discover(&worker.id.cgroup())?;
    cgroups.enter()?;
    let machine = observe_machine(&cgroups);
    write_config(layout, worker, &machine)?;
    let containerd = Keeper::start(service(layout, "containerd", containerd_arguments(layout)));
    let started = start_kubelet(layout, worker);
    tokio::pin!(end);
    let kubelet = tokio::select! {
        kubelet = started => kubelet,
        () = &mut end => {
            containerd.stop().await;
            return Ok(());
        }
    };
    let kubelet = match kubelet {
        Ok(kubelet) => kubelet,
        Err(error) => {
            containerd.stop().await;
            return Err(error);
        }
    };
    let connected = tokio::select! {
        connected = connect_pods(layout, worker) => Some(connected),
        () = &mut end => None,
    };
    let result = match connected {
        Some(Ok(())) => {
            end.await;
            Ok(())
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    finish(layout, worker, kubelet, containerd).await;
    result
}

async fn finish(layout: &Layout, worker: &Worker, kubelet: Keeper, containerd: Keeper) {
    if !worker.ephemeral {
        kubelet.stop().await;
        containerd.stop().await;
        return;
    }
    // The kubelet renews its certificate as long as it runs, so the newest one is asked with.
    let client = node::connect(layout).await;
    if let Some(client) = &client {
        drain::drain(client, &worker.name, worker.drain).await;
    }
    kubelet.stop().await;
    for fault in cni::detach_all(&layout.bin(), Path::new(cni::NOTES), &worker.id).await {
        say(&format!("cannot take a Pod off the network: {fault}"));
    }
    containerd.stop().await;
    // Last of all: whoever sees that the Node is gone may count on the rest.
    if let Some(client) = &client {
        drain::remove_node(client, &worker.name).await;
    }
}

fn observe_machine(cgroups: &Cgroups) -> Machine {
    Machine {
        pods_cgroup: cgroups.pods_root(),
        cgroup_v1: cgroups.is_v1(),
        may_raise_oom_score: has_sys_resource(),
        resolv_conf: if Path::new(RESOLVED).exists() {
            RESOLVED
        } else {
            RESOLV_CONF
        },
    }
}

fn write_config(layout: &Layout, worker: &Worker, machine: &Machine) -> Result<(), Error> {
    for folder in layout.folders() {
        files::make_folder(&folder)?;
    }
    let containerd = config::build_containerd(layout, machine);
    files::write(&layout.containerd_config(), &containerd, files::PUBLIC)?;
    let kubelet = config::build_kubelet(layout, worker, machine);
    files::write(&layout.kubelet_config(), &kubelet, files::PUBLIC)?;
    Ok(())
}

fn containerd_arguments(layout: &Layout) -> Vec<String> {
    vec!["--config".to_owned(), layout.containerd_config().display().to_string()]
}

fn service(layout: &Layout, name: &'static str, arguments: Vec<String>) -> Service {
    Service {
        name,
        program: layout.binary(name),
        arguments,
        bin: layout.bin(),
        log: layout.logs().join(format!("{name}.log")),
    }
}

async fn start_kubelet(layout: &Layout, worker: &Worker) -> Result<Keeper, Error> {
    wait_containerd(layout).await?;
    for image in list_images(&layout.images()) {
        import(layout, &image).await?;
    }
    Ok(Keeper::start(service(
        layout,
        "kubelet",
        config::build_kubelet_arguments(layout, worker),
    )))
}

async fn wait_containerd(layout: &Layout) -> Result<(), Error> {
    let answers = async {
        while UnixStream::connect(layout.containerd_socket()).await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let late = |_| Error::Containerd {
        limit: CONTAINERD_LIMIT,
        log: layout.logs().join("containerd.log"),
    };
    tokio::time::timeout(CONTAINERD_LIMIT, answers).await.map_err(late)
}

fn list_images(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut images: Vec<_> = entries.map(|entry| entry.path()).collect();
    images.sort();
    images
}

async fn import(layout: &Layout, image: &Path) -> Result<(), Error> {
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
        Err(_) => Err(failed(format!("no end within {IMPORT_LIMIT:?}"))),
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

/// Waits for the Node's addresses and writes the network that gives them. The bootstrap token has done its work then.
async fn connect_pods(layout: &Layout, worker: &Worker) -> Result<(), Error> {
    let pods = node::wait_pods(layout, &worker.name).await;
    let path = layout.cni_config().join("10-yoke-worker.conflist");
    files::write(&path, &config::build_cni(layout, &worker.id, pods), files::PUBLIC)?;
    files::remove(&layout.bootstrap_kubeconfig())?;
    say(&format!(
        "this machine is Node {} of {}; its Pods have {pods}",
        worker.name, worker.server
    ));
    Ok(())
}
