//! Runs a worker: starts containerd and the kubelet, keeps them running, and stops them in order.
//!
//! ```text
//!  control group ─▶ files ─▶ containerd ─▶ images ─▶ kubelet ─▶ Node has a Pod range ─▶ CNI configuration, unless a CNI
//!                                                       │                                plugin of the cluster writes it
//!                                                       └─ with a network of its own: restart with an address of that range
//!    final stop:      drain ─▶ kubelet ─▶ Pods off the network ─▶ containerd ─▶ Node
//!    temporary stop:  kubelet ─▶ containerd; Pods keep running
//! ```

use std::future::pending;
use std::path::Path;
use std::time::Duration;

use kube::Client;
use tokio::net::TcpStream;
use yoke_supervisor::Runner;
use yoke_supervisor::cgroups::{Cgroups, KILL_LIMIT};

use crate::drain::{self, Target};
use crate::error::Error;
use crate::error_chain::format_chain;
use crate::layout::Layout;
use crate::network::Network;
use crate::output::progress;
use crate::process::signals::Signals;
use crate::process::supervise::STOP_LIMIT;
use crate::state::Worker;
use crate::upgrade::{self, Kubelet};
use crate::{cni, join_admission, node, pods, systemd};

mod connect;
mod start;

use connect::connect_pods;
use start::{start_containerd, start_kubelet};

/// The kubelet's health endpoint, on loopback.
const HEALTH: (&str, u16) = ("127.0.0.1", 10248);
/// Timeout for a started kubelet to become healthy.
const HEALTH_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Upper bound of the final stop without the drain: the sum of the timeouts of its steps.
pub(crate) const FINISH_LIMIT: Duration = node::REQUEST_LIMIT
    .saturating_mul(2)
    .saturating_add(STOP_LIMIT.saturating_mul(2))
    .saturating_add(cni::ALL_LIMIT)
    .saturating_add(KILL_LIMIT)
    .saturating_add(drain::REMOVE_LIMIT);

/// Runs a permanent worker until a signal. Starts over, with a new Node, in two cases: the Node was
/// removed while the worker did not reach the API, or the kubelet has registered a new Node.
pub(crate) async fn run_permanent(layout: &Layout, worker: &Worker, signals: &mut Signals) -> Result<(), Error> {
    let mut worker = worker.clone();
    loop {
        match run(layout, &worker, signals.next()).await {
            Err(error @ (Error::RemovedWhileSilent(_) | Error::NewNode(_))) => {
                progress(&format!("{}; registering a new Node", format_chain(&error)))
            }
            ended => return ended,
        }
        worker = Worker::read(layout)?.ok_or_else(|| Error::NoWorker(layout.root().to_owned()))?;
    }
}

