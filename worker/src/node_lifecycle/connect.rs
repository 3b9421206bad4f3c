//! Connects the worker's Pods: creates the Pod network once the Node has a Pod range.

use yoke_api::Cidr;
use yoke_supervisor::cgroups::Cgroups;

use super::start::{build_kubelet_service, observe_machine};
use crate::config::{self, MachineFacts};
use crate::error::Error;
use crate::host::files;
use crate::layout::Layout;
use crate::network::{self, Network};
use crate::output::progress;
use crate::state::Worker;
use crate::upgrade::Kubelet;
use crate::{node, systemd};

/// Gives the Node its final address before any Pod is connected. The kubelet accepts only an
/// address of a local device, and the bridge appears with the first Pod.
async fn set_node_address(layout: &Layout, worker: &Worker, pods: Cidr, kubelet: &mut Kubelet) -> Result<(), Error> {
    let address = config::choose_address(worker, Some(pods));
    if let Some(address) = address {
        network::add_address(address).await.map_err(Error::Network)?;
    }
    let machine = MachineFacts {
        pods: Some(pods),
        ..observe_machine(&Cgroups::discover(&worker.id.cgroup())?, layout, worker)?
    };
    let text = config::build_kubelet(layout, worker, &machine);
    files::write(&layout.kubelet_config(), &text, files::PUBLIC)?;
    kubelet.stop().await;
    if let Some(address) = address {
        node::write_address(layout, worker, address).await;
    }
    kubelet.replace(build_kubelet_service(layout, worker, Some(pods)));
    Ok(())
}

/// Waits for the Node's Pod range and creates the Pod network, unless a CNI plugin does. Then
/// removes the bootstrap token, which is no longer needed.
pub(super) async fn connect_pods(
    layout: &Layout,
    worker: &mut Worker,
    kubelet: &mut Kubelet,
) -> Result<Option<Network>, Error> {
    let pods = node::wait_joined(layout, worker).await?;
    let (network, its_pods) = match pods {
        Some(pods) => {
            let network = Network::start(layout, worker, pods).await?;
            if worker.uplink.is_some() {
                set_node_address(layout, worker, pods, kubelet).await?;
            }
            let cni = config::build_cni(layout, &worker.id, pods, network.mtu);
            files::write(&layout.network_config(), &cni, files::PUBLIC)?;
            (Some(network), format!("its Pod range is {pods}"))
        }
        None => {
            let folder = layout.cni_config();
            let its_pods = format!(
                "a CNI plugin of the cluster connects its Pods, configured in {}",
                folder.display()
            );
            (None, its_pods)
        }
    };
    files::remove(&layout.bootstrap_kubeconfig())?;
    let status = format!("this machine is Node {} of {}; {its_pods}", worker.name, worker.server);
    systemd::notify_status(&status);
    progress(&status);
    if worker.ephemeral && node::is_reaped(layout, worker).await == Some(false) {
        progress(&format!(
            "if this worker is killed, Node {} remains; create the join token with --reap-after (`kubectl yoke join`, \
             `ssh HOST join`) to have the cluster remove a Node without heartbeats",
            worker.name
        ));
    }
    Ok(network)
}
