//! Stops the worker's Pods.

use std::path::Path;

use yoke_supervisor::cgroups::Cgroups;

use crate::cni;
use crate::error::Error;
use crate::host::{files, nftables};
use crate::layout::Layout;
use crate::output::progress;
use crate::state::Worker;

/// Stops all Pods and removes the Pod network. A new Node has another Pod range, and controllers
/// that saw the previous Node removed assume that its Pods have stopped.
pub(crate) async fn stop_pods(layout: &Layout, worker: &Worker) -> Result<(), Error> {
    // Remove the CNI configuration first, so that no new Pod is connected, not even by another CNI
    // plugin.
    files::clear(&layout.cni_config())?;
    for fault in cni::detach_all(&layout.bin(), Path::new(cni::RESULTS_FOLDER), &worker.id).await {
        progress(&format!("cannot disconnect a Pod from the network: {fault}"));
    }
    Cgroups::discover(&worker.id.cgroup())?.kill_pods().await;
    // A failure is ignored: the table does not exist after a reboot.
    let _ = nftables::delete_table("inet", &worker.id.network()).await;
    Ok(())
}