/// Runs the worker until `end` resolves.
pub(crate) async fn run(layout: &Layout, worker: &Worker, end: impl Future<Output = ()>) -> Result<(), Error> {
    let mut worker = worker.clone();
    check_node(layout, &mut worker).await?;
    let containerd = start_containerd(layout, &worker).await?;
    tokio::pin!(end);
    let kubelet = tokio::select! {
        kubelet = start_kubelet(layout, &worker) => kubelet,
        () = &mut end => {
            containerd.stop(STOP_LIMIT).await;
            return Ok(());
        }
    };
    let mut kubelet = match kubelet {
        Ok(kubelet) => kubelet,
        Err(error) => {
            containerd.stop(STOP_LIMIT).await;
            return Err(error);
        }
    };
    let mut network: Option<Network> = None;
    systemd::notify_ready();
    let snapshot = worker.clone();
    let connected = tokio::select! {
        connected = connect_pods(layout, &mut worker, &mut kubelet) => Some(connected),
        rejected = join_admission::wait_rejected(layout, &snapshot) => Some(Err(rejected)),
        () = &mut end => None,
    };
    let result = match connected {
        Some(Ok(mut connected_network)) => tokio::select! {
            never = upgrade::follow(layout, &snapshot, &mut kubelet) => match never {},
            () = &mut end => {
                network = connected_network;
                Ok(())
            }
            error = wait_failed(connected_network.as_mut()) => Err(error),
            lost = node::wait_lost(layout, &mut worker) => {
                network = connected_network;
                Err(lost)
            }
        },
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    if !matches!(result, Err(Error::RemovedWhileSilent(_) | Error::NewNode(_))) {
        systemd::notify_stopping();
    }
    if worker.ephemeral {
        finish(layout, &worker, Some(kubelet), containerd).await;
    } else {
        kubelet.stop().await;
        containerd.stop(STOP_LIMIT).await;
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
                tokio::time::timeout(node::REQUEST_LIMIT, connect_pods(layout, &mut worker, &mut kubelet)),
            );
            network = connected.ok().and_then(Result::ok).flatten();
            if healthy.is_err() {
                progress(&format!(
                    "the kubelet is not healthy after {HEALTH_LIMIT:?}; draining the Node anyway"
                ));
            }
            Some(kubelet)
        }
        Err(error) => {
            progress(&format!("cannot terminate Pods gracefully: {}", format_chain(&error)));
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
async fn finish(layout: &Layout, worker: &Worker, kubelet: Option<Kubelet>, containerd: Runner) {
    let connection = connect_with_uid(layout, worker).await;
    let target = |uid| Target {
        name: &worker.name,
        uid,
    };
    if let Some((client, uid)) = &connection {
        drain::drain(client, target(uid), worker.drain).await;
    }
    if let Some(mut kubelet) = kubelet {
        kubelet.stop().await;
    }
    for fault in cni::detach_all(&layout.bin(), Path::new(cni::RESULTS_FOLDER), &worker.id).await {
        progress(&format!("cannot disconnect a Pod from the network: {fault}"));
    }
    containerd.stop(STOP_LIMIT).await;
    // The Node is deleted last: controllers then assume that its Pods have stopped, and start
    // replacements of Pods that must run at most once.
    match Cgroups::discover(&worker.id.cgroup()) {
        Ok(cgroups) => {
            cgroups.kill_pods().await;
        }
        Err(error) => {
            return progress(&format!(
                "Node {} is not deleted: {}",
                worker.name,
                format_chain(&error)
            ));
        }
    }
    if let Some((client, uid)) = &connection {
        drain::remove_node(client, target(uid)).await;
    }
}

/// Deletes the Node of a worker that was killed or could not be drained. Kills all of its processes
/// first.
pub(crate) async fn delete_leftover_node(layout: &Layout, worker: &Worker) -> Result<(), Error> {
    Cgroups::discover(&worker.id.cgroup())?.kill_all().await;
    if let Some((client, uid)) = connect_with_uid(layout, worker).await {
        let name = &worker.name;
        drain::remove_node(&client, Target { name, uid: &uid }).await;
    }
    Ok(())
}

/// Returns an authenticated client and the UID of the worker's Node. A running kubelet renews its
/// certificate, so the client uses the newest one.
async fn connect_with_uid(layout: &Layout, worker: &Worker) -> Option<(Client, String)> {
    let client = node::connect(layout, worker).await?;
    let uid = match &worker.node_uid {
        Some(uid) => uid.clone(),
        // The API does not issue a certificate for the name of an existing Node, so the Node is
        // this worker's own. The exception: two workers that requested the same name before a Node
        // existed share that Node (ADR 0013).
        None => node::read_uid(&client, &worker.name).await.ok()??,
    };
    Some((client, uid))
}

/// Checks that the Node is still this worker's: a kubelet adopts any Node of its name, even that of
/// another machine.
async fn check_node(layout: &Layout, worker: &mut Worker) -> Result<(), Error> {
    let (Some(_), Some(client)) = (&worker.node_uid, node::connect(layout, worker).await) else {
        return Ok(());
    };
    match node::read_node(&client, &worker.name).await {
        Ok(Some(found)) => node::persist_uid(layout, worker, &found).await,
        Ok(None) => {
            pods::stop_pods(layout, worker).await?;
            // The kubelet registers a new Node.
            worker.node_uid = None;
            Ok(())
        }
        // Pods run even while the API is unreachable. The Node is checked again once the API
        // answers.
        Err(_) => Ok(()),
    }
}

async fn wait_healthy() {
    while TcpStream::connect(HEALTH).await.is_err() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Resolves if the network task ends without being stopped.
async fn wait_failed(network: Option<&mut Network>) -> Error {
    match network {
        Some(network) => network.wait_failed().await,
        None => pending().await,
    }
}
