//! Runs a worker: starts containerd and the kubelet, keeps them running, and stops them in order.
//!
//! ```text
//!  control group ─▶ files ─▶ containerd ─▶ images ─▶ kubelet ─▶ Node has a Pod range ─▶ CNI configuration, unless a CNI
//!                                                       │                                plugin of the cluster writes it
//!                                                       └─ with a network of its own: restart with an address of that range
//!    final stop:      drain ─▶ kubelet ─▶ Pods off the network ─▶ containerd ─▶ Node
//!    temporary stop:  kubelet ─▶ containerd; Pods keep running
//! ```

use std::fs;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kube::Client;
use tokio::net::{TcpStream, UnixStream};
use tokio::process::Command;
use yoke_api::Cidr;

use crate::config::{self, Machine};
use crate::drain::{self, Target};
use crate::error_chain::to_line;
use crate::host::cgroups::{self, Cgroups};
use crate::host::resolv_conf::{RESOLV_CONF, find_resolv_conf};
use crate::host::{etc_hosts, facts, files, nftables, sysctls};
use crate::layout::Layout;
use crate::network::{self, Network};
use crate::output::say;
use crate::process::own_status::has_sys_resource;
use crate::process::programs::PATH;
use crate::process::signals::Signals;
use crate::process::supervise::{Keeper, STOP_LIMIT, Service};
use crate::state::Worker;
use crate::upgrade::{self, Kubelet};
use crate::{Error, boxed, cni, node, refusal, systemd};

/// The kubelet's health endpoint, on loopback.
const HEALTH: (&str, u16) = ("127.0.0.1", 10248);
/// Timeout for a started kubelet to become healthy.
const HEALTH_LIMIT: Duration = Duration::from_secs(60);
const CONTAINERD_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// Timeout for importing one image from disk.
const IMPORT_LIMIT: Duration = Duration::from_secs(300);

/// Upper bound of the final stop without the drain: the sum of the timeouts of its steps.
pub(crate) const FINISH_LIMIT: Duration = node::REQUEST
    .saturating_mul(2)
    .saturating_add(STOP_LIMIT.saturating_mul(2))
    .saturating_add(cni::ALL_LIMIT)
    .saturating_add(cgroups::KILL_LIMIT)
    .saturating_add(drain::REMOVE_LIMIT);

/// Runs a permanent worker until a signal. Starts over, with a new Node, in two cases: the Node was
/// removed while the worker did not reach the API, or the kubelet has registered a new Node.
pub(crate) async fn stay(layout: &Layout, worker: &Worker, signals: &mut Signals) -> Result<(), Error> {
    let mut worker = worker.clone();
    loop {
        match live(layout, &worker, signals.next()).await {
            Err(error @ (Error::Forgotten(_) | Error::Renewed(_))) => {
                say(&format!("{}; it registers again", to_line(&error)))
            }
            ended => return ended,
        }
        worker = Worker::read(layout)?.ok_or_else(|| Error::NoWorker(layout.root().to_owned()))?;
    }
}

/// Runs the worker until `end` resolves.
pub(crate) async fn live(layout: &Layout, worker: &Worker, end: impl Future<Output = ()>) -> Result<(), Error> {
    let mut worker = worker.clone();
    check_node(layout, &mut worker).await?;
    let containerd = start_containerd(layout, &worker).await?;
    tokio::pin!(end);
    let kubelet = tokio::select! {
        kubelet = start_kubelet(layout, &worker) => kubelet,
        () = &mut end => {
            containerd.stop().await;
            return Ok(());
        }
    };
    let mut kubelet = match kubelet {
        Ok(kubelet) => kubelet,
        Err(error) => {
            containerd.stop().await;
            return Err(error);
        }
    };
    let mut network: Option<Network> = None;
    systemd::tell_ready();
    let asking = worker.clone();
    let connected = tokio::select! {
        connected = connect_pods(layout, &mut worker, &mut kubelet) => Some(connected),
        refused = refusal::wait(layout, &asking) => Some(Err(refused)),
        () = &mut end => None,
    };
    let result = match connected {
        Some(Ok(mut kept)) => tokio::select! {
            never = upgrade::follow(layout, &asking, &mut kubelet) => match never {},
            () = &mut end => {
                network = kept;
                Ok(())
            }
            error = failed(kept.as_mut()) => Err(error),
            lost = node::wait_lost(layout, &mut worker) => {
                network = kept;
                Err(lost)
            }
        },
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    if !matches!(result, Err(Error::Forgotten(_) | Error::Renewed(_))) {
        systemd::tell_stopping();
    }
    if worker.ephemeral {
        finish(layout, &worker, Some(kubelet), containerd).await;
    } else {
        kubelet.stop().await;
        containerd.stop().await;
    }
    if let Some(network) = network {
        network.stop().await;
    }
    result
}

/// Starts the worker again in order to stop it finally: a running kubelet terminates Pods
/// gracefully.
pub(crate) async fn leave(layout: &Layout, worker: &Worker) -> Result<(), Error> {
    let mut worker = worker.clone();
    check_node(layout, &mut worker).await?;
    let containerd = start_containerd(layout, &worker).await?;
    let mut network = None;
    let kubelet = match start_kubelet(layout, &worker).await {
        Ok(mut kubelet) => {
            // This timeout starts after image loading, which takes its own time. The network comes
            // up too, because terminating Pods may need to reach other Pods.
            let (healthy, connected) = tokio::join!(
                tokio::time::timeout(HEALTH_LIMIT, wait_healthy()),
                tokio::time::timeout(node::REQUEST, connect_pods(layout, &mut worker, &mut kubelet)),
            );
            network = connected.ok().and_then(Result::ok).flatten();
            if healthy.is_err() {
                say(&format!(
                    "the kubelet is not healthy after {HEALTH_LIMIT:?}; it is drained all the same"
                ));
            }
            Some(kubelet)
        }
        Err(error) => {
            say(&format!("Pods cannot end in order: {}", to_line(&error)));
            None
        }
    };
    finish(layout, &worker, kubelet, containerd).await;
    if let Some(network) = network {
        network.stop().await;
    }
    Ok(())
}

/// Performs the final stop of the worker.
async fn finish(layout: &Layout, worker: &Worker, kubelet: Option<Kubelet>, containerd: Keeper) {
    let met = meet(layout, worker).await;
    let target = |uid| Target {
        name: &worker.name,
        uid,
    };
    if let Some((client, uid)) = &met {
        drain::drain(client, target(uid), worker.drain).await;
    }
    if let Some(mut kubelet) = kubelet {
        kubelet.stop().await;
    }
    for fault in cni::detach_all(&layout.bin(), Path::new(cni::NOTES), &worker.id).await {
        say(&format!("cannot take a Pod off the network: {fault}"));
    }
    containerd.stop().await;
    // The Node is deleted last: controllers then assume that its Pods have stopped, and start
    // replacements of Pods that must run at most once.
    match Cgroups::discover(&worker.id.cgroup()) {
        Ok(cgroups) => cgroups.kill_pods().await,
        Err(error) => return say(&format!("Node {} stays: {}", worker.name, to_line(&error))),
    }
    if let Some((client, uid)) = &met {
        drain::remove_node(client, target(uid)).await;
    }
}

/// Deletes the Node of a worker that was killed or could not be drained. Kills all of its processes
/// first.
pub(crate) async fn forget(layout: &Layout, worker: &Worker) -> Result<(), Error> {
    Cgroups::discover(&worker.id.cgroup())?.kill_all().await;
    if let Some((client, uid)) = meet(layout, worker).await {
        let name = &worker.name;
        drain::remove_node(&client, Target { name, uid: &uid }).await;
    }
    Ok(())
}

/// Returns an authenticated client and the UID of the worker's Node. A running kubelet renews its
/// certificate, so the client uses the newest one.
async fn meet(layout: &Layout, worker: &Worker) -> Option<(Client, String)> {
    let client = node::connect(layout, worker).await?;
    let uid = match &worker.node_uid {
        Some(uid) => uid.clone(),
        // The API does not issue a certificate for the name of an existing Node, so the Node is
        // this worker's own. The exception: two workers that requested the same name before a Node
        // existed share that Node (ADR 0013).
        None => node::ask_uid(&client, &worker.name).await.ok()??,
    };
    Some((client, uid))
}

/// Checks that the Node is still this worker's: a kubelet adopts any Node of its name, even that of
/// another machine.
async fn check_node(layout: &Layout, worker: &mut Worker) -> Result<(), Error> {
    let (Some(_), Some(client)) = (&worker.node_uid, node::connect(layout, worker).await) else {
        return Ok(());
    };
    match node::look(&client, &worker.name).await {
        Ok(Some(found)) => node::keep_uid(layout, worker, &found).await,
        Ok(None) => {
            end_pods(layout, worker).await?;
            // The kubelet registers a new Node.
            worker.node_uid = None;
            Ok(())
        }
        // Pods run even while the API is unreachable. The Node is checked again once the API
        // answers.
        Err(_) => Ok(()),
    }
}

/// Stops all Pods and removes the Pod network. A new Node has another Pod range, and controllers
/// that saw the previous Node removed assume that its Pods have stopped.
pub(crate) async fn end_pods(layout: &Layout, worker: &Worker) -> Result<(), Error> {
    // Remove the CNI configuration first, so that no new Pod is connected, not even by another CNI
    // plugin.
    files::clear(&layout.cni_config())?;
    for fault in cni::detach_all(&layout.bin(), Path::new(cni::NOTES), &worker.id).await {
        say(&format!("cannot take a Pod off the network: {fault}"));
    }
    Cgroups::discover(&worker.id.cgroup())?.kill_pods().await;
    // A failure is ignored: the table does not exist after a reboot.
    let _ = nftables::delete_table("inet", &worker.id.network()).await;
    Ok(())
}

async fn wait_healthy() {
    while TcpStream::connect(HEALTH).await.is_err() {
        tokio::time::sleep(PAUSE).await;
    }
}

async fn start_containerd(layout: &Layout, worker: &Worker) -> Result<Keeper, Error> {
    if worker.pod_network && !nftables::has_table(&worker.id.network()).await {
        // The machine has rebooted: connect no Pod before the packet filter table exists again.
        files::remove(&layout.network_config())?;
    }
    sysctls::load_bridge_filter().await;
    let cgroups = Cgroups::discover(&worker.id.cgroup())?;
    cgroups.enter()?;
    cgroups.bound(&worker.limits)?;
    // A sandbox has a hosts file of its own.
    if !worker.ephemeral {
        etc_hosts::settle(worker)?;
    }
    sysctls::remember(layout)?;
    write_config(layout, worker, &observe_machine(&cgroups, layout, worker)?)?;
    Ok(Keeper::start(service(
        layout,
        "containerd",
        containerd_arguments(layout),
    )))
}

fn observe_machine(cgroups: &Cgroups, layout: &Layout, worker: &Worker) -> Result<Machine, Error> {
    Ok(Machine {
        pods_cgroup: cgroups.pods_root(),
        cgroup_v1: cgroups.is_v1(),
        may_raise_oom_score: has_sys_resource(),
        capacity: facts::read_capacity(Path::new("/"), &worker.limits)?,
        resolv_conf: match &worker.uplink {
            Some(_) => boxed::stand_in(layout, RESOLV_CONF),
            None => find_resolv_conf().into(),
        },
        pods: None,
    })
}

fn write_config(layout: &Layout, worker: &Worker, machine: &Machine) -> Result<(), Error> {
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

fn service(layout: &Layout, name: &'static str, arguments: Vec<String>) -> Service {
    Service {
        name,
        program: layout.binary(name),
        arguments,
        bin: layout.bin(),
        log: layout.logs().join(format!("{name}.log")),
    }
}

async fn start_kubelet(layout: &Layout, worker: &Worker) -> Result<Kubelet, Error> {
    // If the upgrade state cannot be applied, run the kubelet that is installed.
    if let Err(error) = upgrade::settle(layout) {
        say(&format!("the kubelet stays the one that is there: {}", to_line(&error)));
    }
    wait_containerd(layout).await?;
    for image in list_images(&layout.images()) {
        import(layout, &image).await?;
    }
    Ok(Kubelet::new(kubelet_service(layout, worker, None)))
}

fn kubelet_service(layout: &Layout, worker: &Worker, pods: Option<Cidr>) -> Service {
    service(layout, "kubelet", config::build_kubelet_arguments(layout, worker, pods))
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
    // A partial copy, left by a killed worker, has a name that starts with a dot.
    let whole = |entry: &fs::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    let mut images: Vec<_> = entries.filter(whole).map(|entry| entry.path()).collect();
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

/// Gives the Node its final address before any Pod is connected. The kubelet accepts only an
/// address of a local device, and the bridge appears with the first Pod.
async fn move_node(layout: &Layout, worker: &Worker, pods: Cidr, kubelet: &mut Kubelet) -> Result<(), Error> {
    let address = config::choose_address(worker, Some(pods));
    if let Some(address) = address {
        network::add_address(address).await.map_err(Error::Network)?;
    }
    let machine = Machine {
        pods: Some(pods),
        ..observe_machine(&Cgroups::discover(&worker.id.cgroup())?, layout, worker)?
    };
    let text = config::build_kubelet(layout, worker, &machine);
    files::write(&layout.kubelet_config(), &text, files::PUBLIC)?;
    kubelet.stop().await;
    if let Some(address) = address {
        node::move_to(layout, worker, address).await;
    }
    kubelet.replace(kubelet_service(layout, worker, Some(pods)));
    Ok(())
}

/// Waits for the Node's Pod range and creates the Pod network, unless a CNI plugin does. Then
/// removes the bootstrap token, which is no longer needed.
async fn connect_pods(layout: &Layout, worker: &mut Worker, kubelet: &mut Kubelet) -> Result<Option<Network>, Error> {
    let pods = node::wait_joined(layout, worker).await?;
    let (network, its_pods) = match pods {
        Some(pods) => {
            let network = Network::start(layout, worker, pods).await?;
            if worker.uplink.is_some() {
                move_node(layout, worker, pods, kubelet).await?;
            }
            let cni = config::build_cni(layout, &worker.id, pods, network.mtu);
            files::write(&layout.network_config(), &cni, files::PUBLIC)?;
            (Some(network), format!("its Pods have {pods}"))
        }
        None => {
            let folder = layout.cni_config();
            let its_pods = format!("a CNI plugin of the cluster connects its Pods, by {}", folder.display());
            (None, its_pods)
        }
    };
    files::remove(&layout.bootstrap_kubeconfig())?;
    let status = format!("this machine is Node {} of {}; {its_pods}", worker.name, worker.server);
    systemd::tell_status(&status);
    say(&status);
    if worker.ephemeral && node::is_reaped(layout, worker).await == Some(false) {
        say(&format!(
            "killed, this worker leaves Node {} behind for ever; by a join token with --reap-after (`kubectl yoke join`, \
             `ssh HOST join`) the cluster removes it when it is silent",
            worker.name
        ));
    }
    Ok(network)
}

/// Resolves if the network task ends without being stopped.
async fn failed(network: Option<&mut Network>) -> Error {
    match network {
        Some(network) => network.failed().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_image_is_not_loaded() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.tar", ".b.tar.partial", "a.tar"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let expected = ["a.tar", "b.tar"].map(|name| dir.path().join(name));
        assert_eq!(list_images(dir.path()), expected);
    }
}
